"""HTTP responses as results or errors, whole or as the items of a stream. No I/O.

A 2xx, and a 304 to a conditional request, is a result. Everything else is EXECUTION_ERROR, "HTTP <status>: <reason>",
followed by the text in which a JSON body explains the error, such as the `detail` of RFC 9457, without credentials.
An API's opinion of opwire is not opwire's opinion of its own callers, so its 401 or 429 does not become
UNAUTHENTICATED or RATE_LIMITED. `retryable` means that a retry may succeed: the API was busy, slow or briefly broken,
or sends a Retry-After. Whether a retry is safe is the caller's decision.

Streams are decoded in chunks: events, or JSON values, one per line (NDJSON, JSON Lines) or each after a record
separator (RFC 7464). An invalid item is skipped with a warning, since the items after it can still be decoded.
"""

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.http.client import MAX_WAIT, RETRYABLE, bounded_number
from opwire.http.sse import SSEParser
from opwire.model.envelope import HTTPResponseMeta, http_envelope
from opwire.model.operation import ShapedResult
from opwire.openapi.client.plan import (
    FAST_CHARSETS,
    CallPlan,
    MediaType,
    ResponseMedia,
    StreamKind,
    choose,
    decode_text,
    media_type,
)
from opwire.openapi.client.xml_text import read_xml
from opwire.runtime.limits import LimitedLog
from opwire.runtime.text import get_logger, harmless, shorten
from opwire.schema import UNKNOWN
from opwire.typed.plain import MAX_DEPTH, parse_float, read_peer_json, survey

if TYPE_CHECKING:
    from aiohttp import ClientResponse

logger = get_logger("opwire.openapi.client")

MAX_ERROR_BODY = 8 * 1024
"""Bytes of an error's body that its details include."""

_CUT = "…"  # at the end of a body that was read in part
_MIN_CUT_SECRET_LENGTH = 3  # that is replaced at the end of a body that was cut off
_BOM = b"\xef\xbb\xbf"
_EMPTY = frozenset({204, 205, 304})
_SECRET_HEADERS = frozenset({"set-cookie", "set-cookie2", "authorization", "cookie"})
_MAX_REASON_LENGTH = 200
_MAX_EXPLANATION_LENGTH = 300
# Members of an error that explain it, the most specific first; the `title` of a problem is that of its whole kind.
_EXPLANATIONS = ("detail", "message", "msg", "error_description", "error", "errors", "errormessages", "title")
_MAX_TIMESTAMP = 1e12
_MIN_TIMESTAMP = 1_000_000_000  # a smaller number of seconds is a delay
_json = msgspec.json.Decoder(float_hook=parse_float)


class ResponseHead(Struct, frozen=True, kw_only=True):
    """Status line and headers of a response."""

    method: str
    status: int
    reason: str
    headers: list[tuple[str, str]]
    content_type: str = ""  # unparsed

    @property
    def media_type(self) -> MediaType:
        """The parsed content type."""
        return media_type(self.content_type)


def head_of(response: "ClientResponse") -> ResponseHead:
    """Return status line and headers of a response as plain data."""
    reason, content_type = response.reason or "", response.headers.get("Content-Type", "")
    return ResponseHead(
        method=response.method,
        status=response.status,
        reason=reason if reason.isascii() else _readable(reason),
        headers=[(name, value if value.isascii() else _readable(value)) for name, value in response.headers.items()],
        content_type=content_type if content_type.isascii() else _readable(content_type),
    )


