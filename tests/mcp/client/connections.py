"""What the tests of connections are made with: servers in processes of their own, and sessions that leave nothing."""

import asyncio
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.servers import HTTPServer, MCPServer, StdioServer
from opwire.mcp.client.session import MCPSession
from tests.servers.leaks import Leaks
from tests.servers.processes import ROOT

PATIENCE = 30.0  # seconds, on a machine that has much to do
SDK_SERVER = StdioServer(sys.executable, ("-m", "tests.mcp.client.sdk_server", "stdio"), cwd=str(ROOT))


def rogue(*habits: str, **options: Any) -> StdioServer:
    """The server that breaks connections, in one of its habits."""
    script = Path(__file__).with_name("rogue.py")
    return StdioServer(sys.executable, ("-I", "-S", str(script), *habits), **{"stop_timeout": 1.0, **options})


@asynccontextmanager
async def connected(server: MCPServer, **options: Any) -> AsyncIterator[MCPSession]:
    """A session, and the promise that it leaves no task, process or file behind."""
    async with Leaks():
        listeners = {name: options.pop(name) for name in ("on_notification", "on_connected") if name in options}
        session = MCPSession(server, MCPOptions(**options), **listeners)
        try:
            yield session
        finally:
            await session.close()


async def call(session: MCPSession, tool: str, within: float | None = PATIENCE, **arguments: Any) -> dict[str, Any]:
    """Call a tool. `deadline` as an argument of the tool is not needed by any of them."""
    deadline = None if within is None else time.monotonic() + within
    return await session.request("tools/call", {"name": tool, "arguments": arguments}, deadline=deadline)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


Answer = tuple[int, dict[str, str], bytes]


@asynccontextmanager
async def http_server(
    answer: Callable[[str, str, dict[str, str], bytes], Awaitable[Answer]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A plain HTTP server for what the SDK's does not do; gives its address.

    `answer` gets method, path, headers (lower case) and body; each connection carries one request.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            status, extra, content = await answer(method, path, headers, body)
            framing = {} if "transfer-encoding" in extra else {"content-length": len(content)}
            lines = [f"HTTP/1.1 {status} X", "connection: close"]
            lines += [f"{name}: {value}" for name, value in (framing | extra).items()]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def at(address: str, path: str = "/mcp", **options: Any) -> HTTPServer:
    """A server at an address."""
    return HTTPServer(address + path, **options)
