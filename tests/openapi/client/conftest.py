"""Fixtures of the OpenAPI adapter: a server that tells what arrived, and a client."""

from collections.abc import AsyncIterator

import pytest

from opwire.http.client import HTTPClient
from tests.openapi.client.echo import EchoServer


@pytest.fixture
async def server() -> AsyncIterator[EchoServer]:
    async with EchoServer() as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[HTTPClient]:
    client = HTTPClient()
    yield client
    await client.close()
