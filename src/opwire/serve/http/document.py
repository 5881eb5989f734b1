"""The OpenAPI document of a registry, as one caller may see it.

Input that can be written as a query string: an object of scalars and of arrays of scalars.

Each property is a query parameter, an array is repeated (`?tag=a&tag=b`). A query string is all text, so the schema
says what a value is; where it allows text and something else, nobody could tell, and the input is not flat.

The OpenAPI documents that a surface gives out, each built once.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import isfinite
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import parse_qs, parse_qsl

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.names import UniqueNames
from opwire.operation import Identity, OperationSpec, OperationType, may_access
from opwire.origin import ENVELOPE_JSON, ORIGIN_EXTENSION, Origin, path_of
from opwire.registry import OperationRegistry
from opwire.schema import Schema
from opwire.schema.dialect import JSONSchema, References, lower
from opwire.serve.guard import PROBLEM_JSON
from opwire.serve.http.components import NAMED_SCHEMAS, PREFIX, Components

MAX_PARAMETERS = 1_000

_SAYS_NO_MORE = frozenset(
    "$comment $defs $id $schema additionalProperties components definitions deprecated description examples "
    "maxProperties minProperties properties required title type unevaluatedProperties".split()
)
_SCALARS = frozenset({"boolean", "integer", "null", "number", "string"})
_MAX_HOPS = 8
_MAX_DIGITS = 4_000  # Python refuses to read a longer integer
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


class Parameter(NamedTuple):
    """What a query parameter may be."""

    kinds: frozenset[str]  # names of JSON Schema types, of the value or of an array's items
    is_array: bool


class _Kinds(NamedTuple):
    own: frozenset[str]  # scalar types
    items: frozenset[str] | None  # scalar types of the items, where it may be an array


def parameters_of(schema: Schema) -> Mapping[str, Parameter] | None:
    """The query parameters of an input schema, by name; None if it is not flat."""
    json = _lowered(schema)
    if json.get("type") != "object" or not _SAYS_NO_MORE.issuperset(json):
        return None
    if isinstance(json.get("additionalProperties"), dict) or isinstance(json.get("unevaluatedProperties"), dict):
        return None
    if not isinstance(json.get("properties", {}), dict) or not isinstance(json.get("required", []), list):
        return None  # no schema at all
    references = References(json)
    found: dict[str, Parameter] = {}
    for name, each in _properties(json).items():
        parameter = _parameter(_kinds(each, references, _MAX_HOPS))
        if parameter is None:
            return None
        found[name] = parameter
    return found


def parameter_of(schema: Schema, name: str) -> Parameter | None:
    """One property of an input schema as a parameter; None if there is none, or it is not flat."""
    json = _lowered(schema)
    return _parameter(_kinds(_properties(json).get(name), References(json), _MAX_HOPS))


def typed(text: str, kinds: frozenset[str]) -> Any:
    """The value that a text stands for, if it may be of these kinds; else the text itself."""
    if "string" in kinds:
        return text
    if "null" in kinds and text in ("", "null"):
        return None
    if "boolean" in kinds and text in ("true", "false"):
        return text == "true"
    if "number" in kinds or "integer" in kinds:
        return _number(text)
    return text


def read_query(parameters: Mapping[str, Parameter], query: bytes) -> dict[str, Any]:
    """The input that a query string holds. A value that is not what the schema says stays text, for it to be told so.

    Raises:
        CallError: PROTOCOL_ERROR, if it cannot be read.
    """
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"the query string cannot be read: {error}") from error
    input: dict[str, Any] = {}
    for name, text in pairs:
        parameter = parameters.get(name, _TEXT)
        if parameter.is_array:
            input.setdefault(name, []).append(typed(text, parameter.kinds))
        elif name in input:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"the query parameter {name!r} is there more than once")
        else:
            input[name] = typed(text, parameter.kinds)
    return input


_TEXT = Parameter(frozenset({"string"}), is_array=False)


def _lowered(schema: Schema) -> dict[str, Any]:
    try:
        json = lower(schema.json, schema.dialect)
    except SchemaError:
        return {}
    return json if isinstance(json, dict) else {}


def _properties(json: dict[str, Any]) -> dict[str, Any]:
    """What an object declares. A schema of a foreign document is not compiled yet, and may hold anything."""
    declared = json.get("properties")
    return cast("dict[str, Any]", declared) if isinstance(declared, dict) else {}


def _parameter(kinds: _Kinds | None) -> Parameter | None:
    if kinds is None:
        return None
    if kinds.items is None:
        return Parameter(kinds.own, is_array=False) if _is_clear(kinds.own) else None
    is_array = kinds.own <= {"null"} and _is_clear(kinds.items)
    return Parameter(kinds.items, is_array=True) if is_array else None


def _is_clear(kinds: frozenset[str]) -> bool:
    return bool(kinds) and ("string" not in kinds or kinds <= {"string", "null"})


def _kinds(schema: Any, references: References, hops: int) -> _Kinds | None:
    """The types that a property may have; None if an object is among them, or nobody knows."""
    if not isinstance(schema, dict) or hops == 0:
        return None
    json = cast("dict[str, Any]", schema)
    if "$ref" in json:
        try:
            return _kinds(references.resolve(str(json["$ref"])), references, hops - 1)
        except SchemaError:
            return None
    if "const" in json or "enum" in json:
        values = [json["const"]] if "const" in json else _listed(json["enum"])
        return _known(frozenset(map(_kind_of, values)), None)
    if "type" in json:
        return _of_types(json, references, hops)
    branches = _listed(json.get("anyOf") or json.get("oneOf"))
    if "allOf" in json or not branches:
        return None
    return _together([_kinds(branch, references, hops - 1) for branch in branches])


def _of_types(json: dict[str, Any], references: References, hops: int) -> _Kinds | None:
    named = json["type"]
    types = frozenset(map(str, [named] if isinstance(named, str) else _listed(named)))
    if "array" not in types:
        return _known(types, None)
    items = None if "prefixItems" in json else _kinds(json.get("items"), references, hops - 1)
    return None if items is None or items.items is not None else _known(types - {"array"}, items.own)


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _known(own: frozenset[str], items: frozenset[str] | None) -> _Kinds | None:
    return _Kinds(own, items) if own <= _SCALARS else None


def _together(branches: list[_Kinds | None]) -> _Kinds | None:
    own: frozenset[str] = frozenset()
    items: frozenset[str] | None = None
    for branch in branches:
        if branch is None:
            return None
        own |= branch.own
        if branch.items is not None:
            items = branch.items if items is None else items | branch.items
    return _Kinds(own, items)


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case _:
            return "object"


def _number(text: str) -> Any:
    written = _NUMBER.fullmatch(text)
    if written is None or len(text) > _MAX_DIGITS:
        return text
    if written[1] is None and written[2] is None:
        return int(text)
    number = float(text)
    return number if isfinite(number) else text


Version = Literal["3.1", "3.2"]
VERSIONS: Mapping[str, str] = {"3.1": "3.1.1", "3.2": "3.2.0"}

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
_STRING = {"type": "string"}
_BINARY = {"type": "string", "format": "binary"}

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class About(Struct, frozen=True, kw_only=True):
    """What a document says beside its operations."""

    title: str
    version: str
    description: str = ""
    server: str = "/"
    takes_tokens: bool = False
    needs_none: bool = False  # who shows no token is somebody, too


def build_document(
    specs: Iterable[OperationSpec], about: About, *, version: Version = "3.1", names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The document of these operations. `names` are their operationIds; by default, those of these alone."""
    listed = list(specs)
    writer = _Writer(about, version, operation_names(listed) if names is None else names)
    document: dict[str, Any] = {
        "openapi": VERSIONS[version],
        "info": {"title": about.title, "version": about.version},
        "servers": [{"url": about.server}],
        "paths": {path_of(spec.id): writer.path_item(spec) for spec in listed},
        "components": {"schemas": dict(sorted(writer.components.schemas.items()))},
    }
    if about.description:
        document["info"]["description"] = about.description
    if about.takes_tokens:
        document["components"]["securitySchemes"] = _SCHEMES
        document["security"] = [*({name: []} for name in _SCHEMES), *([{}] if about.needs_none else [])]
    return document


