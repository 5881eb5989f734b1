"""MCP servers as a source of operations. Needs `pip install 'opwire[mcp]'`."""

from opwire.adapters.mcp.report import Report, Skipped
from opwire.adapters.mcp.servers import Callbacks, HTTPServer, MCPServer, StdioServer, read_server, read_servers
from opwire.adapters.mcp.session import ServerInfo
from opwire.adapters.mcp.source import MCPSource, from_mcp

__all__ = [
    "Callbacks",
    "HTTPServer",
    "MCPServer",
    "MCPSource",
    "Report",
    "ServerInfo",
    "Skipped",
    "StdioServer",
    "from_mcp",
    "read_server",
    "read_servers",
]
