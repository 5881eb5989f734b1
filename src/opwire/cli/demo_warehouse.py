"""The second source: an MCP server over stdio, built on the official SDK.

python -m opwire.cli.demo_warehouse
"""

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

_STOCK = {"tea": (120, "A1"), "cup": (24, "B3"), "pot": (3, "B4")}


class Stock(TypedDict):
    """The stock of an article."""

    article: str
    pieces: int
    shelf: str


def stock(article: str) -> Stock:
    """Return the number of pieces in stock, and their shelf."""
    pieces, shelf = _STOCK[article]
    return {"article": article, "pieces": pieces, "shelf": shelf}


def reserve(article: str, pieces: int) -> str:
    """Reserve pieces of an article."""
    available = _STOCK[article][0]
    if pieces > available:
        raise ToolError(f"only {available} pieces of {article} in stock")
    return f"{pieces} pieces of {article} reserved"


def warehouse() -> MCPServer:
    """Return the server."""
    server = MCPServer("warehouse", version="1.0", log_level="ERROR")
    server.tool(annotations=ToolAnnotations(read_only_hint=True))(stock)
    server.tool()(reserve)
    return server


if __name__ == "__main__":
    warehouse().run("stdio")
