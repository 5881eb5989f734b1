"""A hub on a broker looks around; here on a bus in this process."""

import asyncio

import pytest

from opwire.call import CallHandler, PendingRequestMap
from opwire.errors import CallError, ErrorCode
from opwire.hub.remote_operations import Lookout, Mirror
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.hub.scene import adding, ids
from tests.requirements import requirement
from tests.transports.websocket.ends import until


@requirement("hub.broker")
async def test_what_is_served_is_shown_and_what_is_not_any_more_is_hidden() -> None:
    bus, registry, other = MemoryBus(), adding("own"), adding()
    async with PendingRequestMap(MemoryTransport(bus)) as calls, PendingRequestMap(MemoryTransport(bus)) as peer:
        mirror = Mirror(registry, calls, linger=0)
        async with CallHandler(registry, calls, serves=lambda spec: spec.id not in mirror) as handler:
            lookout = Lookout(calls, mirror, registry, handler.about().id)
            other.query("later.op")(_nothing)
            other.query("own.add")(_nothing)  # which the hub serves, too
            async with CallHandler(other, peer):
                await lookout.look()
                assert ids(registry) == ["later.op", "math.add", "own.add"]
                other.unregister("later.op")
                await lookout.look()
                assert ids(registry) == ["math.add", "own.add"]
            await lookout.look()
            await until("it is forgotten", lambda: ids(registry) == ["own.add"])


@requirement("hub.broker")
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
        mirror = Mirror(registry, calls)
        lookout = Lookout(calls, mirror, registry, "me")
        for _ in range(2):
            await lookout.look()
        assert ids(registry) == ["math.add", "other.op"]
        assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["second"]
        mirror.clear()


@requirement("hub.broker")
async def test_a_broker_that_is_gone_for_a_while_is_looked_at_again() -> None:
    looks = 0
    over = asyncio.Event()

    class Failing(Lookout):
        async def look(self) -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                over.set()
            raise CallError(ErrorCode.UNAVAILABLE, "the broker is gone")

    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls:
        registry = OperationRegistry()
        looking = asyncio.create_task(Failing(calls, Mirror(registry, calls), registry, "me").keep_looking(0.001))
        await asyncio.wait_for(over.wait(), 5)
        looking.cancel()
        await asyncio.wait([looking])


async def _nothing() -> None:
    pass
