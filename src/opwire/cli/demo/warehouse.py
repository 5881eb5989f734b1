"""The second source: an MCP server on standard input and output, made with the official SDK alone.

python -m opwire.cli.demo.warehouse
"""

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from typing_extensions import TypedDict  # pydantic, which reads it, wants this one before Python 3.12

_STOCK = {"tea": (120, "A1"), "cup": (24, "B3"), "pot": (3, "B4")}


class Stock(TypedDict):
    """What lies on a shelf."""

    article: str
    pieces: int
    shelf: str


def stock(article: str) -> Stock:
    """How many pieces of an article there are, and where."""
    pieces, shelf = _STOCK[article]
    return {"article": article, "pieces": pieces, "shelf": shelf}


def reserve(article: str, pieces: int) -> str:
    """Put pieces of an article aside."""
    there = _STOCK[article][0]
    if pieces > there:
        raise ToolError(f"there are only {there} pieces of {article}")
    return f"{pieces} pieces of {article} are put aside"


def warehouse() -> MCPServer:
    """The server."""
    server = MCPServer("warehouse", version="1.0", log_level="ERROR")
    server.tool(annotations=ToolAnnotations(read_only_hint=True))(stock)
    server.tool()(reserve)
    return server


if __name__ == "__main__":
    warehouse().run("stdio")
