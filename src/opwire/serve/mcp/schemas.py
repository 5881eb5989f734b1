"""The schemas of an operation as those of a tool: in 2020-12, and an object wherever the protocol asks for one. Pure.

What is no object is put into one, under `input` or `result`, together with its definitions: references to "#/$defs/…"
stay as they are, a reference to the whole schema follows it to its new place.
"""

from typing import Any, cast

from msgspec import Struct

from opwire.errors import SchemaError
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import lower, map_subschemas

_DEFINITIONS = ("$defs", "definitions")
_STAY = tuple(f"#/{key}/" for key in _DEFINITIONS)


class Form(Struct, frozen=True):
    """A schema as a tool shows it. `wraps`: the value is a property of the object that it asks for."""

    schema: dict[str, Any]
    wraps: bool = False


def input_form(schema: Schema) -> Form:
    """The form of an input. Any input at all is one property that may be left out.

    Raises:
        SchemaError: no client could read the schema.
    """
    plain = lower(schema.json, schema.dialect)
    if _is_object(plain):
        return Form(_readable(plain))
    return Form(_wrapped(plain, "input", required=not schema.is_unknown), wraps=True)


def output_form(schema: Schema, *, objects_only: bool) -> Form | None:
    """The form of an output, None if nothing is known of it. Revisions before 2026-07-28 take only objects.

    Raises:
        SchemaError: as `input_form`.
    """
    if schema.is_unknown:
        return None
    plain = lower(schema.json, schema.dialect)
    if _is_object(plain):
        return Form(_readable(plain))
    return Form(_wrapped(plain, "result"), wraps=True) if objects_only else Form(_as_dict(plain))


def items_form(schema: Schema) -> Form:
    """The form of what is collected of a subscription.

    Raises:
        SchemaError: as `input_form`.
    """
    definitions, item = _lifted(lower(schema.json, schema.dialect), "#/properties/items/items")
    properties = {"items": {"type": "array", "items": item}, "complete": {"type": "boolean"}}
    return Form({"type": "object", "properties": properties, "required": ["items", "complete"], **definitions})


def _is_object(schema: JSONSchema) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"


def _readable(schema: JSONSchema) -> dict[str, Any]:
    """The schema, if the parts that clients read themselves are what they await: one that is not fails a whole list."""
    readable = _as_dict(schema)
    properties, required = readable.get("properties", {}), readable.get("required", [])
    if not isinstance(properties, dict) or not _all(cast("dict[str, Any]", properties).values(), dict | bool):
        raise SchemaError("its properties are not an object of schemas")
    if not isinstance(required, list) or not _all(cast("list[Any]", required), str):
        raise SchemaError("required is not a list of names")
    if not isinstance(readable.get("$schema", ""), str):
        raise SchemaError("$schema is not an address")
    return readable


def _all(values: Any, kind: Any) -> bool:
    return all(isinstance(each, kind) for each in values)


def _as_dict(schema: JSONSchema) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def _wrapped(schema: JSONSchema, name: str, *, required: bool = True) -> dict[str, Any]:
    definitions, inner = _lifted(schema, f"#/properties/{name}")
    wrapper = {"type": "object", "properties": {name: inner}, **definitions}
    return {**wrapper, "required": [name]} if required else wrapper


def _lifted(schema: JSONSchema, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The definitions of a schema, and the schema without them as it reads at its new place."""
    inner = _as_dict(schema)
    if "$id" in inner:  # a document of its own wherever it stands: its references lead into itself
        return {}, inner
    try:
        moved = _moved(inner, place)
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    moved.pop("$schema", None)  # allowed only at the root, and 2020-12 is what is meant without it
    return {key: moved.pop(key) for key in _DEFINITIONS if key in moved}, moved


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    def change(inner: JSONSchema) -> JSONSchema:
        return _moved(inner, place) if isinstance(inner, dict) and "$id" not in inner else inner

    copy = map_subschemas(schema, change)
    ref = copy.get("$ref")
    if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) and not ref.startswith(_STAY):
        copy["$ref"] = place + ref[1:]
    return copy
