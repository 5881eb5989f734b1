"""Older dialects of JSON Schema, and OpenAPI 3.0's, lowered to 2020-12.

Only what changed its spelling is rewritten: boolean exclusive bounds, arrays of `items`, `dependencies`, `nullable`,
and a `$ref` that hides its siblings. What is data (`default`, `const`, `enum`, `examples`) is left alone.

Where a `$ref` of a JSON Schema points. Looks only inside the document: nothing is ever fetched.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, cast
from urllib.parse import quote, unquote

from opwire.errors import SchemaError

JSONSchema = dict[str, Any] | bool

_DATA = frozenset({"const", "default", "enum", "example", "examples"})  # what looks like a schema in there is none
_NAMED = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties", "schemas"}
)  # keys in there are names, and may be spelled like a keyword
_URI_CHARACTERS = ":/?#@!$&'()*+,;=%~"


def quoted_refs(schema: Any) -> Any:
    """A copy in which references are what RFC 3986 allows: many documents write "#/definitions/Page«User»" as it is."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {
            key: quote(value, _URI_CHARACTERS) if key == "$ref" and isinstance(value, str) else quoted_refs(value)
            for key, value in items
        }
    return [quoted_refs(each) for each in cast("list[Any]", schema)] if isinstance(schema, list) else schema


def escaped(step: str | int) -> str:
    """Return one step of a JSON Pointer, escaped as RFC 6901 says."""
    return str(step).replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    """Return the name that one step of a JSON Pointer stands for."""
    return step.replace("~1", "/").replace("~0", "~")


class References:
    """Resolves the references of one root schema: pointers, `$anchor`, and `$id` (also TypeBox's bare names)."""

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._names: dict[str, JSONSchema] | None = None  # made when the first reference is not a pointer

    def resolve(self, ref: str) -> JSONSchema:
        """The schema that `ref` names.

        Raises:
            SchemaError: it points at nothing inside this document.
        """
        base, _, fragment = ref.partition("#")
        start = self._root if not base else self._by_name(base)
        if start is not None and not fragment:
            return start
        if start is not None and fragment.startswith("/"):
            return _follow(start, fragment, ref)
        anchored = self._by_name(f"#{fragment}")
        if anchored is None:
            raise SchemaError(f"the reference {ref!r} points at nothing in this schema")
        return anchored

    def _by_name(self, name: str) -> JSONSchema | None:
        if self._names is None:
            self._names = dict(_named(self._root))
        return self._names.get(name)


def _follow(schema: JSONSchema, pointer: str, ref: str) -> JSONSchema:
    """Walk a JSON Pointer."""
    node: Any = schema
    for token in unquote(pointer).split("/")[1:]:
        key = unescaped(token)
        try:
            node = node[int(key) if isinstance(node, list) else key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise SchemaError(f"the reference {ref!r} points at nothing: there is no {key!r}") from None
    if not isinstance(node, dict | bool):
        raise SchemaError(f"the reference {ref!r} points at something that is not a schema")
    return cast("JSONSchema", node)


def _named(root: JSONSchema) -> Iterator[tuple[str, JSONSchema]]:
    """Every `$id`, and every `$anchor` as `#name`, with its schema."""
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            schema = cast("dict[str, Any]", node)
            for keyword, prefix in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                name = schema.get(keyword)
                if isinstance(name, str):
                    yield prefix + name, schema
            for keyword, value in schema.items():
                stack.extend(_inside(keyword, value))
        elif isinstance(node, list):
            stack.extend(cast("list[Any]", node))


def _inside(keyword: str, value: Any) -> Iterable[Any]:
    """Where schemas may stand in the value of a keyword."""
    if keyword in _DATA:
        return ()
    return cast("dict[str, Any]", value).values() if keyword in _NAMED and isinstance(value, dict) else (value,)


def may_recurse(root: JSONSchema) -> bool:
    """Whether the schema may follow a value to any depth: a reference leads back to itself, or who knows where."""
    references = References(root)
    finished: set[str] = set()

    def leads_back(schema: JSONSchema, path: tuple[str, ...]) -> bool:
        for ref in _references_in(schema):
            if ref in path or (ref not in finished and leads_back(references.resolve(ref), (*path, ref))):
                return True
            finished.add(ref)
        return False

    try:
        return leads_back(root, ("", "#"))
    except (SchemaError, RecursionError):
        return True


def _references_in(schema: JSONSchema) -> Iterator[str]:
    """Every `$ref` that applies inside a schema; a dynamic one as "", since where it leads depends on the way there."""
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            for keyword, value in cast("dict[str, Any]", node).items():
                if keyword in ("$dynamicRef", "$recursiveRef"):
                    yield ""
                elif keyword == "$ref" and isinstance(value, str):
                    yield value
                elif keyword not in ("$defs", "definitions", "components"):
                    stack.extend(_inside(keyword, value))
        elif isinstance(node, list):
            stack.extend(cast("list[Any]", node))


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
_NAMED_SCHEMAS = frozenset(
    "$defs definitions dependencies dependentSchemas patternProperties properties schemas".split()
)
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
        elif keyword in _NAMED_SCHEMAS and isinstance(value, dict):
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
