"""Schemas of a document, rewritten as self-contained JSON Schema 2020-12: the targets of references go under `$defs`.

Each definition is rewritten once, lazily, and shared. `readOnly` properties are removed from inputs and `writeOnly`
ones from outputs, so there are two forms of each definition. A schema never makes an operation unusable: an invalid
keyword, such as `required: true` or `type: any`, is dropped with a warning, and the rest of the schema still applies.

JSON Schema has no `discriminator`. Variants that do not restrict the tag themselves would all accept the same value,
which `oneOf` rejects. So each variant rejects the tags of the others; an unknown tag selects nothing, since documents
often omit some of them.

Documents contradict themselves, and their APIs do not mind. So inputs are relaxed, unless that is turned off: `oneOf`
is `anyOf`, because variants often overlap, and `additionalProperties` beside `allOf` or a union, or in one of several
members of `allOf`, is dropped: it would apply to the properties of the others.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote

from opwire.errors import SchemaError
from opwire.names import UniqueNames
from opwire.openapi.client.document import DocumentSet, Located, SourceDocument, as_text, join_uri
from opwire.openapi.client.xml_text import XMLMembers, XMLNode, XMLRoot, is_xml_name
from opwire.registry.source import Report
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import lower, lower_bounds, map_subschemas
from opwire.schema.schema import SchemaFamily
from opwire.typed.plain import as_dict, as_list, survey

MAX_COMPOSED_SCHEMAS = 50
"""Schemas that one schema is composed of, through `allOf`: each of them may be compared with the others."""

MAX_BRANCHES = 50
"""Variants that are discriminated by their tags: each lists the tags of all others."""

Direction = Literal["input", "output"]

_HIDDEN: dict[Direction, str] = {"input": "readOnly", "output": "writeOnly"}
_UNUSUAL = re.compile(r"[^0-9A-Za-z._-]+")
_MAX_TAGS_PER_UNION = 1_000
_MAX_TAGS_PER_DOCUMENT = 500_000  # many unions may share one discriminator with 1,000 tags
_DEFINITION = "#/$defs/"
_USUAL_PREFIXES = ("#/components/schemas/", "#/definitions/")


class RewrittenSchema(NamedTuple):
    """A rewritten schema, and the names of the definitions that it refers to directly."""

    schema: JSONSchema
    uses: set[str]


class SchemaRewriter:
    """Rewrites the schemas of a document on demand."""

    def __init__(self, documents: DocumentSet, report: Report, *, relax_inputs: bool = False) -> None:
        self._documents = documents
        self._report = report
        self.relaxes_inputs = relax_inputs
        self.hides_siblings = documents.version in ("2.0", "3.0")  # keywords beside `$ref` are ignored
        self._located: dict[str, Located] = {}  # by the name of a definition
        # Names by the identity of the definition: two references may spell it differently.
        self._names: dict[int | str, str] = {}
        self._free = UniqueNames()
        self._definitions: dict[tuple[str, Direction], RewrittenSchema] = {}
        self._open: dict[str, str] = {}
        self._xml: dict[int, XMLNode] = {}  # by the identity of a schema
        self._tags_left = _MAX_TAGS_PER_DOCUMENT
        # What is read once, by the identity of a discriminator or schema, which is kept: its identity stays its own.
        self._variants: dict[int, tuple[Any, dict[str, str], set[str]]] = {}
        self._own_hidden: dict[tuple[int, Direction], tuple[Any, set[str]]] = {}
        self._shared: dict[tuple[int, Direction], tuple[Any, RewrittenSchema]] = {}
        self.outputs = SchemaFamily()

    def read(self, schema: Any, document: SourceDocument, direction: Direction, where: str) -> RewrittenSchema:
        """Rewrite a schema. Its references point to `$defs`, which `complete` adds. `where` prefixes warnings."""
        rewriting = _Rewriting(self, direction, lambda warning: self._report.warn(f"{where}: {warning}"))
        with suppress(RecursionError, SchemaError):
            schema = rewriting.rewrite(schema, document)
            schema = lower(schema, "openapi-3.0") if self.hides_siblings else schema
            if not survey(schema).deep:  # the compiler would reject it
                return RewrittenSchema(schema, rewriting.uses)
        self._report.warn(f"{where}: the schema is nested too deeply, it is ignored")
        return RewrittenSchema(True, set())

    def read_shared(self, schema: Any, document: SourceDocument, direction: Direction, where: str) -> RewrittenSchema:
        """Rewrite a schema that several operations may share, once; the result must not be changed."""
        key = (id(schema), direction)
        if key not in self._shared:
            self._shared[key] = schema, self.read(schema, document, direction, where)
        return self._shared[key][1]

    def complete(self, rewritten: RewrittenSchema, direction: Direction) -> JSONSchema:
        """Return the schema with the definitions that it refers to, directly or indirectly.

        A schema that is only a reference is replaced by its target: many readers look for `type` at the root.
        """
        schema, uses = rewritten
        while isinstance(schema, dict) and schema.keys() == {"$ref"}:
            schema, uses = self.definition(schema["$ref"].removeprefix(_DEFINITION), direction)
        if not isinstance(schema, dict):
            return schema
        needed: dict[str, JSONSchema] = {}
        queue = list(uses)
        while queue:
            name = queue.pop()
            if name not in needed:
                needed[name], used = self.definition(name, direction)
                queue.extend(used)
        return {**schema, "$defs": {name: needed[name] for name in sorted(needed)}} if needed else schema

    def resolve(self, schema: Any, document: SourceDocument) -> Located:
        """Return a schema, or the target of its reference; {} if that is missing, which `read` warns of."""
        return self._documents.find_object(schema, document)

    def name_of(self, ref: str, document: SourceDocument) -> str:
        """Return the name of the definition that a reference points to.

        Raises:
            SchemaError: the target is missing, not a schema, or part of a cycle of references.
        """
        target = self._documents.resolve(ref, document)
        if not _is_schema(target.value):
            raise SchemaError(f"the target of the reference {ref!r:.200} is not a schema")
        self._documents.follow(*target)
        key = ref if isinstance(target.value, bool) else id(target.value)
        name = self._names.get(key)
        if name is None:
            last = unquote(ref.rstrip("/#").rpartition("/")[2] or "schema")  # the last step, or the name of the file
            short = _UNUSUAL.sub("_", last.removesuffix(".json").removesuffix(".yaml"))
            name = self._names[key] = self._free.take(short or "schema")
            self._located[name] = target
        return name

    def is_definition(self, name: str) -> bool:
        """Return whether a definition has this name."""
        return name in self._located

    def known_name(self, schema: dict[str, Any]) -> str | None:
        """Return the name of a definition that has been referred to."""
        return self._names.get(id(schema))

    def definition(self, name: str, direction: Direction) -> RewrittenSchema:
        """Return a definition by name, rewritten."""
        cached_definition = self._definitions.get((name, direction))
        if cached_definition is None:
            cached_definition = self.read(*self._located[name], direction, f"the schema {name!r}")
            self._definitions[name, direction] = cached_definition
        return cached_definition

    def without_closing(self, name: str) -> str:
        """Return the name of a definition that is the same, but allows any additional properties."""
        if name not in self._open:
            node, home = self.resolve(*self._located[name])
            if node.get("additionalProperties", True) is True:
                return name
            self._open[name] = self._free.take(f"{name}_open")
            open_node = {keyword: value for keyword, value in node.items() if keyword != "additionalProperties"}
            self._located[self._open[name]] = Located(open_node, home)
        return self._open[name]

    def is_hidden(self, schema: Any, document: SourceDocument, direction: Direction) -> bool:
        """Return whether a property is only for the other direction."""
        flag, fields = _HIDDEN[direction], as_dict(schema)
        if fields.get(flag) is True and not (self.hides_siblings and "$ref" in fields):
            return True
        return "$ref" in fields and self.resolve(fields, document).value.get(flag) is True

    def hidden_properties(self, schema: Any, document: SourceDocument, direction: Direction) -> set[str]:
        """Return the properties that are only for the other direction, including those of `allOf`."""
        hidden: set[str] = set()
        for node, home in self.parts(schema, document):
            key = (id(node), direction)
            if key not in self._own_hidden:  # thousands of schemas may extend one
                properties = as_dict(node.get("properties")).items()
                names = {
                    name for name, property_schema in properties if self.is_hidden(property_schema, home, direction)
                }
                self._own_hidden[key] = node, names
            hidden |= self._own_hidden[key][1]
        return hidden

    def restricts(self, schema: Any, document: SourceDocument, tag: str) -> bool:
        """Return whether a schema lists the values of a property."""
        tag_schemas = [
            self.resolve(properties[tag], home).value
            for node, home in self.parts(schema, document)
            if tag in (properties := as_dict(node.get("properties")))
        ]
        return any("const" in tag_schema or "enum" in tag_schema for tag_schema in tag_schemas)

    def parts(self, schema: Any, document: SourceDocument, keywords: Collection[str] = ("allOf",)) -> Iterator[Located]:
        """Iterate over the schema and the members of its `allOf`, or of other keywords, recursively."""
        queue: list[Located] = [Located(schema, document)]
        seen: set[int] = set()
        while queue and len(seen) < MAX_COMPOSED_SCHEMAS:
            located = self.resolve(*queue.pop())
            if id(located.value) not in seen:
                seen.add(id(located.value))
                yield located
                branches = [branch for keyword in keywords for branch in as_list(located.value.get(keyword))]
                queue.extend(Located(branch, located.document) for branch in branches)

    def xml_root(self, schema: Any, document: SourceDocument) -> XMLRoot | None:
        """Return the XML form of an array or object; its name is empty if the schema has none."""
        node = self._xml_node(Located(schema, document))
        ref = as_text(as_dict(schema).get("$ref"))
        name = node.name or unquote(ref.rpartition("/")[2])
        return XMLRoot(name if is_xml_name(name) else "", node) if node.is_structured else None

    def _xml_node(self, located: Located) -> XMLNode:
        schema, _ = self.resolve(*located)
        own_hints = as_dict(as_dict(located.value).get("xml")) if not self.hides_siblings else {}
        if schema is not located.value and own_hints:  # beside a reference
            return self._new_xml_node(located, {**as_dict(schema.get("xml")), **own_hints})
        if id(schema) not in self._xml:
            self._xml[id(schema)] = self._new_xml_node(located, as_dict(schema.get("xml")))
        return self._xml[id(schema)]

    def _new_xml_node(self, located: Located, hints: dict[str, Any]) -> XMLNode:
        parts = list(self.parts(*located, ("allOf", "anyOf", "oneOf")))
        kinds = [part.get("type") for part, _ in parts]
        types = {str(type_name) for kind in kinds for type_name in as_list(kind) or [kind]}
        item_schemas = [Located(part["items"], home) for part, home in parts if isinstance(part.get("items"), dict)]
        items = item_schemas[0] if item_schemas else Located({}, located.document) if "array" in types else None

        def members() -> XMLMembers:
            properties = {
                name: self._xml_node(Located(property_schema, home))
                for part, home in reversed(parts)
                for name, property_schema in as_dict(part.get("properties")).items()
            }
            declared = [Located(part.get("additionalProperties"), home) for part, home in parts]
            extras = [extra for extra in declared if isinstance(extra.value, dict)]
            return XMLMembers(
                properties,
                self._xml_node(extras[0]) if extras else None,
                None if items is None else self._xml_node(items),
            )

        node_type = as_text(hints.get("nodeType"))
        if node_type not in ("element", "attribute", "text", "cdata", "none"):
            is_inline = items is not None and hints.get("wrapped") is not True
            node_type = "attribute" if hints.get("attribute") is True else "none" if is_inline else "element"
        return XMLNode(
            name=as_text(hints.get("name")),
            namespace=as_text(hints.get("namespace")),
            prefix=as_text(hints.get("prefix")),
            node_type=node_type,
            is_structured=items is not None or "object" in types or any("properties" in part for part, _ in parts),
            types=frozenset(types - {"integer", "number", "boolean"} if "string" in types else types),
            members_of=members,
        )

    def variants(self, discriminator: dict[str, Any], document: SourceDocument) -> tuple[dict[str, str], set[str]]:
        """Return the mapping of a discriminator, from tag to definition, and the definitions that it names."""
        if id(discriminator) in self._variants:  # thousands of unions may inherit it
            return self._variants[id(discriminator)][1:]
        _, variants, uses = self._variants[id(discriminator)] = discriminator, dict[str, str](), set[str]()
        for tag, target in as_dict(discriminator.get("mapping")).items():
            reference = variants[tag] = str(target)
            possible_references = [prefix + reference for prefix in _USUAL_PREFIXES]
            for ref in (reference, *possible_references) if "/" in reference else (*possible_references, reference):
                try:
                    name = self.name_of(ref, document)
                except SchemaError:
                    continue
                uses.add(name)  # a parent names variants that it does not refer to
                variants[tag] = _DEFINITION + name
                break
        return variants, uses

    def spend_tags(self, count: int) -> bool:
        """Return whether the branches of a union may list so many tags."""
        self._tags_left -= count
        return self._tags_left >= 0

    def dynamic_target(self, ref: str, document: SourceDocument) -> str | None:
        """Return the definition of a dynamic reference; None if it is ambiguous."""
        anchored = self._documents.single_dynamic_anchor(ref.removeprefix("#"), document)
        return None if anchored is None else self.name_of(ref, document)


class _Rewriting:
    """The rewriting of one schema."""

    def __init__(self, schemas: SchemaRewriter, direction: Direction, warn: Callable[[str], None]) -> None:
        self._schemas = schemas
        self._direction: Direction = direction
        self._warn = warn
        self.uses: set[str] = set()
        self._recursive: dict[str, Any] = {}  # the target of `$recursiveRef`

    def rewrite(self, schema: Any, document: SourceDocument, hidden: frozenset[str] = frozenset()) -> JSONSchema:
        """Rewrite a schema. `hidden` lists properties that the enclosing schema hides."""
        if isinstance(schema, bool):
            return schema
        if isinstance(schema, dict):
            return self._rewrite_object(cast("dict[str, Any]", schema), document, hidden)
        if schema is not None:
            self._warn(f"a schema is an object, not {type(schema).__name__}")
        return True

    def _rewrite_object(
        self, source_schema: dict[str, Any], document: SourceDocument, hidden: frozenset[str]
    ) -> dict[str, Any]:
        if isinstance(schema_id := source_schema.get("$id"), str) and not self._schemas.hides_siblings:
            document = SourceDocument(source_schema, join_uri(document.uri, schema_id))
        if source_schema.get("$recursiveAnchor") is True:
            self._recursive = source_schema
        usable_schema = usable_keywords(source_schema, self._warn)
        # A parameter, for example: it would be hidden where this is served.
        usable_schema.pop(_HIDDEN[self._direction], None)
        if not self._schemas.hides_siblings:
            lower_bounds(usable_schema)
        self._rewrite_references(usable_schema, document)
        # `fit` selects a variant by the name at the end of its reference: the mapping has to use the same names.
        discriminator = as_dict(usable_schema.pop("discriminator", None))
        if discriminator:
            variants = self._variants(discriminator, document)
            usable_schema["discriminator"] = {**discriminator, "mapping": variants} if variants else discriminator
        if not {"properties", "required", "allOf"}.isdisjoint(usable_schema):
            hidden |= self._schemas.hidden_properties(source_schema, document, self._direction)
            if hidden:
                remove_properties(usable_schema, hidden)
        schemas_in_place = {
            keyword: usable_schema.pop(keyword) for keyword in ("allOf", "then", "else") if keyword in usable_schema
        }
        written = map_subschemas(usable_schema, lambda subschema: self.rewrite(subschema, document))
        written |= map_subschemas(schemas_in_place, lambda subschema: self.rewrite(subschema, document, hidden))
        self._discriminate(written, source_schema, document)
        if isinstance(written.get("items"), list) and not self._schemas.hides_siblings:
            written["prefixItems"] = written.pop("items")
        if self._direction == "input" and self._schemas.relaxes_inputs:
            self._relax(written)
        return written

    def _relax(self, schema: dict[str, Any]) -> None:
        """Drop what makes an overlapping union or a composed object reject valid input."""
        if "oneOf" in schema:
            union = schema.pop("oneOf")
            if "anyOf" not in schema:
                schema["anyOf"] = union
            else:
                schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": union}]
        members, variants = (list(map(as_dict, as_list(schema.get(keyword)))) for keyword in ("allOf", "anyOf"))
        # A member with other keywords than these may declare properties of its own.
        bare = {"required", "not", "type", "title", "description"}
        if "additionalProperties" in schema and any(
            not subschema.keys() <= bare for subschema in [*members, *variants]
        ):
            del schema["additionalProperties"]
        if len(members) > 1 or "properties" in schema or variants:
            for subschema in members:
                subschema.pop("additionalProperties", None)
                if "$ref" in subschema:
                    name = self._schemas.without_closing(subschema["$ref"].removeprefix(_DEFINITION))
                    subschema["$ref"] = _DEFINITION + name
                    self.uses.add(name)

    def _rewrite_references(self, schema: dict[str, Any], document: SourceDocument) -> None:
        def refer(name: str) -> None:
            schema["$ref"] = _DEFINITION + name
            self.uses.add(name)

        ref = schema.pop("$ref", None)
        if ref is not None:
            if self._schemas.hides_siblings:
                schema.clear()
            try:
                refer(self._schemas.name_of(ref, document))
            except SchemaError as error:
                self._warn(str(error))
        dynamic = schema.pop("$dynamicRef", None)
        if dynamic is not None:
            name = self._schemas.dynamic_target(dynamic, document)
            if name is None:
                self._warn(f"the dynamic reference {dynamic!r:.200} is ambiguous")
            elif "$ref" not in schema:
                refer(name)
        if schema.pop("$recursiveRef", None) is not None and (name := self._schemas.known_name(self._recursive)):
            refer(name)

    def _variants(self, discriminator: dict[str, Any], document: SourceDocument) -> dict[str, str]:
        variants, uses = self._schemas.variants(discriminator, document)
        self.uses |= uses
        return variants

    def _discriminate(self, schema: dict[str, Any], source_schema: dict[str, Any], document: SourceDocument) -> None:
        """Make each branch of a union reject the tags of the others."""
        union = next((keyword for keyword in ("oneOf", "anyOf") if keyword in schema), None)
        if union is None:
            return
        discriminator = as_dict(schema.get("discriminator")) or self._inherited(source_schema[union], document)
        tag = as_text(discriminator.get("propertyName"))
        if not tag or all(self._schemas.restricts(branch, document, tag) for branch in source_schema[union]):
            return
        branches = schema.pop(union)
        tags = tags_of(
            source_schema[union],
            as_dict(discriminator.get("mapping")),
            [as_dict(branch).get("$ref") for branch in branches],
        )
        if self._schemas.spend_tags(len(branches) * min(_MAX_TAGS_PER_UNION, sum(map(len, tags)))):
            branches = discriminated(branches, tag, tags)
        schema["oneOf" if "anyOf" in schema else "anyOf"] = branches

    def _inherited(self, branches: list[Any], document: SourceDocument) -> dict[str, Any]:
        """Return the discriminator that all branches of a union inherit from a common parent; {} otherwise."""
        variants: dict[str, str] = {}
        tags: set[str] = set()
        seen = set[int]()  # most often all branches have the same parent
        for branch in branches:
            parts = self._schemas.parts(branch, document)
            parent = next((part for part in parts if "discriminator" in part.value), Located({}, document))
            fields = as_dict(parent.value.get("discriminator"))
            tags.add(as_text(fields.get("propertyName")))
            if id(fields) not in seen and len(branches) <= MAX_BRANCHES:  # larger unions are not discriminated
                seen.add(id(fields))
                variants |= self._variants(fields, parent.document)
        return {"propertyName": tags.pop(), "mapping": variants} if len(tags) == 1 else {}


def tags_of(branches: list[Any], mapping: Mapping[str, str], refs: list[str | None]) -> list[set[str]]:
    """Return the tags of each branch: those of the mapping, and the name of its schema.

    `branches` are from the document, `refs` are their rewritten references, and `mapping` uses rewritten references.
    """
    names = [unquote(str(as_dict(branch).get("$ref", ""))).rpartition("/")[2] for branch in branches]
    by_ref: dict[str | None, set[str]] = {}
    for tag, ref in mapping.items():
        by_ref.setdefault(ref, set()).add(tag)
    own_names = [{name} if name and name not in mapping else set[str]() for name in names]
    return [by_ref.get(ref, set[str]()) | own_tags for ref, own_tags in zip(refs, own_names, strict=True)]


def discriminated(branches: list[JSONSchema], tag: str, tags: list[set[str]]) -> list[JSONSchema]:
    """Return the branches, each rejecting the tags of the others; unchanged if that would be too long."""
    all_tags = set[str]().union(*tags)
    if len(branches) > MAX_BRANCHES or len(all_tags) > _MAX_TAGS_PER_UNION:
        return branches
    return [
        {"allOf": [branch], "properties": {tag: {"not": {"enum": sorted(all_tags - own_tags)}}}}
        if own_tags and all_tags - own_tags
        else branch
        for branch, own_tags in zip(branches, tags, strict=True)
    ]


def remove_properties(schema: dict[str, Any], names: Collection[str]) -> None:
    """Remove properties from an object schema, and from its `required` and `dependentRequired`."""
    if "properties" in schema:
        schema["properties"] = {
            name: property_schema for name, property_schema in schema["properties"].items() if name not in names
        }
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in names]
    if "dependentRequired" in schema:
        schema["dependentRequired"] = {
            name: [needed_name for needed_name in as_list(needed) if needed_name not in names]
            for name, needed in schema["dependentRequired"].items()
        }


# --- keywords -------------------------------------------------------------------------------------------------------

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Annotations for other tools, and keywords that are obsolete once references are rewritten.
_DROPPED = frozenset(
    "$anchor $comment $defs $dynamicAnchor $id $recursiveAnchor $schema $vocabulary components definitions "
    "externalDocs id xml".split()
)


def usable_keywords(schema: dict[str, Any], warn: Callable[[str], None]) -> dict[str, Any]:
    """Return a copy of a schema with its valid keywords. Subschemas are not checked."""
    usable_schema: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _DROPPED or (keyword.startswith("x-") and keyword != "x-nullable"):
            continue
        if keyword == "example":
            usable_schema.setdefault("examples", [value])
        elif (is_valid := _CHECKS.get(keyword)) is None or is_valid(value):
            normalize = _NORMALIZE.get(keyword)
            usable_schema[keyword] = value if normalize is None else normalize(value)
        # An empty YAML value, a file of Swagger 2.0, and examples as in parameters are not worth a warning.
        elif not (
            value is None
            or (keyword == "type" and value == "file")
            or (keyword == "examples" and isinstance(value, dict))
        ):
            warn(f"invalid keyword `{keyword}: {str(value)[:40]}` is ignored")
    if usable_schema.get("type") == "string" and "enum" in usable_schema:
        # YAML parses `1.0` as a number, and `true` as a boolean.
        usable_schema["enum"] = [
            option if option is None else as_text(option) or option for option in usable_schema["enum"]
        ]
    if "enum" in usable_schema and not _has_values_of_type(usable_schema["enum"], usable_schema.get("type")):
        warn(f"no value of the `enum` is of the type {str(usable_schema.pop('type'))!r:.40}, which is ignored")
    _move_enum_to_items(usable_schema, warn)
    if usable_schema.get("type") == "null":  # already nullable
        usable_schema.pop("nullable", None)
        usable_schema.pop("x-nullable", None)
    return usable_schema


def _move_enum_to_items(schema: dict[str, Any], warn: Callable[[str], None]) -> None:
    """Apply the `enum` of an array to its items if it contains no array: nothing else would be valid."""
    values, items = as_list(schema.get("enum")), schema.get("items", {})
    if (
        schema.get("type") not in ("array", ["array"])
        or not values
        or any(isinstance(option, list) for option in values)
    ):
        return
    del schema["enum"]
    if isinstance(items, dict):
        schema["items"] = {"allOf": [items], "enum": values} if "$ref" in items else {"enum": values, **items}
        warn("the `enum` of an array lists no array: it is applied to the items")


def _has_values_of_type(values: list[Any], declared: Any) -> bool:
    """Return whether one of the values of an `enum` is of its `type`; true if that is not only a number or boolean."""
    kinds = {declared} if isinstance(declared, str) else set(as_list(declared))
    if not kinds or not kinds <= {"integer", "number", "boolean"}:
        return True
    types = {
        "boolean" if isinstance(option, bool) else "number" for option in values if isinstance(option, int | float)
    }
    return not types.isdisjoint({"number" if kind == "integer" else kind for kind in kinds})


def _types(declared_types: Any) -> str | list[str] | None:
    """Return a valid `type`, or None."""
    if declared_types is None:  # `type: null` in YAML
        return "null"
    if isinstance(declared_types, str):
        return declared_types.lower() if declared_types.lower() in _TYPES else None
    names = ["null" if declared_type is None else declared_type for declared_type in as_list(declared_types)]
    known_types = list(
        dict.fromkeys(type_name for type_name in names if isinstance(type_name, str) and type_name in _TYPES)
    )
    return known_types if known_types and len(known_types) == len(set(map(str, names))) else None


@lru_cache(maxsize=4096)
def is_pattern(text: str) -> bool:
    """Return whether the validation engine can compile a pattern."""
    try:
        Schema({"pattern": text}).compile()
    except SchemaError:
        return False
    return True


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_schemas(value: Any) -> bool:
    return bool(as_list(value)) and all(map(_is_schema, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _instance_of(kind: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_NORMALIZE: dict[str, Callable[[Any], Any]] = {
    "required": lambda names: list(dict.fromkeys(names)),
    "type": _types,
    **dict.fromkeys(
        ("properties", "patternProperties", "dependentSchemas"),  # members that are not schemas become `true`
        lambda schemas: {name: schema if _is_schema(schema) else True for name, schema in schemas.items()},
    ),
}

_CHECKED_KEYWORDS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("additionalItems additionalProperties contains contentSchema else if not", _is_schema),
    ("propertyNames then unevaluatedItems unevaluatedProperties", _is_schema),
    ("allOf anyOf oneOf prefixItems", _are_schemas),
    ("items", lambda value: _is_schema(value) or _are_schemas(value)),
    ("properties dependencies dependentRequired dependentSchemas", _instance_of(dict)),
    ("title description format contentEncoding contentMediaType $ref $dynamicRef", _instance_of(str)),
    ("minimum maximum", _is_number),
    ("exclusiveMinimum exclusiveMaximum", _instance_of(int | float)),  # booleans in 3.0
    ("multipleOf", lambda value: _is_number(value) and value > 0),
    (
        "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains",
        lambda value: _is_number(value) and value >= 0 and value == int(value),
    ),
    ("nullable x-nullable deprecated readOnly writeOnly uniqueItems", _instance_of(bool)),
    ("enum", lambda value: bool(as_list(value))),
    ("examples", _instance_of(list)),
    ("pattern", lambda value: isinstance(value, str) and is_pattern(value)),
    ("patternProperties", lambda value: isinstance(value, dict) and all(map(is_pattern, cast("Any", value)))),
    ("required", lambda value: isinstance(value, list) and all(map(_instance_of(str), cast("Any", value)))),
    ("type", lambda value: _types(value) is not None),
)
_CHECKS = {keyword: is_valid for keywords, is_valid in _CHECKED_KEYWORDS for keyword in keywords.split()}
