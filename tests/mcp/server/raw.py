"""A client that speaks in plain messages, to see what is really sent."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from opwire.mcp.server import MCPSurface
from tests.mcp.server.shop import NEWEST, PATIENCE

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

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.received: asyncio.Queue[Any] = asyncio.Queue(1)  # the server waits until it is read
        self._has_left = False

    async def messages(self) -> AsyncGenerator[bytes]:
        """What the server reads."""
        while (message := await self.sent.get()) is not None:
            yield message

    async def take(self, message: bytes) -> None:
        """What the server writes."""
        if not self._has_left:
            await self.received.put(json.loads(message))

    async def send(self, *messages: Any) -> None:
        """Send messages."""
        for message in messages:
            self.sent.put_nowait(json.dumps(message).encode())
            await asyncio.sleep(0)

    async def receive(self) -> Any:
        """The next message."""
        async with asyncio.timeout(PATIENCE):
            return await self.received.get()

    async def ask(self, message: Any) -> Any:
        """Send a request; its answer, if that is what comes next."""
        await self.send(message)
        answer = await self.receive()
        assert answer["id"] == message["id"]
        return answer

    async def leave(self) -> None:
        """Close the connection."""
        self._has_left = True
        self.sent.put_nowait(None)


@asynccontextmanager
async def raw(surface: MCPSurface, *, handshake: bool = True) -> AsyncGenerator[Raw]:
    """A client that is connected to a surface in this process."""
    client = Raw()
    serving = asyncio.create_task(surface.serve_stream(client.messages(), client.take))
    if handshake:
        assert "result" in await client.ask(HANDSHAKE[0])
        await client.send(HANDSHAKE[1])
    try:
        yield client
    finally:
        await client.leave()
        async with asyncio.timeout(PATIENCE):
            await serving