def operation_names(specs: Iterable[OperationSpec]) -> dict[str, str]:
    """An operationId for every operation, and one for its GET as `id?`: letters, digits and underscores."""
    names: dict[str, str] = {}
    free = UniqueNames()
    for spec in specs:
        for key, wish in ((spec.id, spec.id), (f"{spec.id}?", f"{spec.id}_get")):
            plain = _UNSAFE.sub("_", wish).strip("_") or "operation"
            names[key] = free.take(f"_{plain}" if plain[0].isdigit() else plain)
    return names


class _Writer:
    def __init__(self, about: About, version: Version, names: Mapping[str, str]) -> None:
        self.components = Components(NAMED_SCHEMAS)
        self._about = about
        self._version = version
        self._names = names

    def path_item(self, spec: OperationSpec) -> dict[str, Any]:
        """POST for every operation, and GET where the input is flat and nothing is written."""
        name = self._names[spec.id]
        input = self.components.place(spec.input_schema, f"{name}_input")
        common = {
            "tags": list(spec.tags) or [spec.namespace],
            **({"summary": spec.title} if spec.title else {}),
            **({"description": spec.description} if spec.description else {}),
            **({"security": []} if self._about.takes_tokens and spec.access and spec.access.public else {}),
            ORIGIN_EXTENSION: Origin.of(spec).to_json(),
            "responses": self._responses(spec, name),
        }
        item = {"post": {"operationId": name, **common, **_request_body(spec, input)}}
        if takes_get(spec):
            get = {"operationId": self._names[f"{spec.id}?"], **common, "parameters": self._parameters(input)}
            item["get"] = get
        return item

    def _parameters(self, input: JSONSchema) -> list[dict[str, Any]]:
        if isinstance(input, dict) and "$ref" in input:
            input = self.components.schemas[input["$ref"].removeprefix(PREFIX)]
        json: dict[str, Any] = input if isinstance(input, dict) else {}
        required = json.get("required", ())
        return [
            {"name": each, "in": "query", "required": each in required, "schema": schema}
            for each, schema in json.get("properties", {}).items()
        ]

    def _responses(self, spec: OperationSpec, name: str) -> dict[str, Any]:
        output = self.components.share(self.components.place(spec.output_schema, f"{name}_output"), f"{name}_output")
        streams = spec.type is OperationType.SUBSCRIPTION
        content = self._stream(output) if streams else _content(spec, output)
        problem = {"schema": {"$ref": f"{PREFIX}Problem"}}
        return {
            "200": {"description": "The items, as events" if streams else "The result", "content": content},
            "default": {"description": "What went wrong", "content": {PROBLEM_JSON: problem}},
        }

    def _stream(self, item: JSONSchema) -> dict[str, Any]:
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": item}
        fields = {"data": data, "event": _STRING, "id": _STRING, "retry": {"type": "integer", "minimum": 0}}
        event = {"type": "object", "properties": fields, "required": ["data"]}
        # 3.1 has no word for a stream. Readers that know of events take the schema for that of one of them.
        return {"text/event-stream": {"schema" if self._version == "3.1" else "itemSchema": event}}


