"""MCP: calling a server's tools, and serving a registry as one."""
