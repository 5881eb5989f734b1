"""Tasks in the background, futures that may be done already, and resources that are started and closed."""

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")

_MAX_NESTED_STARTS = 4
"""A request and its handler are two; deeper, the stack would grow with handlers that call each other."""


class _EagerStarts(threading.local):
    """The tasks of this thread that are in their first step."""

    nested = 0


_eager_starts = _EagerStarts()


def start_eagerly(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Create a task whose first step is executed before this returns, from Python 3.12 on.

    A handler that does not suspend has then ended without another turn of the event loop. On Python 3.11, and if the
    event loop has a task factory, which may instrument tasks, it is an ordinary task.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info < (3, 12) or loop.get_task_factory() is not None or _eager_starts.nested >= _MAX_NESTED_STARTS:
        return loop.create_task(work)
    _eager_starts.nested += 1
    try:
        return asyncio.Task(work, loop=loop, eager_start=True)
    finally:
        _eager_starts.nested -= 1


def spawn(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Start a task, and hold it in a set until it has ended: an event loop has only weak references."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended; those that were not started are None."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    if started:
        await asyncio.wait(started)


def in_turns(act: Callable[[T], object], items: list[T], portion: int = 500) -> None:
    """Call a function with each item: a portion of them at once, and one in each of the next turns of the event loop.

    To cancel the handlers of 500 requests takes 10 ms, with what each of them does at its end.
    """
    for item in items[:portion]:
        act(item)
    if len(items) > portion:
        asyncio.get_running_loop().call_soon(in_turns, act, items[portion:], portion)


def resolve(future: "asyncio.Future[None] | asyncio.Future[Any]", value: Any = None) -> None:
    """Resolve a future, unless it is done or cancelled."""
    if not future.done():
        future.set_result(value)


def reject(future: "asyncio.Future[None] | asyncio.Future[Any]", error: BaseException) -> None:
    """Raise an error where a future is awaited, unless it is done or cancelled."""
    if not future.done():
        future.set_exception(error)


class AsyncResource(ABC):
    """A resource that is started and closed; `async with` does both."""

    @abstractmethod
    async def start(self) -> object:
        """Start to use the resource."""

    @abstractmethod
    async def close(self) -> None:
        """Stop using the resource; idempotent."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
