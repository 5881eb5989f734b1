"""The result of every call: `ResponseEnvelope {data, meta}`, its three kinds of meta, and MCP content blocks.

Rules: no I/O. Adapters create envelopes through the three factories only, and `is_response_envelope` is the only
detection. Encoded names are camelCase, missing optional fields are omitted, and the bytes equal those of a TypeScript
peer. A new source is a new meta class here, plus its entry in `RESPONSE_SOURCES` and in the schemas below.

Content blocks are plain dicts as MCP encodes them; the types are defined here, so that the core never imports the MCP
SDK. Fields of a newer protocol are kept. A block of an unknown type becomes a text block with its JSON.
"""

import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping
from functools import cache
from time import time_ns
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NotRequired,
    TypedDict,
    TypeGuard,
    TypeVar,
    cast,
    overload,
)

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from opwire.errors import ConversionError, UsageError
from opwire.runtime.text import get_logger
from opwire.typed import convert
from opwire.typed.plain import (
    find_nonfinite,
    html_table,
    indented_json,
    parse_float,
    read_json,
    replace_surrogates,
    write_json,
)


class MCPAnnotations(TypedDict, total=False):
    """Display hints of a block."""

    audience: list[Literal["user", "assistant"]]
    priority: float
    lastModified: str


class TextBlock(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str
    annotations: NotRequired[MCPAnnotations]


class ImageBlock(TypedDict):
    """An image, base64."""

    type: Literal["image"]
    data: str
    mimeType: str
    annotations: NotRequired[MCPAnnotations]


class AudioBlock(TypedDict):
    """Audio, base64."""

    type: Literal["audio"]
    data: str
    mimeType: str
    annotations: NotRequired[MCPAnnotations]


class MCPResourceContent(TypedDict):
    """The content of a resource: text, or base64 bytes as `blob`."""

    uri: str
    mimeType: NotRequired[str]
    text: NotRequired[str]
    blob: NotRequired[str]


class ResourceBlock(TypedDict):
    """An embedded resource."""

    type: Literal["resource"]
    resource: MCPResourceContent
    annotations: NotRequired[MCPAnnotations]


class ResourceLinkBlock(TypedDict):
    """A resource by URI."""

    type: Literal["resource_link"]
    uri: str
    name: str
    description: NotRequired[str]
    mimeType: NotRequired[str]
    annotations: NotRequired[MCPAnnotations]


if TYPE_CHECKING:
    MCPContentBlock = TextBlock | ImageBlock | AudioBlock | ResourceBlock | ResourceLinkBlock
else:
    # msgspec evaluates annotations at run time and rejects a union of several TypedDicts.
    MCPContentBlock = dict[str, Any]

_STRING_SCHEMA = {"type": "string"}
_ANNOTATIONS_SCHEMA = {
    "type": "object",
    "properties": {
        "audience": {"type": "array", "items": {"enum": ["user", "assistant"]}},
        "priority": {"type": "number"},
        "lastModified": _STRING_SCHEMA,
    },
}
_RESOURCE_SCHEMA = {
    "type": "object",
    "properties": {"uri": _STRING_SCHEMA, "mimeType": _STRING_SCHEMA, "text": _STRING_SCHEMA, "blob": _STRING_SCHEMA},
    "required": ["uri"],
}


def _block_schema(kind: str, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **required, **optional, "annotations": _ANNOTATIONS_SCHEMA}
    return {"type": "object", "properties": properties, "required": ["type", *required]}


MCP_CONTENT_BLOCK_SCHEMA: dict[str, Any] = {
    "oneOf": [
        _block_schema("text", {"text": _STRING_SCHEMA}, {}),
        _block_schema("image", {"data": _STRING_SCHEMA, "mimeType": _STRING_SCHEMA}, {}),
        _block_schema("audio", {"data": _STRING_SCHEMA, "mimeType": _STRING_SCHEMA}, {}),
        _block_schema("resource", {"resource": _RESOURCE_SCHEMA}, {}),
        _block_schema(
            "resource_link",
            {"uri": _STRING_SCHEMA, "name": _STRING_SCHEMA},
            {"description": _STRING_SCHEMA, "mimeType": _STRING_SCHEMA},
        ),
    ]
}

_READABLE: dict[str, type[Any]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "audio": AudioBlock,
    "resource": ResourceBlock,
    "resource_link": ResourceLinkBlock,
}


def content_blocks(blocks: Iterable[Any]) -> list[MCPContentBlock]:
    """Return the blocks, with each block of an unknown type encoded as a text block.

    Raises:
        ConversionError: a block is not an object, or cannot be encoded as JSON.
    """
    return [_read_block(block) for block in blocks]


def _read_block(block: Any) -> MCPContentBlock:
    if type(block) is not dict and not isinstance(block, Mapping):
        raise ConversionError(f"a content block is an object, not {type(block).__name__}")
    plain = dict(cast("Mapping[str, Any]", block))
    text = plain.get("text")
    if len(plain) == 2 and plain.get("type") == "text" and type(text) is str and text.isascii():
        return cast("MCPContentBlock", plain)  # most blocks: a conversion takes ten times as long
    shape = _READABLE.get(str(plain.get("type")))
    for candidate in () if shape is None else (plain, _without_nulls(plain)):
        try:
            msgspec.convert(candidate, shape)
        except ValueError:  # a missing field, a wrong type, or a lone surrogate
            continue
        return cast("MCPContentBlock", candidate)
    try:
        return {"type": "text", "text": msgspec.json.encode(replace_surrogates(plain)).decode()}
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError(f"a content block has no JSON form: {error}") from error


def _without_nulls(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without optional fields that are null: some servers write those that they do not use."""
    fields = {key: value for key, value in block.items() if value is not None}
    for key in fields.keys() & {"annotations", "resource"}:
        if isinstance(fields[key], dict):
            fields[key] = {name: value for name, value in fields[key].items() if value is not None}
    return fields


logger = get_logger("opwire.model")

T = TypeVar("T")
U = TypeVar("U")

Number = int | float
"""A JSON number: integral ones are int, so that `200.0` is read as 200, and others are float."""

MAX_TOOL_TEXT = 2_000
"""Characters of a tool's text in the message of an error; the data has all of it."""

MAX_CURSOR = 4_096
"""Bytes of a cursor: the position of an item in a subscription."""

ResponseSource = Literal["local", "http", "mcp"]
RESPONSE_SOURCES: tuple[ResponseSource, ...] = ("local", "http", "mcp")


class LocalResponseMeta(
    Struct, frozen=True, gc=False, omit_defaults=True, rename="camel", tag_field="source", tag="local"
):
    """Meta of a Python function's result. `timestamp` is in Unix epoch milliseconds."""

    source: ClassVar[Literal["local"]] = "local"
    operation_id: str
    timestamp: Number
    encoding: Literal["base64"] | None = None
    cursor: Annotated[str, Meta(max_length=MAX_CURSOR)] | None = None


class HTTPResponseMeta(Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="source", tag="http"):
    """Meta of an HTTP response. Header names are lower-case; repeated headers are joined with ", "."""

    source: ClassVar[Literal["http"]] = "http"
    status_code: Number
    headers: dict[str, str]
    content_type: str
    event_type: str | None = None
    last_event_id: str | None = None
    set_cookie: list[str] | None = None
    encoding: Literal["base64"] | None = None


class MCPResponseMeta(Struct, frozen=True, rename="camel", tag_field="source", tag="mcp"):
    """Meta of an MCP tool's result. `structured_content` may be any JSON value, null included; UNSET is missing."""

    source: ClassVar[Literal["mcp"]] = "mcp"
    is_error: bool
    content: list[MCPContentBlock]
    structured_content: Any | UnsetType = UNSET
    _meta: dict[str, Any] | UnsetType = UNSET


ResponseMeta = LocalResponseMeta | HTTPResponseMeta | MCPResponseMeta

ToolErrorPolicy = Literal["raise", "return"]
"""How the result of an MCP tool with `isError` is returned, where data is returned instead of an envelope.

`raise`, the default: as a `CallError`, EXECUTION_ERROR, with the text of its content blocks; over HTTP as a problem
with the whole data as `data`. `return`: as data like any other. Both responses over HTTP have the header
`opwire-is-error: true`. An envelope is always returned; its `meta.is_error` is set.
"""


class ResponseEnvelope(Struct, Generic[T], frozen=True):
    """A result and its origin.

    envelope = await registry.execute("math.add", {"a": 1, "b": 2})
    envelope.data         # 3
    envelope.meta.source  # "local"
    """

    data: T
    meta: ResponseMeta

    @property
    def cursor(self) -> str | None:
        """The position of this item in its subscription, if that can be resumed; over SSE, the id of the event."""
        meta = self.meta
        if isinstance(meta, LocalResponseMeta):
            return meta.cursor
        return meta.last_event_id if isinstance(meta, HTTPResponseMeta) else None

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        data = f"{len(self.data):,} bytes" if isinstance(self.data, bytes) else indented_json(self.data)
        fields = ((name, getattr(self.meta, name)) for name in self.meta.__struct_fields__)
        rows = [(name, text if isinstance(text, str) else indented_json(text)) for name, text in fields]
        return html_table("ResponseEnvelope", [("data", data), ("source", self.meta.source), *rows])


class Item(Struct, Generic[T], frozen=True):
    """An item of a subscription that can be resumed, and its cursor: the position in the stream, as an opaque text.

        @registry.subscription("orders.follow")
        async def follow(resume_from: str | None = None) -> AsyncIterator[Item[Order]]:
            async for row in table.rows(after=resume_from):
                yield Item(row.order, cursor=str(row.number))

    `resume_from` is the cursor of the last item that the caller has, or None.

    Raises:
        UsageError: the cursor is empty, longer than 4,096 bytes, or has line breaks or spaces at its ends.
    """

    data: T
    cursor: str

    def __post_init__(self) -> None:
        if not is_cursor(self.cursor):
            raise UsageError(f"a cursor is a printable text of 1 to {MAX_CURSOR:,} bytes, not {self.cursor!r:.50}")


def is_cursor(value: object) -> bool:
    """Return whether a value is a cursor: text that fits into a header, and into the id of a server-sent event."""
    if not isinstance(value, str) or not value.isprintable() or value != value.strip():
        return False
    return 0 < len(value.encode()) <= MAX_CURSOR


def is_response_envelope(value: Any) -> TypeGuard[ResponseEnvelope[Any] | Mapping[str, Any]]:
    """Return whether a value is an envelope, or a mapping with `data` and a known `meta.source`."""
    if isinstance(value, ResponseEnvelope):
        return True
    if not isinstance(value, Mapping) or "data" not in value or "meta" not in value:
        return False
    meta = cast("Mapping[str, Any]", value)["meta"]
    return isinstance(meta, Mapping) and cast("Mapping[str, Any]", meta).get("source") in RESPONSE_SOURCES


def local_envelope(data: T, operation_id: str) -> ResponseEnvelope[T]:
    """Return the envelope of a Python function's result, with the current time."""
    return ResponseEnvelope(data, LocalResponseMeta(operation_id, time_ns() // 1_000_000))


def http_envelope(
    data: T,
    *,
    status_code: Number,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    content_type: str,
    event_type: str | None = None,
    last_event_id: str | None = None,
    set_cookie: Iterable[str] | None = None,
) -> ResponseEnvelope[T]:
    """Return the envelope of an HTTP response; headers may be a mapping or pairs, in any case."""
    is_mapping = type(headers) is not list and isinstance(headers, Mapping)  # which takes 0.5 µs
    pairs = cast("Mapping[str, str]", headers).items() if is_mapping else cast("Iterable[tuple[str, str]]", headers)
    joined: dict[str, str] = {}
    cookies = list(set_cookie or ())
    for raw_name, value in pairs:
        name = raw_name.lower()
        if name == "set-cookie":
            cookies.append(value)
        else:
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    meta = HTTPResponseMeta(status_code, joined, content_type, event_type, last_event_id, cookies or None)
    return ResponseEnvelope(data, meta)


def mcp_envelope(
    data: T,
    *,
    is_error: bool,
    content: Iterable[Mapping[str, Any]],
    structured_content: Any | UnsetType = UNSET,
    _meta: Mapping[str, Any] | UnsetType = UNSET,
) -> ResponseEnvelope[T]:
    """Return the envelope of an MCP tool's result; see `content_blocks` for blocks of unknown types."""
    extensions = _meta if isinstance(_meta, UnsetType) else dict(_meta)
    return ResponseEnvelope(data, MCPResponseMeta(is_error, content_blocks(content), structured_content, extensions))


def tool_error_text(meta: MCPResponseMeta, default: str) -> str:
    """Return the texts of a tool's error, truncated: the message of a `CallError`."""
    texts = [str(block["text"]) for block in meta.content if block["type"] == "text"]
    return "\n".join(texts)[:MAX_TOOL_TEXT] or default


@overload
def unwrap(envelope: ResponseEnvelope[T]) -> T: ...
@overload
def unwrap(envelope: ResponseEnvelope[Any], output_type: type[U]) -> U: ...
@overload
def unwrap(envelope: ResponseEnvelope[Any], output_type: Any) -> Any: ...  # a union is not a `type`
def unwrap(envelope: ResponseEnvelope[Any], output_type: Any = None) -> Any:
    """Return the data; with a type, converted to it.

    unwrap(envelope)         # {"total": 3}
    unwrap(envelope, Sum)    # Sum(total=3)

    Raises:
        ConversionError: the data cannot be converted.
    """
    return envelope.data if output_type is None else convert(envelope.data, output_type)


# --- encoding -------------------------------------------------------------------------------------------------------


class WireEnvelope(Struct):
    """A decoded envelope; TypeScript peers omit `data` if it is undefined."""

    meta: ResponseMeta
    data: Any = None


_MAX_EXACT_INTEGER = 2**53
_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[WireEnvelope]:
    return msgspec.json.Decoder(WireEnvelope, float_hook=parse_float)  # takes 0.4 ms


def encode_envelope(envelope: ResponseEnvelope[Any]) -> bytes:
    """Encode an envelope as JSON: bytes as base64, NaN and infinities as null, lone surrogates replaced.

    Raises:
        ConversionError: the data cannot be encoded, or is nested too deeply to be decoded.
    """
    try:
        encoded = write_json(_encoder, wire_form(envelope))
    except RecursionError:
        raise ConversionError("the data is nested too deeply to be sent") from None
    except (TypeError, ValueError) as error:
        raise ConversionError(f"the data cannot be sent as JSON: {error}") from error
    warn_of_nulls(encoded, envelope.data)
    return encoded


def warn_of_nulls(encoded: bytes, *data: Any) -> None:
    """Log a warning for NaN and infinities, which msgspec encodes as null."""
    if encoded.rfind(b"null") >= 0 and find_nonfinite(list(data)):
        logger.warning("the data holds NaN or an infinity, which is sent as null")


def decode_envelope(message: bytes | str) -> ResponseEnvelope[Any]:
    """Decode an envelope from JSON.

    Raises:
        ConversionError: invalid JSON, or not an envelope.
    """
    try:
        wire = read_json(_decoder(), message)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"not a readable envelope: {error}") from error
    return arrived_envelope(wire)


def read_envelope(value: Mapping[str, Any]) -> ResponseEnvelope[Any]:
    """Decode an envelope from a mapping with encoded names.

    Raises:
        ConversionError: a field is missing or invalid.
    """
    try:
        wire = msgspec.convert(value, WireEnvelope)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise ConversionError(f"not a readable envelope: {error}") from error
    return arrived_envelope(wire)


def wire_form(envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
    """Return the envelope to encode: binary data is marked, because msgspec encodes bytes as base64."""
    meta = envelope.meta
    if not isinstance(envelope.data, bytes) or isinstance(meta, MCPResponseMeta):
        return envelope
    return ResponseEnvelope(envelope.data, msgspec.structs.replace(meta, encoding="base64"))


def arrived_envelope(wire: WireEnvelope | ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
    """Return the envelope of a decoded one: blocks mapped, binary data decoded; the same one if it needs no change.

    Raises:
        ConversionError: the data does not match its meta.
    """
    meta, data = wire.meta, wire.data
    if type(meta) is LocalResponseMeta and meta.encoding is None:
        timestamp = meta.timestamp
        if type(timestamp) is int and -_MAX_EXACT_INTEGER <= timestamp <= _MAX_EXACT_INTEGER:  # nearly always
            return wire if isinstance(wire, ResponseEnvelope) else ResponseEnvelope(data, meta)
    if isinstance(meta, MCPResponseMeta):
        return ResponseEnvelope(data, msgspec.structs.replace(meta, content=content_blocks(meta.content)))
    if meta.encoding is not None:
        try:
            data = b64decode(data, validate=True)
        except (TypeError, ValueError) as error:
            raise ConversionError(f"`encoding` says base64, but `data` is not: {error}") from None
        meta = msgspec.structs.replace(meta, encoding=None)
    if isinstance(meta, LocalResponseMeta):
        meta = msgspec.structs.replace(meta, timestamp=_number(meta.timestamp, "timestamp"))
    elif type(meta.status_code) is not int or abs(meta.status_code) > _MAX_EXACT_INTEGER:
        meta = msgspec.structs.replace(meta, status_code=_number(meta.status_code, "statusCode"))
    return ResponseEnvelope(data, meta)


def _number(number: Number, field: str) -> Number:
    """Return an integral float as int, and any other finite number unchanged.

    Raises:
        ConversionError: NaN, an infinity, or an integer beyond the range of a float, which peers decode as infinity.
    """
    if not abs(number) <= sys.float_info.max:  # NaN compares false, and the comparison with an integer is exact
        raise ConversionError(f"not a readable envelope: `meta.{field}` is not a finite number")
    return int(number) if abs(number) <= _MAX_EXACT_INTEGER and number == int(number) else number


# --- schemas of encoded envelopes-------------------------------------------------------------------------------------

_FINITE_NUMBER_SCHEMA = {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max}


def _meta_schema(source: ResponseSource, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"source": {"const": source}, **required, **optional},
        "required": ["source", *required],
    }


LOCAL_RESPONSE_META_SCHEMA = _meta_schema(
    "local",
    {"operationId": _STRING_SCHEMA, "timestamp": {**_FINITE_NUMBER_SCHEMA, "description": "Unix epoch milliseconds"}},
    {"encoding": {"const": "base64"}, "cursor": {**_STRING_SCHEMA, "maxLength": MAX_CURSOR}},
)
HTTP_RESPONSE_META_SCHEMA = _meta_schema(
    "http",
    {
        "statusCode": _FINITE_NUMBER_SCHEMA,
        "headers": {"type": "object", "additionalProperties": _STRING_SCHEMA},
        "contentType": _STRING_SCHEMA,
    },
    {
        "eventType": _STRING_SCHEMA,
        "lastEventId": _STRING_SCHEMA,
        "setCookie": {"type": "array", "items": _STRING_SCHEMA},
        "encoding": {"const": "base64"},
    },
)
MCP_RESPONSE_META_SCHEMA = _meta_schema(
    "mcp",
    {"isError": {"type": "boolean"}, "content": {"type": "array", "items": MCP_CONTENT_BLOCK_SCHEMA}},
    {"structuredContent": {"description": "Any JSON value"}, "_meta": {"type": "object"}},
)
RESPONSE_META_SCHEMA: dict[str, Any] = {
    "oneOf": [LOCAL_RESPONSE_META_SCHEMA, HTTP_RESPONSE_META_SCHEMA, MCP_RESPONSE_META_SCHEMA]
}
_ENCODED_META = {"properties": {"source": {"enum": ["local", "http"]}}, "required": ["encoding"]}
_BASE64 = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
RESPONSE_ENVELOPE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"data": {"description": "Operation output"}, "meta": RESPONSE_META_SCHEMA},
    "required": ["meta"],
    "if": {"properties": {"meta": _ENCODED_META}},
    "then": {"properties": {"data": _BASE64}, "required": ["data"]},
}
