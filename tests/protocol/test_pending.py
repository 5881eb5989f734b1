"""The calling side: every call ends in exactly one way, and its server learns when it is over."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import date
from typing import Any

import pytest
from msgspec.structs import replace

from opwire import (
    AccessControl,
    CallError,
    Context,
    ConversionError,
    ErrorCode,
    Identity,
    OperationRegistry,
    OperationSpec,
    local_envelope,
)
from opwire.errors import UsageError
from opwire.model.context import Inbound
from opwire.model.operation import Handler
from opwire.protocol import (
    LOCAL_IDENTITY,
    CallAborted,
    CallAnswer,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallHandler,
    CallRequested,
    CallResponded,
    Overflow,
    PendingRequestMap,
    call_table,
)
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.protocol.harness import SHORT, Recorder, call_error, connected_ends, peer, settled, until, within

REFUSALS = [ErrorCode.UNAVAILABLE, ErrorCode.ABORTED]


@pytest.fixture
def registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("math.add")
    async def add(a: int, b: int) -> int:
        return a + b

    @registry.subscription("clock.ticks")
    async def ticks(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield each

    return registry


class Wire:
    """A caller under test, and a server with events that the test chooses."""

    def __init__(self, bus: MemoryBus, calls: PendingRequestMap, server: MemoryTransport, seen: Recorder) -> None:
        self.bus = bus
        self.calls = calls
        self.server = server
        self.seen = seen

    async def request(self) -> CallRequested:
        """The latest request, as soon as there is one."""
        await until(lambda: any(isinstance(event, CallRequested) for event in self.seen.events))
        return next(event for event in reversed(self.seen.events) if isinstance(event, CallRequested))

    def says(self, *events: CallEvent) -> None:
        for event in events:
            self.server.send(event, self.seen.senders[0])

    def told(self, kind: type[Any]) -> list[Any]:
        """The events of one kind that the server received."""
        return [event for event in self.seen.events if isinstance(event, kind)]


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    bus = MemoryBus()
    server, seen = await peer(bus, "a.b")
    async with PendingRequestMap(MemoryTransport(bus), window=4) as calls:
        yield Wire(bus, calls, server, seen)
    assert calls.open_calls == 0


def items(request: CallRequested, *numbers: int) -> list[CallEvent]:
    return [CallResponded(request_id=request.request_id, output=local_envelope(n, "a.b"), seq=n) for n in numbers]


def answer(request: CallRequested, data: Any = 3) -> CallResponded:
    return CallResponded(request_id=request.request_id, output=local_envelope(data, "a.b"))


# --- call and subscribe -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [False, True])
async def test_a_call_gives_the_envelope_that_the_operation_answered_with(
    registry: OperationRegistry, codec: bool
) -> None:
    async with connected_ends(registry, bus=MemoryBus(codec=codec)) as here:
        envelope = await within(here.client.call("math.add", {"a": 1, "b": 2}))
        assert (envelope.data, envelope.meta.source, envelope.meta.operation_id) == (3, "local", "math.add")
        assert here.at_rest


@pytest.mark.parametrize("codec", [False, True])
async def test_a_subscription_gives_one_envelope_an_item_in_order_and_ends(
    registry: OperationRegistry, codec: bool
) -> None:
    async with connected_ends(registry, bus=MemoryBus(codec=codec)) as here:
        assert await here.items("clock.ticks", {"n": 300}) == list(range(300))
        assert await here.items("clock.ticks", {"n": 0}) == []
        async with asyncio.timeout(10):
            sources = {each.meta.source async for each in here.client.subscribe("clock.ticks", {"n": 3})}
        assert sources == {"local"}


async def test_a_thousand_calls_at_once_get_each_its_own_answer(registry: OperationRegistry) -> None:
    async with connected_ends(registry, bus=MemoryBus(codec=True)) as here:
        answers = await within(asyncio.gather(*(here.call("math.add", {"a": n, "b": n}) for n in range(1_000))))
        assert answers == [2 * n for n in range(1_000)]
        assert here.at_rest


async def test_a_request_carries_what_its_context_knows(wire: Wire) -> None:
    """A request carries request id, parent, identity and input of its context."""
    context = Context(request_id="mine", parent_request_id="parent", identity=Identity(id="ann", scopes=("read",)))
    call = asyncio.ensure_future(wire.calls.call("a.b", [1], context=context))
    request = await wire.request()
    assert (request.request_id, request.parent_request_id, request.input) == ("mine", "parent", [1])
    assert request.identity == Identity(id="ann", scopes=("read",))
    assert request.credits is None
    wire.says(answer(request))
    assert (await within(call)).data == 3


async def test_no_request_id_is_used_twice_even_where_contexts_are(registry: OperationRegistry) -> None:
    seen: list[str | None] = []

    @registry.query("who.am_i")
    async def am_i(context: Context) -> str:
        seen.append(context.request_id)
        return "you"

    async with connected_ends(registry) as here:
        context = Context(request_id="same")
        for _ in range(3):
            assert await here.call("who.am_i", context=context) == "you"
        await within(asyncio.gather(*(here.call("who.am_i", context=context) for _ in range(3))))
    assert seen[0] == "same"
    assert len(set(seen)) == 6


async def test_the_memory_for_request_ids_is_bounded(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwire.protocol.pending.MAX_REMEMBERED_IDS", 10)

    async def id_of_call(context_id: str) -> str:
        with pytest.raises(CallError):
            await wire.calls.call("a.b", context=Context(request_id=context_id), timeout=0.0001)
        return wire.told(CallRequested)[-1].request_id

    for number in range(30):
        assert await id_of_call(f"r{number}") == f"r{number}"
    assert await id_of_call("r29") != "r29", "it is remembered"
    assert await id_of_call("r0") == "r0", "it is forgotten"


# --- outcomes ---------------------------------------------------------------------------------------------------------


async def test_a_failure_is_raised_as_the_error_that_it_was(wire: Wire) -> None:
    """A CallError is the same at the caller as where it was raised."""
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    request = await wire.request()
    error = CallError("RATE_LIMITED", "slowly", {"per": "minute"}, retry_after=2)
    wire.says(CallFailed.of(request.request_id, error))
    raised = await call_error(call)
    assert (raised.code, raised.message, raised.details) == (ErrorCode.RATE_LIMITED, "slowly", {"per": "minute"})
    assert (raised.retryable, raised.retry_after) == (True, 2)


async def test_the_first_answer_counts_and_all_later_ones_are_dropped(wire: Wire) -> None:
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    request = await wire.request()
    late = CallFailed(request_id=request.request_id, code="INTERNAL", message="too late")
    wire.says(answer(request, 1), answer(request, 2), late, CallAborted(request_id=request.request_id))
    assert (await within(call)).data == 1
    assert wire.calls.dropped_events == {"unknown": 3}


async def test_an_answer_of_a_third_party_is_dropped_and_counted(wire: Wire) -> None:
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    request = await wire.request()
    stranger, _ = await peer(wire.bus)
    for forged in (answer(request, "forged"), CallAborted(request_id=request.request_id)):
        stranger.send(forged, wire.seen.senders[0])
    await settled()
    assert not call.done()
    assert wire.calls.dropped_events == {"foreign": 2}
    wire.says(answer(request, "true"))
    assert (await within(call)).data == "true"


async def test_an_unanswered_call_ends_at_its_deadline_and_its_server_is_notified(wire: Wire) -> None:
    error = await call_error(wire.calls.call("a.b", timeout=SHORT))
    assert error.code is ErrorCode.TIMEOUT
    request = await wire.request()
    assert wire.told(CallAborted) == [CallAborted(request_id=request.request_id, reason="the deadline has passed")]
    wire.says(answer(request))
    assert wire.calls.dropped_events == {"unknown": 1}


async def test_the_remaining_time_and_the_deadline_travel_with_a_call(wire: Wire) -> None:
    before = time.time() * 1000
    call = asyncio.ensure_future(wire.calls.call("a.b", timeout=12))
    request = await wire.request()
    assert request.timeout_ms is not None
    assert request.deadline is not None
    assert 11_000 < request.timeout_ms <= 12_000
    assert before + 11_000 < request.deadline <= time.time() * 1000 + 12_001
    wire.says(answer(request))
    await within(call)


@pytest.mark.parametrize(("inherited", "own", "most"), [(5, 60, 5_000), (60, 5, 5_000), (None, None, 30_000)])
async def test_a_deadline_only_ever_shrinks(
    wire: Wire, inherited: float | None, own: float | None, most: float
) -> None:
    """A call has the shorter of its own and its context's deadline."""
    context = Context().within(inherited)
    call = asyncio.ensure_future(wire.calls.call("a.b", context=context, timeout=own))
    request = await wire.request()
    assert request.timeout_ms is not None
    assert most - 1_000 < request.timeout_ms <= most
    wire.says(answer(request))
    await within(call)


