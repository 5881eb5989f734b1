"""Response schemas of an operation: by status and content type, and one for all.

The schema for all is that of the successful response, in JSON if there is a choice; a union of several that differ. The
result of a call is validated against the schema of its actual status and content type.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from opwire.adapters.openapi.document import DocumentSet, Located, SourceDocument
from opwire.adapters.openapi.endpoints import (
    HTTPEndpoint,
    MediaContent,
    accept_header,
    is_any,
    is_text,
    preferred,
    success_contents,
)
from opwire.adapters.openapi.plan import ResponseMedia, StreamKind, media_type
from opwire.adapters.openapi.schemas import RewrittenSchema, SchemaRewriter
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.typed.plain import as_dict, as_list

_EVENT_FIELDS = frozenset({"event", "data", "id", "retry"})
_DEPTH = 3  # of unions that are searched for an event
_NULL: JSONSchema = {"type": "null"}


class OperationOutput(NamedTuple):
    """The responses of an operation. `schema` builds the one for all."""

    responses: dict[str, tuple[ResponseMedia, ...]]
    schema: Callable[[], JSONSchema]
    accept: str
    stream: StreamKind | None


def response_kinds(endpoint: HTTPEndpoint, documents: DocumentSet) -> tuple[bool, bool]:
    """Return whether an operation has plain responses, and whether it has streams."""
    contents = success_contents(endpoint, documents).values()
    streams = [media_type(each.content_type).stream is not None for content in contents for each in content]
    return not all(streams), any(streams)


class OutputReader:
    """Reads the responses of one operation: either streams or plain ones."""

    def __init__(
        self, endpoint: HTTPEndpoint, documents: DocumentSet, schemas: SchemaRewriter, *, streams: bool
    ) -> None:
        self._endpoint = endpoint
        self._documents = documents
        self._schemas = schemas
        self._streams = streams

    def read(self, output_schema: Schema) -> OperationOutput:
        """Return the responses. `output_schema` is the operation's own, shared with the response that it comes from."""
        if self._endpoint.method == "HEAD":
            return OperationOutput({}, lambda: _NULL, "*/*", None)
        contents = {
            status: [each for each in types if bool(media_type(each.content_type).stream) is self._streams]
            for status, types in success_contents(self._endpoint, self._documents).items()
        }
        chosen = {status: preferred(types) for status, types in contents.items()}
        only = next(iter(chosen.values()), None) if len(chosen) == 1 else None
        responses = {
            status: tuple(self._media(each, output_schema if each is only else None) for each in types)
            for status, types in contents.items()
        }
        first = next((each for each in chosen.values() if each is not None), None)
        return OperationOutput(
            responses=responses,
            schema=lambda: self._overall(list(chosen.values())),
            accept=accept_header(
                [each.content_type for each in chosen.values() if each is not None],
                [each.content_type for types in contents.values() for each in types],
            ),
            stream=media_type(first.content_type).stream if self._streams and first is not None else None,
        )

    def _media(self, content: MediaContent, schema: Schema | None) -> ResponseMedia:
        if schema is None:
            is_declared = not {"schema", "itemSchema"}.isdisjoint(content.fields.value)
            schema = Schema.deferred(lambda: self._complete(self._schema(content))) if is_declared else UNKNOWN
        stream = media_type(content.content_type).stream
        return ResponseMedia(content_type=content.content_type, schema=schema, stream=stream)

    def _overall(self, chosen: list[MediaContent | None]) -> JSONSchema:
        if self._streams:
            chosen = [each for each in chosen if each is not None]
        rewritten = [RewrittenSchema(_NULL, set()) if each is None else self._schema(each) for each in chosen]
        if not rewritten or any(each.schema is True or each.schema == {} for each in rewritten):
            return True
        return self._complete(_union(rewritten))

    def _schema(self, content: MediaContent) -> RewrittenSchema:
        fields, home = content.fields
        kind = media_type(content.content_type)
        if kind.stream:
            return self._item_schema(fields, home, is_event=kind.stream == "sse")
        schema = fields.get("schema")
        node = self._schemas.resolve(schema, home).value
        is_string = node.get("type") == "string" and node.get("format") != "binary"
        is_data = kind.is_json or is_any(kind.name) or (is_text(kind.name) and is_string)
        if schema is None or not is_data or node.get("type") == "file":
            return RewrittenSchema(True, set())
        return self._read(Located(schema, home))

    def _item_schema(self, fields: dict[str, Any], home: SourceDocument, *, is_event: bool) -> RewrittenSchema:
        """Return the schema of one item, from that of an array of all items, or of an event with its fields."""
        schema = Located(fields.get("itemSchema", fields.get("schema", {})), home)
        node = self._schemas.resolve(*schema)
        if "itemSchema" not in fields and node.value.get("type") == "array":
            schema = Located(node.value.get("items", {}), node.document)
        data = self._event_data(schema) if is_event else []
        return _union([self._read(each) for each in data or [schema]])

    def _event_data(self, schema: Located, depth: int = 0) -> list[Located]:
        """Return the schemas of an event's data, if the schema describes whole events."""
        node, home = self._schemas.resolve(*schema)
        branches = [*as_list(node.get("oneOf")), *as_list(node.get("anyOf"))]
        if branches and depth < _DEPTH:
            found = [self._event_data(Located(each, home), depth + 1) for each in branches]
            if all(found):
                return [data for each in found for data in each]
        properties = as_dict(node.get("properties"))
        if "data" not in properties or not _EVENT_FIELDS.issuperset(properties):
            return []
        data = self._schemas.resolve(properties["data"], home)
        if "contentSchema" in data.value:
            return [Located(data.value["contentSchema"], data.document)]
        return [Located(properties["data"], home)]

    def _read(self, located: Located) -> RewrittenSchema:
        return self._schemas.read(*located, "output", f"{self._endpoint}, the response")

    def _complete(self, rewritten: RewrittenSchema) -> JSONSchema:
        return self._schemas.complete(rewritten.schema, rewritten.uses, "output")


def _union(rewritten: list[RewrittenSchema]) -> RewrittenSchema:
    different: list[JSONSchema] = []
    for each in rewritten:
        if each.schema not in different:
            different.append(each.schema)
    schema = different[0] if len(different) == 1 else {"anyOf": different}
    return RewrittenSchema(schema, {name for each in rewritten for name in each.uses})
