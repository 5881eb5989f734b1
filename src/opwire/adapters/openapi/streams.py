"""The items of a stream as results: bytes in, one envelope an item out. No I/O.

Streams of JSON values: one a line (NDJSON, JSON Lines), or each after a record separator (RFC 7464). No I/O.

Both take a stream in pieces and give the values that are complete. What is not JSON is left out with a warning, since
what comes after it can still be read.

`text/event-stream`, parsed as the WHATWG says: bytes in, events out. No I/O.

Lines are split before they are decoded: a line break is one byte in UTF-8, and ends whatever broken sequence stands
before it, so that decoding line by line gives what decoding the whole stream would.
"""

import logging
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.adapters.openapi.document import bounded
from opwire.adapters.openapi.plan import Plan, StreamKind, choose
from opwire.adapters.openapi.responses import MAX_ERROR_BODY, Head, declared_for, error_of
from opwire.envelope import HTTPResponseMeta, http_envelope
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import ShapedResult
from opwire.schema import UNKNOWN, Schema
from opwire.typed.plain import read_json

logger = logging.getLogger("opwire.adapters.openapi")

MAX_ITEM = 16 * 1024 * 1024
"""Bytes that one value may have."""

DONE = "[DONE]"
"""What some APIs send as the last item of a stream. It is not JSON, and nobody's data."""

_SPACE = b" \t\r\n\x1e"
_BOM = b"\xef\xbb\xbf"


class NDJSONDecoder:
    """One JSON value a line; blank lines, CRLF, record separators and a missing last line break do no harm."""

    def __init__(self, *, max_item: int = MAX_ITEM) -> None:
        self.done = False  # the sentinel was there: nothing follows
        self._pieces: list[bytes] = []  # of a record that has not ended yet
        self._size = 0
        self._max_item = max_item

    def feed(self, chunk: bytes) -> list[Any]:
        """The values that a piece of the stream completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, if a value is larger than it may be.
        """
        return self._split(chunk, b"\n")

    def end(self) -> list[Any]:
        """The value that the end of the stream completes, if there is one."""
        return self._values([self._taken()])

    def _split(self, chunk: bytes, separator: bytes) -> list[Any]:
        first, *others = chunk.split(separator)
        self._keep(first)
        if not others:
            return []
        records = [self._taken(), *others]
        self._keep(records.pop())
        return self._values(records)

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._max_item:
            message = f"an item of the stream is larger than {self._max_item:,} bytes"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)

    def _taken(self) -> bytes:
        record = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return record

    def _values(self, records: list[bytes]) -> list[Any]:
        values: list[Any] = []
        for record in records:
            text = record.strip(_SPACE).removeprefix(_BOM)
            if text == DONE.encode():
                self.done = True
            if self.done:
                break
            if text:
                try:
                    values.append(read_json(_json, text))
                except (ValueError, RecursionError) as error:
                    logger.warning("an item of %d bytes that is not JSON is left out: %s", len(text), error)
        return values


class JSONSeqDecoder(NDJSONDecoder):
    """JSON values, each after a record separator; one that ends in a line break need not wait for the next."""

    def __init__(self, *, max_item: int = MAX_ITEM) -> None:
        super().__init__(max_item=max_item)
        self._worth_trying = 0  # the size from which it is worth to look whether a record is complete

    def feed(self, chunk: bytes) -> list[Any]:
        """The values that a piece of the stream completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, if a value is larger than it may be.
        """
        values = self._split(chunk, b"\x1e")
        if b"\x1e" in chunk:
            self._worth_trying = 0
        if not self.done and chunk.endswith(b"\n") and self._size > self._worth_trying:
            values += self._complete()
        return values

    def _complete(self) -> list[Any]:
        """The last record, if it is JSON already: a line break may stand inside of a value too."""
        record = self._taken()
        try:
            value = read_json(_json, record)
        except (ValueError, RecursionError):
            self._keep(record)
            self._worth_trying = 2 * len(record)  # so that a long record is not read again with each of its lines
            return []
        self._worth_trying = 0
        return [value]


MAX_EVENT = 16 * 1024 * 1024
"""Bytes that one event may have."""

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


_MAX_ITEM_HEADERS = 16 * 1024  # characters; one event of ten bytes would carry all of them
_PROBLEM = "application/problem+json"
_json = msgspec.json.Decoder()


class Items(Protocol):
    """Makes results of a stream that arrives in pieces."""

    @property
    def done(self) -> bool:
        """The API has said that nothing follows."""
        ...

    @property
    def failure(self) -> CallError | None:
        """The error that the API has ended the stream with, after the items that were before it."""
        ...

    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """The items that a piece completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, if an item is larger than it may be.
        """
        ...

    def end(self) -> list[ShapedResult]:
        """The items that the end of the stream completes."""
        ...