async def test_a_call_has_a_deadline_of_30_seconds_unless_told_otherwise_and_a_subscription_none(wire: Wire) -> None:
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    request = await wire.request()
    assert request.timeout_ms is not None
    assert 29_000 < request.timeout_ms <= 30_000
    wire.says(answer(request))
    await within(call)
    async with aclosing(wire.calls.subscribe("a.b")) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        await until(lambda: len(wire.told(CallRequested)) == 2)
        subscribed = wire.told(CallRequested)[1]
        assert (subscribed.timeout_ms, subscribed.deadline) == (None, None)
        wire.says(*items(subscribed, 1))
        assert (await within(waiting)).data == 1


async def test_a_call_past_its_deadline_is_not_even_sent(wire: Wire) -> None:
    past = Context(deadline=time.monotonic() - 1)
    assert (await call_error(wire.calls.call("a.b", context=past))).code is ErrorCode.TIMEOUT
    assert (await call_error(anext(wire.calls.subscribe("a.b", context=past)))).code is ErrorCode.TIMEOUT
    assert (await call_error(wire.calls.call("a.b", timeout=0))).code is ErrorCode.TIMEOUT
    assert wire.seen.events == []


async def test_a_call_without_a_server_fails_at_once(wire: Wire) -> None:
    async with PendingRequestMap(MemoryTransport(MemoryBus())) as lonely:
        error = await call_error(lonely.call("a.b"))
        assert error.code is ErrorCode.UNAVAILABLE
        assert error.retryable
        assert (await call_error(anext(lonely.subscribe("a.b")))).code is ErrorCode.UNAVAILABLE
        assert lonely.open_calls == 0


async def test_an_end_that_serves_nothing_refuses_what_reaches_it() -> None:
    bus = MemoryBus()
    transport = MemoryTransport(bus)
    async with PendingRequestMap(transport) as idle, PendingRequestMap(MemoryTransport(bus)) as calls:
        await transport.announce(["a.b"])
        error = await call_error(calls.call("a.b"))
        assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, "nothing is served here")
        assert idle.open_calls == 0


