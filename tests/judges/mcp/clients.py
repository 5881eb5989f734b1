"""Clients of others, in the environments of the judges: `clients.py NAME URL` prints what a served registry gave them.

Each lists the tools, and calls one with an argument.
"""

import asyncio
import json
import sys
from typing import Any

TOOL, ARGUMENTS = "test_header_echo", {"region": "north"}


async def sdk1(url: str) -> tuple[list[str], Any]:
    """The SDK 1."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as session:  # pyright: ignore
        await session.initialize()
        tools = await session.list_tools()
        return [each.name for each in tools.tools], (await session.call_tool(TOOL, ARGUMENTS)).structuredContent  # pyright: ignore


async def sdk2(url: str) -> tuple[list[str], Any]:
    """The SDK 2, in its newest revision."""
    from mcp import Client

    async with Client(url) as client:
        tools = await client.list_tools()
        return [each.name for each in tools.tools], (await client.call_tool(TOOL, ARGUMENTS)).structured_content


async def fastmcp(url: str) -> tuple[list[str], Any]:
    """FastMCP."""
    from fastmcp import Client  # pyright: ignore

    async with Client(url) as client:
        tools = await client.list_tools()
        return [each.name for each in tools], (await client.call_tool(TOOL, ARGUMENTS)).data


async def pydantic_ai(url: str) -> tuple[list[str], Any]:
    """The toolset of pydantic-ai."""
    from pydantic_ai.mcp import MCPToolset  # pyright: ignore

    async with MCPToolset(url) as toolset:
        tools = await toolset.list_tools()
        return [each.name for each in tools], await toolset.direct_call_tool(TOOL, ARGUMENTS)


async def openai_agents(url: str) -> tuple[list[str], Any]:
    """The OpenAI Agents SDK."""
    from agents.mcp import MCPServerStreamableHttp  # pyright: ignore

    async with MCPServerStreamableHttp({"url": url}, client_session_timeout_seconds=30) as server:
        tools = await server.list_tools()
        result = (await server.call_tool(TOOL, ARGUMENTS)).model_dump(by_alias=True)
        return [each.name for each in tools], result["structuredContent"]


async def langchain(url: str) -> tuple[list[str], Any]:
    """The adapters of LangChain."""
    from langchain_mcp_adapters.client import MultiServerMCPClient  # pyright: ignore

    client = MultiServerMCPClient({"served": {"transport": "streamable_http", "url": url}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    (block,) = await tools[TOOL].ainvoke(ARGUMENTS)
    return [*tools], json.loads(block["text"])


async def main(name: str, url: str) -> None:
    tools, echoed = await globals()[name](url)
    sys.stdout.write(json.dumps({"tools": tools, "echoed": echoed}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
