"""Envelopes and errors as results: nothing lost, nothing told that is not for the client."""

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import methods

from opwire import CallError, OperationRegistry, OperationSpec, Schema, http_envelope, local_envelope, mcp_envelope
from opwire.errors import ErrorCode
from opwire.mcp.server.tools import (
    ERROR_META,
    MAX_DETAILS,
    EncodedData,
    ResultFormat,
    Tool,
    ToolCatalogue,
    collected_result,
    encode_data,
    error_result,
    result_of,
)
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.origin import RESULT_META, read_result_origin
from opwire.model.tool_envelope import McpErrorPayload, ToolEnvelope, parse_or_text, payload_as
from opwire.registry.dispatch import Dispatcher
from tests.properties import examples

OLDER, NEWEST = ResultFormat(True), ResultFormat(False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


async def _handler(input: Any, context: Context) -> Any:
    return input


def _tool(**fields: Any) -> Tool:
    registry = OperationRegistry()
    registry.register(OperationSpec(namespace="a", name="b", **fields), _handler)
    tool = ToolCatalogue(Dispatcher(registry)).find("a_b")
    assert tool is not None
    return tool


TOOL = _tool()


def _local(data: Any) -> ResponseEnvelope[Any]:
    return local_envelope(data, "a.b")


# --- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [OLDER, NEWEST])
def test_a_result_that_breaks_its_schema_is_content_marked_as_an_error_because_clients_would_throw_it_away(
    format: ResultFormat,
) -> None:
    tool = _tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    result = result_of(_local({"n": "x"}), tool, format)
    assert result["isError"] is True
    assert "structuredContent" not in result
    data, problems = (block["text"] for block in result["content"])
    assert data == '{"n":"x"}'
    assert '/n: "x" is not of type "integer"' in problems or '/n: the value is not of type "integer"' in problems
    assert "isError" not in result_of(_local({"n": 1}), tool, format)


def test_what_has_no_schema_promises_nothing() -> None:
    assert result_of(_local({"n": "x"}), TOOL, NEWEST) == {
        "content": [{"type": "text", "text": '{"n":"x"}'}],
        "structuredContent": {"n": "x"},
    }


# --- data -------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(json_values)
def test_structured_content_is_the_data_or_an_object_that_holds_it(data: Any) -> None:
    newest, older = result_of(_local(data), TOOL, NEWEST), result_of(_local(data), TOOL, OLDER)
    assert newest["structuredContent"] == data
    origin = read_result_origin(older.get("_meta"))
    if isinstance(data, dict):
        assert older["structuredContent"] == data
        assert origin is None
    else:
        assert older["structuredContent"] == {"result": data}
        assert origin is not None
        assert origin.wrapped
    methods.validate_server_result("tools/call", "2025-11-25", older)
    methods.validate_server_result("tools/call", "2026-07-28", {"resultType": "complete", **newest})


def test_where_the_schema_is_wrapped_an_object_is_wrapped_too() -> None:
    tool = _tool(output_schema={"anyOf": [{"type": "null"}, {"type": "object"}]})
    assert result_of(_local({"a": 1}), tool, OLDER)["structuredContent"] == {"result": {"a": 1}}
    assert result_of(_local({"a": 1}), tool, NEWEST)["structuredContent"] == {"a": 1}


def test_bytes_are_base64_and_say_so() -> None:
    result = result_of(_local(b"\x00\xff"), TOOL, NEWEST)
    assert result["structuredContent"] == "AP8="
    assert result["content"][0]["resource"]["blob"] == "AP8="
    assert result["_meta"] == {RESULT_META: {"encoding": "base64"}}


PNG = b"\x89PNG\r\n\x1a\n..."


@pytest.mark.parametrize("format", [NEWEST, OLDER])
def test_an_image_is_a_block_alone_so_that_no_client_shows_its_base64(format: ResultFormat) -> None:
    result = result_of(_local(PNG), _tool(output_schema={"type": "string", "contentEncoding": "base64"}), format)
    assert [block["type"] for block in result["content"]] == ["image"]
    assert "structuredContent" not in result
    assert result["_meta"][RESULT_META]["encoding"] == "base64"
    promised = _tool(output_schema={"type": ["string", "null"]})
    assert "structuredContent" in result_of(_local(PNG), promised, format)


def test_none_is_there() -> None:
    result = result_of(_local(None), TOOL, NEWEST)
    assert result == {"content": [{"type": "text", "text": "null"}], "structuredContent": None}


def test_what_json_cannot_carry_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "opwire.mcp.server"):
        assert encode_data([float("nan"), None], "a.b").data == [None, None]
    assert "NaN" in caplog.text
    assert encode_data({"\ud800": 2**70}, "a.b").data == {"\ufffd": 2**70}


