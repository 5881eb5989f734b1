"""Starts the ends of scenarios, and measures them in turn.

All scenarios of a table are started together and measured in rounds, each for a fraction of a second, so that what
else the machine does hits all of them alike; those that wait cost nothing. The order is reversed in every other round,
and the median of the rounds counts. Processor time is that of all processes of a scenario, the broker included, over
exactly the calls that are counted.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from benchmarks.measure import NotMeasuredError, processor_time
from benchmarks.peers import ROOT, python_of
from benchmarks.transports.process import Measured
from benchmarks.transports.scenario import SERVER_NUMBER, Scenario

ROUNDS = 5
IN_FLIGHT = 64
_SINGLE, _SETTLE, _MANY = 0.3, 0.1, 0.4  # seconds of a round: one call in flight; many, before and while they count
_PATIENCE = 20  # seconds


class Broker(NamedTuple):
    """A server that scenarios of a table share."""

    url: str
    pid: int


class Figures(NamedTuple):
    """What a scenario reached: seconds of a call when it is alone, calls per second and processor time with many."""

    version: str
    p50: float
    p99: float
    rate: float
    processor: dict[str, float]  # seconds a call, by process


class _Running(NamedTuple):
    version: str
    caller: "_Process"
    pids: dict[str, int]


class _Process:
    """An end that is talked to by lines."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log

    async def line(self) -> str:
        """The next line that it prints.

        Raises:
            NotMeasuredError: it is missing.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_PATIENCE):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise NotMeasuredError(f"{self.name} did not answer for {_PATIENCE} s") from None
        if not line:
            self._log.seek(0)
            raise NotMeasuredError(f"{self.name} did not run: {self._log.read().decode(errors='replace')[-500:]}")
        return line.decode().strip()

    async def measure(self, in_flight: int, seconds: float) -> Measured:
        """Have a caller measure.

        Raises:
            NotMeasuredError: it ended, or got wrong answers.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{in_flight} {seconds}\n".encode())
        measured = Measured(*json.loads(await self.line()))
        if measured.wrong:
            raise NotMeasuredError(f"{self.name} got {measured.wrong} wrong answers of {measured.calls}")
        return measured


@asynccontextmanager
async def _end(scenario: Scenario, end: str, loop: str, address: str, number: int = 0) -> AsyncGenerator[_Process]:
    """Start an end; it ends by itself when its standard input does."""
    python = sys.executable if scenario.peer is None else python_of(scenario.peer)
    command = [python, "-m", "benchmarks.transports.process", scenario.module, scenario.name, end, loop, address]
    pipe = asyncio.subprocess.PIPE
    with TemporaryFile() as log:
        environment = {**os.environ, SERVER_NUMBER: str(number)}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=log
        )
        try:
            yield _Process(f"{scenario.name} ({end}, {loop})", process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(2):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _start(stack: AsyncExitStack, scenario: Scenario, loop: str, brokers: Mapping[str, Broker]) -> _Running:
    broker = None if scenario.engine is None else brokers[scenario.engine]
    address = "" if broker is None else broker.url
    pids: dict[str, int] = {}
    if scenario.relay is not None:
        relay = await stack.enter_async_context(_end(scenario, "relay", loop, address))
        address = await relay.line()
        pids["relay"] = relay.pid
    if scenario.responder is not None:
        ends = [_end(scenario, "responder", loop, address, number) for number in range(scenario.servers)]
        for number, end in enumerate(ends, 1):
            responder = await stack.enter_async_context(end)
            address = await responder.line()
            pids["responder" if number == 1 else f"responder {number}"] = responder.pid
    caller = await stack.enter_async_context(_end(scenario, "caller", loop, address))
    version = await caller.line()
    if broker is not None:
        pids["broker"] = broker.pid
    return _Running(version, caller, {"caller": caller.pid, **pids})


async def _round(running: _Running) -> Figures:
    alone = await running.caller.measure(1, _SINGLE)
    await running.caller.measure(IN_FLIGHT, _SETTLE)
    before = {end: processor_time(pid) for end, pid in running.pids.items()}
    many = await running.caller.measure(IN_FLIGHT, _MANY)
    used = {end: (processor_time(pid) - before[end]) / many.calls for end, pid in running.pids.items()}
    return Figures(running.version, alone.p50, alone.p99, many.calls / many.seconds, used)


async def measure(scenarios: Sequence[Scenario], loop: str, brokers: Mapping[str, Broker]) -> list[Figures]:
    """Measure scenarios on one event loop.

    Raises:
        NotMeasuredError: one of them did not run, or gave a wrong result.
    """
    async with AsyncExitStack() as stack:
        running = [await _start(stack, scenario, loop, brokers) for scenario in scenarios]
        for each in running:
            await each.caller.measure(IN_FLIGHT, _MANY)  # to warm up
        figures: list[list[Figures]] = [[] for _ in running]
        for number in range(ROUNDS):
            turn = list(zip(running, figures, strict=True))
            for each, taken in reversed(turn) if number % 2 else turn:
                taken.append(await _round(each))
    return [_usual(taken) for taken in figures]


def _usual(rounds: Sequence[Figures]) -> Figures:
    processor = {end: median(each.processor[end] for each in rounds) for end in rounds[0].processor}
    return Figures(
        rounds[0].version,
        median(each.p50 for each in rounds),
        median(each.p99 for each in rounds),
        median(each.rate for each in rounds),
        processor,
    )
