"""The tool on `serve_mcp`: `python -m benchmarks.mcp_tools.opwire_server stdio|http`."""

import asyncio
import sys

from benchmarks.mcp_tools.registry import registry
from opwire.mcp.server import serve_mcp
from opwire.protocol import LOCAL_IDENTITY

surface = serve_mcp(registry, name="benchmark")


async def serve_http() -> None:
    """Print the address, and serve as `opwire serve` does, until the standard input ends."""
    async with surface.asgi(anonymous=LOCAL_IDENTITY).listening() as address:
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(surface.run_stdio() if sys.argv[1] == "stdio" else serve_http())
