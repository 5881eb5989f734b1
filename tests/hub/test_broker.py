"""A node on a broker discovers what others serve: on real brokers, and on a bus in this process."""

import asyncio
from secrets import token_hex
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import BrokerNode
from opwire.hub.remote_operations import RemoteOperations
from opwire.hub.spoke import DiscoveryPoller
from opwire.model.identity import Identity
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport
from opwire_conformance.harness import soon
from tests.hub.meeting import BEAT, Meeting, Waiting, adding, ids
from tests.transports.websocket.ends import until


async def test_what_is_served_is_shown_and_what_is_not_any_more_is_hidden() -> None:
    bus, registry, other = MemoryBus(), adding("own"), adding()
    async with PendingRequestMap(MemoryTransport(bus)) as calls, PendingRequestMap(MemoryTransport(bus)) as peer:
        remote = RemoteOperations(registry, calls, linger=0)
        async with CallHandler(registry, calls, serves=lambda spec: spec.id not in remote) as handler:
            poller = DiscoveryPoller(calls, remote, registry, handler.about().id)
            other.query("later.op")(_nothing)
            other.query("own.add")(_nothing)  # which the hub serves, too
            async with CallHandler(other, peer):
                await poller.poll()
                assert ids(registry) == ["later.op", "math.add", "own.add"]
                other.unregister("later.op")
                await poller.poll()
                assert ids(registry) == ["math.add", "own.add"]
            await poller.poll()
            await until("it is forgotten", lambda: ids(registry) == ["own.add"])


async def test_operations_that_disagree_are_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bus, registry, other = MemoryBus(), OperationRegistry(), OperationRegistry()
    other.query("math.add")(_nothing)
    other.query("other.op")(_nothing)
    async with (
        PendingRequestMap(MemoryTransport(bus)) as calls,
        PendingRequestMap(MemoryTransport(bus)) as first,
        PendingRequestMap(MemoryTransport(bus)) as second,
        CallHandler(adding(), first, name="first"),
        CallHandler(other, second, name="second"),
    ):
        remote = RemoteOperations(registry, calls)
        poller = DiscoveryPoller(calls, remote, registry, "me")
        for _ in range(2):
            await poller.poll()
        assert ids(registry) == ["math.add", "other.op"]
        assert [" of second at " in record.getMessage() for record in caplog.records] == [True]
        remote.clear()


async def test_a_broker_that_is_gone_for_a_while_is_looked_at_again() -> None:
    looks = 0
    over = asyncio.Event()

    class Failing(DiscoveryPoller):
        async def poll(self) -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                over.set()
            raise CallError(ErrorCode.UNAVAILABLE, "the broker is gone")

    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls:
        registry = OperationRegistry()
        looking = asyncio.create_task(Failing(calls, RemoteOperations(registry, calls), registry, "me").run(0.001))
        await asyncio.wait_for(over.wait(), 5)
        looking.cancel()
        await asyncio.wait([looking])


EVERYBODY = Identity(id="everybody", scopes=("*",))


async def test_over_a_broker_a_node_shows_what_others_serve(broker: str, meeting: Meeting) -> None:
    options: dict[str, Any] = {"heartbeat": BEAT, "prefix": token_hex(4), "anonymous": EVERYBODY}
    spoke = await meeting.spoke(broker, adding(), **options)
    node = await meeting.node(broker, adding("local"), refresh=0.1, linger=0.1, **options)
    assert ids(node.registry) == ["local.add", "math.add"]
    assert (await node.registry.execute("math.add", {"a": 1, "b": 2})).data == 3
    assert await node.call("math.add", {"a": 1, "b": 2}) == 3
    assert await spoke.call("local.add", {"a": 1, "b": 2}) == 3
    await spoke.drain()
    await until("it is shown no longer", lambda: ids(node.registry) == ["local.add"])
    await meeting.spoke(broker, adding("other"), **options)
    await until("a new one is shown", lambda: ids(node.registry) == ["local.add", "other.add"])


async def test_a_node_leaves_nothing_behind_if_its_first_discovery_fails(
    broker: str, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def poll(self: DiscoveryPoller) -> None:
        raise CallError(ErrorCode.UNAVAILABLE, "the broker has just gone")

    monkeypatch.setattr(DiscoveryPoller, "poll", poll)
    node = BrokerNode(adding(), broker, prefix=token_hex(4))
    with pytest.raises(CallError, match="has just gone"):
        await node.start()
    with pytest.raises(CallError, match="closed"):
        await node.calls.call("math.add", {"a": 1, "b": 2})


async def test_a_node_that_drains_lets_calls_finish(broker: str, meeting: Meeting) -> None:
    options: dict[str, Any] = {"heartbeat": BEAT, "prefix": token_hex(4), "anonymous": EVERYBODY}
    waiting = Waiting()
    node = await meeting.node(broker, waiting.registry, **options)
    caller = await meeting.spoke(broker, **options)
    call = asyncio.create_task(caller.call("slow.wait"))
    await soon("the handler begins", waiting.began.wait())
    draining = asyncio.create_task(node.drain(5))
    await until("no more calls are taken", lambda: node.handler.about().status == "draining")
    waiting.go.set()
    assert await soon("the call ends", call) == "done"
    assert await soon("the node is drained", draining)
    with pytest.raises(CallError) as failure:
        await caller.call("slow.wait")
    assert failure.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("url", "options", "complaint"),
    [
        ("ws://127.0.0.1:1", {}, "use Hub to listen"),
        ("carrier://pigeon", {}, "unknown URL scheme"),
        ("redis://127.0.0.1", {"refresh": 0}, "refresh"),
        ("redis://127.0.0.1", {"linger": -1}, "linger"),
    ],
)
def test_what_cannot_work_is_said_at_once(url: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        BrokerNode(None, url, **options)


async def _nothing() -> None:
    pass
