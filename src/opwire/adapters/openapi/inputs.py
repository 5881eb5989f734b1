"""The input of an operation: one object that holds its parameters and its body.

The input is flat where it can be: `{"petId": 1, "name": "Rex"}`. Parameters stand under their names. The properties of
a body stand beside them if it is a JSON object or a form that `plain_object` can take apart; any other body stands
under `body`. If two of these names are the same, everything is put into groups instead, by where it is sent:
`{"path": {"id": 1}, "body": {"id": 2}}`.

The input of another opwire's operation is its body, whatever that is.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from opwire.adapters.openapi.endpoints import Endpoint
from opwire.adapters.openapi.files import FILE_SCHEMA
from opwire.adapters.openapi.media import is_any, is_form, is_json
from opwire.adapters.openapi.media_types import media_type
from opwire.adapters.openapi.objects import PlainObject, plain_object
from opwire.adapters.openapi.parameters import Given, read_parameters
from opwire.adapters.openapi.payloads import Payload, file_schema, is_binary_body, part_of, read_payload
from opwire.adapters.openapi.plan import Body, Parameter, Part
from opwire.adapters.openapi.refs import Documents, Place
from opwire.adapters.openapi.report import Report
from opwire.adapters.openapi.schemas import Schemas
from opwire.adapters.openapi.shapes import mapping, sequence
from opwire.schema import JSONSchema

STREAM = "stream"
"""The property of a request with which an API is asked to stream."""

_BODY = "body"
_DESCRIBES = frozenset({"default", "deprecated", "description", "examples", "title"})
_IN_WAY = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "not", "oneOf"})  # what could refuse null by itself
_GROUPS = {"querystring": "query"}


class Inputs(NamedTuple):
    """What an operation takes, and where it goes."""

    schema: JSONSchema
    parameters: tuple[Parameter, ...]
    body: Body | None
    files: tuple[tuple[str, ...], ...]


class _Content(NamedTuple):
    """The body, read: its schema, and those of its properties where it can be taken apart."""

    payload: Payload
    schema: JSONSchema
    plain: PlainObject | None
    properties: dict[str, JSONSchema]
    parts: dict[str, Part]
    fixed: dict[str, Any]
    binary: bool

    @property
    def required(self) -> bool:
        return self.payload.required or bool(self.fixed)  # what is fixed is always sent


class InputReader:
    """Reads the input of one operation.

    `streams` says whether it is the streaming form of an operation (True), the plain form of one that could stream
    (False), or neither (None).
    """

    def __init__(
        self, endpoint: Endpoint, documents: Documents, schemas: Schemas, report: Report, *, streams: bool | None
    ) -> None:
        self._endpoint = endpoint
        self._documents = documents
        self._schemas = schemas
        self._report = report
        self._streams = streams
        self._where = f"{endpoint.method} {endpoint.path}"
        self._uses: set[str] = set()

    def whole(self) -> Inputs | None:
        """The body as the input itself; None if there is none, or it is no JSON."""
        payload = read_payload(self._endpoint, self._documents)
        if payload is None or not is_json(payload.content_type):
            return None
        schema = self._complete(self._read(payload.schema, "the body"))
        body = Body(content_type=payload.content_type, required=True, path_to=(), open=True, whole=True)
        return Inputs(schema, (), body, ())

    def read(self) -> Inputs:
        """The input as this module says."""
        given = read_parameters(self._endpoint, self._documents, self._report)
        payload = read_payload(self._endpoint, self._documents)
        content = None if payload is None else self._content(payload)
        names = [each.name for each in given]
        if content is not None:
            names += [*content.properties, *content.fixed] if content.plain else [_BODY]
        flat = len(set(names)) == len(names)
        return self._flat(given, content) if flat else self._grouped(given, content)

    def _flat(self, given: list[Given], content: _Content | None) -> Inputs:
        properties = {each.name: self._property(each) for each in given}
        required = [each.name for each in given if each.required]
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if content is not None and content.plain is not None:
            self._put_beside(schema, required, content, content.plain)
        elif content is not None:
            properties[_BODY] = content.schema
            required += [_BODY] if content.required else []
        if required:
            schema["required"] = required
        parameters = tuple(_parameter(each, (each.name,)) for each in given)
        beside = content is not None and content.plain is not None
        return self._inputs(schema, parameters, content, () if beside else (_BODY,))

    def _put_beside(self, schema: dict[str, Any], required: list[str], content: _Content, plain: PlainObject) -> None:
        """Put the body's properties among the parameters."""
        schema["properties"] |= content.properties
        needed = _needed(plain, content.properties)
        if content.required:
            required += needed
        else:  # who gives one of its properties gives a body, and that has to be whole
            others = {each: [name for name in needed if name != each] for each in content.properties}
            if any(others.values()):
                schema["dependentRequired"] = {each: names for each, names in others.items() if names}
        if plain.extras is None:
            del schema["additionalProperties"]
        else:
            schema["additionalProperties"] = self._read(plain.extras, "the body")

    def _grouped(self, given: list[Given], content: _Content | None) -> Inputs:
        groups: dict[str, dict[str, Any]] = {}
        for each in given:
            group = groups.setdefault(_group(each), {"type": "object", "properties": {}, "additionalProperties": False})
            group["properties"][each.name] = self._property(each)
            if each.required:
                group.setdefault("required", []).append(each.name)
        properties: dict[str, JSONSchema] = {**groups}
        required = [name for name, group in groups.items() if "required" in group]
        if content is not None:
            properties[_BODY] = content.schema
            required += [_BODY] if content.required else []
        schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        parameters = tuple(_parameter(each, (_group(each), each.name)) for each in given)
        return self._inputs(schema, parameters, content, (_BODY,))

    def _inputs(
        self,
        schema: dict[str, Any],
        parameters: tuple[Parameter, ...],
        content: _Content | None,
        path_to: tuple[str, ...],
    ) -> Inputs:
        whole = self._complete(schema)
        if content is None:
            return Inputs(whole, parameters, None, ())
        extras = content.plain.extras if content.plain else None
        body = Body(
            content_type=content.payload.content_type,
            required=content.required,
            path_to=path_to,
            properties=() if path_to else tuple(content.properties),
            open=not path_to and (extras is None or extras.value is not False),
            parts=content.parts,
            binary=content.binary,
            fixed=content.fixed,
        )
        files = (
            [path_to] if content.binary else [(*path_to, name) for name, part in content.parts.items() if part.binary]
        )
        return Inputs(whole, parameters, body, tuple(files))

    # --- schemas ----------------------------------------------------------------------------------------------------

    def _property(self, given: Given) -> JSONSchema:
        if given.schema.value is None:
            self._report.warn(f"{self._where}: the parameter {given.name!r} has no schema: any value will do")
        schema = self._read(given.schema, f"the parameter {given.name!r}")
        if given.content_type is not None and not is_json(given.content_type) and not _is_form(given):
            schema = schema if _is_scalar(schema) else {"type": "string"}
        return _described(schema if given.required else _or_null(schema), given.describes)

    def _content(self, payload: Payload) -> _Content:
        if is_binary_body(payload, self._schemas):
            schema = _described(FILE_SCHEMA, {"description": payload.description})
            return _Content(payload, schema, None, {}, {}, {}, binary=True)
        plain = plain_object(*payload.schema, self._schemas) if _has_fields(payload) else None
        if plain is None:
            schema = self._read(payload.schema, "the body")
            if payload.is_text and not _is_scalar(schema):
                schema = {"type": "string"}
            schema = _described(schema, {"description": payload.description})
            return _Content(payload, schema, None, {}, {}, {}, binary=False)
        return self._taken_apart(payload, plain)

    def _taken_apart(self, payload: Payload, plain: PlainObject) -> _Content:
        properties: dict[str, JSONSchema] = {}
        parts: dict[str, Part] = {}
        for name, places in plain.properties.items():
            if any(self._schemas.is_hidden(*each, "input") for each in places):
                continue
            files = self._files(name, places, payload)
            schema = self._all(places, name) if files is None else files
            leaves_out = payload.is_form and name not in plain.required
            properties[name] = _or_null(schema) if leaves_out else schema
            part = part_of(name, payload, self._documents, binary=files is not None) if payload.is_form else None
            if part is not None:
                parts[name] = part
        fixed = self._fixed(plain)
        if fixed is not None:
            properties.pop(STREAM, None)
        required = _needed(plain, properties)
        whole: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            whole["required"] = required
        if plain.extras is not None:
            whole["additionalProperties"] = self._read(plain.extras, "the body")
        described = _described(whole, {"description": payload.description})
        return _Content(payload, described, plain, properties, parts, fixed or {}, binary=False)

    def _fixed(self, plain: PlainObject) -> dict[str, Any] | None:
        """What is sent of `stream` without being asked for; None where that is left to the caller."""
        places = plain.properties.get(STREAM, [])
        if self._streams is None or not any(self._is_boolean(each) for each in places):
            return None
        if self._streams:
            return {STREAM: True}
        streams_anyway = any(self._schemas.resolve(*each).value.get("default") is True for each in places)
        return {STREAM: False} if streams_anyway or STREAM in plain.required else {}

    def _is_boolean(self, place: Place) -> bool:
        node, home = self._schemas.resolve(*place)
        kinds = node.get("type")
        if kinds == "boolean" or (isinstance(kinds, list) and "boolean" in kinds):
            return True
        branches = [*sequence(node.get("anyOf")), *sequence(node.get("oneOf"))]
        return any(mapping(self._schemas.resolve(each, home).value).get("type") == "boolean" for each in branches)

    def _files(self, name: str, places: list[Place], payload: Payload) -> JSONSchema | None:
        if media_type(payload.content_type).name != "multipart/form-data" or len(places) != 1:
            return None
        encoding = mapping(payload.encoding.value.get(name))
        return file_schema(places[0], str(encoding.get("contentType", "")), self._schemas)

    def _all(self, places: list[Place], name: str) -> JSONSchema:
        schemas = [self._read(each, f"the property {name!r}") for each in places]
        return schemas[0] if len(schemas) == 1 else {"allOf": schemas}

    def _read(self, place: Place, what: str) -> JSONSchema:
        written = self._schemas.read(*place, "input", f"{self._where}, {what}")
        self._uses |= written.uses
        return written.schema

    def _complete(self, schema: JSONSchema) -> JSONSchema:
        return self._schemas.complete(schema, self._uses, "input")


