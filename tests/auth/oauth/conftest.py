"""Fixtures: an authorization server, a store, and the function that sends requests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from opwire.auth.oauth.store import TokenStore
from opwire.auth.oauth.tokens import FetchJSON, json_fetcher
from opwire.http.client import HTTPClient
from tests.auth.oauth.authorization_server import AuthorizationServer


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
