"""Schemas of a document as JSON Schema 2020-12 that stands alone: what they refer to stands under `$defs`.

Each schema that is referred to is rewritten once, when it is first needed, and shared by all that need it. What is for
answers only (`readOnly`) is left out of inputs, and what is for requests only (`writeOnly`) out of outputs, so there
are two forms of each. What cannot be used is left out with a warning: a schema never costs an operation.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote

from opwire.adapters.openapi.document import Document
from opwire.adapters.openapi.keywords import lower_bounds, usable_keywords
from opwire.adapters.openapi.refs import Documents, Place, joined
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.shapes import mapping, sequence, text
from opwire.adapters.openapi.variants import MAX_BRANCHES, reference_in, tags_of, told_apart
from opwire.errors import SchemaError
from opwire.names import UniqueNames
from opwire.schema import JSONSchema
from opwire.schema.dialect import lower, map_subschemas
from opwire.typed.plain import survey

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
