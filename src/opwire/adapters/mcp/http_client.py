"""The HTTP client under both HTTP transports: a request that fails gets an answer that says why.

The SDK's transport drops the status of a response that failed, and ends the whole connection when one request cannot be
sent. Here every failure becomes a JSON-RPC error in the body of a response, which that transport does pass on: it costs
one request, and its error says what happened.
"""

import logging
from typing import Any

import anyio
import httpx2
import msgspec
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND, JSONRPCError, jsonrpc_message_adapter

from opwire.adapters.mcp.failures import HTTP_FAILURE, HTTPFailure
from opwire.adapters.mcp.servers import HTTPServer
from opwire.errors import CallError, ErrorCode

logger = logging.getLogger("opwire.mcp")

PATIENCE = httpx2.Timeout(30.0, read=300.0, pool=None)  # a server may think for long before it answers
_FAREWELL = 2.0  # seconds for the request that ends a session
_MAX_REFUSAL = 64 * 1024  # bytes that are read of a response that failed


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
        self._max_message = max_message
        self._refused_from = 300 if server.kind == "sse" else 400  # the SDK follows redirects within the origin

    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        """As always, but NaN and infinities become null: the default encoder raises, and that ends the connection."""
        if (body := options.pop("json", None)) is not None:
            options["content"] = msgspec.json.encode(body)
        return super().build_request(method, url, **options)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """As always, with what failed in a response."""
        try:
            with anyio.fail_after(_FAREWELL if request.method == "DELETE" else None):
                response = await super().send(request, **options)
                if response.status_code >= self._refused_from:
                    return await self._refused(response)
                if response.status_code < 300 and _is_json(response):
                    return await self._read(response)
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
        # The body is decoded already, so what says how it was encoded and how long it was does not hold any more.
        headers = [pair for pair in response.headers.multi_items() if not pair[0].startswith("content-")]
        content_type = [("content-type", "application/json")]
        return httpx2.Response(
            response.status_code, headers=headers + content_type, content=body, request=response.request
        )

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


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _error_code(body: bytes | None) -> int | None:
    """The code of a JSON-RPC error, or None if this is none."""
    try:
        message = jsonrpc_message_adapter.validate_json(body or b"", by_name=False)
    except ValueError:
        return None
    return message.error.code if isinstance(message, JSONRPCError) else None


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() else None


def _failed(request: httpx2.Request, failure: HTTPFailure) -> httpx2.Response:
    data = {HTTP_FAILURE: msgspec.to_builtins(failure)}
    error = {"code": INTERNAL_ERROR, "message": f"HTTP {failure.status}", "data": data}
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(max(failure.status, 400), json=body, request=request)
