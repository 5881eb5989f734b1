"""Callers that wait for outcomes, while their task is being stored."""

import asyncio
from typing import Any

import pytest

from opwire.durable.journal import Outcome
from opwire.durable.waiters import OutcomeWaiters, PendingReply
from opwire.errors import CallError, ErrorCode
from opwire.testing.harness import soon
from tests.requirements import requirement

DONE = Outcome(key="k", operation_id="shop.order", event=b"{}", attempts=1, recorded=1)


def read(reply: Any) -> Outcome | None:
    if reply == -1:
        raise CallError(ErrorCode.VALIDATION_ERROR, "the key is in use")
    return reply


class Waiting:
    """A caller whose task is being stored; the lookups that it makes are counted."""

    def __init__(self, timeout: float, recheck: float = 60.0) -> None:
        self.waiters = OutcomeWaiters(recheck)
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.fetched = 0
        waiting = self.waiters.wait("k", timeout, self.fetch, submission=PendingReply(self.reply, read))
        self.task = asyncio.create_task(waiting)

    async def fetch(self) -> Outcome | None:
        self.fetched += 1
        return DONE


async def test_a_caller_gets_the_outcome_without_a_lookup() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.reply.set_result(None)
    await asyncio.sleep(0)
    waiting.waiters.resolve(DONE)
    assert await soon("it is told", waiting.task) == DONE
    assert (waiting.fetched, waiting.waiters._futures) == (0, {})


@requirement("durable.unavailable")
@pytest.mark.parametrize("reply", [-1, CallError(ErrorCode.UNAVAILABLE, "the connection was lost")])
async def test_a_task_that_is_not_stored_fails_its_caller_at_once(reply: Any) -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    if isinstance(reply, CallError):
        waiting.reply.set_exception(reply)
    else:
        waiting.reply.set_result(reply)
    with pytest.raises(CallError, match=r"in use|was lost"):
        await soon("it fails", waiting.task)


@requirement("durable.one-call-a-key")
async def test_a_caller_with_the_key_of_another_call_does_not_get_its_outcome() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.waiters.resolve(DONE)
    done, _ = await asyncio.wait([waiting.task], timeout=0.1)
    assert not done
    waiting.reply.set_result(-1)
    with pytest.raises(CallError, match="in use"):
        await soon("it fails", waiting.task)


async def test_an_outcome_that_is_known_is_returned_at_once() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.reply.set_result(DONE)
    assert await soon("it is told", waiting.task) == DONE


async def test_a_wait_does_not_end_before_its_task_is_stored() -> None:
    waiting = Waiting(0.01)
    done, _ = await asyncio.wait([waiting.task], timeout=0.1)
    assert not done
    waiting.reply.set_result(None)
    assert await soon("it ends", waiting.task) is None


async def test_a_lookup_follows_when_the_task_is_stored() -> None:
    waiting = Waiting(60, recheck=0.01)
    done, _ = await asyncio.wait([waiting.task], timeout=0.1)
    assert (done, waiting.fetched) == (set(), 0)
    waiting.reply.set_result(None)
    assert await soon("it is found", waiting.task) == DONE
    assert waiting.fetched == 1


async def test_a_caller_that_is_cancelled_leaves_nothing_behind() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.task.cancel()
    await asyncio.wait([waiting.task])
    waiting.reply.set_exception(CallError(ErrorCode.UNAVAILABLE, "the connection was lost"))
    await asyncio.sleep(0)
    assert (waiting.task.cancelled(), waiting.waiters._futures) == (True, {})
