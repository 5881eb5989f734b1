"""Foreign systems as sources of operations. Each adapter needs an extra: `opwire[mcp]`, `opwire[openapi]`."""
