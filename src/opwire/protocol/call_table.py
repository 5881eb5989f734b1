"""The state of a caller: its open calls, and the flow control of its subscriptions.

`CallTable` has no I/O, no clock and no tasks. Its rules:

1. An entry leaves the table in the same step that decides its outcome, so no call is settled twice.
2. Events for calls that are not open are dropped and counted; late and duplicate replies are normal.
3. Only one peer can reply: the one that the transport routed the request to or, if that is unknown, the first sender.
4. Progress and questions of an open call are passed to its callbacks, and do not end it.
5. A request that a server rejected before it started is retried at another server, a few times.

Flow control of a subscription: the consumer has a bounded buffer (`Inbox`) and a `Window`, the producer has `Credits`.
Grants are totals since the start of the subscription, so a repeated grant changes nothing and a lost one is replaced
by the next. A consumer that waits for an item repeats its grant together with the number of items it has received, so
that a lost grant and a lost item are both detected, by whichever end is still waiting.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from opwire.errors import CallError, ErrorCode, resume_error
from opwire.model.context import Progress
from opwire.model.envelope import ResponseEnvelope
from opwire.model.questions import QuestionCallback
from opwire.protocol.events import (
    CallAborted,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallProgress,
    CallQuestion,
    CallRequested,
    CallResponded,
    encode_event,
    is_final,
)
from opwire.protocol.transport import Address, RemoteCallOptions

S = TypeVar("S")

Dropped = Literal["unknown", "foreign", "duplicate"]

_MAX_RETRIES = 4


class Arrival(Struct, Generic[S], frozen=True):
    """The effect of an event on a call. `value` None with `final` is the end of a subscription.

    `stop` is the reason to send to a server that continues although the call has ended here. `again` is a request to
    send once more, because its server has not started it; the call is still open.
    """

    sink: S
    value: Any  # an envelope, a `CallError` or None
    final: bool
    stop: str | None = None
    again: CallRequested | None = None
    move: int = 0


class _OpenCall(Struct, Generic[S]):
    request: CallRequested
    sink: S
    streams: bool
    moves_left: int
    on_progress: Callable[[Progress], object] | None
    on_question: QuestionCallback | None
    move: int = 0  # retries so far
    peer: Address | None = None
    last_seq: int = 0


class CallTable(Generic[S]):
    """The open calls of one caller, by request id. `sink` is the caller's own object for delivering the outcome."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenCall[S]] = {}
        self.dropped: Counter[Dropped] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def open(
        self,
        request: CallRequested,
        sink: S,
        on_progress: Callable[[Progress], object] | None = None,
        on_question: QuestionCallback | None = None,
        *,
        streams: bool,
        movable: bool = True,
    ) -> None:
        """Add a request that is about to be sent. `movable`: any server can handle it.

        Raises:
            ValueError: the request id is in use.
        """
        if request.request_id in self._open:
            raise ValueError(f"the request id {request.request_id!r} is in use")
        moves = _MAX_RETRIES if movable else 0
        self._open[request.request_id] = _OpenCall(request, sink, streams, moves, on_progress, on_question)

    def routed(self, request_id: str, peer: Address, move: int = 0) -> None:
        """Record the peer that the transport sent a request to.

        `move` is that of the arrival that asked for the retry. If a later retry has started, ignore it: within one
        process a rejection arrives before `request` returns.
        """
        call = self._open.get(request_id)
        if call is not None and call.move == move:
            call.peer = peer

    def peer(self, request_id: str) -> Address | None:
        """Return the server of an open call, if it is known."""
        call = self._open.get(request_id)
        return None if call is None else call.peer

    def received(self, request_id: str) -> int:
        """Return the number of the last item of an open subscription."""
        call = self._open.get(request_id)
        return 0 if call is None else call.last_seq

    def answered(self, request_id: str, sender: Address) -> S | None:
        """End a call by its only response and return its sink; None if `arrived` has to decide what the response is."""
        call = self._open.get(request_id)
        if call is None or call.streams or (call.peer is not None and call.peer != sender):
            return None
        del self._open[request_id]
        return call.sink

    def arrived(self, event: CallEvent, sender: Address) -> Arrival[S] | None:
        """Apply an event. Return its effect, or None if it is dropped (and counted)."""
        call = self._open.get(event.request_id)
        if call is None:
            return self._drop("unknown")
        if call.peer is None:
            call.peer = sender
        elif call.peer != sender:
            return self._drop("foreign")
        if isinstance(event, CallResponded):
            if not is_final(event, streams=call.streams):
                return self._item(event, call)
            del self._open[event.request_id]
            return Arrival(call.sink, event.output, True)
        if not is_final(event, streams=call.streams):
            return self._drop("unknown")
        if isinstance(event, CallFailed) and event.not_started and call.moves_left and not call.last_seq:
            call.moves_left -= 1
            call.move += 1
            call.peer = None
            return Arrival(call.sink, None, False, again=call.request, move=call.move)
        del self._open[event.request_id]
        value, stop = _outcome(event, call)
        return Arrival(call.sink, value, True, stop)

    def progressed(self, event: CallProgress, sender: Address) -> Callable[[Progress], object] | None:
        """Return the callback for the progress of a call, or None if it is dropped (and counted).

        It does not decide which peer may reply: a late report of a server that rejected the request would be the first
        event of the retry.
        """
        call = self._open.get(event.request_id)
        if call is None or call.on_progress is None:
            return self._drop("unknown")
        return call.on_progress if call.peer in (None, sender) else self._drop("foreign")

    def questioned(self, event: CallQuestion, sender: Address) -> QuestionCallback | None:
        """Return the callback for questions of a call, or None if this one is dropped (and counted)."""
        call = self._open.get(event.request_id)
        if call is None or call.on_question is None:
            return self._drop("unknown")
        if call.peer is None:
            call.peer = sender
        return call.on_question if call.peer == sender else self._drop("foreign")

    def _item(self, event: CallResponded, call: _OpenCall[S]) -> Arrival[S] | None:
        seq = call.last_seq + 1 if event.seq is None else event.seq
        if not call.streams:
            error = CallError(ErrorCode.VALIDATION_ERROR, "this is a subscription: use subscribe(), not call()")
            stop = "a single response was expected, not a subscription"
        elif seq <= call.last_seq:
            return self._drop("duplicate")
        elif seq == 1 and call.request.resume_from is not None and not event.resumed:
            stop = "the subscription was not resumed"
            error = resume_error(f"{call.request.operation_id} starts over: its server does not support resume_from")
        elif seq == call.last_seq + 1:
            call.last_seq = seq
            return Arrival(call.sink, event.output, False)
        else:
            error, stop = _gap(call)
        del self._open[event.request_id]
        return Arrival(call.sink, error, True, stop)

    def settle(self, request_id: str) -> S | None:
        """Remove a call that the caller ends itself (timeout, abort). Return its sink, or None if it is not open."""
        call = self._open.pop(request_id, None)
        return None if call is None else call.sink

    def lost(self, peers: Container[Address]) -> Iterator[tuple[Address, S]]:
        """Remove the calls of lost peers, and yield the peer and the sink of each."""
        for request_id, call in list(self._open.items()):
            if call.peer is not None and call.peer in peers:
                del self._open[request_id]
                yield call.peer, call.sink

    def _drop(self, why: Dropped) -> None:
        self.dropped[why] += 1


