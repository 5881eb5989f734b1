"""Whoever watches events sees them after the step, and can neither slow nor fail it."""

import asyncio
import logging

import pytest

from opwire.call import CallAborted, CallEvent
from opwire.call.call_table import Observers
from tests.requirements import requirement

EVENT = CallAborted(request_id="r")


@requirement("call.observers")
async def test_an_observer_is_shown_an_event_after_the_step_that_it_watches() -> None:
    observers, seen = Observers(), list[CallEvent]()
    end = observers.add(seen.append)
    observers.show(EVENT)
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [EVENT]
    end()
    end()
    assert not observers


@requirement("call.observers")
async def test_an_observer_that_watches_twice_leaves_once_for_each_time() -> None:
    observers, seen = Observers(), list[CallEvent]()
    ends = [observers.add(seen.append) for _ in range(2)]
    ends[0]()
    ends[0]()
    observers.show(EVENT)
    await asyncio.sleep(0)
    assert seen == [EVENT]
    ends[1]()
    assert not observers


@requirement("call.observers")
async def test_an_observer_that_has_left_does_not_see_what_happened_just_before() -> None:
    observers, seen = Observers(), list[CallEvent]()
    end = observers.add(seen.append)
    observers.add(lambda _: end())
    observers.show(EVENT)
    observers.show(EVENT)
    await asyncio.sleep(0)
    assert seen == [EVENT]


async def test_what_was_taken_back_is_not_shown() -> None:
    observers, seen = Observers(), list[CallEvent]()
    observers.add(seen.append)
    observers.show(EVENT).cancel()
    await asyncio.sleep(0)
    assert seen == []


@requirement("call.observers")
async def test_an_observer_that_fails_is_logged_and_the_others_see_the_event(caplog: pytest.LogCaptureFixture) -> None:
    observers, seen = Observers(), list[CallEvent]()

    def fail(_: CallEvent) -> None:
        raise ValueError("no")

    observers.add(fail)
    observers.add(seen.append)
    with caplog.at_level(logging.ERROR, "opwire.call"):
        observers.show(EVENT)
        await asyncio.sleep(0)
    assert seen == [EVENT]
    assert "an observer failed on CallAborted" in caplog.text
