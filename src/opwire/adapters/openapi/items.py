"""The items of a stream as results: bytes in, one envelope an item out. No I/O."""

import logging
from typing import Any, Protocol, cast

import msgspec
from msgspec.structs import replace

from opwire.adapters.openapi.answers import MAX_ERROR_BODY, Head, declared_for, error_of
from opwire.adapters.openapi.media_types import choose
from opwire.adapters.openapi.plan import Plan, StreamKind
from opwire.adapters.openapi.sse import SSEEvent, SSEParser
from opwire.adapters.openapi.streams import DONE, JSONSeqDecoder, NDJSONDecoder
from opwire.envelope import HTTPResponseMeta, http_envelope
from opwire.errors import CallError, SchemaError
from opwire.operation import ShapedResult
from opwire.schema import UNKNOWN, Schema
from opwire.typed.text import read_json

logger = logging.getLogger("opwire.adapters.openapi")

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
