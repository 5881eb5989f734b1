"""Tasks in the background, and futures that may be done already."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Start a task, and hold it in a set until it has ended: an event loop has only weak references."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def resolve(future: "asyncio.Future[None] | asyncio.Future[Any]", value: Any = None) -> None:
    """Resolve a future, unless it is done or cancelled."""
    if not future.done():
        future.set_result(value)
