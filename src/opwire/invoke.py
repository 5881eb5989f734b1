"""Running a handler, whatever it is: async or sync, value or generator, within its deadline, its failures named."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from typing import Any, cast
from uuid import uuid4

from opwire.deadlines import Deadlines
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context, Handler
from opwire.workers import WorkerPool

logger = logging.getLogger("opwire.invoke")

CLOSE_GRACE = 5.0
"""Seconds that a handler is given to end after it was cancelled, and a subscription's generator to run `finally`."""

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""What a handler may raise that is a failure of the call; a KeyboardInterrupt is none."""

Run = Callable[[Any, Context], Awaitable[Any]]
Open = Callable[[Any, Context], AsyncIterator[Any]]

END = object()
"""Stands for the end of a stream."""

_UNLIMITED = Context()


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a generator, sync or async."""
    target = _unwrapped(function)
    return inspect.isasyncgenfunction(target) or inspect.isgeneratorfunction(target)


def _unwrapped(function: Any) -> Any:
    """What decides how a callable runs: behind a partial, and the `__call__` of an object."""
    if isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function if inspect.isroutine(function) else type(function).__call__


def runner(handler: Handler, function: Callable[..., Any], pool: WorkerPool, label: str, *, inline: bool) -> Run:
    """How to run a handler of a query or mutation. `function` is what the handler calls, and tells its kind."""
    if inspect.iscoroutinefunction(_unwrapped(function)):
        return cast("Run", handler)

    async def run(input: Any, context: Context) -> Any:
        if inline:
            result = handler(input, context)
        else:
            result = await pool.run(lambda: handler(input, context), label)
        return await result if inspect.isawaitable(result) else result

    return run


async def run_within(call: Callable[[], Awaitable[Any]], deadlines: Deadlines, when: float, label: str) -> Any:
    """Run a handler until a monotonic time, and leave it behind if it ignores its cancellation for `CLOSE_GRACE`.

    It runs in a task of its own, which costs 10 µs: a coroutine cannot be taken out of the task that runs it, and there
    it would keep the caller for ever.

    Raises:
        CallError: TIMEOUT.
    """
    seconds = when - time.monotonic()
    if seconds <= 0:
        raise _late(label, seconds)
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    task = loop.create_task(_run_into(outcome, call))
    expired = left = False

    def stop() -> None:
        task.cancel()
        loop.call_later(CLOSE_GRACE, give_up)

    def expire(_: object) -> None:
        nonlocal expired
        expired = True
        stop()

    def give_up() -> None:
        nonlocal left
        if not task.done() and not left:
            left = True
            leave_behind(task, label)
        _settle(outcome, None, asyncio.CancelledError())

    tick = deadlines.add(task, when, expire)
    task.add_done_callback(lambda _: _settle(outcome, None, asyncio.CancelledError()))  # it may end before it began
    try:
        value, error = await outcome
    except asyncio.CancelledError:
        stop()
        await asyncio.wait((task,), timeout=CLOSE_GRACE)
        raise
    finally:
        deadlines.discard(task, tick)
    if error is None:
        return value
    raise _late(label, seconds) if expired and isinstance(error, asyncio.CancelledError) else error


async def _run_into(outcome: asyncio.Future[Any], call: Callable[[], Awaitable[Any]]) -> None:
    """Run a handler, and settle a future with what it gives or raises: SystemExit in a task would end the loop."""
    try:
        value = await call()
    except FAILURES as error:
        _settle(outcome, None, error)
    else:
        _settle(outcome, value, None)


def _settle(outcome: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not outcome.done():
        outcome.set_result((value, error))


def leave_behind(task: asyncio.Task[Any], label: str) -> None:
    """Report a task that does not end, and forget it: `asyncio.run` would wait for it at its end."""
    logger.warning("%s did not stop within %g s of being cancelled, and is left behind", label, CLOSE_GRACE)
    asyncio.tasks._unregister_task(task)  # it is documented, under "Extending asyncio"
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - it was reported


def _late(label: str, seconds: float) -> CallError:
    return CallError(ErrorCode.TIMEOUT, f"{label} did not answer within {max(seconds, 0):.3g} s")


def opener(handler: Handler, pool: WorkerPool, label: str) -> Open:
    """How to open a handler of a subscription."""

    async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
        items = handler(input, context)
        if inspect.isawaitable(items):
            items = await items
        if inspect.isgenerator(items):
            items = _drive(cast("Generator[Any]", items), pool, label)
        if not hasattr(items, "__aiter__"):
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the handler of a subscription has to yield its items")
        try:
            async for item in cast("AsyncIterator[Any]", items):
                yield item
        finally:
            await close_stream(items, label)

    return stream


async def _drive(items: Generator[Any], pool: WorkerPool, label: str) -> AsyncGenerator[Any]:
    """A sync generator, advanced on worker threads and closed where it was last advanced."""
    left = False

    def advance() -> Any:
        item = next(items, END)
        if left:
            items.close()
        return item

    try:
        while (item := await pool.run(advance, label)) is not END:
            yield item
    except asyncio.CancelledError:
        left = True
        raise
    finally:
        if not left:
            await pool.run(items.close, label)


async def close_stream(stream: Any, label: str) -> None:
    """Run a generator's `finally` blocks; one that does not end is left behind, and reported."""
    aclose = getattr(stream, "aclose", None)
    if aclose is None:
        return
    try:
        async with asyncio.timeout(CLOSE_GRACE):
            await aclose()
    except Exception:
        logger.warning("%s: the subscription's generator did not close cleanly", label, exc_info=True)


async def next_item(
    stream: AsyncIterator[Any], deadlines: Deadlines, context: Context, idle: float | None, label: str
) -> Any:
    """The next item of a subscription, or END.

    Raises:
        CallError: TIMEOUT, at the deadline of the call or after too long a gap.
    """
    limits = _UNLIMITED if context.watched else context
    try:
        return await deadlines.limit(stream.__anext__, limits.within(idle).deadline, f"{label} gave no item")
    except StopAsyncIteration:
        return END


def failure(error: BaseException, label: str) -> CallError:
    """What the caller is told of a handler's failure: a CallError as it is, anything else as an error id.

    Raises:
        CancelledError: when it is the caller itself who was cancelled.
    """
    if isinstance(error, CallError):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error  # it is the caller who was cancelled
        return CallError(ErrorCode.ABORTED, f"{label} stopped itself")
    error_id = uuid4().hex[:12]
    logger.error("%s failed, error id %s", label, error_id, exc_info=error)
    message = f"{label} failed unexpectedly; the log of its server knows more under error id {error_id}"
    return CallError(ErrorCode.EXECUTION_ERROR, message, {"errorId": error_id})
