"""Judge opwire by every document of a local copy of the public directory APIs-guru/openapi-directory.

    python -m tests.judges.directory FOLDER [--every 20] [--calls 17] [--processes 2] [--out verdicts.jsonl]

The newest version of each API is loaded, and a sample of its operations is called with input made by chance against a
server on loopback. An independent decoder reads each request by the document. Documents are read in worker processes
with bounded memory; one that takes too long, or ends its process, is a verdict of its own. js-yaml is the measure of
what YAML is: a document that it cannot read is not counted.
"""

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.judges import programs
from tests.judges.directory.calls import DocumentCalls, Verdict, no_content
from tests.judges.directory.reading import newest
from tests.openapi.client.echo import EchoServer

MEMORY = 6 * 1024**3  # bytes of address space of a worker
SECONDS = 300  # for one document, on a busy machine
CHUNK = 25  # documents per worker process
CONVERTER = Path(__file__).with_name("yaml.cjs")


class CatchAll(EchoServer):
    """Answers every request with 204."""

    async def _answer(self, exchange) -> None:
        await exchange.send(no_content())


def judge(paths: list[Path], *, calls: int, processes: int) -> Iterator[Verdict]:
    """Iterate over the verdicts on documents, in any order."""
    chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    with ThreadPoolExecutor(processes) as threads:
        for verdicts in threads.map(lambda chunk: list(_judge_chunk(chunk, calls)), chunks):
            yield from verdicts


def _judge_chunk(paths: list[Path], calls: int) -> Iterator[Verdict]:
    with tempfile.TemporaryDirectory() as folder:
        parsed = {path: Path(folder) / f"{index}.json" for index, path in enumerate(paths)}
        unreadable = _converted(parsed)
        waiting = [path for path in paths if path not in unreadable]
        while waiting:
            count = 0
            for verdict in _worker([(path, parsed[path]) for path in waiting], calls):
                count += 1
                yield verdict
            if count < len(waiting):  # the process ended, or was ended, at this document
                yield Verdict(str(waiting[count]), error="the process ended, or took too long")
                count += 1
            waiting = waiting[count:]


def _converted(parsed: dict[Path, Path]) -> set[Path]:
    """Convert documents to JSON, and return those that are not YAML."""
    lines = "".join(f"{source}\t{target}\n" for source, target in parsed.items())
    command = [str(programs.NODE), "--max-old-space-size=4000", str(CONVERTER)]
    ran = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=SECONDS)
    return {Path(line.partition("\t")[0]) for line in ran.stdout.splitlines()}


def _worker(pairs: list[tuple[Path, Path]], calls: int) -> Iterator[Verdict]:
    command = [sys.executable, "-m", "tests.judges.directory", "--worker", "--calls", str(calls), "-"]
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(lines)
        process.stdin.close()
        for line in process.stdout:
            yield msgspec.json.decode(line, type=Verdict)


async def _work(pairs: Iterable[tuple[str, str]], calls: int) -> None:
    """Judge documents one after the other; a verdict per line."""
    async with CatchAll() as server:
        for source, target in pairs:
            started = time.monotonic()
            timer = asyncio.get_running_loop().call_later(SECONDS, os._exit, 1)
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, resource.RLIM_INFINITY))
            verdict = await DocumentCalls(Path(source), Path(target), server, calls).run()
            timer.cancel()
            verdict.seconds = round(time.monotonic() - started, 2)
            sys.stdout.write(json.dumps(msgspec.to_builtins(verdict)) + "\n")
            sys.stdout.flush()


def summary(verdicts: list[Verdict]) -> str:
    """Return the figures, and the incomplete documents and wrong requests."""
    incomplete = [each for each in verdicts if each.error or each.skipped]
    rejected = [text for each in verdicts for text in each.rejected]
    causes = Counter(re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "…", text.partition(": ")[2])[:100] for text in rejected)
    called, wrong, unknown = (
        sum(map(count, verdicts))
        for count in (lambda each: each.called, lambda each: len(each.wrong), lambda each: len(each.unknown))
    )
    lines = [
        f"{len(verdicts):,} documents, {len(verdicts) - len(incomplete):,} complete",
        f"{sum(each.operations for each in verdicts):,} operations",
        f"{called:,} calls, {wrong:,} wrong requests",
        f"{len(rejected):,} inputs rejected, {unknown:,} operations without an input",
        *(f"{each.document}: {each.error or each.skipped[0]}" for each in incomplete),
        *(f"{each.document}: wrong: {text}" for each in verdicts for text in each.wrong),
        *(f"{each.document}: unusable: {text}" for each in verdicts for text in each.uncompiled),
        *(f"{count:,} rejected: {cause}" for cause, count in causes.most_common(30)),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge opwire by a directory of OpenAPI documents.")
    parser.add_argument("folder")
    parser.add_argument("--every", type=int, default=1, help="judge every n-th document")
    parser.add_argument("--calls", type=int, default=17, help="operations to call per document")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the verdicts to this file, one per line")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        pairs = [(source, target) for source, _, target in (line.strip().partition("\t") for line in sys.stdin)]
        asyncio.run(_work(pairs, options.calls))
        return
    verdicts: list[Verdict] = []
    paths = newest(Path(options.folder))[:: options.every]
    for verdict in judge(paths, calls=options.calls, processes=options.processes):
        verdicts.append(verdict)
        if options.out:
            with options.out.open("ab") as file:
                file.write(msgspec.json.encode(verdict) + b"\n")
    sys.stdout.write(summary(verdicts) + "\n")


if __name__ == "__main__":
    main()
