"""Tasks in the background."""

import asyncio
import gc
import sys
import weakref
from typing import Any

from opwire.runtime.tasks import cancel_tasks, resolve, spawn, start_eagerly


async def test_a_task_is_held_until_it_has_ended() -> None:
    tasks, go_on = set[asyncio.Task[str]](), asyncio.Event()

    async def work() -> str:
        await go_on.wait()
        return "done"

    task = weakref.ref(spawn(work(), tasks))
    await asyncio.sleep(0)
    gc.collect()
    assert task() in tasks
    go_on.set()
    assert [await each for each in list(tasks)] == ["done"]
    await asyncio.sleep(0)
    assert tasks == set()


async def test_a_future_that_is_done_stays_unchanged() -> None:
    pending, cancelled = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    cancelled.cancel()
    for future in (pending, pending, cancelled):
        resolve(future)
    assert pending.result() is None
    assert cancelled.cancelled()


async def test_tasks_that_are_cancelled_are_awaited() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    tasks = [asyncio.create_task(work(name)) for name in ("one", "other")]
    await asyncio.sleep(0)
    await cancel_tasks(None, *tasks)
    assert sorted(ended) == ["one", "other"]
    await cancel_tasks(None)


async def test_the_first_step_is_executed_at_once_where_python_can_do_that() -> None:
    steps: list[object] = []

    async def work() -> str:
        steps.append(asyncio.current_task())
        await asyncio.sleep(0)
        steps.append(asyncio.current_task())
        return "done"

    task = start_eagerly(work())
    assert len(steps) == (1 if sys.version_info >= (3, 12) else 0)
    assert await task == "done"
    assert steps == [task, task]


async def test_tasks_that_start_each_other_do_not_exhaust_the_stack() -> None:
    async def count_down(number: int) -> int:
        return 0 if number == 0 else 1 + await start_eagerly(count_down(number - 1))

    assert await start_eagerly(count_down(2000)) == 2000


async def test_a_task_factory_of_the_event_loop_creates_every_task() -> None:
    created: list[asyncio.Task[Any]] = []

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        created.append(asyncio.Task(work, loop=loop, **options))
        return created[-1]

    async def work() -> int:
        return 1

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        tasks = [start_eagerly(work()) for _ in range(2)]
    finally:
        loop.set_task_factory(None)
    assert await asyncio.gather(*tasks) == [1, 1]
    assert created == tasks
