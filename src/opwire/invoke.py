"""Running a handler, whatever it is: async or sync, value or generator, within its deadline, its failures named."""

import asyncio
import inspect
import logging
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
"""Seconds that a subscription's generator is given to run its `finally` blocks."""

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
