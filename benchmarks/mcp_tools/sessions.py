"""Many sessions over streamable HTTP at once, by a client that does little more than write and read bytes."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.exchanges import Server, served
from benchmarks.measure import NotMeasuredError, Row, processor_time
from benchmarks.transports.messages import NOTE

SESSIONS, CALLS, ROUNDS = 100, 20, 5
LIMIT = 6.0
"""How many times the SDK's calls per second opwire must reach."""

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"

_CLIENT = {"name": "bench", "version": "1"}
_INITIALIZE = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}


class ServedTool(NamedTuple):
    """A server of the tool, as a module that takes "stdio" or "http"."""

    name: str
    module: str
    tool: str
    peer: str | None = None


class Session:
    """One session, with a new connection for each round: servers close those that are idle.

    In the stateless era a session is only a connection: each request has everything.
    """

    def __init__(self, server: Server, revision: str) -> None:
        self._is_stateless = revision == STATELESS
        self._address = urlsplit(server.address)
        self._head = f"POST /mcp HTTP/1.1\r\nhost: {self._address.netloc}\r\ncontent-type: application/json\r\n"
        self._head += f"accept: application/json, text/event-stream\r\nmcp-protocol-version: {revision}\r\n"

    async def connect(self) -> None:
        """Open a connection."""
        host, port = self._address.hostname, self._address.port
        self._reader, self._writer = await asyncio.open_connection(host, port, limit=1024 * 1024)

    async def open(self) -> None:
        """Shake hands."""
        if self._is_stateless:
            return
        await self.connect()
        headers, _ = await self.post({"id": 0, "method": "initialize", "params": _INITIALIZE})
        self._head += f"mcp-session-id: {headers['mcp-session-id']}\r\n"
        await self.post({"method": "notifications/initialized"})
        self.close()

    async def calls(self, tool: str) -> None:
        """Call the tool, one call after the other.

        Raises:
            NotMeasuredError: a result is wrong.
        """
        for number in range(CALLS):
            params: dict[str, Any] = {"name": tool, "arguments": {"a": number, "b": 1, "note": NOTE}}
            head = ""
            if self._is_stateless:
                params["_meta"], head = _META, f"mcp-method: tools/call\r\nmcp-name: {tool}\r\n"
            _, body = await self.post({"id": number + 1, "method": "tools/call", "params": params}, head)
            message = body[body.index(b"{") : body.rindex(b"}") + 1]  # of an event, or the whole body
            if json.loads(message)["result"]["structuredContent"] != {"sum": number + 1}:
                raise NotMeasuredError(f"{tool} returned {message[:200]!r}")

    async def post(self, message: dict[str, Any], head: str = "") -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of the response."""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._writer.write(f"{self._head}{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        if " 20" not in status[:12]:
            raise NotMeasuredError(f"{message['method']}: {status}")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if "content-length" in headers:
            return headers, await self._reader.readexactly(int(headers["content-length"]))
        found = b""
        while size := int(await self._reader.readline(), 16):
            found += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()
        return headers, found

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def _open(server: Server, revision: str) -> list[Session]:
    sessions = [Session(server, revision) for _ in range(SESSIONS)]
    for session in sessions:
        await session.open()
    return sessions


async def many_sessions(tools: list[ServedTool], opwire: str, revision: str) -> list[Row]:
    """Calls per second of each server in a protocol revision, in turn; the first is the control."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(served(each.module, "http", peer=each.peer)) for each in tools]
        opened = [await _open(server, revision) for server in running]
        rates: list[list[float]] = [[] for _ in tools]
        costs: list[list[float]] = [[] for _ in tools]
        for _ in range(ROUNDS):
            for n, each in enumerate(tools):
                await asyncio.gather(*(session.connect() for session in opened[n]))
                cpu, start = processor_time(running[n].pid), time.perf_counter()
                await asyncio.gather(*(session.calls(each.tool) for session in opened[n]))
                rates[n].append(SESSIONS * CALLS / (time.perf_counter() - start))
                costs[n].append((processor_time(running[n].pid) - cpu) / (SESSIONS * CALLS))
                for session in opened[n]:
                    session.close()
    medians = [median(each) for each in rates]
    return [
        Row(
            each.name,
            rate,
            rate / medians[0],
            f">= {LIMIT:g}" if each.name == opwire else "",
            rate >= LIMIT * medians[0] if each.name == opwire else None,
            f"CPU server {median(cost) * 1e6:.0f} µs per call",
        )
        for each, rate, cost in zip(tools, medians, costs, strict=True)
    ]
