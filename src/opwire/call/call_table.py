"""The books of one caller: which of its calls are open, and what each event that arrives means for them.

No I/O, no clock, no tasks: everything that opens, settles or drops a call is in this file.
Rule 1: an entry leaves the books in the same step that decides its outcome, so that no call is settled twice.
Rule 2: an event for a call that is not open is dropped and counted; late and duplicate answers are normal.
Rule 3: only the peer that a request was routed to can answer it.
Rule 4: a request that a server refused before anything was begun is asked of another one, a few times.

Flow control of one subscription: the bounded buffer and the window of its consumer, the credits of its producer.

Grants are totals since the start of the subscription, so that a repeated one changes nothing and a lost one is replaced
by the next. A consumer that waits for an item repeats its grant together with the number of items that it has received:
a lost grant and a lost item are both noticed, by whichever end is still waiting.

Whoever watches events read-only: a tape, metrics, an audit.

What calls and subscriptions take beside the call itself.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Literal, TypedDict, TypeVar

from msgspec import Struct

from opwire.call.events import (
    CallAborted,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallRequested,
    CallResponded,
)
from opwire.call.transport import Address
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode

S = TypeVar("S")

Dropped = Literal["unknown", "foreign", "duplicate"]

_MOVES = 4


class Arrival(Struct, Generic[S], frozen=True):
    """What an event means: for whom, what, and whether it is the end. `value` None is the end of a subscription.

    `stop` is the reason to give to a server that goes on although the call has ended here. `again` is a request to be
    sent once more, since the server that got it has not begun it; the call is still open.
    """

    sink: S
    value: ResponseEnvelope[Any] | CallError | None
    final: bool
    stop: str | None = None
    again: CallRequested | None = None
    move: int = 0


class _OpenCall(Struct, Generic[S]):
    request: CallRequested
    sink: S
    streams: bool
    moves: int  # how often it may still be asked of another server
    move: int = 0  # how often it was
    peer: Address | None = None
    last_seq: int = 0


class CallTable(Generic[S]):
    """Open calls by request id. A `sink` is whatever the owner wants to be told through."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenCall[S]] = {}
        self.dropped: Counter[Dropped] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def open(self, request: CallRequested, sink: S, *, streams: bool, movable: bool = True) -> None:
        """A request is about to leave. `movable`: any server can answer it.

        Raises:
            ValueError: the id is in use.
        """
        if request.request_id in self._open:
            raise ValueError(f"the request id {request.request_id!r} is in use")
        self._open[request.request_id] = _OpenCall(request, sink, streams, _MOVES if movable else 0)

    def routed(self, request_id: str, peer: Address | None, move: int = 0) -> None:
        """The request went to this peer, or to one that its first event will name.

        `move` is of the arrival that said to ask again. If that was not the last one, a faster word has come: within
        one process a refusal arrives before `request` returns.
        """
        entry = self._open.get(request_id)
        if entry is not None and peer is not None and entry.move == move:
            entry.peer = peer

    def peer(self, request_id: str) -> Address | None:
        """Who serves an open call, as far as is known."""
        entry = self._open.get(request_id)
        return None if entry is None else entry.peer

    def received(self, request_id: str) -> int:
        """Return the number of the last item of an open subscription."""
        entry = self._open.get(request_id)
        return 0 if entry is None else entry.last_seq

    def arrived(self, event: CallEvent, sender: Address) -> Arrival[S] | None:
        """What an event means, or None if it means nothing (it is then counted)."""
        entry = self._open.get(event.request_id)
        if entry is None:
            return self._drop("unknown")
        if entry.peer is None:
            entry.peer = sender
        elif entry.peer != sender:
            return self._drop("foreign")
        match event:
            case CallResponded() if entry.streams:
                return self._item(event, entry)
            case CallResponded(seq=None):
                return self._settle(event.request_id, event.output)
            case CallResponded():
                error = CallError(ErrorCode.VALIDATION_ERROR, "this is a subscription: use subscribe(), not call()")
                return self._settle(event.request_id, error, stop="one answer was expected, not a subscription")
            case CallCompleted():
                return self._completed(event, entry)
            case CallFailed():
                return self._failed(event, entry)
            case CallAborted():
                reason = event.reason or "the server stopped the call"
                return self._settle(event.request_id, CallError(ErrorCode.ABORTED, reason))
            case _:
                return self._drop("unknown")

    def settle(self, request_id: str) -> S | None:
        """The owner ends a call: time is up, nobody waits any more. None if it is not open."""
        entry = self._open.pop(request_id, None)
        return None if entry is None else entry.sink

    def lost(self, peer: Address | None) -> Iterator[S]:
        """End the calls that a peer serves, or (None) all of them."""
        for request_id, entry in list(self._open.items()):
            if peer is None or entry.peer == peer:
                del self._open[request_id]
                yield entry.sink

    def _item(self, event: CallResponded, entry: _OpenCall[S]) -> Arrival[S] | None:
        seq = entry.last_seq + 1 if event.seq is None else event.seq
        if seq <= entry.last_seq:
            return self._drop("duplicate")
        if seq > entry.last_seq + 1:
            return self._gap(event.request_id, entry.last_seq + 1)
        entry.last_seq = seq
        return Arrival(entry.sink, event.output, False)

    def _completed(self, event: CallCompleted, entry: _OpenCall[S]) -> Arrival[S] | None:
        if not entry.streams:
            reason = "the call was completed without an answer"
            return self._settle(event.request_id, CallError(ErrorCode.PROTOCOL_ERROR, reason))
        if event.seq is not None and event.seq != entry.last_seq:
            return self._gap(event.request_id, entry.last_seq + 1)
        return self._settle(event.request_id, None)

    def _failed(self, event: CallFailed, entry: _OpenCall[S]) -> Arrival[S]:
        if event.not_started and entry.moves and not entry.last_seq:
            entry.moves -= 1
            entry.move += 1
            entry.peer = None
            return Arrival(entry.sink, None, False, again=entry.request, move=entry.move)
        return self._settle(event.request_id, event.error())

    def _gap(self, request_id: str, missing: int) -> Arrival[S]:
        reason = f"item {missing} of the subscription was lost on the way"
        return self._settle(request_id, CallError(ErrorCode.UNAVAILABLE, reason), stop=reason)

    def _settle(
        self, request_id: str, value: ResponseEnvelope[Any] | CallError | None, *, stop: str | None = None
    ) -> Arrival[S]:
        return Arrival(self._open.pop(request_id).sink, value, True, stop)

    def _drop(self, why: Dropped) -> None:
        self.dropped[why] += 1


