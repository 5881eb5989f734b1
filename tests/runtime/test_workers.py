"""The threads of sync handlers: bounded, replaceable, never in the way."""

import asyncio
import functools
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from opwire import CallError, ErrorCode
from opwire.runtime.workers import MAX_STUCK, WorkerPool

PATIENCE = 10
"""Seconds after which a test that waits for an event has failed."""

user: ContextVar[str] = ContextVar("user", default="nobody")


class Blocker:
    """A call that holds its thread until it is let go."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.started = asyncio.Event()
        self.let_go = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> str:
        self.thread = threading.current_thread()
        self.loop.call_soon_threadsafe(self.started.set)
        assert self.let_go.wait(PATIENCE)
        return "done"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def start(pool: WorkerPool, blocker: Blocker) -> "asyncio.Task[Any]":
    task = asyncio.create_task(pool.run(blocker, "a.b"))
    async with asyncio.timeout(PATIENCE):
        await blocker.started.wait()
    return task


async def abandon(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_runs_on_a_daemon_thread_of_our_own_and_gives_its_result() -> None:
    thread = await WorkerPool().run(threading.current_thread, "a.b")
    assert thread is not threading.current_thread()
    assert (thread.name, thread.daemon) == ("opwire-worker", True)


async def test_calls_one_after_the_other_share_a_thread() -> None:
    pool = WorkerPool()
    assert len({await pool.run(threading.current_thread, "a.b") for _ in range(200)}) == 1


async def test_a_limited_number_of_calls_run_at_once_and_the_others_wait_their_turn() -> None:
    pool = WorkerPool(max_workers=2)
    blockers = [Blocker() for _ in range(5)]
    tasks = [asyncio.create_task(pool.run(blocker, "a.b")) for blocker in blockers]
    for finished in range(5):
        await until(lambda: sum(blocker.started.is_set() for blocker in blockers) == min(5, finished + 2))  # noqa: B023
        blockers[finished].let_go.set()
        assert await tasks[finished] == "done"
    assert len({blocker.thread for blocker in blockers}) == 2
    assert pool.stuck == 0


async def test_a_call_sees_the_context_variables_of_its_caller_and_cannot_change_them() -> None:
    def look_and_change() -> str:
        seen = user.get()
        user.set("intruder")
        return seen

    user.set("ann")
    pool = WorkerPool(max_workers=1)
    assert await pool.run(look_and_change, "a.b") == "ann"
    assert user.get() == "ann"
    user.set("bob")
    assert await pool.run(look_and_change, "a.b") == "bob"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
async def test_any_exception_of_a_call_reaches_its_caller_and_the_thread_goes_on(error: BaseException) -> None:
    def fail() -> None:
        raise error

    pool = WorkerPool(max_workers=1)
    with pytest.raises(type(error)) as caught:
        await pool.run(fail, "a.b")
    assert caught.value is error
    assert await pool.run(lambda: "next", "a.b") == "next"


async def test_a_call_that_its_caller_abandons_is_reported_and_another_thread_takes_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = WorkerPool(max_workers=1)
    blocker = Blocker()
    await abandon(await start(pool, blocker))
    assert pool.stuck == 1
    assert "a.b did not return in time" in caplog.text
    blocker.let_go.set()
    await until(lambda: pool.stuck == 0)


async def test_a_call_that_waits_for_a_thread_gets_one_when_another_is_abandoned() -> None:
    pool = WorkerPool(max_workers=2)
    blocker, busy = Blocker(), Blocker()
    stuck, at_work = await start(pool, blocker), await start(pool, busy)
    waiting = asyncio.create_task(pool.run(threading.current_thread, "a.c"))
    await asyncio.sleep(0)
    await abandon(stuck)
    async with asyncio.timeout(PATIENCE):
        assert await waiting not in (blocker.thread, busy.thread)
    blocker.let_go.set()
    busy.let_go.set()
    assert await at_work == "done"
    await until(lambda: pool.stuck == 0)


async def test_a_thread_that_comes_back_ends_if_its_place_was_taken() -> None:
    pool = WorkerPool(max_workers=2)
    stuck, busy, replacement = Blocker(), Blocker(), Blocker()
    task, at_work = await start(pool, stuck), await start(pool, busy)
    waiting = asyncio.create_task(pool.run(replacement, "a.c"))
    await asyncio.sleep(0)
    await abandon(task)
    await until(replacement.started.is_set)
    stuck.let_go.set()
    await until(lambda: stuck.thread is not None and not stuck.thread.is_alive())
    replacement.let_go.set()
    busy.let_go.set()
    assert [await waiting, await at_work] == ["done", "done"]
    assert await pool.run(threading.current_thread, "a.c") in (replacement.thread, busy.thread)


async def test_a_call_that_is_given_up_before_it_starts_never_runs(caplog: pytest.LogCaptureFixture) -> None:
    pool = WorkerPool(max_workers=1)
    blocker = Blocker()
    running = await start(pool, blocker)
    ran: list[str] = []
    queued = asyncio.create_task(pool.run(lambda: ran.append("queued"), "a.c"))
    await asyncio.sleep(0)
    await abandon(queued)
    blocker.let_go.set()
    assert await running == "done"
    assert await pool.run(lambda: "after", "a.d") == "after"
    assert ran == []
    assert pool.stuck == 0
    assert caplog.text == ""


async def test_a_pool_with_all_threads_stuck_rejects_until_one_returns() -> None:
    pool = WorkerPool(max_workers=2)
    blockers = [Blocker(), Blocker()]
    for blocker in blockers:
        await abandon(await start(pool, blocker))
    with pytest.raises(CallError, match="2 worker threads run handlers that outlived their deadline") as caught:
        await pool.run(lambda: None, "a.c")
    assert (caught.value.code, caught.value.retryable) == (ErrorCode.UNAVAILABLE, True)
    blockers[0].let_go.set()
    await until(lambda: pool.stuck == 1)
    assert await pool.run(lambda: "served again", "a.c") == "served again"
    blockers[1].let_go.set()
    await until(lambda: pool.stuck == 0)


async def test_a_caller_with_all_threads_stuck_is_rejected_and_others_are_served() -> None:
    """A caller whose calls have left all threads stuck is refused, and others are served."""
    pool, blockers = WorkerPool(max_workers=1), [Blocker() for _ in range(MAX_STUCK)]
    for number, blocker in enumerate(blockers):
        running = asyncio.create_task(pool.run(blocker, "a.b", f"caller {number}"))
        await asyncio.wait_for(blocker.started.wait(), PATIENCE)
        queued = asyncio.create_task(pool.run(lambda: "never", "a.c", f"caller {number}"))
        await asyncio.sleep(0)
        await abandon(running)
        with pytest.raises(CallError, match="outlived their deadline"):
            await asyncio.wait_for(queued, PATIENCE)
        with pytest.raises(CallError, match="outlived their deadline"):
            await pool.run(lambda: None, "a.c", f"caller {number}")
        if number + 1 < MAX_STUCK:
            assert await pool.run(lambda: "served", "a.c") == "served"
    with pytest.raises(CallError, match="4 worker threads run handlers"):  # the number of threads is bounded in all
        await pool.run(lambda: None, "a.c")
    for blocker in blockers:
        blocker.let_go.set()
    await until(lambda: pool.stuck == 0)
    assert await pool.run(lambda: "served", "a.c", "caller 0") == "served"


async def test_a_thread_without_work_ends_after_a_while_and_the_next_call_gets_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opwire.runtime.workers.IDLE", 0.01)
    pool = WorkerPool(max_workers=1)
    for _ in range(3):
        thread = await pool.run(threading.current_thread, "a.b")
        await until(lambda: not thread.is_alive())  # noqa: B023


async def test_a_thread_that_waits_keeps_nothing_of_its_last_call() -> None:
    class Value:
        pass

    pool = WorkerPool(max_workers=1)
    value: Value | None = Value()
    remembered = weakref.ref(value)
    given = functools.partial(lambda each: each, value)
    assert await pool.run(given, "a.b") is value
    value = given = None
    await until(lambda: remembered() is None)


def test_a_call_that_ends_after_its_event_loop_affects_no_other_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="opwire.runtime")
    pool = WorkerPool(max_workers=1)

    async def leave_behind() -> Blocker:
        blocker = Blocker()
        await abandon(await start(pool, blocker))
        return blocker

    blocker = asyncio.run(leave_behind())
    blocker.let_go.set()
    asyncio.run(until(lambda: pool.stuck == 0))
    assert asyncio.run(pool.run(lambda: "next loop", "a.c")) == "next loop"
    assert "a.b ended after its event loop" in caplog.text


async def test_jobs_that_wait_for_a_thread_are_refused_when_every_thread_is_stuck() -> None:
    pool, blocker = WorkerPool(max_workers=1), Blocker()
    stuck = asyncio.create_task(pool.run(blocker, "stuck"))
    await asyncio.wait_for(blocker.started.wait(), PATIENCE)
    queued = asyncio.create_task(pool.run(lambda: "never", "queued"))
    await asyncio.sleep(0)
    stuck.cancel()
    try:
        with pytest.raises(CallError) as caught:
            await asyncio.wait_for(queued, PATIENCE)
    finally:
        blocker.let_go.set()
    assert caught.value.code is ErrorCode.UNAVAILABLE
