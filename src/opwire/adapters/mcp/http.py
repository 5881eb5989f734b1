"""The HTTP client under both HTTP transports: a request that fails gets an answer that says why.

The SDK's transport drops the status of a response that failed, and ends the whole connection when one request cannot be
sent. Here every failure becomes a JSON-RPC error in the body of a response, which that transport does pass on: it costs
one request, and its error says what happened.

The HTTP transport of 2024: messages come in one event stream, and go out as POSTs to an address that it names.

The SDK's `sse_client` has a fixed limit of 1 MiB for an event, and after one POST that failed it sends no more, without
saying so: whoever waits for an answer waits for ever.
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

from opwire.adapters.mcp.process import (
    MessageStream,
    has_few_values,
    large_message,
    max_values,
    mended,
    read_message,
    write_message,
)
from opwire.adapters.mcp.report import HTTP_FAILURE, MAX_RETRY_AFTER, HTTPFailure, call_error
from opwire.adapters.mcp.servers import HTTPServer
from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.mcp")

PATIENCE = httpx2.Timeout(30.0, read=300.0, pool=None)  # a server may think for long before it answers
_FAREWELL = 2.0  # seconds for the request that ends a session
_MAX_REFUSAL = 64 * 1024  # bytes that are read of a response that failed
_RETRY = re.compile(rb"(?m)^retry:[ ]?([0-9]+)(?=\r?$|\r)")
_RETRIES = range(100, 60_000)  # milliseconds until the SDK reconnects: at 0 it never stops, at 10^400 it breaks


class HTTPClient(httpx2.AsyncClient):
    """One server's client. `send` never raises, except when it is cancelled.

    Raises:
        CallError: VALIDATION_ERROR, the server's options or headers cannot be used.
    """

    def __init__(self, server: HTTPServer, max_message: int) -> None:
        limits = httpx2.Limits(max_connections=None)  # calls are limited elsewhere; here they would wait unseen
        options: dict[str, Any] = {"timeout": PATIENCE, "limits": limits, **server.options}
        try:
            super().__init__(**options, headers=server.headers)
        except Exception as error:  # whatever an option may do; a header may be a secret, so a value is not repeated
            reason = str(error) if isinstance(error, (TypeError, OSError)) else type(error).__name__
            message = f"the options or headers for the MCP server {server.name} cannot be used: {reason}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message) from error
        self._server = server
        self._max_message = max_message
        self._refused_from = 300 if server.kind == "sse" else 400  # the SDK follows redirects within the origin

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """As always, but NaN and infinities become null: the default encoder raises, and that ends the connection.

        Whoever logs the address logs it without secrets: the server's name stands for its URL.
        """
        if (body := options.pop("json", None)) is not None:
            options["content"] = msgspec.json.encode(body)
        request = super().build_request(method, self._server.url if url == self._server.name else url, **options)
        request.url = _QuietURL(request.url)
        return request

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """As always, with what failed in a response."""
        try:
            with anyio.fail_after(_FAREWELL if request.method == "DELETE" else None):
                response = await super().send(request, **options)
                if response.status_code >= self._refused_from:
                    return await self._refused(response)
                if response.status_code < 300 and _is(response, "application/json"):
                    return await self._read(response)
            if response.status_code < 300 and _is(response, "text/event-stream"):
                return _with_body(response, stream=_Mended(response, self._max_message))
            return response
        except Exception as error:  # also what an auth flow of the user's raises
            logger.debug("%s %s failed", request.method, request.url.host, exc_info=True)
            known = str(error) if isinstance(error, (httpx2.HTTPError, OSError)) else ""  # others may tell secrets
            return _failed(request, HTTPFailure(status=0, reason=f" ({known[:200] or type(error).__name__})"))

    async def _read(self, response: httpx2.Response) -> httpx2.Response:
        """The same response with its body, unless that is too long."""
        body = await _body(response, self._max_message)
        if body is None:
            reason = f" and more than {self._max_message} bytes"
            return _failed(response.request, HTTPFailure(status=response.status_code, reason=reason, too_long=True))
        limit = max_values(self._max_message)
        if not has_few_values(body, limit):
            reason = f" and more than {limit:,} JSON values"
            return _failed(response.request, HTTPFailure(status=response.status_code, reason=reason, too_long=True))
        try:
            body.decode()
        except UnicodeDecodeError:
            body = body.decode("utf-8", "replace").encode()
        return _with_body(response, content=mended(body.removeprefix(BOM_UTF8)))

    async def _refused(self, response: httpx2.Response) -> httpx2.Response:
        """The JSON-RPC error that a server gave beside the status, or one that says what the status means."""
        status, request = response.status_code, response.request
        body = await _body(response, _MAX_REFUSAL)
        code = _error_code(body)
        # A session that the server has forgotten is 404, whatever else the server says about it.
        lost = status == 404 and "mcp-session-id" in request.headers and code != METHOD_NOT_FOUND
        if code is not None and body is not None and status not in (401, 403) and not lost:
            headers = {"content-type": "application/json"}
            return httpx2.Response(status, headers=headers, content=body, request=request)
        retry_after = _seconds(response.headers.get("retry-after", ""))
        return _failed(request, HTTPFailure(status=status, retry_after=retry_after, lost=lost))


class _QuietURL(httpx2.URL):
    """A URL that is shown without user, password and query: every request is logged with it."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc.decode('ascii')}{self.path}"


