"""Schemas of operations as `components.schemas` of an OpenAPI document.

The schema of an operation is self-contained, with `$defs` and references inside. Generators need every named type in
`components.schemas`, so definitions move there, and references are rewritten. Two operations that define the same type
share it; if two define different types by one name, the second is prefixed with the name of its operation.

`NAMED_SCHEMAS` are in every document: the problem, and the meta of envelopes. The library exports the envelope as one
schema; generators create better types from named parts, and need the type of a constant.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import count
from math import inf
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from opwire.errors import ErrorCode, SchemaError
from opwire.model.envelope import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_CONTENT_BLOCK_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
)
from opwire.schema import Schema
from opwire.schema.dialect import JSONSchema, References, escaped, map_subschemas, unescaped
from opwire.schema.shape import type_names
from opwire.typed.nodes import kind_of
from opwire.typed.plain import as_dict, as_list

PREFIX = "#/components/schemas/"

_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_QUOTED_REFERENCES = tuple(f'"{keyword}"'.encode() for keyword in _REFERENCES)
_ROOT_KEYWORDS = frozenset("$schema $id $anchor $dynamicAnchor $recursiveAnchor $defs definitions components".split())
_KEYWORDS = frozenset(
    "$comment $defs $dynamicRef $recursiveRef $ref additionalProperties allOf anyOf const contains contentEncoding "
    "contentMediaType contentSchema default definitions dependentRequired dependentSchemas deprecated description "
    "discriminator else enum examples exclusiveMaximum exclusiveMinimum externalDocs format if items maxContains "
    "maxItems maxLength maxProperties maximum minContains minItems minLength minProperties minimum multipleOf not "
    "oneOf pattern patternProperties prefixItems properties propertyNames readOnly required then title type "
    "unevaluatedItems unevaluatedProperties uniqueItems writeOnly xml".split()
)
_TYPE_OF_KEYWORD = {"properties": "object", "items": "array"}  # keywords without effect on other types
_SAME_TYPE = {"integer": {"integer", "number"}, "number": {"integer", "number"}}  # 5.0 is an integer, too
_BOOLEANS = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")  # where generators expect booleans
_encoder = msgspec.json.Encoder(order="sorted")

# Different definitions of one name that are compared with another, and comparisons per definition of a root: thousands
# of tools may each define the same name, or a chain of definitions that differ at its end.
_MAX_ROOTS = 16
_COMPARISONS = 20

Pointer = tuple[str, ...]


class Components:
    """The `components.schemas` of a document under construction."""

    def __init__(self, named_schemas: Mapping[str, JSONSchema]) -> None:
        self.schemas: dict[str, JSONSchema] = dict(named_schemas)
        self._names: dict[bytes, str] = {}  # by the encoded schema
        self._numbers: dict[str, count[int]] = {}  # the next ones of names that are taken
        self._references: dict[int, tuple[JSONSchema, tuple[str, ...]]] = {}
        self._roots: dict[str, list[_Root]] = {}  # by the name of a definition that became a component

    def place(self, schema: Schema, label: str) -> JSONSchema:
        """Add the definitions of a schema, and return it with rewritten references; `label` names its purpose.

        An invalid schema, with an unresolvable reference for example, becomes `{}`: anything.
        """
        try:
            json = schema.lowered
        except SchemaError:
            return {}
        if not isinstance(json, dict):
            return {} if json else False
        root = _Root(self, json, label)
        try:
            return root.placed()
        except (SchemaError, RecursionError):
            for name in root.added:
                del self.schemas[name]
            return {}

    def share(self, schema: JSONSchema, label: str) -> JSONSchema:
        """Make a schema that is used several times a component, and return a reference; trivial ones stay inline."""
        if not isinstance(schema, dict) or not schema or "$ref" in schema or schema.keys() <= {"type", "title"}:
            return schema
        name = self._names.get(_encoder.encode(schema))
        if name is None:
            name = self.reserve(label)
            self.keep(name, schema)
        return {"$ref": PREFIX + name}

    def reserve(self, *wishes: str) -> str:
        """Reserve the first free name, made valid; or the last one with a number."""
        names = [_UNSAFE_IN_NAME.sub("_", wish).strip("_") or "schema" for wish in wishes]
        free = next((name for name in names if name not in self.schemas), None)
        if free is None:
            numbers = self._numbers.setdefault(names[-1], count(2))  # from the last one: names collide by thousands
            free = next(name for number in numbers if (name := f"{names[-1]}_{number}") not in self.schemas)
        self.schemas[free] = {}  # until `keep`: a schema may refer to itself
        return free

    def keep(self, name: str, schema: JSONSchema) -> None:
        """Add a schema under a reserved name."""
        self.schemas[name] = schema
        self._names.setdefault(_encoder.encode(schema), name)

    def references(self, definition: JSONSchema) -> tuple[str, ...]:
        """Return the references in a definition; cached, because many roots share definitions."""
        cached = self._references.get(id(definition))
        if cached is None:
            nodes = (as_dict(node) for _, node in _walk(definition))
            references = tuple(node[key] for node in nodes for key in _REFERENCES if isinstance(node.get(key), str))
            cached = self._references[id(definition)] = definition, references
        return cached[1]

    def defining(self, name: str) -> "list[_Root]":
        """Return the root schemas with a definition of this name that is a component."""
        return self._roots.setdefault(name, [])


class _Root:
    """One root schema while its definitions are added to the components."""

    def __init__(self, components: Components, json: dict[str, Any], label: str) -> None:
        self.names: dict[Pointer, str] = {}  # of the definitions that are components
        self.definitions: dict[Pointer, JSONSchema] = {
            (*place, name): schema
            for place, definitions in (
                (("$defs",), json.get("$defs")),
                (("definitions",), json.get("definitions")),
                (("components", "schemas"), as_dict(json.get("components")).get("schemas")),
            )
            for name, schema in as_dict(definitions).items()
        }
        self.added: dict[str, None] = {}  # components that this root alone defines, in their order
        self._components = components
        self._json = json
        self._label = label
        self._references = References(json)
        self._same: dict[tuple[int, int], bool] = {}  # definitions of two roots, by their identities
        self._comparisons_left = _COMPARISONS * (len(self.definitions) + _COMPARISONS)
        self._waiting: list[Pointer] = []  # named definitions that are not added yet
        self._own_name: str | None = None  # of the root itself, if a reference leads into it

    def placed(self) -> JSONSchema:
        """Add the definitions, and return the root with rewritten references."""
        schema = self._rewritten(
            {key: keyword_value for key, keyword_value in self._json.items() if key not in _ROOT_KEYWORDS}
        )
        while self._waiting:
            pointer = self._waiting.pop()
            self._components.keep(self.names[pointer], self._rewritten(self.definitions[pointer]))
        for pointer, name in self.names.items():
            if name in self.added:
                self._components.defining(pointer[-1]).append(self)
        if self._own_name is None:
            return schema
        self._components.keep(self._own_name, schema)
        return {"$ref": PREFIX + self._own_name}

    def _rewritten(self, schema: JSONSchema) -> JSONSchema:
        if not isinstance(schema, dict):
            return {} if schema else {"not": {}}  # equivalent, and known to every generator
        copy = map_subschemas(_published(schema), self._rewritten)
        copy.update({keyword: schema[keyword] for keyword in _BOOLEANS if isinstance(schema.get(keyword), bool)})
        for keyword in _REFERENCES:
            if isinstance(copy.get(keyword), str):
                copy["$ref"] = self._target(copy.pop(keyword))
        if discriminator := as_dict(copy.get("discriminator")):
            self._rewrite_discriminator(copy, discriminator)
        if copy.get("contentEncoding") == "base64":
            copy.setdefault("format", "byte")  # tells tools that not every text is valid
        return copy

    def _rewrite_discriminator(self, schema: dict[str, Any], discriminator: dict[str, Any]) -> None:
        """Move the targets of the mapping, and refer to the variants directly: the discriminator selects by name.

        `from_openapi` makes each variant reject the tags of the others, and does so again where this is loaded.
        """
        moved: dict[str, Any] = {}
        for tag, reference in as_dict(discriminator.get("mapping")).items():
            with contextlib.suppress(SchemaError):  # a target that is missing
                moved[tag] = self._target(reference) if str(reference).startswith("#/") else reference
        rewritten = {key: keyword_value for key, keyword_value in discriminator.items() if key != "mapping"}
        schema["discriminator"] = {**rewritten, "mapping": moved} if moved else rewritten
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list):
                schema[union] = [_variant(branch) for branch in schema[union]]

    def _target(self, reference: str) -> str:
        self._references.resolve(reference)  # raises SchemaError if it cannot be resolved
        pointer = self._pointer(reference)
        definition = self._definition_at(pointer)
        if definition is not None:
            if definition not in self.names:
                for other in self._components.defining(definition[-1])[:_MAX_ROOTS]:
                    if common := self._common(other, definition):
                        self.names.update({shared_pointer: other.names[shared_pointer] for shared_pointer in common})
                        break
                else:
                    name = self._components.reserve(definition[-1], f"{self._label}_{definition[-1]}")
                    self.names[definition] = name
                    self.added[name] = None
                    self._waiting.append(definition)
            return PREFIX + "/".join((self.names[definition], *map(escaped, pointer[len(definition) :])))
        if self._own_name is None:
            self._own_name = self._components.reserve(self._label)
            self.added[self._own_name] = None
        return PREFIX + "/".join((self._own_name, *map(escaped, pointer)))

    def _pointer(self, reference: str) -> Pointer:
        if reference == "#" or reference.startswith("#/"):
            return tuple(map(unescaped, unquote(reference).split("/")[1:]))
        return self._pointers[id(self._references.resolve(reference))]

    @cached_property
    def _pointers(self) -> dict[int, Pointer]:
        """The first pointer to each value of the root, by its identity."""
        pointers: dict[int, Pointer] = {}
        for pointer, value in _walk(self._json):
            pointers.setdefault(id(value), pointer)
        return pointers

    def _definition_at(self, pointer: Pointer) -> Pointer | None:
        """Return the definition that a pointer leads into, or None."""
        return next((pointer[:depth] for depth in (2, 3) if pointer[:depth] in self.definitions), None)

    def _common(self, other: "_Root", definition: Pointer) -> set[Pointer]:
        """Return a definition and all that it refers to if they are the same in another root; else an empty set."""
        common: set[Pointer] = set()
        waiting = [definition]
        while waiting:
            pointer = waiting.pop()
            name = other.names.get(pointer)
            if pointer in common or (
                name is not None and self.names.get(pointer) == name
            ):  # with all that it refers to
                continue
            self._comparisons_left -= 1
            if name is None or pointer in self.names or self._comparisons_left < 0 or not self._is_same(other, pointer):
                return set()
            common.add(pointer)
            for reference in self._components.references(self.definitions[pointer]):
                target = self._definition_at(self._pointer(reference))
                if target is None:  # it leads into its own root, which is not the other one
                    return set()
                waiting.append(target)
        return common

    def _is_same(self, other: "_Root", definition: Pointer) -> bool:
        own_definition, others = self.definitions[definition], other.definitions[definition]
        if own_definition is others:  # roots of a source share objects
            return True
        key = (id(own_definition), id(others))
        if key not in self._same:
            self._same[key] = own_definition == others
        return self._same[key]


def _published(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without what validators of documents reject: unknown keywords, and data that contradicts it."""
    published = {
        keyword: keyword_value
        for keyword, keyword_value in schema.items()
        if keyword in _KEYWORDS or keyword.startswith("x-")
    }
    if _refers(published.get("examples")):  # validators resolve references in data, too
        del published["examples"]
    if "default" in published:
        checked = {
            keyword: keyword_value
            for keyword, keyword_value in schema.items()
            if keyword != "default" and not _refers(keyword_value)
        }
        with contextlib.suppress(SchemaError):
            if _refers(published["default"]) or not Schema(checked, dialect="2020-12").is_valid(published["default"]):
                del published["default"]
    types = type_names(published)
    if not types:
        return published
    for keyword, type in _TYPE_OF_KEYWORD.items():
        if type not in types:
            published.pop(keyword, None)
    if "enum" in published:
        values = published.pop("enum")
        possible = [
            member for member in as_list(values) if _SAME_TYPE.get(kind_of(member), {kind_of(member)}) & set(types)
        ]
        published |= {"enum": possible} if possible else {}
    if "array" in types:
        # Linters require `items`, even of a tuple. Where its length is limited they have no effect, and generators that
        # do not know tuples create the right union; hey-api would append any other type to the tuple.
        tuple_items = as_list(published.get("prefixItems"))
        is_closed = len(tuple_items) > 1 and published.get("maxItems", inf) <= len(tuple_items)
        published.setdefault("items", {"anyOf": tuple_items} if is_closed else {})
    return published