def _readable(text: str) -> str:
    """Return the text of a header: aiohttp decodes those that are not UTF-8 to surrogates. They are Latin-1."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape").decode("latin-1")
    return text


class ResponseReader:
    """Decodes the responses of one operation."""

    def __init__(self, plan: CallPlan) -> None:
        self._plan = plan

    def read(self, head: ResponseHead, body: bytes) -> ShapedResult:
        """Return the result, with the schema for its status and content type."""
        data, schema, is_plain = None, UNKNOWN, False
        if body and head.method != "HEAD" and head.status not in _EMPTY:
            declared = [media for media in declared_for(self._plan, head.status) if media.stream is None]
            kind = head.media_type
            if not kind.name and len(declared) == 1:
                kind = media_type(declared[0].content_type)  # the Content-Type is missing: assume the declared one
            media = choose(declared, kind)
            if media is not None and media.xml is not None and not kind.is_xml:
                media = None
            schema, xml = (UNKNOWN, None) if media is None else (media.schema, media.xml)
            if kind.is_json or xml is not None:
                try:
                    if xml is None:
                        data = _read_json(kind, body)
                        # JSON with fewer brackets than MAX_DEPTH cannot be nested too deeply.
                        is_plain = kind.charset in FAST_CHARSETS and body.count(b"[") + body.count(b"{") <= MAX_DEPTH
                    else:
                        data = read_xml(body, xml, kind.charset)
                except (ValueError, RecursionError) as error:
                    logger.warning(
                        "%s: the response is declared as %s but invalid, it is read as text: %s",
                        self._plan.operation_id,
                        "JSON" if xml is None else "XML",
                        error,
                    )
                    data, schema = self._text(kind, body), UNKNOWN
            else:
                data = self._text(kind, body) if kind.is_text else body
        envelope = http_envelope(data, status_code=head.status, headers=head.headers, content_type=head.content_type)
        return ShapedResult(envelope, schema, is_plain, len(body))

    def _text(self, kind: MediaType, body: bytes) -> str:
        charset = kind.charset or "utf-8"
        body = body.removeprefix(_BOM) if charset == "utf-8" else body
        try:
            return decode_text(body, charset)
        except UnicodeError:
            logger.warning("%s: invalid %s in the response is replaced", self._plan.operation_id, charset)
            return decode_text(body, charset, errors="replace")


def declared_for(plan: CallPlan, status: int) -> tuple[ResponseMedia, ...]:
    """Return the media types that are declared for a status, or for its class.

    `default` is used if no success is declared at all: beside one, it describes the errors.
    """
    responses = plan.responses
    for key in (str(status), f"{status // 100}XX", f"{status // 100}xx"):
        if key in responses:
            return responses[key]
    return () if any(key.startswith("2") for key in responses) else responses.get("default", ())


def _read_json(kind: MediaType, body: bytes) -> Any:
    if kind.charset not in FAST_CHARSETS:
        return read_peer_json(_json, decode_text(body, kind.charset).removeprefix("\ufeff"))
    return read_peer_json(_json, body.removeprefix(_BOM))


def error_of(
    head: ResponseHead,
    body: bytes,
    *,
    is_whole: bool = True,
    hint: str = "",
    secrets: Iterable[str] = (),
) -> CallError:
    """Return the error of a response. `body` may be incomplete; `hint` tells the user what to do.

    The message quotes the explanation of the body. An API may echo the request: `***` replaces these
    secrets in the reason, the headers and the body, after that was decoded.
    """
    redacted = _redaction(tuple(secrets), is_whole=is_whole)
    headers: dict[str, str] = {}
    for raw_name, value in head.headers:
        name = raw_name.lower()
        if name not in _SECRET_HEADERS:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    details: dict[str, Any] = {
        "status": head.status,
        "headers": {name: redacted(value) for name, value in headers.items()},
        "body": _redacted(_error_body(head.media_type, body, is_whole), redacted),
    }
    if hint:
        details["hint"] = hint
    reason = redacted(head.reason.strip())[:_MAX_REASON_LENGTH]
    if not reason:
        reason = HTTPStatus(head.status).phrase if head.status in {*HTTPStatus} else "Unknown"
    message = f"HTTP {head.status}: {reason}"
    explanation = _explanation(details["body"])
    if explanation and explanation.lower() != reason.lower():
        message += f": {shorten(explanation, _MAX_EXPLANATION_LENGTH)}"
    delay = _retry_after(head)
    return CallError(
        ErrorCode.EXECUTION_ERROR,
        harmless(message),
        details,
        retryable=head.status in RETRYABLE or (delay is not None and head.status >= 400),
        retry_after=delay,
    )


def _redaction(secrets: tuple[str, ...], *, is_whole: bool) -> Callable[[str], str]:
    """Return the function that replaces secrets in a text: as sent, in a URL, with the slashes that PHP escapes.

    The text of a body that is not whole may end within a secret.
    """
    if not secrets:
        return str
    forms = {
        form
        for secret in secrets
        for form in (secret, quote(secret, safe=""), quote(secret), secret.replace("/", r"\/"))
    }
    longest_first = sorted(forms, key=len, reverse=True)
    secret_pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redacted(text: str) -> str:
        text = secret_pattern.sub("***", text)
        if is_whole or not text.endswith(_CUT):
            return text
        start = text.removesuffix(_CUT)
        for form in longest_first:
            cut = next((n for n in range(len(form) - 1, _MIN_CUT_SECRET_LENGTH, -1) if start.endswith(form[:n])), 0)
            if cut:
                return f"{start[:-cut]}***{_CUT}"
        return text

    return redacted


def _redacted(value: Any, redacted: Callable[[str], str]) -> Any:
    """Return the body of an error, which is not nested deeply, with its texts redacted."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        return [_redacted(element, redacted) for element in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {redacted(name): _redacted(member, redacted) for name, member in items}
    return value


