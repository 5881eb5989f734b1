"""Decoders of streamed responses: chunks of bytes in, one result per item out. No I/O.

JSON values come one per line (NDJSON, JSON Lines), or each after a record separator (RFC 7464). An invalid item is
skipped with a warning, since the items after it can still be decoded.
"""

import logging
from typing import Any, Protocol, cast

import msgspec
from msgspec.structs import replace

from opwire.adapters.openapi.plan import CallPlan, StreamKind, choose
from opwire.adapters.openapi.responses import (
    MAX_ERROR_BODY,
    ResponseHead,
    declared_for,
    error_of,
)
from opwire.envelope import HTTPResponseMeta, http_envelope
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.logs import LimitedLog
from opwire.operation import ShapedResult
from opwire.schema import UNKNOWN, Schema
from opwire.sse import SSEParser
from opwire.typed.plain import read_peer_json

logger = logging.getLogger("opwire.adapters.openapi")

MAX_ITEM = 16 * 1024 * 1024
"""Bytes of one value, by default."""

DONE = "[DONE]"
"""The last item that some APIs send. It is a sentinel, not JSON data."""

_SPACE = b" \t\r\n\x1e"
_BOM = b"\xef\xbb\xbf"
_MAX_ITEM_HEADERS = 16 * 1024  # characters; every item carries them, even an event of ten bytes
_LINES = 10  # of the log per second and stream: 500 bytes of gzip are 200,000 invalid items
_PROBLEM = "application/problem+json"
_json = msgspec.json.Decoder()


class NDJSONDecoder:
    """Decodes one JSON value per line. Blank lines, CRLF, record separators and a missing last line break are fine."""

    separator = b"\n"

    def __init__(self, *, max_item: int = MAX_ITEM) -> None:
        self.done = False  # after the sentinel
        self._buffer: list[bytes] = []  # chunks of an incomplete record
        self._size = 0
        self._max_item = max_item
        self._log = LimitedLog(logger, per_second=_LINES)

    def feed(self, chunk: bytes) -> list[Any]:
        """Return the values that a chunk completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, a value exceeds `max_item`.
        """
        first, *others = chunk.split(self.separator)
        self._append(first)
        if not others:
            return []
        records = [self._flush(), *others]
        self._append(records.pop())
        return self._decode(records)

    def end(self) -> list[Any]:
        """Return the value that the end of the stream completes, if there is one."""
        return self._decode([self._flush()])

    def _append(self, chunk: bytes) -> None:
        self._buffer.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_item:
            message = f"an item of the stream is larger than {self._max_item:,} bytes"
            raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)

    def _flush(self) -> bytes:
        record = b"".join(self._buffer)
        self._buffer, self._size = [], 0
        return record

    def _decode(self, records: list[bytes]) -> list[Any]:
        values: list[Any] = []
        for record in records:
            text = record.strip(_SPACE).removeprefix(_BOM)
            if text == DONE.encode():
                self.done = True
            if self.done:
                break
            if text:
                try:
                    values.append(read_peer_json(_json, text))
                except (ValueError, RecursionError) as error:
                    self._log.write(
                        logging.WARNING, "skipped an item of %d bytes that is not JSON: %s", len(text), error
                    )
        return values


class JSONSeqDecoder(NDJSONDecoder):
    """Decodes JSON values that each follow a record separator; a final line break completes one without the next."""

    separator = b"\x1e"

    def __init__(self, *, max_item: int = MAX_ITEM) -> None:
        super().__init__(max_item=max_item)
        self._retry_above = 0  # size of an incomplete record above which decoding it is tried again

    def feed(self, chunk: bytes) -> list[Any]:
        """Return the values that a chunk completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, a value exceeds `max_item`.
        """
        values = super().feed(chunk)
        if self.separator in chunk:
            self._retry_above = 0
        if not self.done and chunk.endswith(b"\n") and self._size > self._retry_above:
            record = self._flush()
            try:
                values.append(read_peer_json(_json, record))
                self._retry_above = 0
            except (ValueError, RecursionError):  # the line break is inside a value
                self._append(record)
                self._retry_above = 2 * len(record)  # do not decode a long record again at each of its lines
        return values


class ItemDecoder(Protocol):
    """Decodes a stream that arrives in chunks."""

    @property
    def done(self) -> bool:
        """Whether the API has sent its last item."""
        ...

    @property
    def failure(self) -> CallError | None:
        """The error with which the API ended the stream; raise it after the items before it."""
        ...

    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """Return the items that a chunk completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, an item is too large.
        """
        ...

    def end(self) -> list[ShapedResult]:
        """Return the items that the end of the stream completes."""
        ...


