"""The call protocol over the in-process transport, against the least that asyncio needs for a call.

The handler awaits once, like the handlers of users, so that each call of the controls has a task of its own, too.
"""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from itertools import count
from time import process_time
from typing import Any

import msgspec

from benchmarks.measure import Contender, NotMeasuredError, Row, Table, compared, ladder, race
from benchmarks.work import INPUT, SUM, data_of, registry
from opwire import ResponseEnvelope
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport

_WORKERS = 64
_ITEMS = 1_000
_LIMITS = 3.0, 5.0  # × the control, one at a time and with many in flight

Call = Callable[[], Awaitable[Any]]


@registry.query("math.add_later")
async def add_later(a: int, b: int) -> int:
    """Add two numbers in the next turn of the event loop."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn
    return a + b


# --- controls ---------------------------------------------------------------------------------------------------------


class _Request(msgspec.Struct):
    id: int
    operation: str
    input: dict[str, Any]


class _Reply(msgspec.Struct):
    id: int
    output: Any


class _QueueFuture:
    """A queue to a server that handles each request in a task, a future back."""

    def __init__(self) -> None:
        self._handlers = {"math.add_later": add_later}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ids = count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    async def call(self) -> Any:
        request = _Request(next(self._ids), "math.add_later", INPUT)
        answer = self._pending[request.id] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(self.packed(request))
        return await answer

    def packed(self, request: _Request) -> Any:
        return request

    async def serve(self) -> None:
        while True:
            task = asyncio.create_task(self._respond(await self._queue.get()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _respond(self, request: Any) -> None:
        output = await self._handlers[request.operation](**request.input)
        self._pending.pop(request.id).set_result(output)


class _QueueAndJSON(_QueueFuture):
    """The same with both messages through JSON."""

    def __init__(self) -> None:
        super().__init__()
        self._encode = msgspec.json.Encoder().encode
        self._request = msgspec.json.Decoder(_Request).decode
        self._reply = msgspec.json.Decoder(_Reply).decode

    def packed(self, request: _Request) -> Any:
        return self._encode(request)

    async def _respond(self, request: Any) -> None:
        request = self._request(request)
        output = await self._handlers[request.operation](**request.input)
        reply = self._reply(self._encode(_Reply(request.id, output)))
        self._pending.pop(reply.id).set_result(reply.output)


async def _task_and_future() -> Any:
    """What a task and a future cost that carry nothing."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def settle() -> None:
        answer.set_result(await add_later(**INPUT))

    task = asyncio.create_task(settle())
    result = await answer
    await task
    return result


@asynccontextmanager
async def _served(control: _QueueFuture) -> AsyncGenerator[Call]:
    server = asyncio.create_task(control.serve())
    try:
        yield control.call
    finally:
        server.cancel()


# --- opwire -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _ends(*, codec: bool = False) -> AsyncGenerator[tuple[PendingRequestMap, CallHandler]]:
    bus = MemoryBus(codec=codec)
    async with (
        PendingRequestMap(MemoryTransport(bus)) as client,
        PendingRequestMap(MemoryTransport(bus)) as server,
        CallHandler(registry, server, max_calls=200_000) as handler,
    ):
        yield client, handler


def _opwire_call(client: PendingRequestMap) -> Call:
    return lambda: client.call("math.add_later", INPUT)


def _value(result: Any) -> Any:
    return data_of(result) if isinstance(result, ResponseEnvelope) else result


# --- one at a time, and many in flight --------------------------------------------------------------------------------


def _one_at_a_time(call: Call) -> Callable[[int], Awaitable[Any]]:
    async def run(n: int) -> Any:
        result = None
        for _ in range(n):
            result = await call()
        return result

    return run


def _in_flight(call: Call) -> Callable[[int], Awaitable[Any]]:
    async def run(n: int) -> Any:
        one = _one_at_a_time(call)
        results = await asyncio.gather(*(one(n) for _ in range(_WORKERS)))
        return results[-1]

    return run


async def _calls() -> tuple[list[Row], list[Row]]:
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(_served(_QueueFuture()))
        task = await stack.enter_async_context(_served(_QueueAndJSON()))
        by_reference, _ = await stack.enter_async_context(_ends())
        encoded, _ = await stack.enter_async_context(_ends(codec=True))
        ways: list[tuple[str, Call, tuple[float, float] | tuple[None, None]]] = [
            ("queue + task a call + future", queue, (None, None)),
            ("task + future, without a queue", _task_and_future, (None, None)),
            (f"queue + task a call + JSON (msgspec {version('msgspec')})", task, (None, None)),
            ("opwire, by reference", _opwire_call(by_reference), _LIMITS),
            ("opwire, codec=True", _opwire_call(encoded), (None, None)),
        ]
        single = [Contender(name, _one_at_a_time(call), SUM, _value, limit=limit) for name, call, (limit, _) in ways]
        many = [Contender(name, _in_flight(call), SUM, _value, _WORKERS, limit) for name, call, (_, limit) in ways]
        return await ladder(single), await ladder(many)


