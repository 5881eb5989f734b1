"""The body of a request as the document gives it: its content type, its schema, and how a form's fields are sent."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from opwire.adapters.openapi.endpoints import Endpoint, contents, offered, parameters_of, request_body
from opwire.adapters.openapi.files import FILE_SCHEMA
from opwire.adapters.openapi.media import is_any, is_form, is_json, is_multipart, is_text, preferred, stream_kind
from opwire.adapters.openapi.media_types import media_type
from opwire.adapters.openapi.parameters import swagger_schema, swagger_style
from opwire.adapters.openapi.plan import Part, Style
from opwire.adapters.openapi.refs import Documents, Place
from opwire.adapters.openapi.schemas import Schemas
from opwire.adapters.openapi.shapes import mapping, sequence, text
from opwire.adapters.openapi.styles import text_of
from opwire.errors import SchemaError
from opwire.schema import JSONSchema

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
