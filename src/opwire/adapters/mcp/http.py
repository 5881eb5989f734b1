"""HTTP transports: the client below streamable HTTP, and the HTTP+SSE transport of 2024.

The SDK's streamable HTTP transport drops the status of a failed response, and ends the whole connection when one
request cannot be sent. `MCPHTTPClient` turns every failure into a JSON-RPC error in the body of a response, which that
transport does pass on: only one request fails, with a useful error.

In the transport of 2024, messages arrive in one event stream and are sent as POSTs to an address that it names. The
SDK's `sse_client` limits an event to 1 MiB, and silently sends nothing more after a failed POST, so that callers would
wait forever. `SSEStream` replaces it.
"""

import logging
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
import msgspec
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter

from opwire.adapters.mcp.errors import MAX_RETRY_AFTER, HTTPFailure, call_error
from opwire.adapters.mcp.process import (
    MessageStream,
    has_few_values,
    large_message,
    max_values,
    read_message,
    repair_surrogates,
    write_message,
)
from opwire.adapters.mcp.servers import HTTPServer
from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.mcp")

PATIENCE = httpx2.Timeout(30.0, read=300.0, pool=None)  # a server may take long before it responds
_DELETE_TIMEOUT = 2.0  # seconds for the request that ends a session
_MAX_ERROR_BODY = 64 * 1024  # bytes that are read of a failed response
_RETRY = re.compile(rb"(?m)^retry:[ ]?([0-9]+)(?=\r?$|\r)")
_RETRIES = range(100, 60_000)  # milliseconds until the SDK reconnects: at 0 it never stops, at 10^400 it breaks


class MCPHTTPClient(httpx2.AsyncClient):
    """The HTTP client of one server. `send` never raises, except when it is cancelled.

    Raises:
        CallError: VALIDATION_ERROR, the server's options or headers are invalid.
    """

    def __init__(self, server: HTTPServer, max_message: int) -> None:
        limits = httpx2.Limits(max_connections=None)  # calls are limited elsewhere; here they would wait unseen
        options: dict[str, Any] = {"timeout": PATIENCE, "limits": limits, **server.options}
        try:
            super().__init__(**options, headers=server.headers)
        except Exception as error:  # options raise anything; values are not repeated, since a header may be a secret
            reason = str(error) if isinstance(error, (TypeError, OSError)) else type(error).__name__
            message = f"the options or headers for the MCP server {server.name} cannot be used: {reason}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
        self._server = server
        self._max_message = max_message
        self._errors_from = 300 if server.kind == "sse" else 400  # the SDK follows redirects within the origin

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """Encode NaN and infinities as null: the default encoder raises, and that ends the connection.

        The SDK is given the server's name, which it logs, instead of its URL, which may contain secrets.
        """
        if (body := options.pop("json", None)) is not None:
            options["content"] = msgspec.json.encode(body)
        request = super().build_request(method, self._server.url if url == self._server.name else url, **options)
        request.url = _QuietURL(request.url)
        return request

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; return a response with a JSON-RPC error for every failure."""
        try:
            with anyio.fail_after(_DELETE_TIMEOUT if request.method == "DELETE" else None):
                response = await super().send(request, **options)
                content_type = response.headers.get("content-type", "").lower()
                if response.status_code >= self._errors_from:
                    return await self._error_response(response)
                if response.status_code < 300 and content_type.startswith("application/json"):
                    return await self._read(response)
            if response.status_code < 300 and content_type.startswith("text/event-stream"):
                return _with_body(response, stream=RepairedEvents(response, self._max_message))
            return response
        except Exception as error:  # also from an auth flow of the user
            logger.debug("%s %s failed", request.method, request.url.host, exc_info=True)
            known = str(error) if isinstance(error, (httpx2.HTTPError, OSError)) else ""  # others may contain secrets
            return _failed(request, HTTPFailure(status=0, reason=f" ({known[:200] or type(error).__name__})"))

    async def _read(self, response: httpx2.Response) -> httpx2.Response:
        """Return the response with its body, unless that exceeds a limit."""
        body = await _body(response, self._max_message)
        limit = max_values(self._max_message)
        if body is None or not has_few_values(body, limit):
            unit = f"{self._max_message} bytes" if body is None else f"{limit:,} JSON values"
            failure = HTTPFailure(status=response.status_code, reason=f" and more than {unit}", too_long=True)
            return _failed(response.request, failure)
        try:
            body.decode()
        except UnicodeDecodeError:
            body = body.decode("utf-8", "replace").encode()
        return _with_body(response, content=repair_surrogates(body.removeprefix(BOM_UTF8)))

    async def _error_response(self, response: httpx2.Response) -> httpx2.Response:
        """Return the JSON-RPC error in the body of a failed response, or one for its status."""
        status, request = response.status_code, response.request
        body = await _body(response, _MAX_ERROR_BODY)
        try:
            message = jsonrpc_message_adapter.validate_json(body or b"", by_name=False)
            code = message.error.code if isinstance(message, JSONRPCError) else None
        except ValueError:
            code = None
        # A dropped session is 404, regardless of the body.
        lost = status == 404 and "mcp-session-id" in request.headers and code != METHOD_NOT_FOUND
        if code is not None and body is not None and status not in (401, 403) and not lost:
            headers = {"content-type": "application/json"}
            return httpx2.Response(status, headers=headers, content=body, request=request)
        delay = response.headers.get("retry-after", "")
        retry_after = min(float(delay), MAX_RETRY_AFTER) if delay.isascii() and delay.isdigit() else None
        return _failed(request, HTTPFailure(status=status, retry_after=retry_after, lost=lost))


class _QuietURL(httpx2.URL):
    """A URL that is shown without user, password and query: every request is logged with it."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc.decode('ascii')}{self.path}"


