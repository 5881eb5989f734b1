"""Calls within one process. What holds for every transport is in the contract, tests/conformance/test_contract.py."""

from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.protocol import (
    LOCAL_IDENTITY,
    Address,
    CallCredit,
    CallEvent,
    CallHandler,
    CallRequested,
    PendingRequestMap,
)
from opwire.registry import OperationRegistry
from opwire.transports.memory import MemoryBus, MemoryTransport


class Log:
    """A receiver that records its events."""

    def __init__(self) -> None:
        self.events: list[CallEvent] = []
        self.senders: list[Address] = []
        self.lost_peers: list[Address | None] = []

    def received(self, event: CallEvent, sender: Address) -> None:
        self.events.append(event)
        self.senders.append(sender)

    def lost(self, peer: Address | None, reason: str) -> None:
        self.lost_peers.append(peer)


async def end(bus: MemoryBus, *operation_ids: str) -> tuple[MemoryTransport, Log]:
    transport, log = MemoryTransport(bus), Log()
    await transport.start(log)
    await transport.announce(operation_ids)
    return transport, log


def request(operation_id: str = "a.b", input: Any = None) -> CallRequested:
    return CallRequested(request_id="r", operation_id=operation_id, input=input)


async def test_events_arrive_at_once_as_the_very_same_object() -> None:
    """Events within one process travel by reference."""
    bus = MemoryBus()
    _, log = await end(bus, "a.b")
    caller, _ = await end(bus)
    event = request(input={"some": ["data"]})
    caller.request(event)
    assert log.events[0] is event


async def test_with_a_codec_events_arrive_as_equal_copies() -> None:
    """With `codec=True` every event within one process passes through the wire format."""
    bus = MemoryBus(codec=True)
    _, log = await end(bus, "a.b")
    caller, _ = await end(bus)
    event = request(input={"some": ["data"]})
    caller.request(event)
    assert log.events == [event]
    assert log.events[0] is not event
    assert log.events[0].input is not event.input  # pyright: ignore


async def test_with_a_codec_what_has_no_json_form_is_refused_where_it_is_sent() -> None:
    bus = MemoryBus(codec=True)
    _, log = await end(bus, "a.b")
    caller, _ = await end(bus)
    with pytest.raises(CallError) as failure:
        caller.request(request(input=object()))
    assert failure.value.code is ErrorCode.VALIDATION_ERROR
    assert log.events == []


async def test_a_request_has_its_server_and_its_sender() -> None:
    """No caller sees another's answers, even where both use the same request id."""
    bus = MemoryBus()
    server, server_log = await end(bus, "a.b")
    caller, caller_log = await end(bus)
    served_by = caller.request(request())
    asked_by = server_log.senders[0]
    assert served_by != asked_by
    server.send(CallCredit(request_id="r", n=1), asked_by)
    caller.send(CallCredit(request_id="r", n=2), served_by)
    assert caller_log.senders == [served_by]
    assert server_log.senders == [asked_by, asked_by]


async def test_ends_that_serve_the_same_operation_take_turns() -> None:
    bus = MemoryBus()
    ends = [await end(bus, "a.b") for _ in range(3)]
    caller, _ = await end(bus)
    for _ in range(9):
        caller.request(request())
    assert [len(log.events) for _, log in ends] == [3, 3, 3]


async def test_announcing_an_operation_again_gives_no_second_turn() -> None:
    bus = MemoryBus()
    twice, twice_log = await end(bus, "a.b")
    await twice.announce(["a.b"])
    _, once_log = await end(bus, "a.b")
    caller, _ = await end(bus)
    for _ in range(6):
        caller.request(request())
    assert (len(twice_log.events), len(once_log.events)) == (3, 3)


async def test_a_request_on_a_bus_without_servers_is_unavailable_at_once() -> None:
    caller, _ = await end(MemoryBus())
    with pytest.raises(CallError, match=r"no server on this bus serves a\.b") as failure:
        caller.request(request())
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_bus_serves_nothing_after_its_last_server_withdrew() -> None:
    bus = MemoryBus()
    server, _ = await end(bus, "a.b", "a.c")
    caller, _ = await end(bus)
    await server.withdraw(["a.b", "a.c", "a.never"])
    with pytest.raises(CallError) as failure:
        caller.request(request())
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_an_operation_without_a_server_is_not_found_where_others_are_served() -> None:
    bus, registry = MemoryBus(), OperationRegistry()

    @registry.query("math.add")
    async def add(a: int, b: int) -> int:
        return a + b

    server, caller = PendingRequestMap(MemoryTransport(bus)), PendingRequestMap(MemoryTransport(bus))
    async with server, CallHandler(registry, server), caller:
        with pytest.raises(CallError, match=r"did you mean math\.add") as failure:
            await caller.call("math.ad")
    assert failure.value.code is ErrorCode.OPERATION_NOT_FOUND


