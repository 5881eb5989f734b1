"""Calls over a real Redis server."""