def takes_get(spec: OperationSpec) -> bool:
    """Whether an operation can be called by GET: it writes nothing, and its input fits into a query string."""
    return spec.type is not OperationType.MUTATION and parameters_of(spec.input_schema) is not None


def _request_body(spec: OperationSpec, input: JSONSchema) -> dict[str, Any]:
    json = spec.input_schema.json
    optional = spec.input_schema.is_unknown or (
        isinstance(json, dict) and json.get("type") == "object" and not json.get("required")
    )
    return {"requestBody": {"required": not optional, "content": {"application/json": {"schema": input}}}}


def _content(spec: OperationSpec, output: JSONSchema) -> dict[str, Any]:
    plain: dict[str, Any] = {"application/json": {"schema": output}}
    octets: dict[str, Any] = {"application/octet-stream": {"schema": _BINARY}}
    json = spec.output_schema.json
    if isinstance(json, dict) and "contentEncoding" in json:  # bytes, most likely: generators take what comes first
        plain = {**octets, **plain}
    elif spec.output_schema.is_unknown:
        plain = {**plain, **octets}
    envelope = {
        "type": "object",
        "properties": {"data": output, "meta": {"$ref": f"{PREFIX}ResponseMeta"}},
        "required": ["data", "meta"],
    }
    return {**plain, ENVELOPE_JSON: {"schema": envelope}}


