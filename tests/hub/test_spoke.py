"""A spoke: serves and calls, over a hub or over a broker, with the same words."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import Spoke
from opwire.operation import Identity
from opwire.registry import OperationRegistry
from opwire.testing.harness import soon
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.hub.meeting import BEAT, Meeting, Waiting, adding
from tests.requirements import requirement

EVERYBODY = Identity(id="everybody", scopes=("*",))


@requirement("hub.same-api")
async def test_over_a_broker_spokes_need_no_hub(broker: str, meeting: Meeting) -> None:
    options = {"heartbeat": BEAT, "prefix": "spoketest", "anonymous": EVERYBODY}
    await meeting.spoke(broker, adding(), name="adder", version="1.2", **options)
    caller = await meeting.spoke(broker, **options)
    assert await caller.call("math.add", {"a": 1, "b": 2}, output_type=int) == 3
    (found,) = await caller.discover()
    assert (found.server.name, found.server.version) == ("adder", "1.2")
    assert [info.id for info in found.operations] == ["math.add"]


@requirement("hub.same-api")
async def test_the_items_of_a_subscription_arrive(meeting: Meeting) -> None:
    registry = OperationRegistry()

    @registry.subscription("clock.ticks")
    async def ticks(end: int) -> AsyncIterator[int]:
        for number in range(end):
            yield number

    hub = await meeting.hub()
    await meeting.spoke(hub.url, registry)
    caller = await meeting.spoke(hub.url)
    assert [item async for item in caller.subscribe("clock.ticks", {"end": 3})] == [0, 1, 2]


@requirement("hub.drain-spoke")
async def test_a_spoke_that_drains_finishes_what_it_has_and_leaves(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(), Waiting()
    spoke = await meeting.spoke(hub.url, waiting.registry)
    caller = await meeting.spoke(hub.url)
    call = asyncio.create_task(caller.call("slow.wait"))
    await soon("the handler begins", waiting.began.wait())
    draining = asyncio.create_task(spoke.drain(5))
    while "slow.wait" in hub.registry:
        await asyncio.sleep(0.005)
    waiting.go.set()
    assert await soon("the call ends", call) == "done"
    assert await soon("it is drained", draining)


@requirement("hub.drain-spoke")
async def test_a_spoke_does_not_drain_for_ever(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(), Waiting()
    spoke = await meeting.spoke(hub.url, waiting.registry)
    caller = await meeting.spoke(hub.url)
    call = asyncio.create_task(caller.call("slow.wait"))
    await soon("the handler begins", waiting.began.wait())
    assert not await spoke.drain(0.05)
    with pytest.raises(CallError):
        await soon("the call ends", call)
    await soon("the handler is stopped", waiting.stopped.wait())


async def test_a_transport_may_be_given_in_place_of_a_url() -> None:
    bus = MemoryBus()
    async with Spoke(adding(), MemoryTransport(bus)), Spoke(None, MemoryTransport(bus)) as caller:
        assert await caller.call("math.add", {"a": 1, "b": 2}) == 3


async def test_a_hub_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(CallError) as failure:
        await Spoke(None, "ws://127.0.0.1:1").start()
    assert failure.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("option", [{"max_calls": 0}, {"max_calls_per_identity": -1}, {"max_calls": float("nan")}])
def test_an_option_that_cannot_work_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        Spoke(None, "ws://127.0.0.1:1", **option)


@requirement("hub.repr")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ws://ann:secret@h:1/p?token=secret", "<WebSocketTransport to ws://h:1/p, closed>"),
        ("nats://ann:secret@h:4222", "<NatsTransport to nats://h:4222, not connected>"),
        ("redis://:secret@h:6379", "<RedisTransport to Redis at h:6379, not connected>"),
    ],
)
def test_a_spoke_shows_where_it_connects_to_without_credentials(url: str, shown: str) -> None:
    assert repr(Spoke(adding(), url)) == f"<Spoke of 1 operation over {shown}>"


@requirement("hub.repr")
async def test_a_hub_and_its_spokes_show_their_state(meeting: Meeting) -> None:
    hub = await meeting.hub()
    spoke = await meeting.spoke(hub.url, adding())
    assert repr(hub) == f"<Hub of 1 operation over <WebSocketServer at {hub.url}, 1 client>>"
    assert repr(spoke) == f"<Spoke of 1 operation over <WebSocketTransport to {hub.url}, connected>>"
    await spoke.close()
    assert repr(spoke.transport) == f"<WebSocketTransport to {hub.url}, closed>"
    await hub.close()
    assert repr(hub.transport) == f"<WebSocketServer at {hub.url}, closed>"
    memory = MemoryTransport(MemoryBus())
    assert repr(memory) == "<MemoryTransport closed>"
