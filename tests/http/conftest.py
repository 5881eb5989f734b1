"""Fixtures of the HTTP client: the echo server of the OpenAPI adapter, and a client."""

from tests.openapi.client.conftest import client, server

__all__ = ["client", "server"]
