"""Callers that wait for outcomes, while their task is being stored and afterwards."""

import asyncio
import time

import pytest

from opwire.durable.journal import Outcome
from opwire.durable.waiters import OutcomeWaiters
from opwire.errors import CallError, ErrorCode
from opwire_conformance.harness import soon

DONE = Outcome(key="k", operation_id="shop.order", event=b"{}", attempts=1, recorded=1)


class Submission:
    """A caller that submits a task; `stored` is the reply of the engine. Its lookups are counted."""

    def __init__(self, timeout: float, recheck: float = 60.0) -> None:
        self.waiters = OutcomeWaiters(recheck)
        self.lookups = 0
        self.stored: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self.submit(time.monotonic() + timeout))

    async def submit(self, deadline: float) -> Outcome | None:
        with self.waiters.waiting("k") as waiter:
            return await self.stored or await waiter.outcome(deadline, self.look_up)

    async def look_up(self) -> Outcome | None:
        self.lookups += 1
        return DONE


async def test_a_caller_gets_the_outcome_without_a_lookup() -> None:
    submission = Submission(60)
    submission.stored.set_result(None)
    done, _ = await asyncio.wait([submission.task], timeout=0.05)
    assert not done
    submission.waiters.resolve(DONE)
    assert await soon("it is told", submission.task) == DONE
    assert (submission.lookups, len(submission.waiters)) == (0, 0)


async def test_a_task_that_is_not_stored_fails_its_caller_at_once() -> None:
    submission = Submission(60)
    submission.stored.set_exception(CallError(ErrorCode.UNAVAILABLE, "the connection was lost"))
    with pytest.raises(CallError, match="was lost"):
        await soon("it fails", submission.task)


async def test_a_caller_with_the_key_of_another_call_does_not_get_its_outcome() -> None:
    submission = Submission(60)
    await asyncio.sleep(0)
    submission.waiters.resolve(DONE)
    done, _ = await asyncio.wait([submission.task], timeout=0.1)
    assert not done
    submission.stored.set_exception(CallError(ErrorCode.VALIDATION_ERROR, "the key is in use"))
    with pytest.raises(CallError, match="in use"):
        await soon("it fails", submission.task)


async def test_an_outcome_that_arrives_before_the_task_is_stored_is_returned_then() -> None:
    submission = Submission(60)
    await asyncio.sleep(0)
    submission.waiters.resolve(DONE)
    submission.stored.set_result(None)
    assert await soon("it is told", submission.task) == DONE


async def test_an_outcome_that_is_known_is_returned_at_once() -> None:
    submission = Submission(60)
    submission.stored.set_result(DONE)
    assert await soon("it is told", submission.task) == DONE


async def test_an_error_of_the_journal_reaches_a_caller_that_waits() -> None:
    submission = Submission(60)
    submission.stored.set_result(None)
    await asyncio.sleep(0.01)
    submission.waiters.fail(CallError(ErrorCode.UNAVAILABLE, "not for this key"), concerns=lambda key: key != "k")
    submission.waiters.fail(CallError(ErrorCode.UNAVAILABLE, "the journal was closed"))
    with pytest.raises(CallError, match="was closed"):
        await soon("it fails", submission.task)


async def test_a_wait_for_a_stored_task_ends_in_time_without_an_outcome() -> None:
    submission = Submission(0.05)
    submission.stored.set_result(None)
    assert await soon("it ends", submission.task) is None


async def test_a_lookup_follows_when_the_task_is_stored() -> None:
    submission = Submission(60, recheck=0.01)
    done, _ = await asyncio.wait([submission.task], timeout=0.1)
    assert (done, submission.lookups) == (set(), 0)
    submission.stored.set_result(None)
    assert await soon("it is found", submission.task) == DONE
    assert submission.lookups == 1


async def test_a_caller_that_is_cancelled_leaves_nothing_behind() -> None:
    submission = Submission(60)
    await asyncio.sleep(0)
    submission.task.cancel()
    await asyncio.wait([submission.task])
    submission.waiters.fail(CallError(ErrorCode.UNAVAILABLE, "the connection was lost"))
    await asyncio.sleep(0)
    assert (submission.task.cancelled(), len(submission.waiters)) == (True, 0)


async def test_an_error_of_the_journal_does_not_reach_a_caller_that_was_just_cancelled() -> None:
    submission = Submission(60)
    submission.stored.set_result(None)
    await asyncio.sleep(0.01)
    submission.task.cancel()
    submission.waiters.fail(CallError(ErrorCode.UNAVAILABLE, "the connection was lost"))
    await asyncio.wait([submission.task])
    assert (submission.task.cancelled(), len(submission.waiters)) == (True, 0)
