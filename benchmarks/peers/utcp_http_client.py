"""utcp-http's tools of an OpenAPI document, beside bare aiohttp, which they use: `... METHOD ADDRESS`."""

import asyncio
import logging
import sys

from utcp.utcp_client import UtcpClient  # pyright: ignore[reportMissingImports] - its own environment
from utcp_http.http_call_template import HttpCallTemplate  # pyright: ignore[reportMissingImports]

from benchmarks.exchanges import Way, race, report
from benchmarks.http.bare_aiohttp import aiohttp_calls
from benchmarks.http.document import asked


async def main(method: str, address: str) -> None:
    logging.getLogger().setLevel(logging.WARNING)
    client = await UtcpClient.create()
    await client.register_manual(HttpCallTemplate(name="api", url=f"{address}/openapi.json"))

    async def call(number: int) -> int:
        given = asked(number) if method == "GET" else {"body": asked(number)}
        return (await client.call_tool(f"api.{method.lower()}_sum", given))["sum"]

    async with aiohttp_calls(address) as bare:
        figures = await race([Way("bare aiohttp", bare[method]), Way("call_tool", call)])
    await client.close()
    report(figures, "utcp-http")


asyncio.run(main(*sys.argv[1:]))
