"""Object schemas that are plain enough to stand beside the parameters, property by property."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from opwire.adapters.openapi.document import Document
from opwire.adapters.openapi.refs import Place
from opwire.adapters.openapi.schemas import Schemas
from opwire.adapters.openapi.shapes import mapping, sequence, texts

_SAYS_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "allOf", "$ref", "$id", "$anchor"})
_DESCRIBES = frozenset(
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
    return said <= _SAYS_OBJECT | _DESCRIBES
