"""fastmcp's server object called in process, and its client on the same server."""

import asyncio
from importlib.metadata import version
from typing import Any

from fastmcp import Client, FastMCP  # pyright: ignore[reportMissingImports] - its own environment

from benchmarks.measure import Contender
from benchmarks.peers import report
from benchmarks.work import BARE, EXECUTE, INPUT, SUM, add


async def main() -> None:
    server = FastMCP("benchmark")
    server.tool(add)

    async def call_tool(n: int) -> Any:
        result = None
        for _ in range(n):
            result = await server.call_tool("add", INPUT)
        return result

    async with Client(server) as client:

        async def client_call(n: int) -> Any:
            result = None
            for _ in range(n):
                result = await client.call_tool("add", INPUT)
            return result

        calls = [
            Contender("server.call_tool", call_tool, {"result": SUM}, lambda result: result.structured_content),
            Contender("client.call_tool", client_call, SUM, lambda result: result.data),
        ]
        await report(version("fastmcp"), BARE, EXECUTE, calls)


asyncio.run(main())
