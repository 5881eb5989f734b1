"""A shop that is made of three sources: Python functions, an MCP server, an HTTP API. `opwire demo` tells its story."""
