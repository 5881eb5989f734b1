"""The books of one caller: which of its calls are open, and what each event that arrives means for them.

No I/O, no clock, no tasks: everything that opens, settles or drops a call is in this file.
Rule 1: an entry leaves the books in the same step that decides its outcome, so that no call is settled twice.
Rule 2: an event for a call that is not open is dropped and counted; late and duplicate answers are normal.
Rule 3: only the peer that a request was routed to can answer it.
Rule 4: a request that a server refused before anything was begun is asked of another one, a few times.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from opwire.call.events import CallAborted, CallCompleted, CallEvent, CallFailed, CallRequested, CallResponded
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


class _Entry(Struct, Generic[S]):
    request: CallRequested
    sink: S
    streams: bool
    moves: int  # how often it may still be asked of another server
    move: int = 0  # how often it was
    peer: Address | None = None
    last_seq: int = 0


class Ledger(Generic[S]):
    """Open calls by request id. A `sink` is whatever the owner wants to be told through."""

    def __init__(self) -> None:
        self._open: dict[str, _Entry[S]] = {}
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
        self._open[request.request_id] = _Entry(request, sink, streams, _MOVES if movable else 0)

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

    def _item(self, event: CallResponded, entry: _Entry[S]) -> Arrival[S] | None:
        seq = entry.last_seq + 1 if event.seq is None else event.seq
        if seq <= entry.last_seq:
            return self._drop("duplicate")
        if seq > entry.last_seq + 1:
            return self._gap(event.request_id, entry.last_seq + 1)
        entry.last_seq = seq
        return Arrival(entry.sink, event.output, False)

    def _completed(self, event: CallCompleted, entry: _Entry[S]) -> Arrival[S] | None:
        if not entry.streams:
            reason = "the call was completed without an answer"
            return self._settle(event.request_id, CallError(ErrorCode.PROTOCOL_ERROR, reason))
        if event.seq is not None and event.seq != entry.last_seq:
            return self._gap(event.request_id, entry.last_seq + 1)
        return self._settle(event.request_id, None)

    def _failed(self, event: CallFailed, entry: _Entry[S]) -> Arrival[S]:
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
