"""Bare pooled httpx2, here and in fastmcp's environment, where it takes the place of aiohttp."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import msgspec

from benchmarks.http.document import Calls, asked

_JSON = {"content-type": "application/json"}


@asynccontextmanager
async def httpx2_calls(address: str) -> AsyncGenerator[Calls]:
    """The calls by one client, which keeps its connections."""
    async with httpx2.AsyncClient(base_url=address) as client:

        async def get(number: int) -> int:
            given = asked(number)
            response = await client.get(f"/sums/{given.pop('a')}", params=given)
            return msgspec.json.decode(response.content)["sum"]

        async def post(number: int) -> int:
            response = await client.post("/sums", content=msgspec.json.encode(asked(number)), headers=_JSON)
            return msgspec.json.decode(response.content)["sum"]

        yield {"GET": get, "POST": post}
