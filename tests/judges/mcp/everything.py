"""The server that shows everything MCP has, over each of its transports, and a registry that follows it."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opwire import OperationRegistry
from opwire.mcp.client import HTTPServer, MCPServer, StdioServer, from_mcp
from tests.judges.network import is_alone
from tests.judges.programs import npm_program
from tests.judges.serving import HOST, free_port, listening
from tests.servers.processes import PATIENCE

TRANSPORT = "OPWIRE_JUDGE_TRANSPORT"
"""The environment variable that says how to reach the server: stdio, streamableHttp or sse, its own words for them."""


class Everything:
    """A client of the server, with a user that answers its questions."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.asked: list[dict[str, Any]] = []
        self.log: asyncio.Queue[str] = asyncio.Queue()
        self._changed = asyncio.Event()
        self.registry.on_change(lambda _: self._changed.set())

    async def call(self, name: str, **input: Any) -> Any:
        """The envelope of a call. Some tools are listed only some time after the client has said what it can do."""
        async with asyncio.timeout(PATIENCE):
            while self.registry.get_spec(f"every.{name}") is None:
                self._changed.clear()
                await self._changed.wait()
        return await self.registry.execute(f"every.{name}", input)

    async def logged(self, beginning: str) -> None:
        """Wait until the server has logged something."""
        async with asyncio.timeout(PATIENCE):
            while not (await self.log.get()).startswith(beginning):
                pass

    def elicit(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(params)
        return {"action": "accept", "content": {"name": "Ada", "check": True}}

    async def sample(self, params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(params)
        return {"role": "assistant", "content": {"type": "text", "text": "four"}, "model": "abacus"}


@asynccontextmanager
async def following(server: MCPServer) -> AsyncGenerator[Everything]:
    """A client that follows the server."""
    client = Everything()
    source = from_mcp(
        server,
        namespace="every",
        trust_annotations=True,
        elicit=client.elicit,
        sample=client.sample,
        roots=lambda: ["file:///srv/notes"],
        log=lambda params: client.log.put_nowait(str(params["data"])),
    )
    async with source:
        client.registry.follow(source)
        yield client


@asynccontextmanager
async def everything_server(log: Path) -> AsyncGenerator[MCPServer]:
    """The server: how to start it, or where it listens."""
    transport = os.environ.get(TRANSPORT, "stdio")
    command = npm_program("mcp-server-everything")
    if transport == "stdio":
        yield StdioServer(command[0], tuple(command[1:]), stop_timeout=0.2)  # it does not mind its closed input
        return
    assert is_alone(), "over HTTP the server listens on all interfaces: run it in a network of its own"
    port = free_port()
    async with listening([*command, transport], port, log, {"PORT": str(port)}):
        path, kind = ("sse", "sse") if transport == "sse" else ("mcp", "http")
        yield HTTPServer(f"http://{HOST}:{port}/{path}", kind=kind)