def test_data_that_is_nested_too_deeply_is_an_error_of_its_own() -> None:
    deep: Any = []
    for _ in range(1_000):
        deep = [deep]
    with pytest.raises(CallError, match="nested deeper"):
        result_of(_local(deep), TOOL, NEWEST)


def test_an_http_answer_carries_its_status_and_headers_but_no_secrets() -> None:
    envelope = http_envelope(
        {"a": 1},
        status_code=201,
        headers={"X-Rate": "5", "Set-Cookie": "s=1", "Authorization": "Bearer x", "Proxy-Authorization": "x"},
        content_type="application/json",
    )
    result = result_of(envelope, TOOL, OLDER)
    assert result["_meta"][RESULT_META]["meta"] == {
        "source": "http",
        "statusCode": 201,
        "headers": {"x-rate": "5"},
        "contentType": "application/json",
    }


def test_bytes_of_an_http_answer_are_shown_as_what_they_are() -> None:
    envelope = http_envelope(b"\x00", status_code=200, headers={}, content_type="image/avif")
    assert result_of(envelope, TOOL, NEWEST)["content"][0]["mimeType"] == "image/avif"


# --- results of other MCP servers -------------------------------------------------------------------------------------


def test_what_an_mcp_server_answered_is_passed_on_as_it_came() -> None:
    content: Any = [{"type": "text", "text": "hi", "newer": None}, {"type": "image", "data": "", "mimeType": "x/y"}]
    structured = {"n": None}
    envelope = mcp_envelope({"n": 5}, is_error=True, content=content, structured_content=structured, _meta={"k": 1})
    expected = {"content": content, "structuredContent": structured, "isError": True, "_meta": {"k": 1}}
    assert result_of(envelope, TOOL, NEWEST) == result_of(envelope, TOOL, OLDER) == expected


def test_blocks_alone_stay_alone() -> None:
    content: Any = [{"type": "text", "text": "hi"}]
    assert result_of(mcp_envelope(content, is_error=False, content=content), TOOL, OLDER) == {"content": content}
    with_meta = mcp_envelope(content, is_error=False, content=content, _meta={"k": 1})
    assert result_of(with_meta, TOOL, OLDER) == {"content": content, "_meta": {"k": 1}}


def test_structured_content_that_is_not_an_object_is_wrapped_for_older_clients() -> None:
    envelope = mcp_envelope([1], is_error=False, content=[], structured_content=[1])
    shown = [{"type": "text", "text": "[1]"}]
    assert result_of(envelope, TOOL, NEWEST) == {"content": shown, "structuredContent": [1]}
    older = result_of(envelope, TOOL, OLDER)
    assert (older["structuredContent"], older["_meta"]) == ({"result": [1]}, {RESULT_META: {"wrapped": True}})


def test_what_another_opwire_wrapped_is_wrapped_again() -> None:
    said = {RESULT_META: {"wrapped": True, "encoding": "base64", "meta": {"source": "http"}}, "k": 1}
    envelope = mcp_envelope(b"\x00", is_error=False, content=[], structured_content={"result": "AA=="}, _meta=said)
    newest = result_of(envelope, TOOL, NEWEST)
    assert newest["structuredContent"] == "AA=="
    assert newest["_meta"] == {"k": 1, RESULT_META: {"encoding": "base64", "meta": {"source": "http"}}}


