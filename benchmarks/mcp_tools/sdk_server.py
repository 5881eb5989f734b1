"""The tool on the SDK's low-level server: `python -m benchmarks.mcp_tools.sdk_server stdio|http`."""

import asyncio
import sys
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

from benchmarks.http.uvicorn_server import run
from benchmarks.upstream import round_trip

_INPUT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["a", "b", "note"],
}
_OUTPUT = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
_TOOL = types.Tool(name="add", description="Add two numbers.", input_schema=_INPUT, output_schema=_OUTPUT)


async def _list_tools(_: Any, __: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_TOOL])


async def _call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    given = params.arguments or {}
    await round_trip()
    total = given["a"] + given["b"]
    text = types.TextContent(text=f'{{"sum":{total}}}')
    return types.CallToolResult(content=[text], structured_content={"sum": total})


server = Server("benchmark", on_list_tools=_list_tools, on_call_tool=_call_tool)


async def _stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(_stdio())
    else:
        run(server.streamable_http_app(), http="auto")
