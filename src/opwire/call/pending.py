"""`PendingRequestMap`: the calls that this end has made and waits for, and those that it was asked to answer.

The books are kept by `CallTable`, which does no I/O; this file puts futures, timers and a transport around them.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, Self, TypeVar, Unpack, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from opwire.call.call_table import (
    MAX_EXCESS,
    CallTable,
    Inbox,
    Observers,
    Overflow,
    RemoteCallOptions,
    RemoteStreamOptions,
    Window,
)
from opwire.call.description import Description
from opwire.call.events import (
    CallAborted,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallRequested,
    CallResponded,
    encode_event,
)
from opwire.call.transport import Address, Transport, random_ids
from opwire.deadlines import Deadlines
from opwire.envelope import ResponseEnvelope, is_response_envelope, read_envelope
from opwire.errors import CallError, ConversionError, ErrorCode, UsageError
from opwire.operation import LOCAL_IDENTITY, Context, Identity, trace_of
from opwire.pipeline import typed_envelope

logger = logging.getLogger("opwire.call")

T = TypeVar("T")

DEFAULT_TIMEOUT = 30.0
"""Seconds that a call may take unless it says otherwise."""

WINDOW = 64
"""Items of a subscription that may be on their way or wait for the consumer."""

_STALL = 1.0  # seconds without an item after which a consumer repeats its grant, at first
_MAX_STALL = 4.0  # seconds between two repetitions at most
_REMEMBERED = 10_000  # request ids that contexts brought, so that none is used twice; a server remembers as many

_SHORT = 200  # characters of an error's message that fit into any message

_Sink = asyncio.Future[ResponseEnvelope[Any]] | Inbox
_NO_CONTEXT = Context()


class _Stall(Struct, eq=False):
    """The watch on a subscription that may receive nothing for a while."""

    request_id: str
    inbox: Inbox
    window: Window
    pause: float  # seconds until the next look
    received: int = 0  # items, at the last look
    tick: int = 0


class RequestHandler(Protocol):
    """Whoever answers requests that arrive here: the `CallHandler`."""

    def requested(self, event: CallRequested, caller: Address) -> None: ...
    def credited(self, event: CallCredit, caller: Address) -> None: ...
    def aborted(self, event: CallAborted, caller: Address) -> None: ...
    def lost(self, caller: Address | None) -> None: ...
    def describe(self) -> Description: ...


class PendingRequestMap:
    """One end of the call protocol on a transport.

        async with PendingRequestMap(transport) as calls:
            envelope = await calls.call("math.add", {"a": 1, "b": 2})
            async for envelope in calls.subscribe("clock.ticks"):
                ...

    Every call ends in exactly one way: with an envelope, or with a `CallError`.
    """

    def __init__(self, transport: Transport, *, timeout: float = DEFAULT_TIMEOUT, window: int = WINDOW) -> None:
        if window < 1:
            raise UsageError(f"window is a number of items above zero, not {window!r}")
        if not timeout > 0:
            raise UsageError(f"timeout is a number of seconds above zero, not {timeout!r}")
        self.transport = transport
        self._timeout = timeout
        self._window = window
        self._table: CallTable[_Sink] = CallTable()
        self._deadlines = Deadlines()
        self._callers: dict[str, Address] = {}  # who is to be answered, by request id
        self._server: RequestHandler | None = None
        self._observers = Observers()
        self._ids = random_ids(12)
        self._used: OrderedDict[str, None] = OrderedDict()  # the latest request ids that contexts brought
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.dropped_items = 0

    async def start(self) -> Self:
        """Connect the transport.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._loop = asyncio.get_running_loop()
        await self.transport.start(self)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the transport; every call that is still pending ends at once with UNAVAILABLE."""
        self._closed = True
        self.lost(None, "the connection was closed")
        await self.transport.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop that this end was started on. Asking asyncio for it is a system call on Python 3.11: 0.2 µs."""
        return self._loop or asyncio.get_running_loop()

    @property
    def open_calls(self) -> int:
        """How many calls are in the books: made from here and not settled, or asked of here and not answered."""
        return len(self._table) + len(self._callers)

    # --- calling ------------------------------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        *,
        output_type: type[T],
        **options: Unpack[RemoteCallOptions],
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        output_type: Any = None,
        **options: Unpack[RemoteCallOptions],
    ) -> ResponseEnvelope[Any]: ...
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        output_type: Any = None,
        *,
        timeout: float | None = None,
        to: Address | None = None,
        sticky_key: str | None = None,
    ) -> ResponseEnvelope[Any]:
        """Call a query or mutation somewhere else. With `output_type` the envelope's data really is of that type.

        `to` is a server's address, for a call that this very one has to answer; else any of those who serve it does.
        Calls with the same `sticky_key` go to the same one, where the transport can do that.

        Raises:
            CallError: whatever went wrong there or on the way; TIMEOUT when no answer came in time.
        """
        began = time.monotonic()
        deadline = began + (self._timeout if timeout is None else timeout)
        if context is None:
            context = _NO_CONTEXT
        elif context.deadline is not None and context.deadline < deadline:
            deadline = context.deadline
        answer: asyncio.Future[ResponseEnvelope[Any]] = self._running().create_future()
        remaining = deadline - began
        request_id = self._request(
            operation_id, input, context, answer, remaining=remaining, to=to, sticky_key=sticky_key
        )
        tick = self._deadlines.add(request_id, deadline, self._time_is_up)
        try:
            envelope = await answer
        except asyncio.CancelledError:
            self.abort(request_id, "the caller gave up")
            raise
        finally:
            self._deadlines.discard(request_id, tick)
        return envelope if output_type is None else typed_envelope(envelope, output_type, operation_id)

    @overload
    def subscribe(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        *,
        output_type: type[T],
        **options: Unpack[RemoteStreamOptions],
    ) -> AsyncGenerator[ResponseEnvelope[T]]: ...
    @overload
    def subscribe(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        output_type: Any = None,
        **options: Unpack[RemoteStreamOptions],
    ) -> AsyncGenerator[ResponseEnvelope[Any]]: ...
    async def subscribe(
        self,
        operation_id: str,
        input: Any = None,
        context: Context | None = None,
        output_type: Any = None,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        overflow: Overflow = "block",
        to: Address | None = None,
        sticky_key: str | None = None,
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """The items of a subscription somewhere else. Leaving the loop stops the generator there.

        A consumer that is slower than the producer slows it down (`overflow="block"`). For a stream that must not be
        slowed down, the other policies say what a full buffer does: end with an error, or drop items.

        Raises:
            CallError: what ended the stream; TIMEOUT at its deadline, or after `idle_timeout` seconds without an item.
        """
        context = (context or _NO_CONTEXT).within(timeout)
        inbox = Inbox(self._window, overflow, _size)
        window = Window(self._window, overflow)
        request_id = self._request(
            operation_id,
            input,
            context,
            inbox,
            remaining=context.remaining,
            credits=window.granted,
            to=to,
            sticky_key=sticky_key,
        )
        stall = _Stall(request_id, inbox, window, _STALL)
        if self.transport.lossy:
            self._watch(stall)
        try:
            while (item := await self._next(inbox, context, idle_timeout, operation_id)) is not None:
                yield item if output_type is None else typed_envelope(item, output_type, operation_id)
                if more := window.take():
                    self._grant(stall, more)
        finally:
            self._deadlines.discard(stall, stall.tick)
            self.dropped_items += inbox.dropped
            self.abort(request_id, "the consumer left")

    def _grant(self, stall: "_Stall", n: int) -> None:
        """Grant more items, or repeat what was granted (`n` 0)."""
        if stall.request_id not in self._table:
            return
        window, received = stall.window, self._table.received(stall.request_id)
        event = CallCredit(request_id=stall.request_id, n=n, total=window.granted, received=received)
        window.unsent = not self._send(event, self._table.peer(stall.request_id))
        if window.unsent and not stall.tick:
            self._watch(stall)

    def _watch(self, stall: "_Stall") -> None:
        """Look at a subscription again in a while: has it received anything?"""
        stall.tick = self._deadlines.add(stall, time.monotonic() + stall.pause, self._stalled)

    def _stalled(self, stall: "_Stall") -> None:
        """Repeat a grant while no item arrives: the last one may be lost, or never have left."""
        received = self._table.received(stall.request_id)
        if received != stall.received or not stall.inbox.waiting:
            stall.received, stall.pause = received, _STALL
        elif self.transport.lossy or stall.window.unsent:
            self._grant(stall, 0)
            stall.pause = min(2 * stall.pause, _MAX_STALL)
        if stall.request_id in self._table:
            self._watch(stall)

    async def _next(
        self, inbox: Inbox, context: Context, idle: float | None, operation_id: str
    ) -> ResponseEnvelope[Any] | None:
        return await self._deadlines.limit(inbox.get, context.within(idle).deadline, f"{operation_id} gave no item")

    def abort(self, request_id: str, reason: str | None = None) -> bool:
        """Give a pending call up and have its handler stopped. False if it is not pending.

        Whoever waits for it gets `CallError(ABORTED)`.
        """
        peer = self._table.peer(request_id)
        sink = self._table.settle(request_id)
        if sink is None:
            return False
        self._send(CallAborted(request_id=request_id, reason=reason), peer)
        _fail(sink, CallError(ErrorCode.ABORTED, reason or "the call was aborted"))
        return True

    def _request(
        self,
        operation_id: str,
        input: Any,
        context: Context,
        sink: _Sink,
        *,
        remaining: float | None,
        credits: int | None = None,
        to: Address | None = None,
        sticky_key: str | None = None,
    ) -> str:
        if remaining is not None and remaining <= 0:
            raise CallError(ErrorCode.TIMEOUT, f"the deadline of {operation_id} had passed before it was called")
        if context is _NO_CONTEXT:
            parent, identity, request_id = None, None, next(self._ids)
        else:
            parent, identity = self._on_behalf_of(context, operation_id)
            request_id = next(self._ids) if context.inbound is not None else self._fresh_id(context.request_id)
        event = CallRequested(
            request_id=request_id,
            operation_id=operation_id,
            input=input,
            parent_request_id=parent,
            identity=identity,
            deadline=None if remaining is None else round((time.time() + remaining) * 1000),
            timeout_ms=None if remaining is None else int(remaining * 1e6) / 1e3,  # `round` to digits costs 0.3 µs more
            credits=credits,
            sticky_key=sticky_key,
        )
        if context.metadata:
            event = replace(event, **trace_of(context.metadata))
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is closed")
        self._table.open(event, sink, streams=isinstance(sink, Inbox), movable=to is None)
        shown = self._observers.show(event) if self._observers else None
        try:
            if to is None:
                to = self.transport.request(event)
            else:
                self.transport.send(event, to)
            self._table.routed(request_id, to)
        except BaseException:
            self._table.settle(request_id)
            if shown is not None:
                shown.cancel()
            raise
        return request_id

    def _on_behalf_of(self, context: Context, operation_id: str) -> tuple[str | None, Identity | None]:
        """Return the request that a call is part of, and the identity that it states.

        Raises:
            CallError: ACCESS_DENIED, if the call would be made with an identity that its caller does not have.
        """
        inbound, identity = context.inbound, context.identity
        if inbound is None and identity is None:
            return (context.parent_request_id if self.transport.vouches else None), None
        if self.transport.vouches or (inbound is not None and inbound.connection is self):
            return (context.parent_request_id if inbound is None else inbound.request_id), identity
        if identity is LOCAL_IDENTITY:  # the program itself, whose identity over there is that of the connection
            return None, None
        whose = "an anonymous caller" if identity is None else f"the identity {identity.id!r}"
        raise CallError(
            ErrorCode.ACCESS_DENIED,
            f"{operation_id} is called on behalf of {whose}, which this connection cannot carry: call over the "
            "connection that delivered the request, or pass context.detached() to call as this process itself",
        )

    def _fresh_id(self, wanted: str | None) -> str:
        """The id of the context, unless it was used before: to a server that would be the same request again."""
        if wanted is None or wanted in self._used or wanted in self._table:
            return next(self._ids)
        self._used[wanted] = None
        if len(self._used) > _REMEMBERED:
            self._used.popitem(last=False)
        return wanted

    def _time_is_up(self, request_id: str) -> None:
        peer = self._table.peer(request_id)
        sink = self._table.settle(request_id)
        if sink is not None:
            _fail(sink, CallError(ErrorCode.TIMEOUT, "no answer came before the deadline"))
            self._send(CallAborted(request_id=request_id, reason="the deadline has passed"), peer)

    # --- answering ----------------------------------------------------------------------------------------------------

    def serve_with(self, server: RequestHandler | None) -> None:
        """Hand requests that arrive to this server."""
        self._server = server

    def describe(self) -> Description | None:
        """What is served here; None if nothing is."""
        return None if self._server is None else self._server.describe()

    def respond(self, request_id: str, output: Any, seq: int | None = None) -> bool:
        """Answer a request, or send item `seq` of a subscription. False if nobody waits for it any more.

        Raises:
            ConversionError: the output is not an envelope that can be read.
            CallError: PAYLOAD_TOO_LARGE; the request is then still to be answered.
        """
        if not isinstance(output, ResponseEnvelope):
            if not is_response_envelope(output):
                raise ConversionError(f"respond() takes an envelope, not {type(output).__name__}")
            output = read_envelope(cast("Mapping[str, Any]", output))
        event = CallResponded(request_id=request_id, output=cast("ResponseEnvelope[Any]", output), seq=seq)
        return self._answer(event, final=seq is None)

    def complete(self, request_id: str, seq: int | None = None) -> bool:
        """A subscription has no more items; `seq` is the number of the last one."""
        return self._finish(CallCompleted(request_id=request_id, seq=seq))

    def fail(self, request_id: str, error: CallError, *, not_started: bool = False) -> bool:
        """A request failed. Details and the rest of a message that are too large to be sent are left out.

        `not_started`: no handler has seen it, and its caller may ask another server.
        """
        event = CallFailed.of(request_id, error)
        if not_started:
            event = replace(event, not_started=True)
        return self._finish(event, replace(event, message=event.message[:_SHORT], details=None))

    def stopped(self, request_id: str, reason: str) -> bool:
        """A request was stopped on this side."""
        return self._finish(CallAborted(request_id=request_id, reason=reason))

    def forget(self, request_id: str) -> None:
        """Leave a request without an answer: it was a repetition of one that has had its answer."""
        self._callers.pop(request_id, None)

    def _finish(self, *choices: CallEvent) -> bool:
        """End a request with the first of these events that can be sent."""
        for event in choices:
            try:
                return self._answer(event, final=True)
            except CallError as error:
                logger.warning("%s could not be sent: %s", type(event).__name__, error)
        self.forget(choices[0].request_id)
        return False

    def _answer(self, event: CallEvent, *, final: bool) -> bool:
        caller = self._callers.get(event.request_id)
        if caller is None:
            return False
        if final:  # before it is sent: what the caller does about it may come back at once
            del self._callers[event.request_id]
        shown = self._observers.show(event) if self._observers else None
        try:
            self.transport.send(event, caller)
        except CallError as error:
            if shown is not None:
                shown.cancel()
            if error.code is ErrorCode.UNAVAILABLE:
                self._callers.pop(event.request_id, None)
                return False
            self._callers[event.request_id] = caller
            # Not to be tried again, though it would be if a request had been refused: the handler has run.
            raise CallError(error.code, error.message, error.details, retryable=False) from error
        return True

    # --- what arrives -------------------------------------------------------------------------------------------------

    def received(self, event: CallEvent, sender: Address) -> None:
        """An event arrived; called by the transport."""
        if self._observers:
            self._observers.show(event)
        match event:
            case CallRequested():
                self._requested(event, sender)
            case CallResponded():  # the most frequent events go first
                self._arrived(event, sender)
            case CallCredit():
                if self._server is not None:
                    self._server.credited(event, sender)
            case CallAborted() if self._callers.get(event.request_id) == sender:
                del self._callers[event.request_id]
                if self._server is not None:
                    self._server.aborted(event, sender)
            case _:
                self._arrived(event, sender)

    def lost(self, peer: Address | None, reason: str) -> None:
        """A peer, or every peer, is gone; called by the transport."""
        for sink in self._table.lost(peer):
            _fail(sink, CallError(ErrorCode.UNAVAILABLE, f"{reason} before the call was answered"))
        for request_id, caller in list(self._callers.items()):
            if peer is None or caller == peer:
                del self._callers[request_id]
        if self._server is not None:
            self._server.lost(peer)

    def _requested(self, event: CallRequested, caller: Address) -> None:
        if event.request_id in self._callers:
            if self._callers[event.request_id] == caller:
                return  # the same request again: it is being answered
            error = CallError(ErrorCode.PROTOCOL_ERROR, "the request id is in use by another caller")
            self._send(CallFailed.of(event.request_id, error), caller)
            return
        self._callers[event.request_id] = caller
        if self._server is None:
            nothing = CallError(ErrorCode.UNAVAILABLE, "nothing is served here")
            self.fail(event.request_id, nothing, not_started=True)
        else:
            self._server.requested(event, caller)

    def _arrived(self, event: CallEvent, sender: Address) -> None:
        arrival = self._table.arrived(event, sender)
        if arrival is None:
            if isinstance(event, CallResponded) and event.seq is not None and event.request_id not in self._table:
                # An item that nobody waits for: its producer has missed that the consumer left.
                self._send(CallAborted(request_id=event.request_id, reason="nobody waits for it"), sender)
            return
        sink, value = arrival.sink, arrival.value
        if arrival.again is not None:
            self._ask_again(arrival.again, sink, arrival.move)
            return
        if arrival.stop is not None:
            self._send(CallAborted(request_id=event.request_id, reason=arrival.stop), sender)
        if isinstance(sink, Inbox):
            if arrival.final:
                sink.end(cast("CallError | None", value))
            elif not sink.put(cast("ResponseEnvelope[Any]", value)):
                self._table.settle(event.request_id)
                sink.end(sink.overflowed())
                self._send(CallAborted(request_id=event.request_id, reason="the consumer did not keep up"), sender)
        elif isinstance(value, CallError):
            _fail(sink, value)
        elif not sink.done():
            sink.set_result(cast("ResponseEnvelope[Any]", value))

    def _ask_again(self, event: CallRequested, sink: _Sink, move: int) -> None:
        """A server refused a request that it has not begun: ask another one, in the time that is left."""
        if event.deadline is not None:
            event = replace(event, timeout_ms=event.deadline - time.time() * 1000)
        shown = self._observers.show(event) if self._observers else None
        try:
            self._table.routed(event.request_id, self.transport.request(event), move)
        except CallError as error:
            if shown is not None:
                shown.cancel()
            self._table.settle(event.request_id)
            _fail(sink, error)

    def _send(self, event: CallEvent, to: Address | None) -> bool:
        """Send an event that its peer can do without if it is gone. False: the transport did not take it."""
        shown = self._observers.show(event) if self._observers else None
        try:
            self.transport.send(event, to)
        except CallError:
            if shown is not None:
                shown.cancel()
            return False
        return True

    # --- watching -----------------------------------------------------------------------------------------------------

    def observe(self, observer: Callable[[CallEvent], None]) -> Callable[[], None]:
        """Show every event, sent or received, to an observer; the function that is returned ends it.

        Observers are called after the step that they watch, and cannot fail it. They see a cause before its effect.
        """
        return self._observers.add(observer)


def _size(item: ResponseEnvelope[Any]) -> int:
    """Return the bytes of an item on the wire; one that has no JSON form was never on one, and fills the buffer."""
    try:
        return len(encode_event(CallResponded(request_id="", output=item), limit=MAX_EXCESS))
    except CallError:
        return MAX_EXCESS + 1


def _fail(sink: _Sink, error: CallError) -> None:
    if isinstance(sink, Inbox):
        sink.end(error)
    elif not sink.done():
        sink.set_exception(error)