Overflow = Literal["block", "error", "drop_oldest", "drop_newest", "latest"]
"""What a full buffer does: slow the producer down (by credits), or end or thin out a stream that cannot be slowed."""

MAX_EXCESS = 4 * 1024 * 1024
"""Bytes that are buffered beyond the window for a producer that does not know credits."""

EVERYTHING = 2**53 - 1
"""Credits of a stream that is not to be slowed down: JavaScript's largest safe integer."""

_ITEM = 512  # bytes that an item takes beside its content
_STALLS = 3  # reports of a stalled consumer after which an item that was sent before the first of them counts as lost


class Inbox:
    """Items that have arrived and are not consumed yet, and the end if it has arrived.

    `size` measures an item in bytes. It is called only for items beyond the window, which come from a producer that
    does not know credits: such a stream is bounded in bytes.
    """

    __slots__ = ("_end", "_ended", "_excess", "_items", "_limit", "_overflow", "_size", "_waiter", "dropped")

    def __init__(self, limit: int, overflow: Overflow, size: Callable[[ResponseEnvelope[Any]], int]) -> None:
        self._size = size
        self._excess = 0  # bytes accepted beyond the window since the buffer was last below it
        self._limit = 1 if overflow == "latest" else limit
        self._overflow: Overflow = overflow
        self._items: deque[ResponseEnvelope[Any]] = deque()
        self._ended = False
        self._end: CallError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.dropped = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive."""
        return self._ended

    @property
    def waiting(self) -> bool:
        """Whether the consumer has taken every item that arrived, and waits for the next."""
        return not self._items and not self._ended

    def put(self, item: ResponseEnvelope[Any]) -> bool:
        """Buffer an item. False: the buffer is full, and its policy is to end the stream."""
        if len(self._items) < self._limit:
            self._excess = 0
        elif self._overflow == "block":
            self._excess += _ITEM + self._size(item)
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
        self._wake()
        return True

    def end(self, error: CallError | None) -> None:
        """Nothing more will arrive. What is buffered is still consumed first."""
        self._ended, self._end = True, error
        self._wake()

    def overflowed(self) -> CallError:
        """The error of a stream whose consumer did not keep up."""
        if self._overflow == "block":
            full = f"the producer ignores credits, and {MAX_EXCESS:,} bytes are buffered beyond the window"
        else:
            full = f"{self._limit} items were buffered when the next one arrived"
        return CallError(ErrorCode.ABORTED, f"the consumer did not keep up: {full}")

    async def get(self) -> ResponseEnvelope[Any] | None:
        """The next item; None at the end.

        Raises:
            CallError: the stream ended with it.
        """
        while not self._items:
            if self._ended:
                if self._end is not None:
                    raise self._end
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._items.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Window:
    """The consumer's side: how many items it has granted, and when to grant more."""

    __slots__ = ("_blocks", "_size", "_taken", "granted", "unsent")

    def __init__(self, size: int, overflow: Overflow) -> None:
        self._size = size
        self._blocks = overflow == "block"
        self._taken = 0  # items consumed since the last grant
        self.granted = size if self._blocks else EVERYTHING
        self.unsent = False  # the transport did not take the last grant

    def take(self) -> int:
        """Count a consumed item. Return how many more items to grant now: half a window at a time, else none."""
        self._taken += 1
        if not self._blocks or self._taken * 2 < self._size:
            return 0
        more, self._taken = self._taken, 0
        self.granted += more
        return more


