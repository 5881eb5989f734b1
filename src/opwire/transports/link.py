"""A connection that never waits: the byte stream that the network transports share.

Writes of one turn of the event loop are joined into few system calls. What the peer does not read is buffered up to a
bound, above which `write` raises: a slow peer costs memory up to that bound, and delays no other. Small events that end
or control calls have a reserve above it (`control`), and keep-alives overtake the buffer (`urgent`).

What the peer sends is handled for a hundredth of a second per turn of the event loop: one read of asyncio may contain
4,000 requests, which are handled at once.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

from opwire.errors import CallError, ErrorCode, system_message
from opwire.runtime.deadlines import back_off
from opwire.runtime.tasks import resolve
from opwire.runtime.text import get_logger

logger = get_logger("opwire.transports")

MAX_BACKLOG = 16 * 1024 * 1024
"""Default limit of the buffer for a peer that does not read, in bytes."""

_CONTROL_RESERVE = 1024 * 1024  # bytes above that for events that end or control calls
# Below that, writes wait for the end of the turn. Joining all writes of a turn saves system calls, but makes busy
# ends wait for each other. 64 calls in flight over NATS: 4 kB 19,600 calls/s, 8 kB 34,900, 64 kB 25,300.
_FLUSH_AT_BYTES = 8 * 1024
_MAX_WRITE_BYTES = 64 * 1024
_BYTES_BETWEEN_CHECKS = 16 * 1024  # of the time: about 250 requests
_MAX_SECONDS_PER_TURN = 0.01  # after which other peers have their turn
_MAX_SECONDS_PER_READ = 0.001  # after which the next read waits for its turn: uvloop reads up to 32 times
_MIN_STEADY_SECONDS = 5.0  # of work, after which a failure counts as the first one
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before a restart


class Backlogs:
    """Limits the buffers of several links together to `total` bytes.

    Above that, the connection with the largest backlog is closed: peers that read are not affected. `used` are the
    buffered bytes of all of them.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self.used = 0
        self._waiting: dict[Link, int] = {}

    def add(self, link: "Link", size: int) -> None:
        """Count the buffered bytes of a link with a slow peer."""
        self._waiting[link] = self._waiting.get(link, 0) + size
        self.used += size
        while self.used > self._total:
            largest = max(self._waiting, key=lambda link: self._waiting[link])
            self.clear(largest)
            largest.abort(f"the peer does not read, and {self._total:,} bytes are buffered for it and others")

    def clear(self, link: "Link") -> None:
        """Remove a link with an empty buffer."""
        self.used -= self._waiting.pop(link, 0)


