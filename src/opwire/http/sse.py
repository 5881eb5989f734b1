"""Server-sent events: parse `text/event-stream` as the WHATWG specifies. No I/O.

Lines are split before they are decoded: a line break is one byte in UTF-8 and ends any broken sequence before it, so
decoding line by line equals decoding the whole stream.
"""

from msgspec import Struct

from opwire.errors import CallError, ErrorCode

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one server-sent event, by default."""

_MAX_RETRY_MILLISECONDS = 10**15  # the reader of the stream has its own limit
_MAX_RETRY_DIGITS = 100  # a longer number has no meaning
_MAX_ID_BYTES = 4 * 1024  # the id is repeated in the meta of every event, and sent as a header
_MAX_UNJOINED_LINES = 1_024  # lines of two characters took 20 times their size
_BOM = b"\xef\xbb\xbf"


class SSEEvent(Struct, frozen=True):
    """One event. `last_event_id` is the most recent id, of this event or of an earlier one."""

    event: str
    data: str
    last_event_id: str


class SSEParser:
    """Parses an event stream that arrives in chunks.

        parser = SSEParser()
        parser.feed(b"id: 7\\ndata: a\\n")  # []
        parser.feed(b"\\n")                 # [SSEEvent(event='message', data='a', last_event_id='7')]

    An event is dispatched at its blank line, even if that ends in a lone CR. An incomplete event at the end of the
    stream is ignored. Pass `last_event_id` to parse a stream that was resumed there.
    """

    def __init__(self, *, last_event_id: str = "", max_event: int = MAX_EVENT) -> None:
        self.retry: int | None = None  # milliseconds to wait before a reconnect
        self.last_event_id = last_event_id  # of complete events: where to resume the stream
        self._id = last_event_id
        self._event = ""
        self._data: list[str] = []
        self._blocks: list[str] = []  # joined lines before those of `_data`
        self._line: list[bytes] = []  # chunks of an incomplete line
        self._size = 0  # bytes of the buffered line and data
        self._max_event = max_event
        self._is_first = True  # before the end of the first line, which may start with a byte order mark
        self._after_cr = False  # the last byte was a CR: skip a LF that follows

    def feed(self, chunk: bytes) -> list[SSEEvent]:
        """Return the events that a chunk completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, an event exceeds `max_event`.
        """
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines()  # bytes split at CR, LF and CRLF only
        incomplete_line = b"" if chunk.endswith((b"\n", b"\r")) or not lines else lines.pop()
        events: list[SSEEvent] = []
        for line in lines:
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)  # noqa: PLW2901
                self._size -= sum(map(len, self._line[:-1]))
                self._line.clear()
            if self._is_first:
                self._is_first = False
                line = line.removeprefix(_BOM)  # noqa: PLW2901
            if line:
                self._read_field(line)
                continue
            self.last_event_id = self._id
            if self._data:
                data = "\n".join((*self._blocks, *self._data))
                events.append(SSEEvent(self._event or "message", data, self._id))
            self._event, self._data, self._size = "", [], 0
            if self._blocks:
                self._blocks = []
        if incomplete_line:
            self._line.append(incomplete_line)
            self._grow(len(incomplete_line))
        return events

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                if len(self._data) >= _MAX_UNJOINED_LINES:
                    self._blocks.append("\n".join(self._data))
                    self._data.clear()
                self._data.append(value.decode(errors="replace"))
                self._grow(len(value) + 1)
            case b"event":
                self._event = value.decode(errors="replace")
                self._grow(len(value))
            case b"id" if b"\0" not in value and len(value) <= _MAX_ID_BYTES:
                self._id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self.retry = min(int(value), _MAX_RETRY_MILLISECONDS)
            case _:  # a comment, or an unknown field
                pass

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max_event:
            message = f"an event of the stream is larger than {self._max_event:,} bytes"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
