"""Plans made by hand, for tests of what is done with them."""

from collections.abc import Mapping
from typing import Any

from opwire.adapters.openapi.plan import Media, Need, Plan, Scheme, StreamKind
from opwire.schema import UNKNOWN, Schema

KEY = Need(Scheme(name="key", kind="apiKey", location="header", parameter="X-Key"))
STREAMS: dict[StreamKind, str] = {
    "sse": "text/event-stream",
    "ndjson": "application/x-ndjson",
    "json-seq": "application/json-seq",
}


def plan_of(server: str, path: str = "/", method: str = "GET", **options: Any) -> Plan:
    """A plan without parameters."""
    return Plan(operation_id="api.call", method=method, path=path, server=server, **options)


def json_responses(schemas: Mapping[str, Schema]) -> dict[str, tuple[Media, ...]]:
    """Responses in JSON, by status."""
    return {status: (Media(content_type="application/json", schema=schema),) for status, schema in schemas.items()}


def stream_plan(server: str, kind: StreamKind = "sse", schema: Schema = UNKNOWN, method: str = "GET") -> Plan:
    """A plan of a stream at the path `/stream`."""
    media = Media(content_type=STREAMS[kind], schema=schema, stream=kind)
    return plan_of(server, "/stream", method, responses={"200": (media,)}, stream=kind, accept=STREAMS[kind])
