"""Judges of what opwire does with MCP."""