class _Mended(httpx2.AsyncByteStream):
    """The event stream of a response, as the SDK's transport can take it.

    It would lose a message that holds half of a surrogate pair, parse any number of values, and reconnect at once if
    the server says so.
    """

    def __init__(self, response: httpx2.Response, max_message: int) -> None:
        self._response = response
        self._max_message = max_message
        self._max_values = max_values(max_message)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        rest = bytearray()
        async for chunk in self._response.aiter_bytes():
            begun = len(rest)
            rest += chunk
            end = max(rest.rfind(b"\n", begun), rest.rfind(b"\r", begun)) + 1
            if len(rest) - end > self._max_message:  # the transport will refuse it
                end = len(rest)
            if end:
                yield self._usable(bytes(rest[:end]))
                del rest[:end]
        yield self._usable(bytes(rest))

    def _usable(self, lines: bytes) -> bytes:
        if b"retry:" in lines:
            lines = _RETRY.sub(_bounded_retry, lines)
        if not has_few_values(lines, self._max_values):
            lines = b"".join(map(self._small, lines.splitlines(keepends=True)))
        return mended(lines)

    def _small(self, line: bytes) -> bytes:
        """Return the line, or in place of a message of too many values the error that stands for it."""
        if not line.startswith(b"data:") or has_few_values(line, self._max_values):
            return line
        try:
            small = large_message(line.removeprefix(b"data:"), self._max_values)
        except CallError:
            small = None
        return b"" if small is None else b"data: " + write_message(small) + b"\n"

    async def aclose(self) -> None:
        await self._response.aclose()


def _bounded_retry(found: re.Match[bytes]) -> bytes:
    delay = int(found[1]) if len(found[1]) < 10 else _RETRIES[-1]
    return b"retry: %d" % min(max(delay, _RETRIES[0]), _RETRIES[-1])


def _with_body(response: httpx2.Response, **body: Any) -> httpx2.Response:
    """Return the response with another body: headers about the encoding and length of the old one do not hold."""
    headers = [pair for pair in response.headers.multi_items() if not pair[0].startswith("content-")]
    headers.append(("content-type", response.headers["content-type"]))
    return httpx2.Response(response.status_code, headers=headers, request=response.request, **body)


async def _body(response: httpx2.Response, limit: int) -> bytes | None:
    """All of it, or None if it is longer than the limit."""
    body = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > limit:
                return None
    finally:
        await response.aclose()
    return bytes(body)


def _is(response: httpx2.Response, content_type: str) -> bool:
    return response.headers.get("content-type", "").lower().startswith(content_type)


def _error_code(body: bytes | None) -> int | None:
    """The code of a JSON-RPC error, or None if this is none."""
    try:
        message = jsonrpc_message_adapter.validate_json(body or b"", by_name=False)
    except ValueError:
        return None
    return message.error.code if isinstance(message, JSONRPCError) else None


def _seconds(text: str) -> float | None:
    return min(float(text), MAX_RETRY_AFTER) if text.isascii() and text.isdigit() else None


def _failed(request: httpx2.Request, failure: HTTPFailure) -> httpx2.Response:
    data = {HTTP_FAILURE: msgspec.to_builtins(failure)}
    error = {"code": INTERNAL_ERROR, "message": f"HTTP {failure.status}", "data": data}
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(max(failure.status, 400), json=body, request=request)


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
