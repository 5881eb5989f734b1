"""Observers see events after the step, and can neither slow nor fail it."""

import asyncio
import logging

import pytest

from opwire import CallError
from opwire.protocol import CallAborted, CallEvent, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport

EVENT = CallAborted(request_id="r")


def unconnected() -> PendingRequestMap:
    return PendingRequestMap(MemoryTransport(MemoryBus()))


async def test_an_observer_is_shown_an_event_after_the_step_that_it_watches() -> None:
    calls, seen = unconnected(), list[CallEvent]()
    end = calls.observe(seen.append)
    calls.received(EVENT, "peer")
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [EVENT]
    end()
    end()
    calls.received(EVENT, "peer")
    await asyncio.sleep(0)
    assert seen == [EVENT]


async def test_an_observer_that_watches_twice_leaves_once_for_each_time() -> None:
    calls, seen = unconnected(), list[CallEvent]()
    ends = [calls.observe(seen.append) for _ in range(2)]
    ends[0]()
    ends[0]()
    calls.received(EVENT, "peer")
    await asyncio.sleep(0)
    assert seen == [EVENT]
    ends[1]()
    calls.received(EVENT, "peer")
    await asyncio.sleep(0)
    assert seen == [EVENT]


async def test_an_observer_that_has_left_does_not_see_what_happened_just_before() -> None:
    calls, seen = unconnected(), list[CallEvent]()
    end = calls.observe(seen.append)
    calls.observe(lambda _: end())
    calls.received(EVENT, "peer")
    calls.received(EVENT, "peer")
    await asyncio.sleep(0)
    assert seen == [EVENT]


async def test_an_event_that_the_transport_rejects_is_not_shown() -> None:
    calls, seen = unconnected(), list[CallEvent]()
    calls.observe(seen.append)
    for to in (None, "nowhere"):
        with pytest.raises(CallError):
            await calls.call("no.server", to=to)
    await asyncio.sleep(0)
    assert seen == []


async def test_an_observer_that_fails_is_logged_and_the_others_see_the_event(caplog: pytest.LogCaptureFixture) -> None:
    calls, seen = unconnected(), list[CallEvent]()

    def fail(_: CallEvent) -> None:
        raise ValueError("no")

    calls.observe(fail)
    calls.observe(seen.append)
    with caplog.at_level(logging.ERROR, "opwire.protocol"):
        calls.received(EVENT, "peer")
        await asyncio.sleep(0)
    assert seen == [EVENT]
    assert "an observer failed on CallAborted" in caplog.text
