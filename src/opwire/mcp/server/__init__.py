"""Serve a registry as an MCP server. Needs `pip install 'opwire[mcp]'`.

server = serve_mcp(registry, name="shop", version="1.0")
asyncio.run(server.run_stdio())
"""

from opwire.errors import needs_extra

with needs_extra("mcp"):
    from opwire.mcp.server.app import MCPSurface, serve_mcp
    from opwire.mcp.server.durable_tasks import DurableTasks

__all__ = ["DurableTasks", "MCPSurface", "serve_mcp"]