# --- subscriptions ----------------------------------------------------------------------------------------------------


@registry.subscription("math.count")
async def _count(n: int) -> AsyncGenerator[int]:
    for number in range(n):
        yield number


async def _queued_items(n: int) -> Any:
    """The control: a producer task and a bounded queue."""
    last = None
    for _ in range(n):
        queue: asyncio.Queue[int | None] = asyncio.Queue(maxsize=64)

        async def produce(queue: asyncio.Queue[int | None] = queue) -> None:
            async for number in _count(_ITEMS):
                await queue.put(number)
            await queue.put(None)

        producer = asyncio.create_task(produce())
        while (number := await queue.get()) is not None:
            last = number
        await producer
    return last


def _subscribed(client: PendingRequestMap) -> Callable[[int], Awaitable[Any]]:
    async def run(n: int) -> Any:
        last = None
        for _ in range(n):
            async for envelope in client.subscribe("math.count", {"n": _ITEMS}):
                last = envelope
        return last

    return run


async def _subscriptions() -> list[Row]:
    async with _ends() as (client, _), _ends(codec=True) as (encoded, _):
        contenders = [
            Contender("bounded queue", _queued_items, _ITEMS - 1, per=_ITEMS),
            Contender("opwire, by reference", _subscribed(client), _ITEMS - 1, _value, _ITEMS),
            Contender("opwire, codec=True", _subscribed(encoded), _ITEMS - 1, _value, _ITEMS),
        ]
        rows = await ladder(contenders)
        return [row._replace(note=f"{1e6 / row.amount:,.0f} items/s") for row in rows]


# --- pending calls ----------------------------------------------------------------------------------------------------

_gate: asyncio.Event  # created for each crowd of pending calls


@registry.query("math.wait")
async def _wait() -> bool:
    return await _gate.wait()


@asynccontextmanager
async def _crowd(client: PendingRequestMap, handler: CallHandler, size: int) -> AsyncGenerator[None]:
    """Hold a number of calls pending, all of which are answered in the end."""
    global _gate  # noqa: PLW0603 - the handler has no other way to it
    _gate = asyncio.Event()
    calls = [asyncio.ensure_future(client.call("math.wait", {}, timeout=600)) for _ in range(size)]
    while len(handler) < size:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the last ones have begun to wait
    try:
        yield
    finally:
        _gate.set()
        answers = await asyncio.gather(*calls)
        if sum(answer.data for answer in answers) != size:
            raise NotMeasuredError("a pending call was lost")


async def _pending() -> list[Row]:
    rows: list[Row] = []
    async with _ends() as (client, handler):
        contender = Contender("", _one_at_a_time(_opwire_call(client)), SUM, _value)
        for size in (1, 1_000, 100_000):
            began = process_time()
            measuring = 0.0
            async with _crowd(client, handler, size):
                paused = process_time()
                (seconds,) = await race([contender], rounds=7)
                measuring = process_time() - paused
            each = (process_time() - began - measuring) / size * 1e6
            control = rows[0].amount if rows else seconds * 1e6
            note = f"opening and settling the {size:,}: {each:.3g} µs each" if size > 1 else ""
            rows.append(compared(f"a call while {size:,} pending", seconds * 1e6, control, note=note))
    return rows


async def _memory() -> Row:
    """Bytes of a pending call: both ends of it, the caller's task, and the handler that waits."""
    size = 1_000
    async with _ends() as (client, handler):
        async with _crowd(client, handler, size):
            pass  # what is made once is there
        tracemalloc.start()
        async with _crowd(client, handler, size):
            used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return Row("memory of a pending call, both ends and both tasks (bytes)", used / size)


def tables() -> Iterator[Table]:
    """On asyncio's loop, then on uvloop's."""
    for loop, run in _loops():
        single, many = run(_calls())
        yield Table(f"a call in process, one at a time [{loop}]", "µs", "queue", single)
        yield Table(f"a call in process, {_WORKERS} in flight [{loop}]", "µs", "queue", many)
        yield Table(f"an item of a subscription in process [{loop}]", "µs", "queue", run(_subscriptions()))
    rows = asyncio.run(_pending())
    yield Table("a call beside pending ones [asyncio]", "µs", "1 pending", [*rows, asyncio.run(_memory())])


def _loops() -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "asyncio", asyncio.run
    try:
        import uvloop  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("uvloop is not on this machine: skipped\n")
    else:
        yield f"uvloop {version('uvloop')}", uvloop.run
