from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from typing_extensions import TypedDict  # before Python 3.12 the SDK wants this one

server = MCPServer("warehouse", log_level="ERROR")
STOCK = {"tea": 120, "pot": 3}


class Stock(TypedDict):
    article: str
    pieces: int


@server.tool()
def stock(article: str) -> Stock:
    """How many pieces of an article there are."""
    if article not in STOCK:
        raise ToolError(f"there is no {article}")
    return {"article": article, "pieces": STOCK[article]}


if __name__ == "__main__":
    server.run("stdio")