class RepairedEvents(httpx2.AsyncByteStream):
    """The event stream of a response, repaired for the SDK's transport.

    That transport would lose a message with a lone surrogate, parse any number of values, and reconnect immediately if
    the server says so.
    """

    def __init__(self, response: httpx2.Response, max_message: int) -> None:
        self._response = response
        self._max_message = max_message
        self._max_values = max_values(max_message)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        buffer = bytearray()
        async for chunk in self._response.aiter_bytes():
            scanned = len(buffer)
            buffer += chunk
            end = max(buffer.rfind(b"\n", scanned), buffer.rfind(b"\r", scanned)) + 1
            if len(buffer) - end > self._max_message:  # the transport will reject it
                end = len(buffer)
            if end:
                yield self._repair(bytes(buffer[:end]))
                del buffer[:end]
        yield self._repair(bytes(buffer))

    def _repair(self, lines: bytes) -> bytes:
        def retry(found: re.Match[bytes]) -> bytes:
            delay = int(found[1]) if len(found[1]) < 10 else _RETRIES[-1]
            return b"retry: %d" % min(max(delay, _RETRIES[0]), _RETRIES[-1])

        def replace_large(line: bytes) -> bytes:
            """Return the line, or for a message of too many values the error that replaces it."""
            if not line.startswith(b"data:") or has_few_values(line, self._max_values):
                return line
            try:
                small = large_message(line.removeprefix(b"data:"), self._max_values)
            except CallError:
                small = None
            return b"" if small is None else b"data: " + write_message(small) + b"\n"

        if b"retry:" in lines:
            lines = _RETRY.sub(retry, lines)
        if not has_few_values(lines, self._max_values):
            lines = b"".join(map(replace_large, lines.splitlines(keepends=True)))
        return repair_surrogates(lines)

    async def aclose(self) -> None:
        await self._response.aclose()


def _with_body(response: httpx2.Response, **body: Any) -> httpx2.Response:
    """Return the response with another body: headers for the encoding and length of the old one are dropped."""
    headers = [pair for pair in response.headers.multi_items() if not pair[0].startswith("content-")]
    headers.append(("content-type", response.headers["content-type"]))
    return httpx2.Response(response.status_code, headers=headers, request=response.request, **body)


async def _body(response: httpx2.Response, limit: int) -> bytes | None:
    """Return the whole body, or None if it is longer than the limit."""
    body = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > limit:
                return None
    finally:
        await response.aclose()
    return bytes(body)


def _failed(request: httpx2.Request, failure: HTTPFailure) -> httpx2.Response:
    error = {"code": INTERNAL_ERROR, "message": f"HTTP {failure.status}", "data": failure.data}
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(max(failure.status, 400), json=body, request=request)


@asynccontextmanager
async def sse_stream(server: HTTPServer, max_message: int) -> AsyncGenerator["SSEStream"]:
    """Open the event stream of the transport of 2024, and wait for the address for messages.

    Raises:
        CallError: UNAVAILABLE, or PROTOCOL_ERROR if the response is not such a stream.
    """
    async with MCPHTTPClient(server, max_message) as client:
        timeout = {**client.timeout.as_dict(), "read": None}  # the stream may be silent for any time
        accept = {"accept": "text/event-stream"}
        request = client.build_request("GET", server.url, headers=accept, extensions={"timeout": timeout})
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            stream = SSEStream(server, client, response, max_message)
            await stream.read_endpoint()
            yield stream
        finally:
            await response.aclose()


class SSEStream(MessageStream):
    """An event stream for received messages, and the address for sent ones."""

    def __init__(self, server: HTTPServer, client: MCPHTTPClient, response: httpx2.Response, max_message: int) -> None:
        self._server = server
        self._client = client
        self._response = response
        self._max_values = max_values(max_message)
        self._events = aiter(httpx2.EventSource(response, max_event_size=max_message))
        self._endpoint = server.url

    async def read_endpoint(self) -> None:
        """Wait for the event with the address for messages.

        Raises:
            CallError: UNAVAILABLE, or PROTOCOL_ERROR if the address is not at the server's own origin.
        """
        if self._response.status_code >= 400:
            raise call_error(_error_in(self._response), self._server.name, "the event stream")
        kind, data = await self._next()
        self._endpoint = urljoin(self._server.url, data)
        if kind != "endpoint" or urlsplit(self._endpoint)[:2] != urlsplit(self._server.url)[:2]:
            raise self._failure("does not send an endpoint event for its own origin", ErrorCode.PROTOCOL_ERROR)

    async def send(self, item: SessionMessage, /) -> None:
        """Post one message; its response arrives in the event stream.

        Raises:
            MCPError: the server rejected a request. A rejected response is only logged.
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
        logger.debug("%s rejected a message: HTTP %s", self._server.name, response.status_code)

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
            raise self._failure(f"broke the event stream: {error}", ErrorCode.PROTOCOL_ERROR) from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._failure("was cut off", ErrorCode.UNAVAILABLE) from error
        raise self._failure("ended the event stream", ErrorCode.UNAVAILABLE)

    def _failure(self, words: str, code: ErrorCode) -> CallError:
        return CallError(code, f"the MCP server {self._server.name} {words}; the connection is closed")


def _error_in(response: httpx2.Response) -> MCPError:
    message = cast("JSONRPCError", jsonrpc_message_adapter.validate_json(response.content))
    return MCPError.from_error_data(message.error)
