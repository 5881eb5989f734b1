"""A registry behind a real server, and clients that talk to it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from opwire import Identity, OperationRegistry
from opwire.openapi.server import HTTPApp, serve_http

ME = Identity(id="me", scopes=("shop:write",))


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        found = self.json
        assert found["status"] == self.status
        return found


class Client:
    """A client of one address."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self.session = session
        self.address = address
        self.path = urlsplit(address).path.encode()

    async def __call__(self, method: str, path: str, **options: Any) -> Reply:
        """Send a request with this very path."""
        url = URL(self.address + path, encoded=True)
        async with self.session.request(method, url, allow_redirects=False, **options) as reply:
            return Reply(reply.status, reply.headers, await reply.read())

    async def get(self, path: str, **headers: str) -> Reply:
        return await self("GET", path, headers=_dashed(headers))

    async def post(self, path: str, *json: Any, **headers: str) -> Reply:
        """With a body, or without."""
        body = {"json": json[0]} if json else {}
        return await self("POST", path, headers=_dashed(headers), **body)

    async def send(self, body: bytes | str, path: str, content_type: str = "application/json") -> Reply:
        return await self("POST", path, data=body, headers={"content-type": content_type})

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the same server."""
        place = urlsplit(self.address)
        return await asyncio.open_connection(place.hostname, place.port)

    async def raw(self, request: bytes) -> bytes:
        """Return the response to these bytes, until the server closes."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            return await asyncio.wait_for(reader.read(), 5)
        finally:
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def client_of(app: HTTPApp) -> AsyncGenerator[Client]:
    """A client of an application that really listens."""
    async with app.listening(drain_timeout=1) as address, aiohttp.ClientSession() as session:
        yield Client(session, address)


@asynccontextmanager
async def served(registry: OperationRegistry, **options: Any) -> AsyncGenerator[Client]:
    """A client of a registry that is served; callers are `ME` by default."""
    given = {"anonymous": ME, **options}
    async with client_of(serve_http(registry, **given)) as client:
        yield client


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
