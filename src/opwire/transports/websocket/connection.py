"""One WebSocket connection, of a client or of a server: messages over a `Link`, signs of life, and its end.

Nothing here waits for the peer: what arrives is handed on at once, so that pings are answered however slow the user of
the messages is.

The frames of one WebSocket: bytes in, bytes out. No I/O.

The handshake, control frames, fragments and whatever goes wrong are left to the core of `websockets`. What is by far
the most frequent, a text message in a single frame, is read and written here: that takes a third of the time.
"""

import asyncio
import os
import struct
from collections.abc import Callable, Iterator

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
except ImportError:  # websockets was installed without its part in C
    from websockets.utils import apply_mask

Core = ClientProtocol | ServerProtocol

_WHOLE_TEXT = 0x81  # the first byte of a text message in a single frame
_MASKED = 0x80  # in the second byte, beside the length
_REASON = 120  # bytes that a close frame has room for


class Frames:
    """One end of a WebSocket. Messages that are larger than the core's `max_size` end it with 1009."""

    def __init__(self, core: Core) -> None:
        core.debug = False  # it would log whole messages, and headers with the tokens in them
        self._core = core
        self._limit = core.max_message_size or 0
        self._mask_out = _MASKED if core.side is Side.CLIENT else 0
        self._mask_in = _MASKED - self._mask_out
        self._keys = _keys()
        self._begun = bytearray()  # a frame that is not complete yet
        self._needed = 0  # bytes of it that have to be there before it is worth another look
        self._parts = bytearray()  # of a message in fragments
        self._failed = False

    @property
    def connecting(self) -> bool:
        """Whether the handshake is not over yet."""
        return self._core.state is State.CONNECTING

    @property
    def open(self) -> bool:
        """Whether messages can be sent: after the handshake, and until either side closes."""
        return self._core.state is State.OPEN

    @property
    def over(self) -> bool:
        """Whether the connection can be ended: the handshake failed, or the peer closed, or broke the rules."""
        core = self._core
        return core.eof_sent or self._failed or core.close_rcvd is not None or core.parser_exc is not None

    @property
    def reason(self) -> str:
        """Why it is over."""
        core = self._core
        if core.handshake_exc is not None:
            return f"the handshake failed: {core.handshake_exc}"
        if core.close_rcvd is not None:
            return f"the peer closed the connection ({core.close_rcvd})"
        return f"the connection was closed ({core.close_sent})"

    # --- what arrives -------------------------------------------------------------------------------------------------

    def greeting(self, data: bytes) -> tuple[Request | Response | None, bytes]:
        """What the peer says in the handshake, when it is complete; and the bytes that follow it."""
        start = 0
        while start < len(data) and not self._core.events and self._core.handshake_exc is None:
            end = data.find(b"\n", start) + 1 or len(data)  # by the line, so that no frame after it gets into the core
            self._core.receive_data(data[start:end])
            start = end
        for event in self._core.events_received():
            if not isinstance(event, Frame):
                return event, data[start:]
        return None, b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with this data. Afterwards there may be `replies`, and it may be `over`."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self._needed:
                return []
            data = bytes(self._begun)
            self._begun.clear()
        messages: list[bytes] = []
        start = self._simple(data, 0, messages)
        while start < len(data) and not self.over:
            begin, end = _bounds(data, start)
            if end - begin > self._limit:
                self._core.receive_data(data[start:])  # which ends the connection
            elif end > len(data):
                self._begun += data[start:]
                self._needed = end - start
                break
            else:
                self._special(data[start:end], messages)
                start = self._simple(data, end, messages)
        return messages

    def _simple(self, data: bytes, start: int, messages: list[bytes]) -> int:
        """Read messages in single frames; where the first frame begins that is anything else, or not complete."""
        masked, limit, size = self._mask_in, self._limit, len(data)
        if not self.open or self._core.current_size is not None:  # amid a message in fragments
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
            payload = data[begin:end]
            if not self._text(apply_mask(payload, data[begin - 4 : begin]) if masked else payload, messages):
                break
            start = end
        return start

    def _special(self, frame: bytes, messages: list[bytes]) -> None:
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
                    pass  # the core has answered it

    def _text(self, message: bytes, messages: list[bytes]) -> bool:
        try:
            if not message.isascii():
                str(message, "utf-8")  # which the core leaves to its user
        except UnicodeDecodeError:
            self.fail(CloseCode.INVALID_DATA, "a text frame is not UTF-8")
            return False
        messages.append(message)
        return True

    # --- what is sent -------------------------------------------------------------------------------------------------

    def text(self, message: bytes) -> bytes:
        """The frame of a message."""
        size = len(message)
        if size < 126:
            head = struct.pack("!BB", _WHOLE_TEXT, self._mask_out | size)
        elif size < 65_536:
            head = struct.pack("!BBH", _WHOLE_TEXT, self._mask_out | 126, size)
        else:
            head = struct.pack("!BBQ", _WHOLE_TEXT, self._mask_out | 127, size)
        if not self._mask_out:
            return head + message
        key = next(self._keys)
        return b"".join((head, key, apply_mask(message, key)))

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self.open:
            self._core.send_ping(b"")

    def close(self, code: int, reason: str) -> None:
        """Say goodbye. The peer answers with the same."""
        if self.open:
            self._core.send_close(code, _short(reason))

    def fail(self, code: int, reason: str) -> None:
        """Say goodbye, and listen to nothing more."""
        if self.open:
            self._failed = True
            self._core.fail(code, _short(reason))

    def replies(self) -> list[bytes]:
        """What is to be sent beside the messages: the handshake and control frames."""
        return [data for data in self._core.data_to_send() if data] if self._core.writes else []


