"""How messages travel to a server and back: one small interface, three transports behind it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from mcp.client.streamable_http import streamable_http_client

from opwire.adapters.mcp.http_client import HTTPClient
from opwire.adapters.mcp.legacy_sse import sse_stream
from opwire.adapters.mcp.messages import MessageStream
from opwire.adapters.mcp.process import server_process
from opwire.adapters.mcp.servers import HTTPServer, MCPServer, StdioServer
from opwire.errors import CallError


class Wire(NamedTuple):
    """The two streams of the SDK's dispatcher, and the reason why they ended, if it is known."""

    read: Any
    write: Any
    failure: Callable[[], CallError | None]


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
