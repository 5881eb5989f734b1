"""The body of a request as the document gives it: its content type, its schema, and how a form's fields are sent.

Object schemas that are plain enough to stand beside the parameters, property by property.

How the fields of a form are sent, whatever its schema looks like: in variants, conditions and patterns too.

A schema that is not plain cannot be taken apart, so its value stands whole in the input. Its fields are still files or
text, and have their `encoding`. `Changes` puts what the caller has to give for a file into the schema, and takes out
what the operation sets itself.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping
from typing import Any, NamedTuple, cast

from msgspec import Struct

from opwire.adapters.openapi.bodies import FILE_SCHEMA, text_of
from opwire.adapters.openapi.document import Document, Documents, Place, mapping, objects_in, sequence, text, texts
from opwire.adapters.openapi.endpoints import (
    Endpoint,
    contents,
    is_any,
    is_form,
    is_json,
    is_multipart,
    is_text,
    offered,
    parameters_of,
    preferred,
    request_body,
    stream_kind,
    swagger_schema,
    swagger_style,
)
from opwire.adapters.openapi.plan import Part, Style, media_type
from opwire.adapters.openapi.schemas import Schemas, Written, is_pattern
from opwire.errors import SchemaError
from opwire.schema import JSONSchema, Schema

_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_DESCRIBES = frozenset({"default", "deprecated", "description", "examples", "title"})
_IN_WAY = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "not", "oneOf"})  # what could refuse null by itself
_DEPTH = 3  # of unions and arrays in which a file is looked for


class Payload(NamedTuple):
    """The body of a request."""

    content_type: str
    schema: Place
    required: bool
    description: str
    encoding: Place  # of a form: how its fields are sent, by name
    styles: dict[str, Part]  # the same, as Swagger 2.0 says it
    positions: Place  # of a multipart array: how its first items are sent (3.2)
    items: Place  # how the others are

    @property
    def is_form(self) -> bool:
        return is_form(self.content_type)

    @property
    def is_text(self) -> bool:
        return is_text(self.content_type)


def read_payload(endpoint: Endpoint, documents: Documents) -> Payload | None:
    """The body of an operation, in the one of its content types that is sent.

    Raises:
        SchemaError: it cannot be used.
    """
    if documents.version == "2.0":
        return _from_swagger(endpoint, documents)
    body = request_body(endpoint, documents)
    if body is None:
        return None
    offers = contents(body, documents)
    chosen = preferred(offers)
    if chosen is None:
        return None
    patches = [each for each in offers if media_type(each.content_type).name == _MERGE_PATCH]
    if patches and media_type(chosen.content_type).name == _JSON_PATCH:
        chosen = patches[0]
    fields, home = chosen.fields
    return Payload(
        content_type=chosen.content_type,
        schema=Place(_whole(fields, chosen.content_type), home),
        required=body.value.get("required") is True,
        description=text(body.value.get("description")).strip(),
        encoding=Place(mapping(fields.get("encoding")), home),
        styles={},
        positions=Place(sequence(fields.get("prefixEncoding")), home),
        items=Place(mapping(fields.get("itemEncoding")), home),
    )


def _whole(fields: dict[str, Any], content_type: str) -> Any:
    if "schema" not in fields and "itemSchema" in fields and stream_kind(content_type):
        return {"type": "array", "items": fields["itemSchema"]}
    return fields.get("schema", {})


def _from_swagger(endpoint: Endpoint, documents: Documents) -> Payload | None:
    given = parameters_of(endpoint, documents)
    consumes = offered(endpoint, documents, "consumes")
    for place in given:
        if place.value["in"] == "body":
            return Payload(
                content_type=_consumed(consumes),
                schema=Place(place.value.get("schema", {}), place.document),
                required=place.value.get("required") is True,
                description=text(place.value.get("description")).strip(),
                encoding=Place({}, place.document),
                styles={},
                positions=Place([], place.document),
                items=Place({}, place.document),
            )
    fields = [place for place in given if place.value["in"] == "formData"]
    return _swagger_form(fields, consumes) if fields else None


def _consumed(consumes: list[str]) -> str:
    for wanted in ("application/json", _MERGE_PATCH):
        if found := [each for each in consumes if media_type(each).name == wanted]:
            return found[0]
    relatives = [each for each in consumes if is_json(each)]
    return relatives[0] if relatives else consumes[0]


def _swagger_form(fields: list[Place], consumes: list[str]) -> Payload:
    kinds = [media_type(each).name for each in consumes]
    has_file = any(each.value.get("type") == "file" for each in fields)
    multipart = has_file or (_MULTIPART in kinds and _FORM not in kinds)
    properties: dict[str, Any] = {}
    styles: dict[str, Part] = {}
    for place in fields:
        name = place.value["name"]
        schema = swagger_schema(place).value
        properties[name] = (
            {**schema, "description": place.value["description"]} if "description" in place.value else schema
        )
        if place.value.get("type") == "array":
            style, explode = swagger_style(place.value)
            styles[name] = Part(style=style or "form", explode=explode)
    required = [each.value["name"] for each in fields if each.value.get("required") is True]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    home = fields[0].document
    content_type = _MULTIPART if multipart else _FORM
    nothing = Place({}, home)
    return Payload(content_type, Place(schema, home), bool(required), "", nothing, styles, Place([], home), nothing)


# --- files ----------------------------------------------------------------------------------------------------------


def is_binary_body(payload: Payload, schemas: Schemas) -> bool:
    """Whether the whole body is bytes."""
    kind = media_type(payload.content_type).name
    if payload.is_form or payload.is_text or is_json(kind) or is_multipart(kind) or stream_kind(kind):
        return False
    if is_any(kind):
        return _is_binary(schemas.resolve(*payload.schema).value)
    return True


def file_of(places: list[Place], content_type: str, schemas: Schemas) -> JSONSchema | None:
    """Return the schema of a field that several schemas describe, if it is a file; None otherwise.

    One that says so is enough. Schemas that say nothing at all count only where there are no others.
    """
    telling = [each for each in places if schemas.resolve(*each).value]
    found = (file_schema(each, content_type, schemas) for each in telling or places[:1])
    return next((each for each in found if each is not None), None)


def file_schema(schema: Place, content_type: str, schemas: Schemas, depth: int = 0) -> JSONSchema | None:
    """The schema of a field that is a file, or several, or may be one; None if it is none.

    `content_type` is what the form's `encoding` says of the field, or "".
    """
    node, home = schemas.resolve(*schema)
    said = {key: node[key] for key in ("description", "title", "deprecated") if key in node}
    anything = not node and not schemas.hides_siblings  # since 3.1, what has no type is bytes
    if anything or _is_binary(node) or (_is_string(node) and _is_binary_type(content_type)):
        whole: JSONSchema = {**FILE_SCHEMA, **said}
        return or_null(whole) if _is_nullable(node) else whole
    if depth > _DEPTH:
        return None
    if node.get("type") == "array":
        items = file_schema(Place(node.get("items"), home), content_type, schemas, depth + 1)
        return None if items is None else {"type": "array", "items": items, **said}
    for union in ("anyOf", "oneOf"):
        branches = [
            file_schema(Place(each, home), content_type, schemas, depth + 1) for each in sequence(node.get(union))
        ]
        files = [each for each in branches if each is not None]
        if files:
            none = [schemas.resolve(each, home).value.get("type") == "null" for each in sequence(node.get(union))]
            return {"anyOf": [*files, *([{"type": "null"}] if any(none) else [])], **said}
    return None


def or_null(schema: JSONSchema) -> JSONSchema:
    """The schema of what may be left out: None is how Python says so, and it is not sent."""
    if not isinstance(schema, dict) or not schema:
        return schema
    kinds = schema.get("type")
    if isinstance(kinds, str) and _IN_WAY.isdisjoint(schema):
        return {**schema, "type": kinds if kinds == "null" else [kinds, "null"]}
    outside = {key: each for key, each in schema.items() if key in _DESCRIBES}
    inside = {key: each for key, each in schema.items() if key not in _DESCRIBES}
    variants = inside["anyOf"] if inside.keys() == {"anyOf"} else [inside]
    null = {"type": "null"}
    return {"anyOf": variants if null in variants else [*variants, null], **outside}


def _is_nullable(node: dict[str, Any]) -> bool:
    kinds = node.get("type")
    return (
        node.get("nullable") is True or node.get("x-nullable") is True or (isinstance(kinds, list) and "null" in kinds)
    )


def _is_string(node: dict[str, Any]) -> bool:
    """Whether a schema takes text, and nothing else but null."""
    kinds = node.get("type", "string")
    named = {str(each) for each in (sequence(kinds) if isinstance(kinds, list) else (kinds,))}
    return "string" in named and named <= {"string", "null"}


def _is_binary(node: dict[str, Any]) -> bool:
    if node.get("type") == "file":
        return True
    if not _is_string(node) or "contentEncoding" in node:
        return False
    return node.get("format") == "binary" or _is_binary_type(text(node.get("contentMediaType")))


def _is_binary_type(content_type: str) -> bool:
    first = media_type(content_type.partition(",")[0]).name
    return bool(first) and not (is_text(first) or is_json(first) or is_form(first) or first == "*/*")


def part_of(name: str, payload: Payload, documents: Documents, warn: Callable[[str], None], *, binary: bool) -> Part:
    """Return how a field is sent."""
    fields = Place(mapping(payload.encoding.value.get(name)), payload.encoding.document)
    # In 3.0 a style counts in forms without parts only.
    takes_style = not (documents.version == "3.0" and is_multipart(payload.content_type))
    styled = payload.styles.get(name)
    return styled or read_part(f"the field {name!r}", fields, documents, warn, binary=binary, takes_style=takes_style)


def read_part(
    what: str,
    encoding: Place,
    documents: Documents,
    warn: Callable[[str], None],
    *,
    binary: bool = False,
    takes_style: bool = True,
) -> Part:
    """Return how a field or an item is sent, as an Encoding Object says it; `what` is for the warnings."""
    fields = mapping(encoding.value)
    style, explode = text(fields.get("style")), fields.get("explode")
    styled = takes_style and bool(style or isinstance(explode, bool) or "allowReserved" in fields)
    style = style or "form"
    return Part(
        content_type=text(fields.get("contentType")) or None,
        style=cast("Style", style) if styled else None,
        explode=explode if isinstance(explode, bool) else style in ("form", "deepObject"),
        allow_reserved=fields.get("allowReserved") is True,
        headers=_known_headers(what, encoding, documents, warn),
        binary=binary,
    )


def _known_headers(what: str, encoding: Place, documents: Documents, warn: Callable[[str], None]) -> dict[str, str]:
    """Return the headers of a part whose value the document gives: the only one, or the default of a required one."""
    found: dict[str, str] = {}
    for name, given in mapping(encoding.value.get("headers")).items():
        try:
            header = mapping(documents.follow(given, encoding.document).value)
            schema = mapping(documents.follow(header.get("schema", header), encoding.document).value)
        except SchemaError:
            continue
        is_required = header.get("required") is True
        choices = [schema["const"]] if "const" in schema else sequence(schema.get("enum"))
        if len(choices) != 1 and is_required and "default" in schema:
            choices = [schema["default"]]
        if name.lower() == "content-type":  # the part has it from `contentType`
            continue
        if len(choices) == 1:
            found[name] = text_of(choices[0])
        elif is_required:
            warn(f"{what} needs the header {name!r}, for which the document has no value: it is not sent")
    return found


_SAYS_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "allOf", "$ref", "$id", "$anchor"})
_NOT_CONSTRAINTS = frozenset(
    "$comment $defs $schema default definitions deprecated description discriminator example examples externalDocs "
    "nullable readOnly title writeOnly xml".split()
)
_MAX_PARTS = 50  # of one schema, through `allOf`
_MAX_FIELDS_PARTS = 500  # of one schema, through all that can declare a property
_EXTRAS = ("additionalProperties", "unevaluatedProperties")
_ONE, _MANY = ("then", "else", "if"), ("allOf", "anyOf", "oneOf")


class PlainObject(NamedTuple):
    """The properties of an object; several schemas of one name count all. `extras` is None where nothing is said."""

    properties: dict[str, list[Place]]
    required: list[str]
    extras: Place | None


class Fields(NamedTuple):
    """The properties that an object may have, wherever its schema declares them: in variants and conditions too."""

    properties: dict[str, list[Place]]
    patterns: dict[str, list[Place]]
    extras: list[Place]
    required: set[str]


def fields_of(schema: Any, document: Document, schemas: Schemas) -> Fields:
    """Return every property that a schema knows of. What it demands of them together does not matter here."""
    fields = Fields({}, {}, [], set())
    waiting, seen = [Place(schema, document)], set[int]()
    while waiting and len(seen) < _MAX_FIELDS_PARTS:
        given = waiting.pop()
        node, home = schemas.resolve(*given)
        if "$ref" in mapping(given.value) and not schemas.hides_siblings and len(given.value) > 1:
            waiting.append(Place({key: each for key, each in given.value.items() if key != "$ref"}, given.document))
        if id(node) in seen:
            continue
        seen.add(id(node))
        for name, each in mapping(node.get("properties")).items():
            fields.properties.setdefault(name, []).append(Place(each, home))
        for pattern, each in mapping(node.get("patternProperties")).items():
            fields.patterns.setdefault(pattern, []).append(Place(each, home))
        fields.extras.extend(Place(node[key], home) for key in _EXTRAS if isinstance(node.get(key), dict))
        fields.required.update(texts(node.get("required")))
        below = [node[key] for key in _ONE if key in node]
        below += [each for key in _MANY for each in sequence(node.get(key))]
        below += mapping(node.get("dependentSchemas")).values()
        waiting.extend(Place(each, home) for each in reversed(below))
    return fields


def plain_object(schema: Any, document: Document, schemas: Schemas) -> PlainObject | None:
    """What an object schema declares, if that is all that it says; None otherwise.

    It may be a reference, and may be put together by `allOf`. It has properties, or says that there are none at all.
    It is not null, and has no unions, conditions, patterns or counts of properties: those would not survive being
    taken apart.
    """
    properties: dict[str, list[Place]] = {}
    required: dict[str, None] = {}
    extras: Place | None = None
    for node, home in _parts(Place(schema, document), schemas):
        if not _is_plain(node):
            return None
        for name, each in mapping(node.get("properties")).items():
            found = properties.setdefault(name, [])
            if all(known.value != each for known in found):
                found.append(Place(each, home))
        required |= dict.fromkeys(texts(node.get("required")))
        if isinstance(said := node.get("additionalProperties"), dict | bool):
            if "allOf" in node or extras is not None or node is not schemas.resolve(schema, document).value:
                return None  # what counts as extra would change
            extras = Place(said, home)
    closed = extras is not None and extras.value is False  # then there is nothing in it at all, and that is plain too
    return PlainObject(properties, list(required), extras) if properties or closed else None


def _parts(whole: Place, schemas: Schemas) -> Iterator[Place]:
    """The schema and all that it is put together of; an unusable one where there are too many."""
    waiting = [whole]
    for count, each in enumerate(waiting):  # grows while it is read
        if count > _MAX_PARTS:
            yield Place({"not": {}}, each.document)
            return
        node = schemas.resolve(*each)
        yield node
        if "$ref" in mapping(each.value) and not schemas.hides_siblings and len(each.value) > 1:
            siblings = {key: value for key, value in each.value.items() if key != "$ref"}
            waiting.append(Place(siblings, each.document))
        waiting.extend(Place(part, node.document) for part in sequence(node.value.get("allOf")))


def _is_plain(node: dict[str, Any]) -> bool:
    if node.get("type", "object") not in ("object", ["object"]) or node.get("nullable") is True:
        return False
    said = {key for key in node if not key.startswith("x-")}
    return said <= _SAYS_OBJECT | _NOT_CONSTRAINTS


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
