"""Input that can be written as a query string: an object of scalars and of arrays of scalars.

Each property is a query parameter, an array is repeated (`?tag=a&tag=b`). A query string is all text, so the schema
says what a value is; where it allows text and something else, nobody could tell, and the input is not flat.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.schema import Schema
from opwire.schema.dialect import lower
from opwire.schema.refs import References

MAX_PARAMETERS = 1_000

_SAYS_NO_MORE = frozenset(
    "$comment $defs $id $schema additionalProperties components definitions deprecated description examples "
    "maxProperties minProperties properties required title type unevaluatedProperties".split()
)
_SCALARS = frozenset({"boolean", "integer", "null", "number", "string"})
_MAX_HOPS = 8
_MAX_DIGITS = 4_000  # Python refuses to read a longer integer
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Parameter(NamedTuple):
    """What a query parameter may be."""

    kinds: frozenset[str]  # names of JSON Schema types, of the value or of an array's items
    is_array: bool


class _Kinds(NamedTuple):
    own: frozenset[str]  # scalar types
    items: frozenset[str] | None  # scalar types of the items, where it may be an array


def parameters_of(schema: Schema) -> Mapping[str, Parameter] | None:
    """The query parameters of an input schema, by name; None if it is not flat."""
    json = _lowered(schema)
    if json.get("type") != "object" or not _SAYS_NO_MORE.issuperset(json):
        return None
    if isinstance(json.get("additionalProperties"), dict) or isinstance(json.get("unevaluatedProperties"), dict):
        return None
    if not isinstance(json.get("properties", {}), dict) or not isinstance(json.get("required", []), list):
        return None  # no schema at all
    references = References(json)
    found: dict[str, Parameter] = {}
    for name, each in _properties(json).items():
        parameter = _parameter(_kinds(each, references, _MAX_HOPS))
        if parameter is None:
            return None
        found[name] = parameter
    return found


def parameter_of(schema: Schema, name: str) -> Parameter | None:
    """One property of an input schema as a parameter; None if there is none, or it is not flat."""
    json = _lowered(schema)
    return _parameter(_kinds(_properties(json).get(name), References(json), _MAX_HOPS))


def typed(text: str, kinds: frozenset[str]) -> Any:
    """The value that a text stands for, if it may be of these kinds; else the text itself."""
    if "string" in kinds:
        return text
    if "null" in kinds and text in ("", "null"):
        return None
    if "boolean" in kinds and text in ("true", "false"):
        return text == "true"
    if "number" in kinds or "integer" in kinds:
        return _number(text)
    return text


def read_query(parameters: Mapping[str, Parameter], query: bytes) -> dict[str, Any]:
    """The input that a query string holds. A value that is not what the schema says stays text, for it to be told so.

    Raises:
        CallError: PROTOCOL_ERROR, if it cannot be read.
    """
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"the query string cannot be read: {error}") from error
    input: dict[str, Any] = {}
    for name, text in pairs:
        parameter = parameters.get(name, _TEXT)
        if parameter.is_array:
            input.setdefault(name, []).append(typed(text, parameter.kinds))
        elif name in input:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"the query parameter {name!r} is there more than once")
        else:
            input[name] = typed(text, parameter.kinds)
    return input


_TEXT = Parameter(frozenset({"string"}), is_array=False)


def _lowered(schema: Schema) -> dict[str, Any]:
    try:
        json = lower(schema.json, schema.dialect)
    except SchemaError:
        return {}
    return json if isinstance(json, dict) else {}


def _properties(json: dict[str, Any]) -> dict[str, Any]:
    """What an object declares. A schema of a foreign document is not compiled yet, and may hold anything."""
    declared = json.get("properties")
    return cast("dict[str, Any]", declared) if isinstance(declared, dict) else {}


def _parameter(kinds: _Kinds | None) -> Parameter | None:
    if kinds is None:
        return None
    if kinds.items is None:
        return Parameter(kinds.own, is_array=False) if _is_clear(kinds.own) else None
    is_array = kinds.own <= {"null"} and _is_clear(kinds.items)
    return Parameter(kinds.items, is_array=True) if is_array else None


def _is_clear(kinds: frozenset[str]) -> bool:
    return bool(kinds) and ("string" not in kinds or kinds <= {"string", "null"})


def _kinds(schema: Any, references: References, hops: int) -> _Kinds | None:
    """The types that a property may have; None if an object is among them, or nobody knows."""
    if not isinstance(schema, dict) or hops == 0:
        return None
    json = cast("dict[str, Any]", schema)
    if "$ref" in json:
        try:
            return _kinds(references.resolve(str(json["$ref"])), references, hops - 1)
        except SchemaError:
            return None
    if "const" in json or "enum" in json:
        values = [json["const"]] if "const" in json else _listed(json["enum"])
        return _known(frozenset(map(_kind_of, values)), None)
    if "type" in json:
        return _of_types(json, references, hops)
    branches = _listed(json.get("anyOf") or json.get("oneOf"))
    if "allOf" in json or not branches:
        return None
    return _together([_kinds(branch, references, hops - 1) for branch in branches])


def _of_types(json: dict[str, Any], references: References, hops: int) -> _Kinds | None:
    named = json["type"]
    types = frozenset(map(str, [named] if isinstance(named, str) else _listed(named)))
    if "array" not in types:
        return _known(types, None)
    items = None if "prefixItems" in json else _kinds(json.get("items"), references, hops - 1)
    return None if items is None or items.items is not None else _known(types - {"array"}, items.own)


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _known(own: frozenset[str], items: frozenset[str] | None) -> _Kinds | None:
    return _Kinds(own, items) if own <= _SCALARS else None


def _together(branches: list[_Kinds | None]) -> _Kinds | None:
    own: frozenset[str] = frozenset()
    items: frozenset[str] | None = None
    for branch in branches:
        if branch is None:
            return None
        own |= branch.own
        if branch.items is not None:
            items = branch.items if items is None else items | branch.items
    return _Kinds(own, items)


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case _:
            return "object"


def _number(text: str) -> Any:
    written = _NUMBER.fullmatch(text)
    if written is None or len(text) > _MAX_DIGITS:
        return text
    if written[1] is None and written[2] is None:
        return int(text)
    number = float(text)
    return number if isfinite(number) else text
