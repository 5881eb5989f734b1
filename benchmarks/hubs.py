"""What a hub costs: CPU time per call within one hub and between two, and memory per spoke and per operation.

    .venv/bin/python -m benchmarks.hubs

Hubs are processes of their own; spokes and callers are in this one. CPU time of the hubs is what counts: other load
disturbs it least. Needs Linux.
"""

import asyncio
import os
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex

from tests.servers.brokers import NatsServer, RedisServer
from tests.servers.processes import Worker

from opwire import OperationRegistry
from opwire.hub import Spoke

CALLS, IN_FLIGHT, ROUNDS = 20_000, 64, 5
SPOKES, OPERATIONS = 200, 2_000


class HubProcess:
    """A hub, and what it has used so far."""

    def __init__(self, worker: Worker) -> None:
        self._folder = Path(f"/proc/{worker.pid}")
        port = next(line for line in worker.lines if line.startswith("port ")).split()[1]
        self.url = f"ws://127.0.0.1:{port}"

    @property
    def seconds(self) -> float:
        """CPU time."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def kilobytes(self) -> int:
        """Resident memory."""
        return int((self._folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@asynccontextmanager
async def hubs(number: int, broker: str | None = None) -> AsyncIterator[list[HubProcess]]:
    """Run hubs, as one if there is a broker."""
    cluster = () if broker is None else (broker, f"bench-{token_hex(4)}")
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(Worker("tests.hub.process", "0", *cluster, is_unmeasured=True))
            for _ in range(number)
        ]
        yield [HubProcess(worker) for worker in workers]


def adding(number: int = 1) -> OperationRegistry:
    """Return a registry with this number of operations."""
    registry = OperationRegistry()

    async def add(a: int, b: int) -> int:
        """Add two numbers, as an operation of an ordinary size does."""
        return a + b

    for each in range(number):
        registry.query(f"math.add{each}")(add)
    return registry


async def per_call(running: list[HubProcess]) -> list[float]:
    """Return the CPU time of each hub per call, from a caller at the last to a spoke at the first, in µs."""
    async with Spoke(adding(), running[0].url), Spoke(None, running[-1].url) as caller:

        async def some() -> None:
            for number in range(CALLS // IN_FLIGHT):
                assert await caller.call("math.add0", {"a": number, "b": 1}) == number + 1

        await some()
        rounds: list[list[float]] = []
        for _ in range(ROUNDS):
            before = [hub.seconds for hub in running]
            await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
            spent = (hub.seconds - then for hub, then in zip(running, before, strict=True))
            rounds.append([each / (CALLS // IN_FLIGHT * IN_FLIGHT) * 1e6 for each in spent])
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


async def main() -> None:
    """Measure, and print."""
    async with hubs(1) as running:
        print(f"CPU of a hub per call within it:       {(await per_call(running))[0]:6.1f} µs")
    for engine in (NatsServer, RedisServer):
        with engine() as server:
            async with hubs(2, server.url) as running:
                served, called = await per_call(running)
                print(
                    f"{server.program}: CPU of the caller's hub {called:6.1f} µs, of the spoke's hub {served:6.1f} µs"
                )
    async with hubs(1) as running, AsyncExitStack() as stack:
        before = running[0].kilobytes
        for _ in range(SPOKES):
            await stack.enter_async_context(Spoke(adding(), running[0].url))
        print(f"memory per spoke:                      {(running[0].kilobytes - before) / SPOKES:6.1f} kB")
    async with hubs(1) as running:
        before = running[0].kilobytes
        async with Spoke(adding(OPERATIONS), running[0].url):
            print(f"memory per operation:                  {(running[0].kilobytes - before) / OPERATIONS:6.1f} kB")


if __name__ == "__main__":
    asyncio.run(main())
