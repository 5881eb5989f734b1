"""Request bodies as a document declares them: content type, schema, and the encoding of form fields.

A plain object schema is split into properties, which become keys of the input beside the parameters. Any other schema
keeps its value in one piece. Its fields may still be files or have an `encoding`, in variants, conditions and patterns
too: `SchemaEdits` puts the schema of a file into it, and removes properties that the operation sets itself.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple, cast

from msgspec import Struct, field

from opwire.errors import SchemaError
from opwire.openapi.client.document import DocumentSet, Located, SourceDocument, as_text, as_texts
from opwire.openapi.client.endpoints import (
    HTTPEndpoint,
    contents,
    is_any,
    is_form,
    is_multipart,
    is_text,
    offered,
    parameters_of,
    preferred,
    request_body,
    swagger_schema,
    swagger_style,
)
from opwire.openapi.client.plan import PartEncoding, Style, media_type
from opwire.openapi.client.schemas import (
    MAX_COMPOSED_SCHEMAS,
    RewrittenSchema,
    SchemaRewriter,
    is_pattern,
    remove_properties,
)
from opwire.openapi.client.serialize import FILE_SCHEMA, to_text
from opwire.schema import JSONSchema, Schema
from opwire.schema.dialect import objects_in
from opwire.schema.shape import type_names
from opwire.typed.plain import as_dict, as_list

_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_ANNOTATIONS = frozenset({"default", "deprecated", "description", "examples", "title"})
_MAY_REJECT_NULL = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "not", "oneOf"})
_MAX_FILE_DEPTH = 3  # unions and arrays around a file
_MAX_SEARCHED_SCHEMAS = 10_000
_EMPTY = Located({}, SourceDocument({}))


class BodyDeclaration(NamedTuple):
    """The body of a request, in the content type that is sent."""

    content_type: str
    schema: Located
    required: bool
    description: str = ""
    encoding: Located = _EMPTY  # encoding of form fields, by name
    styles: Mapping[str, PartEncoding] = {}  # the same in Swagger 2.0
    positions: Located = Located([], _EMPTY.document)  # encoding of the first items of a multipart array (3.2)
    items: Located = _EMPTY  # encoding of its other items

    @property
    def is_form(self) -> bool:
        """Whether the body has named fields."""
        return is_form(self.content_type)

    @property
    def is_multipart(self) -> bool:
        """Whether the body has parts."""
        return is_multipart(self.content_type)

    @property
    def is_json(self) -> bool:
        """Whether the body is one JSON value."""
        return media_type(self.content_type).is_json


def read_body(endpoint: HTTPEndpoint, documents: DocumentSet) -> BodyDeclaration | None:
    """Return the body of an operation, in its preferred content type.

    Raises:
        SchemaError: it is invalid.
    """
    if documents.version == "2.0":
        return _swagger_body(endpoint, documents)
    body = request_body(endpoint, documents)
    offers = [] if body is None else contents(body, documents)
    preferred_offer = preferred(offers)
    if body is None or preferred_offer is None:
        return None
    patches = [offer for offer in offers if media_type(offer.content_type).name == _MERGE_PATCH]
    if patches and media_type(preferred_offer.content_type).name == _JSON_PATCH:
        preferred_offer = patches[0]
    fields, home = preferred_offer.fields
    schema = fields.get("schema", {})
    if "schema" not in fields and "itemSchema" in fields and media_type(preferred_offer.content_type).stream:
        schema = {"type": "array", "items": fields["itemSchema"]}
    return BodyDeclaration(
        preferred_offer.content_type,
        Located(schema, home),
        body.value.get("required") is True,
        description=as_text(body.value.get("description")).strip(),
        encoding=Located(as_dict(fields.get("encoding")), home),
        positions=Located(as_list(fields.get("prefixEncoding")), home),
        items=Located(as_dict(fields.get("itemEncoding")), home),
    )


def _swagger_body(endpoint: HTTPEndpoint, documents: DocumentSet) -> BodyDeclaration | None:
    parameters = parameters_of(endpoint, documents)
    consumes = offered(endpoint, documents, "consumes")
    for located in parameters:
        if located.value["in"] == "body":
            kinds = [(content_type, media_type(content_type)) for content_type in consumes]
            ranked = [content_type for content_type, kind in kinds if kind.name == "application/json"]
            ranked += [content_type for content_type, kind in kinds if kind.name == _MERGE_PATCH]
            ranked += [content_type for content_type, kind in kinds if kind.is_json]
            return BodyDeclaration(
                (ranked or consumes)[0],
                Located(located.value.get("schema", {}), located.document),
                located.value.get("required") is True,
                description=as_text(located.value.get("description")).strip(),
            )
    fields = [located for located in parameters if located.value["in"] == "formData" and located.value["name"]]
    if not fields:
        return None
    names = [media_type(content_type).name for content_type in consumes]
    has_file = any(field.value.get("type") == "file" for field in fields)
    multipart = has_file or (_MULTIPART in names and _FORM not in names)
    properties: dict[str, Any] = {}
    styles: dict[str, PartEncoding] = {}
    for located in fields:
        name = located.value["name"]
        properties[name] = swagger_schema(located).value
        if "description" in located.value:
            properties[name] = {**properties[name], "description": located.value["description"]}
        if located.value.get("type") == "array":
            style, explode = swagger_style(located.value)
            styles[name] = PartEncoding(style=style or "form", explode=explode)
    required = [field.value["name"] for field in fields if field.value.get("required") is True]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    content_type = _MULTIPART if multipart else _FORM
    return BodyDeclaration(content_type, Located(schema, fields[0].document), bool(required), styles=styles)


# --- files ----------------------------------------------------------------------------------------------------------


def is_binary_body(body: BodyDeclaration, schemas: SchemaRewriter) -> bool:
    """Return whether the whole body is bytes."""
    kind = media_type(body.content_type)
    if body.is_form or body.is_multipart or is_text(kind.name) or kind.is_json or kind.stream:
        return False
    return _is_binary(schemas.resolve(*body.schema).value) if is_any(kind.name) else True


def file_schema(
    schema: Located, content_type: str, schemas: SchemaRewriter, seen: "count[int]", depth: int = 0
) -> JSONSchema | None:
    """Return the input schema of a field that is a file, several files, or possibly a file; None otherwise.

    `content_type` is the one of the form's `encoding`, or "". `seen` counts the schemas of a form that were searched:
    branches that refer to each other multiply at each depth.
    """
    if next(seen) > _MAX_SEARCHED_SCHEMAS:
        return None
    node, home = schemas.resolve(*schema)
    annotations = {key: node[key] for key in ("description", "title", "deprecated") if key in node}
    untyped = not node and not schemas.hides_siblings  # since 3.1, a schema without a type is bytes
    if untyped or _is_binary(node) or (_is_string(node) and _is_binary_type(content_type)):
        kinds = node.get("type")
        is_nullable = node.get("nullable") is True or node.get("x-nullable") is True
        is_nullable = is_nullable or (isinstance(kinds, list) and "null" in kinds)
        file: JSONSchema = {**FILE_SCHEMA, **annotations}
        return or_null(file) if is_nullable else file
    if depth > _MAX_FILE_DEPTH:
        return None
    if node.get("type") == "array":
        items = file_schema(Located(node.get("items"), home), content_type, schemas, seen, depth + 1)
        return None if items is None else {"type": "array", "items": items, **annotations}
    for union in ("anyOf", "oneOf"):
        branches = as_list(node.get(union))
        branch_files = [
            file_schema(Located(branch, home), content_type, schemas, seen, depth + 1) for branch in branches
        ]
        files = [branch_file for branch_file in branch_files if branch_file is not None]
        if files:
            if any(schemas.resolve(branch, home).value.get("type") == "null" for branch in branches):
                files.append({"type": "null"})
            return {"anyOf": files, **annotations}
    return None


def or_null(schema: JSONSchema) -> JSONSchema:
    """Return the schema of an optional value: None means absent in Python, and is not sent."""
    if not isinstance(schema, dict) or not schema:
        return schema
    kinds = schema.get("type")
    if isinstance(kinds, str) and _MAY_REJECT_NULL.isdisjoint(schema):
        return {**schema, "type": kinds if kinds == "null" else [kinds, "null"]}
    annotations = {key: subschema for key, subschema in schema.items() if key in _ANNOTATIONS}
    constraints = {key: subschema for key, subschema in schema.items() if key not in _ANNOTATIONS}
    variants = constraints["anyOf"] if constraints.keys() == {"anyOf"} else [constraints]
    null = {"type": "null"}
    return {"anyOf": variants if null in variants else [*variants, null], **annotations}


def _is_string(node: dict[str, Any]) -> bool:
    """Return whether a schema accepts only strings, and possibly null."""
    types = set(map(str, type_names(node))) if "type" in node else {"string"}
    return "string" in types and types <= {"string", "null"}


def _is_binary(node: dict[str, Any]) -> bool:
    if node.get("type") == "file":
        return True
    if not _is_string(node) or "contentEncoding" in node:
        return False
    return node.get("format") == "binary" or _is_binary_type(as_text(node.get("contentMediaType")))


def _is_binary_type(content_type: str) -> bool:
    first_type = media_type(content_type.partition(",")[0])
    return bool(first_type.name) and not (
        first_type.is_json or is_text(first_type.name) or is_form(first_type.name) or first_type.name == "*/*"
    )


# --- encoding -------------------------------------------------------------------------------------------------------


def read_part(
    what: str,
    encoding: Located,
    documents: DocumentSet,
    warn: Callable[[str], None],
    *,
    binary: bool = False,
    takes_style: bool = True,
) -> PartEncoding:
    """Parse the Encoding Object of a field or an item; `what` names it in warnings."""
    fields = as_dict(encoding.value)
    style, explode = as_text(fields.get("style")), fields.get("explode")
    styled = takes_style and bool(style or isinstance(explode, bool) or "allowReserved" in fields)
    style = style or "form"
    headers: dict[str, str] = {}  # those with a known value: the only allowed one, or the default of a required one
    for name, declared_header in as_dict(fields.get("headers")).items():
        try:
            header = as_dict(documents.follow(declared_header, encoding.document).value)
            schema = as_dict(documents.follow(header.get("schema", header), encoding.document).value)
        except SchemaError:
            continue
        is_required = header.get("required") is True
        choices = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
        if len(choices) != 1 and is_required and "default" in schema:
            choices = [schema["default"]]
        if name.lower() == "content-type":  # set by `contentType`
            continue
        if len(choices) == 1:
            headers[name] = to_text(choices[0])
        elif is_required:
            warn(f"{what} requires the header {name!r}, but the document has no value for it: it is not sent")
    return PartEncoding(
        content_type=as_text(fields.get("contentType")) or None,
        style=cast("Style", style) if styled else None,
        explode=explode if isinstance(explode, bool) else style in ("form", "deepObject"),
        allow_reserved=fields.get("allowReserved") is True,
        headers=headers,
        binary=binary,
    )


# --- object schemas -------------------------------------------------------------------------------------------------

_OBJECT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "allOf", "$ref", "$id", "$anchor"}
)
_NOT_CONSTRAINTS = frozenset(
    "$comment $defs $schema default definitions deprecated description discriminator example examples externalDocs "
    "nullable readOnly title writeOnly xml".split()
)
_MAX_FIELD_SCHEMAS = 500  # through every keyword that can declare a property
_EXTRAS = ("additionalProperties", "unevaluatedProperties")


class PlainObject(NamedTuple):
    """The properties of an object schema; several schemas of one name all apply. `extras` may be undeclared (None)."""

    properties: dict[str, list[Located]]
    required: list[str]
    extras: Located | None


class DeclaredFields(NamedTuple):
    """The properties that an object may have, including those in variants and conditions."""

    properties: dict[str, list[Located]]
    patterns: dict[str, list[Located]]
    extras: list[Located]
    required: set[str]


def _siblings(located: Located, schemas: SchemaRewriter) -> list[Located]:
    """Return the keywords beside a `$ref` as a schema, where they count."""
    schema = as_dict(located.value)
    if "$ref" not in schema or schemas.hides_siblings or len(schema) == 1:
        return []
    return [Located({key: subschema for key, subschema in schema.items() if key != "$ref"}, located.document)]


def fields_of(schema: Any, document: SourceDocument, schemas: SchemaRewriter) -> DeclaredFields:
    """Return every property that a schema declares, ignoring constraints between them."""
    fields = DeclaredFields({}, {}, [], set())
    stack, seen = [Located(schema, document)], set[int]()
    while stack and len(seen) < _MAX_FIELD_SCHEMAS:
        located = stack.pop()
        node, home = schemas.resolve(*located)
        stack += _siblings(located, schemas)
        if id(node) in seen:
            continue
        seen.add(id(node))
        for name, property_schema in as_dict(node.get("properties")).items():
            fields.properties.setdefault(name, []).append(Located(property_schema, home))
        for pattern, property_schema in as_dict(node.get("patternProperties")).items():
            fields.patterns.setdefault(pattern, []).append(Located(property_schema, home))
        fields.extras.extend(Located(node[key], home) for key in _EXTRAS if isinstance(node.get(key), dict))
        fields.required.update(as_texts(node.get("required")))
        subschemas = [node[key] for key in ("then", "else", "if") if key in node]
        subschemas += [branch for key in ("allOf", "anyOf", "oneOf") for branch in as_list(node.get(key))]
        subschemas += as_dict(node.get("dependentSchemas")).values()
        stack.extend(Located(branch, home) for branch in reversed(subschemas))
    return fields


def plain_object(schema: Any, document: SourceDocument, schemas: SchemaRewriter) -> PlainObject | None:
    """Return the properties of an object schema that declares nothing else; None otherwise.

    It may be a reference, or composed by `allOf`. It declares properties, or that there are none at all. It is not
    nullable, and has no unions, conditions, patterns or property counts, which would not survive the split.
    """
    properties: dict[str, list[Located]] = {}
    required: dict[str, None] = {}
    extras: Located | None = None
    for node, home in _composed(Located(schema, document), schemas):
        if node.get("type", "object") not in ("object", ["object"]) or node.get("nullable") is True:
            return None
        if not {key for key in node if not key.startswith("x-")} <= _OBJECT_KEYWORDS | _NOT_CONSTRAINTS:
            return None
        for name, property_schema in as_dict(node.get("properties")).items():
            declared_schemas = properties.setdefault(name, [])
            if all(declared.value != property_schema for declared in declared_schemas):
                declared_schemas.append(Located(property_schema, home))
        required |= dict.fromkeys(as_texts(node.get("required")))
        if isinstance(declared := node.get("additionalProperties"), dict | bool):
            if "allOf" in node or extras is not None or node is not schemas.resolve(schema, document).value:
                return None  # another set of properties would count as additional
            extras = Located(declared, home)
    is_empty = extras is not None and extras.value is False  # an object without properties is plain too
    return PlainObject(properties, list(required), extras) if properties or is_empty else None


def _composed(whole: Located, schemas: SchemaRewriter) -> Iterator[Located]:
    """Iterate over the schema and the parts of its `allOf`; yield an invalid one if there are too many."""
    queue = [whole]
    for number, located in enumerate(queue):  # grows during the iteration
        if number > MAX_COMPOSED_SCHEMAS:
            yield Located({"not": {}}, located.document)
            return
        node = schemas.resolve(*located)
        yield node
        queue += _siblings(located, schemas)
        queue.extend(Located(part, node.document) for part in as_list(node.value.get("allOf")))


# --- forms ----------------------------------------------------------------------------------------------------------

_DEFINITION = "#/$defs/"
_MAX_EDITED_DEPTH = 20
_MAX_ARRAY_POSITIONS = 1_000
_MAX_INLINED_DEFINITIONS = 50  # those that refer to each other several times would multiply


class SchemaEdits(Struct, frozen=True, kw_only=True):
    """Replacements for the subschemas of an object or array schema."""

    properties: Mapping[str, JSONSchema] = {}
    patterns: Mapping[str, JSONSchema] = {}
    extras: JSONSchema | None = None
    positions: Mapping[int, JSONSchema] = {}
    items: JSONSchema | None = None
    dropped: frozenset[str] = frozenset()


class FormEncoding(Struct, frozen=True, kw_only=True):
    """The encoding of a form, as in `RequestBody`, and the edits that put file schemas into its schema."""

    parts: Mapping[str, PartEncoding] = {}
    others: tuple[tuple[Schema | None, PartEncoding], ...] = ()
    positions: tuple[PartEncoding, ...] = ()
    items: PartEncoding = PartEncoding()
    edits: SchemaEdits = SchemaEdits()


class FormReader(Struct, eq=False):
    """Reads the encoding of one operation's form."""

    body: BodyDeclaration
    documents: DocumentSet
    schemas: SchemaRewriter
    warn: Callable[[str], None]
    searched: "count[int]" = field(default_factory=count)  # schemas, for files

    def read(self, fields: DeclaredFields) -> FormEncoding:
        """Return the encoding of these fields."""
        body, encoding = self.body, self.body.encoding
        # In 3.0, styles apply to forms without parts only.
        takes_style = not (self.documents.version == "3.0" and body.is_multipart)
        files: dict[str, JSONSchema] = {}
        parts: dict[str, PartEncoding] = {}
        for name in dict.fromkeys((*fields.properties, *encoding.value)):
            declared_encoding = Located(as_dict(encoding.value.get(name)), encoding.document)
            file = self._file(fields.properties.get(name, []), declared_encoding.value)
            if file is not None:
                files[name] = file if name in fields.required else or_null(file)
            parts[name] = body.styles.get(name) or read_part(
                f"the field {name!r}",
                declared_encoding,
                self.documents,
                self.warn,
                binary=file is not None,
                takes_style=takes_style,
            )
        patterns = {
            pattern: self._file(located, {}) for pattern, located in fields.patterns.items() if is_pattern(pattern)
        }
        extras = self._file(fields.extras, {})
        others: list[tuple[Schema | None, PartEncoding]] = [
            (Schema({"pattern": pattern}), PartEncoding(binary=file is not None)) for pattern, file in patterns.items()
        ]
        if extras is not None:
            others.append((None, PartEncoding(binary=True)))
        if not any(part.binary for _, part in others):
            parts, others = {name: part for name, part in parts.items() if part != PartEncoding()}, []
        file_patterns = {pattern: file for pattern, file in patterns.items() if file is not None}
        return FormEncoding(
            parts=parts,
            others=tuple(others),
            edits=SchemaEdits(properties=files, patterns=file_patterns, extras=extras),
        )

    def read_array(self) -> FormEncoding:
        """Return the encoding of a multipart array: some items by position, the rest alike (3.2)."""
        node, home = self.schemas.resolve(*self.body.schema)
        encodings, given_home = self.body.positions
        prefix_schemas = [Located(item_schema, home) for item_schema in as_list(node.get("prefixItems"))]
        rest_schemas = [Located(node["items"], home)] if isinstance(node.get("items"), dict) else []
        files: dict[int, JSONSchema] = {}
        parts: list[PartEncoding] = []
        for index in range(min(max(len(prefix_schemas), len(encodings)), _MAX_ARRAY_POSITIONS)):
            encoding = Located(as_dict(encodings[index]) if index < len(encodings) else {}, given_home)
            part, file = self._item(f"item {index}", prefix_schemas[index : index + 1] or rest_schemas, encoding)
            parts.append(part)
            if file is not None and index < len(prefix_schemas):
                files[index] = file
        items, file = self._item("an item", rest_schemas, self.body.items)
        return FormEncoding(positions=tuple(parts), items=items, edits=SchemaEdits(positions=files, items=file))

    def _item(self, what: str, schemas: list[Located], encoding: Located) -> tuple[PartEncoding, JSONSchema | None]:
        file = self._file(schemas, encoding.value)
        return read_part(what, encoding, self.documents, self.warn, binary=file is not None, takes_style=False), file

    def _file(self, schemas: list[Located], encoding: dict[str, Any]) -> JSONSchema | None:
        """Return the input schema of a field, if one of its schemas declares a file.

        Empty schemas count only if there are no others.
        """
        if not self.body.is_multipart or not schemas:
            return None
        content_type = as_text(encoding.get("contentType"))
        specific_schemas = [
            located_schema for located_schema in schemas if self.schemas.resolve(*located_schema).value
        ] or schemas[:1]
        files = (
            file_schema(located_schema, content_type, self.schemas, self.searched)
            for located_schema in specific_schemas
        )
        return next((file for file in files if file is not None), None)


