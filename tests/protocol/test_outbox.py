"""Events that wait for room in the queue of a connection."""

import asyncio
import time
from typing import Any, cast

import pytest

from opwire import CallError, ErrorCode, OperationRegistry
from opwire.protocol import CallAborted, CallFailed, CallRequested, CallResponded
from opwire.protocol.outbox import Outbox
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.hub.meeting import adding
from tests.protocol.harness import call_error, connected_ends, peer, until


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


async def test_events_to_a_peer_are_sent_in_order_when_there_is_room_and_others_do_not_wait_for_it() -> None:
    """Large requests, responses and items wait for room in the queue of a connection."""
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
    assert len(outbox) == 0


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


class Full(MemoryTransport):
    """Has no room for the first responses."""

    most = 3
    rejected = 0

    def send(self, event: Any, to: Any) -> None:
        if isinstance(event, CallResponded) and self.rejected < self.most:
            self.rejected += 1
            raise CallError("RATE_LIMITED", "the peer does not keep up")
        super().send(event, to)


async def test_an_answer_waits_until_the_transport_has_room_for_it() -> None:
    async with connected_ends(adding(), transport=Full, max_calls_per_identity=1) as here:
        envelope = await here.client.call("math.add", {"a": 1, "b": 2})
        assert (envelope.meta.source, cast("Full", here.server.transport).rejected) == ("local", 3)


@pytest.mark.parametrize("seconds", [0.01, 30.0])
async def test_an_answer_that_waits_is_dropped_with_its_deadline_or_its_caller(seconds: float) -> None:
    registry, bus = OperationRegistry(), MemoryBus()

    @registry.query("a.busy")
    async def busy() -> int:  # which runs where its request is received
        time.sleep(0.02)
        return 1

    async with connected_ends(registry, bus=bus, transport=Full) as here:
        cast("Full", here.server.transport).most = 1_000
        caller, received = await peer(bus)
        request = CallRequested(request_id="r1", operation_id="a.busy", input={}, timeout_ms=seconds * 1000)
        server = caller.request(request)
        if seconds > 1:
            caller.send(CallAborted(request_id="r1"), server)  # before it begins to wait
        await until(lambda: here.at_rest)
        assert [type(each) for each in received.events] == ([] if seconds > 1 else [CallFailed])


async def test_above_the_memory_for_waiting_answers_one_is_an_error_that_is_not_to_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opwire.protocol.outbox._MAX_WAITING_BYTES", 0)
    async with connected_ends(adding(), transport=Full) as here:
        error = await call_error(here.client.call("math.add", {"a": 1, "b": 2}))
    assert (error.code, error.retryable) == ("RATE_LIMITED", False)
