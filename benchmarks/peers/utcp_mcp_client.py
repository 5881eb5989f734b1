"""utcp-mcp on the server of the MCP ladder, beside the client of the SDK that it stands on: `... PYTHON`."""

import asyncio
import logging
import sys
from importlib.metadata import version

from mcp import ClientSession, StdioServerParameters, stdio_client
from utcp.utcp_client import UtcpClient  # pyright: ignore[reportMissingImports] - its own environment
from utcp_mcp.mcp_call_template import McpCallTemplate, McpConfig  # pyright: ignore[reportMissingImports]

from benchmarks.exchanges import Way, race, report
from benchmarks.peers import ROOT
from benchmarks.transports.messages import NOTE

SERVER = ["-m", "benchmarks.mcp_tools.sdk_server", "stdio"]


async def main(python: str) -> None:
    logging.getLogger().setLevel(logging.WARNING)  # it logs every step of every call
    parameters = StdioServerParameters(command=python, args=SERVER, cwd=ROOT)
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        await session.initialize()

        async def control(number: int) -> int:
            result = await session.call_tool("add", {"a": number, "b": 1, "note": NOTE})
            return (result.structuredContent or {})["sum"]  # pyright: ignore[reportAttributeAccessIssue] - SDK 1

        servers = {"peer": {"command": python, "args": SERVER, "cwd": str(ROOT)}}
        client = await UtcpClient.create()
        await client.register_manual(McpCallTemplate(name="manual", config=McpConfig(mcpServers=servers)))

        async def call(number: int) -> int:
            return (await client.call_tool("manual.peer.add", {"a": number, "b": 1, "note": NOTE}))["sum"]

        figures = await race([Way(f"mcp {version('mcp')}", control), Way("call_tool", call)])
        await client.close()  # it prints when it does
    report(figures, "utcp-mcp")


asyncio.run(main(sys.argv[1]))
