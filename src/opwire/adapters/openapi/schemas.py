"""Schemas of a document as JSON Schema 2020-12 that stands alone: what they refer to stands under `$defs`.

Each schema that is referred to is rewritten once, when it is first needed, and shared by all that need it. What is for
answers only (`readOnly`) is left out of inputs, and what is for requests only (`writeOnly`) out of outputs, so there
are two forms of each. What cannot be used is left out with a warning: a schema never costs an operation.

Unions with a `discriminator`, as JSON Schema says it.

JSON Schema does not know the keyword. Variants that do not pin the tag themselves would all take the same value, and
`oneOf` then takes none. So each of them refuses the tags of the others; a tag that nobody knows decides nothing, since
documents often leave out which ones there are.

Keywords of a schema that say nothing usable: real documents hold `required: true` and `type: any`.

One such keyword would make the whole schema unusable. It is left out instead, and the rest still counts.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote

from opwire.adapters.openapi.document import Document, Documents, Place, joined, mapping, sequence, text
from opwire.adapters.report import Report
from opwire.errors import SchemaError
from opwire.names import UniqueNames
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import lower, map_subschemas
from opwire.typed.plain import survey

MAX_BRANCHES = 50
"""Variants that are told apart: each names the tags of all others."""

_MAX_TAGS = 1_000


def tags_of(branches: list[Any], meant: Mapping[str, str], refs: list[str | None]) -> list[set[str]]:
    """The tags of each branch: what the mapping says, and the name of its schema.

    `branches` are as the document gives them, `refs` are the references that they have become, and `meant` is the
    mapping with the same references.
    """
    names = [unquote(str(mapping(each).get("$ref", ""))).rpartition("/")[2] for each in branches]
    by_ref: dict[str | None, set[str]] = {}
    for tag, ref in meant.items():
        by_ref.setdefault(ref, set()).add(tag)
    own_names = [{name} if name and name not in meant else set[str]() for name in names]
    return [by_ref.get(ref, set[str]()) | own for ref, own in zip(refs, own_names, strict=True)]


def told_apart(branches: list[JSONSchema], tag: str, tags: list[set[str]]) -> list[JSONSchema]:
    """The branches, each of which refuses the tags of the others; as they are where that would be too long."""
    known = set[str]().union(*tags)
    if len(branches) > MAX_BRANCHES or len(known) > _MAX_TAGS:
        return branches
    return [_without(branch, tag, known - own) if own else branch for branch, own in zip(branches, tags, strict=True)]


def _without(branch: JSONSchema, tag: str, others: set[str]) -> JSONSchema:
    return {"allOf": [branch], "properties": {tag: {"not": {"enum": sorted(others)}}}} if others else branch


def reference_in(branch: JSONSchema) -> str | None:
    """The reference that a branch is."""
    return cast("str | None", branch.get("$ref")) if isinstance(branch, dict) else None


_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# What only describes a schema for other tools, or is said in another way once references are rewritten.
_NOT_KEPT = frozenset(
    "$anchor $comment $defs $dynamicAnchor $id $recursiveAnchor $schema $vocabulary components definitions "
    "externalDocs id xml".split()
)


def usable_keywords(schema: dict[str, Any], warn: Callable[[str], None]) -> dict[str, Any]:
    """A copy of a schema with the keywords that can be used. Schemas inside it are not looked at."""
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _NOT_KEPT or (keyword.startswith("x-") and keyword != "x-nullable"):
            continue
        if keyword == "example":
            kept.setdefault("examples", [value])
        elif (is_usable := _CHECKS.get(keyword)) is None or is_usable(value):
            tidy = _TIDY.get(keyword)
            kept[keyword] = value if tidy is None else tidy(value)
        elif not _says_nothing(keyword, value):
            warn(f"`{keyword}: {str(value)[:40]}` cannot be used")
    if kept.get("type") == "string" and "enum" in kept:  # YAML takes `1.0` for a number, and `true` for a boolean
        kept["enum"] = [each if each is None else text(each) or each for each in kept["enum"]]
    if kept.get("type") == "null":  # which needs not be allowed twice
        kept.pop("nullable", None)
        kept.pop("x-nullable", None)
    return kept


def _says_nothing(keyword: str, value: Any) -> bool:
    """An empty line of YAML, a file of Swagger 2.0, or examples as parameters have them: nobody needs to know."""
    return (
        value is None or (keyword == "type" and value == "file") or (keyword == "examples" and isinstance(value, dict))
    )


def lower_bounds(schema: dict[str, Any]) -> None:
    """Exclusive bounds that are still booleans in documents of 3.1 and later."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(flag := schema.get(exclusive), bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _types(given: Any) -> str | list[str] | None:
    if given is None:  # `type: null` in YAML
        return "null"
    if isinstance(given, str):
        lower = given.lower()
        return lower if lower in _TYPES else None
    if not isinstance(given, list):
        return None
    names = ["null" if each is None else each for each in cast("list[Any]", given)]
    usable = list(dict.fromkeys(each for each in names if isinstance(each, str) and each in _TYPES))
    return usable if usable and len(usable) == len(set(map(str, names))) else None


