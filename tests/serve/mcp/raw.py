"""A client that speaks in plain messages, to see what is really sent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from opwire.serve.mcp import MCPSurface
from tests.serve.mcp.shop import NEWEST, PATIENCE

HANDSHAKE = (
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
)


def request(method: str, params: dict[str, Any] | None = None, *, id: int = 1, era: str = "", **meta: Any) -> Any:
    """A request; one of the newest era says so in its `_meta`."""
    if era == NEWEST:
        meta["io.modelcontextprotocol/protocolVersion"] = NEWEST
        meta["io.modelcontextprotocol/clientCapabilities"] = {}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": meta}}


def call(name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """A request to call a tool."""
    return request("tools/call", {"name": name, "arguments": arguments or {}}, **options)


class Raw:
    """One end of a connection."""

    def __init__(self, read: Any, write: Any) -> None:
        self._read, self._write = read, write

    async def send(self, *messages: Any) -> None:
        """Send messages."""
        for message in messages:
            await self._write.send(SessionMessage(jsonrpc_message_adapter.validate_python(message)))

    async def receive(self) -> Any:
        """The next message."""
        async with asyncio.timeout(PATIENCE):
            received = await self._read.receive()
        return received.message.model_dump(mode="json", by_alias=True, exclude_unset=True)

    async def ask(self, message: Any) -> Any:
        """Send a request; its answer, if that is what comes next."""
        await self.send(message)
        answer = await self.receive()
        assert answer["id"] == message["id"]
        return answer

    async def leave(self) -> None:
        """Close the connection."""
        await self._write.aclose()


@asynccontextmanager
async def raw(surface: MCPSurface, *, handshake: bool = True) -> AsyncGenerator[Raw]:
    """A client that is connected to a surface in this process."""
    server = surface.sdk_server()
    async with create_client_server_memory_streams() as ((read, write), (their_read, their_write)):
        serving = asyncio.create_task(server.run(their_read, their_write, server.create_initialization_options()))
        client = Raw(read, write)
        if handshake:
            assert "result" in await client.ask(HANDSHAKE[0])
            await client.send(HANDSHAKE[1])
        try:
            yield client
        finally:
            await client.leave()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(serving, return_exceptions=True)
