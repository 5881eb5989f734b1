"""Older dialects of JSON Schema, and OpenAPI 3.0's, lowered to 2020-12.

Only what changed its spelling is rewritten: boolean exclusive bounds, arrays of `items`, `dependencies`, `nullable`,
and a `$ref` that hides its siblings. What is data (`default`, `const`, `enum`, `examples`) is left alone.
"""

from collections.abc import Callable
from typing import Any, Literal, cast

from opwire.errors import SchemaError
from opwire.schema.refs import JSONSchema

Dialect = Literal["2020-12", "2019-09", "draft-07", "draft-06", "draft-04", "openapi-3.0"]

META_SCHEMAS: dict[Dialect, str] = {
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft-07": "http://json-schema.org/draft-07/schema#",
    "draft-06": "http://json-schema.org/draft-06/schema#",
    "draft-04": "http://json-schema.org/draft-04/schema#",
}

_ONE = frozenset(
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames then "
    "unevaluatedItems unevaluatedProperties".split()
)
_MANY = frozenset("allOf anyOf oneOf prefixItems items".split())
_NAMED = frozenset("$defs definitions dependencies dependentSchemas patternProperties properties schemas".split())
# `schemas` stands under `components`, the usual target of an OpenAPI document's references.
_HIDES_SIBLINGS = frozenset({"draft-07", "draft-06", "draft-04", "openapi-3.0"})
_BOOLEAN_BOUNDS = frozenset({"draft-04", "openapi-3.0"})
_KEPT_OUTSIDE = ("$schema", "$id", "$defs", "definitions", "components", "default", "title", "description")
_KEPT_BESIDE_REF = frozenset({"$ref", "$defs", "definitions", "components", "$schema"})


def dialect_of(schema: JSONSchema) -> Dialect:
    """The dialect that `$schema` names; 2020-12 where it names none that is known."""
    named = str(schema.get("$schema", "")).rstrip("#") if isinstance(schema, dict) else ""
    for dialect, address in META_SCHEMAS.items():
        if named == address.rstrip("#"):
            return dialect
    return "2020-12"


def lower(schema: JSONSchema, dialect: Dialect) -> JSONSchema:
    """The same schema in 2020-12. The given one is not changed.

    Raises:
        SchemaError: it is nested too deeply.
    """
    if dialect == "2020-12":
        return schema
    try:
        lowered = _lower(schema, dialect)
    except RecursionError:
        raise SchemaError("not a valid JSON Schema: it is nested too deeply") from None
    if isinstance(lowered, dict):
        lowered.pop("$schema", None)
    return lowered


def map_subschemas(schema: dict[str, Any], change: Callable[[JSONSchema], JSONSchema]) -> dict[str, Any]:
    """A copy of a schema in which each schema directly inside it is changed."""
    copy = dict(schema)
    for keyword, value in schema.items():
        if keyword in _MANY and isinstance(value, list):
            copy[keyword] = [change(each) for each in cast("list[JSONSchema]", value)]
        elif keyword in _ONE and isinstance(value, dict | bool):
            copy[keyword] = change(cast("Any", value))
        elif keyword in _NAMED and isinstance(value, dict):
            copy[keyword] = {
                name: change(each) if isinstance(each, dict | bool) else each  # `dependencies` also names lists
                for name, each in cast("dict[str, JSONSchema | list[str]]", value).items()
            }
        elif keyword == "components" and isinstance(value, dict):
            copy[keyword] = map_subschemas(cast("dict[str, Any]", value), change)
    return copy


def _lower(schema: JSONSchema, dialect: Dialect) -> JSONSchema:
    if not isinstance(schema, dict):  # a boolean, or what is no schema: that is for the compiler to say
        return schema
    if "$ref" in schema and dialect in _HIDES_SIBLINGS:
        schema = {keyword: value for keyword, value in schema.items() if keyword in _KEPT_BESIDE_REF}
    lowered = map_subschemas(schema, lambda each: _lower(each, dialect))
    _lower_tuple(lowered)
    _lower_dependencies(lowered)
    if dialect in _BOOLEAN_BOUNDS:
        _lower_bounds(lowered)
    if dialect == "openapi-3.0":
        return _lower_nullable(lowered)
    if dialect == "draft-04" and "id" in lowered:
        lowered["$id"] = lowered.pop("id")
    if dialect != "2019-09" and str(lowered.get("$id", "")).startswith("#"):
        lowered["$anchor"] = lowered.pop("$id")[1:]
    return lowered


def _lower_tuple(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema["additionalItems"]
    schema.pop("additionalItems", None)


def _lower_dependencies(schema: dict[str, Any]) -> None:
    dependencies = schema.pop("dependencies", None)
    if isinstance(dependencies, dict):
        for name, needed in cast("dict[str, Any]", dependencies).items():
            keyword = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
            schema[keyword] = {**schema.get(keyword, {}), name: needed}


def _lower_bounds(schema: dict[str, Any]) -> None:
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _lower_nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.pop("nullable", schema.pop("x-nullable", False)) is not True:
        return schema
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("type"), str) and schema["type"] != "null":
        schema["type"] = [schema["type"], "null"]
    if any(keyword in schema for keyword in ("allOf", "anyOf", "oneOf", "not", "const")):
        outer = {keyword: schema.pop(keyword) for keyword in _KEPT_OUTSIDE if keyword in schema}
        return {"anyOf": [schema, {"type": "null"}], **outer}
    return schema
