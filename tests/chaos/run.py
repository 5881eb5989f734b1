"""`run_chaos`: thousands of calls over transports with injected faults, and the invariants that must hold.

- Each call has exactly one outcome: its response, a `CallError`, or its own cancellation.
- No call waits beyond its deadline.
- A handler runs at most once per request, and each response belongs to its request.
- The items of a subscription arrive complete and in order, unless it ends with an error.
- After the last deadline nothing is left: no open call, no task, no memory.
"""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context
from opwire.model.operation import Handler, OperationSpec, OperationType
from opwire.protocol import CallHandler, Overflow, PendingRequestMap, Transport
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire_conformance.harness import expect
from tests.chaos.transport import FAULTS, Chaos, ChaosTransport, Fault

LONGEST = 1.0
"""The longest timeout of a call in a run, in seconds."""

_WARM_UP = 500  # calls after which every cache is filled, so that memory can be compared
_BLOCKS = 500  # of memory, by which a run of any length may differ from the warm-up; 2 to 30 are usual
_TICK = 0.01
_WINDOW = 16
_CLEANUP = 0.2  # seconds that a handler takes to end, at most

_PURPOSE = "on purpose"
_EXPECTED = (ErrorCode.TIMEOUT, ErrorCode.UNAVAILABLE, ErrorCode.ABORTED)

ANSWERED, LEFT, CANCELLED = "answered", "left early", "cancelled"


class ChaosReport(NamedTuple):
    """The calls of a run by outcome, and its injected faults."""

    calls: int
    outcomes: Counter[str]  # answered, left early, cancelled, or an error code
    faults: Counter[Fault]
    reconnections: int
    blocks: int  # of memory, more than before

    def __str__(self) -> str:
        outcomes = ", ".join(f"{name} {count:,}" for name, count in self.outcomes.most_common())
        faults = ", ".join(f"{fault} {self.faults[fault]:,}" for fault in FAULTS)
        return (
            f"{self.calls:,} calls: {outcomes}\n"
            f"faults injected: {faults}; ends put up again: {self.reconnections:,}\n"
            f"left behind: no call, no task, {self.blocks:,} blocks of memory"
        )


