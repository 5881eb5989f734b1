"""Bare pooled aiohttp: the control of the HTTP ladder, here and in utcp's environment."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from benchmarks.http.document import Calls, asked

_JSON = {"content-type": "application/json"}


@asynccontextmanager
async def aiohttp_calls(address: str, **options: Any) -> AsyncGenerator[Calls]:
    """The calls by one session, which keeps its connections. Options are those of the session."""
    async with aiohttp.ClientSession(**options) as session:

        async def get(number: int) -> int:
            given = asked(number)
            async with session.get(f"{address}/sums/{given.pop('a')}", params=given) as response:
                return msgspec.json.decode(await response.read())["sum"]

        async def post(number: int) -> int:
            body = msgspec.json.encode(asked(number))
            async with session.post(f"{address}/sums", data=body, headers=_JSON) as response:
                return msgspec.json.decode(await response.read())["sum"]

        yield {"GET": get, "POST": post}