def _is_type(value: Any) -> bool:
    return _types(value) is not None


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_schemas(value: Any) -> bool:
    return _is_filled_list(value) and all(map(_is_schema, value))


def _is_items(value: Any) -> bool:
    return _is_schema(value) or _are_schemas(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, cast("list[Any]", value)))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | float)  # of 3.0, the exclusive ones are booleans


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and bool(cast("list[Any]", value))


def _is_pattern(value: Any) -> bool:
    return isinstance(value, str) and is_pattern(value)


def _are_patterns(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_pattern, cast("dict[str, Any]", value)))


@lru_cache(maxsize=4096)
def is_pattern(text: str) -> bool:
    """Whether the engine that checks values can read a pattern."""
    try:
        Schema({"pattern": text}).compile()
    except SchemaError:
        return False
    return True


def _without_doubles(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _named_schemas(schemas: dict[str, Any]) -> dict[str, Any]:
    """What is no schema takes anything."""
    return {name: each if _is_schema(each) else True for name, each in schemas.items()}


_TIDY: dict[str, Callable[[Any], Any]] = {
    "required": _without_doubles,
    "type": _types,
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _named_schemas),
}

_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys("additionalItems additionalProperties contains contentSchema else if not".split(), _is_schema),
    **dict.fromkeys("propertyNames then unevaluatedItems unevaluatedProperties".split(), _is_schema),
    **dict.fromkeys("allOf anyOf oneOf prefixItems".split(), _are_schemas),
    **dict.fromkeys("properties dependencies dependentRequired dependentSchemas".split(), _is_mapping),
    **dict.fromkeys("title description format contentEncoding contentMediaType $ref $dynamicRef".split(), _is_text),
    **dict.fromkeys("minimum maximum".split(), _is_number),
    **dict.fromkeys("exclusiveMinimum exclusiveMaximum".split(), _is_bound),
    **dict.fromkeys("minLength maxLength minItems maxItems minProperties maxProperties".split(), _is_count),
    **dict.fromkeys("minContains maxContains".split(), _is_count),
    **dict.fromkeys("nullable x-nullable deprecated readOnly writeOnly uniqueItems".split(), _is_flag),
    "enum": _is_filled_list,
    "examples": _is_list,
    "items": _is_items,
    "multipleOf": _is_positive,
    "pattern": _is_pattern,
    "patternProperties": _are_patterns,
    "required": _are_texts,
    "type": _is_type,
}


Direction = Literal["input", "output"]

_HIDDEN: dict[Direction, str] = {"input": "readOnly", "output": "writeOnly"}
_UNUSUAL = re.compile(r"[^0-9A-Za-z._-]+")
_MAX_PARTS = 50  # of one schema, through `allOf`: every one of them looks at the others
_USUAL_PLACES = ("#/components/schemas/", "#/definitions/")


