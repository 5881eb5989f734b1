"""A spoke: serves and calls, over a hub or over a broker, with the same words."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import Spoke
from opwire.model.identity import Identity
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire_conformance.harness import soon
from tests.hub.meeting import AUTH, BEAT, Meeting, Waiting, adding
from tests.protocol.harness import until

EVERYBODY = Identity(id="everybody", scopes=("*",))


async def test_over_a_broker_spokes_need_no_hub(broker: str, meeting: Meeting) -> None:
    """A spoke is used in the same way over a hub and over a broker."""
    options = {"heartbeat": BEAT, "prefix": "spoketest", "anonymous": EVERYBODY}
    await meeting.spoke(broker, adding(), name="adder", version="1.2", **options)
    caller = await meeting.spoke(broker, **options)
    assert await caller.call("math.add", {"a": 1, "b": 2}, output_type=int) == 3
    (found,) = await caller.discover()
    assert (found.server.name, found.server.version) == ("adder", "1.2")
    assert [info.id for info in found.operations] == ["math.add"]


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


async def test_large_inputs_in_flight_are_bounded_and_one_identity_gets_half(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwire.protocol.handler.MAX_INPUT_BYTES", 400_000)
    registry, go = OperationRegistry(), asyncio.Event()

    @registry.query("shop.length", timeout=60)
    async def length(text: Any) -> int:
        await go.wait()
        return len(text)

    hub = await meeting.hub(authenticate=AUTH)
    shop = await meeting.spoke(hub.url, registry, token="shop")
    alice, mallory = [await meeting.spoke(hub.url, token=each) for each in ("alice", "mallory")]
    large, small, lists = "x" * 150_000, "x" * 1_000, [[]] * 3_000  # which take 200 kB and more in memory

    def begin(caller: Spoke, text: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(caller.call("shop.length", {"text": text}))

    calls = [begin(alice, large), begin(mallory, large)]
    await until(lambda: len(shop.handler) == 2)
    for text in (large, lists):
        with pytest.raises(CallError) as failure:
            await alice.call("shop.length", {"text": text})
        assert (failure.value.code, failure.value.retryable) == (ErrorCode.RATE_LIMITED, True)
    calls.append(begin(alice, small))
    await until(lambda: len(shop.handler) == 3)
    go.set()
    assert await asyncio.gather(*calls) == [150_000, 150_000, 1_000]
    assert await alice.call("shop.length", {"text": large}) == 150_000
    assert not shop.handler.admission.input_bytes.held


@pytest.fixture(params=["hub", "redis", "nats"])
def engine(request: pytest.FixtureRequest) -> str | None:
    """The URL of a broker; None: a hub."""
    return None if request.param == "hub" else request.getfixturevalue(f"{request.param}_server").url


async def test_many_large_messages_at_once_all_arrive(engine: str | None, meeting: Meeting) -> None:
    large = "x" * 900_000  # of which some twenty fill the queue of a connection
    registry = OperationRegistry()

    @registry.query("large.length")
    async def length(text: str) -> int:
        await asyncio.sleep(0)
        return len(text)

    @registry.query("large.text")
    async def text() -> str:
        await asyncio.sleep(0)
        return large

    @registry.query("large.at_once")
    async def at_once() -> str:  # without a task of its own
        return large

    @registry.subscription("large.texts")
    async def texts() -> AsyncIterator[str]:
        for _ in range(40):
            yield large

    url = engine or (await meeting.hub()).url
    options = {} if engine is None else {"prefix": "large", "anonymous": EVERYBODY}
    spoke = await meeting.spoke(url, registry, **options)
    caller = await meeting.spoke(url, **options)
    async with asyncio.timeout(60):
        for id in ("large.text", "large.at_once"):
            assert await asyncio.gather(*(caller.call(id) for _ in range(30))) == [large] * 30
        calls = (caller.call("large.length", {"text": large}) for _ in range(30))
        assert await asyncio.gather(*calls) == [len(large)] * 30
        assert [item async for item in caller.subscribe("large.texts")] == [large] * 40
    assert not spoke.handler.responder.outbox.waiting.held


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
