"""One WebSocket connection, of a client or of a server: frames, messages over a `Link`, heartbeat, and close.

`FrameCodec` does no I/O. It leaves the handshake, control frames, fragments and errors to the core of `websockets`. By
far the most frequent case, a text message in a single frame, is decoded here: a call through a hub takes 15 % less CPU
time.

Nothing here waits for the peer: messages are dispatched at once, so that pings are answered even if the application is
slow.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Side, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from opwire.errors import CallError, ErrorCode
from opwire.transports.link import MAX_BACKLOG, Link

try:
    from websockets.speedups import apply_mask
except ImportError:  # websockets was installed without its C extension
    from websockets.utils import apply_mask

Core = ClientProtocol | ServerProtocol

SUBPROTOCOL = Subprotocol("opwire.v1")
CLOSE_TIMEOUT = 1.0  # seconds

_WHOLE_TEXT = 0x81  # the first byte of a text message in a single frame
_MASKED = 0x80  # in the second byte, beside the length
_MAX_REASON_BYTES = 120
_MAX_CONTROL_BYTES = 4096
_MAX_OTHER_FRAMES = 1024  # in one piece of data, which has at most 16 KiB: each takes 5 µs
_MAX_SILENT_BEATS = 2  # after which the peer counts as dead


class FrameCodec:
    """One side of a WebSocket. Messages larger than the core's `max_size` end it with 1009."""

    def __init__(self, core: Core) -> None:
        core.debug = False  # it would log whole messages, and headers with tokens
        self._core = core
        self._limit = core.max_message_size or 0
        self._masks = core.side is Side.CLIENT
        self._mask_in = 0 if self._masks else _MASKED
        self._buffer = bytearray()  # an incomplete frame
        self._needed = 0  # bytes of it that have to arrive before it is parsed again
        self._parts = bytearray()  # of a fragmented message
        self._failed = False

    @property
    def open(self) -> bool:
        """Return whether messages can be sent: after the handshake, and until either side closes."""
        return self._core.state is State.OPEN

    @property
    def over(self) -> bool:
        """Return whether the connection can be ended: the handshake failed, or the peer closed or broke the rules."""
        core = self._core
        return core.eof_sent or self._failed or core.close_rcvd is not None or core.parser_exc is not None

    @property
    def reason(self) -> str:
        """Return why it is over."""
        core = self._core
        if core.handshake_exc is not None:
            hint = "; check that the server at this URL is a hub" if core.side is Side.CLIENT else ""
            return f"the handshake failed: {core.handshake_exc}{hint}"
        if core.close_rcvd is not None:
            return f"the peer closed the connection ({core.close_rcvd})"
        return f"the connection was closed ({core.close_sent})"

    def handshake(self, data: bytes) -> tuple[Request | Response | None, bytes]:
        """Parse the peer's handshake; return it when it is complete, and the bytes after it."""
        start = 0
        while start < len(data) and not self._core.events and self._core.handshake_exc is None:
            end = data.find(b"\n", start) + 1 or len(data)  # line by line, so that the core gets no frame after it
            self._core.receive_data(data[start:end])
            start = end
        for event in self._core.events_received():
            if not isinstance(event, Frame):
                return event, data[start:]
        return None, b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that this data completes. Afterwards there may be `replies`, and it may be `over`."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        messages: list[bytes] = []
        start, other_frames_left = self._whole_texts(data, 0, messages), _MAX_OTHER_FRAMES
        while start < len(data) and not self.over:
            begin, end = _payload_bounds(data, start)
            if end - begin > self._limit:
                self._core.receive_data(data[start:])  # ends the connection
            elif end > len(data):
                self._buffer += data[start:]
                self._needed = end - start
                break
            elif not other_frames_left:
                self.fail(CloseCode.POLICY_VIOLATION, "too many fragments and control frames")
            else:
                other_frames_left -= 1
                self._other_frame(data[start:end], messages)
                start = self._whole_texts(data, end, messages)
        return messages

    def _whole_texts(self, data: bytes, start: int, messages: list[bytes]) -> int:
        """Decode messages in single frames; return the start of the first frame that is incomplete or another kind."""
        masked, limit, size = self._mask_in, self._limit, len(data)
        if self._core.state is not State.OPEN or self._core.current_size is not None:  # within a fragmented message
            return start
        while size - start > 3 and data[start] == _WHOLE_TEXT:
            length, begin = data[start + 1] - masked, start + 2
            if length == 126:
                length, begin = data[begin] << 8 | data[begin + 1], begin + 2
            elif not 0 <= length < 126:
                break
            if masked:
                begin += 4
            end = begin + length
            if end > size or length > limit:
                break
            message = data[begin:end]
            if masked:
                message = apply_mask(message, data[begin - 4 : begin])
            if message.isascii():
                messages.append(message)
            elif not self._text(message, messages):
                break
            start = end
        return start

    def _other_frame(self, frame: bytes, messages: list[bytes]) -> None:
        self._core.receive_data(frame)
        for event in self._core.events_received():
            match event:
                case Frame(opcode=Opcode.TEXT | Opcode.CONT):
                    self._parts += event.data
                    if event.fin:
                        self._text(bytes(self._parts), messages)
                        self._parts.clear()
                case Frame(opcode=Opcode.BINARY):
                    self.fail(CloseCode.UNSUPPORTED_DATA, "messages are JSON in text frames")
                case _:
                    pass  # the core has replied to it

    def _text(self, message: bytes, messages: list[bytes]) -> bool:
        try:
            if not message.isascii():
                str(message, "utf-8")  # the core leaves this check to its user
        except UnicodeDecodeError:
            self.fail(CloseCode.INVALID_DATA, "a text frame is not UTF-8")
            return False
        messages.append(message)
        return True

    def encode(self, message: bytes) -> bytes:
        """Encode a message as a text frame."""
        return Frame(Opcode.TEXT, message).serialize(mask=self._masks)

    def ping(self) -> None:
        """Queue a ping."""
        if self.open:
            self._core.send_ping(b"")

    def close(self, code: int, reason: str) -> None:
        """Queue a close frame. The peer replies with another."""
        if self.open:
            self._core.send_close(code, _truncated(reason))

    def fail(self, code: int, reason: str) -> None:
        """Queue a close frame, and ignore all further data."""
        if self.open:
            self._failed = True
            self._core.fail(code, _truncated(reason))

    def replies(self) -> list[bytes]:
        """Return the queued data beside messages: the handshake and control frames."""
        return [data for data in self._core.data_to_send() if data] if self._core.writes else []