async def test_calls_to_a_peer_that_is_lost_end_at_once_and_what_arrived_is_still_consumed(wire: Wire) -> None:
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    stream = wire.calls.subscribe("a.b")
    first = asyncio.ensure_future(anext(stream))
    await until(lambda: len(wire.told(CallRequested)) == 2)
    wire.says(*items(wire.told(CallRequested)[1], 1, 2))
    assert (await within(first)).data == 1
    await wire.server.close()
    error = await call_error(call)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message == "the peer left the bus before the call ended"
    assert (await within(anext(stream))).data == 2
    assert (await call_error(anext(stream))).code is ErrorCode.UNAVAILABLE


async def test_closing_ends_every_pending_call_at_once_with_unavailable(wire: Wire) -> None:
    calls = [asyncio.ensure_future(wire.calls.call("a.b")) for _ in range(50)]
    streams = [wire.calls.subscribe("a.b") for _ in range(50)]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await until(lambda: len(wire.told(CallRequested)) == 100)
    await within(wire.calls.close())
    errors = await within(asyncio.gather(*calls, *waiting, return_exceptions=True))
    assert {error.code for error in errors} == {ErrorCode.UNAVAILABLE}
    assert (await call_error(wire.calls.call("a.b"))).message == "the connection is closed"
    assert (await call_error(anext(wire.calls.subscribe("a.b")))).code is ErrorCode.UNAVAILABLE


# --- giving up --------------------------------------------------------------------------------------------------------


async def test_abort_ends_a_pending_call_and_has_its_handler_stopped(wire: Wire) -> None:
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    request = await wire.request()
    assert wire.calls.abort(request.request_id, "changed my mind")
    error = await call_error(call)
    assert (error.code, error.message) == (ErrorCode.ABORTED, "changed my mind")
    assert wire.told(CallAborted) == [CallAborted(request_id=request.request_id, reason="changed my mind")]
    assert not wire.calls.abort(request.request_id)
    assert not wire.calls.abort("never made")
    assert len(wire.told(CallAborted)) == 1


