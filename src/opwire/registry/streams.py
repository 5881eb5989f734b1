"""Run the handlers of subscriptions: async and sync generators, their limits, and their end."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from typing import Any, cast

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context
from opwire.model.operation import Handler
from opwire.registry.invoke import CLOSE_GRACE, FAILURES, leave_behind, worker_owner
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import resolve
from opwire.runtime.text import get_logger
from opwire.runtime.workers import WorkerPool

logger = get_logger("opwire.registry")

Open = Callable[[Any, Context], AsyncGenerator[Any]]

END = object()
"""The end of a stream."""

_NO_LIMITS = Context()


def opener(handler: Handler, pool: WorkerPool, label: str) -> Open:
    """Return the function that opens the stream of a subscription's handler."""

    async def stream(input: Any, context: Context) -> AsyncGenerator[Any]:
        items = handler(input, context)
        if inspect.isawaitable(items):
            items = await items
        if inspect.isgenerator(items):
            run = partial(pool.run, label=label, caller=worker_owner(context))
            items = _in_threads(cast("Generator[Any]", items), run)
        if not hasattr(items, "__aiter__"):
            raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the handler of a subscription must yield its items")
        try:
            async for item in cast("AsyncIterator[Any]", items):
                yield item
        finally:
            await close_stream(items, label)

    return stream


async def next_item(
    stream: AsyncIterator[Any], deadlines: Deadlines, context: Context, idle: float | None, label: str
) -> Any:
    """Return the next item of a subscription, or END.

    Raises:
        CallError: TIMEOUT, at the deadline of the call or after `idle` seconds without an item.
    """
    limits = _NO_LIMITS if context.watched else context
    try:
        return await deadlines.limit(stream.__anext__, limits.within(idle).deadline, f"{label} gave no item")
    except StopAsyncIteration:
        return END


async def close_stream(stream: Any, label: str) -> None:
    """Close a generator; if that fails or times out, log a warning."""
    aclose = getattr(stream, "aclose", None)
    if aclose is None:
        return
    try:
        async with asyncio.timeout(CLOSE_GRACE):
            await aclose()
    except Exception:
        logger.warning("%s: the subscription's generator did not close cleanly", label, exc_info=True)


async def isolated(items: AsyncGenerator[Any], label: str) -> AsyncGenerator[Any]:
    """Yield the items of a generator that runs in its own task, so that it can be abandoned like a handler.

    One task advances and closes it, since timeouts and cancel scopes that are open at a `yield` belong to one task.
    That costs 10 µs per item; the next one is requested only when the consumer asks for it.
    """
    loop = asyncio.get_running_loop()
    next_requested, next_item = loop.create_future(), loop.create_future()

    async def advance() -> None:
        nonlocal next_requested
        try:
            async for item in items:
                next_requested = loop.create_future()
                resolve(next_item, (item, None))
                await next_requested
            resolve(next_item, (END, None))
        except FAILURES as error:
            resolve(next_item, (END, error))
        await items.aclose()

    def give_up() -> None:
        if not task.done():
            leave_behind(task, label)

    task = loop.create_task(advance())
    try:
        while True:
            item, error = await next_item
            if error is not None:
                raise error
            if item is END:
                return
            yield item
            next_item = loop.create_future()
            next_requested.set_result(None)
    finally:
        if not task.done():
            task.cancel()
            grace = 1.2 * CLOSE_GRACE  # a `finally` that takes too long is cancelled before
            loop.call_later(grace, give_up)
            await asyncio.wait((task,), timeout=grace)


async def _in_threads(items: Generator[Any], run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> AsyncGenerator[Any]:
    """Advance a sync generator on worker threads, and close it on one."""
    is_cancelled = False

    def advance() -> Any:
        item = next(items, END)
        if is_cancelled:
            items.close()
        return item

    try:
        while (item := await run(advance)) is not END:
            yield item
    except asyncio.CancelledError:
        is_cancelled = True
        raise
    finally:
        if not is_cancelled:
            await run(items.close)