class EventItems:
    """Those of an event stream.

    Data that is JSON is parsed, unless only the text itself fits the schema; other data is text. Where the schema
    does not allow text, an event without JSON is malformed, and left out with a warning. An event of type `error`
    that holds problem details (RFC 9457) is the error that it says; any other is an item like all.
    """

    def __init__(self, plan: Plan, head: Head, parser: SSEParser) -> None:
        self.done = False
        self.failure: CallError | None = None
        self._plan = plan
        self._head = head
        self._parser = parser
        self._schema = _schema_of(plan, head)
        self._headers, self._cookies = _item_headers(plan, head)

    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """The items that a piece completes."""
        items: list[ShapedResult] = []
        for event in self._parser.feed(chunk):
            if event.data == DONE:
                self.done = True
                break
            try:
                data = self._data(event.data)
            except ValueError:
                logger.warning("%s: an event that is not JSON is left out", self._plan.operation_id)
                continue
            if event.event == "error" and (failure := self._problem(event.data, data)):
                self.failure = failure
                break
            items.append(self._item(event, data))
        return items

    def end(self) -> list[ShapedResult]:
        """Nothing: an event that its stream leaves unfinished is none."""
        return []

    def _data(self, text: str) -> Any:
        try:
            value = read_json(_json, text)
        except (ValueError, RecursionError):
            if _fits(self._schema, text):
                return text
            raise ValueError("neither JSON nor text that the schema allows") from None
        if isinstance(value, str) or self._schema.is_unknown or not _fits(self._schema, text):
            return value
        return value if _fits(self._schema, value) else text

    def _problem(self, text: str, data: Any) -> CallError | None:
        match data:
            case {"status": int(status), "title": str(title)} if 400 <= status <= 599:
                head = replace(self._head, status=status, reason=title, headers=[], content_type=_PROBLEM)
                return error_of(head, text.encode(errors="replace"), is_whole=len(text) <= MAX_ERROR_BODY)
            case _:
                return None

    def _item(self, event: SSEEvent, data: Any) -> ShapedResult:
        envelope = http_envelope(
            data,
            status_code=self._head.status,
            headers=self._headers,
            set_cookie=self._cookies,
            content_type="text/event-stream",
            event_type=event.event,
            last_event_id=event.last_event_id or None,
        )
        return ShapedResult(envelope, self._schema)


class ValueItems:
    """Those of a stream of JSON values."""

    failure: CallError | None = None  # there is no word for it

    def __init__(self, plan: Plan, head: Head, decoder: NDJSONDecoder) -> None:
        self._head = head
        self._decoder = decoder
        self._schema = _schema_of(plan, head)
        self._headers, self._cookies = _item_headers(plan, head)

    @property
    def done(self) -> bool:
        """The API has said that nothing follows."""
        return self._decoder.done

    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """The items that a piece completes."""
        return [self._item(value) for value in self._decoder.feed(chunk)]

    def end(self) -> list[ShapedResult]:
        """The items that the end of the stream completes."""
        return [self._item(value) for value in self._decoder.end()]

    def _item(self, value: Any) -> ShapedResult:
        head = self._head
        envelope = http_envelope(
            value,
            status_code=head.status,
            headers=self._headers,
            set_cookie=self._cookies,
            content_type=head.content_type,
        )
        return ShapedResult(envelope, self._schema)


def stream_kind(plan: Plan, head: Head) -> StreamKind | None:
    """How an answer is framed: as its content type says, or its document where that says nothing of use.

    An event stream has to say that it is one, as the WHATWG demands.
    """
    kind = head.media_type
    if kind.stream is None and kind.name in ("", "text/plain", "application/octet-stream"):
        return plan.stream if plan.stream != "sse" or not kind.name else None
    return kind.stream


def value_items(plan: Plan, head: Head, kind: StreamKind, max_item: int) -> ValueItems:
    """The items of a stream that is not an event stream."""
    decoder = JSONSeqDecoder if kind == "json-seq" else NDJSONDecoder
    return ValueItems(plan, head, decoder(max_item=max_item))


def _item_headers(plan: Plan, head: Head) -> tuple[dict[str, str], list[str]]:
    """Return headers and cookies as every item carries them, joined once, and no more than is worth to be repeated."""
    kept: list[tuple[str, str]] = []
    left = _MAX_ITEM_HEADERS
    for name, value in head.headers:
        if len(name) + len(value) <= left:
            kept.append((name, value))
            left -= len(name) + len(value)
    if len(kept) < len(head.headers):
        dropped = len(head.headers) - len(kept)
        logger.warning("%s: %d large headers of the stream are left out of its items", plan.operation_id, dropped)
    meta = cast("HTTPResponseMeta", http_envelope(None, status_code=head.status, headers=kept, content_type="").meta)
    return meta.headers, meta.set_cookie or []


def _schema_of(plan: Plan, head: Head) -> Schema:
    declared = [each for each in declared_for(plan, head.status) if each.stream is not None]
    found = choose(declared, head.media_type) or (declared[0] if len(declared) == 1 else None)
    return found.schema if found else UNKNOWN


def _fits(schema: Schema, value: Any) -> bool:
    """Whether a value fits; everything fits a schema that cannot be used."""
    try:
        return schema.is_unknown or schema.is_valid(value)
    except SchemaError:
        return True
