"""Serve a registry: over HTTP with an OpenAPI document (`opwire[http]`), and as an MCP server (`opwire[mcp]`)."""
