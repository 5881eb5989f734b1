"""The body of a request as the document gives it: its content type, its schema, and how a form's fields are sent."""

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
from opwire.errors import SchemaError
from opwire.schema import JSONSchema

_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_DEPTH = 3  # of unions and arrays in which a file is looked for


class Payload(NamedTuple):
    """The body of a request."""

    content_type: str
    schema: Place
    required: bool
    description: str
    encoding: Place  # of a form: how its fields are sent, by name
    styles: dict[str, Part]  # the same, as Swagger 2.0 says it

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
    return Payload(content_type, Place(schema, home), bool(required), "", Place({}, home), styles)


# --- files ----------------------------------------------------------------------------------------------------------


def is_binary_body(payload: Payload, schemas: Schemas) -> bool:
    """Whether the whole body is bytes."""
    kind = media_type(payload.content_type).name
    if payload.is_form or payload.is_text or is_json(kind) or is_multipart(kind) or stream_kind(kind):
        return False
    if is_any(kind):
        return _is_binary(schemas.resolve(*payload.schema).value)
    return True


def file_schema(schema: Place, content_type: str, schemas: Schemas, depth: int = 0) -> JSONSchema | None:
    """The schema of a field that is a file, or several, or may be one; None if it is none.

    `content_type` is what the form's `encoding` says of the field, or "".
    """
    node, home = schemas.resolve(*schema)
    said = {key: node[key] for key in ("description", "title", "deprecated") if key in node}
    anything = not node and not schemas.hides_siblings  # since 3.1, what has no type is bytes
    if anything or _is_binary(node) or (node.get("type", "string") == "string" and _is_binary_type(content_type)):
        return {**FILE_SCHEMA, **said}
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
            return {"anyOf": files, **said}
    return None


def _is_binary(node: dict[str, Any]) -> bool:
    kind = node.get("type", "string")
    if kind == "file":
        return True
    if kind not in ("string", ["string"], ["string", "null"]) or "contentEncoding" in node:
        return False
    return node.get("format") == "binary" or _is_binary_type(text(node.get("contentMediaType")))


def _is_binary_type(content_type: str) -> bool:
    first = media_type(content_type.partition(",")[0]).name
    return bool(first) and not (is_text(first) or is_json(first) or is_form(first) or first == "*/*")


def part_of(name: str, payload: Payload, documents: Documents, *, binary: bool) -> Part | None:
    """How a field is sent, where that is not the usual way."""
    fields = mapping(payload.encoding.value.get(name))
    style, explode = text(fields.get("style")), fields.get("explode")
    # In 3.0 a style counts in forms without parts only.
    styled = bool(style or isinstance(explode, bool) or "allowReserved" in fields)
    if documents.version == "3.0" and is_multipart(payload.content_type):
        styled = False
    style = style or "form"
    part = payload.styles.get(name) or Part(
        content_type=text(fields.get("contentType")) or None,
        style=cast("Style", style) if styled else None,
        explode=explode if isinstance(explode, bool) else style in ("form", "deepObject"),
        allow_reserved=fields.get("allowReserved") is True,
        headers=_fixed_headers(fields, payload.encoding, documents),
        binary=binary,
    )
    return None if part == Part() else part


def _fixed_headers(fields: dict[str, Any], home: Place, documents: Documents) -> dict[str, str]:
    """The headers of a part that can have one value only: nobody is asked for others."""
    found: dict[str, str] = {}
    for name, given in mapping(fields.get("headers")).items():
        try:
            header = mapping(documents.follow(given, home.document).value)
            schema = mapping(documents.follow(header.get("schema", header), home.document).value)
        except SchemaError:
            continue
        choices = [schema["const"]] if "const" in schema else sequence(schema.get("enum"))
        if len(choices) == 1 and name.lower() != "content-type":
            found[name] = str(choices[0])
    return found
