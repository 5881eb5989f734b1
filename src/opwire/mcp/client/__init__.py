"""MCP servers as a source of operations; those over HTTP need the extra `mcp`."""

from opwire.mcp.client.negotiation import MCPServerInfo
from opwire.mcp.client.options import MCPKeywords
from opwire.mcp.client.questions import Callbacks
from opwire.mcp.client.servers import HTTPServer, HTTPServerOptions, MCPServer, StdioServer, read_server, read_servers
from opwire.mcp.client.source import MCPSource, from_mcp
from opwire.registry.source import Report, Skipped

__all__ = [
    "Callbacks",
    "HTTPServer",
    "HTTPServerOptions",
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
