"""The answers of an operation: their schemas by status and content type, and the one that stands for all.

What stands for all is the schema of the successful answer, JSON if there is a choice; a union where several differ. A
call is judged by the status and content type that really came.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from opwire.adapters.openapi.endpoints import Content, Endpoint, successes
from opwire.adapters.openapi.media import accept_header, is_any, is_json, is_text, preferred, stream_kind
from opwire.adapters.openapi.media_types import media_type
from opwire.adapters.openapi.plan import Media, StreamKind
from opwire.adapters.openapi.refs import Documents, Place
from opwire.adapters.openapi.schemas import Schemas, Written
from opwire.adapters.openapi.shapes import mapping, sequence
from opwire.schema import UNKNOWN, JSONSchema, Schema

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
