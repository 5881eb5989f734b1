"""Timing of calls that leave the process: the wall's clock, in rounds that every way to call takes part in.

Each way runs for a fraction of a second in each round, in an order that turns round with every round. A ratio is that
of the two times of one round, and the median of the rounds counts, so that a machine which slows down and speeds up
again does not decide it. Every answer is checked. Only the standard library: the peers' environments use this file too.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryFile
from time import perf_counter, process_time
from typing import Any, NamedTuple

from benchmarks.measure import NotMeasuredError, Row, need_linux, processor_time
from benchmarks.peers import ROOT, python_of

_ROUNDS = 21
_SECONDS = 0.1  # of a way in a round
_PATIENCE = 120  # seconds
# asyncio reads into a buffer of 256 KiB. malloc maps and unmaps that for every request in some processes, and not in
# others, by chance: 15 of 67 µs. With these settings it does so in none.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "4194304"}

Call = Callable[[int], Awaitable[Any]]
"""Asks for the number + 1."""


class Way(NamedTuple):
    """A way to call, and the process that answers, if its processor time is to be told."""

    name: str
    call: Call
    server: int | None = None
    limit: float | None = None  # minimum ratio to the first way
    behind: bool = False  # opwire must be ahead of it


class Figures(NamedTuple):
    """What a way took for one call, in microseconds; its ratio to the first way, and the middle half of its ratios."""

    name: str
    wall: float
    ratio: float
    quartiles: tuple[float, float]
    client: float  # processor time of the calling process
    server: float | None


class _Slice(NamedTuple):
    wall: float
    client: float
    server: float | None


async def race(ways: Sequence[Way], *, in_flight: int = 1, rounds: int = _ROUNDS) -> list[Figures]:
    """Measure ways to call; the first one is the control.

    Raises:
        NotMeasuredError: a way gave a wrong answer.
    """
    for way in ways:  # to warm up
        await _slice(way, in_flight)
    slices: list[list[_Slice]] = [[] for _ in ways]
    for number in range(rounds):
        turn = list(zip(ways, slices, strict=True))
        for way, taken in reversed(turn) if number % 2 else turn:
            gc.collect()
            taken.append(await _slice(way, in_flight))
    return [_figures(way, taken, slices[0]) for way, taken in zip(ways, slices, strict=True)]


def rows(ways: Sequence[Way], figures: Sequence[Figures], opwire: str) -> list[Row]:
    """The lines of a table; `opwire` is the name of the way that has to be ahead of those that are to be behind."""
    ours = next(each.ratio for each in figures if each.name == opwire)
    return [_row(way, figure, ours) for way, figure in zip(ways, figures, strict=True)]


def beside(peer: "Peer", ours: float, over: float = 1.0) -> list[Row]:
    """The lines of a peer that ran in a process of its own, with a control of its own.

    `ours` is the ratio that opwire reached, and `over` that of the peer's control to the table's.
    """
    control, *ways = peer.figures
    lines: list[Row] = []
    for way in ways:
        low, high = way.quartiles
        scaled = way._replace(ratio=way.ratio * over, quartiles=(low * over, high * over))
        note = f"{_note(scaled)}; {control.name} beside it {control.wall:,.0f} µs"
        name = f"{peer.library}: {way.name}"
        lines.append(Row(name, way.wall, scaled.ratio, "opwire ahead", ours < scaled.ratio, note))
    return lines


def run_peer(peer: str, module: str, *arguments: str) -> Any:
    """What the script of a peer prints, run in the peer's environment.

    Raises:
        NotMeasuredError: it did not run.
    """
    command = [python_of(peer), "-m", module, *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"{module} did not end within {_PATIENCE} s") from None
    if done.returncode:
        raise NotMeasuredError(f"{module} did not run: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def version_in(peer: str, package: str) -> str:
    """The version of a package in a peer's environment.

    Raises:
        NotMeasuredError: it is not there.
    """
    command = [python_of(peer), "-c", f"from importlib.metadata import version; print(version({package!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(f"{package} is not in the environment of {peer}")
    return done.stdout.strip()


class Peer(NamedTuple):
    """What the script of a peer measured, its control first."""

    library: str
    figures: list[Figures]


def report(figures: Sequence[Figures], package: str) -> None:
    """Print what `measured_peer` reads."""
    print(json.dumps([f"{package} {version(package)}", figures]))


def measured_peer(peer: str, module: str, *arguments: str) -> Peer:
    """What the script of a peer measured.

    Raises:
        NotMeasuredError: it did not run.
    """
    library, figures = run_peer(peer, module, *arguments)
    return Peer(library, [Figures(*each) for each in figures])


class Server(NamedTuple):
    """A server in a process of its own."""

    address: str
    pid: int


@asynccontextmanager
async def served(module: str, *arguments: str, peer: str | None = None) -> AsyncGenerator[Server]:
    """Run a module that prints its address, and serves until its standard input ends.

    Raises:
        NotMeasuredError: it did not start.
    """
    python = sys.executable if peer is None else python_of(peer)
    pipe = asyncio.subprocess.PIPE
    with TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            python,
            "-m",
            module,
            *arguments,
            cwd=ROOT,
            env={**os.environ, **_MALLOC},
            stdin=pipe,
            stdout=pipe,
            stderr=log,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = (await process.stdout.readline()).decode().strip()
            if not address:
                log.seek(0)
                raise NotMeasuredError(f"{module} did not start: {log.read().decode(errors='replace')[-500:]}")
            yield Server(address, process.pid)
        finally:
            process.stdin.close()
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def children() -> set[int]:
    """The processes that this one has started, and that still run.

    Raises:
        NotMeasuredError: this is not Linux.
    """
    need_linux()
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text(encoding="utf-8").split()}


async def _slice(way: Way, in_flight: int) -> _Slice:
    server, client = 0.0 if way.server is None else processor_time(way.server), process_time()
    began = perf_counter()
    done = await asyncio.gather(*(_keep_calling(way, number, began + _SECONDS) for number in range(in_flight)))
    wall, client = perf_counter() - began, process_time() - client
    calls = sum(done) / 1e6
    used = None if way.server is None else (processor_time(way.server) - server) / calls
    return _Slice(wall / calls, client / calls, used)


async def _keep_calling(way: Way, number: int, until: float) -> int:
    calls = 0
    while perf_counter() < until:
        answer = await way.call(number)
        if answer != number + 1:
            raise NotMeasuredError(f"{way.name} gave a wrong answer: {str(answer)[:200]}")
        calls += 1
    return calls


def _figures(way: Way, slices: Sequence[_Slice], control: Sequence[_Slice]) -> Figures:
    ratios = [taken.wall / other.wall for taken, other in zip(slices, control, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    served = [each.server for each in slices if each.server is not None]
    return Figures(
        way.name,
        median(each.wall for each in slices),
        middle,
        (low, high),
        median(each.client for each in slices),
        median(served) if served else None,
    )


def _row(way: Way, figure: Figures, ours: float) -> Row:
    row = Row(way.name, figure.wall, figure.ratio, note=_note(figure))
    if way.limit is not None:
        return row._replace(must_reach=f"<= {way.limit:g}", reached=figure.ratio <= way.limit)
    if way.behind:
        return row._replace(must_reach="opwire ahead", reached=ours < figure.ratio)
    return row


def _note(figure: Figures) -> str:
    low, high = figure.quartiles
    spread = "" if low == high else f"half of the rounds {low:.2f} to {high:.2f}; "
    server = "" if figure.server is None else f" + server {figure.server:.0f}"
    return f"{spread}CPU client {figure.client:.0f}{server} µs"
