"""Fixtures: an authorization server, a store, and the function that sends requests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from opwire.http_client import HTTPClient
from opwire.oauth.store import TokenStore
from opwire.oauth.tokens import FetchJSON, json_fetcher
from tests.oauth.authorization_server import AuthorizationServer


@pytest.fixture
async def server() -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer() as server:
        yield server


@pytest.fixture
async def fetch() -> AsyncIterator[FetchJSON]:
    client = HTTPClient()
    yield json_fetcher(client)
    await client.close()


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "logins")
