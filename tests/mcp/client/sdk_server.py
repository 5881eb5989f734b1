"""A well-behaved server on the SDK, in a process of its own: `python -m tests.mcp.client.sdk_server stdio|http`.

Over HTTP it takes streamable HTTP at /mcp and the transport of 2024 at /sse, and prints its port.
"""

import asyncio
import socket
import sys
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server: MCPServer[Any] = MCPServer("judge", version="7", instructions="Call add.", log_level="WARNING")
cancelled: list[str] = []


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
async def wait(name: str, ctx: Context) -> None:
    """Says that it has begun, and never ends by itself."""
    await ctx.report_progress(0, message="begun")
    try:
        await anyio.sleep_forever()
    finally:
        cancelled.append(name)


@server.tool()
def cancellations() -> list[str]:
    return cancelled


@server.tool()
async def count(to: int, ctx: Context) -> int:
    for number in range(to):
        await ctx.report_progress(number, to, f"step {number}")
    return to


@server.tool()
async def headers(ctx: Context) -> dict[str, str]:
    return {key: value for key, value in (ctx.headers or {}).items() if key.startswith(("x-", "mcp-"))}


@server.tool()
async def grow(ctx: Context) -> str:
    """Tells of a change in the way of each revision."""
    await ctx.notify_tools_changed()
    await ctx.notify_resource_updated("test://page")
    return "grown"


@server.resource("test://page")
def page() -> str:
    return "a page"


@server.tool()
async def ask(ctx: Context) -> str | types.InputRequiredResult:
    """As from 2026-07-28 on: the question is an answer, and the answer comes with a second call."""
    answers = ctx.input_responses
    if answers is None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = types.ElicitRequestFormParams(message="Who are you?", requested_schema=schema)
        return types.InputRequiredResult(
            input_requests={"who": types.ElicitRequest(params=params), "where": types.ListRootsRequest()},
            request_state="opaque ✓",
        )
    said = {key: value.model_dump(by_alias=True, mode="json", exclude_none=True) for key, value in answers.items()}
    return f"{ctx.request_state} {said}"


class Name(BaseModel):
    name: str


@server.tool()
async def ask_now(ctx: Context) -> str:
    """As until 2025-11-25: the question is a request of the server's, in the middle of the call."""
    await ctx.session.send_tool_list_changed()
    answer = await ctx.elicit("Who are you?", schema=Name)
    return answer.data.name if answer.action == "accept" else answer.action


@server.tool()
def large(size: int) -> str:
    return "x" * size


async def serve_http() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = server.streamable_http_app()
    app.router.routes.extend(server.sse_app().routes)
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await running.serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(server.run_stdio_async() if sys.argv[1] == "stdio" else serve_http())
