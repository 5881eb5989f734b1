"""The MCP engine: messages, peers and the rules of every revision, for client and server. No I/O.

`adapters/mcp` and `serve/mcp` add the I/O. ADR 29 gives the reasons and the measurements.
"""
