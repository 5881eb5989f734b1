"""Growth: what more spokes, operations and subscriptions cost, as exponents that n log n must not exceed.

    .venv/bin/python -m benchmarks.scale [spokes|operations|subscriptions]

Each point is measured in fresh processes, one of which is the hub. Times are CPU time of all of them, so other load
disturbs them least; memory is the growth of the resident memory of a process. An exponent is the slope of the costs
over the numbers, both as logarithms: 1 is a cost in proportion, and 0 a cost that does not grow. Needs Linux.
"""

import asyncio
import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any

from tests.hub.meeting import OPEN
from tests.servers.processes import ROOT, Worker, unmeasured
from tests.servers.worker import say, wait_for_the_end

from benchmarks.measure import NotMeasuredError, Row, Table, need_linux, processor_time
from opwire import Context, OperationRegistry, OperationSpec
from opwire.hub import Hub, Spoke
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.schema import Schema
from opwire.transports.memory import MemoryBus, MemoryTransport

TOLERANCE = 0.15  # by which a measured exponent may exceed that of n log n, or of a constant cost
CALLS, IN_FLIGHT = 1_000, 20
_AT_ONCE = 5  # spokes that connect, and streams that are opened
_PATIENCE = 600.0  # seconds for a point, on a busy machine
_LEAST = {"ms": 5.0, "MB": 0.25}  # smaller costs are noise, and are left out of a slope

Costs = dict[str, float]


class Meter:
    """Costs of this process and of the hub since the last look, if there is a hub."""

    def __init__(self, hub: int | None = None) -> None:
        self._hub = hub
        self.costs: Costs = {}
        self.restart()

    def restart(self) -> None:
        """Begin a measurement."""
        gc.collect()
        self._began = self._cpu(), self._memory(os.getpid()), self._memory(self._hub)
        self._hub_began = 0 if self._hub is None else processor_time(self._hub)

    def stop(self, name: str, *, memory: bool = False) -> None:
        """Record the CPU time since then in milliseconds, and the growth of the memory in megabytes."""
        cpu, own, hub = self._began
        self.costs[f"{name}: CPU, ms"] = (self._cpu() - cpu) * 1e3
        if memory:
            self.costs[f"{name}: memory, MB"] = self._memory(os.getpid()) - own
        if memory and self._hub is not None:
            self.costs[f"{name}: memory of the hub, MB"] = self._memory(self._hub) - hub
        self.restart()

    def stop_hub(self, name: str) -> None:
        """Record the CPU time of the hub since then. All spokes are in this process, which is busy with them."""
        assert self._hub is not None
        self.costs[f"{name}: CPU of the hub, ms"] = (processor_time(self._hub) - self._hub_began) * 1e3
        self.restart()

    def _cpu(self) -> float:
        return process_time() + (0 if self._hub is None else processor_time(self._hub))

    @staticmethod
    def _memory(pid: int | None) -> float:
        if pid is None:
            return 0
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@asynccontextmanager
async def running_hub() -> AsyncIterator[tuple[str, Meter]]:
    """Run a hub in a process of its own; yield its URL and the meter."""
    async with Worker("benchmarks.scale", "hub", patience=_PATIENCE, is_unmeasured=True) as worker:
        port = next(line for line in worker.lines if line.startswith("port ")).split()[1]
        yield f"ws://127.0.0.1:{port}", Meter(worker.pid)


async def hub() -> None:
    """Run a hub with limits above the points."""
    limits: dict[str, Any] = {"max_connections": 2_000, "max_operations": 200_000, "max_calls": 20_000}
    limits |= {"heartbeat": _PATIENCE, "hello_timeout": _PATIENCE}  # a busy machine must not matter
    async with Hub(None, "ws://127.0.0.1:0", authenticate=OPEN, **limits) as hub:
        say(f"port {hub.url.rpartition(':')[2]}")
        await wait_for_the_end()


def adding(*names: str, version: str = "") -> OperationRegistry:
    """Return a registry with operations of these names, each with schemas of its own."""
    registry = OperationRegistry()

    async def add(input: Any, context: Context) -> int:
        return input["a"] + input["b"]

    for each in names:
        number = {"type": "integer", "description": "One of the two numbers."}
        input = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
        namespace, _, name = each.partition(".")
        spec = OperationSpec(
            namespace=namespace,
            name=name,
            version=version,
            description="Add two numbers, as an operation of an ordinary size does.",
            input_schema=Schema(input),
            output_schema=Schema({"type": "integer"}),
        )
        registry.register(spec, add)
    return registry