def _needed(plain: PlainObject, asked: dict[str, JSONSchema]) -> list[str]:
    """What the body requires, but for what is not asked of the caller."""
    return [name for name in plain.required if name in asked or name not in plain.properties]


def _has_fields(payload: Payload) -> bool:
    return payload.is_form or is_json(payload.content_type) or is_any(payload.content_type)


def _is_form(given: Given) -> bool:
    """Whether a parameter is the whole query, as fields."""
    return given.location == "querystring" and is_form(given.content_type or "")


def _group(given: Given) -> str:
    return _GROUPS.get(given.location, given.location)


def _parameter(given: Given, path_to: tuple[str, ...]) -> Parameter:
    return Parameter(
        name=given.name,
        location=given.location,
        path_to=path_to,
        style=given.style,
        explode=given.explode,
        required=given.required,
        allow_reserved=given.allow_reserved,
        content_type=given.content_type,
    )


def _described(schema: JSONSchema, said: dict[str, Any]) -> JSONSchema:
    """The schema with what is said of it from outside, which knows more of its use."""
    said = {keyword: value for keyword, value in said.items() if value}
    if not said or schema is False:
        return schema
    return {**schema, **said} if isinstance(schema, dict) else said


def _or_null(schema: JSONSchema) -> JSONSchema:
    """The schema of what may be left out: None is how Python says so, and it is not sent."""
    if not isinstance(schema, dict) or not schema:
        return schema
    kinds = schema.get("type")
    if isinstance(kinds, str) and _IN_WAY.isdisjoint(schema):
        return {**schema, "type": kinds if kinds == "null" else [kinds, "null"]}
    outside = {key: each for key, each in schema.items() if key in _DESCRIBES}
    inside = {key: each for key, each in schema.items() if key not in _DESCRIBES}
    variants = inside["anyOf"] if inside.keys() == {"anyOf"} else [inside]
    return {"anyOf": [*variants, {"type": "null"}], **outside}


def _is_scalar(schema: JSONSchema) -> bool:
    kinds: Any = schema.get("type") if isinstance(schema, dict) else None
    given: Iterable[Any] = [kinds] if isinstance(kinds, str) else sequence(kinds)
    return bool(given) and not {"object", "array"} & set(given)