async def test_abort_ends_a_subscription_too(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b")
    waiting = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    assert wire.calls.abort(request.request_id)
    assert (await call_error(waiting)).code is ErrorCode.ABORTED
    assert len(wire.told(CallAborted)) == 1


async def test_a_caller_that_is_cancelled_has_the_handler_on_the_other_side_stopped(wire: Wire) -> None:
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    request = await wire.request()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(call)
    assert wire.told(CallAborted) == [CallAborted(request_id=request.request_id, reason="the caller gave up")]
    assert wire.calls.open_calls == 0


@pytest.mark.parametrize("outcome", ["answer", "error"])
async def test_an_answer_in_the_very_moment_of_the_cancellation_leaves_nothing_behind(wire: Wire, outcome: str) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    call = asyncio.ensure_future(wire.calls.call("a.b"))
    request = await wire.request()
    wire.says(
        answer(request) if outcome == "answer" else CallFailed(request_id=request.request_id, code="", message="")
    )
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(call)
    del call
    gc.collect()
    await settled()
    assert complaints == []
    assert wire.told(CallAborted) == []


@pytest.mark.parametrize("how", ["break", "aclose", "cancel", "exception"])
async def test_leaving_a_subscription_early_stops_it_on_the_other_side(wire: Wire, how: str) -> None:
    reached = asyncio.Event()

    async def consume() -> None:
        async with aclosing(wire.calls.subscribe("a.b")) as stream:
            async for _ in stream:
                reached.set()
                if how == "break":
                    break
                if how == "aclose":
                    return
                if how == "exception":
                    raise KeyError
                await asyncio.Event().wait()

    consumer = asyncio.ensure_future(consume())
    request = await wire.request()
    wire.says(*items(request, 1))
    await within(reached.wait())
    if how == "cancel":
        consumer.cancel()
    await within(asyncio.wait([consumer]))
    assert consumer.cancelled() == (how == "cancel")
    if how == "exception":
        assert isinstance(consumer.exception(), KeyError)
    assert wire.told(CallAborted) == [CallAborted(request_id=request.request_id, reason="the consumer left")]


async def test_a_loop_that_is_left_without_closing_its_stream_stops_it_all_the_same(wire: Wire) -> None:
    async def first() -> Any:
        async for envelope in wire.calls.subscribe("a.b"):
            return envelope.data
        return None

    consumer = asyncio.ensure_future(first())
    wire_request = await wire.request()
    wire.says(*items(wire_request, 1))
    assert await within(consumer) == 1
    gc.collect()
    await until(lambda: len(wire.told(CallAborted)) == 1)


async def test_a_subscription_that_is_never_consumed_is_never_requested(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b")
    await settled()
    await stream.aclose()
    assert wire.seen.events == []


# --- subscriptions: order, credits, overflow --------------------------------------------------------------------------


async def test_a_subscription_asks_for_a_window_and_tops_it_up_at_half(wire: Wire) -> None:
    async with aclosing(wire.calls.subscribe("a.b")) as stream:
        waiting = asyncio.ensure_future(anext(stream))
        request = await wire.request()
        assert request.credits == 4
        wire.says(*items(request, 1, 2, 3, 4))
        assert (await within(waiting)).data == 1
        assert (await within(anext(stream))).data == 2
        assert wire.told(CallCredit) == [], "the second item is still in the consumer's hands"
        assert (await within(anext(stream))).data == 3
        assert wire.told(CallCredit) == [CallCredit(request_id=request.request_id, n=2, total=6, received=4)]
        assert (await within(anext(stream))).data == 4
        assert len(wire.told(CallCredit)) == 1


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_in_which_no_item_fits_is_refused_at_once(window: int) -> None:
    with pytest.raises(UsageError, match="window"):
        PendingRequestMap(MemoryTransport(MemoryBus()), window=window)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_an_invalid_default_timeout_is_rejected_at_once(timeout: float) -> None:
    with pytest.raises(UsageError, match="timeout"):
        PendingRequestMap(MemoryTransport(MemoryBus()), timeout=timeout)


async def test_a_stream_that_has_ended_gets_no_more_credits(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = asyncio.ensure_future(anext(stream := wire.calls.subscribe("a.b")))
    request = await wire.request()
    wire.says(*items(request, 1, 2, 3), CallCompleted(request_id=request.request_id, seq=3))
    found = [(await within(consumer)).data]
    sent: list[CallEvent] = []
    monkeypatch.setattr(wire.calls.transport, "send", lambda event, to: sent.append(event))
    async for envelope in stream:
        found.append(envelope.data)
    assert found == [1, 2, 3]
    assert sent == []


@pytest.mark.parametrize("numbered", [True, False])
async def test_a_producer_that_ignores_its_credits_is_consumed_like_any_other(wire: Wire, numbered: bool) -> None:
    stream = wire.calls.subscribe("a.b")
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    wire.says(*[event if numbered else replace(event, seq=None) for event in items(request, *range(1, 301))])
    wire.says(CallCompleted(request_id=request.request_id))
    assert [(await within(consumer)).data] + [item.data async for item in stream] == list(range(1, 301))


async def test_a_producer_that_ignores_its_credits_is_stopped_when_too_many_bytes_are_buffered(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b")
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    for n in range(1, 30):
        output = local_envelope("x" * 500_000, "a.b")
        wire.says(CallResponded(request_id=request.request_id, output=output, seq=n))
    await within(consumer)
    with pytest.raises(CallError, match="is too slow") as caught:
        _ = [item async for item in stream]
    assert caught.value.code is ErrorCode.ABORTED
    assert wire.told(CallAborted)[0].reason == "the consumer is too slow"


class Lossy(MemoryTransport):
    """A transport that may lose events; `refuses` fails what is sent."""

    lossy = True  # type: ignore[assignment]
    refuses = 0

    def send(self, event: CallEvent, to: str | None) -> None:
        if isinstance(event, CallCredit) and self.refuses:
            self.refuses -= 1
            raise CallError("RATE_LIMITED", "the buffer is full")
        super().send(event, to)


@pytest.mark.parametrize("transport", [Lossy, MemoryTransport])
async def test_a_consumer_that_waits_repeats_its_grant_and_what_it_received(
    monkeypatch: pytest.MonkeyPatch, transport: type[MemoryTransport]
) -> None:
    monkeypatch.setattr(call_table, "_FIRST_STALL_SECONDS", 0.01)
    bus = MemoryBus()
    server, seen = await peer(bus, "a.b")
    async with PendingRequestMap(transport(bus), window=4) as calls:
        wire = Wire(bus, calls, server, seen)
        stream = calls.subscribe("a.b")
        consumer = asyncio.ensure_future(anext(stream))
        request = await wire.request()
        if transport is MemoryTransport:  # nothing is lost here, and nothing repeated
            await asyncio.sleep(0.1)
            assert wire.told(CallCredit) == []
            wire.says(*items(request, 1))
        else:
            await until_later(lambda: len(wire.told(CallCredit)) == 2)
            wire.says(*items(request, 1))
            repeated = CallCredit(request_id=request.request_id, n=0, total=4, received=0)
            assert wire.told(CallCredit)[:2] == [repeated, repeated]
        assert (await within(consumer)).data == 1
        await stream.aclose()


async def test_a_grant_that_the_transport_refuses_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_table, "_FIRST_STALL_SECONDS", 0.01)
    monkeypatch.setattr(Lossy, "lossy", False)
    bus = MemoryBus()
    server, seen = await peer(bus, "a.b")
    transport = Lossy(bus)
    transport.refuses = 2
    async with PendingRequestMap(transport, window=2) as calls:
        wire = Wire(bus, calls, server, seen)
        stream = calls.subscribe("a.b")
        consumer = asyncio.ensure_future(anext(stream))
        request = await wire.request()
        wire.says(*items(request, 1, 2))
        assert (await within(consumer)).data == 1
        assert (await within(anext(stream))).data == 2
        consumer = asyncio.ensure_future(anext(stream))
        await until_later(lambda: bool(wire.told(CallCredit)))
        assert wire.told(CallCredit) == [CallCredit(request_id=request.request_id, n=0, total=4, received=2)]
        wire.says(CallCompleted(request_id=request.request_id, seq=2))
        with pytest.raises(StopAsyncIteration):
            await within(consumer)


async def until_later(condition: Callable[[], bool]) -> None:
    """Wait for something that a timer brings about."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


# --- delegation -------------------------------------------------------------------------------------------------------

ANN = Identity(id="ann", scopes=("read",))


class Remote(MemoryTransport):
    """A transport that proves the identity of its own end, as a connection to a hub does."""

    local = vouches = False  # type: ignore[assignment]


async def sent(calls: PendingRequestMap, seen: Recorder, context: Context | None) -> CallRequested:
    call = asyncio.ensure_future(calls.call("a.b", None, context=context))
    await until(lambda: bool(seen.events) or call.done())
    call.cancel()
    await asyncio.wait([call])
    if not seen.events:
        call.result()
    event = seen.events[0]
    seen.events.clear()
    assert isinstance(event, CallRequested)
    return event


@pytest.mark.parametrize("transport", [MemoryTransport, Remote])
async def test_the_context_of_a_served_call_makes_a_call_its_child(transport: type[MemoryTransport]) -> None:
    bus = MemoryBus()
    _, seen = await peer(bus, "a.b")
    async with PendingRequestMap(transport(bus)) as calls:
        served = Context(request_id="r1", identity=ANN, inbound=Inbound("r1", calls)).within(5)
        for context in (served, served.child(), served.child().child()):
            event = await sent(calls, seen, context)
            assert (event.parent_request_id, event.identity) == ("r1", ANN)
            assert event.request_id not in ("r1", context.request_id)
            assert event.timeout_ms is not None
            assert event.timeout_ms <= 5_000


@pytest.mark.parametrize(
    "identity", [ANN, None, Identity(id="local", scopes=("*",))], ids=["known", "anonymous", "posing"]
)
@pytest.mark.parametrize("connection", [None, object()], ids=["surface", "another connection"])
async def test_a_connection_that_cannot_carry_the_callers_identity_refuses(identity: Any, connection: Any) -> None:
    bus = MemoryBus()
    _, seen = await peer(bus, "a.b")
    async with PendingRequestMap(Remote(bus)) as calls:
        served = Context(request_id="r1", identity=identity, inbound=Inbound("r1", connection))
        for context in (served, served.child()):
            error = await call_error(calls.call("a.b", None, context=context))
            assert error.code is ErrorCode.ACCESS_DENIED
            assert "detached()" in error.message
            with pytest.raises(CallError, match="detached"):
                await within(anext(calls.subscribe("a.b", None, context=context)))
        await settled()
        assert seen.events == []
        event = await sent(calls, seen, served.within(5).detached())
        assert (event.parent_request_id, event.identity) == (None, None)
        assert event.timeout_ms is not None
        assert event.timeout_ms <= 5_000


async def test_a_stated_identity_is_refused_where_peers_would_not_believe_it() -> None:
    bus = MemoryBus()
    _, seen = await peer(bus, "a.b")
    async with PendingRequestMap(Remote(bus)) as calls:
        assert (
            await call_error(calls.call("a.b", None, context=Context(identity=ANN)))
        ).code is ErrorCode.ACCESS_DENIED
        for own in (None, Context(), Context(identity=LOCAL_IDENTITY), Context(request_id="mine")):
            event = await sent(calls, seen, own)
            assert (event.parent_request_id, event.identity) == (None, None)


async def test_a_producer_that_missed_the_end_of_its_consumer_is_notified_again_with_its_next_item(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b")
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    wire.says(*items(request, 1))
    await within(consumer)
    await stream.aclose()
    wire.seen.events.clear()
    wire.says(*items(request, 2))
    assert [event.request_id for event in wire.told(CallAborted)] == [request.request_id]


POLICIES: list[tuple[Overflow, list[int], int]] = [
    ("drop_oldest", [7, 8, 9, 10], 6),
    ("drop_newest", [1, 2, 3, 4], 6),
    ("latest", [10], 9),
]


@pytest.mark.parametrize(("overflow", "kept", "dropped"), POLICIES)
async def test_a_stream_that_must_not_be_slowed_down_is_thinned_out_as_its_policy_says(
    wire: Wire, overflow: Overflow, kept: list[int], dropped: int
) -> None:
    stream = wire.calls.subscribe("a.b", overflow=overflow)
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    assert request.credits == 2**53 - 1
    wire.says(*items(request, *range(1, 11)), CallCompleted(request_id=request.request_id, seq=10))
    found = [(await within(consumer)).data]
    async for envelope in stream:
        found.append(envelope.data)
    assert found == kept
    assert wire.calls.dropped_items == dropped
    assert wire.told(CallCredit) == wire.told(CallAborted) == []


async def test_with_the_policy_error_a_full_buffer_ends_the_stream_after_what_it_holds(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b", overflow="error")
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    wire.says(*items(request, 1, 2, 3, 4, 5))
    assert (await within(consumer)).data == 1
    assert [(await within(anext(stream))).data for _ in range(3)] == [2, 3, 4]
    assert (await call_error(anext(stream))).code is ErrorCode.ABORTED
    assert len(wire.told(CallAborted)) == 1


async def test_a_lost_item_ends_the_stream_on_both_sides(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b")
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    wire.says(*items(request, 1, 3))
    assert (await within(consumer)).data == 1
    error = await call_error(anext(stream))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "item 2" in error.message
    assert [event.request_id for event in wire.told(CallAborted)] == [request.request_id]


async def test_a_stream_that_pauses_longer_than_its_idle_limit_ends_and_its_server_is_notified(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b", idle_timeout=SHORT)
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    wire.says(*items(request, 1))
    assert (await within(consumer)).data == 1
    error = await call_error(anext(stream))
    assert error.code is ErrorCode.TIMEOUT
    assert "a.b gave no item" in error.message
    assert len(wire.told(CallAborted)) == 1


async def test_a_stream_with_a_deadline_ends_at_it_however_busy_it_is(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b", timeout=SHORT)
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    assert request.timeout_ms is not None
    sent = 0

    async def busy() -> None:
        nonlocal sent
        await consumer
        async for _ in stream:
            sent += 1
            wire.says(*items(request, sent + 2))

    wire.says(*items(request, 1, 2))
    assert (await call_error(busy())).code is ErrorCode.TIMEOUT
    assert len(wire.told(CallAborted)) == 1


# --- one server of several --------------------------------------------------------------------------------------------


async def test_a_directed_call_and_its_stream_go_to_one_server_and_never_to_another(wire: Wire) -> None:
    other, seen = await peer(wire.bus, "a.b")
    (_, address) = await wire.calls.transport.servers()
    call = asyncio.ensure_future(wire.calls.call("a.b", to=address))
    stream = wire.calls.subscribe("a.b", to=address)
    item = asyncio.ensure_future(anext(stream))
    await until(lambda: len(seen.events) == 2)
    request, streamed = seen.events
    refusal = CallFailed(request_id=request.request_id, code="UNAVAILABLE", message="leaving", not_started=True)
    other.send(refusal, seen.senders[0])
    assert (await call_error(call)).message == "leaving"
    other.send(items(streamed, 1)[0], seen.senders[0])
    assert (await within(item)).data == 1
    await stream.aclose()
    assert wire.seen.events == []
    await other.close()
    assert (await call_error(wire.calls.call("a.b", to=address))).code is ErrorCode.UNAVAILABLE


async def test_a_subscription_that_was_not_begun_is_asked_of_another_server_with_all_its_credits(wire: Wire) -> None:
    other, seen = await peer(wire.bus, "a.b")
    stream = wire.calls.subscribe("a.b", timeout=60)
    item = asyncio.ensure_future(anext(stream))
    first = await wire.request()
    watched: list[CallEvent] = []
    wire.calls.observe(watched.append)
    wire.says(CallFailed(request_id=first.request_id, code="UNAVAILABLE", message="leaving", not_started=True))
    (again,) = seen.events
    assert (again.request_id, again.credits, again.deadline) == (first.request_id, 4, first.deadline)
    await settled()
    assert names(watched) == ["call.error", "call.requested"]
    assert first.timeout_ms is not None
    assert 0 < again.timeout_ms <= first.timeout_ms + 1
    wire.says(items(first, 1)[0])  # the server that rejected it is ignored from here on
    assert not item.done()
    other.send(items(again, 1)[0], seen.senders[0])
    assert (await within(item)).data == 1
    await stream.aclose()
    assert [type(event) for event in seen.events[1:]] == [CallAborted]


# --- answering --------------------------------------------------------------------------------------------------------

NOT_ENVELOPES = [
    None,
    3,
    "text",
    [],
    {},
    {"data": 3},
    {"meta": {"source": "local"}},
    {"data": 3, "meta": {"source": "ftp"}},
    {"data": 3, "meta": {"source": "local"}},
    {"data": 3, "meta": {"source": "http", "statusCode": "200", "headers": {}, "contentType": ""}},
]


class Asked:
    """Takes requests, and leaves their answers to the test."""

    def __init__(self) -> None:
        self.requests: list[tuple[CallRequested, str]] = []

    def requested(self, event: CallRequested, caller: str) -> None:
        self.requests.append((event, caller))

    def granted(self, event: CallCredit, caller: str) -> None: ...
    def answered(self, event: CallAnswer, caller: str) -> None: ...
    def aborted(self, event: CallAborted, caller: str) -> None: ...
    def lost(self, caller: str | None) -> None: ...
    def describe(self) -> Any: ...


@pytest.fixture
async def asked() -> AsyncIterator[tuple[PendingRequestMap, Asked, MemoryTransport, Recorder]]:
    bus = MemoryBus(codec=True, max_message=2_000)
    transport = MemoryTransport(bus)
    async with PendingRequestMap(transport) as calls:
        server = Asked()
        calls.serve_with(server)
        await transport.announce(["a.b"])
        caller, seen = await peer(bus)
        caller.request(CallRequested(request_id="r", operation_id="a.b"))
        yield calls, server, caller, seen


Answering = tuple[PendingRequestMap, Asked, MemoryTransport, Recorder]


@pytest.mark.parametrize("output", NOT_ENVELOPES, ids=str)
async def test_respond_raises_on_anything_that_is_not_a_readable_envelope(asked: Answering, output: Any) -> None:
    calls, _, _, seen = asked
    with pytest.raises(ConversionError):
        calls.respond("r", output)
    assert seen.events == []
    assert calls.respond("r", local_envelope(3, "a.b")), "the request is still to be answered"
    assert [event.output.data for event in seen.events] == [3]


async def test_respond_is_public_and_takes_an_envelope_in_wire_form_too(asked: Answering) -> None:
    calls, _, _, seen = asked
    meta = {"source": "local", "operationId": "a.b", "timestamp": 5}
    assert calls.respond("r", {"data": b"raw".hex(), "meta": meta})
    assert seen.events[0].output.data == "726177"
    assert seen.events[0].output.meta.timestamp == 5


async def test_a_request_is_answered_once_and_unknown_ones_not_at_all(asked: Answering) -> None:
    calls, _, _, seen = asked
    envelope = local_envelope(3, "a.b")
    assert not calls.respond("unknown", envelope)
    assert calls.respond("r", envelope)
    assert not calls.respond("r", envelope)
    assert not calls.complete("r")
    assert not calls.fail("r", CallError("INTERNAL"))
    assert not calls.stopped("r", "why")
    assert len(seen.events) == 1


async def test_an_answer_that_is_too_large_raises_and_the_request_is_still_to_be_answered(asked: Answering) -> None:
    calls, _, _, seen = asked
    with pytest.raises(CallError) as caught:
        calls.respond("r", local_envelope("x" * 2_000, "a.b"))
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert calls.fail("r", caught.value)
    assert [event.code for event in seen.events] == ["PAYLOAD_TOO_LARGE"]


@pytest.mark.parametrize(
    "error",
    [CallError("INTERNAL", "m" * 3_000), CallError("INTERNAL", "m", ["d" * 3_000])],
    ids=["message", "details"],
)
async def test_an_error_that_is_too_large_is_sent_without_its_details(asked: Answering, error: CallError) -> None:
    calls, _, _, seen = asked
    assert calls.fail("r", error)
    assert (seen.events[0].code, seen.events[0].message[0], seen.events[0].details) == ("INTERNAL", "m", None)


async def test_a_request_id_so_long_that_no_answer_can_hold_it_affects_no_other_peer(asked: Answering) -> None:
    calls, server, caller, seen = asked
    long = "x" * 1_900
    caller.request(CallRequested(request_id=long, operation_id="a.b"))
    assert not calls.fail(long, CallError("INTERNAL", "why it failed is told at some length"))
    calls.serve_with(None)
    caller.request(CallRequested(request_id=long + "y", operation_id="a.b"))
    assert seen.events == []
    assert calls.open_requests() == ["r"]
    assert len(server.requests) == 2


async def test_a_request_id_in_use_by_another_caller_is_refused(asked: Answering) -> None:
    calls, server, _, seen = asked
    thief, answers = await peer(asked[2]._bus)
    thief.request(CallRequested(request_id="r", operation_id="a.b"))
    assert [event.code for event in answers.events] == ["PROTOCOL_ERROR"]
    thief.send(CallAborted(request_id="r"), answers.senders[0])
    assert calls.respond("r", local_envelope(3, "a.b")), "it is not the thief's to abort"
    assert len(seen.events) == 1
    assert len(answers.events) == 1
    assert len(server.requests) == 1


async def test_a_request_that_comes_again_while_it_is_answered_is_answered_once(asked: Answering) -> None:
    calls, server, caller, seen = asked
    caller.request(CallRequested(request_id="r", operation_id="a.b"))
    assert len(server.requests) == 1
    assert calls.respond("r", local_envelope(3, "a.b"))
    assert len(seen.events) == 1


async def test_observers_do_not_see_an_answer_that_was_too_large_to_be_sent(asked: Answering) -> None:
    calls, _, _, seen = asked
    watched: list[CallEvent] = []
    calls.observe(watched.append)
    with pytest.raises(CallError):
        calls.respond("r", local_envelope("x" * 2_000, "a.b"))
    assert calls.fail("r", CallError("PAYLOAD_TOO_LARGE", "too large", ["d" * 3_000]))
    await settled()
    assert watched == seen.events
    assert names(watched) == ["call.error"]


class Mute(MemoryTransport):
    """Its peers can no longer be reached, which is not noticed yet."""

    mute = False

    def send(self, event: CallEvent, to: str | None) -> None:
        if self.mute:
            raise CallError("UNAVAILABLE", "cut off")
        super().send(event, to)


async def test_what_cannot_be_sent_any_more_is_forgotten_and_raises_nothing() -> None:
    bus = MemoryBus()
    transport = Mute(bus)
    async with PendingRequestMap(transport, window=1) as calls:
        calls.serve_with(Asked())
        await transport.announce(["served.here"])
        server, seen = await peer(bus, "a.b")
        server.request(CallRequested(request_id="r", operation_id="served.here"))
        stream = calls.subscribe("a.b")
        consumer = asyncio.ensure_future(anext(stream))
        await until(lambda: len(seen.events) == 1)
        server.send(items(seen.events[0], 1)[0], seen.senders[0])
        await within(consumer)
        watched: list[CallEvent] = []
        calls.observe(watched.append)
        transport.mute = True
        assert not calls.respond("r", local_envelope(3, "served.here"))
        waiting = asyncio.ensure_future(anext(stream))
        await settled()
        assert calls.abort(seen.events[0].request_id)
        assert (await call_error(waiting)).code is ErrorCode.ABORTED
        assert (watched, calls.open_calls) == ([], 0)


async def test_a_response_to_a_caller_that_is_gone_is_dropped(asked: Answering) -> None:
    calls, _, caller, _ = asked
    await caller.close()
    await asyncio.sleep(0)
    assert calls.open_calls == 0
    assert not calls.respond("r", local_envelope(3, "a.b"))


class Counted(str):
    """An address that counts how often it is compared with another."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


async def test_to_lose_thousands_of_callers_takes_one_look_at_all_requests_and_leaves_room_for_others() -> None:
    stopped, turns = list[int](), 0

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(turns)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    registry, many = OperationRegistry(), 2_000
    registry.query("never.ends", access=AccessControl(public=True))(wait)
    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls, CallHandler(registry, calls) as handler:
        for number in range(many):
            request = CallRequested(request_id=f"r{number}", operation_id="never.ends", input={})
            calls.received(request, Counted(f"caller{number}"))
        await asyncio.sleep(0)
        task = asyncio.create_task(other())
        Counted.comparisons = 0
        for number in range(1, many):
            calls.lost(Counted(f"caller{number}"), "gone")
        async with asyncio.timeout(30):
            while len(stopped) < many - 1:
                await asyncio.sleep(0)
        task.cancel()
        assert Counted.comparisons < 10 * many
        assert len(set(stopped)) > 1  # not all of them in one turn of the event loop
        assert (len(handler), calls.open_calls) == (1, 1)


# --- one end that serves and calls ------------------------------------------------------------------------------------


async def test_an_end_may_call_what_it_serves_itself(registry: OperationRegistry) -> None:
    hanging = asyncio.Event()

    @registry.query("never.ends")
    async def ends() -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with PendingRequestMap(MemoryTransport(MemoryBus())) as calls:
        handler = await CallHandler(registry, calls).start()
        assert (await within(calls.call("math.add", {"a": 1, "b": 2}))).data == 3
        async with asyncio.timeout(10):
            assert [each.data async for each in calls.subscribe("clock.ticks", {"n": 200})] == list(range(200))
        call = asyncio.ensure_future(calls.call("never.ends"))
        await within(hanging.wait())
        await within(handler.close())
        assert (await call_error(call)).code in REFUSALS
        assert calls.open_calls == 0


# --- observers --------------------------------------------------------------------------------------------------------


def names(events: list[CallEvent]) -> list[str]:
    return [str(event.__struct_config__.tag) for event in events]


async def test_observers_at_both_ends_see_every_event_in_order(registry: OperationRegistry) -> None:
    async with connected_ends(registry, window=2) as here:
        caller: list[CallEvent] = []
        server: list[CallEvent] = []
        here.client.observe(caller.append)
        here.server.observe(server.append)
        await here.call("math.add", {"a": 1, "b": 2})
        await call_error(here.client.call("math.add", {"a": "one"}))
        await here.items("clock.ticks", {"n": 2})
        async with aclosing(here.client.subscribe("clock.ticks", {"n": 9})) as stream:
            await within(anext(stream))
        await settled()
        expected = ["call.requested", "call.responded", "call.requested", "call.error", "call.requested"]
        assert names(caller)[:5] == expected
        assert sorted(names(caller)) == sorted(names(server))
        assert names(caller)[-1] == "call.aborted"
        assert names(caller).count("call.completed") == 1
        assert names(caller).count("call.credit") >= 1
        for request in (event for event in caller if isinstance(event, CallRequested)):
            kinds = names([event for event in caller if event.request_id == request.request_id])
            assert kinds[0] == "call.requested"
            assert kinds.count("call.requested") == 1


async def test_observers_see_a_cause_before_its_effect_and_nothing_that_did_not_leave(
    registry: OperationRegistry,
) -> None:
    async with connected_ends(registry, max_calls=0) as here:
        seen: list[CallEvent] = []
        here.client.observe(seen.append)
        assert (await call_error(here.client.call("math.add"))).code is ErrorCode.RATE_LIMITED
        await settled()
        assert names(seen) == ["call.requested", "call.error"]
        await here.handler.close()
        assert (await call_error(here.client.call("math.add"))).code is ErrorCode.UNAVAILABLE
        await settled()
        assert len(seen) == 2


async def test_a_failing_observer_affects_no_other_peer_and_one_that_has_left_sees_nothing(
    registry: OperationRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected_ends(registry) as here:
        seen: list[CallEvent] = []

        def broken(event: CallEvent) -> None:
            raise KeyError("mine")

        here.client.observe(broken)
        leave = here.client.observe(seen.append)
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        await settled()
        assert len(seen) == 2
        assert caplog.text.count("an observer failed") == 2
        leave()
        leave()
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
        await settled()
        assert len(seen) == 2


async def test_a_remote_call_gives_its_data_as_the_type_that_is_asked_for(wire: Wire) -> None:
    answer = asyncio.ensure_future(wire.calls.call("a.b", output_type=date))
    request = await wire.request()
    wire.says(CallResponded(request_id=request.request_id, output=local_envelope("2026-01-02", "a.b")))
    assert (await within(answer)).data == date(2026, 1, 2)


async def test_a_remote_answer_that_does_not_fit_the_type_is_an_execution_error(wire: Wire) -> None:
    answer = asyncio.ensure_future(wire.calls.call("a.b", output_type=date))
    request = await wire.request()
    wire.says(CallResponded(request_id=request.request_id, output=local_envelope(5, "a.b")))
    error = await call_error(answer)
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "does not fit date" in error.message


async def test_the_items_of_a_remote_subscription_are_of_the_type_that_is_asked_for(wire: Wire) -> None:
    stream = wire.calls.subscribe("a.b", output_type=float)
    consumer = asyncio.ensure_future(anext(stream))
    request = await wire.request()
    wire.says(*items(request, 1))
    data = (await within(consumer)).data
    assert type(data) is float
    await stream.aclose()


async def test_interceptors_are_around_every_call_and_keep_its_options(registry: OperationRegistry) -> None:
    seen: list[str] = []

    def note(spec: OperationSpec, handler: Handler) -> Handler:
        async def call(input: Any, context: Context) -> Any:
            seen.append(f"{spec.id} {input}")
            envelope = await handler(input, context)
            seen.append(f"{envelope.data}")
            return envelope

        return call

    async with connected_ends(registry) as here:
        remove = here.client.use(note)
        (address,) = await here.client.transport.servers()
        assert (await within(here.client.call("math.add", {"a": 1, "b": 2}, to=address, output_type=float))).data == 3.0
        assert (await call_error(here.client.call("math.add", {}, to="nowhere"))).code is ErrorCode.UNAVAILABLE
        assert (await call_error(here.client.call("nodot"))).code is ErrorCode.OPERATION_NOT_FOUND
        remove()
        assert await here.call("math.add", {"a": 1, "b": 2}) == 3
    assert seen == ["math.add {'a': 1, 'b': 2}", "3", "math.add {}"]


async def test_the_errors_of_received_requests_are_reported(registry: OperationRegistry) -> None:
    failed: list[ErrorCode] = []
    async with connected_ends(registry) as here:
        remove = here.server.on_failed(lambda error: failed.append(error.code))
        await call_error(here.client.call("math.add", {}))
        await call_error(here.client.call("no.such"))
        remove()
        remove()
        await call_error(here.client.call("no.such"))
    assert failed == [ErrorCode.VALIDATION_ERROR, ErrorCode.OPERATION_NOT_FOUND]
