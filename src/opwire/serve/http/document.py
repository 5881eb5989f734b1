"""The OpenAPI document of a registry, as one caller may see it; documents are built once and cached."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from opwire.dispatch import Dispatcher
from opwire.errors import CallError, ErrorCode
from opwire.names import UniqueNames
from opwire.operation import Identity, OperationSpec, OperationType
from opwire.origin import ENVELOPE_JSON, ORIGIN_EXTENSION, Origin, path_of
from opwire.schema.dialect import JSONSchema
from opwire.serve.guard import PROBLEM_JSON
from opwire.serve.http.components import NAMED_SCHEMAS, PREFIX, Components
from opwire.serve.http.request import Route
from opwire.typed.plain import as_dict

OpenAPIVersion = Literal["3.1", "3.2"]
VERSIONS: Mapping[OpenAPIVersion, str] = {"3.1": "3.1.1", "3.2": "3.2.0"}

MAX_DOCUMENTS = 16
"""Documents in the cache: callers with different rights see different ones."""

_VERSIONS: dict[str, OpenAPIVersion] = {
    given: version for version, full in VERSIONS.items() for given in (version, full)
}
_MAX_FIELDS = 20
_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
_STRING = {"type": "string"}
_BINARY = {"type": "string", "format": "binary"}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class DocumentInfo(Struct, frozen=True, kw_only=True):
    """The parts of a document besides its operations."""

    title: str
    version: str
    description: str = ""
    server: str = "/"
    takes_tokens: bool = False
    allows_anonymous: bool = False  # callers without a token have an identity, too


def build_document(
    specs: Iterable[OperationSpec],
    info: DocumentInfo,
    *,
    version: OpenAPIVersion = "3.1",
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the document of these operations. `names` are their operationIds; the default considers these alone."""
    listed = list(specs)
    builder = _DocumentBuilder(info, version, operation_names(listed) if names is None else names)
    document: dict[str, Any] = {
        "openapi": VERSIONS[version],
        "info": {"title": info.title, "version": info.version},
        "servers": [{"url": info.server}],
        "paths": {path_of(spec.id): builder.path_item(spec) for spec in listed},
        "components": {"schemas": dict(sorted(builder.components.schemas.items()))},
    }
    if info.description:
        document["info"]["description"] = info.description
    if info.takes_tokens:
        document["components"]["securitySchemes"] = _SCHEMES
        document["security"] = [*({name: []} for name in _SCHEMES), *([{}] if info.allows_anonymous else [])]
    return document


def operation_names(specs: Iterable[OperationSpec]) -> dict[str, str]:
    """Return an operationId for every operation, and one for its GET as `id?`: letters, digits and underscores."""
    names: dict[str, str] = {}
    unique = UniqueNames()
    for spec in specs:
        for key, wish in ((spec.id, spec.id), (f"{spec.id}?", f"{spec.id}_get")):
            plain = _UNSAFE.sub("_", wish).strip("_") or "operation"
            names[key] = unique.take(f"_{plain}" if plain[0].isdigit() else plain)
    return names


