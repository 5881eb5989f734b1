"""Fixtures of the HTTP client: the echo server of the OpenAPI adapter, and a client."""

from tests.adapters.openapi.conftest import client, server

__all__ = ["client", "server"]
