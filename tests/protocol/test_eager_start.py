"""The first step of a served call is executed where its request is received, in a task of its own if it may suspend."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from opwire import Context, ErrorCode, OperationRegistry
from opwire.model.operation import Handler
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


async def test_a_handler_that_does_not_suspend_responds_without_a_turn_of_the_event_loop() -> None:
    async with connected() as (client, tasks):
        call: Coroutine[Any, Any, Any] = client.call("task.note_once")
        with pytest.raises(StopIteration) as ended:
            call.send(None)
        assert ended.value.value.data == 1
        (task,) = tasks.noted
        assert task is not None
        assert task is not asyncio.current_task()


async def test_a_handler_without_an_await_needs_no_task() -> None:
    async with connected() as (client, tasks):
        before = asyncio.all_tasks()
        assert (await client.call("task.note")).data == 1
        assert tasks.noted == [asyncio.current_task()]  # missing over a network
        assert asyncio.all_tasks() == before


async def test_an_interceptor_around_a_handler_without_an_await_may_suspend() -> None:
    async def pause(call: Handler, input: Any, context: Context) -> Any:
        await asyncio.sleep(0)
        return await call(input, context)

    async with connected() as (client, tasks):
        tasks.registry.use(lambda _, handler: partial(pause, handler))
        assert (await client.call("task.note")).data == 1
        assert tasks.noted[0] is not asyncio.current_task()


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


async def test_a_loop_with_another_call_soon_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (client, _):
        loop = asyncio.get_running_loop()
        original, scheduled = loop.call_soon, list[object]()

        def call_soon(callback: Any, *values: Any, **options: Any) -> asyncio.Handle:
            scheduled.append(callback)
            return original(callback, *values, **options)

        monkeypatch.setattr(loop, "call_soon", call_soon)
        assert (await client.call("task.note_twice")).data is True
        assert loop.call_soon is call_soon
        assert scheduled
