"""Schemas of operations as components of an OpenAPI document.

An operation's schema is a document of its own, with `$defs` and references inside. Generators want every named type in
`components.schemas`, so definitions move there, and references follow. Two operations that define the same type share
it; of two that mean different things by one name, the second is named after its operation too.

Schemas that are in every document: the problem, and the meta of envelopes, each part under its own name.

The library writes a schema of the envelope in one piece. Generators make better types of named parts, and want to know
the type of a constant.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, count
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from opwire.envelope import (
    HTTP_RESPONSE_META_SCHEMA,
    LOCAL_RESPONSE_META_SCHEMA,
    MCP_CONTENT_BLOCK_SCHEMA,
    MCP_RESPONSE_META_SCHEMA,
)
from opwire.errors import ErrorCode, SchemaError
from opwire.schema import Schema
from opwire.schema.dialect import JSONSchema, References, escaped, lower, map_subschemas

PREFIX = "#/components/schemas/"

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OF_A_ROOT = frozenset("$schema $id $anchor $dynamicAnchor $recursiveAnchor $defs definitions components".split())
_BOOLEANS = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")  # where a boolean is usual
_encoder = msgspec.json.Encoder(order="sorted")

Pointer = tuple[str, ...]


class Components:
    """`components.schemas` of a document, as it grows."""

    def __init__(self, known: Mapping[str, JSONSchema]) -> None:
        self.schemas: dict[str, JSONSchema] = dict(known)
        self._names: dict[bytes, str] = {}  # by what a component says
        self._references: dict[int, tuple[JSONSchema, tuple[str, ...]]] = {}
        self._roots: dict[str, list[_Root]] = {}  # those whose definition of a name is a component, by that name

    def place(self, schema: Schema, label: str) -> JSONSchema:
        """The schema as it stands in the document. `label` names what it is the schema of.

        One that cannot be read as a whole, a reference that leads nowhere for example, is `{}`: anything.
        """
        try:
            json = lower(schema.json, schema.dialect)
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
        """The schema as a component of its own, for use in several places; one that says little stays as it is."""
        if not isinstance(schema, dict) or not schema or "$ref" in schema or schema.keys() <= {"type", "title"}:
            return schema
        name = self._names.get(_encoder.encode(schema))
        if name is None:
            name = self.reserve(label)
            self.keep(name, schema)
        return {"$ref": PREFIX + name}

    def reserve(self, *wishes: str) -> str:
        """The first wish that is not taken, made a legal name; or the last one with a number."""
        names = [_UNSAFE.sub("_", wish).strip("_") or "schema" for wish in wishes]
        numbered = (f"{names[-1]}_{number}" for number in count(2))
        free = next(name for name in chain(names, numbered) if name not in self.schemas)
        self.schemas[free] = {}  # until it is kept: it may refer to itself
        return free

    def keep(self, name: str, schema: JSONSchema) -> None:
        """Put a schema under its name."""
        self.schemas[name] = schema
        self._names.setdefault(_encoder.encode(schema), name)

    def references(self, definition: JSONSchema) -> tuple[str, ...]:
        """What a definition refers to. Many roots ask for the same one."""
        known = self._references.get(id(definition))
        if known is None:
            known = self._references[id(definition)] = definition, tuple(_references_in(definition))
        return known[1]

    def defining(self, name: str) -> "list[_Root]":
        """The root schemas whose definition of this name is a component."""
        return self._roots.setdefault(name, [])


class _Root:
    """One root schema on its way into the components."""

    def __init__(self, components: Components, json: dict[str, Any], label: str) -> None:
        self.names: dict[Pointer, str] = {}  # of the definitions that are components
        self.definitions = dict(_definitions(json))
        self.added: list[str] = []  # names of components that are this root's own
        self._components = components
        self._json = json
        self._label = label
        self._references = References(json)
        self._waiting: list[Pointer] = []  # definitions that have a name, and are to be placed
        self._own_name: str | None = None  # of the root itself, once something refers into it

    def placed(self) -> JSONSchema:
        """The root as it stands in the document, its definitions placed."""
        schema = self._rewritten({key: each for key, each in self._json.items() if key not in _OF_A_ROOT})
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
            return {} if schema else {"not": {}}  # the same, in words that every generator knows
        copy = map_subschemas(schema, self._rewritten)
        copy.update({keyword: schema[keyword] for keyword in _BOOLEANS if isinstance(schema.get(keyword), bool)})
        for keyword in _REFERENCES:
            if isinstance(copy.get(keyword), str):
                copy["$ref"] = self._target(copy.pop(keyword))
        if "discriminator" in copy:
            copy["discriminator"] = self._moved(copy["discriminator"])
        for keyword in ("$schema", "$id", "$anchor", "$dynamicAnchor"):
            copy.pop(keyword, None)
        if copy.get("contentEncoding") == "base64":
            copy.setdefault("format", "byte")  # the name by which tools know that not every text will do
        return copy

    def _moved(self, discriminator: Any) -> Any:
        given = cast("dict[str, Any]", discriminator) if isinstance(discriminator, dict) else {}
        mapping = given.get("mapping")
        if not isinstance(mapping, dict):
            return cast("Any", discriminator)
        targets = cast("dict[str, Any]", mapping).items()
        return {
            **given,
            "mapping": {value: self._target(ref) if str(ref).startswith("#/") else ref for value, ref in targets},
        }

    def _target(self, reference: str) -> str:
        self._references.resolve(reference)  # it has to be there
        pointer = self._pointer(reference)
        definition = self._definition_at(pointer)
        if definition is not None:
            return PREFIX + "/".join((self._name_of(definition), *map(escaped, pointer[len(definition) :])))
        if self._own_name is None:
            self._own_name = self._reserve(self._label)
        return PREFIX + "/".join((self._own_name, *map(escaped, pointer)))

    def _pointer(self, reference: str) -> Pointer:
        if reference == "#" or reference.startswith("#/"):
            return _steps(reference)
        target = self._references.resolve(reference)
        return next(pointer for pointer, schema in _walk(self._json) if schema is target)

    def _definition_at(self, pointer: Pointer) -> Pointer | None:
        """The definition that a pointer leads into."""
        return next((pointer[:depth] for depth in (2, 3) if pointer[:depth] in self.definitions), None)

    def _name_of(self, definition: Pointer) -> str:
        if definition not in self.names:
            for other in self._components.defining(definition[-1]):
                if common := self._common(other, definition):
                    self.names.update({each: other.names[each] for each in common})
                    break
            else:
                self.names[definition] = self._reserve(definition[-1], f"{self._label}_{definition[-1]}")
                self._waiting.append(definition)
        return self.names[definition]

    def _reserve(self, *wishes: str) -> str:
        name = self._components.reserve(*wishes)
        self.added.append(name)
        return name

    def _common(self, other: "_Root", definition: Pointer) -> set[Pointer]:
        """A definition and all that it refers to, if another root means the same by it; else nothing."""
        found: set[Pointer] = set()
        waiting = [definition]
        while waiting:
            each = waiting.pop()
            if each in found:
                continue
            own, others = self.definitions[each], other.definitions.get(each)
            if each not in other.names or (own is not others and own != others):  # most roots of a source share theirs
                return set()
            found.add(each)
            for reference in self._components.references(own):
                target = self._definition_at(self._pointer(reference))
                if target is None:  # it leads into its root, which is another one
                    return set()
                waiting.append(target)
        return found


@lru_cache(4_096)
def _steps(reference: str) -> Pointer:
    """The steps of a reference that is a JSON Pointer."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in unquote(reference).split("/")[1:])