def _bounds(data: bytes, start: int) -> tuple[int, int]:
    """Where the payload of a frame begins and ends; beyond the data as long as that cannot be said."""
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


def _keys() -> Iterator[bytes]:
    """Masks that cannot be guessed. They are made by the thousand, since one by one they cost 0.5 µs."""
    while True:
        many = os.urandom(4096)
        for start in range(0, len(many), 4):
            yield many[start : start + 4]


def _short(reason: str) -> str:
    return reason.encode()[:_REASON].decode(errors="ignore")


GRACE = 1.0
"""Seconds that the peer has to answer a goodbye."""

SUBPROTOCOL = Subprotocol("opwire.v1")
"""What both sides speak over the WebSocket."""

_SMALL = 4096  # bytes
_MISSES = 2  # beats in a row without a sign of life, after which the peer counts as dead


class Connection:
    """Whoever uses it is told of the peer's handshake (`greeted`), of each message (`arrived`), and once why it ended
    (`lost`).
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
        self._frames = Frames(core)
        self._greeted = greeted
        self._arrived = arrived
        self._lost = lost
        self._heard = True
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._ended = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over

    # --- writing ------------------------------------------------------------------------------------------------------

    def send(self, message: bytes, *, control: bool) -> None:
        """Send a message. `control`: it ends or steers a call; if it is small, there is room for it when there is none
        for others, and a peer that leaves no room even for these is given up.

        Raises:
            CallError: RATE_LIMITED if too much is waiting already, UNAVAILABLE if the connection is gone.
        """
        if self._over:
            raise CallError(ErrorCode.UNAVAILABLE, "the connection is gone")
        if not control or len(message) > _SMALL:
            self.link.write(self._frames.text(message))
            return
        try:
            self.link.control(self._frames.text(message))
        except CallError as full:
            self.link.abort("the peer does not read what it is sent")
            raise CallError(ErrorCode.UNAVAILABLE, f"the connection was ended: {full.message}") from full

    def reply(self) -> None:
        """Send what the handshake, pings and goodbyes have given rise to."""
        for data in self._frames.replies():
            if (
                self.link.backlog <= self.link.max_backlog
            ):  # a peer that reads nothing gets no answer to a million pings
                self.link.urgent(data)
        if self._frames.over:
            self._finish(self._frames.reason)

    # --- signs of life ------------------------------------------------------------------------------------------------

    def expect(self, what: str, within: float, code: int) -> None:
        """End the connection with this code unless `beat` is called in time."""
        self._set_timer(within, lambda: self.end(code, f"no {what} came within {within:g} s"))

    def beat(self, every: float) -> None:
        """Ping from now on, once in so many seconds; two in a row without any answer end the connection.

        A peer that freezes right after a sign of life is noticed at the third beat, any other earlier.
        """
        self._set_timer(every, lambda: self._beat(every))

    def _beat(self, every: float) -> None:
        # Beats are counted, and not the time: if this very process was held up, there may be news it has not read yet.
        self._missed = 0 if self._heard else self._missed + 1
        self._heard = False
        if self._missed == _MISSES:
            self.link.abort(f"nothing was heard of the peer for {_MISSES * every:g} s")
            return
        self._frames.ping()
        self.reply()
        self.beat(every)

    def _set_timer(self, seconds: float, act: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, act)

    # --- ending -------------------------------------------------------------------------------------------------------

    def end(self, code: int, reason: str) -> None:
        """Say why, and end the connection."""
        self._frames.fail(code, reason)
        self._say_all()
        self._finish(reason)

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye, let the peer answer, and end the connection; `lost` is not called."""
        self._lost = self._arrived = _nothing
        if not self._over and self._frames.open:
            self._frames.close(code, reason)
            self._say_all()
            try:
                async with asyncio.timeout(GRACE):
                    await self._ended.wait()
            except TimeoutError:
                pass  # it does not answer: then without
        self._stop()
        await self.link.close()
        if self._ending is not None:
            await self._ending

    def drop(self) -> None:
        """End the connection without a word; `lost` is not called."""
        self._lost = self._arrived = _nothing
        self._stop()
        self.link.abort("it was dropped")

    def _say_all(self) -> None:
        """Send what there is to reply after the messages that wait, unlike other replies."""
        try:
            for data in self._frames.replies():
                self.link.control(data)
        except CallError:
            pass  # it is gone, or does not listen

    def _finish(self, reason: str) -> None:
        if not self._over:
            self._stop()
            self._ending = asyncio.get_running_loop().create_task(self.link.close(grace=GRACE))
            self._lost(reason)

    def _stop(self) -> None:
        self._over = True
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    # --- what the link calls ------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        self._heard = True
        if self._over:
            return
        if self._frames.connecting:
            data = self._greet(data)
        for message in self._frames.feed(data):
            self._arrived(message)
            if self._over:
                return
        self.reply()

    def _greet(self, data: bytes) -> bytes:
        greeting, data = self._frames.greeting(data)
        if greeting is not None:
            self._greeted(greeting)
        return data

    def _broken(self, reason: str) -> None:
        if not self._over:
            self._stop()
            self._lost(reason)


def _nothing(_: object) -> None:
    """Stands for a callback that is not wanted any more."""
