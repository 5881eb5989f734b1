"""The peers, each in an environment of its own: a script there measures and prints JSON.

The bare function and opwire's `execute` run there too, in the same rounds: like is compared with like.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Contender, NotMeasuredError, race

PEERS = {"pydantic-ai": "benchmarks.peers.pydantic_ai_toolset", "fastmcp": "benchmarks.peers.fastmcp_server"}
"""Each peer and the script that measures it."""

ROOT = Path(__file__).parent.parent.parent
_PATIENCE = 120  # seconds


class Measured(NamedTuple):
    """What a peer's script prints; all times are seconds a call."""

    version: str
    bare: float
    execute: float
    calls: dict[str, float]


def python_of(peer: str) -> str:
    """The interpreter of a peer's environment.

    Raises:
        NotMeasuredError: the environment is missing.
    """
    folder = ROOT / f".venv-bench-{peer}"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        raise NotMeasuredError(f"{peer} is not installed: `make bench` makes {folder.name}")
    return str(python)


def measure_peer(peer: str) -> Measured:
    """Run a peer's script.

    Raises:
        NotMeasuredError: it did not run.
    """
    command = [python_of(peer), "-m", PEERS[peer]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode:
        raise NotMeasuredError(f"{peer} did not run: {done.stderr.strip()[-500:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


async def report(version: str, bare: Contender, execute: Contender, calls: Sequence[Contender]) -> None:
    """Race a peer's ways to call with the two of opwire, and print what `measure_peer` reads."""
    times = await race([bare, execute, *calls])
    named = {each.name: seconds for each, seconds in zip(calls, times[2:], strict=True)}
    print(json.dumps(Measured(version, times[0], times[1], named)._asdict()))
