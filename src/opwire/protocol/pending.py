"""`PendingRequestMap`: one end of the call protocol, with its outgoing calls and the requests that it received.

`CallTable` holds the state of outgoing calls without I/O; this module adds futures, timers and a transport.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Self, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from opwire.errors import CallError, ConversionError, ErrorCode, check_above_zero, check_counts
from opwire.model.context import Context, Progress
from opwire.model.envelope import ResponseEnvelope, is_response_envelope, read_envelope
from opwire.model.operation import Interceptor, OperationType
from opwire.protocol.call_table import CallTable, Inbox, Overflow, RemoteStreamOptions, StallWatch, Window
from opwire.protocol.caller_callbacks import CallerCallbacks, EventObservers
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
from opwire.protocol.transport import Address, CallRoute, RemoteCallOptions, Transport, random_ids, request_event
from opwire.registry.invoke import Interceptors, Run
from opwire.registry.pipeline import typed_envelope
from opwire.runtime.deadlines import MAX_SECONDS, Deadlines
from opwire.runtime.tasks import AsyncResource, in_turns, reject, resolve
from opwire.runtime.text import get_logger

logger = get_logger("opwire.protocol")

T = TypeVar("T")

DEFAULT_TIMEOUT = 30.0
"""Default timeout of a call, in seconds."""

WINDOW = 64
"""Default number of items of a subscription that may be in flight or buffered."""

_REMEMBERED = 10_000  # request ids from contexts, so that none is used twice; servers remember as many
_BREATH = 64  # calls that ended at once after which one yields to other tasks
_SHORT = 200  # characters of an error message that fit into any message

_Sink = asyncio.Future[ResponseEnvelope[Any]] | Inbox
_NO_CONTEXT = Context()


class PendingRequestMap(AsyncResource):
    """One end of the call protocol on a transport.

        async with PendingRequestMap(transport) as calls:
            envelope = await calls.call("math.add", {"a": 1, "b": 2})
            async for envelope in calls.subscribe("clock.ticks"):
                ...

    Every call ends exactly once: with an envelope or with a `CallError`.
    """

    def __init__(self, transport: Transport, *, timeout: float = DEFAULT_TIMEOUT, window: int = WINDOW) -> None:
        check_counts(window=window)
        check_above_zero(timeout=timeout)
        self.transport = transport
        self._timeout, self._window = timeout, window
        self._outbox = Outbox()
        self._table: CallTable[_Sink] = CallTable()
        self._deadlines, self._ids = Deadlines(), random_ids(12)
        self._callers: dict[str, Address] = {}  # of received requests, by request id
        self._gone: dict[Address, str] = {}  # peers that were lost in this turn of the event loop, and why
        self._handler: RequestHandler | None = None
        self._interceptors, self._observers = Interceptors(), EventObservers()
        self._failure_listeners: list[Callable[[CallError], None]] = []
        self._callbacks = CallerCallbacks(self._table, self._try_send)
        self._used: OrderedDict[str, None] = OrderedDict()  # the latest request ids taken from contexts
        self._closed, self._immediate = False, 0  # the latter: calls that ended without a turn of the event loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self.dropped_items = 0

    def __repr__(self) -> str:
        return f"<PendingRequestMap over {self.transport!r}, {self.open_calls} open calls>"

    async def start(self) -> Self:
        """Connect the transport.

        Raises:
            CallError: UNAVAILABLE.
        """
        self._loop = asyncio.get_running_loop()
        self._deadlines.bind()
        await self.transport.start(self)
        return self

    async def close(self) -> None:
        """Close the transport. Pending calls fail at once with UNAVAILABLE."""
        self._closed = True
        self.lost(None, "the connection was closed")
        await self.transport.close()

    @property
    def open_calls(self) -> int:
        """Number of outgoing calls and received requests that have not ended."""
        return len(self._table) + len(self._callers)

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every outgoing call, inside those already installed.

        The returned function removes it. It runs for each call, with its options; the spec has the id, and its type
        says only whether it is a subscription.
        """
        return self._interceptors.use(interceptor)

    def on_failed(self, listener: Callable[[CallError], None]) -> Callable[[], None]:
        """Call the listener with the error of each request that fails here; the returned function removes it."""
        self._failure_listeners.append(listener)
        return lambda: self._failure_listeners.remove(listener) if listener in self._failure_listeners else None

    # --- calling ------------------------------------------------------------------------------------------------------

    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: type[T], **options: Unpack[RemoteCallOptions]
    ) -> ResponseEnvelope[T]: ...
    @overload
    async def call(
        self, operation_id: str, input: Any = None, *, output_type: Any = None, **options: Unpack[RemoteCallOptions]
    ) -> ResponseEnvelope[Any]: ...
    def call(
        self,
        operation_id: str,
        input: Any = None,
        *,
        context: Context | None = None,
        output_type: Any = None,
        timeout: float | None = None,
        **route: Unpack[CallRoute],
    ) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Call a query or mutation at a peer. With `output_type`, the data of the envelope has that type.

        `to` is the address of a server that has to handle the call; by default any server of the operation does. Calls
        with the same `sticky_key` go to the same server, if the transport supports it; `version` asks for a version of
        the operation.

        Raises:
            CallError: the call failed, there or in transit; TIMEOUT if no response arrived in time.
        """
        context = _NO_CONTEXT if context is None else context
        if output_type is None and not self._interceptors.installed:  # not a coroutine around it: 0.3 µs
            return self._call(operation_id, input, context, timeout=timeout, route=route)
        bare = partial(self._call, operation_id, timeout=timeout, route=route)
        return self._wrapped_call(operation_id, bare, input, context, output_type)

    async def _wrapped_call(
        self, operation_id: str, bare: Run, input: Any, context: Context, output_type: Any
    ) -> ResponseEnvelope[Any]:
        if self._interceptors.installed:
            bare = self._interceptors.remote(operation_id, OperationType.QUERY, bare).execute
        envelope = await bare(input, context)
        return envelope if output_type is None else typed_envelope(envelope, output_type, operation_id)

    async def _call(
        self, operation_id: str, input: Any, context: Context, *, timeout: float | None, route: CallRoute
    ) -> ResponseEnvelope[Any]:
        began = time.monotonic()
        seconds = self._timeout if timeout is None else timeout
        deadline = began + (seconds if seconds < MAX_SECONDS else MAX_SECONDS)  # as the server counts it
        if context.deadline is not None and context.deadline < deadline:
            deadline = context.deadline
        # `get_running_loop` is a system call on Python 3.11: 0.2 µs.
        response: asyncio.Future[ResponseEnvelope[Any]] = (self._loop or asyncio.get_running_loop()).create_future()
        try:
            request_id = self._request(operation_id, input, context, response, deadline - began, None, route)
        except CallError as error:
            if not is_full(error):
                raise
            later = partial(self._request, operation_id, input, context, response, credits=None, route=route)
            request_id = await self._send_later(later, deadline, route.get("to"))
        if response.done():  # a handler in this process that did not suspend
            self._immediate += 1
            if self._immediate % _BREATH == 0:
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
        bare = partial(self._stream, operation_id, idle_timeout=idle_timeout, overflow=overflow, **route)
        if self._interceptors.installed:
            bare = self._interceptors.remote(operation_id, OperationType.SUBSCRIPTION, bare).subscribe
        async with aclosing(bare(input, context)) as items:
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
        **route: Unpack[CallRoute],
    ) -> AsyncGenerator[ResponseEnvelope[Any]]:
        inbox = Inbox(self._window, overflow)
        window = Window(self._window, overflow, is_local=self.transport.local)
        remaining = context.remaining
        if remaining is not None and not remaining < MAX_SECONDS:
            remaining = None  # servers count a day at most: it is enforced at this end only
        try:
            request_id = self._request(operation_id, input, context, inbox, remaining, window.granted, route)
        except CallError as error:
            if not is_full(error):
                raise
            later = partial(self._request, operation_id, input, context, inbox, credits=window.granted, route=route)
            request_id = await self._send_later(later, context.deadline, route.get("to"))
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
                if more := window.take(item):
                    self._grant(watch, more)
        finally:
            self._deadlines.discard(watch, watch.tick)
            self.dropped_items += inbox.dropped
            self.abort(request_id, "the consumer left")
            self._callbacks.cancel(request_id)

    def _grant(self, watch: StallWatch, n: int) -> None:
        """Grant `n` more items; 0 repeats the total."""
        if watch.request_id not in self._table:
            return
        window, received = watch.window, self._table.received(watch.request_id)
        event = CallCredit(request_id=watch.request_id, n=n, total=window.granted, received=received)
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
        late = CallError(ErrorCode.TIMEOUT, "no response arrived before the deadline")
        self._give_up(request_id, late, "the deadline has passed")

    def _give_up(self, request_id: str, error: CallError, reason: str | None) -> bool:
        peer, sink = self._table.peer(request_id), self._table.settle(request_id)
        if sink is None:
            return False
        self._try_send(CallAborted(request_id=request_id, reason=reason), peer)
        _fail(sink, error)
        return True

    def _request(  # noqa: PLR0917 - keywords take 0.5 µs
        self,
        operation_id: str,
        input: Any,
        context: Context,
        sink: _Sink,
        remaining: float | None,
        credits: int | None,
        route: CallRoute,
    ) -> str:
        # A call with the context of a served call is its child, as by `Context.child`.
        wanted = context.request_id if context.inbound is None else None
        if wanted is None or wanted in self._used or wanted in self._table:  # it would be a duplicate for servers
            wanted, request_id = None, next(self._ids)
        else:
            request_id = wanted
        event = request_event(request_id, operation_id, input, context, self, remaining, credits, route)
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is closed")
        if wanted is not None:
            self._used[wanted] = None
            if len(self._used) > _REMEMBERED:
                self._used.popitem(last=False)
        to, on_progress = route.get("to"), context.on_progress if event.progress else None
        self._table.open(event, sink, on_progress, context.on_question, streams=credits is not None, movable=to is None)
        try:
            to = self._send(event, to) if to is not None or self._observers.added else self.transport.request(event)
        except BaseException:
            self._table.settle(request_id)
            self._used.pop(request_id, None)
            raise
        if to is not None:
            self._table.routed(request_id, to)
        return request_id

    async def _send_later(
        self, request: Callable[[float | None], str], deadline: float | None, to: Address | None
    ) -> str:
        """Send a request that does not fit into the queue of the connection as soon as it does."""

        def send() -> str:
            return request(None if deadline is None else deadline - time.monotonic())

        late = "the request could not be sent"
        return await self._deadlines.limit(partial(self._outbox.send, to, send), deadline, late)

    # --- replies ------------------------------------------------------------------------------------------------------

    def serve_with(self, handler: RequestHandler | None) -> None:
        """Dispatch received requests to this handler."""
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
        return self._finish(CallCompleted(request_id=request_id, seq=seq))

    def fail(self, request_id: str, error: CallError, *, not_started: bool = False) -> bool:
        """Fail a request. If the error is too large to be sent, its details are omitted and its message is truncated.

        `not_started`: no handler has run, and the caller may retry at another server.
        """
        for listener in self._failure_listeners:
            listener(error)
        event = replace(CallFailed.of(request_id, error), not_started=not_started or None)
        return self._finish(event, replace(event, message=event.message[:_SHORT], details=None))

    def report(self, request_id: str, progress: Progress) -> None:
        """Send the progress of a request to its caller, unless the request has ended or the queue is full."""
        caller, event = self._callers.get(request_id), CallProgress.of(request_id, progress)
        if caller is not None and event is not None:
            self._try_send(event, caller)

    def ask(self, event: CallQuestion) -> bool:
        """Send a question to the caller of a request. Return False if it is gone, or the question cannot be sent."""
        return (caller := self._callers.get(event.request_id)) is not None and self._try_send(event, caller)

    def stopped(self, request_id: str, reason: str) -> bool:
        """Report that a request was stopped at this end."""
        return self._finish(CallAborted(request_id=request_id, reason=reason))

    def forget(self, request_id: str) -> None:
        """Drop a request without a reply: it is a duplicate of one that has ended."""
        self._callers.pop(request_id, None)

    def _finish(self, *choices: CallEvent) -> bool:
        """End a request with the first of these events that can be sent."""
        for event in choices:
            try:
                return self._reply(event, final=True)
            except CallError as error:
                logger.warning("%s could not be sent: %s", type(event).__name__, error)
        self.forget(choices[0].request_id)
        return False

    def _reply(self, event: CallEvent, *, final: bool) -> bool:
        callers, request_id = self._callers, event.request_id
        # Removed before the event is sent: the caller's reaction may arrive at once.
        caller = callers.pop(request_id, None) if final else callers.get(request_id)
        if caller is None:
            return False
        try:
            (self._send if self._observers.added else self.transport.send)(event, caller)
        except CallError as error:
            if error.code is ErrorCode.UNAVAILABLE:
                self._callers.pop(event.request_id, None)
                return False
            self._callers[event.request_id] = caller
            # Not retryable, unlike a request that was rejected: the handler has run.
            raise CallError(error.code, error.message, error.details, retryable=False) from error
        return True

    # --- events -------------------------------------------------------------------------------------------------------

    def received(self, event: CallEvent, sender: Address) -> None:
        """Handle an event from the transport."""
        if self._observers.added:
            self._observers.show(event)
        if type(event) is CallRequested:  # the most frequent events first
            if self._handler is None or event.request_id in self._callers:
                self._unhandled(event, sender)
            else:
                self._callers[event.request_id] = sender
                self._handler.requested(event, sender)
            return
        if type(event) is CallResponded and event.seq is None:
            response = self._table.answered(event.request_id, sender)
            if isinstance(response, asyncio.Future):
                if not response.done():
                    response.set_result(event.output)
                return
        self._steered(event, sender)

    def _steered(self, event: CallEvent, sender: Address) -> None:
        match event:
            case CallCredit() | CallAnswer():
                if self._handler is not None:
                    self._handler.steered(event, sender)
            case CallAborted() if self._callers.get(event.request_id) == sender:
                del self._callers[event.request_id]
                if self._handler is not None:
                    self._handler.aborted(event, sender)
            case CallProgress() | CallQuestion():
                self._callbacks.received(event, sender)
            case _:
                self._arrived(event, sender)

    def lost(self, peer: Address | None, reason: str) -> None:
        """Handle the loss of a peer, at the end of this turn of the event loop, or (None) of all of them, at once.

        All calls are searched for those of a peer, and any client of a broker can pose as thousands of callers: the
        loss of 20,000 with a call each, one by one, took more than 8 s.
        """
        if peer is None:
            self.lost_requests(self.open_requests(), reason)
            return
        if not self._gone:
            asyncio.get_running_loop().call_soon(self._lose_peers)
        self._gone[peer] = reason

    def _lose_peers(self) -> None:
        gone, self._gone = self._gone, {}
        for peer, sink in self._table.lost(gone):
            _fail(sink, CallError(ErrorCode.UNAVAILABLE, f"{gone[peer]} before the call ended"))
        in_turns(self._stop, [request_id for request_id, caller in self._callers.items() if caller in gone])

    def open_requests(self) -> list[str]:
        """Return the ids of the outgoing calls and received requests that have not ended."""
        return [*self._table, *self._callers]

    def lost_requests(self, request_ids: list[str], reason: str) -> None:
        """Handle the loss of the connection of these calls, which is not that of the others."""
        for request_id in request_ids:
            if (sink := self._table.settle(request_id)) is not None:
                _fail(sink, CallError(ErrorCode.UNAVAILABLE, f"{reason} before the call ended"))
        in_turns(self._stop, request_ids)

    def _stop(self, request_id: str) -> None:
        if (caller := self._callers.pop(request_id, None)) is not None and self._handler is not None:
            self._handler.aborted(CallAborted(request_id=request_id, reason="the caller is gone"), caller)

    def _unhandled(self, event: CallRequested, caller: Address) -> None:
        """Reject a request if its id is in use, or nothing is served; ignore a duplicate of one in flight."""
        other = self._callers.get(event.request_id)
        if other is None:
            self._callers[event.request_id] = caller
            self.fail(event.request_id, CallError(ErrorCode.UNAVAILABLE, "nothing is served here"), not_started=True)
        elif other != caller:
            error = CallError(ErrorCode.PROTOCOL_ERROR, "the request id is in use by another caller")
            self._try_send(CallFailed.of(event.request_id, error), caller)

    def _arrived(self, event: CallEvent, sender: Address) -> None:
        arrival = self._table.arrived(event, sender)
        if arrival is None:
            if isinstance(event, CallResponded) and event.seq is not None and event.request_id not in self._table:
                # The subscription has ended here, and its producer missed that.
                self._try_send(CallAborted(request_id=event.request_id, reason="the consumer is gone"), sender)
            return
        sink, value = arrival.sink, arrival.value
        if arrival.again is not None:
            self._retry(arrival.again, sink, arrival.move)
            return
        if arrival.stop is not None:
            self._try_send(CallAborted(request_id=event.request_id, reason=arrival.stop), sender)
        if isinstance(sink, Inbox):
            if arrival.final:
                sink.end(value)
            elif not sink.put(value):
                self._table.settle(event.request_id)
                sink.end(sink.overflowed())
                self._try_send(CallAborted(request_id=event.request_id, reason="the consumer is too slow"), sender)
        elif isinstance(value, CallError):
            reject(sink, value)
        else:
            resolve(sink, value)

    def _retry(self, event: CallRequested, sink: _Sink, move: int) -> None:
        """Send a request that was not started to another server, in the time that is left."""
        if event.deadline is not None:
            event = replace(event, timeout_ms=event.deadline - time.time() * 1000)
        try:
            to = self._send(event, None)
        except CallError as error:
            self._table.settle(event.request_id)
            _fail(sink, error)
        else:
            if to is not None:
                self._table.routed(event.request_id, to, move)

    def _send(self, event: CallEvent, to: Address | None) -> Address | None:
        """Send an event, or route a request; return the peer, if it is known. Rejected events are not observed."""
        shown = self._observers.show(event) if self._observers.added else None
        try:
            if to is None and isinstance(event, CallRequested):
                return self.transport.request(event)
            self.transport.send(event, to)
        except BaseException:
            if shown is not None:
                shown.cancel()
            raise
        return to

    def _try_send(self, event: CallEvent, to: Address | None) -> bool:
        """Send an event that is optional. Return False if the transport rejected it."""
        try:
            self._send(event, to)
        except CallError:
            return False
        return True

    # --- observers ----------------------------------------------------------------------------------------------------

    def observe(self, observer: Callable[[CallEvent], None]) -> Callable[[], None]:
        """Call an observer with every event that is sent or received. Return a function that removes it.

        Observers run after the step that they observe and cannot fail it. They see a cause before its effect.
        """
        return self._observers.add(observer)


def _fail(sink: _Sink, error: CallError) -> None:
    if isinstance(sink, Inbox):
        sink.end(error)
    else:
        reject(sink, error)
