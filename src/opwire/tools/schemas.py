"""The schemas of tools: in 2020-12, and objects where the protocols of models require objects. No I/O.

Other types are wrapped in an object, as `input` or `result`, together with their definitions: references to "#/$defs/…"
stay unchanged, references to the whole schema are rewritten.
"""

from typing import Any, cast

from msgspec import Struct

from opwire.errors import SchemaError
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import map_subschemas
from opwire.typed.plain import as_dict

_DEFINITIONS = ("$defs", "definitions")
_UNCHANGED = tuple(f"#/{key}/" for key in _DEFINITIONS)


class ToolSchema(Struct, frozen=True):
    """A schema of a tool. `wraps`: the value is a property of the object that it describes."""

    schema: dict[str, Any]
    wraps: bool = False


def is_binary(schema: Schema) -> bool:
    """Return whether a schema is that of bytes."""
    match schema.lowered:
        case {"type": "string", "contentEncoding": "base64"} | {"type": "string", "format": "binary" | "byte"}:
            return True
        case _:
            return False


def input_schema(schema: Schema) -> ToolSchema:
    """Return the schema of an input. An unknown input is one optional property.

    Raises:
        SchemaError: clients cannot parse the schema.
    """
    plain = schema.lowered
    if as_dict(plain).get("type") == "object":
        return ToolSchema(_checked(plain))
    definitions, inner = _lifted(plain, "#/properties/input")
    wrapper: dict[str, Any] = {"type": "object", "properties": {"input": inner}, **definitions}
    if not schema.is_unknown:
        wrapper["required"] = ["input"]
    return ToolSchema(wrapper, wraps=True)


def output_schema(schema: Schema, *, objects_only: bool) -> ToolSchema | None:
    """Return the schema of an output, None if it is unknown. Revisions before 2026-07-28 accept only objects.

    Raises:
        SchemaError: see `input_schema`.
    """
    if schema.is_unknown:
        return None
    plain = schema.lowered
    if as_dict(plain).get("type") == "object":
        return ToolSchema(_checked(plain))
    if not objects_only:
        return ToolSchema(_as_object(plain))
    definitions, inner = _lifted(plain, "#/properties/result")
    wrapper = {"type": "object", "properties": {"result": inner}, **definitions, "required": ["result"]}
    return ToolSchema(wrapper, wraps=True)


def items_schema(schema: Schema) -> ToolSchema:
    """Return the schema of the collected items of a subscription.

    Raises:
        SchemaError: see `input_schema`.
    """
    definitions, item = _lifted(schema.lowered, "#/properties/items/items")
    properties = {"items": {"type": "array", "items": item}, "complete": {"type": "boolean"}}
    return ToolSchema({"type": "object", "properties": properties, "required": ["items", "complete"], **definitions})


def _checked(schema: JSONSchema) -> dict[str, Any]:
    """Check the parts that clients parse themselves: an invalid one would make them reject the whole list."""
    checked = _as_object(schema)
    properties: Any = checked.get("properties", {})
    required: Any = checked.get("required", [])
    if not isinstance(properties, dict) or not all(
        isinstance(each, dict | bool) for each in as_dict(properties).values()
    ):
        raise SchemaError("its properties are not an object of schemas")
    if not isinstance(required, list) or not all(isinstance(each, str) for each in cast("list[Any]", required)):
        raise SchemaError("required is not a list of names")
    if not isinstance(checked.get("$schema", ""), str):
        raise SchemaError("$schema is not an address")
    return checked


def _as_object(schema: JSONSchema) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def _lifted(schema: JSONSchema, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the definitions of a schema, and the schema without them, rewritten for its new place."""
    inner = _as_object(schema)
    if "$id" in inner:  # a document of its own: its references are relative to itself
        return {}, inner

    def move(each: JSONSchema) -> JSONSchema:
        if not isinstance(each, dict) or "$id" in each:
            return each
        copy = map_subschemas(each, move)
        ref = copy.get("$ref")
        if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) and not ref.startswith(_UNCHANGED):
            copy["$ref"] = place + ref[1:]
        return copy

    try:
        moved = as_dict(move(inner))
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    moved.pop("$schema", None)  # allowed at the root only; 2020-12 is the default
    return {key: moved.pop(key) for key in _DEFINITIONS if key in moved}, moved
