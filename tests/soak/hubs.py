"""Several hubs as one, killed and drained at random while they relay.

    python -m tests.soak.hubs [--calls 50000] [--spokes 60] [--seed 1] [--drains]

Three hubs are processes; spokes and callers are in this one, at all hubs. It prints what happened over each engine, and
exits with 1 if a call was lost: if it had no outcome in time or a wrong one, ran twice, or was said to be unknown. With
`--drains` no hub is killed, and a call that fails is lost, too.
"""

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import Any

from opwire.errors import CallError, ErrorCode
from opwire.hub import Spoke
from opwire.registry import OperationRegistry
from tests.servers.brokers import NatsServer, RedisServer
from tests.servers.processes import Worker

_TIMEOUT = 30.0  # seconds for a call: none may need them
_CALLERS = 12


class _HubProcess:
    """A hub that is started again at its port whenever it has ended."""

    def __init__(self, broker: str, prefix: str) -> None:
        self._arguments = broker, prefix
        self._port = "0"

    async def start(self) -> None:
        self._worker = Worker("tests.hub.process", self._port, *self._arguments, is_unmeasured=True)
        await self._worker.__aenter__()
        self._port = next(line for line in self._worker.lines if line.startswith("port ")).split()[1]

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}"

    async def end(self, *, kill: bool) -> None:
        if kill:
            self._worker.kill()
        await self._worker.__aexit__(None)


class HubSoak:
    """A number of calls over a number of spokes, while hubs are killed and drained."""

    def __init__(
        self,
        broker: str,
        *,
        spokes: int,
        calls: int,
        at_once: int = 4,
        faults: int = 2,
        seed: int = 1,
        kills: bool = True,
    ) -> None:
        self._broker = broker
        self._spokes = spokes
        self._least = calls
        self._at_once = at_once  # by each caller
        self._least_faults = faults
        self._kinds = ["drained", "killed"] if kills else ["drained"]
        self._random = random.Random(seed)
        self._number = 0
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.runs: Counter[int] = Counter()
        self.lost: list[str] = []
        self.seconds = 0.0

    async def run(self) -> None:
        prefix = f"soak-{token_hex(4)}"
        hubs = [_HubProcess(self._broker, prefix) for _ in range(3)]
        await asyncio.gather(*(hub.start() for hub in hubs))
        try:
            async with AsyncExitStack() as stack:
                urls = [hub.url for hub in hubs]
                ends = [self._end(urls, number < self._spokes) for number in range(self._spokes + _CALLERS)]
                await asyncio.gather(*map(stack.enter_async_context, ends))
                began = time.monotonic()
                callers = ends[self._spokes :] * self._at_once
                calling = [asyncio.create_task(self._call(caller)) for caller in callers]
                trouble = asyncio.create_task(self._trouble(hubs))
                await asyncio.gather(*calling)
                self.seconds = time.monotonic() - began
                await trouble
        finally:
            for hub in hubs:
                await hub.end(kill=True)
        self.lost += [f"call {number} ran {runs} times" for number, runs in self.runs.items() if runs > 1]

    def _end(self, urls: list[str], serves: bool) -> Spoke:
        registry = OperationRegistry()
        if serves:

            @registry.mutation("work.do")
            async def do(number: int) -> int:
                self.runs[number] += 1
                await asyncio.sleep(0.002 * (number % 5))
                return number

        return Spoke(registry, self._random.sample(urls, len(urls)))

    @property
    def _over(self) -> bool:
        return self._number >= self._least and self.faults.total() >= self._least_faults

    async def _call(self, caller: Spoke) -> None:
        while not self._over:
            number = self._number = self._number + 1
            try:
                result: Any = await caller.call("work.do", {"number": number}, timeout=_TIMEOUT)
            except CallError as error:
                self.outcomes[error.code.value] += 1
                if error.code is not ErrorCode.UNAVAILABLE or "killed" not in self._kinds:
                    self.lost.append(f"call {number}: {error}")
                await asyncio.sleep(0.01)
            else:
                self.outcomes["OK"] += 1
                if result != number or not self.runs[number]:
                    self.lost.append(f"call {number} returned {result!r} after {self.runs[number]} runs")

    async def _trouble(self, hubs: list[_HubProcess]) -> None:
        while not self._over:
            kinds = self._kinds[self.faults.total() :] or self._kinds  # each of them at first, and then any
            kind = kinds[0] if kinds is not self._kinds else self._random.choice(kinds)
            hub = self._random.choice(hubs)
            await hub.end(kill=kind == "killed")
            self.faults[kind] += 1
            await hub.start()
            await asyncio.sleep(self._random.uniform(0, 0.1))

    def __str__(self) -> str:
        lines = [f"{sum(self.outcomes.values()):,} calls in {self.seconds:.0f} s: {dict(self.outcomes)}"]
        lines += [f"hubs: {dict(self.faults)}", f"lost: {len(self.lost)}", *self.lost[:20]]
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.hubs", description="Calls over hubs that come and go.")
    parser.add_argument("--calls", type=int, default=50_000)
    parser.add_argument("--spokes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--drains", action="store_true", help="kill no hub")
    options = parser.parse_args()
    logging.getLogger("opwire").setLevel(logging.ERROR)  # otherwise each lost connection is a line
    good = True
    for engine in (NatsServer, RedisServer):
        with engine() as server:
            soak = HubSoak(
                server.url, spokes=options.spokes, calls=options.calls, seed=options.seed, kills=not options.drains
            )
            asyncio.run(soak.run())
            sys.stdout.write(f"\n{server.program}\n{soak}\n")
            good = good and not soak.lost
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
