"""fastmcp's server with the tool of the MCP ladder: `python -m benchmarks.peers.fastmcp_tools stdio|http`."""

import sys
from dataclasses import dataclass

from fastmcp import FastMCP  # pyright: ignore[reportMissingImports] - its own environment

from benchmarks.http.uvicorn_server import run
from benchmarks.upstream import round_trip

server = FastMCP("benchmark")


@dataclass
class Sum:
    sum: int


@server.tool
async def add(a: int, b: int, note: str) -> Sum:
    """Add two numbers, after a wait for the upstream."""
    await round_trip()
    return Sum(a + b)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run(show_banner=False, log_level="WARNING")
    else:
        run(server.http_app(), http="auto")
