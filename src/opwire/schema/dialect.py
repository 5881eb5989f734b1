"""Dialects of JSON Schema: detect one, lower it to 2020-12, and resolve references inside a document.

Lowering rewrites only what later drafts spell differently: boolean exclusive bounds, arrays under `items`,
`dependencies`, OpenAPI's `nullable`, and a `$ref` that hides its siblings. Data (`default`, `const`, `enum`,
`examples`) is copied unchanged. References are resolved inside the document; nothing is ever fetched. No I/O.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

from opwire.errors import SchemaError
from opwire.typed.plain import as_dict

T = TypeVar("T")

JSONSchema = dict[str, Any] | bool
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
# Keys in these are names and may be spelled like a keyword. `schemas` stands under OpenAPI's `components`.
_NAMED = frozenset("$defs definitions dependencies dependentSchemas patternProperties properties schemas".split())
_DATA = frozenset({"const", "default", "enum", "example", "examples"})  # never a schema, even if it looks like one
_DEFINITIONS = ("$defs", "definitions", "components")
_MAX_REFERENCE_CHAIN = 60
_URI_CHARACTERS = ":/?#@!$&'()*+,;=%~"
_HIDES_SIBLINGS = frozenset({"draft-07", "draft-06", "draft-04", "openapi-3.0"})
_BOOLEAN_BOUNDS = frozenset({"draft-04", "openapi-3.0"})
_KEPT_OUTSIDE = ("$schema", "$id", *_DEFINITIONS, "default", "title", "description")
_KEPT_BESIDE_REF = frozenset({"$ref", *_DEFINITIONS, "$schema"})


def escaped(step: str | int) -> str:
    """Return one step of a JSON Pointer, escaped as RFC 6901 says."""
    return str(step).replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    """Return the name that one step of a JSON Pointer stands for."""
    return step.replace("~1", "/").replace("~0", "~")


def quoted_refs(schema: Any) -> Any:
    """Return a copy with references quoted as RFC 3986 requires: many documents write "#/definitions/Page«User»"."""
    from urllib.parse import quote  # 3 % of the time of `import opwire`, and few documents need it

    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {
            key: quote(value, _URI_CHARACTERS) if key == "$ref" and isinstance(value, str) else quoted_refs(value)
            for key, value in items
        }
    return [quoted_refs(element) for element in cast("list[Any]", schema)] if isinstance(schema, list) else schema


def objects_in(root: Any, *, data: bool = False) -> Iterator[dict[str, Any]]:
    """Iterate over every object of a document that may be a schema, the root first.

    Examples and other data are skipped, but `default` may also be a response in OpenAPI: `data` includes them.
    """
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            mapping = cast("dict[str, Any]", node)
            yield mapping
            stack.extend(value for key, value in mapping.items() if data or key not in _DATA)
        elif isinstance(node, list):
            stack.extend(cast("list[Any]", node))


def _objects(root: JSONSchema, skip: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield every object in which schema keywords may stand, without those below skipped keywords and in data."""
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            schema = cast("dict[str, Any]", node)
            yield schema
            for keyword, value in schema.items():
                if keyword in _NAMED and isinstance(value, dict) and keyword not in skip:
                    stack.extend(cast("dict[str, Any]", value).values())
                elif keyword not in _DATA and keyword not in skip:
                    stack.append(value)
        elif isinstance(node, list):
            stack.extend(cast("list[Any]", node))


