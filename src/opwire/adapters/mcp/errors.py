"""Failures and log lines of MCP servers: JSON-RPC and HTTP errors as `CallError`, bounded logging. No I/O."""

import logging
import re
import time
from typing import Any

import msgspec

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, RPCError
from opwire.typed.plain import harmless, replace_surrogates

logger = logging.getLogger("opwire.mcp")

MAX_SHOWN = 2000
"""Characters of one server line that the log shows."""

MAX_LINES = 100
"""Lines of one server that the log shows per second."""

MAX_RETRY_AFTER = 86_400.0
"""Seconds: longer delays that a server asks for are reduced to a day."""

_MAX_TEXT = 2000  # characters of a server's message that are repeated
_MAX_DATA = 4000  # bytes of its error's data that are kept
_UNKNOWN_TOOL = re.compile(r"unknown tool|tool\b.{0,200}\bnot found", re.IGNORECASE | re.DOTALL)
_HTTP_MESSAGES = {
    0: "cannot be reached",
    401: "rejected the credentials (HTTP 401): check its headers, or sign in with `opwire login`",
    403: "denied access (HTTP 403): check the rights of the credentials",
    404: "has nothing at this address (HTTP 404)",
}


class ServerLog:
    """Write the lines of one server to the log: shortened, escaped, and rate-limited so that a flood fills no disk."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._second_ends = 0.0
        self._lines = 0

    def write(self, level: int, text: str) -> None:
        """Log a line; above the rate limit, log one warning and drop the rest of this second."""
        if not logger.isEnabledFor(level):
            return
        now = time.monotonic()
        if now >= self._second_ends:
            self._second_ends, self._lines = now + 1, 0
        self._lines += 1
        if self._lines <= MAX_LINES:
            line = harmless(text[:MAX_SHOWN]).replace("\n", "\\n")
            logger.log(level, "%s: %s", self._name, line)
        elif self._lines == MAX_LINES + 1:
            logger.warning("%s writes more than %d lines a second; the rest is dropped", self._name, MAX_LINES)


class HTTPExchangeError(Exception):
    """A failed HTTP exchange.

    A `status` of 0 means that there was no response. `lost`: the server has dropped the session. `too_long`: the
    response exceeds a limit.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        *,
        retry_after: float | None = None,
        lost: bool = False,
        too_long: bool = False,
    ) -> None:
        super().__init__(f"HTTP {status}{reason}")
        self.status = status
        self.reason = reason
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
        words = _HTTP_MESSAGES.get(status) or f"answered with HTTP {status}"
        return CallError(
            ErrorCode.PAYLOAD_TOO_LARGE if error.too_long else ErrorCode.UNAVAILABLE,
            f"the MCP server {server} {words}{error.reason}",
            {"status": status} if status else None,
            retryable=not error.too_long and (status in (0, 408, 425, 429) or status >= 500),
            retry_after=error.retry_after,
        )
    code, text = error.code, str(replace_surrogates(error.message))[:_MAX_TEXT]
    details = {"code": code, "data": _shortened(error.data)}
    message = f"the MCP server {server} answered {method} with an error: {text}"
    if code == METHOD_NOT_FOUND or (method == "tools/call" and _UNKNOWN_TOOL.search(text)):
        return CallError(ErrorCode.OPERATION_NOT_FOUND, message, details)
    if code == INVALID_PARAMS:
        return CallError(ErrorCode.VALIDATION_ERROR, message, details)
    if code in (PARSE_ERROR, INVALID_REQUEST):
        return CallError(ErrorCode.PROTOCOL_ERROR, message, details)
    return CallError(ErrorCode.EXECUTION_ERROR, message, details)


def _shortened(data: Any) -> Any:
    """Return an error's data, truncated JSON if it is too large."""
    if data is None:
        return None
    try:
        raw = msgspec.json.encode(replace_surrogates(data))
    except (TypeError, ValueError, RecursionError):
        return "(data that cannot be encoded)"
    return data if len(raw) <= _MAX_DATA else raw[:_MAX_DATA].decode("utf-8", "ignore") + "…"
