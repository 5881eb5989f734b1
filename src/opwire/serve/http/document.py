"""The OpenAPI document of a registry, as one caller may see it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from opwire.names import UniqueNames
from opwire.operation import OperationSpec, OperationType
from opwire.origin import ORIGIN_EXTENSION, Origin
from opwire.schema.refs import JSONSchema
from opwire.serve.http.components import PREFIX, Components
from opwire.serve.http.flat import parameters_of
from opwire.serve.http.named_schemas import NAMED_SCHEMAS
from opwire.serve.problem import PROBLEM_JSON
from opwire.urls import ENVELOPE_JSON, path_of

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
