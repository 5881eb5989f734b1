"""Errors of a server as `CallError`."""

from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.transport import HTTPExchangeError, call_error
from opwire.mcp.messages import RPCError


def mapped(code: int, message: str = "no", data: Any = None, method: str = "tools/call") -> CallError:
    return call_error(RPCError(code, message, data), "judge", method)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (-32601, "Method not found", ErrorCode.OPERATION_NOT_FOUND),
        (-32602, "Unknown tool: x", ErrorCode.OPERATION_NOT_FOUND),
        (-32602, "Tool x not found", ErrorCode.OPERATION_NOT_FOUND),
        (-32000, "MCP error: tool 'x' was not found", ErrorCode.OPERATION_NOT_FOUND),
        (-32602, "a is required", ErrorCode.VALIDATION_ERROR),
        (-32600, "Invalid Request", ErrorCode.PROTOCOL_ERROR),
        (-32700, "Parse error", ErrorCode.PROTOCOL_ERROR),
        (-32000, "out of paper", ErrorCode.EXECUTION_ERROR),
        (-32603, "Internal error", ErrorCode.EXECUTION_ERROR),
        (1, "", ErrorCode.EXECUTION_ERROR),
    ],
)
def test_codes_mean_the_same_as_everywhere(code: int, message: str, expected: ErrorCode) -> None:
    error = mapped(code, message)
    assert error.code is expected
    assert error.details == {"code": code, "data": None}
    assert "judge" in error.message
    assert message in error.message


def test_only_a_tool_that_is_called_can_be_unknown() -> None:
    assert mapped(-32602, "Unknown tool: x", method="prompts/get").code is ErrorCode.VALIDATION_ERROR


def test_what_a_server_says_is_kept_up_to_a_limit() -> None:
    assert mapped(1, data={"why": ["a"]}).details == {"code": 1, "data": {"why": ["a"]}}
    error = mapped(1, "x" * 10_000, {"text": "é" * 10_000})
    assert len(error.message) < 2200
    assert len(error.details["data"]) <= 4001
    assert error.details["data"].endswith("…")
    assert mapped(1, "\ud800", {"text": "\ud800"}).message.endswith("\ufffd")


@pytest.mark.parametrize(
    ("status", "words", "retryable"),
    [
        (0, "cannot be reached", True),
        (401, "rejected the credentials", False),
        (403, "denied access", False),
        (404, "has nothing at this address", False),
        (418, "answered with HTTP 418", False),
        (429, "answered with HTTP 429", True),
        (503, "answered with HTTP 503", True),
    ],
)
def test_what_http_says_is_never_passed_on_as_if_we_said_it(status: int, words: str, retryable: bool) -> None:
    error = call_error(HTTPExchangeError(status, retry_after=1.5), "judge", "tools/call")
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message.startswith(f"the MCP server judge {words}")
    assert (error.retryable, error.retry_after) == (retryable, 1.5)
