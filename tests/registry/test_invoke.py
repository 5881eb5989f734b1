"""Running handlers: every kind of them, within their deadlines, their failures named."""

import asyncio
import functools
import inspect
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import pytest

from opwire import CallError, Context, ErrorCode, OperationRegistry, OperationSpec, OperationType
from opwire.registry.signature import is_generator_function

PATIENCE = 10
SHORT = 0.02
"""A deadline that is meant to pass."""
THREAD = 0.25
LIMIT = 0.4  # seconds; on a busy machine, a handler has to start before
"""One that is meant to pass after a thread has begun to run, on a busy machine too."""

user: ContextVar[str] = ContextVar("user", default="nobody")


async def within(awaitable: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def call_error(awaitable: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await within(awaitable)
    return caught.value


async def first_of(stream: Any) -> Any:
    """The first item; leaving the loop drops the stream without closing it by hand."""
    async for envelope in stream:
        return envelope
    return None


@pytest.fixture
def registry() -> OperationRegistry:
    return OperationRegistry(max_workers=2)


# --- kinds of handlers ------------------------------------------------------------------------------------------------


def value(input: Any, context: Context) -> Any:
    return input


async def async_value(input: Any, context: Context) -> Any:
    return input


def awaitable(input: Any, context: Context) -> Any:
    return async_value(input, context)


def items(input: Any, context: Context) -> Iterator[Any]:
    yield from input


async def async_items(input: Any, context: Context) -> AsyncIterator[Any]:
    for each in input:
        yield each


async def awaited_items(input: Any, context: Context) -> AsyncIterator[Any]:
    return async_items(input, context)


class Items:
    """An async iterator that is not a generator: it has no `aclose`."""

    def __init__(self, items: list[Any]) -> None:
        self.items = iter(items)

    def __aiter__(self) -> "Items":
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self.items)
        except StopIteration:
            raise StopAsyncIteration from None


@pytest.mark.parametrize("handler", [value, async_value, awaitable])
@pytest.mark.parametrize("inline", [True, False])
async def test_a_value_may_come_from_a_sync_or_async_handler(
    registry: OperationRegistry, handler: Any, inline: bool
) -> None:
    registry.register(OperationSpec(namespace="a", name="b"), handler, inline=inline)
    assert (await registry.execute("a.b", [1])).data == [1]


@pytest.mark.parametrize(
    "handler", [items, async_items, awaited_items, lambda input, context: Items(input)], ids=lambda each: each.__name__
)
async def test_items_may_come_from_a_sync_or_async_generator_or_any_async_iterator(
    registry: OperationRegistry, handler: Any
) -> None:
    registry.register(OperationSpec(namespace="a", name="b", type=OperationType.SUBSCRIPTION), handler)
    assert [envelope.data async for envelope in registry.subscribe("a.b", [1, 2])] == [1, 2]
    assert [envelope.data async for envelope in registry.subscribe("a.b", [])] == []


@pytest.mark.parametrize("handler", [value, async_value])
async def test_a_subscription_with_a_handler_that_returns_a_value_is_an_error(
    registry: OperationRegistry, handler: Any
) -> None:
    """A generator where a value is due, and the reverse, is a clear error."""
    registry.register(OperationSpec(namespace="a", name="b", type=OperationType.SUBSCRIPTION), handler)
    error = await call_error(first_of(registry.subscribe("a.b", [1])))
    assert str(error) == "EXECUTION_ERROR: a.b: the handler of a subscription must yield its items"


@pytest.mark.parametrize("source", [items, async_items])
async def test_a_query_with_a_handler_that_returns_a_generator_is_an_error(
    registry: OperationRegistry, source: Any
) -> None:
    registry.register(OperationSpec(namespace="a", name="b"), lambda input, context: source([1], context))
    error = await call_error(registry.execute("a.b", [1]))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "a handler that yields is registered as a subscription" in error.message


async def test_a_handler_that_returns_a_coroutine_in_a_list_leaves_no_warning_behind(
    registry: OperationRegistry,
) -> None:
    coroutine = async_value(1, Context())
    registry.register(OperationSpec(namespace="a", name="b"), lambda input, context: [coroutine])
    error = await call_error(registry.execute("a.b"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    coroutine.close()


def test_generator_functions_are_known_behind_partials_methods_and_objects() -> None:
    class Counter:
        def __call__(self) -> Iterator[int]:
            yield 1

        def method(self) -> Iterator[int]:
            yield 1

    generators = (items, async_items, functools.partial(items, []), Counter(), Counter().method)
    assert all(map(is_generator_function, generators))
    assert not any(map(is_generator_function, (value, async_value, awaited_items, functools.partial(value, 1), len)))


def test_an_object_with_a_func_attribute_is_not_a_partial() -> None:
    class Odd:
        func = staticmethod(items)

        def __call__(self, input: Any, context: Context) -> Any:
            return input

    odd = Odd()
    assert not is_generator_function(odd)


async def test_a_sync_handler_runs_on_a_thread_unless_it_is_declared_inline(registry: OperationRegistry) -> None:
    def handler(input: Any, context: Context) -> bool:
        return threading.current_thread() is threading.main_thread()

    registry.register(OperationSpec(namespace="a", name="thread"), handler)
    registry.register(OperationSpec(namespace="a", name="inline"), handler, inline=True)
    registry.query("a.decorated", inline=True)(lambda: threading.current_thread() is threading.main_thread())
    ids = ("a.thread", "a.inline", "a.decorated")
    assert [(await registry.execute(id)).data for id in ids] == [False, True, True]


async def test_sync_handlers_and_sync_generators_see_the_callers_context_variables(registry: OperationRegistry) -> None:
    @registry.query("a.user")
    def who() -> str:
        return user.get()

    @registry.subscription("a.users")
    def users() -> Iterator[str]:
        yield user.get()
        yield user.get()

    user.set("ann")
    assert (await registry.execute("a.user")).data == "ann"
    assert [envelope.data async for envelope in registry.subscribe("a.users")] == ["ann", "ann"]


# --- deadlines --------------------------------------------------------------------------------------------------------


async def test_an_async_handler_that_outlives_its_timeout_is_cancelled(registry: OperationRegistry) -> None:
    """An operation's own timeout ends its calls with TIMEOUT."""
    cancelled = asyncio.Event()

    @registry.query("a.b", timeout=LIMIT)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    error = await call_error(registry.execute("a.b"))
    assert error.code is ErrorCode.TIMEOUT
    assert re.fullmatch(r"a\.b did not answer within 0\.[1-4]\d* s", error.message)
    assert error.retryable
    assert cancelled.is_set()


async def test_the_deadline_of_the_context_counts_where_it_is_nearer(registry: OperationRegistry) -> None:
    @registry.query("a.b", timeout=PATIENCE)
    async def hang(context: Context) -> None:
        await asyncio.Event().wait()

    error = await call_error(registry.execute("a.b", context=Context(deadline=time.monotonic() + SHORT)))
    assert error.code is ErrorCode.TIMEOUT
    assert float(error.message.split()[-2]) <= SHORT, "the message says which of the two it was"


async def test_a_handler_sees_the_deadline_of_its_operation(registry: OperationRegistry) -> None:
    @registry.query("a.b", timeout=5)
    async def remaining(context: Context) -> float | None:
        return context.remaining

    assert 4 < (await registry.execute("a.b")).data <= 5
    later = Context(deadline=time.monotonic() + 60)
    assert 4 < (await registry.execute("a.b", context=later)).data <= 5
    sooner = Context(deadline=time.monotonic() + 2)
    assert 1 < (await registry.execute("a.b", context=sooner)).data <= 2


async def test_a_call_past_its_deadline_does_not_start_its_handler(registry: OperationRegistry) -> None:
    started: list[str] = []
    registry.query("a.sync")(lambda: started.append("sync"))

    @registry.query("a.async")
    async def run() -> None:
        started.append("async")

    @registry.subscription("a.stream")
    async def stream() -> AsyncIterator[int]:
        started.append("stream")
        yield 1

    expired = Context(deadline=time.monotonic() - 1)
    for id in ("a.sync", "a.async"):
        assert (await call_error(registry.execute(id, context=expired))).code is ErrorCode.TIMEOUT
    assert (await call_error(first_of(registry.subscribe("a.stream", context=expired)))).code is ErrorCode.TIMEOUT
    assert started == []


async def test_a_handler_with_a_deadline_begins_at_once_and_has_one_task_of_its_own(
    registry: OperationRegistry,
) -> None:
    """A handler with a deadline executes its first step at once, in a task of its own; calls that it makes there
    start later."""
    others, tasks = list[str](), list[Any]()

    @registry.query("a.quick", timeout=PATIENCE)
    async def quick() -> list[str]:
        if others:
            await asyncio.sleep(0)
        return list(others)

    @registry.query("a.slow", timeout=PATIENCE)
    async def slow() -> str:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(SHORT):
            user.set("ann")
            await asyncio.sleep(0)
            tasks.append(asyncio.current_task())
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                others.append(user.get())
                raise
        return "never"

    other = asyncio.create_task(asyncio.to_thread(int))
    other.add_done_callback(lambda _: others.append("another task"))
    assert (await registry.execute("a.quick")).data == [], "another task ran before the handler had ended"
    await other
    error = await call_error(registry.execute("a.slow"))
    assert isinstance(error.__cause__, TimeoutError), "its own timeout interrupts it"
    assert tasks[0] is tasks[1]
    assert tasks[0] is not asyncio.current_task()
    assert (others[-1], user.get()) == ("ann", "nobody"), "its context variables are its own"


async def test_calls_that_call_each_other_with_a_deadline_do_not_exhaust_the_stack(registry: OperationRegistry) -> None:
    depth = sys.getrecursionlimit()

    @registry.query("a.count")
    async def count(left: int, context: Context) -> int:
        return 0 if left == 0 else 1 + (await context.env.a.count(left=left - 1)).data

    context = Context(deadline=time.monotonic() + 60)
    async with asyncio.timeout(60):
        assert (await registry.execute("a.count", {"left": depth}, context)).data == depth


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_timeout_error_of_the_handler_itself_is_its_failure(
    registry: OperationRegistry, timeout: float | None
) -> None:
    @registry.query("a.b", timeout=timeout)
    async def impatient() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    error = await call_error(registry.execute("a.b"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert isinstance(error.__cause__, TimeoutError)


async def test_a_deadline_that_was_met_is_not_revived_by_a_second_event_loop(registry: OperationRegistry) -> None:
    def elsewhere() -> None:
        asyncio.run(registry.execute("a.quick"))

    @registry.query("a.quick", timeout=PATIENCE)
    async def quick() -> None: ...

    @registry.query("a.b", timeout=2 * THREAD)
    async def call_elsewhere() -> None:
        await asyncio.to_thread(elsewhere)

    due = time.monotonic() + 2 * THREAD
    await registry.execute("a.b")
    await until(lambda: time.monotonic() > due + THREAD)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_sync_handler_that_outlives_its_timeout_is_abandoned_reported_and_replaced(
    registry: OperationRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    registry.query("a.stuck", timeout=THREAD)(lambda: let_go.wait(PATIENCE))
    registry.query("a.quick")(lambda: "quick")
    assert (await call_error(registry.execute("a.stuck"))).code is ErrorCode.TIMEOUT
    assert "a.stuck did not return in time" in caplog.text
    assert (await within(registry.execute("a.quick"))).data == "quick"
    let_go.set()


async def test_calls_of_sync_handlers_are_refused_while_all_threads_are_stuck_and_async_ones_go_on(
    registry: OperationRegistry,
) -> None:
    let_go = threading.Event()
    returned = threading.Semaphore(0)

    def stuck() -> None:
        let_go.wait(PATIENCE)
        returned.release()

    async def quick() -> str:
        return "async"

    registry.query("a.stuck", timeout=THREAD)(stuck)
    registry.query("a.sync")(lambda: "sync")
    registry.query("a.async")(quick)
    for _ in range(2):
        assert (await call_error(registry.execute("a.stuck"))).code is ErrorCode.TIMEOUT
    assert (await call_error(registry.execute("a.sync"))).code is ErrorCode.UNAVAILABLE
    assert (await within(registry.execute("a.async"))).data == "async"
    let_go.set()
    await until(lambda: returned.acquire(blocking=False))

    async def served() -> bool:
        try:
            return (await registry.execute("a.sync")).data == "sync"
        except CallError:
            return False

    async with asyncio.timeout(PATIENCE):
        while not await served():
            await asyncio.sleep(0)


# --- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 60])
async def test_cancelling_the_caller_cancels_the_handler_and_is_not_swallowed(
    registry: OperationRegistry, timeout: float | None
) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @registry.query("a.b", timeout=timeout)
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(registry.execute("a.b"))
    await within(started.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    assert task.cancelled()
    assert cancelled.is_set()


async def test_a_timeout_around_a_call_is_the_callers_own(registry: OperationRegistry) -> None:
    @registry.query("a.b", timeout=60)
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT):
            await registry.execute("a.b")


async def test_cancelling_the_consumer_of_a_subscription_reaches_its_generator(registry: OperationRegistry) -> None:
    started, closed = asyncio.Event(), asyncio.Event()

    @registry.subscription("a.b")
    async def hang() -> AsyncIterator[int]:
        started.set()
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            closed.set()

    task = asyncio.create_task(first_of(registry.subscribe("a.b")))
    await within(started.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    await within(closed.wait())


# --- failures ---------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def fail() -> None:
        raise error

    return fail


def raising_async(error: BaseException) -> Callable[..., Any]:
    async def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("kind", [raising, raising_async])
async def test_a_call_error_of_the_handler_reaches_the_caller_unchanged(registry: OperationRegistry, kind: Any) -> None:
    error = CallError("RATE_LIMITED", "slow down", {"limit": 3}, retry_after=2)
    registry.query("a.b")(kind(error))
    assert await call_error(registry.execute("a.b")) is error


@pytest.mark.parametrize("kind", [raising, raising_async])
async def test_an_unforeseen_exception_is_a_fixed_sentence_with_an_error_id_and_the_rest_is_in_the_log(
    registry: OperationRegistry, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of an unforeseen exception is in the CallError's message or details. The unforeseen exception is
    kept as the `__cause__` of the CallError."""
    original = RuntimeError("password=hunter2")
    registry.query("a.b")(kind(original))
    error = await call_error(registry.execute("a.b"))
    error_id = error.details["errorId"]
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.message == f"a.b failed unexpectedly; see error id {error_id} in the log of its server"
    assert error.details == {"errorId": error_id}
    assert "hunter2" not in f"{error!r} {error} {error.details}"
    assert error.__cause__ is original
    [record] = [each for each in caplog.records if each.name == "opwire.registry"]
    assert (record.levelno, record.getMessage()) == (logging.ERROR, f"a.b failed, error id {error_id}")
    assert "Traceback" in caplog.text
    assert "RuntimeError: password=hunter2" in caplog.text


async def test_every_failure_has_an_error_id_of_its_own(registry: OperationRegistry) -> None:
    registry.query("a.b")(raising(ValueError()))
    ids = {(await call_error(registry.execute("a.b"))).details["errorId"] for _ in range(5)}
    assert len(ids) == 5


@pytest.mark.parametrize("sync", [True, False])
async def test_an_exception_after_some_items_ends_the_subscription_with_an_execution_error(
    registry: OperationRegistry, sync: bool
) -> None:
    original = KeyError("hunter2")

    def some() -> Iterator[int]:
        yield 1
        raise original

    async def async_some() -> AsyncIterator[int]:
        yield 1
        raise original

    registry.subscription("a.b")(some if sync else async_some)
    stream = registry.subscribe("a.b")
    assert (await anext(stream)).data == 1
    error = await call_error(anext(stream))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert error.message.startswith("a.b failed unexpectedly")
    assert error.__cause__ is original
    assert "hunter2" not in f"{error} {error.details}"
    assert await anext(stream, "ended") == "ended"


@pytest.mark.parametrize("kind", [raising, raising_async])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (asyncio.CancelledError(), ErrorCode.ABORTED),
        (SystemExit(3), ErrorCode.EXECUTION_ERROR),
        (StopIteration(1), ErrorCode.EXECUTION_ERROR),
        (StopAsyncIteration(1), ErrorCode.EXECUTION_ERROR),
        (RecursionError(), ErrorCode.EXECUTION_ERROR),
        (MemoryError(), ErrorCode.EXECUTION_ERROR),
        (ExceptionGroup("several", [ValueError()]), ErrorCode.EXECUTION_ERROR),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else "",
)
async def test_any_exception_of_the_handler_is_a_call_error_for_the_caller(
    registry: OperationRegistry, kind: Any, error: BaseException, code: ErrorCode
) -> None:
    registry.query("a.b")(kind(error))
    registry.query("a.c", timeout=PATIENCE)(kind(error))
    for id in ("a.b", "a.c"):
        caught = await call_error(registry.execute(id))
        assert caught.code is code
        assert caught.message.startswith(f"{id} stopped itself" if code is ErrorCode.ABORTED else f"{id} failed")
        assert caught.__cause__ is not None


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), StopIteration(1), StopAsyncIteration(1)])
async def test_any_exception_of_a_generator_is_a_call_error_for_its_consumer(
    registry: OperationRegistry, error: BaseException
) -> None:
    @registry.subscription("a.sync")
    def sync() -> Iterator[int]:
        yield 1
        raise error

    @registry.subscription("a.async")
    async def async_() -> AsyncIterator[int]:
        yield 1
        raise error

    for id in ("a.sync", "a.async"):
        stream = registry.subscribe(id)
        assert (await anext(stream)).data == 1
        assert (await call_error(anext(stream))).code in (ErrorCode.ABORTED, ErrorCode.EXECUTION_ERROR)


async def test_a_keyboard_interrupt_is_not_a_failure_of_a_call(registry: OperationRegistry) -> None:
    registry.query("a.b")(raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        await registry.execute("a.b")


async def test_a_handler_that_cannot_be_called_like_one_is_an_execution_error(registry: OperationRegistry) -> None:
    def too_few() -> int:
        return 1

    def no_items() -> Iterator[int]:
        yield 1

    registry.register(OperationSpec(namespace="a", name="b"), too_few)  # pyright: ignore[reportArgumentType]
    stream = OperationSpec(namespace="a", name="c", type=OperationType.SUBSCRIPTION)
    registry.register(stream, no_items)  # pyright: ignore[reportArgumentType]
    assert (await call_error(registry.execute("a.b"))).code is ErrorCode.EXECUTION_ERROR
    assert (await call_error(first_of(registry.subscribe("a.c")))).code is ErrorCode.EXECUTION_ERROR


# --- closing ----------------------------------------------------------------------------------------------------------


class Source:
    """A generator, sync or async, that tells when it is closed."""

    def __init__(self, *, sync: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = asyncio.Event()
        self.closings = 0
        self.handler = self.items if sync else self.async_items

    def close(self) -> None:
        self.closings += 1
        self.loop.call_soon_threadsafe(self.closed.set)

    def items(self) -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            self.close()

    async def async_items(self) -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
        finally:
            self.close()


@pytest.fixture(params=["sync", "async"])
async def source(request: pytest.FixtureRequest, registry: OperationRegistry) -> Source:
    source = Source(sync=request.param == "sync")
    registry.subscription("a.b")(source.handler)
    return source


async def test_a_consumer_that_breaks_out_closes_the_handlers_generator(
    registry: OperationRegistry, source: Source
) -> None:
    async for envelope in registry.subscribe("a.b"):
        if envelope.data == 3:
            break
    await within(source.closed.wait())
    assert source.closings == 1


async def test_a_consumer_that_closes_the_stream_has_the_generator_closed_at_once(
    registry: OperationRegistry, source: Source
) -> None:
    async with aclosing(registry.subscribe("a.b")) as stream:
        assert (await anext(stream)).data == 0
    await asyncio.sleep(0)
    assert source.closings == 1


async def test_a_consumer_that_fails_closes_the_handlers_generator(registry: OperationRegistry, source: Source) -> None:
    async def consume() -> None:
        async for envelope in registry.subscribe("a.b"):
            _ = 1 / envelope.data

    with pytest.raises(ZeroDivisionError):
        await consume()
    await within(source.closed.wait())


async def test_a_consumer_that_reads_to_the_end_closes_the_generator_once(
    registry: OperationRegistry, source: Source
) -> None:
    assert len([envelope async for envelope in registry.subscribe("a.b")]) == 1000
    await within(source.closed.wait())
    assert source.closings == 1


async def test_an_item_that_cannot_be_sent_closes_the_generator(registry: OperationRegistry) -> None:
    closed = asyncio.Event()

    @registry.subscription("a.c")
    async def odd() -> AsyncIterator[Any]:
        try:
            yield object()
            yield 1
        finally:
            closed.set()

    assert (await call_error(first_of(registry.subscribe("a.c")))).code is ErrorCode.EXECUTION_ERROR
    await within(closed.wait())


async def test_a_stream_that_was_never_read_never_starts_the_handler(
    registry: OperationRegistry, source: Source
) -> None:
    stream = registry.subscribe("a.b")
    await stream.aclose()
    assert source.closings == 0


async def test_a_failure_while_closing_is_logged_and_does_not_reach_the_consumer(
    registry: OperationRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    @registry.subscription("a.c")
    async def clumsy() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            raise ValueError("while closing")

    async with aclosing(registry.subscribe("a.c")) as stream:
        assert (await anext(stream)).data == 1
    assert "a.c: the subscription's generator did not close cleanly" in caplog.text
    assert "ValueError: while closing" in caplog.text


async def test_an_async_generator_that_hangs_in_its_finally_is_left_behind_and_reported(
    registry: OperationRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("opwire.registry.invoke.CLOSE_GRACE", SHORT)

    @registry.subscription("a.c")
    async def clinging() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.Event().wait()

    stream = registry.subscribe("a.c")
    assert (await anext(stream)).data == 1
    await within(stream.aclose())
    assert "a.c: the subscription's generator did not close cleanly" in caplog.text


async def test_a_sync_generator_that_hangs_in_its_finally_is_left_behind_and_reported(
    registry: OperationRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("opwire.registry.invoke.CLOSE_GRACE", THREAD)
    let_go = threading.Event()

    @registry.subscription("a.c")
    def clinging() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            let_go.wait(PATIENCE)

    stream = registry.subscribe("a.c")
    assert (await anext(stream)).data == 1
    await within(stream.aclose())
    let_go.set()
    assert "a.c did not return in time" in caplog.text


@pytest.mark.parametrize("sync", [True, False])
async def test_a_pause_longer_than_the_idle_limit_ends_the_subscription_and_closes_the_generator(
    registry: OperationRegistry, sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = threading.Event()
    loop, closed = asyncio.get_running_loop(), asyncio.Event()

    def pausing() -> Iterator[int]:
        try:
            yield 1
            let_go.wait(PATIENCE)
            yield 2
        finally:
            loop.call_soon_threadsafe(closed.set)

    async def async_pausing() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    registry.subscription("a.c", idle_timeout=THREAD)(pausing if sync else async_pausing)
    stream = registry.subscribe("a.c")
    assert (await anext(stream)).data == 1
    error = await call_error(anext(stream))
    assert error.code is ErrorCode.TIMEOUT
    assert re.fullmatch(r"a\.c gave no item within 0\.2\d* s", error.message)
    assert ("a.c did not return in time" in caplog.text) is sync
    let_go.set()
    await within(closed.wait())


async def test_the_idle_limit_does_not_count_the_time_that_the_consumer_takes(registry: OperationRegistry) -> None:
    @registry.subscription("a.c", idle_timeout=LIMIT)
    async def two() -> AsyncIterator[int]:
        yield 1
        yield 2

    stream = registry.subscribe("a.c")
    assert (await anext(stream)).data == 1
    slow = time.monotonic() + LIMIT + SHORT
    await until(lambda: time.monotonic() > slow)
    assert (await anext(stream)).data == 2


async def test_a_subscription_ends_at_the_deadline_of_its_call_however_quick_it_is(registry: OperationRegistry) -> None:
    @registry.subscription("a.c", idle_timeout=PATIENCE)
    async def endless() -> AsyncIterator[int]:
        while True:
            await asyncio.sleep(0)
            yield 1

    async def consume() -> None:
        async for _ in registry.subscribe("a.c", context=Context(deadline=time.monotonic() + SHORT)):
            pass

    assert (await call_error(consume())).code is ErrorCode.TIMEOUT


def test_the_public_shape_of_a_subscription_is_an_async_generator(registry: OperationRegistry) -> None:
    assert inspect.isasyncgen(registry.subscribe("a.b"))


# --- handlers that ignore their cancellation --------------------------------------------------------------------------


class Stubborn:
    """A handler that swallows every cancellation until it is released."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, input: Any, context: Context) -> str:
        self.begun.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        return "too late"


@pytest.fixture
async def stubborn(registry: OperationRegistry, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stubborn]:
    monkeypatch.setattr("opwire.registry.invoke.CLOSE_GRACE", SHORT)
    handler = Stubborn()
    registry.register(OperationSpec(namespace="a", name="b", timeout=LIMIT), handler)
    registry.register(OperationSpec(namespace="a", name="patient", timeout=PATIENCE), handler)
    yield handler
    handler.release.set()
    await asyncio.sleep(0)


async def test_a_handler_that_swallows_its_cancellation_is_left_behind_and_reported(
    registry: OperationRegistry, stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    error = await call_error(within(registry.execute("a.b")))
    assert error.code is ErrorCode.TIMEOUT
    assert stubborn.cancelled == 1
    assert caplog.text.count("a.b did not stop within 0.02 s of being cancelled, and is abandoned") == 1
    assert asyncio.all_tasks() == before, "asyncio.run would wait for it at its end"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_caller_that_is_cancelled_does_not_wait_for_a_stubborn_handler(
    registry: OperationRegistry, stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    calling = asyncio.create_task(registry.execute("a.patient"))
    await within(stubborn.begun.wait())
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(calling)
    await until(lambda: "is abandoned" in caplog.text)
    assert caplog.text.count("is abandoned") == 1


class StubbornStream(Stubborn):
    """A subscription that swallows every cancellation, while it waits for its second item and when it is closed."""

    async def __call__(self, input: Any, context: Context) -> AsyncIterator[str]:  # type: ignore[override]
        try:
            yield "first"
            yield await super().__call__(input, context)
        finally:
            await super().__call__(input, context)


@pytest.fixture
async def stubborn_stream(
    registry: OperationRegistry, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StubbornStream]:
    monkeypatch.setattr("opwire.registry.invoke.CLOSE_GRACE", SHORT)
    handler = StubbornStream()
    for name, idle in (("idle", LIMIT), ("patient", float(PATIENCE))):
        spec = OperationSpec(namespace="a", name=name, type=OperationType.SUBSCRIPTION, idle_timeout=idle)
        registry.register(spec, handler)
    yield handler
    handler.release.set()
    await asyncio.sleep(0)


@pytest.mark.parametrize("limit", ["idle timeout", "deadline"])
async def test_a_subscription_that_swallows_its_cancellation_is_left_behind_and_reported(
    registry: OperationRegistry, stubborn_stream: StubbornStream, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    before = asyncio.all_tasks()
    if limit == "deadline":
        stream = registry.subscribe("a.patient", context=Context(deadline=time.monotonic() + LIMIT))
    else:
        stream = registry.subscribe("a.idle")
    assert (await anext(stream)).data == "first"
    assert (await call_error(within(anext(stream)))).code is ErrorCode.TIMEOUT
    assert stubborn_stream.cancelled == 1
    await until(lambda: "is abandoned" in caplog.text)
    assert caplog.text.count("is abandoned") == 1
    assert asyncio.all_tasks() == before, "asyncio.run would wait for it at its end"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("leaves", ["between items", "while it waits"])
async def test_a_consumer_that_leaves_does_not_wait_for_a_stubborn_subscription(
    registry: OperationRegistry, stubborn_stream: StubbornStream, caplog: pytest.LogCaptureFixture, leaves: str
) -> None:
    stream = registry.subscribe("a.patient")
    assert (await anext(stream)).data == "first"
    if leaves == "between items":
        await within(stream.aclose())
    else:
        waiting = asyncio.ensure_future(anext(stream))
        await within(stubborn_stream.begun.wait())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(waiting)
    await until(lambda: "is abandoned" in caplog.text)
    assert caplog.text.count("is abandoned") == 1


async def test_a_subscription_with_a_limit_runs_in_one_task_and_not_ahead_of_its_consumer(
    registry: OperationRegistry,
) -> None:
    tasks, produced = set[asyncio.Task[Any] | None](), list[int]()

    @registry.subscription("a.c", idle_timeout=PATIENCE)
    async def counted() -> AsyncIterator[int]:
        try:
            async with asyncio.timeout(PATIENCE):  # belongs to one task
                for number in range(5):
                    tasks.add(asyncio.current_task())
                    produced.append(number)
                    yield number
        finally:
            tasks.add(asyncio.current_task())

    async with aclosing(registry.subscribe("a.c")) as stream:
        async for envelope in stream:
            for _ in range(5):
                await asyncio.sleep(0)
            assert produced[-1] == envelope.data
            if envelope.data == 3:
                break
    assert len(tasks) == 1


def test_a_handler_that_was_left_behind_does_not_keep_the_loop_from_ending() -> None:
    script = """
import asyncio
from opwire import Context, OperationRegistry, OperationSpec
from opwire.registry import invoke
invoke.CLOSE_GRACE = 0.05
async def stubborn(input, context):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
async def main():
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="b", timeout=1), stubborn)
    try:
        await registry.execute("a.b")
    except Exception as error:
        print(error)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(r"TIMEOUT: a\.b did not answer within (1|0\.\d+) s\n", ended.stdout)  # what was left of it
    assert "is abandoned" in ended.stderr
    assert "destroyed" not in ended.stderr


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyError("x"), asyncio.CancelledError()], ids=lambda each: type(each).__name__
)
async def test_what_a_handler_with_a_deadline_raises_is_a_failure_of_its_call_alone(
    registry: OperationRegistry, error: BaseException
) -> None:
    """A handler that raises SystemExit, CancelledError, StopIteration fails its call alone."""

    @registry.query("a.b", timeout=PATIENCE)
    async def fails() -> None:
        raise error

    expected = ErrorCode.ABORTED if isinstance(error, asyncio.CancelledError) else ErrorCode.EXECUTION_ERROR
    assert (await call_error(within(registry.execute("a.b")))).code is expected


async def test_a_handler_that_makes_something_of_its_cancellation_in_time_answers(registry: OperationRegistry) -> None:
    @registry.query("a.b", timeout=LIMIT)
    async def late() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late, but here"
        return "never"

    assert (await within(registry.execute("a.b"))).data == "late, but here"
