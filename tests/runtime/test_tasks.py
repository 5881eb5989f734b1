"""Tasks in the background."""

import asyncio
import gc
import weakref

from opwire.runtime.tasks import cancel_tasks, resolve, spawn


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
