"""How the fields of a form are sent, whatever its schema looks like: in variants, conditions and patterns too.

A schema that is not plain cannot be taken apart, so its value stands whole in the input. Its fields are still files or
text, and have their `encoding`. `Changes` puts what the caller has to give for a file into the schema, and takes out
what the operation sets itself.
"""

from collections.abc import Callable, ItemsView, Mapping
from typing import Any, cast

from msgspec import Struct

from opwire.adapters.openapi.document import objects_in
from opwire.adapters.openapi.keywords import is_pattern
from opwire.adapters.openapi.media import is_multipart
from opwire.adapters.openapi.objects import Fields
from opwire.adapters.openapi.payloads import Payload, file_of, or_null, part_of, read_part
from opwire.adapters.openapi.plan import Part
from opwire.adapters.openapi.refs import Documents, Place
from opwire.adapters.openapi.schemas import Schemas, Written
from opwire.adapters.openapi.shapes import mapping, sequence, text
from opwire.schema import JSONSchema, Schema

_DEFINITION = "#/$defs/"
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf"})
_CONDITIONS = frozenset({"then", "else"})  # not `if` and `not`: what they say less of would be true more often
_MAX_DEPTH = 20  # of schemas that describe one value
_MAX_POSITIONS = 1_000
_MAX_WRITTEN_OUT = 50  # definitions: those that name each other several times would multiply


class Changes(Struct, frozen=True, kw_only=True):
    """What a schema says otherwise of its properties."""

    properties: Mapping[str, JSONSchema] = {}
    patterns: Mapping[str, JSONSchema] = {}
    extras: JSONSchema | None = None
    positions: Mapping[int, JSONSchema] = {}
    items: JSONSchema | None = None
    dropped: frozenset[str] = frozenset()


class Form(Struct, frozen=True, kw_only=True):
    """How a form is sent, as `Body` has it, and what its schema has to say of its files."""

    parts: Mapping[str, Part] = {}
    others: tuple[tuple[Schema | None, Part], ...] = ()
    positions: tuple[Part, ...] = ()
    items: Part = Part()
    changes: Changes = Changes()


class FormReader:
    """Reads how the form of one operation is sent; `warn` says what cannot be."""

    def __init__(self, payload: Payload, documents: Documents, schemas: Schemas, warn: Callable[[str], None]) -> None:
        self._payload = payload
        self._documents = documents
        self._schemas = schemas
        self._warn = warn
        self._has_files = is_multipart(payload.content_type)

    def read(self, fields: Fields) -> Form:
        """Return how these fields are sent."""
        encoding = self._payload.encoding.value
        files: dict[str, JSONSchema] = {}
        parts: dict[str, Part] = {}
        for name in dict.fromkeys((*fields.properties, *encoding)):
            file = self._file(fields.properties.get(name, []), mapping(encoding.get(name)))
            if file is not None:
                files[name] = file if name in fields.required else or_null(file)
            parts[name] = part_of(name, self._payload, self._documents, self._warn, binary=file is not None)
        patterns = {each: self._file(places, {}) for each, places in fields.patterns.items() if is_pattern(each)}
        extras = self._file(fields.extras, {})
        others = [(Schema({"pattern": each}), Part(binary=file is not None)) for each, file in patterns.items()]
        if extras is None and not any(part.binary for _, part in others):
            parts, others = {name: part for name, part in parts.items() if part != Part()}, []
        ends = [(None, Part(binary=True))] if extras is not None else []
        known = {each: file for each, file in patterns.items() if file is not None}
        return Form(
            parts=parts, others=(*others, *ends), changes=Changes(properties=files, patterns=known, extras=extras)
        )

    def read_array(self) -> Form:
        """Return how the items of a multipart array are sent: some by their position, the rest alike (3.2)."""
        node, home = self._schemas.resolve(*self._payload.schema)
        first = [Place(each, home) for each in sequence(node.get("prefixItems"))]
        count = min(max(len(first), len(self._payload.positions.value)), _MAX_POSITIONS)
        rest = [Place(node["items"], home)] if isinstance(node.get("items"), dict) else []
        files: dict[int, JSONSchema] = {}
        parts: list[Part] = []
        for index in range(count):
            given = sequence(self._payload.positions.value)[index : index + 1]
            encoding = Place(mapping(given[0]) if given else {}, self._payload.positions.document)
            part, file = self._item(f"item {index}", first[index : index + 1] or rest, encoding)
            parts.append(part)
            if file is not None and index < len(first):
                files[index] = file
        items, file = self._item("an item", rest, self._payload.items)
        return Form(positions=tuple(parts), items=items, changes=Changes(positions=files, items=file))

    def _item(self, what: str, places: list[Place], encoding: Place) -> tuple[Part, JSONSchema | None]:
        file = self._file(places, encoding.value)
        part = read_part(what, encoding, self._documents, self._warn, binary=file is not None, takes_style=False)
        return part, file

    def _file(self, places: list[Place], encoding: dict[str, Any]) -> JSONSchema | None:
        if not self._has_files or not places:
            return None
        return file_of(places, text(encoding.get("contentType")), self._schemas)