def _definitions(root: dict[str, Any]) -> Iterator[tuple[Pointer, JSONSchema]]:
    """What a root schema defines by name, each with its place."""
    components = cast("Any", root.get("components"))
    schemas = cast("dict[str, Any]", components).get("schemas") if isinstance(components, dict) else None
    places = ((("$defs",), root.get("$defs")), (("definitions",), root.get("definitions")))
    for place, named in (*places, (("components", "schemas"), schemas)):
        if isinstance(named, dict):
            for name, schema in cast("dict[str, JSONSchema]", named).items():
                yield (*place, name), schema


def _walk(root: Any) -> Iterator[tuple[Pointer, Any]]:
    """Every object in a document, with its place."""
    stack: list[tuple[Pointer, Any]] = [((), root)]
    while stack:
        pointer, node = stack.pop()
        yield pointer, node
        if isinstance(node, dict):
            stack += [((*pointer, key), each) for key, each in cast("dict[str, Any]", node).items()]
        elif isinstance(node, list):
            stack += [((*pointer, str(index)), each) for index, each in enumerate(cast("list[Any]", node))]


def _references_in(schema: JSONSchema) -> Iterator[str]:
    for _, node in _walk(schema):
        if isinstance(node, dict):
            for keyword in _REFERENCES:
                reference = cast("dict[str, Any]", node).get(keyword)
                if isinstance(reference, str):
                    yield reference


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