def _outcome(event: CallEvent, call: _OpenCall[Any]) -> tuple[CallError | None, str | None]:
    """Return the error of an event that ends a call without a response, and the reason for a server that continues."""
    match event:
        case CallFailed():
            return event.error(), None
        case CallAborted():
            return CallError(ErrorCode.ABORTED, event.reason or "the server stopped the call"), None
        case _ if not call.streams:
            return CallError(ErrorCode.PROTOCOL_ERROR, "the call was completed without a response"), None
        case CallCompleted() if event.seq not in (None, call.last_seq):
            return _gap(call)
        case _:
            return None, None


def _gap(call: _OpenCall[Any]) -> tuple[CallError, str]:
    reason = f"item {call.last_seq + 1} of the subscription was lost in transit"
    return CallError(ErrorCode.UNAVAILABLE, reason), reason


Overflow = Literal["block", "error", "drop_oldest", "drop_newest", "latest"]
"""Policy of a full buffer: slow the producer down (by credits), end the stream with an error, or drop items."""

MAX_EXCESS = 4 * 1024 * 1024
"""Bytes buffered beyond the window for a producer that ignores credits."""

MAX_WINDOW = 4 * 1024 * 1024
"""Bytes, about, that a consumer grants in advance."""

EVERYTHING = 2**53 - 1
"""Credits of an unlimited stream: JavaScript's largest safe integer."""