def _explanation(body: Any, depth: int = 4) -> str:
    """Return the text in which the JSON of an error explains it on one line, or "".

    `{"detail": "…"}`, `{"error": {"message": "…"}}`, `{"errors": [{"title": "…"}]}`.
    """
    candidates: list[Any] = []
    if isinstance(body, dict):
        members = {key.lower(): member for key, member in cast("dict[str, Any]", body).items()}
        candidates = [members.get(key) for key in _EXPLANATIONS]
    elif isinstance(body, list):
        candidates = cast("list[Any]", body)[:1]
    for candidate in candidates:
        if isinstance(candidate, str):
            text = " ".join(candidate.split())
        else:
            text = _explanation(candidate, depth - 1) if depth else ""
        if text:
            return text
    return ""


def _error_body(kind: MediaType, body: bytes, is_whole: bool) -> Any:
    if not body:
        return None
    if kind.is_json and is_whole:
        try:
            value = _read_json(kind, body)
            if not survey(value).deep:
                return value
        except (ValueError, RecursionError):
            pass
    if kind.is_json or kind.is_text or not kind.name:
        text = body[:MAX_ERROR_BODY].decode(kind.charset or "utf-8", errors="replace")
        return text if is_whole else f"{text}{_CUT}"
    return f"<{len(body)} bytes{'' if is_whole else ' or more'} of {kind.name}>"


def _retry_after(head: ResponseHead) -> float | None:
    """Return the seconds of Retry-After or, for a 429, of a rate limit's reset header."""
    names = ["retry-after"]
    if head.status == HTTPStatus.TOO_MANY_REQUESTS:
        names += ["ratelimit-reset", "x-ratelimit-reset"]
    for name in names:
        value = next((value for header_name, value in head.headers if header_name.lower() == name), None)
        if value is None:
            continue
        seconds = bounded_number(value, _MAX_TIMESTAMP)
        if seconds is not None:
            return bounded_number(seconds - time.time() if seconds > _MIN_TIMESTAMP else seconds, MAX_WAIT)
        if name != "retry-after":
            return None
        try:
            retry_time = parsedate_to_datetime(value)
            return bounded_number(
                retry_time.replace(tzinfo=retry_time.tzinfo or UTC).timestamp() - time.time(), MAX_WAIT
            )
        except (ValueError, OverflowError, IndexError, TypeError):  # raised by the parser of the standard library
            return None
    return None


# --- streams ----------------------------------------------------------------------------------------------------------

MAX_ITEM = 16 * 1024 * 1024
"""Bytes of one value, by default."""

DONE = "[DONE]"
"""The last item that some APIs send. It is a sentinel, not JSON data."""

_SPACE = b" \t\r\n\x1e"
_MAX_ITEM_HEADER_CHARACTERS = 16 * 1024  # every item carries them, even an event of ten bytes
_MAX_LOG_LINES_PER_SECOND = 10  # per stream: 500 bytes of gzip are 200,000 invalid items
_PROBLEM = "application/problem+json"


class NDJSONDecoder:
    """Decodes one JSON value per line. Blank lines, CRLF, record separators and a missing last line break are fine."""

    separator = b"\n"

    def __init__(self, *, max_item: int = MAX_ITEM) -> None:
        self.done = False  # after the sentinel
        self._buffer: list[bytes] = []  # chunks of an incomplete record
        self._size = 0
        self._max_item = max_item
        self._log = LimitedLog(logger, per_second=_MAX_LOG_LINES_PER_SECOND)

    def feed(self, chunk: bytes) -> list[Any]:
        """Return the values that a chunk completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, a value exceeds `max_item`.
        """
        record_end, *next_records = chunk.split(self.separator)
        self._append(record_end)
        if not next_records:
            return []
        records = [self._flush(), *next_records]
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


