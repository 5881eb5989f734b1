"""Errors and results, from opwire to the format and back."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opwire.errors import ERROR_TABLE, CallError, ConversionError, ErrorCode, NotPlainError
from opwire.model.envelope import MCPResponseMeta, http_envelope, local_envelope, mcp_envelope
from opwire.model.tool_envelope import (
    MCP_ERROR_CATEGORIES,
    McpErrorPayload,
    call_error,
    classify,
    encode_blocks,
    error_blocks,
    error_payload,
    parse,
    to_blocks,
    to_mcp_envelope,
)
from tests.model.test_tool_envelope_block import JSON

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "tool-envelope-vectors.json").read_text("utf-8"))
FOREIGN = McpErrorPayload(
    category="rate_limit", code="ERR_7", message="slow down", recoverable=True, suggested_action="wait", next_tool="n"
)

CODES = st.sampled_from(ErrorCode)
OPTIONAL = st.none() | st.text()
PAYLOADS = st.builds(
    McpErrorPayload,
    category=st.sampled_from(MCP_ERROR_CATEGORIES) | st.text(),
    code=CODES.map(str) | st.text(),
    message=st.text(),
    details=OPTIONAL,
    recoverable=st.booleans(),
    suggested_action=OPTIONAL,
    next_tool=OPTIONAL,
)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_is_a_payload_with_the_category_of_the_table(code: ErrorCode) -> None:
    """A CallError maps to an McpErrorPayload and back, through the one table of errors."""
    row = ERROR_TABLE[code]
    expected = McpErrorPayload(category=row.category, code=code.value, message=row.message, recoverable=row.retryable)
    if code is ErrorCode.VALIDATION_ERROR:  # recoverable with another input, as in the specification's example
        expected = replace(expected, recoverable=True, suggested_action="Fix the input and retry.")
    assert error_payload(CallError(code)) == expected
    again = call_error(expected)
    assert (again.code, again.details, again.retryable) == (code, None, row.retryable), "it is not retried as it is"


@pytest.mark.parametrize(
    ("details", "text"),
    [(None, None), ("as it is", "as it is"), ({"é": [1, None]}, '{"é":[1,null]}'), (0, "0"), ([], "[]")],
)
def test_the_details_of_an_error_are_text(details: Any, text: str | None) -> None:
    assert error_payload(CallError("TIMEOUT", "m", details)).details == text


def test_details_without_a_json_form_are_refused() -> None:
    with pytest.raises(NotPlainError):
        error_payload(CallError("TIMEOUT", "m", object()))


@pytest.mark.parametrize(
    ("category", "code"),
    [
        ("validation", "VALIDATION_ERROR"),
        ("execution", "EXECUTION_ERROR"),
        ("timeout", "TIMEOUT"),
        ("model", "EXECUTION_ERROR"),
        ("network", "UNAVAILABLE"),
        ("authorization", "ACCESS_DENIED"),
        ("rate_limit", "RATE_LIMITED"),
        ("not_found", "OPERATION_NOT_FOUND"),
        ("internal", "INTERNAL"),
        ("quota", "EXECUTION_ERROR"),
    ],
)
def test_a_foreign_code_is_chosen_by_category(category: str, code: str) -> None:
    error = call_error(McpErrorPayload(category=category, code="ERR_1", message="m", recoverable=False))
    assert (error.code, error.message, error.retryable) == (code, "m", False)
    assert error.foreign_code == "ERR_1"
    assert error_payload(error).code == "ERR_1"


def test_a_code_of_opwire_is_kept_with_its_details() -> None:
    payload = McpErrorPayload(category="execution", code="ABORTED", message="m", details="d", recoverable=True)
    error = call_error(payload)
    assert (error.code, error.message, error.details, error.retryable) == ("ABORTED", "m", "d", True)


def test_what_an_error_has_no_field_for_is_kept_in_its_details() -> None:
    error = call_error(FOREIGN)
    assert error.code is ErrorCode.RATE_LIMITED
    assert error.details == {
        "category": "rate_limit",
        "code": "ERR_7",
        "message": "slow down",
        "recoverable": True,
        "suggestedAction": "wait",
        "nextTool": "n",
    }


@given(code=CODES, message=st.text(), details=JSON, retryable=st.none() | st.booleans())
def test_an_error_keeps_code_message_and_retryable_there_and_back(
    code: ErrorCode, message: str, details: Any, retryable: bool | None
) -> None:
    error = CallError(code, message, details, retryable=retryable)
    back = call_error(error_payload(error))
    assert (back.code, back.message) == (error.code, error.message)
    # A payload calls a validation error recoverable: by another input, and not by the same request again.
    assert back.retryable == (error.retryable and code is not ErrorCode.VALIDATION_ERROR)


@given(payload=PAYLOADS)
def test_a_payload_comes_back_whole_from_its_error(payload: McpErrorPayload) -> None:
    assert error_payload(call_error(payload)) == payload


@pytest.mark.parametrize("change", [{"message": "other"}, {"retryable": False}, {"code": ErrorCode.TIMEOUT}])
def test_a_kept_payload_does_not_speak_for_an_error_that_says_something_else(change: dict[str, Any]) -> None:
    kept = call_error(FOREIGN)
    fields: dict[str, Any] = {"code": kept.code, "message": kept.message, "retryable": kept.retryable} | change
    payload = error_payload(CallError(details=kept.details, **fields))
    assert (payload.code, payload.message, payload.recoverable) == (
        fields["code"],
        fields["message"],
        fields["retryable"],
    )


# --- what was thrown --------------------------------------------------------------------------------------------------


class ValidationError(ValueError):
    """As the validation libraries call theirs."""


THROWN: dict[str, object] = {
    "zod": ValidationError('Required at "a"'),
    "abort": asyncio.CancelledError("ab"),
    "nul": None,
    "num": 5,
}


@pytest.mark.parametrize("vector", VECTORS["classify"], ids=lambda vector: vector["in"])
def test_what_was_thrown_is_sorted_as_the_public_implementation_sorts_it(vector: dict[str, Any]) -> None:
    """What a tool threw is sorted into a category, and says whether a retry makes sense."""
    payload = classify(THROWN[vector["in"]], code="C")
    assert payload == McpErrorPayload(
        category=vector["category"],
        code="C",
        message=vector["message"],
        recoverable=vector["recoverable"],
        suggested_action=vector.get("suggestedAction"),
    )
    assert vector["hasDetails"] is (payload.details is not None)


@pytest.mark.parametrize(
    ("thrown", "category", "code", "message"),
    [
        (TimeoutError("late"), "timeout", "TIMEOUT", "late"),
        (RuntimeError("boom"), "execution", "EXECUTION_ERROR", "boom"),
        (msgspec.ValidationError("bad"), "validation", "VALIDATION_ERROR", "Validation error: bad"),
        (True, "internal", "INTERNAL", "true"),
        ("text", "internal", "INTERNAL", "text"),
        ([1], "internal", "INTERNAL", "[1]"),
    ],
)
def test_without_a_code_the_one_of_the_category_is_given(
    thrown: object, category: str, code: str, message: str
) -> None:
    payload = classify(thrown)
    assert (payload.category, payload.code, payload.message, payload.details) == (category, code, message, None)


def test_a_call_error_is_sorted_by_the_table() -> None:
    error = CallError("UNAVAILABLE", "gone")
    assert classify(error) == error_payload(error)
    assert classify(error, code="C") == msgspec.structs.replace(error_payload(error), code="C")


# --- results ----------------------------------------------------------------------------------------------------------


@given(payload=JSON)
def test_the_payload_of_a_two_block_result_is_the_data_and_the_blocks_come_back(payload: Any) -> None:
    blocks = encode_blocks("# md", payload, tool="t")
    envelope = to_mcp_envelope(blocks)
    assert envelope.data == payload
    assert envelope.meta == MCPResponseMeta(is_error=False, content=[*blocks])
    assert to_blocks(envelope, tool="another") == blocks


def test_a_failed_result_stays_a_failed_result() -> None:
    envelope = to_mcp_envelope(error_blocks(FOREIGN), is_error=True, _meta={"a": 1})
    assert msgspec.convert(envelope.data, McpErrorPayload) == FOREIGN
    assert isinstance(envelope.meta, MCPResponseMeta)
    assert envelope.meta.is_error is True
    assert msgspec.to_builtins(envelope.meta)["_meta"] == {"a": 1}


@pytest.mark.parametrize("structured", [None, {"s": 1}])
def test_structured_content_comes_before_the_payload(structured: Any) -> None:
    envelope = to_mcp_envelope(encode_blocks("# md", 1, tool="t"), structured_content=structured)
    assert envelope.data == structured
    assert msgspec.to_builtins(envelope.meta)["structuredContent"] == structured


def test_without_a_readable_envelope_the_data_is_the_content_blocks() -> None:
    blocks = [{"type": "text", "text": "# md"}, {"type": "text", "text": "__ENVELOPE_V1__:?"}]
    assert to_mcp_envelope(blocks).data == blocks


def test_a_block_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(ConversionError):
        to_mcp_envelope(cast("Any", ["text"]))


@given(data=JSON)
def test_the_data_of_a_local_result_is_the_payload_of_its_blocks(data: Any) -> None:
    assert to_mcp_envelope(to_blocks(local_envelope(data, "a.b"), tool="b")).data == data


def test_a_local_result_is_written_with_its_own_time_and_shown_as_json() -> None:
    envelope = local_envelope({"sum": 3}, "math.add")
    envelope = msgspec.structs.replace(envelope, meta=msgspec.structs.replace(envelope.meta, timestamp=1767323045678))
    expected = encode_blocks('```json\n{"sum":3}\n```', {"sum": 3}, tool="add", ts="2026-01-02T03:04:05.678Z")
    assert to_blocks(envelope, tool="add") == expected
    assert to_blocks(envelope, tool="add", markdown="# 3", ts="x") == encode_blocks(
        "# 3", {"sum": 3}, tool="add", ts="x"
    )


@pytest.mark.parametrize("timestamp", [1e300, -1e300, 10**30, 1767323045678.25])
def test_a_timestamp_that_is_not_a_date_does_not_keep_a_result_from_being_shown(timestamp: float) -> None:
    envelope = local_envelope({"sum": 3}, "math.add")
    envelope = msgspec.structs.replace(envelope, meta=msgspec.structs.replace(envelope.meta, timestamp=timestamp))
    assert to_mcp_envelope(to_blocks(envelope, tool="add")).data == {"sum": 3}


@pytest.mark.parametrize("text", ["hello", ""])
def test_text_is_shown_unchanged(text: str) -> None:
    blocks = to_blocks(http_envelope(text, status_code=200, headers={}, content_type="text/plain"), tool="t")
    assert blocks[0] == {"type": "text", "text": text}


def test_an_mcp_result_with_data_that_its_blocks_lack_is_rewritten_under_its_own_text() -> None:
    blocks = encode_blocks("# md", {"a": 1, "b": 2}, tool="t", ts="x")
    envelope = mcp_envelope({"a": 1}, is_error=False, content=blocks)
    assert to_blocks(envelope, tool="t", ts="y") == encode_blocks("# md", {"a": 1}, tool="t", ts="y")
    plain = mcp_envelope({"a": 1}, is_error=False, content=[{"type": "text", "text": "just text"}])
    assert to_blocks(plain, tool="t", ts="y") == encode_blocks("just text", {"a": 1}, tool="t", ts="y")


@pytest.mark.parametrize(("given_markdown", "shown"), [(None, "```json\n1\n```"), ("", "")])
def test_the_data_is_shown_where_an_mcp_result_has_no_text_unless_the_text_is_given(
    given_markdown: str | None, shown: str
) -> None:
    envelope = mcp_envelope(1, is_error=False, content=[])
    assert to_blocks(envelope, tool="t", markdown=given_markdown)[0] == {"type": "text", "text": shown}


def test_given_markdown_takes_the_place_of_an_mcp_results_text() -> None:
    envelope = to_mcp_envelope(encode_blocks("# md", 1, tool="t", ts="x"))
    first, second = to_blocks(envelope, tool="t", markdown="new")
    assert first == {"type": "text", "text": "new"}
    assert second["type"] == "text"
    assert parse(second["text"]).payload == 1


def test_structured_content_goes_before_an_envelope_block() -> None:
    envelope = to_mcp_envelope(encode_blocks("# md", {"from": "block"}, tool="t"), structured_content={"from": "tool"})
    assert envelope.data == {"from": "tool"}
