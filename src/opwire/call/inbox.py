"""Flow control of one subscription: the bounded buffer and the window of its consumer, the credits of its producer.

Grants are totals since the start of the subscription, so that a repeated one changes nothing and a lost one is replaced
by the next. A consumer that waits for an item repeats its grant together with the number of items that it has received:
a lost grant and a lost item are both noticed, by whichever end is still waiting.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from opwire.call.events import CallCredit
from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode

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
