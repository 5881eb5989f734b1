"""The OpenAPI document of a registry, as one caller may see it; documents are built once and cached."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from opwire.asgi.problem import PROBLEM_JSON
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec, OperationType
from opwire.model.origin import ENVELOPE_JSON, ORIGIN_EXTENSION, Origin, path_of
from opwire.names import UniqueNames
from opwire.openapi.server.components import NAMED_SCHEMAS, PREFIX, Components
from opwire.openapi.server.request import OperationRoute
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.bounded import BoundedDict
from opwire.typed.plain import as_dict

OpenAPIVersion = Literal["3.1", "3.2"]
VERSIONS: Mapping[OpenAPIVersion, str] = {"3.1": "3.1.1", "3.2": "3.2.0"}

MAX_DOCUMENTS = 16
"""Documents in the cache: callers with different rights see different ones."""

HIDDEN_EXTENSION = "x-opwire-hidden"
"""Where `info` of a document for callers without a token has the number of operations that are not listed."""

NEEDS_TOKEN = "send a token, as `Authorization: Bearer …` or as `X-API-Key: …`"  # noqa: S105 - a message

MAX_SUMMARY = 120
"""Characters of a summary that is taken from a description."""

_VERSIONS: dict[str, OpenAPIVersion] = {name: short for short, full in VERSIONS.items() for name in (short, full)}
_MAX_FIELDS = 20
_UNSAFE = re.compile(r"[^A-Za-z0-9]+")
_BINARY = {"type": "string", "format": "binary"}
_PROBLEM = {"schema": {"$ref": f"{PREFIX}Problem"}}
_RESPONSES = {"Problem": {"description": "The error", "content": {PROBLEM_JSON: _PROBLEM}}}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class DocumentInfo(Struct, frozen=True, kw_only=True):
    """The parts of a document besides its operations."""

    title: str
    version: str
    description: str = ""
    servers: tuple[str, ...] = ()
    server: str = "/"  # if there are no others
    takes_tokens: bool = False
    allows_anonymous: bool = False  # callers without a token have an identity, too
    hidden: int = 0  # served operations that callers without a token may not call


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
        "servers": [{"url": url} for url in info.servers or [info.server]],
        "security": [],
        "tags": [{"name": tag_name} for tag_name in sorted({tag for spec in listed for tag in tags_of(spec)})],
        "paths": {path_of(spec.id): builder.path_item(spec) for spec in listed},
        "components": {"schemas": dict(sorted(builder.components.schemas.items())), "responses": _RESPONSES},
    }
    notes = [info.description] if info.description else []
    if info.hidden:
        document["info"][HIDDEN_EXTENSION] = info.hidden
        what = "1 more operation is" if info.hidden == 1 else f"{info.hidden:,} more operations are"
        how = NEEDS_TOKEN if info.takes_tokens else "this server accepts no tokens"
        notes.append(f"{what} not listed; {how}.")
    if notes:
        document["info"]["description"] = "\n\n".join(notes)
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


def summary_of(spec: OperationSpec) -> str:
    """Return the title of an operation; else the first sentence of its description, or its id."""
    if spec.title:
        return spec.title
    paragraph = " ".join(spec.description.strip().partition("\n\n")[0].split())
    sentence = paragraph.partition(". ")[0].removesuffix(".")
    if len(sentence) > MAX_SUMMARY:
        sentence = sentence[:MAX_SUMMARY].rpartition(" ")[0] + "…"
    return sentence or spec.id


def tags_of(spec: OperationSpec) -> list[str]:
    """Return the tags of an operation, each once; or its namespace."""
    return list(dict.fromkeys(spec.tags)) or [spec.namespace]


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
            "tags": tags_of(spec),
            "summary": summary_of(spec),
            **({"description": spec.description} if spec.description else {}),
            **({"security": []} if self._info.takes_tokens and spec.access and spec.access.public else {}),
            ORIGIN_EXTENSION: msgspec.to_builtins(Origin.of(spec, untitled=not spec.title)),
            "responses": self._responses(spec, name),
        }
        json = as_dict(spec.input_schema.json)
        is_optional = spec.input_schema.is_unknown or (json.get("type") == "object" and not json.get("required"))
        body = {"required": not is_optional, "content": {"application/json": {"schema": input}}}
        item: dict[str, Any] = {"post": {"operationId": name, **common, "requestBody": body}}
        if "GET" in OperationRoute.of(spec).methods:
            if isinstance(input, dict) and "$ref" in input:
                input = self.components.schemas[input["$ref"].removeprefix(PREFIX)]
            flat = as_dict(input)
            parameters = [
                {
                    "name": parameter_name,
                    "in": "query",
                    "required": parameter_name in flat.get("required", ()),
                    "schema": schema,
                }
                for parameter_name, schema in flat.get("properties", {}).items()
            ]
            item["get"] = {"operationId": self._names[f"{spec.id}?"], **common, "parameters": parameters}
        return item

    def _responses(self, spec: OperationSpec, name: str) -> dict[str, Any]:
        output = self.components.share(self.components.place(spec.output_schema, f"{name}_output"), f"{name}_output")
        problem = {"$ref": "#/components/responses/Problem"}
        errors: dict[str, Any] = {"4XX": problem, "default": problem}
        if spec.type is OperationType.SUBSCRIPTION:
            data = {"type": "string", "contentMediaType": "application/json", "contentSchema": output}
            text = {"type": "string"}
            fields = {"data": data, "event": text, "id": text, "retry": {"type": "integer", "minimum": 0}}
            event = {"type": "object", "properties": fields, "required": ["data"]}
            # 3.1 cannot describe streams. Parsers that support events take the schema for that of one event.
            events = {"text/event-stream": {"schema" if self._version == "3.1" else "itemSchema": event}}
            return {"200": {"description": "The items, as events", "content": events}, **errors}
        content: dict[str, Any] = {"application/json": {"schema": output}}
        octets: dict[str, Any] = {"application/octet-stream": {"schema": _BINARY}}
        if "contentEncoding" in as_dict(spec.output_schema.json):  # most likely bytes: generators take the first type
            content = {**octets, **content}
        elif spec.output_schema.is_unknown:
            content = {**content, **octets}
        envelope = {
            "type": "object",
            "properties": {"data": output, "meta": {"$ref": f"{PREFIX}ResponseMeta"}},
            "required": ["data", "meta"],
        }
        content[ENVELOPE_JSON] = {"schema": envelope}
        return {"200": {"description": "The result", "content": content}, **errors}


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
        self._cached: BoundedDict[tuple[object, ...], EncodedDocument] = BoundedDict(MAX_DOCUMENTS)
        self._building: dict[tuple[object, ...], asyncio.Task[EncodedDocument]] = {}

    async def get(self, identity: Identity | None, query: bytes, server: str) -> EncodedDocument:
        """Return the document for a caller; the query string may name a version.

        Callers without an identity see public operations, and the number of the others. Without any public one they are
        rejected, if the server accepts tokens.

        Raises:
            CallError: PROTOCOL_ERROR, if the version is unknown; UNAUTHENTICATED.
        """
        try:
            requested_version = parse_qs(query.decode("latin-1"), max_num_fields=_MAX_FIELDS).get("version", ["3.1"])[
                -1
            ]
        except ValueError as error:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"invalid query string: {error}") from error
        version = _VERSIONS.get(requested_version)
        if version is None:
            raise CallError(ErrorCode.PROTOCOL_ERROR, f"unknown version; there are {' and '.join(VERSIONS)}")
        specs = tuple(sorted(self._dispatcher.visible(identity), key=lambda spec: spec.id))
        hidden = 0 if identity is not None else len(self._dispatcher.served()) - len(specs)
        if hidden and not specs and self._info.takes_tokens:
            what = "the operation is" if hidden == 1 else f"all {hidden:,} operations are"
            raise CallError(ErrorCode.UNAUTHENTICATED, f"{what} for callers with a token; {NEEDS_TOKEN}")
        info = msgspec.structs.replace(self._info, server=server or "/", hidden=hidden)
        key = (version, info.server, hidden, *map(id, specs))
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
            names = operation_names(sorted(self._dispatcher.served(), key=lambda spec: spec.id))
            document = await asyncio.to_thread(build)  # keeps the event loop free
        finally:
            del self._building[key]
        self._cached[key] = document
        return document