_FIRST_WINDOW_ITEMS = 8  # before the size of one is known
_FIRST_STALL_SECONDS = 1.0  # without an item, after which a consumer first repeats its grant
_MAX_STALL_SECONDS = 4.0
_ITEM_OVERHEAD_BYTES = 512
_MIN_STALL_REPORTS = 3  # after which an item that was sent before the first of them counts as lost


class RemoteStreamOptions(RemoteCallOptions, total=False):
    """Keyword arguments of `PendingRequestMap.subscribe`, except for `output_type`."""

    idle_timeout: float | None
    overflow: Overflow


def _wire_size(item: ResponseEnvelope[Any]) -> int:
    """Return the encoded size of an item. One that cannot be encoded never crossed a network, and fills the buffer."""
    try:
        return len(encode_event(CallResponded(request_id="", output=item), limit=MAX_EXCESS))
    except CallError:
        return MAX_EXCESS + 1


class _Signal:
    """Wakes a single waiting task. Nothing is allocated unless a task waits."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Inbox:
    """The buffer of a subscription: items that were received and not consumed yet, and the end of the stream.

    `size` measures an item in bytes. It is called only for items beyond the window, from a producer that ignores
    credits: such a stream is bounded in bytes.
    """

    __slots__ = ("_error", "_excess", "_items", "_limit", "_news", "_overflow", "_size", "dropped", "ended")

    def __init__(
        self, limit: int, overflow: Overflow, size: Callable[[ResponseEnvelope[Any]], int] = _wire_size
    ) -> None:
        self._size = size
        self._excess = 0  # bytes accepted beyond the window since the buffer was last below it
        self._limit = 1 if overflow == "latest" else limit
        self._overflow: Overflow = overflow
        self._items: deque[ResponseEnvelope[Any]] = deque()
        self._error: CallError | None = None
        self._news = _Signal()
        self.ended = False
        self.dropped = 0

    def __len__(self) -> int:
        """Return the number of buffered items."""
        return len(self._items)

    @property
    def waiting(self) -> bool:
        """Whether the consumer has taken every received item, and waits for the next."""
        return not self._items and not self.ended

    def put(self, item: ResponseEnvelope[Any]) -> bool:
        """Buffer an item. Return False if the buffer is full and its policy is to end the stream."""
        if len(self._items) < self._limit:
            self._excess = 0
        elif self._overflow == "block":
            self._excess += _ITEM_OVERHEAD_BYTES + self._size(item)
            if self._excess > MAX_EXCESS:
                return False
        elif self._overflow == "error":
            return False
        else:
            self.dropped += 1
            if self._overflow == "drop_newest":
                return True
            self._items.popleft()
        self._items.append(item)
        self._news.set()
        return True

    def end(self, error: CallError | None) -> None:
        """End the stream, with an error or without. Buffered items are still consumed first."""
        self.ended, self._error = True, error
        self._news.set()

    def overflowed(self) -> CallError:
        """Return the error of a stream that its consumer did not read fast enough."""
        if self._overflow == "block":
            full = f"the producer ignores credits, and {MAX_EXCESS:,} bytes are buffered beyond the window"
        else:
            full = f"{self._limit} items were buffered when the next one arrived"
        return CallError(ErrorCode.ABORTED, f"the consumer is too slow: {full}")

    async def get(self) -> ResponseEnvelope[Any] | None:
        """Return the next item, or None at the end of the stream.

        Raises:
            CallError: the stream ended with this error.
        """
        while not self._items:
            if self._error is not None:
                raise self._error
            if self.ended:
                return None
            await self._news.wait()
        return self._items.popleft()


class Window:
    """The consumer's side of flow control: how many items it has granted, and when to grant more.

    `size` are items, fewer if they are large: what is granted and not consumed takes about `MAX_WINDOW` bytes, since it
    is buffered on the way, by hubs and brokers that close a connection above a limit. Not so within one process, where
    items are not measured.
    """

    __slots__ = ("_blocks", "_consumed", "_is_local", "_item", "_now", "_size", "_taken", "granted", "unsent")

    def __init__(self, size: int, overflow: Overflow, *, is_local: bool = False) -> None:
        self._size = size
        self._is_local = is_local
        self._now = size if is_local else min(size, _FIRST_WINDOW_ITEMS)  # the window in items, at the moment
        self._item = 0  # bytes of a large item
        self._blocks = overflow == "block"
        self._taken = 0  # items consumed since the window was last measured
        self._consumed = 0  # before that
        self.granted = self._now if self._blocks else EVERYTHING
        self.unsent = False  # the transport rejected the last grant

    def take(self, item: ResponseEnvelope[Any]) -> int:
        """Count a consumed item. Return how many items to grant now: half a window at a time, otherwise 0."""
        self._taken += 1
        if not self._blocks or self._taken * 2 < self._now:
            return 0
        self._consumed += self._taken
        self._taken = 0
        if not self._is_local:  # one item of many, since it takes as long as to encode it
            self._item = max(_wire_size(item), self._item // 2)
            self._now = min(self._size, max(2, MAX_WINDOW // self._item))
        more = max(0, self._consumed + self._now - self.granted)
        self.granted += more
        return more


class StallWatch(Struct, eq=False):
    """Watches a subscription for a lost grant or item."""

    request_id: str
    inbox: Inbox
    window: Window
    pause: float = _FIRST_STALL_SECONDS  # seconds until the next check
    received: int = 0  # items at the last check
    tick: int = 0

    def stalled(self, received: int, *, lossy: bool) -> bool:
        """Return whether to repeat the grant: no item has arrived, and the last grant may be lost or unsent."""
        if received != self.received or not self.inbox.waiting:
            self.received, self.pause = received, _FIRST_STALL_SECONDS
            return False
        if not lossy and not self.window.unsent:
            return False
        self.pause = min(2 * self.pause, _MAX_STALL_SECONDS)
        return True


class Credits:
    """The producer's side of flow control: how many items it may still send. `initial` None is unlimited.

    `sent` counts items when they are sent, not when they may be: a producer can take any time for the next one.
    """

    __slots__ = ("_granted", "_news", "_reports", "_stalled_at", "sent")

    def __init__(self, initial: int | None) -> None:
        self._granted = EVERYTHING if initial is None else min(initial, EVERYTHING)
        self.sent = 0
        self._stalled_at: tuple[int, int] = (0, 0)  # items received and sent at the first report of a waiting consumer
        self._reports = 0
        self._news = _Signal()

    def grant(self, event: CallCredit) -> None:
        """Raise the total. A peer that does not send totals grants increments."""
        total = min(self._granted + event.n if event.total is None else event.total, EVERYTHING)
        if total > self._granted:
            self._granted = total
            self._news.set()

    def lost_item(self, event: CallCredit) -> int | None:
        """Return the number of an item that was lost, according to the reports of a waiting consumer, or None.

        One report proves nothing, since items may be in flight. Several in a row with the same number do.
        """
        received = event.received
        if event.n or received is None or received >= self.sent:
            self._reports = 0
            return None
        if not self._reports or received != self._stalled_at[0]:
            self._stalled_at, self._reports = (received, self.sent), 1
            return None
        self._reports += 1
        return received + 1 if self._reports >= _MIN_STALL_REPORTS and received < self._stalled_at[1] else None

    async def ready(self) -> None:
        """Wait until an item may be sent."""
        while self.sent >= self._granted:
            await self._news.wait()
