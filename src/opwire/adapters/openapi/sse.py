"""`text/event-stream`, parsed as the WHATWG says: bytes in, events out. No I/O.

Lines are split before they are decoded: a line break is one byte in UTF-8, and ends whatever broken sequence stands
before it, so that decoding line by line gives what decoding the whole stream would.
"""

from msgspec import Struct

from opwire.adapters.openapi.shapes import bounded
from opwire.errors import CallError, ErrorCode

MAX_EVENT = 16 * 1024 * 1024
"""Bytes that one event may have."""

_BOM = b"\xef\xbb\xbf"
_MAX_RETRY = 1e15  # milliseconds; who waits has a limit of its own
_MAX_ID = 4 * 1024  # bytes; it is repeated in the meta of every event, and sent as a header


class SSEEvent(Struct, frozen=True):
    """One event. `last_event_id` is the id that was last given, by this event or by one before it."""

    event: str
    data: str
    last_event_id: str


class SSEParser:
    """Makes events of a stream that arrives in pieces.

        parser = SSEParser()
        parser.feed(b"id: 7\\ndata: a\\n")  # []
        parser.feed(b"\\n")                 # [SSEEvent(event='message', data='a', last_event_id='7')]

    An event is there with the blank line that ends it, even if that line ends in a lone CR. What the stream leaves
    unfinished at its end is no event. A parser for a stream that was resumed is given the id that it was resumed at.
    """

    def __init__(self, *, last_event_id: str = "", max_event: int = MAX_EVENT) -> None:
        self.retry: int | None = None  # milliseconds that the server wants to be left alone before a reconnect
        self.last_event_id = last_event_id  # to resume the stream at; of events that are complete
        self._id = last_event_id
        self._event = ""
        self._data: list[str] = []
        self._line: list[bytes] = []  # pieces of a line that has not ended yet
        self._size = 0  # of the pieces and the data
        self._max_event = max_event
        self._is_first = True  # no line has ended yet: there may be a byte order mark
        self._after_cr = False  # the last byte was a CR: a LF that follows belongs to it

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """The events that a piece of the stream completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, if an event is larger than it may be.
        """
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines()  # of bytes: at CR, LF and CRLF only
        rest = b"" if chunk.endswith((b"\n", b"\r")) or not lines else lines.pop()
        events: list[SSEEvent] = []
        for piece in lines:
            line = self._ended(piece)
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
            self._grow(len(rest))
        return events

    def _ended(self, piece: bytes) -> bytes:
        """The whole line of which the last piece is here."""
        if self._line:
            self._line.append(piece)
            piece = b"".join(self._line)
            self._size -= sum(map(len, self._line[:-1]))
            self._line.clear()
        if self._is_first:
            self._is_first = False
            piece = piece.removeprefix(_BOM)
        return piece

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value.decode(errors="replace"))
                self._grow(len(value) + 1)
            case b"event":
                self._event = value.decode(errors="replace")
                self._grow(len(value))
            case b"id" if b"\0" not in value and len(value) <= _MAX_ID:
                self._id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and (retry := bounded(value.decode(), _MAX_RETRY)) is not None:
                self.retry = int(retry)
            case _:  # a comment, or a field that nobody knows
                pass

    def _dispatch(self) -> SSEEvent | None:
        self.last_event_id = self._id
        event, data = self._event or "message", self._data
        self._event, self._data, self._size = "", [], 0
        return SSEEvent(event, "\n".join(data), self._id) if data else None

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max_event:
            message = f"an event of the stream is larger than {self._max_event:,} bytes"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
