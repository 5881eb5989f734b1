"""One connection: bytes in, bytes out, and nobody ever waits. What the transports with a network behind them share.

What is written within one turn of the event loop leaves in few pieces. What the peer does not read is kept up to a
bound, above which `write` raises: one slow peer costs memory up to that bound, and delays nobody. Small events that end
or steer calls have room of their own above it (`control`), and what keeps the connection alive goes past what waits
(`urgent`).
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, cast

from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.transports")

MAX_BACKLOG = 16 * 1024 * 1024
"""Bytes that may wait for a peer that does not read."""

_RESERVE = 1024 * 1024  # above that: room for the events that end or steer calls
# Bytes that are not kept back until the end of the turn. Joining all that one turn writes saves system calls, but makes
# busy ends wait for each other. 64 calls in flight over NATS: 4 kB 19,600 calls/s, 8 kB 34,900, 64 kB 25,300.
_FLUSH_AT = 8 * 1024
_PIECE = 64 * 1024  # bytes that are joined into one write
_STEADY = 5.0  # seconds that work has to run for a failure to count as the first one


class Backlogs:
    """What several links together keep for peers that do not read: at most `total` bytes.

    Above that, the connection with the largest backlog ends: peers that read are not affected by those that do not.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._waiting: dict[Link, int] = {}

    def add(self, link: "Link", size: int) -> None:
        """Count bytes that wait for a link whose peer does not keep up."""
        self._waiting[link] = self._waiting.get(link, 0) + size
        self._used += size
        while self._used > self._total:
            worst = max(self._waiting, key=lambda each: self._waiting[each])
            self.clear(worst)
            worst.abort(f"the peer does not read what it is sent, and {self._total:,} bytes wait for it and others")

    def clear(self, link: "Link") -> None:
        """Nothing waits for this link any more."""
        self._used -= self._waiting.pop(link, 0)


