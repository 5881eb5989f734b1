"""Clients that are connected to the registry of `operations`."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from opwire.mcp.server import MCPSurface

OLDER, NEWEST = "legacy", "2026-07-28"
ERAS = (OLDER, NEWEST)
PATIENCE = 30.0  # seconds, on a machine that has much to do


@asynccontextmanager
async def connected(surface: MCPSurface, era: str = NEWEST, **options: Any) -> AsyncGenerator[Client]:
    """The SDK's client, in this process."""
    async with Client(in_process(surface), mode=era, **options) as client:
        yield client


@asynccontextmanager
async def in_process(surface: MCPSurface) -> AsyncGenerator[Any]:
    """A transport of the SDK's client to a surface in this process."""
    async with create_client_server_memory_streams() as (ours, (read, write)):

        async def messages() -> AsyncGenerator[bytes]:
            async for each in read:
                assert isinstance(each, SessionMessage)
                yield each.message.model_dump_json(by_alias=True, exclude_unset=True).encode()

        async def send(message: bytes) -> None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await write.send(SessionMessage(jsonrpc_message_adapter.validate_json(message, by_name=False)))

        serving = asyncio.create_task(surface.serve_stream(messages(), send))
        try:
            yield ours
        finally:
            await ours[1].aclose()
            await asyncio.wait_for(serving, PATIENCE)


@asynccontextmanager
async def served(surface: MCPSurface, **options: Any) -> AsyncGenerator[str]:
    """The address at which the surface listens."""
    async with surface.asgi(**options).listening() as address:
        yield f"{address}/mcp"


@asynccontextmanager
async def http_client(url: str, era: str = NEWEST, token: str | None = None, **options: Any) -> AsyncGenerator[Client]:
    """The SDK's client, over HTTP."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=era, **options) as client,
    ):
        yield client


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)
