"""Plans made by hand, for tests of what is done with them."""

from collections.abc import Mapping
from typing import Any

from opwire.http.client import HTTPRequest
from opwire.openapi.client.plan import CallPlan, ResponseMedia, SecurityRequirement, SecurityScheme, StreamKind
from opwire.openapi.client.request import compile_request
from opwire.schema import UNKNOWN, Schema

KEY = SecurityRequirement(SecurityScheme(name="key", kind="apiKey", location="header", parameter="X-Key"))
STREAMS: dict[StreamKind, str] = {
    "sse": "text/event-stream",
    "ndjson": "application/x-ndjson",
    "json-seq": "application/json-seq",
}


def plan_of(server: str, path: str = "/", method: str = "GET", **options: Any) -> CallPlan:
    """A plan without parameters."""
    return CallPlan(operation_id="api.call", method=method, path=path, server=server, **options)


def json_responses(schemas: Mapping[str, Schema]) -> dict[str, tuple[ResponseMedia, ...]]:
    """Responses in JSON, by status."""
    return {
        status: (ResponseMedia(content_type="application/json", schema=schema),) for status, schema in schemas.items()
    }


def stream_plan(server: str, kind: StreamKind = "sse", schema: Schema = UNKNOWN, method: str = "GET") -> CallPlan:
    """A plan of a stream at the path `/stream`."""
    media = ResponseMedia(content_type=STREAMS[kind], schema=schema, stream=kind)
    return plan_of(server, "/stream", method, responses={"200": (media,)}, stream=kind, accept=STREAMS[kind])


def build_request(plan: CallPlan, input: Any) -> HTTPRequest:
    """The request for one input."""
    return compile_request(plan)(input)
