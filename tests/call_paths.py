"""Count what one call passes through: Python calls inside the package, files, and changes from one module to another.

    python -m tests.call_paths

Calls are traced on a connection that is open, both ends of it in this process; of several, that with the fewest changes
counts, since a heartbeat may be among the others. The table is in `docs/architecture.md`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from secrets import token_urlsafe
from types import FrameType
from typing import Any

import aiohttp

import opwire
from opwire import Client, Hub, Identity, OperationRegistry, Spoke, from_mcp, from_openapi, serve_http, serve_mcp
from opwire.asgi.listener import listening
from opwire.auth import Grant, StaticTokens
from opwire.mcp.client import StdioServer
from tests.servers.brokers import NatsServer

PACKAGE = str(Path(opwire.__file__).parent)
ANYONE = Identity(id="anyone")
Call = Callable[[], Awaitable[object]]

registry = OperationRegistry()


@registry.query("math.add")
async def add(a: int, b: int) -> int:
    return a + b


@asynccontextmanager
async def local() -> AsyncIterator[Call]:
    yield lambda: registry.execute("math.add", {"a": 1, "b": 2})


@asynccontextmanager
async def over_broker() -> AsyncIterator[Call]:
    with NatsServer() as server:
        async with Spoke(registry, server.url, anonymous=ANYONE), Client(server.url) as client:
            yield lambda: client.call("math.add", {"a": 1, "b": 2})


@asynccontextmanager
async def over_hub() -> AsyncIterator[Call]:
    token = token_urlsafe()
    tokens = StaticTokens({token: Grant(Identity(id="spoke", scopes=("*",)), announces=("math",))})
    async with (
        Hub(OperationRegistry(), "ws://127.0.0.1:0", authenticate=tokens) as hub,
        Spoke(registry, hub.url, token=token),
        Client(hub.url, token=token) as client,
    ):
        yield lambda: client.call("math.add", {"a": 1, "b": 2})


@asynccontextmanager
async def http_surface() -> AsyncIterator[Call]:
    async with listening(serve_http(registry, anonymous=ANYONE)) as address, aiohttp.ClientSession() as session:

        async def get() -> None:
            async with session.get(f"{address}/math/add?a=1&b=2") as response:
                assert await response.json() == 3

        yield get


@asynccontextmanager
async def openapi() -> AsyncIterator[Call]:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"3"})

    parameters = [{"name": name, "in": "query", "schema": {"type": "integer"}} for name in "ab"]
    content = {"application/json": {"schema": {"type": "integer"}}}
    get = {"parameters": parameters, "responses": {"200": {"description": "", "content": content}}}
    async with listening(answer) as address:
        document = {
            "openapi": "3.1.0",
            "info": {"title": "sums", "version": "1"},
            "servers": [{"url": address}],
            "paths": {"/add": {"get": {"operationId": "add", **get}}},
        }
        async with from_openapi(document) as source:
            called = OperationRegistry()
            called.follow(source)
            (spec,) = called.list()
            yield lambda: called.execute(spec.id, {"a": 1, "b": 2})


@asynccontextmanager
async def mcp_tool() -> AsyncIterator[Call]:
    program = "from mcp.server import MCPServer\nserver = MCPServer('sums', log_level='ERROR')\n"
    program += "@server.tool()\ndef add(a: int, b: int) -> int:\n    return a + b\nserver.run('stdio')\n"
    async with from_mcp(StdioServer(sys.executable, ("-c", program))) as source:
        called = OperationRegistry()
        called.follow(source)
        (spec,) = called.list()
        yield lambda: called.execute(spec.id, {"a": 1, "b": 2})


@asynccontextmanager
async def mcp_surface() -> AsyncIterator[Call]:
    app = serve_mcp(registry).asgi(anonymous=ANYONE)
    headers = {"Accept": "application/json, text/event-stream"}
    async with listening(app, on_drain=app.drain) as address, aiohttp.ClientSession(headers=headers) as session:

        async def post(method: str, params: Any, **more: Any) -> bytes:
            message = {"jsonrpc": "2.0", "method": method, "params": params, **more}
            async with session.post(f"{address}/mcp", json=message) as response:
                assert response.status < 300, await response.text()
                if "Mcp-Session-Id" in response.headers:
                    session.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
                return await response.read()

        async def call() -> None:
            body = await post("tools/call", {"name": "math_add", "arguments": {"a": 1, "b": 2}}, id=2)
            assert b'"structuredContent":{"result":3}' in body, body

        client = {"name": "call-paths", "version": "1"}
        await post("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}, id=1)
        await post("notifications/initialized", {})
        yield call


async def traced(call: Call) -> list[str]:
    """Return the files of the package in the order of the calls, except those of comprehensions."""
    frames: dict[int, FrameType] = {}  # kept, so that a coroutine that goes on is recognized

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.endswith(("comp>", "expr>")):
            frames.setdefault(id(frame), frame)

    sys.setprofile(profile)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return [frame.f_code.co_filename for frame in frames.values()]


def changes(files: list[str]) -> int:
    """Count how often a call is in another file than the call before it."""
    return sum(first != second for first, second in pairwise(files))


async def main() -> None:
    call_paths = {
        "local `execute`": local,
        "`Client` → broker → handler → reply": over_broker,
        "`Client` → hub → spoke": over_hub,
        "OpenAPI GET": openapi,
        "MCP tool": mcp_tool,
        "HTTP surface, GET": http_surface,
        "MCP surface, `tools/call`": mcp_surface,
    }
    for name, prepared in call_paths.items():
        async with prepared() as call:
            await call()
            files = min([await traced(call) for _ in range(5)], key=changes)
        print(f"{name}: {len(files)} calls, {len(set(files))} files, {changes(files)} changes")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
