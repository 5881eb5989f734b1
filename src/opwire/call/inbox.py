"""The bounded buffer of one subscription at its consumer, and what happens when it is full."""

import asyncio
from collections import deque
from typing import Any, Literal

from opwire.envelope import ResponseEnvelope
from opwire.errors import CallError, ErrorCode

Overflow = Literal["block", "error", "drop_oldest", "drop_newest", "latest"]
"""What a full buffer does: slow the producer down (by credits), or end or thin out a stream that cannot be slowed."""


class Inbox:
    """Items that have arrived and are not consumed yet, and the end if it has arrived."""

    __slots__ = ("_end", "_ended", "_items", "_limit", "_overflow", "_waiter", "dropped")

    def __init__(self, limit: int, overflow: Overflow) -> None:
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

    def put(self, item: ResponseEnvelope[Any]) -> bool:
        """Keep an item. False: the buffer is full and its policy is to end the stream."""
        if len(self._items) >= self._limit:
            if self._overflow in ("block", "error"):
                return False
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
        return CallError(
            ErrorCode.ABORTED, f"the consumer did not keep up: {self._limit} items were waiting when the next one came"
        )

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


class Credits:
    """How many items a producer may still send. None: the consumer does not say, so there is no limit."""

    __slots__ = ("_left", "_waiter")

    def __init__(self, initial: int | None) -> None:
        self._left = initial
        self._waiter: asyncio.Future[None] | None = None

    def grant(self, n: int) -> None:
        """The consumer takes more."""
        if self._left is not None and n > 0:
            self._left += n
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def take(self) -> None:
        """Wait until an item may be sent."""
        if self._left is None:
            return
        while self._left == 0:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._left -= 1