def changed(written: Written, changes: Changes, schemas: Schemas) -> Written:
    """Return an input schema with these changes; definitions that hold a changed property are written out."""
    if changes == Changes():
        return written
    schema = _Changing(changes, schemas).change(written.schema, _MAX_DEPTH)
    refs = {ref for each in objects_in(schema) if isinstance(ref := each.get("$ref"), str)}
    return Written(schema, {name for ref in refs if schemas.knows(name := ref.removeprefix(_DEFINITION))})


class _Changing:
    def __init__(self, changes: Changes, schemas: Schemas) -> None:
        self._changes = changes
        self._schemas = schemas
        self._within: list[str] = []  # definitions that are being written out
        self._left = _MAX_WRITTEN_OUT

    def change(self, schema: JSONSchema, depth: int) -> JSONSchema:
        if not isinstance(schema, dict) or not depth:
            return schema
        copy: dict[str, Any] = {}
        for keyword, value in schema.items():
            copy[keyword] = self._keyword(keyword, value, depth)
        self._drop(copy)
        return self._written_out(copy, depth)

    def _keyword(self, keyword: str, value: Any, depth: int) -> Any:
        changes = self._changes
        if keyword in _IN_PLACE:
            return [self.change(each, depth - 1) for each in cast("list[JSONSchema]", value)]
        if keyword in _CONDITIONS:
            return self.change(value, depth - 1)
        if keyword == "dependentSchemas":
            return {name: self.change(each, depth - 1) for name, each in _named(value)}
        if keyword == "properties":
            return {name: changes.properties.get(name, each) for name, each in _named(value)}
        if keyword == "patternProperties":
            return {pattern: changes.patterns.get(pattern, each) for pattern, each in _named(value)}
        if keyword in ("additionalProperties", "unevaluatedProperties") and isinstance(value, dict):
            return cast("JSONSchema", value) if changes.extras is None else changes.extras
        if keyword == "prefixItems":
            return [changes.positions.get(index, each) for index, each in enumerate(value)]
        if keyword == "items" and isinstance(value, dict):
            return cast("JSONSchema", value) if changes.items is None else changes.items
        return value

    def _drop(self, schema: dict[str, Any]) -> None:
        """Take out what the operation sets itself."""
        dropped = self._changes.dropped
        for keyword in ("properties", "dependentRequired", "dependentSchemas") if dropped else ():
            if keyword in schema:
                schema[keyword] = {name: each for name, each in schema[keyword].items() if name not in dropped}
        if dropped and "required" in schema:
            schema["required"] = [name for name in schema["required"] if name not in dropped]
        if dropped and "dependentRequired" in schema:
            needs = schema["dependentRequired"].items()
            schema["dependentRequired"] = {
                name: [each for each in names if each not in dropped] for name, names in needs
            }

    def _written_out(self, schema: dict[str, Any], depth: int) -> JSONSchema:
        name = str(schema.get("$ref", "")).removeprefix(_DEFINITION)
        if name in self._within or not self._schemas.knows(name) or not self._left:
            return schema
        self._left -= 1
        self._within.append(name)
        given = self._schemas.definition(name, "input").schema
        whole = self.change(given, depth - 1)
        self._within.pop()
        if whole == given:
            return schema
        beside = {keyword: each for keyword, each in schema.items() if keyword != "$ref"}
        return {**beside, "allOf": [*beside.get("allOf", ()), whole]} if beside else whole


def _named(schemas: Any) -> ItemsView[str, JSONSchema]:
    return cast("dict[str, JSONSchema]", schemas).items()
