"""An MCP server on the official SDK, over stdio: books as resources, a prompt, and tools that change what there is."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("library", "1.0")
books = {"dune": "Sand."}


@server.resource("book://dune", mime_type="text/plain")
def dune() -> str:
    """A novel."""
    return books["dune"]


@server.resource("cover://dune", mime_type="image/png")
def cover() -> bytes:
    """Its cover."""
    return b"\x89PNG"


@server.resource("book://{title}")
def book(title: str) -> str:
    """Any book."""
    return books.get(title, "")


@server.prompt()
def review(title: str, mood: str = "kind") -> str:
    """Asks for a review."""
    return f"Write a {mood} review of {title}."


@server.tool()
async def rewrite(text: str, ctx: Context) -> int:
    """Rewrites the novel."""
    books["dune"] = text
    await ctx.notify_resource_updated("book://dune")
    return len(text)


@server.tool()
async def hire(name: str, ctx: Context) -> str:
    """Adds a tool."""
    server.add_tool(rewrite, name=name)
    await ctx.notify_tools_changed()
    return name


if __name__ == "__main__":
    server.run()
