"""Sources of operations that somebody else made. Each needs an extra of its own: `opwire[mcp]`, `opwire[openapi]`."""
