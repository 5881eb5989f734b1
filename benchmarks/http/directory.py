"""How many documents of the public directory each library loads with all their operations.

    python -m benchmarks.http.directory path/to/openapi-directory/APIs [--documents 60] [--seed 18]

Not part of the ladders: the directory is not beside this checkout. Each document is loaded in a fresh process, limited
to a minute. It is complete if there are as many tools as operations; an independent reading counts those.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.judges.directory.reading import Document, newest

from benchmarks.measure import NotMeasuredError
from benchmarks.peers import ROOT, python_of

_SECONDS = 60
_WAYS = {
    "opwire": ["benchmarks.http.documents", "listed"],
    "fastmcp": ["benchmarks.peers.fastmcp_document"],
    "utcp": ["benchmarks.peers.utcp_document"],
}


def load(library: str, path: Path) -> dict[str, Any] | str:
    """Return what a load took, or why it failed.

    Raises:
        NotMeasuredError: the library is not installed.
    """
    python = sys.executable if library == "opwire" else python_of(library)
    try:
        command = [python, "-m", *_WAYS[library], str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"more than {_SECONDS} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["ended without a word"])[-1][:200]
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Load a sample with each library, and print the figures and the failures."""
    parser = argparse.ArgumentParser(description="Load documents of the public directory with several libraries.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--seed", type=int, default=18)
    options = parser.parse_args()
    paths = random.Random(options.seed).sample(newest(options.folder), options.documents)
    counts: dict[Path, int | None] = {}
    for path in paths:
        try:
            counts[path] = len(list(Document(yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)).endpoints()))
        except yaml.YAMLError:
            counts[path] = None  # what PyYAML cannot parse has at least one
    for library in _WAYS:
        complete, seconds, failures = 0, 0.0, []
        try:
            for path in paths:
                found = load(library, path)
                wanted = counts[path] or 1
                if isinstance(found, dict) and found["operations"] >= wanted:
                    complete += 1
                    seconds += found["seconds"]
                else:
                    reason = found if isinstance(found, str) else f"{found['operations']} of {wanted} operations"
                    failures.append(f"  {path.relative_to(options.folder)}: {reason}")
        except NotMeasuredError as error:
            print(f"{library}: {error}")
            continue
        print(
            f"{library}: {complete} of {len(paths)} documents complete, {seconds:.1f} s for these", *failures, sep="\n"
        )


if __name__ == "__main__":
    main()
