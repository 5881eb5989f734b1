"""A served call runs in a task of its own, which may execute its first step where the request is received."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from opwire import ErrorCode, OperationRegistry
from opwire.protocol import PendingRequestMap
from tests.protocol.harness import call_error, connected_ends

SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


class Tasks:
    """Handlers that note the tasks in which they run."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.noted: list[asyncio.Task[Any] | None] = []
        for handler in (
            self.note,
            self.note_once,
            self.note_twice,
            self.limited,
            self.grouped,
            self.set_variable,
            self.slow,
        ):
            self.registry.query(f"task.{handler.__name__}")(handler)

    async def note(self) -> int:
        self.noted.append(asyncio.current_task())
        return len(self.noted)

    async def note_once(self) -> int:
        return await self.note()

    async def note_twice(self) -> bool:
        await self.note()
        await asyncio.sleep(0)
        await self.note()
        return self.noted[0] is self.noted[1]

    async def limited(self) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "in time"
        return "never"

    async def grouped(self) -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.note()) for _ in range(3)]
        return sum(task.result() for task in tasks)

    async def set_variable(self) -> str:
        before = SEEN.get()
        SEEN.set("the handler's")
        return before

    async def slow(self) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[PendingRequestMap, Tasks]]:
    tasks = Tasks()
    async with connected_ends(tasks.registry) as ends:
        yield ends.client, tasks


async def test_a_handler_has_the_same_task_in_all_its_steps_and_its_caller_has_another() -> None:
    async with connected() as (client, tasks):
        before = asyncio.current_task()
        assert (await client.call("task.note_twice")).data is True
        assert asyncio.current_task() is before is not tasks.noted[0]


async def test_timeouts_and_task_groups_that_a_handler_begins_in_its_first_step_work() -> None:
    async with connected() as (client, _):
        assert (await client.call("task.limited")).data == "in time"
        assert (await client.call("task.grouped")).data == 1 + 2 + 3


async def test_context_variables_of_a_handler_are_its_own() -> None:
    async with connected() as (client, _):
        SEEN.set("the caller's")
        assert (await client.call("task.set_variable")).data == "the caller's"
        assert (await client.call("task.set_variable")).data == "the caller's"
        assert SEEN.get() == "the caller's"


async def test_a_handler_that_suspends_in_its_first_step_ends_at_its_deadline() -> None:
    async with connected() as (client, _):
        error = await call_error(client.call("task.slow", timeout=0.02))
        assert error.code is ErrorCode.TIMEOUT


async def test_tasks_of_a_loop_with_a_task_factory_are_created_by_it() -> None:
    async with connected() as (client, _):
        loop, made = asyncio.get_running_loop(), list[asyncio.Task[Any]]()

        def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
            made.append(asyncio.Task(work, loop=loop, **options))
            return made[-1]

        loop.set_task_factory(factory)
        try:
            await client.call("task.note_once")
        finally:
            loop.set_task_factory(None)
        assert len(made) == 1
