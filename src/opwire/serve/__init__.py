"""The registry seen from outside. Each surface needs an extra of its own: `opwire[mcp]`, `opwire[http]`."""
