"""Events that wait for room in the queue of a connection."""

import asyncio

import pytest

from opwire.call.outbox import Outbox
from opwire.errors import CallError, ErrorCode
from tests.call.harness import until
from tests.requirements import requirement


class Queue:
    """A queue that a test fills and empties."""

    def __init__(self) -> None:
        self.room = 0
        self.sent: list[str] = []
        self.attempts = 0

    def send(self, name: str) -> str:
        self.attempts += 1
        if self.room == 0:
            raise CallError(ErrorCode.RATE_LIMITED, "full")
        self.room -= 1
        self.sent.append(name)
        return name


@requirement("call.waits-for-room")
async def test_events_to_a_peer_are_sent_in_order_when_there_is_room_and_others_do_not_wait_for_it() -> None:
    outbox, full, other = Outbox(), Queue(), Queue()
    tasks = [asyncio.create_task(outbox.send("a", lambda name=name: full.send(name))) for name in "xyz"]
    other.room = 1
    assert await outbox.send("b", lambda: other.send("w")) == "w"
    await until(lambda: full.attempts > 1)
    assert full.sent == []
    full.room = 2
    assert await asyncio.gather(*tasks[:2]) == ["x", "y"]
    assert not tasks[2].done()
    full.room = 1
    assert await tasks[2] == "z"
    assert full.sent == ["x", "y", "z"]
    assert not outbox._turns


@requirement("call.waits-for-room")
async def test_another_error_is_raised_and_a_cancelled_event_makes_room_for_the_next() -> None:
    outbox, full = Outbox(), Queue()

    def fail() -> None:
        raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, "too large")

    with pytest.raises(CallError, match="too large"):
        await outbox.send("a", fail)
    first = asyncio.create_task(outbox.send("a", lambda: full.send("first")))
    second = asyncio.create_task(outbox.send("a", lambda: full.send("second")))
    await until(lambda: full.attempts > 0)
    first.cancel()
    full.room = 1
    assert await second == "second"
    assert full.sent == ["second"]