def edited(rewritten: RewrittenSchema, edits: SchemaEdits, schemas: SchemaRewriter) -> RewrittenSchema:
    """Apply edits to an input schema; definitions with an edited property are inlined."""
    if edits == SchemaEdits():
        return rewritten
    schema = _SchemaEditor(edits, schemas).edit(rewritten.schema, _MAX_EDITED_DEPTH)
    refs = {ref for node in objects_in(schema) if isinstance(ref := node.get("$ref"), str)}
    uses = {name for ref in refs if schemas.is_definition(name := ref.removeprefix(_DEFINITION))}
    return RewrittenSchema(schema, uses)


class _SchemaEditor:
    def __init__(self, edits: SchemaEdits, schemas: SchemaRewriter) -> None:
        self._edits = edits
        self._schemas = schemas
        self._within: list[str] = []  # definitions that are being inlined
        self._left = _MAX_INLINED_DEFINITIONS

    def edit(self, schema: JSONSchema, depth: int) -> JSONSchema:
        if not isinstance(schema, dict) or not depth:
            return schema
        copy = {keyword: self._keyword(keyword, value, depth) for keyword, value in schema.items()}
        dropped = self._edits.dropped
        if dropped:
            remove_properties(copy, dropped)
            for keyword in ("dependentRequired", "dependentSchemas"):
                if keyword in copy:
                    copy[keyword] = {
                        name: property_schema for name, property_schema in copy[keyword].items() if name not in dropped
                    }
        name = str(copy.get("$ref", "")).removeprefix(_DEFINITION)
        if name in self._within or not self._schemas.is_definition(name) or not self._left:
            return copy
        self._left -= 1
        self._within.append(name)
        definition = self._schemas.definition(name, "input").schema
        target = self.edit(definition, depth - 1)
        self._within.pop()
        if target == definition:
            return copy
        siblings = {keyword: sibling for keyword, sibling in copy.items() if keyword != "$ref"}
        return {**siblings, "allOf": [*siblings.get("allOf", ()), target]} if siblings else target

    def _keyword(self, keyword: str, value: Any, depth: int) -> Any:
        edits = self._edits
        match keyword:
            case "allOf" | "anyOf" | "oneOf":
                return [self.edit(subschema, depth - 1) for subschema in value]
            case "then" | "else":  # not `if` and `not`: a weaker condition would match more often
                return self.edit(value, depth - 1)
            case "dependentSchemas":
                return {name: self.edit(subschema, depth - 1) for name, subschema in value.items()}
            case "properties":
                return {name: edits.properties.get(name, property_schema) for name, property_schema in value.items()}
            case "patternProperties":
                return {pattern: edits.patterns.get(pattern, subschema) for pattern, subschema in value.items()}
            case "additionalProperties" | "unevaluatedProperties" if isinstance(value, dict):
                return cast("Any", value) if edits.extras is None else edits.extras
            case "prefixItems":
                return [edits.positions.get(index, item_schema) for index, item_schema in enumerate(value)]
            case "items" if isinstance(value, dict):
                return cast("Any", value) if edits.items is None else edits.items
            case _:
                return value