class Link(asyncio.Protocol):
    """An asyncio protocol with two callbacks: `receive` for data, and `lost` with the reason, once.

    An exception of `receive` closes the connection; a transport that tolerates an invalid message does not raise.
    CallError and ValueError mean that the peer violated the protocol; any other exception is a bug here, and is logged.
    `max_backlog` and `backlogs` may be changed while the buffer is empty.
    """

    def __init__(
        self, receive: Callable[[bytes], None], lost: Callable[[str], None], *, max_backlog: int = MAX_BACKLOG
    ) -> None:
        self._receive = receive
        self._lost = lost
        self.max_backlog = max_backlog
        self.backlogs: Backlogs | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._scheduled = False
        self.paused = False  # whether the peer reads too slowly
        self._unread = b""  # received, and left for the next turn
        self._is_closing = False  # `lost` is not called any more
        self._reason: str | None = None  # why this side closes the connection
        self._disconnected: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the connection accepts writes."""
        return self._transport is not None and self._reason is None

    @property
    def backlog(self) -> int:
        """Bytes that the operating system has not accepted yet."""
        return self._waiting_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def remote(self) -> str:
        """The host of the peer; empty if unknown."""
        name: Any = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    def write(self, data: bytes, reserve: int = 0) -> None:
        """Send data, which may use as many bytes of the reserve.

        Raises:
            CallError: RATE_LIMITED if the buffer is full, UNAVAILABLE if the connection is closed.
        """
        if self._transport is None or self._reason is not None:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is gone")
        if self.paused:
            if self.backlog + len(data) > self.max_backlog + reserve:
                full = f"the peer does not keep up: {self.backlog:,} bytes are buffered for it"
                raise CallError(ErrorCode.RATE_LIMITED, full)
            if self.backlogs is not None:
                self.backlogs.add(self, len(data))
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _FLUSH_AT_BYTES:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def control(self, data: bytes) -> None:
        """Send a small message that ends or controls a call; it may use the reserve of the buffer.

        Raises:
            CallError: RATE_LIMITED if the reserve is full as well, UNAVAILABLE if the connection is closed.
        """
        self.write(data, _CONTROL_RESERVE)

    def urgent(self, data: bytes) -> None:
        """Send an independent message before the buffered ones.

        It is dropped once the buffer and its reserve are full, so that a peer that never reads cannot use up memory.
        """
        room = self.max_backlog + 2 * _CONTROL_RESERVE
        if self._transport is not None and self._reason is None and self.backlog + len(data) <= room:
            self._transport.write(data)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and not self.paused and self._transport is not None:
            # Joined, since each write is a system call. Not all at once, since `urgent` cannot overtake data that was
            # passed to asyncio.
            pieces = [self._waiting.popleft()]
            size = len(pieces[0])
            while self._waiting and size < _MAX_WRITE_BYTES:
                pieces.append(self._waiting.popleft())
                size += len(pieces[-1])
            self._waiting_bytes -= size
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if not self._waiting and self._drained is not None and not self.paused:
            self._drained.set_result(None)
            self._drained = None

    async def drain(self) -> None:
        """Wait until the buffer is empty, except for asyncio's own small one, or the connection is closed."""
        self._flush()
        while self.open and (self._waiting or self.paused):
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    async def room(self) -> None:
        """Wait while the buffer is more than half full, or until the connection is closed."""
        while self.open and self.paused and self.backlog > self.max_backlog // 2:
            await self.drain()

    # --- ending -------------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """Close the connection at once; `lost` is called with the reason."""
        if self._reason is None:
            self._reason = reason
            if self._transport is not None:  # otherwise as soon as it is connected
                self._transport.abort()

    async def close(self, *, grace: float = 1.0) -> None:
        """Flush the buffer and close the connection, within `grace` seconds; `lost` is not called."""
        self._is_closing = True
        transport, disconnected = self._transport, self._disconnected
        if transport is None or disconnected is None:
            return
        try:
            async with asyncio.timeout(grace):
                await self.drain()
                self._reason = self._reason or "it was closed"  # no more writes, and received data is ignored
                transport.close()
                await asyncio.shield(disconnected)
        except TimeoutError:
            pass  # the rest is dropped
        finally:  # also if the caller is cancelled
            self._reason = self._reason or "it was closed"
            transport.abort()
        await asyncio.shield(disconnected)

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to use the transport of asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._disconnected = asyncio.get_running_loop().create_future()
        if self._reason is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass data to `receive` for a hundredth of a second, and the rest in later turns, which read nothing."""
        if self._unread:  # a transport may have had it in its own buffer
            self._unread += data
        elif len(data) > _BYTES_BETWEEN_CHECKS:
            self._unread = data
            self._read_on(is_paused=False)
        else:
            self._take(data)

    def _read_on(self, *, is_paused: bool = True) -> None:
        began, start = time.monotonic(), 0
        while start < len(self._unread) and (start == 0 or time.monotonic() - began < _MAX_SECONDS_PER_TURN):
            self._take(self._unread[start : start + _BYTES_BETWEEN_CHECKS])
            start += _BYTES_BETWEEN_CHECKS
        self._unread = self._unread[start:]
        if self._transport is None or self._reason is not None:
            self._unread = b""
        elif self._unread or (not is_paused and time.monotonic() - began > _MAX_SECONDS_PER_READ):
            if not is_paused:
                self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)
        elif is_paused:
            self._transport.resume_reading()

    def _take(self, data: bytes) -> None:
        if self._reason is not None:
            return
        try:
            self._receive(data)
        except (CallError, ValueError) as error:  # invalid data closes this connection only
            reason = error.message if isinstance(error, CallError) else str(error)
            self.abort(f"the peer broke the protocol: {reason}")
        except Exception:
            logger.exception("data of a peer could not be handled")
            self.abort("data of the peer could not be handled")

    def pause_writing(self) -> None:
        """Start to buffer: the peer reads too slowly."""
        self.paused = True
        if self.backlogs is not None:
            self.backlogs.add(self, self.backlog)

    def resume_writing(self) -> None:
        """Flush the buffer: the peer reads again."""
        self.paused = False
        if self.backlogs is not None:
            self.backlogs.clear(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the buffer, and call `lost`."""
        reason = self._reason or (
            f"the connection broke: {system_message(exc)}" if exc else "the peer closed the connection"
        )
        self._transport, self._reason = None, reason
        self._waiting.clear()
        self._waiting_bytes, self._unread = 0, b""
        if self.backlogs is not None:
            self.backlogs.clear(self)
        for future in filter(None, (self._drained, self._disconnected)):
            resolve(future)
        self._drained = None
        if not self._is_closing:
            self._lost(reason)


async def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task of a transport until it returns or is cancelled.

    An exception, be it a bug here or a user's callback that failed to return a token, is logged, and the task restarts:
    at once, then with back-off while it keeps failing.
    """
    attempt = 0
    while True:
        began = time.monotonic()
        try:
            await work()
        except Exception:
            logger.exception("%s failed and is restarted", name)
        else:
            return
        attempt = 0 if time.monotonic() - began > _MIN_STEADY_SECONDS else attempt + 1
        if attempt:
            await asyncio.sleep(back_off(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