def test_what_was_read_from_text_is_structured_where_the_tool_promises_it() -> None:
    content: Any = [{"type": "text", "text": '{"n": 1}'}]
    envelope = mcp_envelope({"n": 1}, is_error=False, content=content)
    promised = _tool(output_schema={"type": "object"})
    assert result_of(envelope, promised, OLDER)["structuredContent"] == {"n": 1}
    assert "structuredContent" not in result_of(envelope, TOOL, OLDER)


def test_what_an_mcp_server_answered_cannot_break_the_connection() -> None:
    deep: Any = []
    for _ in range(1_000):
        deep = [deep]
    with pytest.raises(CallError, match="nested deeper"):
        result_of(mcp_envelope(1, is_error=False, content=[], _meta={"deep": deep}), TOOL, NEWEST)


# --- errors -----------------------------------------------------------------------------------------------------------


def _error(error: CallError) -> tuple[str, dict[str, Any]]:
    result = error_result(error, TOOL, OLDER)
    assert result["isError"] is True
    assert "structuredContent" not in result
    return result["content"][0]["text"], result["_meta"][ERROR_META]


def test_an_error_tells_a_model_what_to_do() -> None:
    problems = [{"path": f"/{letter}", "message": f"{letter} is wrong"} for letter in "abcde"]
    message = "a.b: /a: a is wrong; and 4 more"
    text, said = _error(CallError(ErrorCode.VALIDATION_ERROR, message, {"problems": problems}))
    assert text.splitlines() == [
        "VALIDATION_ERROR: a_b: /a: a is wrong; and 4 more",  # the name of the tool
        "- /b: b is wrong",
        "- /c: c is wrong",
        "- /d: d is wrong",
        "- /e: e is wrong",
        "Correct the arguments and call the tool again.",
    ]
    expected = {"code": "VALIDATION_ERROR", "message": message, "retryable": False, "details": {"problems": problems}}
    assert said == expected


def test_an_error_says_when_to_try_again() -> None:
    text, said = _error(CallError(ErrorCode.RATE_LIMITED, "slow down", retry_after=12.5))
    assert text.endswith("Call the tool again in 12.5 seconds.")
    assert said == {"code": "RATE_LIMITED", "message": "slow down", "retryable": True, "retryAfter": 12.5}
    assert _error(CallError(ErrorCode.UNAVAILABLE, "gone"))[0].endswith("The same call may succeed later.")
    assert _error(CallError(ErrorCode.ACCESS_DENIED, "no"))[0] == "ACCESS_DENIED: no"


def test_a_model_reads_the_body_of_an_upstream_error_and_other_details() -> None:
    details = {"status": 422, "headers": {"x": "y"}, "body": {"errors": {"size": ["too large"]}}, "hint": "log in"}
    text, said = _error(CallError(ErrorCode.EXECUTION_ERROR, "HTTP 422: Unprocessable Content", details))
    assert text.splitlines() == [
        "EXECUTION_ERROR: HTTP 422: Unprocessable Content",
        'Response body: {"errors":{"size":["too large"]}}',
        "log in",
    ]
    assert said["details"] == details
    assert _error(CallError(ErrorCode.EXECUTION_ERROR, "no", {"seat": 17}))[0].endswith('\nDetails: {"seat":17}')
    long, _ = _error(CallError(ErrorCode.EXECUTION_ERROR, "no", {"body": "x" * 100_000}))
    assert len(long) < 4_200
    assert long.endswith("… (96,000 more characters)")
    assert "no JSON form" in _error(CallError(ErrorCode.EXECUTION_ERROR, "no", {"seat": object()}))[0]