def _payload_bounds(data: bytes, start: int) -> tuple[int, int]:
    """Return the bounds of a frame's payload; beyond the data while its header is incomplete."""
    size = len(data)
    if size - start < 2:
        return start, start + 2
    second = data[start + 1]
    length, begin = second & 0x7F, start + 2
    if length > 125:
        wide = 2 if length == 126 else 8
        if size - begin < wide:
            return begin, begin + wide
        length = int.from_bytes(data[begin : begin + wide], "big")
        begin += wide
    if second & _MASKED:
        begin += 4
    return begin, begin + length


def _truncated(reason: str) -> str:
    return reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")


class WebSocketConnection:
    """A connection with three callbacks: `greeted` (the peer's handshake), `arrived` (a message), `lost` (once).

    `arrived` may be replaced; the next message goes to the new one.
    """

    def __init__(
        self,
        core: Core,
        *,
        greeted: Callable[[Request | Response], None],
        arrived: Callable[[bytes], None],
        lost: Callable[[str], None],
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self.link = Link(self._received, self._broken, max_backlog=max_backlog)
        self._core = core
        self._frames = FrameCodec(core)
        self._greeted = greeted
        self.arrived = arrived
        self._lost = lost
        self._heard = True
        self._silent_beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self.over = False
        self._ended = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    def send(self, message: bytes, *, control: bool) -> None:
        """Send a message. `control`: it ends or controls a call.

        A small control message has reserved room in the queue; a peer that has used up even that is disconnected.

        Raises:
            CallError: RATE_LIMITED if too much is queued, UNAVAILABLE if the connection is lost.
        """
        if self.over:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is gone")
        if not control or len(message) > _MAX_CONTROL_BYTES:
            self.link.write(self._frames.encode(message))
            return
        try:
            self.link.control(self._frames.encode(message))
        except CallError as full:
            self.link.abort("the peer does not read what it is sent")
            raise CallError(ErrorCode.UNAVAILABLE, f"the connection was ended: {full.message}") from full

    def reply(self) -> None:
        """Send the replies to the handshake, to pings and to close frames."""
        for data in self._frames.replies():
            # A peer that reads nothing gets no reply to a million pings.
            if self.link.backlog <= self.link.max_backlog:
                self.link.urgent(data)
        if self._frames.over:
            self._finish(self._frames.reason)

    def expect(self, message: str, within: float, code: int) -> None:
        """End the connection with this code unless `beat` is called in time."""
        self._schedule(within, lambda: self.end(code, f"no {message} came within {within:g} s"))

    def beat(self, every: float) -> None:
        """Ping every so often; two pings in a row without any data in return end the connection.

        A peer that freezes right after it has sent data is detected at the third beat, any other earlier.
        """
        self._schedule(every, lambda: self._beat(every))

    def _beat(self, every: float) -> None:
        # Beats are counted instead of time: if this process was held up, there may be data that it has not read yet.
        self._silent_beats = 0 if self._heard else self._silent_beats + 1
        self._heard = False
        if self._silent_beats == _MAX_SILENT_BEATS:
            self.link.abort(f"nothing was heard of the peer for {_MAX_SILENT_BEATS * every:g} s")
            return
        self._frames.ping()
        self.reply()
        self.beat(every)

    def _schedule(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, callback)

    def end(self, code: int, reason: str) -> None:
        """Send a close frame with the reason, and end the connection."""
        self._frames.fail(code, reason)
        self._flush()
        self._finish(reason)

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame, wait for the peer's, and end the connection; `lost` is not called."""
        self._lost = self.arrived = _ignore
        if not self.over and self._frames.open:
            self._frames.close(code, reason)
            self._flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._ended.wait()
        self._stop()
        await self.link.close()
        if self._ending is not None:
            await self._ending

    def drop(self) -> None:
        """End the connection without a close frame; `lost` is not called."""
        self._lost = self.arrived = _ignore
        self._stop()
        self.link.abort("it was dropped")

    def _flush(self) -> None:
        """Send the replies after the queued messages, unlike `reply`."""
        with suppress(CallError):  # lost, or its queue is full
            for data in self._frames.replies():
                self.link.control(data)

    def _finish(self, reason: str) -> None:
        if not self.over:
            self._stop()
            self._ending = asyncio.get_running_loop().create_task(self.link.close(grace=CLOSE_TIMEOUT))
            self._lost(reason)

    def _stop(self) -> None:
        self.over = True
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _received(self, data: bytes) -> None:
        self._heard = True
        if self.over:
            return
        if self._core.state is State.CONNECTING:
            handshake, data = self._frames.handshake(data)
            if handshake is not None:
                self._greeted(handshake)
        for message in self._frames.feed(data):
            self.arrived(message)
            if self.over:
                return
        if self._core.writes or self._core.state is not State.OPEN:  # rarely: a message has no reply here
            self.reply()

    def _broken(self, reason: str) -> None:
        if not self.over:
            self._stop()
            self._lost(reason)


def _ignore(_: object) -> None:
    """Replace a callback that is not wanted any more."""