MAX_KEPT = 16
"""Documents that are kept: callers of different rights see different ones."""


class Document(NamedTuple):
    """A document as it is sent. It holds the specifications that it was made of, so that their ids stay theirs."""

    body: bytes
    etag: bytes
    specs: tuple[OperationSpec, ...]


class Documents:
    """Builds the document of what a caller may see, and keeps it until the registry changes."""

    def __init__(self, registry: OperationRegistry, about: About) -> None:
        self._registry = registry
        self._about = about
        self._kept: dict[tuple[object, ...], Document] = {}
        self._building: dict[tuple[object, ...], asyncio.Task[Document]] = {}

    def visible(self, identity: Identity | None) -> tuple[OperationSpec, ...]:
        """The operations that a caller may call, in the order of their ids."""
        return tuple(spec for spec in self._callable() if may_access(spec, identity))

    async def document(self, identity: Identity | None, query: bytes, server: str) -> Document:
        """The document that a caller asks for.

        Raises:
            CallError: PROTOCOL_ERROR, if there is none of that version.
        """
        version = _version(query)
        about = msgspec.structs.replace(self._about, server=server or "/")
        specs = self.visible(identity)
        key = (version, about.server, *map(id, specs))
        if key in self._kept:
            return self._kept[key]
        building = self._building.get(key)
        if building is None:  # one for all who ask: a registry of a thousand operations takes a while
            building = self._building[key] = asyncio.create_task(self._build(key, specs, about, version))
        return await asyncio.shield(building)

    async def _build(
        self, key: tuple[object, ...], specs: tuple[OperationSpec, ...], about: About, version: Version
    ) -> Document:
        try:
            names = operation_names(self._callable())
            built = await asyncio.to_thread(_built, specs, about, version, names)  # the loop has other things to do
        finally:
            del self._building[key]
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = built
        return built

    def _callable(self) -> list[OperationSpec]:
        specs = (spec for spec in self._registry.list() if self._registry.get_handler(spec.id) is not None)
        return sorted(specs, key=lambda spec: spec.id)


def _built(specs: tuple[OperationSpec, ...], about: About, version: Version, names: dict[str, str]) -> Document:
    body = msgspec.json.encode(build_document(specs, about, version=version, names=names))
    return Document(body, b'"%s"' % sha256(body).hexdigest()[:32].encode(), specs)


def _version(query: bytes) -> Version:
    try:
        given = parse_qs(query.decode("latin-1"), max_num_fields=_MAX_FIELDS).get("version", ["3.1"])[-1]
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"the query string cannot be read: {error}") from error
    for version in ("3.1", "3.2"):
        if given in (version, VERSIONS[version]):
            return version
    raise CallError(ErrorCode.PROTOCOL_ERROR, f"the document is there in versions {' and '.join(VERSIONS)}")


_MAX_FIELDS = 20