class Link(asyncio.Protocol):
    """An asyncio protocol. `receive` gets the bytes that arrive, `lost` the reason, once, when the connection is gone.

    What `receive` raises ends the connection: a transport that can go on after a bad message does not raise. CallError
    and ValueError say that the peer broke the protocol; anything else is a fault of ours, and is logged.
    `max_backlog` and `backlogs` may be changed while nothing waits.
    """

    def __init__(
        self,
        receive: Callable[[bytes], None],
        lost: Callable[[str], None],
        *,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self._receive = receive
        self._lost = lost
        self.max_backlog = max_backlog
        self.backlogs: Backlogs | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._scheduled = False
        self._paused = False
        self._reason: str | None = None  # why we end the connection ourselves
        self._gone: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether something can be written."""
        return self._transport is not None and self._reason is None

    @property
    def backlog(self) -> int:
        """Bytes that the peer, or its operating system, has not taken yet."""
        return self._waiting_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def remote(self) -> str:
        """The host of the peer; empty if that is unknown."""
        name: Any = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    @property
    def paused(self) -> bool:
        """Whether the peer does not read as fast as it is sent to."""
        return self._paused

    def write(self, data: bytes) -> None:
        """Send something that may be refused.

        Raises:
            CallError: RATE_LIMITED if too much is waiting already, UNAVAILABLE if the connection is gone.
        """
        self._put(data, self.max_backlog)

    def control(self, data: bytes) -> None:
        """Send something small that ends or steers a call: there is room for it when there is none for others.

        Raises:
            CallError: RATE_LIMITED if even that is full, UNAVAILABLE if the connection is gone.
        """
        self._put(data, self.max_backlog + _RESERVE)

    def urgent(self, data: bytes) -> None:
        """Send something that has no order with anything else, before what is waiting.

        It is dropped if a peer that reads nothing has had more of that than fits: it cannot make us answer for ever.
        """
        room = self.max_backlog + 2 * _RESERVE
        if self._transport is not None and self._reason is None and self.backlog + len(data) <= room:
            self._transport.write(data)

    def _put(self, data: bytes, limit: int) -> None:
        if self._transport is None or self._reason is not None:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is gone")
        if self._paused and self.backlog + len(data) > limit:
            full = f"the peer does not keep up: {self.backlog:,} bytes are waiting for it"
            raise CallError(ErrorCode.RATE_LIMITED, full)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._paused and self.backlogs is not None:
            self.backlogs.add(self, len(data))
        if self._waiting_bytes > _FLUSH_AT:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        while self._waiting and not self._paused and self._transport is not None:
            # Joined, since a write of its own for each message is a system call each. Not all at once, since `urgent`
            # cannot overtake what was handed over.
            pieces = [self._waiting.popleft()]
            size = len(pieces[0])
            while self._waiting and size < _PIECE:
                pieces.append(self._waiting.popleft())
                size += len(pieces[-1])
            self._waiting_bytes -= size
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if not self._waiting and self._drained is not None and not self._paused:
            self._drained.set_result(None)
            self._drained = None

    async def drain(self) -> None:
        """Wait until nothing waits here any more, but in asyncio's own small buffer; or the connection is gone."""
        self._flush()
        while self.open and (self._waiting or self._paused):
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    # --- ending -------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the connection at once; `lost` is called with the reason."""
        if self._reason is None:
            self._reason = reason
            if self._transport is not None:  # else as soon as it is there
                self._transport.abort()

    async def close(self, *, grace: float = 1.0) -> None:
        """Send what is waiting, then end the connection; `lost` is not called. Takes no longer than `grace` seconds."""
        self._lost = _nothing
        transport, gone = self._transport, self._gone
        if transport is None or gone is None:
            return
        try:
            async with asyncio.timeout(grace):
                await self.drain()
                self._reason = self._reason or "it was closed"  # nothing more goes out, and nothing comes in
                transport.close()
                await asyncio.shield(gone)
        except TimeoutError:
            pass  # it ends without what is left
        finally:  # whoever waits for it may be cancelled
            self._reason = self._reason or "it was closed"
            transport.abort()
        await asyncio.shield(gone)

    # --- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._gone = asyncio.get_running_loop().create_future()
        if self._reason is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self._reason is not None:
            return
        try:
            self._receive(data)
        except (CallError, ValueError) as error:  # whatever a peer sends: this connection ends, and no other
            self.abort(f"the peer broke the protocol: {error}")
        except Exception:
            logger.exception("what a peer sent could not be dealt with")
            self.abort("what the peer sent could not be dealt with")

    def pause_writing(self) -> None:
        """The peer does not read as fast as we write."""
        self._paused = True
        if self.backlogs is not None:
            self.backlogs.add(self, self.backlog)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._paused = False
        if self.backlogs is not None:
            self.backlogs.clear(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        reason = self._reason or (f"the connection broke: {exc}" if exc else "the peer closed the connection")
        self._transport, self._reason = None, reason
        self._waiting.clear()
        self._waiting_bytes = 0
        if self.backlogs is not None:
            self.backlogs.clear(self)
        for future in (self._drained, self._gone):
            if future is not None and not future.done():
                future.set_result(None)
        self._drained = None
        self._lost(reason)


def check_numbers(**options: Any) -> None:
    """Check that numeric options can be used.

    Raises:
        CallError: VALIDATION_ERROR, if one of them is not a finite number above zero.
    """
    for name, number in options.items():
        if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < inf:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{name} is a number above zero, not {number!r}")


def back_off(attempt: int, *, first: float = 0.05, most: float = 5.0) -> float:
    """Seconds to wait before connecting again: at once, then at random within a growing limit (attempts from 0)."""
    return 0.0 if attempt == 0 else random.uniform(0, min(most, first * 2 ** min(attempt, 16)))  # noqa: S311


async def keep_running(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run what keeps a transport alive until it returns or is cancelled.

    An exception, be it a bug here or a user's function that failed to give a token, is logged, and the work starts
    again: at once, then after growing pauses while it keeps failing.
    """
    attempt = 0
    while True:
        began = time.monotonic()
        try:
            await work()
        except Exception:
            logger.exception("%s failed, and is started again", what)
        else:
            return
        attempt = 0 if time.monotonic() - began > _STEADY else attempt + 1
        await asyncio.sleep(back_off(attempt))


def _nothing(_: str) -> None:
    """Stands for a callback that is not wanted any more."""