class Written(NamedTuple):
    """A rewritten schema, and the names of the definitions that it uses itself."""

    schema: JSONSchema
    uses: set[str]


class Schemas:
    """The schemas of a document, rewritten when they are asked for."""

    def __init__(self, documents: Documents, report: Report) -> None:
        self._documents = documents
        self._report = report
        self.hides_siblings = documents.version in ("2.0", "3.0")
        self._places: dict[str, Place] = {}  # by the name of a definition
        self._names: dict[
            int | str, str
        ] = {}  # by the identity of what is defined: two references may be spelt differently
        self._free = UniqueNames()
        self._definitions: dict[tuple[str, Direction], Written] = {}

    def read(self, schema: Any, document: Document, direction: Direction, where: str) -> Written:
        """A schema in 2020-12. Its references point at `$defs`, which `complete` adds. `where` is for the warnings."""
        writing = _Writing(self, direction, where)
        try:
            written = writing.write(schema, document)
            written = lower(written, "openapi-3.0") if self.hides_siblings else written
            if not survey(written).deep:  # else the compiler refuses it
                return Written(written, writing.uses)
        except (RecursionError, SchemaError):
            pass
        self._report.warn(f"{where}: the schema is nested too deeply to be used")
        return Written(True, set())

    def complete(self, schema: JSONSchema, uses: Iterable[str], direction: Direction) -> JSONSchema:
        """The schema with the definitions that it uses, through however many steps, and no others.

        What is nothing but a reference becomes what it refers to: many readers look for `type` at the root.
        """
        while isinstance(schema, dict) and schema.keys() == {"$ref"}:
            schema, uses = self.definition(schema["$ref"].removeprefix("#/$defs/"), direction)
        if not isinstance(schema, dict):
            return schema
        needed: dict[str, JSONSchema] = {}
        waiting = list(uses)
        while waiting:
            name = waiting.pop()
            if name not in needed:
                definition = self.definition(name, direction)
                needed[name] = definition.schema
                waiting.extend(definition.uses)
        return {**schema, "$defs": {name: needed[name] for name in sorted(needed)}} if needed else schema

    def resolve(self, schema: Any, document: Document) -> Place:
        """A schema, or what it refers to. Anything at all where that cannot be found: `read` has the warning."""
        try:
            place = self._documents.follow(schema, document)
        except SchemaError:
            return Place({}, document)
        return place if isinstance(place.value, dict) else Place({}, document)

    def name_of(self, ref: str, document: Document) -> str:
        """The name of the definition that a reference points at.

        Raises:
            SchemaError: it points at nothing, or at no schema, or in a circle.
        """
        target = self._documents.resolve(ref, document)
        is_schema = isinstance(target.value, dict | bool)
        if not is_schema:
            raise SchemaError(f"the reference {ref!r:.200} points at something that is not a schema")
        self._documents.follow(*target)
        key = ref if isinstance(target.value, bool) else id(target.value)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._free.take(_short_name(ref))
            self._places[name] = target
        return name

    def knows(self, name: str) -> bool:
        """Return whether there is a definition of this name."""
        return name in self._places

    def known_name(self, schema: dict[str, Any]) -> str | None:
        """The name of a definition that is referred to."""
        return self._names.get(id(schema))

    def definition(self, name: str, direction: Direction) -> Written:
        """Return a definition by its name, rewritten."""
        known = self._definitions.get((name, direction))
        if known is None:
            known = self.read(*self._places[name], direction, f"the schema {name!r}")
            self._definitions[name, direction] = known
        return known

    def is_hidden(self, schema: Any, document: Document, direction: Direction) -> bool:
        """Whether a property is only for the other direction."""
        if not isinstance(schema, dict):
            return False
        flag = _HIDDEN[direction]
        own = cast("dict[str, Any]", schema)
        if own.get(flag) is True and not (self.hides_siblings and "$ref" in own):
            return True
        return "$ref" in own and self.resolve(own, document).value.get(flag) is True

    def hidden_properties(self, schema: Any, document: Document, direction: Direction) -> set[str]:
        """The names of the properties that are only for the other direction, also those of `allOf`."""
        return {
            name
            for node, home in self.parts(schema, document)
            for name, each in mapping(node.get("properties")).items()
            if self.is_hidden(each, home, direction)
        }

    def pins(self, schema: Any, document: Document, tag: str) -> bool:
        """Whether a property can only have values that the schema lists."""
        found = [
            self.resolve(properties[tag], home).value
            for node, home in self.parts(schema, document)
            if tag in (properties := mapping(node.get("properties")))
        ]
        return any("const" in each or "enum" in each for each in found)

    def parts(self, schema: Any, document: Document) -> Iterator[Place]:
        """The schema and those of its `allOf`, through however many references."""
        waiting: list[Place] = [Place(schema, document)]
        seen: set[int] = set()
        while waiting and len(seen) < _MAX_PARTS:
            place = self.resolve(*waiting.pop())
            if id(place.value) not in seen:
                seen.add(id(place.value))
                yield place
                waiting.extend(Place(each, place.document) for each in sequence(place.value.get("allOf")))

    def dynamic_target(self, ref: str, document: Document) -> str | None:
        """The definition of a dynamic reference, where it can have only one target."""
        anchored = self._documents.single_dynamic_anchor(ref.removeprefix("#"), document)
        return None if anchored is None else self.name_of(ref, document)

    def warn(self, warning: str) -> None:
        """Say it in the report."""
        self._report.warn(warning)


