"""Callers that wait for outcomes, while their task is being stored."""

import asyncio

import pytest

from opwire.durable.journal import Outcome
from opwire.durable.waiters import OutcomeWaiter, OutcomeWaiters
from opwire.errors import CallError, ErrorCode
from opwire_conformance.harness import soon

DONE = Outcome(key="k", operation_id="shop.order", event=b"{}", attempts=1, recorded=1)


class Waiting:
    """A caller with a task that is being stored; its lookups are counted."""

    def __init__(self, timeout: float, recheck: float = 60.0) -> None:
        self.waiters = OutcomeWaiters(recheck)
        self.fetched = 0
        self.found: Outcome | None = DONE
        self.hangs = False
        self.task = asyncio.create_task(self.waiters.wait("k", timeout, self.fetch, self.submit))

    def submit(self, waiter: OutcomeWaiter) -> None:
        self.waiter = waiter

    async def fetch(self) -> Outcome | None:
        self.fetched += 1
        if self.hangs:
            await asyncio.Event().wait()
        return self.found


async def test_a_caller_gets_the_outcome_without_a_lookup() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.waiter.settle(None)
    await asyncio.sleep(0)
    assert not waiting.waiter.future.done()
    waiting.waiters.resolve(DONE)
    assert await soon("it is told", waiting.task) == DONE
    assert (waiting.fetched, "k" in waiting.waiters) == (0, False)


async def test_a_task_that_is_not_stored_fails_its_caller_at_once() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.waiter.fail(CallError(ErrorCode.UNAVAILABLE, "the connection was lost"))
    with pytest.raises(CallError, match="was lost"):
        await soon("it fails", waiting.task)


async def test_a_caller_with_the_key_of_another_call_does_not_get_its_outcome() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.waiters.resolve(DONE)
    done, _ = await asyncio.wait([waiting.task], timeout=0.1)
    assert not done
    waiting.waiter.fail(CallError(ErrorCode.VALIDATION_ERROR, "the key is in use"))
    with pytest.raises(CallError, match="in use"):
        await soon("it fails", waiting.task)


async def test_an_outcome_that_arrives_before_the_task_is_stored_is_returned_then() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.waiters.resolve(DONE)
    waiting.waiter.settle(None)
    assert await soon("it is told", waiting.task) == DONE


async def test_an_outcome_that_is_known_is_returned_at_once() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.waiter.settle(DONE)
    assert await soon("it is told", waiting.task) == DONE


async def test_a_wait_for_a_task_that_is_not_known_to_be_stored_ends_in_time_with_an_error() -> None:
    waiting = Waiting(0.01)
    with pytest.raises(CallError, match="has not confirmed") as raised:
        await soon("it ends", waiting.task)
    assert (raised.value.code, raised.value.details) == (ErrorCode.TIMEOUT, {"key": "k"})


async def test_a_wait_for_a_stored_task_ends_in_time_without_an_outcome() -> None:
    waiting = Waiting(0.05)
    await asyncio.sleep(0)
    waiting.waiter.settle(None)
    assert await soon("it ends", waiting.task) is None


async def test_a_lookup_follows_when_the_task_is_stored() -> None:
    waiting = Waiting(60, recheck=0.01)
    done, _ = await asyncio.wait([waiting.task], timeout=0.1)
    assert (done, waiting.fetched) == (set(), 0)
    waiting.waiter.settle(None)
    assert await soon("it is found", waiting.task) == DONE
    assert waiting.fetched == 1


async def test_a_lookup_without_an_answer_does_not_prolong_the_wait() -> None:
    waiting = Waiting(0.1, recheck=0.02)
    waiting.hangs = True
    await asyncio.sleep(0)
    waiting.waiter.settle(None)
    assert await soon("it ends", waiting.task) is None
    assert waiting.fetched == 1


async def test_a_caller_that_is_cancelled_leaves_nothing_behind() -> None:
    waiting = Waiting(60)
    await asyncio.sleep(0)
    waiting.task.cancel()
    await asyncio.wait([waiting.task])
    waiting.waiter.fail(CallError(ErrorCode.UNAVAILABLE, "the connection was lost"))
    await asyncio.sleep(0)
    assert (waiting.task.cancelled(), "k" in waiting.waiters) == (True, False)
