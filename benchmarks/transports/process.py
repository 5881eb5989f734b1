"""One end of a scenario, in a process of its own.

    python -m benchmarks.transports.process MODULE SCENARIO END LOOP ADDRESS

Relays and responders print their address and serve until their standard input ends. A caller prints the version of its
library, and then, for each line with a number of calls in flight and of seconds, what it measured.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from statistics import quantiles
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.transports.scenario import Call, End, Scenario


class Measured(NamedTuple):
    """What a caller measured; all times are seconds."""

    calls: int
    seconds: float
    wrong: int
    p50: float
    p99: float


async def _serve(end: End, address: str) -> None:
    async with end(address) as given:
        print(given, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _call(scenario: Scenario, address: str) -> None:
    async with scenario.caller(address) as call:
        print(version(scenario.library) if scenario.library else "", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            in_flight, seconds = line.split()
            print(json.dumps(await _measure(call, int(in_flight), float(seconds))), flush=True)


async def _measure(call: Call, in_flight: int, seconds: float) -> Measured:
    """Keep a number of calls in flight for a time; wait for the last ones."""
    times: list[float] = []
    began = perf_counter()
    wrong = await asyncio.gather(*(_worker(call, number, began + seconds, times) for number in range(in_flight)))
    took = perf_counter() - began
    percentiles = quantiles(times, n=100)
    return Measured(len(times), took, sum(wrong), percentiles[49], percentiles[98])


async def _worker(call: Call, number: int, until: float, times: list[float]) -> int:
    wrong = 0
    began = perf_counter()
    while began < until:
        wrong += await call(number) != number + 1
        ended = perf_counter()
        times.append(ended - began)
        began = ended
    return wrong


def _loop(name: str) -> Any:
    return import_module("uvloop").run if name == "uvloop" else asyncio.run


def main(arguments: Sequence[str]) -> None:
    """Run an end."""
    module, name, end, loop, address = arguments
    (scenario,) = (each for each in import_module(module).SCENARIOS if each.name == name)
    run = _loop(loop)
    if end == "caller":
        run(_call(scenario, address))
    else:
        run(_serve(getattr(scenario, end), address))


if __name__ == "__main__":
    main(sys.argv[1:])
