"""A proxy in the middle: `from_mcp` of a server, served again by `serve_mcp`. One check per feature of the protocol."""
