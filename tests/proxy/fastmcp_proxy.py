"""FastMCP's proxy of a server, which is measured beside ours: `fastmcp_proxy.py URL` prints its port."""

import asyncio
import socket
import sys

import uvicorn
from fastmcp.server import create_proxy  # pyright: ignore[reportMissingImports]


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_proxy(sys.argv[1]).http_app()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[listener])


asyncio.run(main())
