"""Schemas that are in every document: the problem, and the meta of envelopes, each part under its own name.

The library writes a schema of the envelope in one piece. Generators make better types of named parts, and want to know
the type of a constant.
"""

from typing import Any, cast

from opwire.content import MCP_CONTENT_BLOCK_SCHEMA
from opwire.envelope import HTTP_RESPONSE_META_SCHEMA, LOCAL_RESPONSE_META_SCHEMA, MCP_RESPONSE_META_SCHEMA
from opwire.errors import ErrorCode
from opwire.schema.refs import JSONSchema
from opwire.serve.http.components import PREFIX

_STRING = {"type": "string"}
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457). `code` and `retryable` tell a program what to do.",
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": _STRING,
        "status": {"type": "integer"},
        "detail": _STRING,
        "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
        "retryable": {"type": "boolean"},
        "instance": {"type": "string", "format": "uri-reference"},
        "retryAfterMs": {"type": "integer", "minimum": 0},
        "details": {"description": "More about it: the problems of an input, each with its place."},
    },
    "required": ["type", "title", "status", "detail", "code", "retryable"],
}


def _with(schema: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """An object schema with some properties replaced, and the type of its constants said."""
    given: dict[str, Any] = {**schema["properties"], **properties}
    typed = {name: {"type": "string", **each} if "const" in each else each for name, each in given.items()}
    return {**schema, "properties": typed}


def _one_of(discriminator: str, **named: str) -> dict[str, Any]:
    mapping = {value: PREFIX + name for value, name in named.items()}
    return {
        "oneOf": [{"$ref": ref} for ref in mapping.values()],
        "discriminator": {"propertyName": discriminator, "mapping": mapping},
    }


def _blocks() -> dict[str, dict[str, Any]]:
    """The kinds of content block, each by the value of its `type`."""
    kinds = cast("list[dict[str, Any]]", MCP_CONTENT_BLOCK_SCHEMA["oneOf"])
    return {kind["properties"]["type"]["const"]: kind for kind in kinds}


_BLOCK_NAMES = {kind: f"MCP{kind.title().replace('_', '')}Block" for kind in _blocks()}
_ANNOTATIONS = next(iter(_blocks().values()))["properties"]["annotations"]

NAMED_SCHEMAS: dict[str, JSONSchema] = {
    "Problem": _PROBLEM,
    "LocalResponseMeta": _with(LOCAL_RESPONSE_META_SCHEMA),
    "HTTPResponseMeta": _with(HTTP_RESPONSE_META_SCHEMA),
    "MCPResponseMeta": _with(
        MCP_RESPONSE_META_SCHEMA, content={"type": "array", "items": {"$ref": f"{PREFIX}MCPContentBlock"}}
    ),
    "ResponseMeta": _one_of("source", local="LocalResponseMeta", http="HTTPResponseMeta", mcp="MCPResponseMeta"),
    "MCPAnnotations": _ANNOTATIONS,
    "MCPContentBlock": _one_of("type", **_BLOCK_NAMES),
    **{
        _BLOCK_NAMES[kind]: _with(schema, annotations={"$ref": f"{PREFIX}MCPAnnotations"})
        for kind, schema in _blocks().items()
    },
}