class _ItemShape:
    """The schema and headers that every item of one stream shares."""

    def __init__(self, plan: CallPlan, head: ResponseHead) -> None:
        self._head = head
        declared = [each for each in declared_for(plan, head.status) if each.stream is not None]
        found = choose(declared, head.media_type) or (declared[0] if len(declared) == 1 else None)
        self.schema: Schema = found.schema if found else UNKNOWN
        kept: list[tuple[str, str]] = []
        left = _MAX_ITEM_HEADERS
        for name, value in head.headers:
            if len(name) + len(value) <= left:
                kept.append((name, value))
                left -= len(name) + len(value)
        if dropped := len(head.headers) - len(kept):
            logger.warning("%s: %d large headers of the stream are omitted from its items", plan.operation_id, dropped)
        # Repeated headers are joined once, here.
        envelope = http_envelope(None, status_code=head.status, headers=kept, content_type="")
        meta = cast("HTTPResponseMeta", envelope.meta)
        self._headers, self._cookies = meta.headers, meta.set_cookie or []

    def item(self, data: Any, content_type: str, **event: Any) -> ShapedResult:
        envelope = http_envelope(
            data,
            status_code=self._head.status,
            headers=self._headers,
            set_cookie=self._cookies,
            content_type=content_type,
            **event,
        )
        return ShapedResult(envelope, self.schema)

    def fits(self, value: Any) -> bool:
        """Return whether a value matches the schema; anything matches an unusable one."""
        try:
            return self.schema.is_unknown or self.schema.is_valid(value)
        except SchemaError:
            return True


class EventDecoder:
    """Decodes an event stream.

    JSON data is parsed, unless only the text itself matches the schema; other data is text. If the schema does not
    allow text, an event without JSON is invalid and skipped with a warning. An event of type `error` with problem
    details (RFC 9457) raises that error; any other is an ordinary item.
    """

    def __init__(self, plan: CallPlan, head: ResponseHead, parser: SSEParser) -> None:
        self.done = False
        self.failure: CallError | None = None
        self._operation_id = plan.operation_id
        self._head = head
        self._parser = parser
        self._log = LimitedLog(logger, per_second=_LINES)
        self._shape = _ItemShape(plan, head)

    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """Return the items that a chunk completes."""
        items: list[ShapedResult] = []
        for event in self._parser.feed(chunk):
            if event.data == DONE:
                self.done = True
                break
            try:
                data = self._data(event.data)
            except ValueError:
                self._log.write(logging.WARNING, "%s: skipped an event that is not JSON", self._operation_id)
                continue
            match event.event, data:
                case "error", {"status": int(status), "title": str(title)} if 400 <= status <= 599:
                    head = replace(self._head, status=status, reason=title, headers=[], content_type=_PROBLEM)
                    is_whole = len(event.data) <= MAX_ERROR_BODY
                    self.failure = error_of(head, event.data.encode(errors="replace"), is_whole=is_whole)
                    break
                case kind, _:
                    last_id = event.last_event_id or None
                    items.append(self._shape.item(data, "text/event-stream", event_type=kind, last_event_id=last_id))
        return items

    def end(self) -> list[ShapedResult]:
        """Return nothing: an incomplete event is ignored."""
        return []

    def _data(self, text: str) -> Any:
        shape = self._shape
        try:
            value = read_peer_json(_json, text)
        except (ValueError, RecursionError):
            if shape.fits(text):
                return text
            raise ValueError("neither JSON nor text that the schema allows") from None
        if isinstance(value, str) or shape.schema.is_unknown or not shape.fits(text):
            return value
        return value if shape.fits(value) else text


class ValueDecoder:
    """Decodes a stream of JSON values."""

    failure: CallError | None = None  # these formats have no errors

    def __init__(self, plan: CallPlan, head: ResponseHead, decoder: NDJSONDecoder) -> None:
        self._content_type = head.content_type
        self._decoder = decoder
        self._shape = _ItemShape(plan, head)

    @property
    def done(self) -> bool:
        """Whether the API has sent its last item."""
        return self._decoder.done

    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """Return the items that a chunk completes."""
        return [self._shape.item(value, self._content_type) for value in self._decoder.feed(chunk)]

    def end(self) -> list[ShapedResult]:
        """Return the items that the end of the stream completes."""
        return [self._shape.item(value, self._content_type) for value in self._decoder.end()]


def stream_kind(plan: CallPlan, head: ResponseHead) -> StreamKind | None:
    """Return the framing of a response: by its content type, or by the document if that is missing or generic.

    An event stream must have its own content type, as the WHATWG demands.
    """
    kind = head.media_type
    if kind.stream is None and kind.name in ("", "text/plain", "application/octet-stream"):
        return plan.stream if plan.stream != "sse" or not kind.name else None
    return kind.stream


def value_decoder(plan: CallPlan, head: ResponseHead, kind: StreamKind, max_item: int) -> ValueDecoder:
    """Return the decoder of a stream that is not an event stream."""
    decoder = JSONSeqDecoder if kind == "json-seq" else NDJSONDecoder
    return ValueDecoder(plan, head, decoder(max_item=max_item))