class ItemDecoder(ABC):
    """Decodes a stream that arrives in chunks to items, which share a schema and headers."""

    done = False
    """Whether the API has sent its last item."""

    failure: CallError | None = None
    """The error with which the API ended the stream; raise it after the items before it."""

    def __init__(self, plan: CallPlan, head: ResponseHead) -> None:
        self._operation_id = plan.operation_id
        self._head = head
        declared = [media for media in declared_for(plan, head.status) if media.stream is not None]
        media = choose(declared, head.media_type) or (declared[0] if len(declared) == 1 else None)
        self._schema = media.schema if media else UNKNOWN
        item_headers: list[tuple[str, str]] = []
        characters_left = _MAX_ITEM_HEADER_CHARACTERS
        for name, value in head.headers:
            if len(name) + len(value) <= characters_left:
                item_headers.append((name, value))
                characters_left -= len(name) + len(value)
        if dropped := len(head.headers) - len(item_headers):
            logger.warning("%s: %d large headers of the stream are omitted from its items", plan.operation_id, dropped)
        # Repeated headers are joined once, here.
        envelope = http_envelope(None, status_code=head.status, headers=item_headers, content_type="")
        meta = cast("HTTPResponseMeta", envelope.meta)
        self._headers, self._cookies = meta.headers, meta.set_cookie or []

    @abstractmethod
    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """Return the items that a chunk completes.

        Raises:
            CallError: PAYLOAD_TOO_LARGE, an item is too large.
        """

    def end(self) -> list[ShapedResult]:
        """Return the items that the end of the stream completes."""
        return []

    def _item(self, data: Any, content_type: str, **event: Any) -> ShapedResult:
        envelope = http_envelope(
            data,
            status_code=self._head.status,
            headers=self._headers,
            set_cookie=self._cookies,
            content_type=content_type,
            **event,
        )
        return ShapedResult(envelope, self._schema)

    def _fits(self, value: Any) -> bool:
        """Return whether a value matches the schema; anything matches an unusable one."""
        try:
            return self._schema.is_unknown or self._schema.is_valid(value)
        except SchemaError:
            return True


class EventDecoder(ItemDecoder):
    """Decodes an event stream; an incomplete event at its end is ignored.

    JSON data is parsed, unless only the text itself matches the schema; other data is text. If the schema does not
    allow text, an event without JSON is invalid and skipped with a warning. An event of type `error` with problem
    details (RFC 9457) raises that error; any other is an ordinary item.
    """

    def __init__(self, plan: CallPlan, head: ResponseHead, parser: SSEParser, secrets: Iterable[str] = ()) -> None:
        super().__init__(plan, head)
        self._parser = parser
        self._secrets = secrets  # of the request, which an error may quote
        self._log = LimitedLog(logger, per_second=_MAX_LOG_LINES_PER_SECOND)

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
                    body = event.data.encode(errors="replace")
                    self.failure = error_of(head, body, is_whole=is_whole, secrets=self._secrets)
                    break
                case kind, _:
                    last_id = event.last_event_id or None
                    items.append(self._item(data, "text/event-stream", event_type=kind, last_event_id=last_id))
        return items

    def _data(self, text: str) -> Any:
        try:
            value = read_peer_json(_json, text)
        except (ValueError, RecursionError):
            if self._fits(text):
                return text
            raise ValueError("neither JSON nor text that the schema allows") from None
        if isinstance(value, str) or self._schema.is_unknown or not self._fits(text):
            return value
        return value if self._fits(value) else text


class ValueDecoder(ItemDecoder):
    """Decodes a stream of JSON values; such a stream has no errors."""

    def __init__(self, plan: CallPlan, head: ResponseHead, decoder: NDJSONDecoder) -> None:
        super().__init__(plan, head)
        self._decoder = decoder

    def feed(self, chunk: bytes) -> list[ShapedResult]:
        """Return the items that a chunk completes."""
        values = self._decoder.feed(chunk)
        self.done = self._decoder.done
        return [self._item(value, self._head.content_type) for value in values]

    def end(self) -> list[ShapedResult]:
        """Return the items that the end of the stream completes."""
        return [self._item(value, self._head.content_type) for value in self._decoder.end()]


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
