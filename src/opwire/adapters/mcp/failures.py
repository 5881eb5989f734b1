"""What went wrong with an MCP server, as a `CallError`. No I/O.

What HTTP says travels through the SDK as the `data` of a JSON-RPC error, under `HTTP_FAILURE`: its transport keeps
nothing else of a response that failed. The key is secret, because a server writes `data` too.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorData,
)
from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import replace_surrogates

HTTP_FAILURE = f"opwire/http/{secrets.token_hex(8)}"
"""The key under which an `HTTPFailure` stands, different in every process: a server cannot forge one."""

MAX_RETRY_AFTER = 86_400.0
"""Seconds: a server that asks for more is asked again after a day."""


class HTTPFailure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What HTTP said. A status of 0 is a server that did not answer; `lost` is a session that it has forgotten.

    `too_long` is an answer above a limit, of any transport.
    """

    status: int
    reason: str = ""
    retry_after: float | None = None
    lost: bool = False
    too_long: bool = False


_MAX_TEXT = 2000  # characters of a server's message that are repeated
_MAX_DATA = 4000  # bytes of its error's data that are kept
_UNKNOWN_TOOL = re.compile(r"unknown tool|tool\b.{0,200}\bnot found", re.IGNORECASE | re.DOTALL)


def too_large(what: str) -> ErrorData:
    """Return the error that stands for an answer of which too much came."""
    failure = HTTPFailure(status=0, reason=f" {what}", too_long=True)
    return ErrorData(code=INTERNAL_ERROR, message="too large", data={HTTP_FAILURE: msgspec.to_builtins(failure)})


def call_error(error: MCPError, server: str, method: str) -> CallError:
    """Map a JSON-RPC error that answers `method`."""
    http = http_failure(error)
    if http is not None:
        return _of_http(http, server)
    code, text = error.code, str(replace_surrogates(error.message))[:_MAX_TEXT]
    details = {"code": code, "data": _capped(error.data)}
    said = f"the MCP server {server} answered {method} with an error: {text}"
    if code == METHOD_NOT_FOUND or (method == "tools/call" and _UNKNOWN_TOOL.search(text)):
        return CallError(ErrorCode.OPERATION_NOT_FOUND, said, details)
    if code == INVALID_PARAMS:
        return CallError(ErrorCode.VALIDATION_ERROR, said, details)
    if code in (PARSE_ERROR, INVALID_REQUEST):
        return CallError(ErrorCode.PROTOCOL_ERROR, said, details)
    if code == CONNECTION_CLOSED and text.startswith("SSE stream"):  # the SDK's own words: the answer was cut off
        return CallError(ErrorCode.UNAVAILABLE, f"the MCP server {server} did not finish its answer: {text}", details)
    return CallError(ErrorCode.EXECUTION_ERROR, said, details)


def http_failure(error: MCPError) -> HTTPFailure | None:
    """What HTTP said, if that is what failed."""
    data: Any = error.data
    if not isinstance(data, Mapping) or HTTP_FAILURE not in data:
        return None
    return msgspec.convert(data[HTTP_FAILURE], HTTPFailure)


def _of_http(http: HTTPFailure, server: str) -> CallError:
    """The server's refusal of *us* is never passed on as a refusal of our caller: to it, the server is unavailable."""
    status = http.status
    words = _HTTP_WORDS.get(status) or f"answered with HTTP {status}"
    if http.too_long and not status:
        words = "answered with"
    return CallError(
        ErrorCode.PAYLOAD_TOO_LARGE if http.too_long else ErrorCode.UNAVAILABLE,
        f"the MCP server {server} {words}{http.reason}",
        {"status": status} if status else None,
        retryable=not http.too_long and (status in (0, 408, 425, 429) or status >= 500),
        retry_after=http.retry_after,
    )


_HTTP_WORDS = {
    0: "cannot be reached",
    401: "does not know us (HTTP 401): check its headers or its auth option",
    403: "does not allow us (HTTP 403): check the rights of our credentials",
    404: "has nothing at this address (HTTP 404)",
}


def _capped(data: Any) -> Any:
    """Return the data of an error, cut where it is too much for one."""
    if data is None:
        return None
    try:
        raw = msgspec.json.encode(replace_surrogates(data))
    except (TypeError, ValueError, RecursionError):
        return "(data that cannot be shown)"
    return data if len(raw) <= _MAX_DATA else raw[:_MAX_DATA].decode("utf-8", "ignore") + "…"
