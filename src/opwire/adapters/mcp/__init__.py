"""MCP servers as a source of operations; those over HTTP need the extra `mcp`."""

from opwire.adapters.mcp.negotiation import MCPServerInfo
from opwire.adapters.mcp.servers import (
    Callbacks,
    HTTPServer,
    MCPKeywords,
    MCPServer,
    StdioServer,
    read_server,
    read_servers,
)
from opwire.adapters.mcp.source import MCPSource, from_mcp
from opwire.adapters.source import Report
from opwire.operation import Skipped

__all__ = [
    "Callbacks",
    "HTTPServer",
    "MCPKeywords",
    "MCPServer",
    "MCPServerInfo",
    "MCPSource",
    "Report",
    "Skipped",
    "StdioServer",
    "from_mcp",
    "read_server",
    "read_servers",
]
