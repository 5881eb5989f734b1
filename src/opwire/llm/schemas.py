"""Input schemas in the subsets of JSON Schema that model providers accept. No I/O.

Keywords that a provider does not know become part of the description, so that the model still reads them: the registry
validates the input by the whole schema in any case. A strict schema guarantees arguments that match it: its objects are
closed, and for some providers every property is required, so that an optional one becomes nullable. A schema that
cannot be strict, such as an object with any properties, is given as it is.
"""

from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

import msgspec
from msgspec import Struct

from opwire.schema import JSONSchema
from opwire.typed.plain import as_dict, as_list

_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_STRUCTURE = frozenset(
    "$ref $defs type properties required additionalProperties items enum const anyOf title description".split()
)
_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
_SILENT = frozenset(
    {"$schema", "$id", "$comment", "$anchor", "example", "examples", "deprecated", "readOnly", "writeOnly"}
)
_NULL = {"type": "null"}
_MAX_NOTE = 300  # characters of one keyword in a description
_encoder = msgspec.json.Encoder()


class SchemaRules(Struct, frozen=True):
    """What a provider accepts.

    `closed`: objects without additional properties. `all_required`: every property is. `recursive`: a definition may
    refer to itself. `max_depth` and `max_properties` bound the whole schema.
    """

    keywords: frozenset[str]
    formats: frozenset[str] | None = None
    closed: bool = False
    all_required: bool = False
    recursive: bool = True
    max_depth: int = 100
    max_properties: int = 100_000


OPENAI_STRICT = SchemaRules(
    _STRUCTURE | _NUMBERS | {"pattern", "format", "minItems", "maxItems"},
    _FORMATS,
    closed=True,
    all_required=True,
    max_depth=10,
    max_properties=5_000,
)
ANTHROPIC_STRICT = SchemaRules(_STRUCTURE | {"format", "default"}, _FORMATS | {"uri"}, closed=True, recursive=False)
GEMINI = SchemaRules(
    (_STRUCTURE - {"const"}) | {"format", "minimum", "maximum", "minItems", "maxItems", "oneOf", "prefixItems"}
)


class UnsupportedSchemaError(ValueError):
    """The schema cannot be expressed in the subset of a provider."""


def provider_schema(schema: dict[str, Any], rules: SchemaRules) -> dict[str, Any]:
    """Return an object schema in the subset of a provider.

    Raises:
        UnsupportedSchemaError: it cannot be expressed.
    """
    try:
        return _Conversion(schema, rules).convert_root()
    except RecursionError:
        raise UnsupportedSchemaError("it is nested too deeply") from None