class Credits:
    """The producer's side: how many items it may still send. `initial` None: no limit."""

    __slots__ = ("_granted", "_reports", "_sent", "_stalled_at", "_waiter")

    def __init__(self, initial: int | None) -> None:
        self._granted = EVERYTHING if initial is None else min(initial, EVERYTHING)
        self._sent = 0
        self._stalled_at: tuple[int, int] = (0, 0)  # items received and sent at a waiting consumer's first report
        self._reports = 0
        self._waiter: asyncio.Future[None] | None = None

    def grant(self, event: CallCredit) -> None:
        """Raise the total. A peer that does not know totals grants increments."""
        total = min(self._granted + event.n if event.total is None else event.total, EVERYTHING)
        if total > self._granted:
            self._granted = total
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def lost_item(self, event: CallCredit) -> int | None:
        """Return the number of an item that was sent and did not arrive, according to a waiting consumer's reports.

        One report proves nothing: items may be on their way. Several in a row with the same number do.
        """
        received = event.received
        if event.n or received is None or received >= self._sent:
            self._reports = 0
            return None
        if not self._reports or received != self._stalled_at[0]:
            self._stalled_at, self._reports = (received, self._sent), 1
            return None
        self._reports += 1
        return received + 1 if self._reports >= _STALLS and received < self._stalled_at[1] else None

    async def take(self) -> None:
        """Wait until an item may be sent, and count it."""
        while self._sent >= self._granted:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._sent += 1


logger = logging.getLogger("opwire.call")


class Observers:
    """Functions that are shown every event, after the step that they watch: they can neither slow nor fail it."""

    __slots__ = ("_observers",)

    def __init__(self) -> None:
        self._observers: dict[object, Callable[[CallEvent], None]] = {}  # one may be added twice, and leave once

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: Callable[[CallEvent], None]) -> Callable[[], None]:
        """Show events to an observer; the function that is returned ends it."""
        place = object()
        self._observers[place] = observer
        return lambda: self._observers.pop(place, None) and None

    def show(self, event: CallEvent) -> asyncio.Handle:
        """Show an event, in a moment. The handle takes it back: what could not be sent has not happened."""
        return asyncio.get_running_loop().call_soon(self._show, event)

    def _show(self, event: CallEvent) -> None:
        for observer in tuple(self._observers.values()):
            try:
                observer(event)
            except Exception:
                logger.exception("an observer failed on %s", type(event).__name__)


class RemoteCallOptions(TypedDict, total=False):
    """What `call` takes beside the call itself."""

    timeout: float | None
    to: Address | None
    sticky_key: str | None


class RemoteStreamOptions(RemoteCallOptions, total=False):
    """What `subscribe` takes beside the call itself."""

    idle_timeout: float | None
    overflow: Overflow
