"""`registry.preview` of operations of HTTP APIs shows the request that `execute` sends."""

from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.model.context import Context
from opwire.openapi.client import from_openapi
from tests.openapi.client.echo import EchoServer

SECRET = "s3cret-of-ours"
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
ADDED_BY_HTTP = {"host", "user-agent", "accept-encoding", "content-length"}
SCHEMES: dict[str, Any] = {
    "header": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "api key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "session"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "oauth": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "/token", "scopes": {}}}},
}
CREDENTIALS: dict[str, Any] = {
    **dict.fromkeys(("header", "query", "cookie", "bearer"), SECRET),
    "basic": ("ann", SECRET),
    "oauth": {"client_id": "ann", "client_secret": SECRET},
}


def document(server: EchoServer, scheme: str) -> dict[str, Any]:
    add = {
        "operationId": "add",
        "parameters": [{"name": "dry", "in": "query", "schema": {"type": "boolean"}}],
        "requestBody": {"content": {"application/json": {"schema": {"type": "object", "properties": {"name": {}}}}}},
        "security": [{scheme: []}],
        "responses": {"200": {"description": "ok"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "pets", "version": "1"},
        "servers": [{"url": server.url}],
        "components": {"securitySchemes": SCHEMES},
        "paths": {"/pets/{id}": {"parameters": [PATH], "post": add}},
    }


PATH = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
INPUT = {"id": "a/b", "dry": True, "name": "Rex"}


@pytest.fixture
async def server() -> Any:
    async with EchoServer() as server:
        yield server


@pytest.mark.parametrize("scheme", ["header", "query", "cookie", "bearer", "basic"])
async def test_a_previewed_http_request_is_the_one_that_is_sent(server: EchoServer, scheme: str) -> None:
    """A preview shows the request that a call sends, without sending it and without credentials."""
    registry, context = OperationRegistry(), Context(metadata=TRACE)
    source = from_openapi(document(server, scheme), credentials=CREDENTIALS, headers={"X-Tenant": SECRET})
    async with source:
        registry.register_all(source)
        shown = await registry.preview("pets.add", INPUT, context, reveal=True)
        hidden = await registry.preview("pets.add", INPUT, context)
        assert server.arrived == []
        await registry.execute("pets.add", INPUT, context)
    [sent] = server.arrived
    assert f"{sent.method} {server.url}{sent.path}?{sent.query}" == f"{shown.method} {shown.url}"
    assert [pair for pair in sent.headers if pair[0].lower() not in ADDED_BY_HTTP] == list(shown.headers)
    assert sent.body == shown.body == hidden.body
    assert SECRET in str((shown.url, shown.headers)) or scheme == "basic"
    assert SECRET not in str((hidden.url, hidden.headers))
    assert [name for name, _ in hidden.headers] == [name for name, _ in shown.headers]
    assert "***" in str((hidden.url, hidden.headers))
    assert SECRET not in repr(shown)


async def test_a_preview_requests_no_token(server: EchoServer) -> None:
    registry = OperationRegistry()
    async with from_openapi(document(server, "oauth"), credentials=CREDENTIALS) as source:
        registry.register_all(source)
        shown = await registry.preview("pets.add", INPUT, reveal=True)
    assert dict(shown.headers)["Authorization"] == "Bearer ***"
    assert server.arrived == []