class _DocumentBuilder:
    def __init__(self, info: DocumentInfo, version: OpenAPIVersion, names: Mapping[str, str]) -> None:
        self.components = Components(NAMED_SCHEMAS)
        self._info = info
        self._version = version
        self._names = names

    def path_item(self, spec: OperationSpec) -> dict[str, Any]:
        """Return POST for every operation, and GET for those that only read and fit a query string."""
        name = self._names[spec.id]
        input = self.components.place(spec.input_schema, f"{name}_input")
        common = {
            "tags": list(spec.tags) or [spec.namespace],
            **({"summary": spec.title} if spec.title else {}),
            **({"description": spec.description} if spec.description else {}),
            **({"security": []} if self._info.takes_tokens and spec.access and spec.access.public else {}),
            ORIGIN_EXTENSION: Origin.of(spec).to_json(),
            "responses": self._responses(spec, name),
        }
        json = as_dict(spec.input_schema.json)
        is_optional = spec.input_schema.is_unknown or (json.get("type") == "object" and not json.get("required"))
        body = {"required": not is_optional, "content": {"application/json": {"schema": input}}}
        item: dict[str, Any] = {"post": {"operationId": name, **common, "requestBody": body}}
        if "GET" in Route.of(spec).methods:
            if isinstance(input, dict) and "$ref" in input:
                input = self.components.schemas[input["$ref"].removeprefix(PREFIX)]
            flat = as_dict(input)
            parameters = [
                {"name": each, "in": "query", "required": each in flat.get("required", ()), "schema": schema}
                for each, schema in flat.get("properties", {}).items()
            ]
            item["get"] = {"operationId": self._names[f"{spec.id}?"], **common, "parameters": parameters}
        return item

    def _responses(self, spec: OperationSpec, name: str) -> dict[str, Any]:
        output = self.components.share(self.components.place(spec.output_schema, f"{name}_output"), f"{name}_output")
        streams = spec.type is OperationType.SUBSCRIPTION
        content = self._events(output) if streams else self._content(spec, output)
        problem = {"schema": {"$ref": f"{PREFIX}Problem"}}
        return {
            "200": {"description": "The items, as events" if streams else "The result", "content": content},
            "default": {"description": "The error", "content": {PROBLEM_JSON: problem}},
        }

    def _events(self, item: JSONSchema) -> dict[str, Any]:
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": item}
        fields = {"data": data, "event": _STRING, "id": _STRING, "retry": {"type": "integer", "minimum": 0}}
        event = {"type": "object", "properties": fields, "required": ["data"]}
        # 3.1 cannot describe streams. Parsers that support events take the schema for that of one event.
        return {"text/event-stream": {"schema" if self._version == "3.1" else "itemSchema": event}}

    def _content(self, spec: OperationSpec, output: JSONSchema) -> dict[str, Any]:
        plain: dict[str, Any] = {"application/json": {"schema": output}}
        octets: dict[str, Any] = {"application/octet-stream": {"schema": _BINARY}}
        if "contentEncoding" in as_dict(spec.output_schema.json):  # most likely bytes: generators take the first type
            plain = {**octets, **plain}
        elif spec.output_schema.is_unknown:
            plain = {**plain, **octets}
        envelope = {
            "type": "object",
            "properties": {"data": output, "meta": {"$ref": f"{PREFIX}ResponseMeta"}},
            "required": ["data", "meta"],
        }
        return {**plain, ENVELOPE_JSON: {"schema": envelope}}


class EncodedDocument(NamedTuple):
    """A document as JSON. It keeps its specs alive, so that their object ids, which are cache keys, stay unique."""

    body: bytes
    etag: bytes
    specs: tuple[OperationSpec, ...]


class DocumentCache:
    """Build the document of the operations that a caller may see, and cache it until the registry changes."""

    def __init__(self, dispatcher: Dispatcher, info: DocumentInfo) -> None:
        self._dispatcher = dispatcher
        self._info = info
        self._cached: dict[tuple[object, ...], EncodedDocument] = {}
        self._building: dict[tuple[object, ...], asyncio.Task[EncodedDocument]] = {}

    async def get(self, identity: Identity | None, query: bytes, server: str) -> EncodedDocument:
        """Return the document for a caller; the query string may name a version.

        Raises:
            CallError: PROTOCOL_ERROR, if the version is unknown.
        """
        try:
            given = parse_qs(query.decode("latin-1"), max_num_fields=_MAX_FIELDS).get("version", ["3.1"])[-1]
        except ValueError as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"invalid query string: {error}") from error
        version = _VERSIONS.get(given)
        if version is None:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"unknown version; there are {' and '.join(VERSIONS)}")
        info = msgspec.structs.replace(self._info, server=server or "/")
        specs = tuple(sorted(self._dispatcher.visible(identity), key=lambda spec: spec.id))
        key = (version, info.server, *map(id, specs))
        if key in self._cached:
            return self._cached[key]
        building = self._building.get(key)
        if building is None:  # one for all requests: a registry of a thousand operations takes a while
            building = self._building[key] = asyncio.create_task(self._build(key, specs, info, version))
        return await asyncio.shield(building)

    async def _build(
        self, key: tuple[object, ...], specs: tuple[OperationSpec, ...], info: DocumentInfo, version: OpenAPIVersion
    ) -> EncodedDocument:
        def build() -> EncodedDocument:
            body = msgspec.json.encode(build_document(specs, info, version=version, names=names))
            return EncodedDocument(body, b'"%s"' % sha256(body).hexdigest()[:32].encode(), specs)

        try:
            served = [spec for spec in self._dispatcher.registry.list() if self._dispatcher.is_served(spec)]
            names = operation_names(sorted(served, key=lambda spec: spec.id))
            document = await asyncio.to_thread(build)  # keeps the event loop free
        finally:
            del self._building[key]
        while len(self._cached) >= MAX_DOCUMENTS:
            del self._cached[next(iter(self._cached))]
        self._cached[key] = document
        return document