async def test_a_closed_end_receives_nothing_and_its_peers_learn_that_it_is_gone_once() -> None:
    bus = MemoryBus()
    closed, closed_log = await end(bus, "a.b")
    peer, peer_log = await end(bus)
    address = peer.request(request())
    await closed.close()
    await closed.close()
    assert peer_log.lost_peers == [address]
    assert closed_log.lost_peers == []
    with pytest.raises(CallError) as failure:
        peer.send(CallCredit(request_id="r", n=1), address)
    assert failure.value.code is ErrorCode.UNAVAILABLE
    assert len(closed_log.events) == 1


async def test_an_end_that_was_never_started_neither_sends_nor_withdraws() -> None:
    transport = MemoryTransport(MemoryBus())
    await transport.withdraw(["a.b"])
    await transport.close()
    with pytest.raises(CallError) as failure:
        transport.request(request())
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_an_end_that_is_started_again_after_closing_has_another_address() -> None:
    bus = MemoryBus()
    server, log = await end(bus, "a.b")
    caller, _ = await end(bus)
    first = caller.request(request())
    await server.close()
    await server.start(log)
    await server.announce(["a.b"])
    assert caller.request(request()) != first
    assert len(log.events) == 2


async def test_the_servers_of_a_bus_are_listed_once_each() -> None:
    bus = MemoryBus()
    one, _ = await end(bus, "a.b", "a.c")
    two, _ = await end(bus, "a.b")
    caller, _ = await end(bus)
    assert await caller.servers() == ["memory-1", "memory-2"]
    await one.withdraw(["a.b"])
    assert set(await caller.servers()) == {"memory-1", "memory-2"}
    await one.withdraw(["a.c"])
    await two.close()
    assert await caller.servers() == []
    await caller.close()
    with pytest.raises(CallError) as failure:
        await caller.servers()
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_request_with_an_address_goes_there_regardless_of_other_servers() -> None:
    bus = MemoryBus()
    _, served = await end(bus, "a.b")
    _, directed = await end(bus)
    caller, _ = await end(bus)
    caller.send(request(), "memory-2")
    assert (served.events, directed.events) == ([], [request()])


async def test_an_event_without_an_address_has_nowhere_to_go() -> None:
    caller, _ = await end(MemoryBus())
    with pytest.raises(CallError) as failure:
        caller.send(CallCredit(request_id="r", n=1), None)
    assert failure.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize(("spare", "passes"), [(0, True), (-1, False)])
async def test_the_limit_is_exact_and_counts_the_whole_message(spare: int, passes: bool) -> None:
    size = len(b'{"type":"call.requested","requestId":"r","operationId":"a.b","input":"xxxx"}')
    bus = MemoryBus(codec=True, max_message=size + spare)
    _, log = await end(bus, "a.b")
    caller, _ = await end(bus)
    if passes:
        caller.request(request(input="xxxx"))
        assert len(log.events) == 1
        return
    with pytest.raises(CallError) as failure:
        caller.request(request(input="xxxx"))
    assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert failure.value.details == {"bytes": size, "limit": size - 1}
    assert log.events == []


@pytest.mark.parametrize(("stated", "seen"), [(None, LOCAL_IDENTITY.id), (Identity(id="ann", scopes=("x",)), "ann")])
async def test_the_identity_that_a_caller_states_is_believed(stated: Identity | None, seen: str) -> None:
    bus, registry = MemoryBus(), OperationRegistry()

    @registry.query("who.asks", access=AccessControl(required_scopes=("x",)))
    async def asks(context: Context) -> str:
        assert context.identity is not None
        return context.identity.id

    server, caller = PendingRequestMap(MemoryTransport(bus)), PendingRequestMap(MemoryTransport(bus))
    async with server, CallHandler(registry, server), caller:
        envelope = await caller.call("who.asks", {}, context=Context(identity=stated))
    assert envelope.data == seen