class _Writing:
    """One schema being rewritten."""

    def __init__(self, schemas: Schemas, direction: Direction, where: str) -> None:
        self._schemas = schemas
        self._direction: Direction = direction
        self._where = where
        self.uses: set[str] = set()
        self._recursive: dict[str, Any] = {}  # what `$recursiveRef` means here

    def write(self, schema: Any, document: Document, hidden: frozenset[str] = frozenset()) -> JSONSchema:
        """The schema, rewritten. `hidden` are properties that the schema hides of which it is a part."""
        if isinstance(schema, bool):
            return schema
        if isinstance(schema, dict):
            return self._write_object(cast("dict[str, Any]", schema), document, hidden)
        if schema is not None:
            self._warn(f"a schema is an object, not {type(schema).__name__}")
        return True

    def _write_object(self, given: dict[str, Any], document: Document, hidden: frozenset[str]) -> JSONSchema:
        if isinstance(own := given.get("$id"), str) and not self._schemas.hides_siblings:
            document = Document(given, joined(document.uri, own))
        if given.get("$recursiveAnchor") is True:
            self._recursive = given
        kept = usable_keywords(given, self._warn)
        if not self._schemas.hides_siblings:
            lower_bounds(kept)
        self._write_references(kept, document)
        self._write_discriminator(kept, document)
        if not {"properties", "required", "allOf"}.isdisjoint(kept):
            hidden |= self._schemas.hidden_properties(given, document, self._direction)
            _hide(kept, hidden)
        same = {keyword: kept.pop(keyword) for keyword in ("allOf", "then", "else") if keyword in kept}
        written = map_subschemas(kept, lambda each: self.write(each, document))
        written |= map_subschemas(same, lambda each: self.write(each, document, hidden))
        self._tell_apart(written, given, document)
        if isinstance(written.get("items"), list) and not self._schemas.hides_siblings:
            written["prefixItems"] = written.pop("items")
        return written

    def _write_references(self, schema: dict[str, Any], document: Document) -> None:
        ref = schema.pop("$ref", None)
        if ref is not None:
            if self._schemas.hides_siblings:
                schema.clear()
            try:
                self._refer(schema, self._schemas.name_of(ref, document))
            except SchemaError as error:
                self._warn(str(error))
        dynamic = schema.pop("$dynamicRef", None)
        if dynamic is not None:
            name = self._schemas.dynamic_target(dynamic, document)
            if name is None:
                self._warn(f"the dynamic reference {dynamic!r:.200} has no single target")
            elif "$ref" not in schema:
                self._refer(schema, name)
        if schema.pop("$recursiveRef", None) is not None and (name := self._schemas.known_name(self._recursive)):
            self._refer(schema, name)

    def _refer(self, schema: dict[str, Any], name: str) -> None:
        schema["$ref"] = f"#/$defs/{name}"
        self.uses.add(name)

    def _write_discriminator(self, schema: dict[str, Any], document: Document) -> None:
        """`fit` chooses a variant by the name at the end of its reference: the mapping has to use the same names."""
        discriminator = schema.get("discriminator")
        if not isinstance(discriminator, dict):
            schema.pop("discriminator", None)
            return
        fields = cast("dict[str, Any]", discriminator)
        variants = {tag: self._variant(str(each), document) for tag, each in mapping(fields.get("mapping")).items()}
        schema["discriminator"] = {**fields, "mapping": variants} if variants else fields

    def _tell_apart(self, schema: dict[str, Any], given: dict[str, Any], document: Document) -> None:
        union = next((each for each in ("oneOf", "anyOf") if each in schema), None)
        if union is None:
            return
        discriminator = mapping(schema.get("discriminator")) or self._inherited(given[union], document)
        tag = text(discriminator.get("propertyName"))
        if not tag or all(self._schemas.pins(each, document, tag) for each in given[union]):
            return
        branches = schema.pop(union)
        tags = tags_of(given[union], mapping(discriminator.get("mapping")), [reference_in(each) for each in branches])
        schema["oneOf" if "anyOf" in schema else "anyOf"] = told_apart(branches, tag, tags)

    def _inherited(self, branches: list[Any], document: Document) -> dict[str, Any]:
        """The discriminator that all branches of a union have from what they extend; {} if there is none."""
        variants: dict[str, str] = {}
        tags: set[str] = set()
        read = set[int]()  # most often all branches extend the same one
        for branch in branches:
            parts = self._schemas.parts(branch, document)
            found = next((each for each in parts if "discriminator" in each.value), Place({}, document))
            fields = mapping(found.value.get("discriminator"))
            tags.add(text(fields.get("propertyName")))
            if id(fields) in read or len(branches) > MAX_BRANCHES:  # so many are not told apart by their tags
                continue
            read.add(id(fields))
            variants |= {
                tag: self._variant(str(each), found.document) for tag, each in mapping(fields.get("mapping")).items()
            }
        return {"propertyName": tags.pop(), "mapping": variants} if len(tags) == 1 else {}

    def _variant(self, given: str, document: Document) -> str:
        named = [place + given for place in _USUAL_PLACES]
        for ref in (given, *named) if "/" in given else (*named, given):
            try:
                return f"#/$defs/{self._schemas.name_of(ref, document)}"
            except SchemaError:
                continue
        return given

    def _warn(self, warning: str) -> None:
        self._schemas.warn(f"{self._where}: {warning}")


def _hide(schema: dict[str, Any], hidden: Collection[str]) -> None:
    if hidden and "properties" in schema:
        schema["properties"] = {name: each for name, each in schema["properties"].items() if name not in hidden}
    if hidden and "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in hidden]
    if hidden and "dependentRequired" in schema:
        needed = schema["dependentRequired"].items()
        schema["dependentRequired"] = {
            name: [each for each in sequence(names) if each not in hidden] for name, names in needed
        }


def _short_name(ref: str) -> str:
    """The last step of a reference, or the name of the file: it becomes the name of a definition."""
    last = ref.rstrip("/#").rpartition("/")[2] or "schema"
    return _UNUSUAL.sub("_", unquote(last).removesuffix(".json").removesuffix(".yaml")) or "schema"