class lazy_property(cached_property[T]):  # noqa: N801 - used as a decorator
    """A cached property without a lock.

    Python 3.11 locks a cached property for all instances while that of one is computed: the event loop would wait for a
    thread that compiles another schema. Two threads may compute the same value instead.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()


class References:
    """Resolves the references of one root schema: pointers, `$anchor`, and `$id` (also TypeBox's bare names)."""

    def __init__(self, root: JSONSchema) -> None:
        self._root = root

    @lazy_property
    def _names(self) -> dict[str, JSONSchema]:
        """Every `$id`, and every anchor as `#name`; indexed lazily, since most references are pointers."""
        keywords = (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#"))
        return {
            prefix + name: schema
            for schema in _objects(self._root)
            for keyword, prefix in keywords
            if isinstance(name := schema.get(keyword), str)
        }

    def resolve(self, ref: str) -> JSONSchema:
        """Return the schema that `ref` names.

        Raises:
            SchemaError: the target is missing from this document, or is not a schema.
        """
        base, _, fragment = ref.partition("#")
        node: Any = self._names.get(base) if base else self._root
        if node is None or (fragment and not fragment.startswith("/")):
            node, fragment = self._names.get(f"#{fragment}"), ""
            if node is None:
                raise SchemaError(f"the reference {ref!r} points at nothing in this schema")
        if "%" in fragment:
            from urllib.parse import unquote  # as above

            fragment = unquote(fragment)
        for step in fragment.split("/")[1:]:
            key = unescaped(step)
            try:
                node = node[int(key) if isinstance(node, list) else key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise SchemaError(f"the reference {ref!r} points at nothing: there is no {key!r}") from None
        if not isinstance(node, dict | bool):
            raise SchemaError(f"the reference {ref!r} points at something that is not a schema")
        return cast("JSONSchema", node)

    def follow(self, schema: JSONSchema) -> JSONSchema:
        """Return a schema, or the end of its chain of references; True, any value, if one of them is invalid."""
        for _ in range(_MAX_REFERENCE_CHAIN):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            try:
                schema = self.resolve(schema["$ref"])
            except SchemaError:
                break
        return True


def may_recurse(root: JSONSchema) -> bool:
    """Return whether the schema may apply at any depth: a reference leads back to itself, or cannot be resolved."""
    references = References(root)
    finished: set[int] = set()  # by identity: a reference to a large schema can be spelled in many ways

    def leads_back(schema: JSONSchema, path: tuple[int, ...]) -> bool:
        for node in _objects(schema, skip=_DEFINITIONS):
            if "$dynamicRef" in node or "$recursiveRef" in node:  # the target depends on the path taken
                return True
            ref = node.get("$ref")
            target = references.resolve(ref) if isinstance(ref, str) else True
            if isinstance(target, dict) and id(target) not in finished:
                if id(target) in path or leads_back(target, (*path, id(target))):
                    return True
                finished.add(id(target))
        return False

    try:
        return leads_back(root, (id(root),))
    except (SchemaError, RecursionError):
        return True


def dialect_of(schema: JSONSchema) -> Dialect:
    """Return the dialect that `$schema` names, by default 2020-12."""
    meta_schema = str(schema.get("$schema", "")).rstrip("#") if isinstance(schema, dict) else ""
    for dialect, address in META_SCHEMAS.items():
        if meta_schema == address.rstrip("#"):
            return dialect
    return "2020-12"


def map_subschemas(schema: dict[str, Any], change: Callable[[JSONSchema], JSONSchema]) -> dict[str, Any]:
    """Return a copy of a schema with `change` applied to each schema directly inside it."""
    copy = dict(schema)
    for keyword, value in schema.items():
        if keyword in _MANY and isinstance(value, list):
            copy[keyword] = [change(subschema) for subschema in cast("list[JSONSchema]", value)]
        elif keyword in _ONE and isinstance(value, dict | bool):
            copy[keyword] = change(cast("Any", value))
        elif keyword in _NAMED and isinstance(value, dict):
            copy[keyword] = {
                name: change(subschema)
                if isinstance(subschema, dict | bool)
                else subschema  # `dependencies` also names lists
                for name, subschema in cast("dict[str, JSONSchema | list[str]]", value).items()
            }
        elif keyword == "components" and isinstance(value, dict):
            copy[keyword] = map_subschemas(cast("dict[str, Any]", value), change)
    return copy


def lower(schema: JSONSchema, dialect: Dialect) -> JSONSchema:
    """Return the same schema in 2020-12; the original is not changed.

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


def _lower(schema: JSONSchema, dialect: Dialect) -> JSONSchema:
    if not isinstance(schema, dict):  # a boolean, or invalid: then the compiler raises
        return schema
    if "$ref" in schema and dialect in _HIDES_SIBLINGS:
        schema = {keyword: value for keyword, value in schema.items() if keyword in _KEPT_BESIDE_REF}
    lowered = map_subschemas(schema, lambda subschema: _lower(subschema, dialect))
    additional_items = lowered.pop("additionalItems", None)
    if isinstance(lowered.get("items"), list):
        lowered["prefixItems"] = lowered.pop("items")
        if additional_items is not None:
            lowered["items"] = additional_items
    _split_dependencies(lowered)
    if dialect in _BOOLEAN_BOUNDS:
        lower_bounds(lowered)
    if dialect == "openapi-3.0":
        return _lower_nullable(lowered)
    if dialect == "draft-04" and "id" in lowered:
        lowered["$id"] = lowered.pop("id")
    if dialect != "2019-09" and str(lowered.get("$id", "")).startswith("#"):
        lowered["$anchor"] = lowered.pop("$id")[1:]
    return lowered


def _split_dependencies(schema: dict[str, Any]) -> None:
    """Convert `dependencies`, which are names or schemas, in place."""
    dependencies = as_dict(schema.pop("dependencies", None)).items()
    for keyword, is_list in (("dependentRequired", True), ("dependentSchemas", False)):
        if matching_dependencies := {
            name: dependency for name, dependency in dependencies if isinstance(dependency, list) is is_list
        }:
            schema[keyword] = {**as_dict(schema.get(keyword)), **matching_dependencies}


def lower_bounds(schema: dict[str, Any]) -> None:
    """Convert exclusive bounds that are booleans, in place."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
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