def test_many_problems_are_counted_and_strange_ones_skipped() -> None:
    problems = [*({"path": "", "message": f"wrong {number}"} for number in range(100, 130)), "strange", {"path": 1}]
    text, _ = _error(CallError(ErrorCode.VALIDATION_ERROR, "no", {"problems": problems}))
    assert "- and 10 more" in text
    assert "strange" not in text


@pytest.mark.parametrize("details", ["x" * MAX_DETAILS, object(), {"a": object()}])
def test_details_that_are_too_long_or_have_no_json_form_are_left_out(details: Any) -> None:
    assert "details" not in _error(CallError(ErrorCode.EXECUTION_ERROR, "no", details))[1]


# --- ToolEnvelope V1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "payload"), [({"a": 1}, {"a": 1}), ("hi", "hi"), (b"\x00", "AA=="), (None, None)])
def test_a_result_can_be_a_tool_envelope(data: Any, payload: Any) -> None:
    """Results and errors can be written as ToolEnvelope V1."""
    result = result_of(_local(data), TOOL, ResultFormat(False, tool_envelopes=True))
    envelope = parse_or_text(result["content"])
    assert isinstance(envelope, ToolEnvelope)
    assert (envelope.payload, envelope.meta.tool) == (payload, "a_b")
    assert result["structuredContent"] == payload


def test_an_error_can_be_a_tool_envelope() -> None:
    result = error_result(CallError(ErrorCode.TIMEOUT, "late"), TOOL, ResultFormat(False, tool_envelopes=True))
    envelope = parse_or_text(result["content"])
    assert isinstance(envelope, ToolEnvelope)
    payload = payload_as(envelope, McpErrorPayload)
    assert (payload.category, payload.code, payload.recoverable) == ("timeout", "TIMEOUT", True)


def test_the_result_of_an_mcp_server_can_be_a_tool_envelope() -> None:
    content: Any = [{"type": "text", "text": "hi"}]
    envelope = mcp_envelope({"a": 1}, is_error=False, content=content, structured_content={"a": 1})
    result = result_of(envelope, TOOL, ResultFormat(True, tool_envelopes=True))
    read = parse_or_text(result["content"])
    assert isinstance(read, ToolEnvelope)
    assert read.payload == {"a": 1}


# --- subscriptions ----------------------------------------------------------------------------------------------------


def test_what_was_collected_says_which_items_were_bytes() -> None:
    items = [encode_data(data, "a.b") for data in (1, b"\x00", None)]
    result = collected_result(items, TOOL, OLDER, complete=True)
    assert result["structuredContent"] == {"items": [1, "AA==", None], "complete": True}
    assert result["_meta"] == {RESULT_META: {"meta": {"encodings": {"1": "base64"}}}}
    assert result["content"] == [{"type": "text", "text": '{"items":[1,"AA==",null],"complete":true}'}]


def test_an_error_after_the_first_item_loses_no_item() -> None:
    failed = CallError(ErrorCode.UNAVAILABLE, "gone")
    result = collected_result([EncodedData(1, b"1")], TOOL, OLDER, complete=False, error=failed)
    assert result["isError"] is True
    assert result["structuredContent"] == {"items": [1], "complete": False}
    assert result["content"][0]["text"].startswith("UNAVAILABLE: gone")
    assert result["_meta"][ERROR_META]["code"] == "UNAVAILABLE"


def test_what_was_collected_can_be_a_tool_envelope() -> None:
    result = collected_result([EncodedData(1, b"1")], TOOL, ResultFormat(False, tool_envelopes=True), complete=True)
    envelope = parse_or_text(result["content"])
    assert isinstance(envelope, ToolEnvelope)
    assert envelope.payload == {"items": [1], "complete": True}


def test_a_result_is_passed_on_if_the_output_schema_of_a_foreign_source_is_invalid(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tool = _tool(output_schema=Schema({"type": "object", "allOf": 5}))
    assert result_of(_local({"a": 1}), tool, OLDER)["structuredContent"] == {"a": 1}
    assert "the output schema is ignored" in caplog.text
