"""fastmcp's tools of an OpenAPI document, beside the bare client that they use: `... METHOD ADDRESS`."""

import asyncio
import sys

import httpx2
from fastmcp import Client, FastMCP  # pyright: ignore[reportMissingImports] - its own environment

from benchmarks.exchanges import Way, race, report
from benchmarks.http.bare_httpx2 import httpx2_calls
from benchmarks.http.document import asked, document


async def main(method: str, address: str) -> None:
    tool = f"{method.lower()}_sum"
    async with httpx2_calls(address) as bare, httpx2.AsyncClient(base_url=address) as http:
        server = FastMCP.from_openapi(document(address), http)

        async def call_tool(number: int) -> int:
            result = await server.call_tool(tool, asked(number))
            return result.structured_content["sum"]

        async with Client(server) as client:

            async def client_call(number: int) -> int:
                result = await client.call_tool(tool, asked(number))
                return result.structured_content["sum"]

            ways = [
                Way("bare httpx2", bare[method]),
                Way("from_openapi, server.call_tool", call_tool),
                Way("from_openapi, client.call_tool", client_call),
            ]
            report(await race(ways), "fastmcp")


asyncio.run(main(*sys.argv[1:]))
