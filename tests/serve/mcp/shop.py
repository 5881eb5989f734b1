"""A registry with one of everything, and clients that are connected to it."""

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

from opwire import AccessControl, Context, OperationRegistry
from opwire.serve.mcp import MCPSurface

OLDER, NEWEST = "legacy", "2026-07-28"
ERAS = (OLDER, NEWEST)
PATIENCE = 30.0  # seconds, on a machine that has much to do


def shop() -> OperationRegistry:
    """Functions that return each kind of value, and a subscription."""
    registry = OperationRegistry()
    _add_data(registry)

    @registry.query("math.add", title="Add", tags=["sums"], version="1.2")
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @registry.mutation("work.report")
    async def report(context: Context, steps: int = 3) -> str:
        for step in range(1, steps + 1):
            context.report(step, steps, f"step {step}")
        return "done"

    @registry.subscription("feed.count")
    async def count(n: int = 3) -> AsyncGenerator[int]:
        for number in range(n):
            yield number

    @registry.query("admin.secret", access=AccessControl(required_scopes=("admin",)))
    async def secret() -> str:
        return "secret"

    @registry.query("public.hello", access=AccessControl(public=True))
    async def hello() -> str:
        return "hello"

    return registry


def _add_data(registry: OperationRegistry) -> None:
    @registry.query("data.object")
    async def object_() -> dict[str, int]:
        return {"n": 1}

    @registry.query("data.list")
    async def list_() -> list[int]:
        return [1, 2]

    @registry.query("data.none")
    async def none() -> int | None:
        return None

    @registry.query("data.bytes")
    async def bytes_() -> bytes:
        return b"\x00\xff"


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
