"""How messages travel to a server and back: one small interface, three transports behind it.

A server may ask, too, at any time and as often as it likes. `Questions` bounds how many it has open and how many it may
ask for each request of ours; those above are refused, and a server that does not read its refusals is disconnected.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import anyio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from opwire.adapters.mcp.http_client import HTTPClient
from opwire.adapters.mcp.legacy_sse import sse_stream
from opwire.adapters.mcp.messages import MessageStream
from opwire.adapters.mcp.process import server_process
from opwire.adapters.mcp.servers import HTTPServer, MCPServer, StdioServer
from opwire.errors import CallError, ErrorCode

MAX_OPEN_QUESTIONS = 100
"""Questions of a server that are not answered yet, or whose answers it has not read."""

MAX_QUESTIONS = 1000
"""Questions of a server for each request of ours."""

_PATIENCE = 5.0  # seconds for a server to read a refusal


class Wire(NamedTuple):
    """The two streams of the SDK's dispatcher, and the reason why they ended, if it is known."""

    read: Any
    write: Any
    failure: Callable[[], CallError | None]


class Questions(MessageStream):
    """The streams of a connection, with a bound on what the server asks. Call `answered` when an answer is found."""

    def __init__(self, wire: Wire, server: str) -> None:
        self._wire = wire
        self._server = server
        self._open = 0
        self._left = MAX_QUESTIONS

    def answered(self) -> None:
        """An answer was found, or will not be; sending it counts by itself."""
        self._open -= 1

    async def send(self, item: SessionMessage, /) -> None:
        if isinstance(item.message, JSONRPCRequest):
            self._left = MAX_QUESTIONS
        if not isinstance(item.message, JSONRPCResponse | JSONRPCError):
            return await self._wire.write.send(item)
        self._open += 1
        try:
            await self._wire.write.send(item)
        finally:
            self._open -= 1

    async def receive(self) -> Any:
        while True:
            item = await self._wire.read.receive()
            message = None if isinstance(item, Exception) else item.message
            if not isinstance(message, JSONRPCRequest):
                return item
            self._left -= message.method != "ping"
            if self._open >= MAX_OPEN_QUESTIONS:
                await self._refuse(message, f"more than {MAX_OPEN_QUESTIONS} requests are open")
            elif self._left < 0:
                await self._refuse(message, f"more than {MAX_QUESTIONS} requests came for one of the client")
            else:
                self._open += 1
                return item

    async def _refuse(self, request: JSONRPCRequest, reason: str) -> None:
        error = ErrorData(code=INVALID_REQUEST, message=f"refused: {reason}")
        refusal = JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
        with anyio.move_on_after(_PATIENCE) as waiting:
            await self._wire.write.send(SessionMessage(refusal))
        if waiting.cancelled_caught:
            message = f"the MCP server {self._server} asks without reading the answers; the connection is closed"
            self.failure = CallError(ErrorCode.PROTOCOL_ERROR, message)
            raise anyio.EndOfStream


def open_wire(server: MCPServer, max_message: int) -> AbstractAsyncContextManager[Wire]:
    """Start the server or get in touch with it; leaving ends that.

    Raises:
        CallError: UNAVAILABLE, or PROTOCOL_ERROR. Streamable HTTP has nothing to open: its first request fails.
    """
    if isinstance(server, StdioServer):
        return _stdio(server, max_message)
    return _sse(server, max_message) if server.kind == "sse" else _streamable(server, max_message)


def _wire(stream: MessageStream) -> Wire:
    return Wire(stream, stream, lambda: stream.failure)


@asynccontextmanager
async def _stdio(server: StdioServer, max_message: int) -> AsyncGenerator[Wire]:
    async with server_process(server, max_message) as process:
        yield _wire(process)


@asynccontextmanager
async def _sse(server: HTTPServer, max_message: int) -> AsyncGenerator[Wire]:
    async with sse_stream(server, max_message) as stream:
        yield _wire(stream)


@asynccontextmanager
async def _streamable(server: HTTPServer, max_message: int) -> AsyncGenerator[Wire]:
    async with (
        HTTPClient(server, max_message) as client,
        streamable_http_client(server.name, http_client=client, max_sse_event_size=max_message) as (read, write),
    ):
        yield Wire(read, write, lambda: None)
