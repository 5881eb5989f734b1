"""The one shape of every result: `ResponseEnvelope {data, meta}`, and what `meta` can be.

Rules: no I/O. Adapters build envelopes through the three factories only. `is_response_envelope` is the sole
detection. On the wire everything is camelCase, absent optional fields are left out, and the bytes are the same
that a TypeScript peer of the protocol writes. A new source is a new meta class here, plus its entry in
`RESPONSE_SOURCES` and in the schemas at the end of this file.

MCP content blocks: our own types, so that the core never imports the MCP SDK.

A block is plain data, exactly as it is on the wire. Fields that a newer protocol adds stay in the dict; a block of
a kind that is not known here becomes a text block holding its JSON, so that nothing is lost and nothing breaks.
"""

import logging
import sys
from base64 import b64decode
from collections.abc import Iterable, Mapping
from time import time_ns
from typing import (
    TYPE_CHECKING,
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
from msgspec import UNSET, Struct, UnsetType

from opwire.errors import ConversionError
from opwire.typed import convert
from opwire.typed.plain import find_nonfinite, read_json, replace_surrogates, write_json


class MCPAnnotations(TypedDict, total=False):
    """Hints for showing a block."""

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
    """Sound, base64."""

    type: Literal["audio"]
    data: str
    mimeType: str
    annotations: NotRequired[MCPAnnotations]


class MCPResourceContent(TypedDict):
    """What a resource holds: text, or base64 bytes as `blob`."""

    uri: str
    mimeType: NotRequired[str]
    text: NotRequired[str]
    blob: NotRequired[str]


class ResourceBlock(TypedDict):
    """A resource, embedded."""

    type: Literal["resource"]
    resource: MCPResourceContent
    annotations: NotRequired[MCPAnnotations]


class ResourceLinkBlock(TypedDict):
    """A resource, by address."""

    type: Literal["resource_link"]
    uri: str
    name: str
    description: NotRequired[str]
    mimeType: NotRequired[str]
    annotations: NotRequired[MCPAnnotations]


if TYPE_CHECKING:
    MCPContentBlock = TextBlock | ImageBlock | AudioBlock | ResourceBlock | ResourceLinkBlock
else:
    # msgspec reads annotations at run time and takes no union of several TypedDicts.
    MCPContentBlock = dict[str, Any]

_STRING = {"type": "string"}
_ANNOTATIONS = {
    "type": "object",
    "properties": {
        "audience": {"type": "array", "items": {"enum": ["user", "assistant"]}},
        "priority": {"type": "number"},
        "lastModified": _STRING,
    },
}
_RESOURCE = {
    "type": "object",
    "properties": {"uri": _STRING, "mimeType": _STRING, "text": _STRING, "blob": _STRING},
    "required": ["uri"],
}


def _block_schema(kind: str, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **required, **optional, "annotations": _ANNOTATIONS}
    return {"type": "object", "properties": properties, "required": ["type", *required]}


MCP_CONTENT_BLOCK_SCHEMA: dict[str, Any] = {
    "oneOf": [
        _block_schema("text", {"text": _STRING}, {}),
        _block_schema("image", {"data": _STRING, "mimeType": _STRING}, {}),
        _block_schema("audio", {"data": _STRING, "mimeType": _STRING}, {}),
        _block_schema("resource", {"resource": _RESOURCE}, {}),
        _block_schema(
            "resource_link", {"uri": _STRING, "name": _STRING}, {"description": _STRING, "mimeType": _STRING}
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
    """The blocks, each as it is if it is of a known kind, else as a text block holding its JSON.

    Raises:
        ConversionError: one of them is not a JSON object at all, or has no JSON form.
    """
    return [_known(block) for block in blocks]


def _known(block: Any) -> MCPContentBlock:
    if not isinstance(block, Mapping):
        raise ConversionError(f"a content block is an object, not {type(block).__name__}")
    plain = dict(cast("Mapping[str, Any]", block))
    shape = _READABLE.get(str(plain.get("type")))
    if shape is not None:
        try:
            msgspec.convert(plain, shape)
        except ValueError:  # something is missing, of a wrong type, or not text that UTF-8 can carry
            pass
        else:
            return cast("MCPContentBlock", plain)
    try:
        return {"type": "text", "text": msgspec.json.encode(replace_surrogates(plain)).decode()}
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError(f"a content block has no JSON form: {error}") from error


logger = logging.getLogger("opwire.envelope")

T = TypeVar("T")
U = TypeVar("U")

Number = int | float
"""A JSON number: integral ones are int, so that `200.0` is read as 200, and others are float."""

ResponseSource = Literal["local", "http", "mcp"]
RESPONSE_SOURCES: tuple[ResponseSource, ...] = ("local", "http", "mcp")


class LocalResponseMeta(
    Struct, frozen=True, gc=False, omit_defaults=True, rename="camel", tag_field="source", tag="local"
):
    """The answer of a Python function. `timestamp` is in Unix epoch milliseconds."""

    source: ClassVar[Literal["local"]] = "local"
    operation_id: str
    timestamp: Number
    encoding: Literal["base64"] | None = None


class HTTPResponseMeta(Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="source", tag="http"):
    """The answer of an HTTP API. Header names are lower-case, several values of one name joined with ", "."""

    source: ClassVar[Literal["http"]] = "http"
    status_code: Number
    headers: dict[str, str]
    content_type: str
    event_type: str | None = None
    last_event_id: str | None = None
    set_cookie: list[str] | None = None
    encoding: Literal["base64"] | None = None


class MCPResponseMeta(Struct, frozen=True, rename="camel", tag_field="source", tag="mcp"):
    """The answer of an MCP tool. `structured_content` may be any JSON value: what counts is that it is there."""

    source: ClassVar[Literal["mcp"]] = "mcp"
    is_error: bool
    content: list[MCPContentBlock]
    structured_content: Any | UnsetType = UNSET
    _meta: dict[str, Any] | UnsetType = UNSET


ResponseMeta = LocalResponseMeta | HTTPResponseMeta | MCPResponseMeta


class ResponseEnvelope(Struct, Generic[T], frozen=True):
    """A result and where it came from.

    envelope = await registry.execute("math.add", {"a": 1, "b": 2})
    envelope.data         # 3
    envelope.meta.source  # "local"
    """

    data: T
    meta: ResponseMeta


def is_response_envelope(value: Any) -> TypeGuard[ResponseEnvelope[Any] | Mapping[str, Any]]:
    """Whether a value is an envelope: ours, or a mapping with `data` and a `meta.source` of the closed set."""
    if isinstance(value, ResponseEnvelope):
        return True
    if not isinstance(value, Mapping) or "data" not in value or "meta" not in value:
        return False
    meta = cast("Mapping[str, Any]", value)["meta"]
    return isinstance(meta, Mapping) and cast("Mapping[str, Any]", meta).get("source") in RESPONSE_SOURCES


def local_envelope(data: T, operation_id: str) -> ResponseEnvelope[T]:
    """The envelope of a Python function's result, stamped with the time."""
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
    """The envelope of an HTTP response; headers as they came, a mapping or pairs in any case."""
    pairs = cast("Mapping[str, str]", headers).items() if isinstance(headers, Mapping) else headers
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
    """The envelope of an MCP tool's result; blocks of an unknown kind become text blocks holding their JSON."""
    extensions = _meta if isinstance(_meta, UnsetType) else dict(_meta)
    return ResponseEnvelope(data, MCPResponseMeta(is_error, content_blocks(content), structured_content, extensions))


@overload
def unwrap(envelope: ResponseEnvelope[T]) -> T: ...
@overload
def unwrap(envelope: ResponseEnvelope[Any], output_type: type[U]) -> U: ...
@overload
def unwrap(envelope: ResponseEnvelope[Any], output_type: Any) -> Any: ...  # a union, which is no `type`
def unwrap(envelope: ResponseEnvelope[Any], output_type: Any = None) -> Any:
    """The data alone; with a type, the data as that type.

    unwrap(envelope)         # {"total": 3}
    unwrap(envelope, Sum)    # Sum(total=3)

    Raises:
        ConversionError: the data does not fit the type.
    """
    return envelope.data if output_type is None else convert(envelope.data, output_type)


# --- on the wire ----------------------------------------------------------------------------------------------------


class WireEnvelope(Struct):
    """An envelope as it arrives: a TypeScript peer drops `data` when it is undefined."""

    meta: ResponseMeta
    data: Any = None


_EXACT = 2**53  # up to here every integer has a float of its own
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(WireEnvelope)


def encode_envelope(envelope: ResponseEnvelope[Any]) -> bytes:
    """The envelope as JSON: bytes as base64, NaN and infinities as null, lone surrogates replaced.

    Raises:
        ConversionError: the data has no JSON form, or is nested too deeply for any peer to read.
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
    """Say so where NaN or an infinity was sent: msgspec writes them as null without a word."""
    if b"null" in encoded and find_nonfinite(list(data)):
        logger.warning("the data holds NaN or an infinity, which is sent as null")


def decode_envelope(message: bytes | str) -> ResponseEnvelope[Any]:
    """The envelope that a JSON text holds.

    Raises:
        ConversionError: it is not JSON, or not an envelope.
    """
    try:
        wire = read_json(_decoder, message)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"not a readable envelope: {error}") from error
    return arrived_envelope(wire)


def read_envelope(value: Mapping[str, Any]) -> ResponseEnvelope[Any]:
    """The envelope that a mapping in wire form holds.

    Raises:
        ConversionError: fields are missing or of a wrong type.
    """
    try:
        wire = msgspec.convert(value, WireEnvelope)
    except (msgspec.ValidationError, TypeError, RecursionError) as error:
        raise ConversionError(f"not a readable envelope: {error}") from error
    return arrived_envelope(wire)


def wire_form(envelope: ResponseEnvelope[Any]) -> ResponseEnvelope[Any]:
    """The envelope itself; binary data is marked, because msgspec writes bytes as base64."""
    meta = envelope.meta
    if not isinstance(envelope.data, bytes) or isinstance(meta, MCPResponseMeta):
        return envelope
    return ResponseEnvelope(envelope.data, msgspec.structs.replace(meta, encoding="base64"))


def arrived_envelope(wire: WireEnvelope) -> ResponseEnvelope[Any]:
    """The envelope that arrived: blocks mapped, binary data decoded.

    Raises:
        ConversionError: the data is not what its meta says.
    """
    meta, data = wire.meta, wire.data
    if isinstance(meta, MCPResponseMeta):
        return ResponseEnvelope(data, msgspec.structs.replace(meta, content=content_blocks(meta.content)))
    if meta.encoding is not None:
        try:
            data = b64decode(data, validate=True)
        except (TypeError, ValueError) as error:
            raise ConversionError(f"`encoding` says base64, but `data` is not: {error}") from None
        meta = msgspec.structs.replace(meta, encoding=None)
    if isinstance(meta, LocalResponseMeta):
        if not _is_small_int(meta.timestamp):
            meta = msgspec.structs.replace(meta, timestamp=_number(meta.timestamp, "timestamp"))
    elif not _is_small_int(meta.status_code):
        meta = msgspec.structs.replace(meta, status_code=_number(meta.status_code, "statusCode"))
    return ResponseEnvelope(data, meta)


def _is_small_int(number: Number) -> bool:
    return type(number) is int and -_EXACT <= number <= _EXACT


def _number(number: Number, field: str) -> Number:
    """Return an integral float as int, any other finite number as it is.

    Raises:
        ConversionError: NaN, an infinity, or an integer beyond the range of a float, which peers read as infinity.
    """
    if not abs(number) <= sys.float_info.max:  # NaN compares false, and the comparison with an integer is exact
        raise ConversionError(f"not a readable envelope: `meta.{field}` is not a finite number")
    return int(number) if abs(number) <= _EXACT and number == int(number) else number


# --- schemas of the wire form ---------------------------------------------------------------------------------------

_FINITE = {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max}


def _meta_schema(source: ResponseSource, required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"source": {"const": source}, **required, **optional},
        "required": ["source", *required],
    }


LOCAL_RESPONSE_META_SCHEMA = _meta_schema(
    "local",
    {"operationId": _STRING, "timestamp": {**_FINITE, "description": "Unix epoch milliseconds"}},
    {"encoding": {"const": "base64"}},
)
HTTP_RESPONSE_META_SCHEMA = _meta_schema(
    "http",
    {
        "statusCode": _FINITE,
        "headers": {"type": "object", "additionalProperties": _STRING},
        "contentType": _STRING,
    },
    {
        "eventType": _STRING,
        "lastEventId": _STRING,
        "setCookie": {"type": "array", "items": _STRING},
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
