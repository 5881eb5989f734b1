"""The tool on `serve_mcp`: `python -m benchmarks.mcp_tools.opwire_server stdio|http`."""

import asyncio
import sys

from benchmarks.http.uvicorn_server import run
from benchmarks.mcp_tools.registry import registry
from opwire.call import LOCAL_IDENTITY
from opwire.serve.mcp import serve_mcp

surface = serve_mcp(registry, name="benchmark")

if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(surface.run_stdio())
    else:
        run(surface.asgi(anonymous=LOCAL_IDENTITY))
