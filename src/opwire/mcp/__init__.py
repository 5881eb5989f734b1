"""The MCP engine: messages, peers and the rules of every revision. No I/O.

`client` (`from_mcp`) and `server` (`serve_mcp`) add the I/O. ADR 29 gives the reasons and the measurements.
"""