async def run_chaos(
    chaos: Chaos,
    *,
    calls: int = 3_000,
    connect: Callable[[], Transport] | None = None,
    ends: int = 4,
    at_once: int = 64,
    slack: float = 5.0,
) -> ChaosReport:
    """Make calls between several ends of a bus: a new `MemoryBus`, unless `connect` returns other ends.

    `slack` is the number of seconds after its deadline within which a call has to end: few in virtual time, more on a
    busy machine.

    Raises:
        AssertionError: an invariant does not hold, or a fault was never injected.
    """
    bus = MemoryBus(codec=True)
    join = connect or (lambda: MemoryTransport(bus))
    outcomes: Counter[str] = Counter()
    reconnections = 0
    blocks: list[int] = []
    warm_up = min(_WARM_UP, calls // 2)
    for numbers in (range(warm_up), range(warm_up, calls)):
        world = _World(chaos, join, slack, numbers)
        await world.run(ends, at_once)
        outcomes += world.outcomes
        reconnections += world.reconnections
        del world
        await asyncio.sleep(LONGEST)  # until then the loop keeps the timers of deadlines
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    grown = blocks[1] - blocks[0]
    expect(outcomes.total() == calls, f"{calls:,} calls had {outcomes.total():,} outcomes")
    missing = [fault for fault in FAULTS if not chaos.counts[fault]]
    expect(not missing, f"never injected: {', '.join(missing)}")
    expect(grown <= _BLOCKS, f"memory has grown by {grown:,} blocks")
    return ChaosReport(calls, outcomes, Counter(chaos.counts), reconnections, grown)


class _End:
    """One end of the bus, which serves and calls."""

    def __init__(self, transport: ChaosTransport) -> None:
        self.transport = transport
        self.calls = PendingRequestMap(transport, window=_WINDOW)
        self.registry = OperationRegistry()
        self.handler = CallHandler(self.registry, self.calls)

    async def open(self) -> None:
        await self.calls.start()
        await self.handler.start()

    async def close(self) -> None:
        await self.handler.close()
        await self.calls.close()


class _World:
    """The ends, the operations that they serve, and the callers."""

    def __init__(self, chaos: Chaos, connect: Callable[[], Transport], slack: float, numbers: range) -> None:
        self._chaos = chaos
        self._random = chaos.random
        self._connect = connect
        self._slack = slack
        self._numbers = numbers
        self._runs = bytearray(numbers.stop)  # how often a handler has run, by the number of the call
        self._ends: list[_End] = []
        self._twice: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.reconnections = 0

    async def run(self, ends: int, at_once: int) -> None:
        before = asyncio.all_tasks()
        for _ in range(ends):
            self._ends.append(await self._new_end())
        numbers = iter(self._numbers)
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._caller(numbers))
        await self._quiet()
        for end in self._ends:
            expect(len(end.handler) == 0, f"{len(end.handler)} requests are still being answered")
            expect(end.calls.open_calls == 0, f"{end.calls.open_calls} calls are still open")
            await end.close()
        left = asyncio.all_tasks() - before
        expect(not left, f"{len(left)} tasks were left behind: {left}")
        expect(not self._twice, f"handlers ran twice for the calls {self._twice[:10]}")

    async def _quiet(self) -> None:
        """Wait until all calls have ended, at most until the last deadline, which ends the calls with lost events."""
        for _ in range(round((LONGEST + _CLEANUP + self._slack) / _TICK)):
            if not any(end.calls.open_calls or len(end.handler) for end in self._ends):
                return
            await asyncio.sleep(_TICK)

    async def _new_end(self) -> _End:
        end = _End(ChaosTransport(self._connect(), self._chaos))
        handlers: dict[str, Handler] = {
            "echo": self._echo,
            "slow": self._slow,
            "fail": self._fail,
            "nested": partial(self._nested, end),
            "count": self._count,
            "stall": self._stall,
        }
        for name, handler in handlers.items():
            streams = name in ("count", "stall")
            type = OperationType.SUBSCRIPTION if streams else OperationType.QUERY
            end.registry.register(OperationSpec(namespace="chaos", name=name, type=type), handler)
        await end.open()
        return end

    async def _some_end(self) -> _End:
        """Return a random end; reconnect it first if it was closed by a fault."""
        place = self._random.randrange(len(self._ends))
        end = self._ends[place]
        if end.transport.fallen:
            fresh = await self._new_end()
            if self._ends[place] is end:
                self._ends[place] = fresh
                self.reconnections += 1
                await end.close()
            else:  # another caller was faster
                await fresh.close()
        return self._ends[place]

    # --- operations ---------------------------------------------------------------------------------------------------

    def _ran(self, number: int) -> None:
        if self._runs[number]:
            self._twice.append(number)
        self._runs[number] = 1

    async def _echo(self, input: Any, _: Context) -> Any:
        if not input.get("nested"):
            self._ran(input["number"])
        return input

    async def _slow(self, input: Any, _: Context) -> Any:
        self._ran(input["number"])
        try:
            await asyncio.sleep(self._random.uniform(0, LONGEST))
        finally:
            await asyncio.sleep(self._random.uniform(0, _CLEANUP))  # a handler that is stopped does not end at once
        return input

    async def _fail(self, input: Any, _: Context) -> Any:
        self._ran(input["number"])
        raise CallError(ErrorCode.EXECUTION_ERROR, _PURPOSE, input)

    async def _nested(self, end: _End, input: Any, context: Context) -> Any:
        self._ran(input["number"])
        envelope = await end.calls.call("chaos.echo", {**input, "nested": True}, context=context.child())
        expect(envelope.data == {**input, "nested": True}, f"a nested call got another's answer: {envelope.data}")
        return input

    async def _count(self, input: Any, _: Context) -> AsyncGenerator[Any]:
        self._ran(input["number"])
        for item in range(input["items"]):
            if not item % 7:
                await asyncio.sleep(self._random.uniform(0, 0.01))
            yield {**input, "item": item}

    async def _stall(self, input: Any, _: Context) -> AsyncGenerator[Any]:
        self._ran(input["number"])
        yield input
        await asyncio.Event().wait()

    # --- callers ------------------------------------------------------------------------------------------------------

    async def _caller(self, numbers: Iterator[int]) -> None:
        kinds: tuple[Callable[[_End, int, float], Awaitable[str]], ...] = (
            self._call_instant,
            self._call_slow,
            self._call_failing,
            self._call_nested,
            self._call_and_cancel,
            self._follow_to_the_end,
            self._follow_and_leave,
            self._follow_the_latest,
            self._follow_until_idle,
        )
        for number in numbers:
            kind = self._random.choice(kinds)
            deadline = self._random.uniform(0.05, LONGEST)
            end = await self._some_end()
            self.outcomes[await self._outcome(kind(end, number, deadline), number, deadline)] += 1

    async def _outcome(self, call: Awaitable[str], number: int, deadline: float) -> str:
        try:
            async with asyncio.timeout(deadline + self._slack):
                return await call
        except CallError as error:
            expect(error.code in _EXPECTED or error.message == _PURPOSE, f"call {number} failed with {error}")
            return error.code.value
        except TimeoutError:
            raise AssertionError(f"call {number} did not end by its deadline of {deadline:.3f} s") from None

    async def _call(self, name: str, end: _End, number: int, deadline: float) -> str:
        question = {"number": number}
        envelope = await end.calls.call(f"chaos.{name}", question, timeout=deadline)
        expect(envelope.data == question, f"call {number} got another's answer: {envelope.data}")
        return ANSWERED

    async def _call_instant(self, end: _End, number: int, deadline: float) -> str:
        return await self._call("echo", end, number, deadline)

    async def _call_slow(self, end: _End, number: int, deadline: float) -> str:
        return await self._call("slow", end, number, deadline)

    async def _call_nested(self, end: _End, number: int, deadline: float) -> str:
        return await self._call("nested", end, number, deadline)

    async def _call_failing(self, end: _End, number: int, deadline: float) -> str:
        try:
            await self._call("fail", end, number, deadline)
        except CallError as error:
            mine = error.code is not ErrorCode.EXECUTION_ERROR or error.details == {"number": number}
            expect(mine, f"call {number} got another's error: {error.details}")
            raise
        raise AssertionError(f"call {number} was answered, though its handler fails")

    async def _call_and_cancel(self, end: _End, number: int, deadline: float) -> str:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._call("slow", end, number, deadline))
        # Often early, when events of the call are still in flight.
        timer = loop.call_later(deadline * self._random.random() ** 3, task.cancel)
        await asyncio.wait([task])
        timer.cancel()
        return CANCELLED if task.cancelled() else task.result()

    async def _follow_to_the_end(self, end: _End, number: int, deadline: float) -> str:
        question = {"number": number, "items": self._random.randrange(4 * _WINDOW)}
        expected = 0
        async with aclosing(end.calls.subscribe("chaos.count", question, timeout=deadline)) as items:
            async for item in items:
                expect(item.data == {**question, "item": expected}, f"call {number} expected {expected}: {item.data}")
                expected += 1
        expect(expected == question["items"], f"call {number} ended after {expected} of {question['items']} items")
        return ANSWERED

    async def _follow_and_leave(self, end: _End, number: int, deadline: float) -> str:
        patience = self._random.randrange(1, 2 * _WINDOW)
        question = {"number": number, "items": 1_000}
        async with aclosing(end.calls.subscribe("chaos.count", question, timeout=deadline)) as items:
            async for item in items:
                if item.data["item"] >= patience:
                    return LEFT
        raise AssertionError(f"call {number} ended before item {patience} of 1,000")

    async def _follow_the_latest(self, end: _End, number: int, deadline: float) -> str:
        """Consume a stream too slowly, with a policy that does not slow its producer down."""
        policies: tuple[Overflow, ...] = ("error", "drop_oldest", "drop_newest", "latest")
        policy = self._random.choice(policies)
        question = {"number": number, "items": 2 * _WINDOW}
        last = -1
        async with aclosing(end.calls.subscribe("chaos.count", question, timeout=deadline, overflow=policy)) as items:
            async for item in items:
                expect(item.data["number"] == number, f"call {number} got another's item: {item.data}")
                expect(item.data["item"] > last, f"call {number} went back from {last} to {item.data['item']}")
                last = item.data["item"]
                await asyncio.sleep(0.001)
        return ANSWERED

    async def _follow_until_idle(self, end: _End, number: int, deadline: float) -> str:
        question = {"number": number}
        stream = end.calls.subscribe("chaos.stall", question, timeout=deadline, idle_timeout=deadline / 2)
        async with aclosing(stream) as items:
            async for item in items:
                expect(item.data == question, f"call {number} got another's item: {item.data}")
        raise AssertionError(f"call {number} ended, though its stream never does")
