"""What type checkers see of envelopes and schemas; these files are checked, never run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from msgspec import UnsetType

from opwire import (
    HTTPResponseMeta,
    LocalResponseMeta,
    MCPContentBlock,
    MCPResponseMeta,
    ResponseEnvelope,
    ResponseMeta,
    Schema,
    decode_envelope,
    encode_envelope,
    http_envelope,
    is_response_envelope,
    local_envelope,
    mcp_envelope,
    read_envelope,
    unwrap,
)
from opwire.schema import Fitted, Problem


@dataclass
class Sum:
    total: int


# The factories keep the type of the data, and `unwrap` gives it back.
envelope = local_envelope(Sum(3), "math.add")
assert_type(envelope, ResponseEnvelope[Sum])
assert_type(envelope.data, Sum)
assert_type(unwrap(envelope), Sum)
assert_type(
    http_envelope([1], status_code=200, headers=[("a", "b")], content_type="", set_cookie=None),
    ResponseEnvelope[list[int]],
)
assert_type(mcp_envelope("x", is_error=False, content=[{"type": "text", "text": "x"}]), ResponseEnvelope[str])

# With a type, `unwrap` gives that type.
raw = decode_envelope(encode_envelope(envelope))
assert_type(raw, ResponseEnvelope[Any])
assert_type(unwrap(raw), Any)
assert_type(unwrap(raw, Sum), Sum)
assert_type(unwrap(raw, list[Sum]), list[Sum])
assert_type(read_envelope({"data": 1, "meta": {}}), ResponseEnvelope[Any])


def by_source(meta: ResponseMeta) -> str:
    """The source tells the kinds of meta apart, by `match` on the class or by the literal itself."""
    match meta:
        case LocalResponseMeta():
            assert_type(meta.source, Literal["local"])
            assert_type(meta.operation_id, str)
            assert_type(meta.timestamp, int | float)
        case HTTPResponseMeta():
            assert_type(meta.source, Literal["http"])
            assert_type(meta.status_code, int | float)
            assert_type(meta.headers, dict[str, str])
            assert_type(meta.set_cookie, list[str] | None)
        case MCPResponseMeta():
            assert_type(meta.source, Literal["mcp"])
            assert_type(meta.is_error, bool)
            assert_type(meta.content, list[MCPContentBlock])
            assert_type(meta.structured_content, Any | UnsetType)
    assert_type(meta.source, Literal["local", "http", "mcp"])
    return meta.source


def block_text(block: MCPContentBlock) -> str:
    """The type of a content block tells its fields."""
    if block["type"] == "text":
        return block["text"]
    if block["type"] == "resource":
        return block["resource"]["uri"]
    if block["type"] == "resource_link":
        return block["name"]
    return block["mimeType"]


def detected(value: object) -> None:
    if is_response_envelope(value):
        assert_type(value, ResponseEnvelope[Any] | Mapping[str, Any])


# An envelope cannot be changed, and the factories take their details by name.
envelope.data = Sum(4)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
envelope.meta = raw.meta  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
http_envelope(1, 200, {}, "")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
local_envelope(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

schema = Schema({"type": "integer"}, dialect="draft-07")
assert_type(schema, Schema)
assert_type(Schema.from_type(Sum), Schema)
assert_type(schema.compile(), Schema)
assert_type(schema.is_valid(1), bool)
assert_type(schema.problems(1), list[Problem])
assert_type(schema.problems(1)[0].path, str)
assert_type(schema.fit(1), Fitted)
assert_type(schema.cast(1), Any)
Schema({}, dialect="draft-03")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Schema([])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
