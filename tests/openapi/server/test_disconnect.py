"""Ending what a request runs."""

import asyncio
from typing import Any

import pytest

from opwire import CallError
from opwire.openapi.server.request import CancelOnDisconnect
from opwire.runtime.deadlines import Deadlines


class Line:
    """The receiving end of a request."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.watched = asyncio.Event()
        self._given = False

    async def receive(self) -> Any:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": b""}
        self.watched.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def test_the_block_ends_when_the_client_leaves() -> None:
    line = Line()
    cleaned = False
    async with asyncio.timeout(5):
        with CancelOnDisconnect(line.receive, Deadlines()) as guard:
            try:
                line.gone.set()
                await asyncio.Event().wait()
            finally:
                cleaned = True
    assert guard.interrupted
    assert guard.reason is None
    assert cleaned
    await asyncio.sleep(0)  # the task is not cancelled any more


async def test_a_block_that_ends_by_itself_leaves_nothing_behind() -> None:
    line = Line()
    with CancelOnDisconnect(line.receive, Deadlines()) as guard:
        await asyncio.sleep(0)
    guard.interrupt()
    assert not guard.interrupted
    with CancelOnDisconnect(line.receive, Deadlines()) as guard:
        await asyncio.wait_for(line.watched.wait(), 5)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_reason_is_kept_and_the_first_one_counts() -> None:
    line, first = Line(), CallError("UNAVAILABLE", "going away")
    with CancelOnDisconnect(line.receive, Deadlines()) as guard:
        guard.interrupt(first)
        guard.interrupt(CallError("INTERNAL"))
        await asyncio.Event().wait()
    assert guard.reason is first


async def test_a_function_may_interrupt_later() -> None:
    reason = CallError("UNAUTHENTICATED", "expired")

    async def never() -> CallError:
        return await asyncio.get_running_loop().create_future()

    async def soon() -> CallError:
        await asyncio.sleep(0.01)
        return reason

    async with asyncio.timeout(5):
        with CancelOnDisconnect(Line().receive, Deadlines()) as guard:
            guard.interrupt_when(never)
            guard.interrupt_when(soon)
            await asyncio.Event().wait()
    assert guard.reason is reason


@pytest.mark.parametrize("interrupted_too", [False, True])
async def test_cancelling_from_outside_ends_it(interrupted_too: bool) -> None:
    entered: asyncio.Future[CancelOnDisconnect] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        with CancelOnDisconnect(Line().receive, Deadlines()) as guard:
            entered.set_result(guard)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    guard = await asyncio.wait_for(entered, 5)
    if interrupted_too:
        guard.interrupt()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), CancelOnDisconnect(Line().receive, Deadlines()):
        raise KeyError
