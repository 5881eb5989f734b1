"""The input of an operation: one object that holds its parameters and its body.

The input is flat where it can be: `{"petId": 1, "name": "Rex"}`. Parameters stand under their names. The properties of
a body stand beside them if it is a JSON object or a form that `plain_object` can take apart; any other body stands
under `body`. If two of these names are the same, everything is put into groups instead, by where it is sent:
`{"path": {"id": 1}, "body": {"id": 2}}`.

The input of another opwire's operation is its body, whatever that is, where its document is trusted.

The answers of an operation: their schemas by status and content type, and the one that stands for all.

What stands for all is the schema of the successful answer, JSON if there is a choice; a union where several differ. A
call is judged by the status and content type that really came.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from opwire.adapters.openapi.bodies import FILE_SCHEMA
from opwire.adapters.openapi.document import Documents, Place, mapping, sequence
from opwire.adapters.openapi.endpoints import (
    Content,
    Endpoint,
    Given,
    accept_header,
    is_any,
    is_form,
    is_json,
    is_multipart,
    is_text,
    preferred,
    read_parameters,
    stream_kind,
    successes,
)
from opwire.adapters.openapi.payloads import (
    Fields,
    Form,
    FormReader,
    Payload,
    PlainObject,
    changed,
    fields_of,
    is_binary_body,
    or_null,
    plain_object,
    read_part,
    read_payload,
)
from opwire.adapters.openapi.plan import Body, Media, Parameter, StreamKind, media_type
from opwire.adapters.openapi.schemas import Schemas, Written
from opwire.adapters.report import Report
from opwire.schema import UNKNOWN, JSONSchema, Schema

STREAM = "stream"
"""The property of a request with which an API is asked to stream."""

_BODY = "body"
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
    form: Form
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
        parameters = tuple(self._parameter(each, (each.name,)) for each in given)
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
            schema["additionalProperties"] = self._extras(plain.extras, content.form)

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
        parameters = tuple(self._parameter(each, (_group(each), each.name)) for each in given)
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
            parts=content.form.parts,
            others=content.form.others,
            positions=content.form.positions,
            items=content.form.items,
            binary=content.binary,
            fixed=content.fixed,
        )
        named = [(*path_to, name) for name, part in content.form.parts.items() if part.binary]
        return Inputs(whole, parameters, body, (path_to,) if content.binary else tuple(named))

    def _parameter(self, given: Given, path_to: tuple[str, ...]) -> Parameter:
        parts = {
            name: read_part(f"the field {name!r}", Place(each, given.encoding.document), self._documents, self._warn)
            for name, each in (given.encoding.value.items() if _is_form(given) else ())
        }
        return Parameter(
            name=given.name,
            location=given.location,
            path_to=path_to,
            style=given.style,
            explode=given.explode,
            required=given.required,
            allow_reserved=given.allow_reserved,
            content_type=given.content_type,
            parts=parts,
        )

    # --- schemas ----------------------------------------------------------------------------------------------------

    def _property(self, given: Given) -> JSONSchema:
        if given.schema.value is None:
            self._warn(f"the parameter {given.name!r} has no schema: any value will do")
        schema = self._read(given.schema, f"the parameter {given.name!r}")
        if given.content_type is not None and not is_json(given.content_type) and not _is_form(given):
            schema = schema if _is_scalar(schema) else {"type": "string"}
        return _described(schema if given.required else or_null(schema), given.describes)

    def _content(self, payload: Payload) -> _Content:
        if is_binary_body(payload, self._schemas):
            schema = _described(FILE_SCHEMA, {"description": payload.description})
            return _Content(payload, schema, None, {}, Form(), {}, binary=True)
        asks = self._streams is not None or payload.is_form or is_multipart(payload.content_type)
        fields = fields_of(*payload.schema, self._schemas) if asks else Fields({}, {}, [], set())
        form = self._form(payload, fields)
        plain = plain_object(*payload.schema, self._schemas) if _has_fields(payload) else None
        return self._whole(payload, fields, form) if plain is None else self._taken_apart(payload, plain, fields, form)

    def _form(self, payload: Payload, fields: Fields) -> Form:
        reader = FormReader(payload, self._documents, self._schemas, lambda each: self._warn(f"the body: {each}"))
        if is_multipart(payload.content_type) and not fields.properties and self._is_array(payload.schema):
            return reader.read_array()
        return reader.read(fields) if payload.is_form or is_multipart(payload.content_type) else Form()

    def _is_array(self, place: Place) -> bool:
        kinds = self._schemas.resolve(*place).value.get("type")
        return kinds == "array" or (isinstance(kinds, list) and "array" in kinds)

    def _whole(self, payload: Payload, fields: Fields, form: Form) -> _Content:
        """The body as one value: its schema says more than which properties there are."""
        fixed = self._fixed(fields.properties, fields.required) if is_json(payload.content_type) else None
        changes = form.changes if fixed is None else replace(form.changes, dropped=frozenset({STREAM}))
        given = self._schemas.read(*payload.schema, "input", f"{self._where}, the body")
        written = changed(given, changes, self._schemas)
        self._uses |= written.uses
        schema = written.schema
        if payload.is_text and not _is_scalar(schema):
            schema = {"type": "string"}
        schema = _described(schema, {"description": payload.description})
        return _Content(payload, schema, None, {}, form, fixed or {}, binary=False)

    def _taken_apart(self, payload: Payload, plain: PlainObject, fields: Fields, form: Form) -> _Content:
        properties: dict[str, JSONSchema] = {}
        for name, places in plain.properties.items():
            if any(self._schemas.is_hidden(*each, "input") for each in places):
                continue
            file = form.changes.properties.get(name)
            schema = self._all(places, name) if file is None else file
            leaves_out = file is None and payload.is_form and name not in plain.required
            properties[name] = or_null(schema) if leaves_out else schema
        fixed = self._fixed(fields.properties, plain.required)
        if fixed is not None:
            properties.pop(STREAM, None)
        required = _needed(plain, properties)
        whole: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            whole["required"] = required
        if plain.extras is not None:
            whole["additionalProperties"] = self._extras(plain.extras, form)
        described = _described(whole, {"description": payload.description})
        return _Content(payload, described, plain, properties, form, fixed or {}, binary=False)

    def _extras(self, place: Place, form: Form) -> JSONSchema:
        file = form.changes.extras
        return self._read(place, "the body") if file is None else file

    def _fixed(self, properties: dict[str, list[Place]], required: Collection[str]) -> dict[str, Any] | None:
        """What is sent of `stream` without being asked for; None where that is left to the caller."""
        places = properties.get(STREAM, [])
        if self._streams is None or not any(self._is_boolean(each) for each in places):
            return None
        if self._streams:
            return {STREAM: True}
        streams_anyway = any(self._schemas.resolve(*each).value.get("default") is True for each in places)
        return {STREAM: False} if streams_anyway or STREAM in required else {}

    def _is_boolean(self, place: Place) -> bool:
        node, home = self._schemas.resolve(*place)
        kinds = node.get("type")
        if kinds == "boolean" or (isinstance(kinds, list) and "boolean" in kinds):
            return True
        values = [node["const"]] if "const" in node else sequence(node.get("enum"))
        if kinds is None and values and all(isinstance(each, bool) for each in values):
            return True
        branches = [*sequence(node.get("anyOf")), *sequence(node.get("oneOf"))]
        return any(mapping(self._schemas.resolve(each, home).value).get("type") == "boolean" for each in branches)

    def _all(self, places: list[Place], name: str) -> JSONSchema:
        schemas = [self._read(each, f"the property {name!r}") for each in places]
        return schemas[0] if len(schemas) == 1 else {"allOf": schemas}

    def _read(self, place: Place, what: str) -> JSONSchema:
        written = self._schemas.read(*place, "input", f"{self._where}, {what}")
        self._uses |= written.uses
        return written.schema

    def _warn(self, warning: str) -> None:
        self._report.warn(f"{self._where}: {warning}")

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


def _described(schema: JSONSchema, said: dict[str, Any]) -> JSONSchema:
    """The schema with what is said of it from outside, which knows more of its use."""
    said = {keyword: value for keyword, value in said.items() if value}
    if not said or schema is False:
        return schema
    return {**schema, **said} if isinstance(schema, dict) else said


def _is_scalar(schema: JSONSchema) -> bool:
    kinds: Any = schema.get("type") if isinstance(schema, dict) else None
    given: Iterable[Any] = [kinds] if isinstance(kinds, str) else sequence(kinds)
    return bool(given) and not {"object", "array"} & set(given)


_EVENT_FIELDS = frozenset({"event", "data", "id", "retry"})
_DEPTH = 3  # of unions in which an event is looked for
_NOTHING: JSONSchema = {"type": "null"}


class Outputs(NamedTuple):
    """What an operation answers. `schema` makes the one that stands for all."""

    responses: dict[str, tuple[Media, ...]]
    schema: Callable[[], JSONSchema]
    accept: str
    stream: StreamKind | None


def offers(endpoint: Endpoint, documents: Documents) -> tuple[bool, bool]:
    """Whether an operation has plain answers, and whether it has streams."""
    types = [each.content_type for answers in successes(endpoint, documents).values() for each in answers]
    streams = [each for each in types if stream_kind(each)]
    return len(streams) < len(types), bool(streams)


class OutputReader:
    """Reads the answers of one operation: those that are streams, or those that are not."""

    def __init__(self, endpoint: Endpoint, documents: Documents, schemas: Schemas, *, streams: bool) -> None:
        self._endpoint = endpoint
        self._documents = documents
        self._schemas = schemas
        self._streams = streams

    def read(self, output_schema: Schema) -> Outputs:
        """The answers. `output_schema` is the operation's own: the answer that it is taken from shares it."""
        answers = {
            status: [each for each in types if bool(stream_kind(each.content_type)) is self._streams]
            for status, types in successes(self._endpoint, self._documents).items()
        }
        if self._endpoint.method == "HEAD":
            return Outputs({}, lambda: _NOTHING, "*/*", None)
        chosen = {status: preferred(types) for status, types in answers.items()}
        only = next(iter(chosen.values()), None) if len(chosen) == 1 else None
        responses = {
            status: tuple(self._media(each, output_schema if each is only else None) for each in types)
            for status, types in answers.items()
        }
        types = [each.content_type for given in answers.values() for each in given]
        first = next((each for each in chosen.values() if each is not None), None)
        return Outputs(
            responses=responses,
            schema=lambda: self._overall(list(chosen.values())),
            accept=accept_header([each.content_type for each in chosen.values() if each is not None], types),
            stream=stream_kind(first.content_type) if self._streams and first is not None else None,
        )

    def _media(self, given: Content, shared: Schema | None) -> Media:
        if shared is None:
            shared = Schema.deferred(lambda: self._complete(self._schema(given))) if self._says(given) else UNKNOWN
        return Media(content_type=given.content_type, schema=shared, stream=stream_kind(given.content_type))

    def _overall(self, chosen: list[Content | None]) -> JSONSchema:
        if self._streams:
            chosen = [each for each in chosen if each is not None]
        written = [Written(_NOTHING, set()) if each is None else self._schema(each) for each in chosen]
        different: list[JSONSchema] = []
        for each in written:
            if each.schema not in different:
                different.append(each.schema)
        if not different or any(each is True or each == {} for each in different):
            return True
        schema = different[0] if len(different) == 1 else {"anyOf": different}
        return self._complete(Written(schema, {name for each in written for name in each.uses}))

    def _says(self, given: Content) -> bool:
        fields = given.fields.value
        return "schema" in fields or "itemSchema" in fields

    def _schema(self, given: Content) -> Written:
        fields, home = given.fields
        kind = media_type(given.content_type).name
        if stream_kind(kind):
            return self._item(fields, home, is_event=kind == "text/event-stream")
        schema = fields.get("schema")
        if not self._says(given) or schema is None:
            return Written(True, set())
        if not (is_json(kind) or is_any(kind)):
            node = self._schemas.resolve(schema, home).value
            if not is_text(kind) or node.get("type") != "string" or node.get("format") == "binary":
                return Written(True, set())
        if self._schemas.resolve(schema, home).value.get("type") == "file":
            return Written(True, set())
        return self._read(Place(schema, home))

    def _item(self, fields: dict[str, Any], home: Any, *, is_event: bool) -> Written:
        """The schema of one item. What describes all items as an array, or an event with its fields, holds it."""
        schema = Place(fields.get("itemSchema", fields.get("schema", {})), home)
        node = self._schemas.resolve(*schema)
        if "itemSchema" not in fields and node.value.get("type") == "array":
            schema = Place(node.value.get("items", {}), node.document)
        if not is_event:
            return self._read(schema)
        data = self._event_data(schema)
        if not data:
            return self._read(schema)
        written = [self._read(each) for each in data]
        uses = {name for each in written for name in each.uses}
        return Written(written[0].schema if len(written) == 1 else {"anyOf": [each.schema for each in written]}, uses)

    def _event_data(self, schema: Place, depth: int = 0) -> list[Place]:
        """The schemas of what an event carries, where a schema describes whole events."""
        node, home = self._schemas.resolve(*schema)
        branches = [*sequence(node.get("oneOf")), *sequence(node.get("anyOf"))]
        if branches and depth < _DEPTH:
            found = [self._event_data(Place(each, home), depth + 1) for each in branches]
            if all(found):
                return [data for each in found for data in each]
        properties = mapping(node.get("properties"))
        if "data" not in properties or not _EVENT_FIELDS.issuperset(properties):
            return []
        data = self._schemas.resolve(properties["data"], home)
        if "contentSchema" in data.value:
            return [Place(data.value["contentSchema"], data.document)]
        return [Place(properties["data"], home)]

    def _read(self, place: Place) -> Written:
        where = f"{self._endpoint.method} {self._endpoint.path}, the answer"
        return self._schemas.read(*place, "output", where)

    def _complete(self, written: Written) -> JSONSchema:
        return self._schemas.complete(written.schema, written.uses, "output")
