"""`registry.preview` shows the request that `execute` sends."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from opwire import OperationRegistry
from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import from_mcp
from opwire.model.operation import Context, PreparedRequest
from opwire.openapi.client import from_openapi
from tests.mcp.client.listed_server import MODERN, Stage, tool
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


@pytest.mark.parametrize("answers", [{}, MODERN], ids=["2025-11-25", "2026-07-28"])
async def test_a_previewed_mcp_request_is_the_one_that_is_sent(tmp_path: Path, answers: Any) -> None:
    received = {"result": "received"}
    registry = OperationRegistry()
    stage = Stage(tmp_path, tools=[tool("look")], answers=answers)
    async with from_mcp(stage.server, namespace="x") as source:
        registry.follow(source)
        shown = await registry.preview("x.look", received, Context(metadata=TRACE, on_progress=print))
        messages: Any = (await registry.execute("x.look", received, Context(metadata=TRACE, on_progress=print))).data
    message = msgspec.json.decode(shown.body or b"")
    sent = messages[-1]
    assert shown.protocol == "mcp"
    assert message.keys() == sent.keys()
    for each in (message, sent):
        del each["id"]
        del each["params"]["_meta"]["progressToken"]  # the next one
    assert message == sent
    assert sum(each.get("method") == "tools/call" for each in messages) == 1


async def test_invalid_input_is_rejected_and_a_function_does_not_run() -> None:
    registry = OperationRegistry()

    @registry.mutation("math.add")
    def add(a: int) -> int:
        raise AssertionError(a)

    assert await registry.preview("math.add", {"a": 1}) == PreparedRequest(protocol="local", body=b'{"a":1}')
    with pytest.raises(CallError) as failure:
        await registry.preview("math.add", {"a": "x"})
    assert failure.value.code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(CallError) as failure:
        await registry.preview("math.sub")
    assert failure.value.code is ErrorCode.OPERATION_NOT_FOUND
