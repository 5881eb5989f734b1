"""The served registry that is judged, and its document."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest_asyncio

from opwire.auth import StaticTokens
from opwire.openapi.server import serve_http
from tests.judges.openapi.catalogue import ADMIN, GUEST, make_registry

TOKEN = "the-token-of-ada-0123456789"
TOKEN_OF_GUEST = "the-token-of-bob-0123456789"


class Served(NamedTuple):
    """Where the registry is, and the documents that describe it."""

    address: str
    document: Path
    newer: Path  # the same, as OpenAPI 3.2
    of_guest: Path  # the document of a caller with fewer scopes


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Served]:
    """A registry of all features behind a server that listens."""
    tokens = StaticTokens({TOKEN: ADMIN, TOKEN_OF_GUEST: GUEST})
    app = serve_http(make_registry(), title="Shop", version="1.0", description="A shop.", authenticate=tokens)
    async with app.listening(drain_timeout=1) as address, aiohttp.ClientSession(raise_for_status=True) as session:

        async def save(name: str, query: str = "", token: str = TOKEN) -> Path:
            headers = {"authorization": f"Bearer {token}"}
            async with session.get(f"{address}/openapi.json{query}", headers=headers) as answer:
                (tmp_path / name).write_bytes(await answer.read())
            return tmp_path / name

        yield Served(
            address,
            document=await save("openapi.json"),
            newer=await save("newer.json", "?version=3.2"),
            of_guest=await save("guest.json", token=TOKEN_OF_GUEST),
        )