def _refers(value: Any) -> bool:
    encoded = _encoder.encode(value)
    return any(reference in encoded for reference in _QUOTED_REFERENCES)


def _variant(branch: JSONSchema) -> JSONSchema:
    """Return the reference in a branch of a union that only adds which tags of other branches it rejects."""
    fields = as_dict(branch)
    tags = list(as_dict(fields.get("properties")).values())
    is_wrapped = fields.keys() == {"allOf", "properties"} and len(fields["allOf"]) == len(tags) == 1
    return fields["allOf"][0] if is_wrapped and as_dict(as_dict(tags[0]).get("not")).keys() == {"enum"} else branch


def _walk(root: Any) -> Iterator[tuple[Pointer, Any]]:
    """Yield every value in a document with its JSON Pointer."""
    stack: list[tuple[Pointer, Any]] = [((), root)]
    while stack:
        pointer, node = stack.pop()
        yield pointer, node
        if isinstance(node, dict):
            stack += [((*pointer, key), child) for key, child in cast("dict[str, Any]", node).items()]
        elif isinstance(node, list):
            stack += [((*pointer, str(index)), child) for index, child in enumerate(cast("list[Any]", node))]


_STRING = {"type": "string"}
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "An error (RFC 9457). Programs decide by `code` and `retryable`.",
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": _STRING,
        "status": {"type": "integer"},
        "detail": _STRING,
        "code": {"type": "string", "enum": [code.value for code in ErrorCode]},
        "retryable": {"type": "boolean"},
        "instance": {"type": "string", "format": "uri-reference"},
        "foreignCode": {"type": "string", "description": "The code of the server, if it has codes of its own."},
        "retryAfterMs": {"type": "integer", "minimum": 0},
        "details": {"description": "More data: the problems of an input, each with its path."},
        "data": {"description": "The data of a tool that returned an error as its result."},
    },
    "required": ["type", "title", "status", "detail", "code", "retryable"],
}


def _with(schema: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """Return an object schema with some properties replaced, and with the type of its constants."""
    all_properties: dict[str, Any] = {**schema["properties"], **properties}
    typed = {
        name: {"type": "string", **property_schema} if "const" in property_schema else property_schema
        for name, property_schema in all_properties.items()
    }
    return {**schema, "properties": typed}


def _one_of(discriminator: str, **names_by_value: str) -> dict[str, Any]:
    mapping = {value: PREFIX + name for value, name in names_by_value.items()}
    return {
        "oneOf": [{"$ref": ref} for ref in mapping.values()],
        "discriminator": {"propertyName": discriminator, "mapping": mapping},
    }


_BLOCKS: dict[str, dict[str, Any]] = {  # by the value of `type`
    block["properties"]["type"]["const"]: block
    for block in cast("list[dict[str, Any]]", MCP_CONTENT_BLOCK_SCHEMA["oneOf"])
}
_BLOCK_NAMES = {kind: f"MCP{kind.title().replace('_', '')}Block" for kind in _BLOCKS}
_ANNOTATIONS = next(iter(_BLOCKS.values()))["properties"]["annotations"]

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
        for kind, schema in _BLOCKS.items()
    },
}
