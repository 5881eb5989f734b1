"""What a transport to an MCP server is, and its failures. `stdio` and `http` have the transports."""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar, Protocol

import msgspec

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import (
    ReceivedMessage,
    RequestId,
    RPCCode,
    RPCError,
    RPCMessage,
    RPCNotification,
)
from opwire.runtime.text import get_logger
from opwire.typed.plain import replace_surrogates, write_json

logger = get_logger("opwire.mcp.client")

MAX_RETRY_AFTER = 86_400.0
"""Seconds: longer delays that a server asks for are reduced to a day."""

_MAX_ERROR_TEXT_LENGTH = 2000
_MAX_ERROR_DATA_BYTES = 4000
_UNKNOWN_TOOL = re.compile(r"unknown tool|tool\b.{0,200}\bnot found", re.IGNORECASE | re.DOTALL)
_HTTP_MESSAGES = {
    0: "cannot be reached",
    401: "rejected the credentials (HTTP 401): check its headers, or sign in with `opwire login`",
    403: "denied access (HTTP 403): check the rights of the credentials",
    404: "has nothing at this address (HTTP 404)",
}

_encoder = msgspec.json.Encoder()


# --- what a transport is ----------------------------------------------------------------------------------------------


class TransportEvents(Protocol):
    """What a transport reports, in the order of events. All of these are called on the event loop."""

    def received(self, message: ReceivedMessage, request: RequestId | None = None) -> Awaitable[None] | None:
        """Handle a message; the transport reads on after what is returned.

        `request` is the one of this side that it belongs to, if the transport has a stream for each request.
        """
        ...

    def failed(self, id: RequestId, error: Exception) -> None:
        """Fail one request; the transport itself works."""
        ...

    def ignored(self, line: bytes, /) -> None:
        """Report a line of a server's output that is not a message."""
        ...

    def ended(self) -> None:
        """Handle the end; `failure` is its reason."""
        ...


class ClientTransport(ABC):
    """An open connection to a server. The code that opened it closes it."""

    has_headers: ClassVar[bool] = True
    """Whether requests have HTTP headers."""

    failure: CallError | None = None
    """The reason of its end."""

    @property
    def last_output(self) -> str:
        """The last lines of the server's log, for an error message, if the transport has them."""
        return ""

    @abstractmethod
    def write(self, message: RPCMessage, headers: Mapping[str, str] | None = None) -> Awaitable[None] | None:
        """Send a message, or return what to wait for until it is sent. `headers` are for HTTP.

        The response to a request is reported later. What is returned raises the same.

        Raises:
            CallError: the transport has ended.
            TypeError, ValueError, RecursionError: the message has no JSON form.
        """

    async def send(self, message: RPCMessage, headers: Mapping[str, str] | None = None) -> None:
        """Send a message, as `write`, and wait until it is sent."""
        wait_for = self.write(message, headers)
        if wait_for is not None:
            await wait_for

    @abstractmethod
    def cancel(self, id: RequestId, notification: RPCNotification | None) -> None:
        """Stop waiting for the response to a request, and notify the server, without blocking."""


# --- failures ---------------------------------------------------------------------------------------------------------


class HTTPExchangeError(Exception):
    """A failed HTTP exchange.

    A `status` of 0 means that there was no response; `problem` says then what the server did, if it is known. `lost`:
    the server has dropped the session. `too_long`: the response exceeds a limit.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        *,
        problem: str = "",
        retry_after: float | None = None,
        lost: bool = False,
        too_long: bool = False,
    ) -> None:
        super().__init__(f"{problem or f'HTTP {status}'}{reason}")
        self.status = status
        self.reason = reason
        self.problem = problem
        self.retry_after = retry_after
        self.lost = lost
        self.too_long = too_long


def with_output(message: str, last_output: str) -> str:
    """Return a message and the last lines of a server on stderr, for the log or for the owner of the server."""
    return f"{message}; {last_output}" if last_output else message


def call_error(error: RPCError | HTTPExchangeError, server: str, method: str) -> CallError:
    """Return the `CallError` for a failed request of `method`."""
    if isinstance(error, HTTPExchangeError):
        # UNAVAILABLE even for 401 and 403: the server rejected opwire, not opwire's caller.
        status = error.status
        problem = error.problem or _HTTP_MESSAGES.get(status) or f"answered with HTTP {status}"
        return CallError(
            ErrorCode.PAYLOAD_TOO_LARGE if error.too_long else ErrorCode.UNAVAILABLE,
            f"the MCP server {server} {problem}{error.reason}",
            {"status": status} if status else None,
            retryable=not error.too_long and (status in (0, 408, 425, 429) or status >= 500),
            retry_after=error.retry_after,
        )
    code, text = error.code, str(replace_surrogates(error.message[:_MAX_ERROR_TEXT_LENGTH]))
    details = {"code": code, "data": _shortened(error.data)}
    message = f"the MCP server {server} answered {method} with an error: {text}"
    if code == RPCCode.METHOD_NOT_FOUND or (method == "tools/call" and _UNKNOWN_TOOL.search(text)):
        return CallError(ErrorCode.OPERATION_NOT_FOUND, message, details)
    if code == RPCCode.INVALID_PARAMS:
        return CallError(ErrorCode.VALIDATION_ERROR, message, details)
    if code in (RPCCode.PARSE_ERROR, RPCCode.INVALID_REQUEST):
        return CallError(ErrorCode.PROTOCOL_ERROR, message, details)
    return CallError(ErrorCode.EXECUTION_ERROR, message, details)


def _shortened(data: Any) -> Any:
    """Return an error's data, truncated JSON if it is too large."""
    if data is None:
        return None
    try:
        raw = write_json(_encoder, data)
    except (TypeError, ValueError, RecursionError):
        return "(data that cannot be encoded)"
    return data if len(raw) <= _MAX_ERROR_DATA_BYTES else raw[:_MAX_ERROR_DATA_BYTES].decode("utf-8", "ignore") + "…"
