"""Serves the shop on standard input and output: `python -m tests.mcp.server.process`."""

import asyncio
import contextlib
import os
import sys

from opwire.mcp.server import serve_mcp
from tests.mcp.server.operations import shop


async def main() -> None:
    """Serve until the client closes the standard input, or calls the tool that stops the server."""
    registry = shop()
    serving = asyncio.current_task()
    assert serving is not None

    @registry.query("noise.print")
    def noise() -> str:
        os.write(1, b"not a message\n")
        return sys.stdin.read()

    @registry.mutation("shop.stop")
    async def stop() -> None:
        serving.cancel()
        await asyncio.Event().wait()

    await serve_mcp(registry, name="shop", version="1.0", instructions="Buy.").run_stdio()


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main())
    os.write(1, b"ended\n")
