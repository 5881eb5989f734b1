"""fastmcp's client on the server of the MCP ladder, beside the SDK's client: `... PYTHON`, which runs the server."""

import asyncio
import sys
from importlib.metadata import version

from fastmcp import Client  # pyright: ignore[reportMissingImports] - its own environment
from fastmcp.client.transports import StdioTransport  # pyright: ignore[reportMissingImports]

from benchmarks.exchanges import Way, children, race, report
from benchmarks.mcp_tools.clients import SDK_SERVER, sdk_over_stdio
from benchmarks.peers import ROOT
from benchmarks.transports.messages import NOTE


async def main(python: str) -> None:
    async with sdk_over_stdio(python, SDK_SERVER, "add") as (sdk, sdk_server):
        before = children()
        async with Client(StdioTransport(python, list(SDK_SERVER), cwd=str(ROOT), keep_alive=False)) as client:
            (pid,) = children() - before

            async def call(number: int) -> int:
                result = await client.call_tool("add", {"a": number, "b": 1, "note": NOTE})
                return result.structured_content["sum"]

            ways = [Way(f"mcp {version('mcp')}", sdk, sdk_server), Way("client.call_tool", call, pid)]
            report(await race(ways), "fastmcp")


asyncio.run(main(sys.argv[1]))
