"""Tasks in the background, futures that may be done already, and resources that are started and closed."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

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
