"""The HTTP transport of 2024: messages come in one event stream, and go out as POSTs to an address that it names.

The SDK's `sse_client` has a fixed limit of 1 MiB for an event, and after one POST that failed it sends no more, without
saying so: whoever waits for an answer waits for ever.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter

from opwire.adapters.mcp.failures import call_error
from opwire.adapters.mcp.http_client import HTTPClient
from opwire.adapters.mcp.messages import MessageStream, max_values, read_message, write_message
from opwire.adapters.mcp.servers import HTTPServer
from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.mcp")


@asynccontextmanager
async def sse_stream(server: HTTPServer, max_message: int) -> AsyncGenerator["SSEStream"]:
    """Open the stream, and learn where messages go.

    Raises:
        CallError: UNAVAILABLE, or PROTOCOL_ERROR if what is there is no such stream.
    """
    async with HTTPClient(server, max_message) as client:
        silent = {**client.timeout.as_dict(), "read": None}  # nobody has to say anything
        accept = {"accept": "text/event-stream"}
        request = client.build_request("GET", server.url, headers=accept, extensions={"timeout": silent})
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            stream = SSEStream(server, client, response, max_message)
            await stream.learn_endpoint()
            yield stream
        finally:
            await response.aclose()


class SSEStream(MessageStream):
    """An event stream, and the address that it names."""

    def __init__(self, server: HTTPServer, client: HTTPClient, response: httpx2.Response, max_message: int) -> None:
        self._server = server
        self._client = client
        self._response = response
        self._max_values = max_values(max_message)
        self._events = aiter(httpx2.EventSource(response, max_event_size=max_message))
        self._endpoint = server.url

    async def learn_endpoint(self) -> None:
        """Wait for the event that says where messages go.

        Raises:
            CallError: UNAVAILABLE, or PROTOCOL_ERROR if the address is not at the server's own origin.
        """
        if self._response.status_code >= 400:
            raise call_error(_error_in(self._response), self._server.name, "the event stream")
        kind, data = await self._next()
        self._endpoint = urljoin(self._server.url, data)
        if kind != "endpoint" or urlsplit(self._endpoint)[:2] != urlsplit(self._server.url)[:2]:
            raise self._fail("does not say where it takes messages, or says another server", ErrorCode.PROTOCOL_ERROR)

    async def send(self, item: SessionMessage, /) -> None:
        """Post one message. What comes of it is in the event stream.

        Raises:
            MCPError: a request that the server did not take. That an answer was not taken is only logged.
        """
        headers = {"content-type": "application/json"}
        request = self._client.build_request(
            "POST", self._endpoint, content=write_message(item.message), headers=headers
        )
        response = await self._client.send(request, stream=True, follow_redirects=False)
        await response.aclose()
        if response.status_code < 300:
            return
        if isinstance(item.message, JSONRPCRequest):
            raise _error_in(response)
        logger.debug("%s did not take a message: HTTP %s", self._server.name, response.status_code)

    async def receive(self) -> SessionMessage:
        while True:
            try:
                kind, data = await self._next()
                message = read_message(data.encode(), self._max_values) if kind == "message" and data else None
            except CallError as error:
                self.failure = error
                raise anyio.EndOfStream from None
            if message is not None:
                return message

    async def _next(self) -> tuple[str, str]:
        try:
            async for event in self._events:
                return event.event, event.data
        except httpx2.SSEError as error:
            raise self._fail(f"broke the event stream: {error}", ErrorCode.PROTOCOL_ERROR) from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._fail("was cut off", ErrorCode.UNAVAILABLE) from error
        raise self._fail("ended the event stream", ErrorCode.UNAVAILABLE)

    def _fail(self, words: str, code: ErrorCode) -> CallError:
        return CallError(code, f"the MCP server {self._server.name} {words}; the connection is closed")


def _error_in(response: httpx2.Response) -> MCPError:
    """The error that the HTTP client put into a response, or that a server did."""
    message = cast("JSONRPCError", jsonrpc_message_adapter.validate_json(response.content))
    return MCPError.from_error_data(message.error)