async def some_calls(caller: Spoke, operation_id: str, **options: Any) -> None:
    """Make a number of calls."""

    async def some() -> None:
        for number in range(CALLS // IN_FLIGHT):
            answer = await caller.calls.call(operation_id, {"a": number, "b": 1}, **options)
            assert answer.data == number + 1

    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


async def spokes(n: int) -> Costs:
    """Connect spokes to a hub, each with an operation of its own and one that all of them serve, in two versions."""
    async with running_hub() as (url, meter), AsyncExitStack() as stack:
        caller = await stack.enter_async_context(Spoke(None, url))
        registries = [adding("shared.add", f"own{number}.add", version=str(number % 2)) for number in range(n)]
        all_spokes = [Spoke(registry, url, connect_timeout=_PATIENCE) for registry in registries]
        meter.restart()
        for start in range(0, n, _AT_ONCE):
            await asyncio.gather(*map(stack.enter_async_context, all_spokes[start : start + _AT_ONCE]))
        meter.stop("start", memory=True)
        found = await caller.discover()
        assert sum(len(each.operations) for each in found) >= n
        meter.stop("discovery")
        kinds: dict[str, tuple[str, dict[str, Any]]] = {
            "of one spoke": ("own0.add", {}),
            "of a version": ("shared.add", {"version": "1"}),
            "with a sticky key": ("shared.add", {"sticky_key": "session"}),
        }
        for kind, (operation_id, options) in kinds.items():
            await some_calls(caller, operation_id, **options)
            meter.restart()
            await some_calls(caller, operation_id, **options)
            meter.stop_hub(f"{CALLS:,} calls {kind}")
        await asyncio.gather(*(each.close() for each in all_spokes))
        meter.stop("leaving")
    return meter.costs


async def operations(n: int) -> Costs:
    """Register operations, and announce them to a hub by one spoke."""
    names = [f"math.add{number}" for number in range(n)]
    async with running_hub() as (url, meter):
        registry = adding(*names)
        meter.stop("registration", memory=True)
        assert registry.search("add 17")
        meter.stop("first search", memory=True)
        assert len(registry.list()) == n
        meter.stop("list")
        async with Spoke(None, url) as caller:
            spoke = await Spoke(registry, url).start()
            meter.stop("announcement", memory=True)
            found = await caller.discover()
            assert max(len(each.operations) for each in found) >= n
            meter.stop("discovery")
            await some_calls(caller, "math.add0")
            meter.restart()
            await some_calls(caller, "math.add0")
            meter.stop_hub(f"{CALLS:,} calls")
            await spoke.close()
            meter.stop("leaving")
    return meter.costs


async def subscriptions(n: int) -> Costs:
    """Open subscriptions and take two items of each, in memory and through a hub."""
    release = asyncio.Event()
    registry = OperationRegistry()

    @registry.subscription("room.messages")
    async def messages(number: int) -> AsyncIterator[int]:
        yield number
        await release.wait()
        yield -number
        await asyncio.Event().wait()

    async def measure(calls: PendingRequestMap, meter: Meter, where: str) -> None:
        release.clear()
        streams = [calls.subscribe("room.messages", {"number": number}) for number in range(n)]

        async def each(do: Callable[[Any], Awaitable[Any]]) -> list[Any]:
            results: list[Any] = []
            for start in range(0, n, _AT_ONCE):
                results += await asyncio.gather(*map(do, streams[start : start + _AT_ONCE]))
            return results

        meter.restart()
        assert [item.data for item in await each(anext)] == list(range(n))
        meter.stop(f"{where}, first items", memory=True)
        release.set()
        assert [item.data for item in await each(anext)] == [-number for number in range(n)]
        meter.stop(f"{where}, second items")
        await each(lambda stream: stream.aclose())
        meter.stop(f"{where}, closing")

    bus, meter = MemoryBus(), Meter()
    async with (
        PendingRequestMap(MemoryTransport(bus)) as served,
        CallHandler(registry, served),
        PendingRequestMap(MemoryTransport(bus)) as calls,
    ):
        await measure(calls, meter, "in memory")
    async with running_hub() as (url, by_hub), Spoke(registry, url), Spoke(None, url) as caller:
        await measure(caller.calls, by_hub, "by a hub")
    return meter.costs | by_hub.costs


CURVES: dict[str, tuple[Callable[[int], Awaitable[Costs]], tuple[int, ...]]] = {
    "spokes": (spokes, (10, 30, 100, 300, 1_000)),
    "operations": (operations, (100, 1_000, 10_000, 100_000)),
    "subscriptions": (subscriptions, (1, 10, 100, 1_000, 10_000)),
}


def slope(points: list[tuple[int, float]]) -> float:
    """Return the exponent that fits best: the slope of the costs over the numbers, both as logarithms."""
    xs, ys = [math.log(n) for n, _ in points], [math.log(cost) for _, cost in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def compared(name: str, points: list[tuple[int, float]]) -> Row:
    """Return the exponent of a curve; that of a constant number of calls must not grow."""
    costs = f"{points[0][1]:,.3g} → {points[-1][1]:,.4g}"
    heard = [(n, cost) for n, cost in points if cost >= _LEAST[name[-2:]]][-3:]
    if len(heard) < 2:
        return Row(f"{name}: {costs}", 0, must_reach="too small to fit", reached=None)
    exponent = slope(heard)
    limit = TOLERANCE + (0 if " calls" in name else slope([(n, n * math.log(n)) for n, _ in heard]))
    return Row(f"{name}: {costs}", exponent, must_reach=f"<= {limit:.2f}", reached=exponent <= limit)


def tables(names: list[str] | None = None) -> Iterator[Table]:
    """Measure the curves.

    Raises:
        NotMeasuredError: this is not Linux, or a point failed.
    """
    need_linux()
    for curve in names or CURVES:
        _, numbers = CURVES[curve]
        costs: dict[int, Costs] = {}
        for n in numbers:
            command = [sys.executable, "-m", "benchmarks.scale", curve, str(n)]
            done = subprocess.run(command, cwd=ROOT, env=unmeasured(), capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotMeasuredError(f"{n:,} {curve}: {done.stderr[-2_000:]}")
            costs[n] = json.loads(done.stdout.splitlines()[-1])
        rows = [compared(name, [(n, costs[n][name]) for n in numbers]) for name in costs[numbers[0]]]
        yield Table(f"{numbers[0]:,} → {numbers[-1]:,} {curve}", "exponent", "", rows)


async def point(curve: str, n: int) -> None:
    """Measure one point of a curve, and print it."""
    async with asyncio.timeout(_PATIENCE):
        costs = await CURVES[curve][0](n)
    print(json.dumps(costs))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hub"]:
            asyncio.run(hub())
        case [curve, n]:
            asyncio.run(point(curve, int(n)))
        case names:
            for table in tables(names):
                print(table, end="\n\n", flush=True)
