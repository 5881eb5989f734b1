"""`PendingRequestMap`: one peer of the call protocol.

It makes calls, gives the requests that it receives to a `RequestHandler`, and sends what that answers, once for each.
`CallTable` holds the state of outgoing calls without I/O; this module adds futures, timers and a transport.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Self, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from opwire.errors import CallError, ConversionError, ErrorCode, check_above_zero, check_counts
from opwire.model.context import Context, Progress
from opwire.model.envelope import ResponseEnvelope, is_response_envelope, read_envelope
from opwire.model.identity import LOCAL_IDENTITY, Identity
from opwire.model.operation import Interceptor, OperationType
from opwire.model.trace import trace_of
from opwire.protocol.call_table import CallTable, Dropped, Inbox, Overflow, RemoteStreamOptions, StallWatch, Window
from opwire.protocol.caller_callbacks import CallerCallbacks
from opwire.protocol.description import Description, RequestHandler
from opwire.protocol.events import (
    CallAborted,
    CallAnswer,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallProgress,
    CallQuestion,
    CallRequested,
    CallResponded,
)
from opwire.protocol.outbox import Outbox, is_full
from opwire.protocol.transport import Address, CallRoute, RemoteCallOptions, Transport, random_ids
from opwire.registry.interceptors import Interceptors
from opwire.registry.pipeline import typed_envelope
from opwire.runtime.deadlines import MAX_SECONDS, Deadlines
from opwire.runtime.tasks import AsyncResource, in_turns, reject, resolve
from opwire.runtime.text import get_logger

logger = get_logger("opwire.protocol")

EventObserver = Callable[[CallEvent], None]

T = TypeVar("T")

DEFAULT_TIMEOUT = 30.0
"""Default timeout of a call, in seconds."""

DEFAULT_WINDOW = 64
"""Items of a subscription that may be in flight or buffered, by default."""

MAX_REMEMBERED_IDS = 10_000
"""Request ids taken from contexts that are remembered, so that none is used twice; servers remember as many."""

_CALLS_PER_TURN = 64  # calls that ended at once, after which one yields to other tasks

_MAX_SHORT_MESSAGE_CHARACTERS = 200  # fit into any event

_Sink = asyncio.Future[ResponseEnvelope[Any]] | Inbox
_NO_CONTEXT = Context()


class PendingRequestMap(AsyncResource):
    """One peer of the call protocol on a transport.

        async with PendingRequestMap(transport) as calls:
            envelope = await calls.call("math.add", {"a": 1, "b": 2})
            async for envelope in calls.subscribe("clock.ticks"):
                ...

    Every call ends exactly once: with an envelope or with a `CallError`.
    """

    def __init__(self, transport: Transport, *, timeout: float = DEFAULT_TIMEOUT, window: int = DEFAULT_WINDOW) -> None:
        check_counts(window=window)
        check_above_zero(timeout=timeout)
        self.transport = transport
        self.dropped_items = 0
        """Items of subscriptions that were dropped, because their consumers were too slow."""
        self._timeout = timeout
        self._window = window
        self._observers: dict[object, EventObserver] = {}
        self._failure_listeners: list[Callable[[CallError], None]] = []
        self._callers: dict[str, Address] = {}  # of the received requests that have not ended, by request id
        self._handler: RequestHandler | None = None
        self._table: CallTable[_Sink] = CallTable()
        self._callbacks = CallerCallbacks(self._table, self._try_send)
        self._outbox = Outbox()
        self._interceptors = Interceptors()
        self._deadlines = Deadlines()
        self._request_ids = random_ids(12)
        self._used_ids: OrderedDict[str, None] = OrderedDict()  # the latest request ids taken from contexts
        self._lost_peers: dict[Address, str] = {}  # in this turn of the event loop, and why
        self._calls_without_turn = 0  # calls that ended without a turn of the event loop
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<PendingRequestMap over {self.transport!r}, {self.open_calls} open calls>"

    async def start(self) -> Self:
        """Connect the transport.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._deadlines.bind()
        await self.transport.start(self)
        return self

    async def close(self) -> None:
        """Close the transport. Pending calls fail at once with UNAVAILABLE."""
        self._is_closed = True
        self.lost(None, "the connection was closed")
        await self.transport.close()

    @property
    def open_calls(self) -> int:
        """Number of outgoing calls and received requests that have not ended."""
        return len(self._table) + len(self._callers)

    @property
    def dropped_events(self) -> Mapping[Dropped, int]:
        """Numbers of replies that were dropped: of unknown calls, of other peers, or repeated ones."""
        return self._table.dropped

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every outgoing call, inside those already installed.

        The returned function removes it. It runs for each call, with its options; the spec has the id, and its type
        says only whether it is a subscription.
        """
        return self._interceptors.use(interceptor)

    def observe(self, observer: EventObserver) -> Callable[[], None]:
        """Call an observer with every event that is sent or received. Return a function that removes it.

        Observers run after the step that they observe and cannot fail it. They see a cause before its effect,
        and no event that the transport rejects.
        """
        key = object()  # the same observer may be added twice, and removed once
        self._observers[key] = observer
        return lambda: self._observers.pop(key, None) and None

    # --- calling ------------------------------------------------------------------------------------------------------

    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RemoteCallOptions]
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RemoteCallOptions]
    ) -> ResponseEnvelope[Any]: ...
    async def call(
        self,
        operation_id: str,
        input: Any = None,
        *,
        context: Context | None = None,
        output_type: Any = None,
        timeout: float | None = None,
        **route: Unpack[CallRoute],
    ) -> ResponseEnvelope[Any]:
        """Call a query or mutation at a peer. With `output_type`, the data of the envelope has that type.

        `to` is the address of a server that has to handle the call; by default any server of the operation does. Calls
        with the same `sticky_key` go to the same server, if the transport supports it; `version` asks for a version of
        the operation.

        Raises:
            CallError: the call failed, there or in transit; TIMEOUT if no response arrived in time.
        """
        context = _NO_CONTEXT if context is None else context
        if self._interceptors.installed:
            bare_call = partial(self._call, operation_id, timeout=timeout, route=route)
            intercepted = self._interceptors.remote(operation_id, OperationType.QUERY, bare_call)
            envelope = await intercepted.execute(input, context)
        else:
            envelope = await self._call(operation_id, input, context, timeout=timeout, route=route)
        return envelope if output_type is None else typed_envelope(envelope, output_type, operation_id)

    async def _call(
        self, operation_id: str, input: Any, context: Context, *, timeout: float | None, route: CallRoute
    ) -> ResponseEnvelope[Any]:
        began = time.monotonic()
        deadline = began + min(MAX_SECONDS, self._timeout if timeout is None else timeout)  # as the server counts it
        if context.deadline is not None and context.deadline < deadline:
            deadline = context.deadline
        response: asyncio.Future[ResponseEnvelope[Any]] = asyncio.get_running_loop().create_future()
        request = partial(self._request, operation_id, input, context, response, credits=None, route=route)
        try:
            request_id = request(deadline - began)
        except CallError as error:
            if not is_full(error):
                raise
            request_id = await self._send_later(request, deadline, route.get("to"))
        if response.done():  # a handler in this process that did not suspend
            self._calls_without_turn += 1
            if self._calls_without_turn % _CALLS_PER_TURN == 0:
                await asyncio.sleep(0)
            return response.result()
        tick = self._deadlines.add(request_id, deadline, self._time_out)
        try:
            return await response
        except asyncio.CancelledError:
            self.abort(request_id, "the caller gave up")
            raise
        finally:
            self._deadlines.discard(request_id, tick)
            if context.on_question is not None:
                self._callbacks.cancel(request_id)

    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RemoteStreamOptions]
    ) -> AsyncGenerator[ResponseEnvelope[T]]: ...
    @overload
    def subscribe(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RemoteStreamOptions]
    ) -> AsyncGenerator[ResponseEnvelope[Any]]: ...
    async def subscribe(
        self,
        operation_id: str,
        input: Any = None,
        *,
        context: Context | None = None,
        output_type: Any = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        overflow: Overflow = "block",
        **route: Unpack[CallRoute],
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        """Yield the items of a subscription at a peer. Leaving the loop stops the generator there.

        By default a slow consumer slows its producer down. For a stream that must not be slowed down, the other
        `overflow` policies make a full buffer end the stream with an error, or drop items.

        Raises:
            CallError: the stream failed; TIMEOUT at its deadline, or after `idle_timeout` seconds without an item.
        """
        context = (context or _NO_CONTEXT).within(timeout)
        stream = partial(self._stream, operation_id, idle_timeout=idle_timeout, overflow=overflow, route=route)
        if self._interceptors.installed:
            stream = self._interceptors.remote(operation_id, OperationType.SUBSCRIPTION, stream).subscribe
        async with aclosing(stream(input, context)) as items:
            async for item in items:
                yield item if output_type is None else typed_envelope(item, output_type, operation_id)

    async def _stream(
        self,
        operation_id: str,
        input: Any,
        context: Context,
        *,
        idle_timeout: float | None,
        overflow: Overflow,
        route: CallRoute,
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        inbox = Inbox(self._window, overflow)
        window = Window(self._window, overflow, is_local=self.transport.local)
        remaining = context.remaining
        if remaining is not None and not remaining < MAX_SECONDS:
            remaining = None  # servers count a day at most: it is enforced here only
        request = partial(self._request, operation_id, input, context, inbox, credits=window.granted, route=route)
        try:
            request_id = request(remaining)
        except CallError as error:
            if not is_full(error):
                raise
            request_id = await self._send_later(request, context.deadline, route.get("to"))
        watch = StallWatch(request_id, inbox, window)
        if self.transport.lossy:
            self._check_later(watch)
        try:
            while True:
                deadline = context.within(idle_timeout).deadline
                item = await self._deadlines.limit(inbox.get, deadline, f"{operation_id} gave no item")
                if item is None:
                    return
                yield item
                if grant := window.take(item):
                    self._grant(watch, grant)
        finally:
            self._deadlines.discard(watch, watch.tick)
            self.dropped_items += inbox.dropped
            self.abort(request_id, "the consumer left")
            self._callbacks.cancel(request_id)

    def _grant(self, watch: StallWatch, items: int) -> None:
        """Grant more items; 0 repeats the total."""
        if watch.request_id not in self._table:
            return
        window, received = watch.window, self._table.received(watch.request_id)
        event = CallCredit(request_id=watch.request_id, n=items, total=window.granted, received=received)
        window.unsent = not self._try_send(event, self._table.peer(watch.request_id))
        if window.unsent and not watch.tick:
            self._check_later(watch)

    def _check_later(self, watch: StallWatch) -> None:
        watch.tick = self._deadlines.add(watch, time.monotonic() + watch.pause, self._check_stall)

    def _check_stall(self, watch: StallWatch) -> None:
        """Repeat the grant while no item arrives: the last grant may be lost, or not have been sent."""
        if watch.stalled(self._table.received(watch.request_id), lossy=self.transport.lossy):
            self._grant(watch, 0)
        if watch.request_id in self._table:
            self._check_later(watch)

    def abort(self, request_id: str, reason: str | None = None) -> bool:
        """Abort a pending call and stop its handler. Return False if it is not pending.

        The caller gets `CallError(ABORTED)`.
        """
        return self._give_up(request_id, CallError(ErrorCode.ABORTED, reason or "the call was aborted"), reason)

    def _time_out(self, request_id: str) -> None:
        error = CallError(ErrorCode.TIMEOUT, "no response arrived before the deadline")
        self._give_up(request_id, error, "the deadline has passed")

    def _give_up(self, request_id: str, error: CallError, reason: str | None) -> bool:
        peer, sink = self._table.peer(request_id), self._table.settle(request_id)
        if sink is None:
            return False
        self._stop_server(request_id, reason, peer)
        _fail(sink, error)
        return True

    def _stop_server(self, request_id: str, reason: str | None, server: Address | None) -> None:
        self._try_send(CallAborted(request_id=request_id, reason=reason), server)

    def _request(
        self,
        operation_id: str,
        input: Any,
        context: Context,
        sink: _Sink,
        remaining: float | None,
        *,
        credits: int | None,
        route: CallRoute,
    ) -> str:
        """Open a call in the table and send its request. Return its id.

        Raises:
            CallError: TIMEOUT, no time is left; ACCESS_DENIED, as `_on_behalf_of`; or the transport rejected it.
        """
        if remaining is not None and remaining <= 0:
            raise CallError(ErrorCode.TIMEOUT, f"the deadline of {operation_id} passed before it was called")
        if self._is_closed:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is closed")
        parent_id, identity = self._on_behalf_of(context, operation_id)
        # A call with the context of a served call is its child, as by `Context.child`.
        context_id = context.request_id if context.inbound is None else None
        if context_id is not None and (context_id in self._used_ids or context_id in self._table):
            context_id = None  # it would be a duplicate for servers
        event = CallRequested(
            request_id=next(self._request_ids) if context_id is None else context_id,
            operation_id=operation_id,
            input=input,
            parent_request_id=parent_id,
            identity=identity,
            deadline=None if remaining is None else round((time.time() + remaining) * 1000),
            timeout_ms=None if remaining is None else int(remaining * 1e6) / 1e3,
            credits=credits,
            sticky_key=route.get("sticky_key"),
            version=route.get("version"),
            progress=None if context.on_progress is None or context.is_served else True,
            questions=None if context.on_question is None else True,
            resume_from=None if context.resume_from is None or context.is_served else context.resume_from,
        )
        if context.metadata:
            event = replace(event, **trace_of(context.metadata))
        self._open(event, sink, context, route.get("to"), takes_context_id=context_id is not None)
        return event.request_id

    def _open(
        self, event: CallRequested, sink: _Sink, context: Context, to: Address | None, *, takes_context_id: bool
    ) -> None:
        request_id, streams = event.request_id, event.credits is not None
        on_progress = context.on_progress if event.progress else None
        self._table.open(event, sink, on_progress, context.on_question, streams=streams, movable=to is None)
        if takes_context_id:
            self._used_ids[request_id] = None
            if len(self._used_ids) > MAX_REMEMBERED_IDS:
                self._used_ids.popitem(last=False)
        try:
            if to is None:
                to = self._send_request(event)
            else:
                self._send(event, to)
        except BaseException:
            self._table.settle(request_id)
            self._used_ids.pop(request_id, None)
            raise
        if to is not None:
            self._table.routed(request_id, to)

    def _on_behalf_of(self, context: Context, operation_id: str) -> tuple[str | None, Identity | None]:
        """Return the parent request of a call, and the identity that it states.

        Raises:
            CallError: ACCESS_DENIED if the connection cannot carry the identity of the context.
        """
        inbound, identity, vouches = context.inbound, context.identity, self.transport.vouches
        if vouches or (inbound is not None and inbound.connection is self):
            return (context.parent_request_id if inbound is None else inbound.request_id), identity
        if identity is LOCAL_IDENTITY or (identity is None and inbound is None):
            return None, None  # it is a call of this process, which the peer identifies by the connection
        caller = "an anonymous caller" if identity is None else f"the identity {identity.id!r}"
        raise CallError(
            ErrorCode.ACCESS_DENIED,
            f"{operation_id} is called on behalf of {caller}, which this connection cannot carry: call over the "
            "connection that delivered the request, or pass context.detached() to call as this process itself",
        )

    async def _send_later(
        self, request: Callable[[float | None], str], deadline: float | None, to: Address | None
    ) -> str:
        """Send a request that does not fit into the queue of the connection as soon as it does."""

        def send() -> str:
            return request(None if deadline is None else deadline - time.monotonic())

        complaint = "the request could not be sent"
        return await self._deadlines.limit(partial(self._outbox.send, to, send), deadline, complaint)

    # --- received requests --------------------------------------------------------------------------------------------

    def serve_with(self, handler: RequestHandler | None) -> None:
        """Give received requests to this handler."""
        self._handler = handler

    def describe(self) -> Description | None:
        """Return the description of the server, or None if nothing is served."""
        return None if self._handler is None else self._handler.describe()

    def respond(
        self,
        request_id: str,
        output: ResponseEnvelope[Any] | Mapping[str, Any],
        seq: int | None = None,
        resumed: bool | None = None,
    ) -> bool:
        """Send the response to a request, or item `seq` of a subscription. Return False if its caller is gone.

        `resumed`: it is the first item behind the `resume_from` of the request.

        Raises:
            ConversionError: the output is not a valid envelope.
            CallError: PAYLOAD_TOO_LARGE; the request is then still open.
        """
        if not isinstance(output, ResponseEnvelope):
            if not is_response_envelope(output):
                raise ConversionError(f"respond() takes an envelope, not {type(output).__name__}")
            output = read_envelope(cast("Mapping[str, Any]", output))
        event = CallResponded(request_id=request_id, output=output, seq=seq, resumed=resumed)
        return self._reply(event, final=seq is None)

    def complete(self, request_id: str, seq: int | None = None) -> bool:
        """End a subscription; `seq` is the number of its last item."""
        return self._end(CallCompleted(request_id=request_id, seq=seq))

    def fail(self, request_id: str, error: CallError, *, not_started: bool = False) -> bool:
        """Fail a request. If the error is too large to be sent, its details are omitted and its message is truncated.

        `not_started`: no handler has run, and the caller may retry at another server.
        """
        for listener in self._failure_listeners:
            listener(error)
        event = replace(CallFailed.of(request_id, error), not_started=not_started or None)
        return self._end(event, replace(event, message=event.message[:_MAX_SHORT_MESSAGE_CHARACTERS], details=None))

    def stopped(self, request_id: str, reason: str) -> bool:
        """Report that a request was stopped at this peer."""
        return self._end(CallAborted(request_id=request_id, reason=reason))

    def drop(self, request_id: str) -> None:
        """Drop a request without a reply: it is a duplicate of one that has ended."""
        self._callers.pop(request_id, None)

    def send_progress(self, request_id: str, progress: Progress) -> None:
        """Send the progress of a request to its caller, unless the request has ended or the queue is full."""
        caller, event = self._callers.get(request_id), CallProgress.of(request_id, progress)
        if caller is not None and event is not None:
            self._try_send(event, caller)

    def send_question(self, event: CallQuestion) -> bool:
        """Send a question to the caller of a request. Return False if it is gone, or the question cannot be sent."""
        caller = self._callers.get(event.request_id)
        return caller is not None and self._try_send(event, caller)

    def on_failed(self, listener: Callable[[CallError], None]) -> Callable[[], None]:
        """Call the listener with the error of each request that fails here; the returned function removes it."""
        self._failure_listeners.append(listener)
        return lambda: self._failure_listeners.remove(listener) if listener in self._failure_listeners else None

    def _end(self, *alternatives: CallEvent) -> bool:
        """End a request with the first of these events that can be sent."""
        for event in alternatives:
            try:
                return self._reply(event, final=True)
            except CallError as error:
                logger.warning("%s could not be sent: %s", type(event).__name__, error)
        self.drop(alternatives[0].request_id)
        return False

    def _reply(self, event: CallEvent, *, final: bool) -> bool:
        callers, request_id = self._callers, event.request_id
        # Removed before the event is sent: the caller's reaction may arrive at once.
        caller = callers.pop(request_id, None) if final else callers.get(request_id)
        if caller is None:
            return False
        try:
            self._send(event, caller)
        except CallError as error:
            if error.code is ErrorCode.UNAVAILABLE:
                callers.pop(request_id, None)
                return False
            callers[request_id] = caller
            # Not retryable, unlike a request that was rejected: the handler has run.
            raise CallError(error.code, error.message, error.details, retryable=False) from error
        return True

    def _stop(self, request_id: str) -> None:
        """Stop the handler of a request whose caller is gone."""
        if (caller := self._callers.pop(request_id, None)) is not None and self._handler is not None:
            self._handler.aborted(CallAborted(request_id=request_id, reason="the caller is gone"), caller)

    def _refuse(self, event: CallRequested, caller: Address) -> None:
        """Reject a request if its id is in use, or nothing is served; ignore a duplicate of one in flight."""
        known_caller = self._callers.setdefault(event.request_id, caller)
        if self._handler is None:
            error = CallError(ErrorCode.UNAVAILABLE, "nothing is served here")
            self.fail(event.request_id, error, not_started=True)
        elif known_caller != caller:
            error = CallError(ErrorCode.PROTOCOL_ERROR, "the request id is in use by another caller")
            self._try_send(CallFailed.of(event.request_id, error), caller)

    # --- sending ------------------------------------------------------------------------------------------------------

    def _show(self, event: CallEvent) -> asyncio.Handle:
        """Show an event to observers after the current step; the returned handle prevents it."""
        return asyncio.get_running_loop().call_soon(self._call_observers, event)

    def _send_request(self, event: CallRequested) -> Address | None:
        """Send a request to one of the servers of its operation, as `Transport.request`."""
        showing = self._show(event) if self._observers else None
        try:
            return self.transport.request(event)
        except BaseException:
            if showing is not None:
                showing.cancel()
            raise

    def _send(self, event: CallEvent, to: Address | None) -> None:
        """Send an event to a peer, as `Transport.send`."""
        showing = self._show(event) if self._observers else None
        try:
            self.transport.send(event, to)
        except BaseException:
            if showing is not None:
                showing.cancel()
            raise

    def _try_send(self, event: CallEvent, to: Address | None) -> bool:
        """Send an event that is optional. Return False if the transport rejected it."""
        try:
            self._send(event, to)
        except CallError:
            return False
        return True

    def _call_observers(self, event: CallEvent) -> None:
        for observer in tuple(self._observers.values()):
            try:
                observer(event)
            except Exception:
                logger.exception("an observer failed on %s", type(event).__name__)

    # --- events -------------------------------------------------------------------------------------------------------

    def received(self, event: CallEvent, sender: Address) -> None:
        """Handle an event from the transport."""
        if self._observers:
            self._show(event)
        match event:
            case CallRequested():
                callers = self._callers
                if self._handler is None or event.request_id in callers:
                    self._refuse(event, sender)
                else:
                    callers[event.request_id] = sender
                    self._handler.requested(event, sender)
            case CallResponded(seq=None):
                response = self._table.answered(event.request_id, sender)
                if isinstance(response, asyncio.Future):
                    resolve(response, event.output)
                else:
                    self._arrived(event, sender)
            case CallProgress() | CallQuestion():
                self._callbacks.received(event, sender)
            case CallCredit() | CallAnswer() | CallAborted() if self._callers.get(event.request_id) == sender:
                self._changed(event, sender)
            case CallCredit() | CallAnswer():  # the request has ended
                pass
            case _:
                self._arrived(event, sender)

    def _changed(self, event: CallCredit | CallAnswer | CallAborted, sender: Address) -> None:
        """Pass on what the caller of a received request sends."""
        if isinstance(event, CallAborted):
            self.drop(event.request_id)
        if self._handler is None:
            return
        match event:
            case CallCredit():
                self._handler.granted(event, sender)
            case CallAnswer():
                self._handler.answered(event, sender)
            case CallAborted():
                self._handler.aborted(event, sender)

    def lost(self, peer: Address | None, reason: str) -> None:
        """Handle the loss of a peer, at the end of this turn of the event loop, or (None) of all of them, at once.

        All calls are searched for those of a peer, and any client of a broker can pose as thousands of callers: the
        loss of 20,000 with a call each, one by one, took more than 8 s.
        """
        if peer is None:
            self.lost_requests(self.open_requests(), reason)
            return
        if not self._lost_peers:
            asyncio.get_running_loop().call_soon(self._lose_peers)
        self._lost_peers[peer] = reason

    def _lose_peers(self) -> None:
        reasons, self._lost_peers = self._lost_peers, {}
        for peer, sink in self._table.lost(reasons):
            _fail(sink, CallError(ErrorCode.UNAVAILABLE, f"{reasons[peer]} before the call ended"))
        in_turns(self._stop, [request_id for request_id, caller in self._callers.items() if caller in reasons])

    def open_requests(self) -> list[str]:
        """Return the ids of the outgoing calls and received requests that have not ended."""
        return [*self._table, *self._callers]

    def lost_requests(self, request_ids: list[str], reason: str) -> None:
        """Handle the loss of the connection of these calls, which is not that of the others."""
        for request_id in request_ids:
            if (sink := self._table.settle(request_id)) is not None:
                _fail(sink, CallError(ErrorCode.UNAVAILABLE, f"{reason} before the call ended"))
        in_turns(self._stop, request_ids)

    def _arrived(self, event: CallEvent, sender: Address) -> None:
        arrival = self._table.arrived(event, sender)
        if arrival is None:
            if isinstance(event, CallResponded) and event.seq is not None and event.request_id not in self._table:
                self._stop_server(event.request_id, "the consumer is gone", sender)  # it missed the end
            return
        sink, value = arrival.sink, arrival.value
        if arrival.again is not None:
            self._retry(arrival.again, sink, arrival.move)
            return
        if arrival.stop is not None:
            self._stop_server(event.request_id, arrival.stop, sender)
        if isinstance(sink, Inbox):
            if arrival.final:
                sink.end(value)
            elif not sink.put(value):
                self._table.settle(event.request_id)
                sink.end(sink.overflowed())
                self._stop_server(event.request_id, "the consumer is too slow", sender)
        elif isinstance(value, CallError):
            reject(sink, value)
        else:
            resolve(sink, value)

    def _retry(self, event: CallRequested, sink: _Sink, move: int) -> None:
        """Send a request that was not started to another server, in the time that is left."""
        if event.deadline is not None:
            event = replace(event, timeout_ms=event.deadline - time.time() * 1000)
        try:
            to = self._send_request(event)
        except CallError as error:
            self._table.settle(event.request_id)
            _fail(sink, error)
        else:
            if to is not None:
                self._table.routed(event.request_id, to, move)


def _fail(sink: _Sink, error: CallError) -> None:
    if isinstance(sink, Inbox):
        sink.end(error)
    else:
        reject(sink, error)
