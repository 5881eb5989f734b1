"""The MCP engine: `messages`, their `peer`, and the rules of the `revisions`. No I/O.

`client` (`from_mcp`) and `server` (`serve_mcp`) add the I/O. ADR 29 gives the reasons and the measurements.
"""