class _Conversion:
    def __init__(self, root: dict[str, Any], rules: SchemaRules) -> None:
        self._root = root
        self._rules = rules
        self._properties = 0
        self._definitions = {**as_dict(root.get("definitions")), **as_dict(root.get("$defs"))}
        self._referred: dict[str, set[str]] = {}  # the definitions to which each definition refers; "" is the root
        self._place = ""

    def convert_root(self) -> dict[str, Any]:
        body = {key: value for key, value in self._root.items() if key not in ("$defs", "definitions")}
        converted = self._convert({"properties": {}, **body, "type": "object"}, 0)
        definitions: dict[str, Any] = {}
        left = sorted(self._referred.get("", ()))
        while left:
            self._place = name = left.pop()
            if name not in definitions:
                definitions[name] = self._convert(self._definitions[name], 1)
                left += sorted(self._referred.get(name, ()))
        if not self._rules.recursive:
            try:
                TopologicalSorter(self._referred).prepare()
            except CycleError:
                raise UnsupportedSchemaError("a definition refers to itself") from None
        return {**converted, "$defs": definitions} if definitions else converted

    def _convert(self, schema: JSONSchema, depth: int) -> dict[str, Any]:
        rules = self._rules
        if depth > rules.max_depth:
            raise UnsupportedSchemaError(f"it is nested deeper than {rules.max_depth}")
        if not isinstance(schema, dict):
            return self._convert({} if schema else {"not": {}}, depth)
        if "$ref" in schema:
            return self._refer(schema["$ref"])
        kept = self._keep(_merged(schema))
        for keyword in ("anyOf", "oneOf", "prefixItems"):
            if keyword in kept:
                kept[keyword] = [self._convert(each, depth + 1) for each in as_list(kept[keyword])]
        if "items" in kept:
            kept["items"] = self._convert(kept["items"], depth + 1)
        if "properties" in kept or kept.get("type") == "object":
            self._convert_object(kept, depth)
        if rules.closed and not kept.keys() & {"type", "anyOf", "enum", "const"}:
            raise UnsupportedSchemaError("a value may be anything")
        if rules.closed and "array" in _types(kept) and "items" not in kept:
            raise UnsupportedSchemaError("the items of an array may be anything")
        return kept

    def _keep(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords that the provider accepts, with the others in the description."""
        rules = self._rules
        if "oneOf" in given and "oneOf" not in rules.keywords:
            given["anyOf"] = [*as_list(given.get("anyOf")), *as_list(given.pop("oneOf"))]
        if "const" in given and "const" not in rules.keywords:
            given["enum"] = [given.pop("const")]
        kept = {key: value for key, value in given.items() if key in rules.keywords}
        if rules.formats is not None and kept.get("format", "") not in rules.formats:
            kept.pop("format", None)
        notes: list[str] = []
        for keyword, value in given.items():
            if keyword not in kept and keyword not in _SILENT and not (keyword == "default" and value is None):
                with suppress(TypeError, ValueError, RecursionError):
                    text = value if isinstance(value, str) else _encoder.encode(value).decode()
                    notes.append(f"{keyword}: {text[:_MAX_NOTE]}")
        if notes:
            kept["description"] = f"{kept.get('description', '')} ({'; '.join(notes)})".strip()
        return kept

    def _refer(self, ref: Any) -> dict[str, Any]:
        for prefix in ("#/$defs/", "#/definitions/"):
            name = str(ref).removeprefix(prefix)
            if str(ref).startswith(prefix) and name in self._definitions:
                self._referred.setdefault(self._place, set()).add(name)
                return {"$ref": f"#/$defs/{name}"}
        raise UnsupportedSchemaError(f"the reference {str(ref)[:100]} is not to a definition")

    def _convert_object(self, kept: dict[str, Any], depth: int) -> None:
        rules = self._rules
        names = as_dict(kept.get("properties"))
        additional = kept.get("additionalProperties", True)
        self._properties += len(names)
        if self._properties > rules.max_properties:
            raise UnsupportedSchemaError(f"it has more than {rules.max_properties} properties")
        required = {name: None for name in as_list(kept.get("required")) if isinstance(name, str) and name in names}
        converted = {name: self._convert(each, depth + 1) for name, each in names.items()}
        if rules.closed:
            is_open = isinstance(additional, dict) or (additional is True and not names and depth > 0)
            if is_open:
                raise UnsupportedSchemaError("an object has any properties")
            additional = False
        elif isinstance(additional, dict):
            additional = self._convert(cast("dict[str, Any]", additional), depth + 1)
        if rules.all_required:
            converted = {name: each if name in required else _nullable(each) for name, each in converted.items()}
            required = converted
        kept.update({"type": kept.get("type", "object"), "properties": converted, "required": list(required)})
        if additional is not True:
            kept["additionalProperties"] = additional


def _merged(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the branches of `allOf` that only add properties or describe it merged into it."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    branches = list(map(as_dict, as_list(schema.get("allOf"))))
    if any("$ref" in branch or "allOf" in branch for branch in branches):
        raise UnsupportedSchemaError("allOf cannot be merged")
    parts = [schema, *branches] if branches else []
    if any("properties" in each for each in parts):
        named = [as_dict(each.get("properties")) for each in parts]
        merged["properties"] = {name: value for each in named for name, value in each.items()}
    if any("required" in each for each in parts):
        merged["required"] = [name for each in parts for name in as_list(each.get("required"))]
    for branch in branches:
        for key, value in branch.items():
            if key in ("properties", "required"):
                continue
            if merged.setdefault(key, value) != value:
                raise UnsupportedSchemaError(f"the branches of allOf disagree in {key}")
    return merged


def _types(schema: dict[str, Any]) -> list[Any]:
    given = schema.get("type")
    return cast("list[Any]", given) if isinstance(given, list) else [given]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    types = _types(schema)
    if "null" in types:
        return schema
    if "anyOf" in schema:
        branches = as_list(schema["anyOf"])
        return schema if _NULL in branches else {**schema, "anyOf": [*branches, _NULL]}
    if "type" not in schema or "const" in schema:
        return {"anyOf": [schema, _NULL]}
    enum = {"enum": [*as_list(schema["enum"]), None]} if "enum" in schema else {}
    return {**schema, **enum, "type": [*types, "null"]}


def without_nulls(value: Any, schema: JSONSchema, root: dict[str, Any]) -> Any:
    """Return arguments without the nulls that a strict schema asks for in place of optional properties."""
    known = _resolved(schema, root)
    if isinstance(value, list) and "items" in known:
        return [without_nulls(each, known["items"], root) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return cast("Any", value)
    given = cast("dict[str, Any]", value)
    branches = [_resolved(each, root) for key in ("anyOf", "oneOf") for each in as_list(known.get(key))]
    objects = [known, *(branch for branch in branches if given.keys() <= as_dict(branch.get("properties")).keys())]
    objects += [_resolved(each, root) for each in as_list(known.get("allOf"))]
    properties = {name: each for one in objects for name, each in as_dict(one.get("properties")).items()}
    required = {name for one in objects for name in as_list(one.get("required"))}
    return {
        name: without_nulls(each, properties.get(name, True), root)
        for name, each in given.items()
        if each is not None or name in required or name not in properties or _allows_null(properties[name], root)
    }


def _resolved(schema: JSONSchema, root: dict[str, Any]) -> dict[str, Any]:
    for _ in range(10):  # a reference to a reference
        ref = as_dict(schema).get("$ref")
        if not isinstance(ref, str) or not ref.startswith("#"):
            break
        found: Any = root
        for step in ref.removeprefix("#").split("/")[1:]:
            found = as_dict(found).get(step)
        schema = as_dict(found)
    return as_dict(schema)


def _allows_null(schema: JSONSchema, root: dict[str, Any]) -> bool:
    known = _resolved(schema, root)
    if not known.keys() & {"type", "enum", "const", "anyOf", "oneOf", "allOf"}:
        return True
    if "const" in known:
        return known["const"] is None
    if "enum" in known:
        return None in as_list(known["enum"])
    branches = [*as_list(known.get("anyOf")), *as_list(known.get("oneOf"))]
    if branches and "type" not in known:
        return any(_allows_null(each, root) for each in branches)
    return "null" in _types(known)
