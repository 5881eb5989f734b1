"""Tests of opwire.mcp.client.tools."""

import json
import logging
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.tools import (
    MAX_BLOCKS,
    blocks_envelope,
    decode_bytes,
    read_blocks,
    result_envelope,
    structured_envelope,
)
from opwire.model.tool_envelope import encode, encode_blocks
from tests.mcp.client.listed_server import mcp_meta
from tests.properties import examples

TEXT = {"type": "text", "text": "three"}


def data_of(result: dict[str, Any], *, declared: bool = False) -> Any:
    return result_envelope(result, "ns.tool", declared=declared).data


@pytest.mark.parametrize("value", [{"n": 1}, {}, [], [1], "text", "", 0, 1.5, 10**30, True, False, None])
def test_structured_content_of_any_kind_is_the_data(value: Any) -> None:
    envelope = result_envelope({"content": [TEXT], "structuredContent": value}, "ns.tool", declared=True)
    assert envelope.data == value
    assert type(envelope.data) is type(value)
    assert mcp_meta(envelope).structured_content == value
    assert mcp_meta(envelope).content == [TEXT]


def test_without_structured_content_the_blocks_are_the_data() -> None:
    envelope = result_envelope({"content": [TEXT]}, "ns.tool", declared=False)
    assert envelope.data == [TEXT]
    assert mcp_meta(envelope).structured_content is UNSET
    assert mcp_meta(envelope).is_error is False


def test_structured_content_that_is_null_beside_other_content_is_missing() -> None:
    nulls = {"structuredContent": None, "isError": None, "_meta": None}
    envelope = result_envelope({"content": [TEXT], **nulls}, "ns.tool", declared=False)
    assert envelope.data == [TEXT]
    assert mcp_meta(envelope).structured_content is UNSET
    failed = result_envelope({"content": [TEXT], "structuredContent": None, "isError": True}, "ns.tool", declared=True)
    assert failed.data == [TEXT]
    assert data_of({"content": [{"type": "text", "text": "null"}], "structuredContent": None}) is None
    assert data_of({"content": [], "structuredContent": None}) is None


@pytest.mark.parametrize("structured", [{}, {"structuredContent": {"reason": "no"}}])
def test_an_error_is_an_envelope_that_says_so(structured: dict[str, Any]) -> None:
    """A result with `isError` is an envelope, never raised and never normalised."""
    envelope = result_envelope({"content": [TEXT], "isError": True, **structured}, "ns.tool", declared=True)
    assert mcp_meta(envelope).is_error is True
    assert envelope.data == structured.get("structuredContent", [TEXT])


def test_an_error_with_a_text_that_happens_to_be_json_keeps_its_blocks() -> None:
    blocks = [{"type": "text", "text": "404"}]
    assert data_of({"content": blocks, "isError": True}, declared=True) == blocks


def test_what_the_protocol_extends_a_result_with_is_kept() -> None:
    meta = {"vendor/trace": [1, {"a": None}]}
    envelope = result_envelope({"content": [], "_meta": meta}, "ns.tool", declared=False)
    assert mcp_meta(envelope)._meta == meta


def test_blocks_of_an_unknown_kind_and_unknown_fields_are_kept() -> None:
    known = {**TEXT, "brandNew": {"x": 1}, "annotations": {"priority": 1, "mood": "good"}}
    unknown = {"type": "hologram", "rays": [1, 2]}
    blocks = data_of({"content": [known, unknown]})
    assert blocks[0] == known
    assert blocks[1]["type"] == "text"
    assert json.loads(blocks[1]["text"]) == unknown


# --- JSON in text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"n": 1}, [1, 2], 3, None, "quoted", 10**40])
def test_json_in_the_text_of_a_tool_with_an_output_schema_is_the_data(value: Any) -> None:
    result = {"content": [{"type": "text", "text": json.dumps(value)}]}
    assert data_of(result, declared=True) == value
    assert data_of(result, declared=False) == result["content"]


@pytest.mark.parametrize(
    "blocks",
    [
        [TEXT],
        [{"type": "text", "text": "{not json"}],
        [{"type": "text", "text": "NaN"}],
        [{"type": "text", "text": "[" * 100_000}],
        [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        [{"type": "image", "data": "AA==", "mimeType": "image/png"}],
        [],
    ],
    ids=["prose", "broken", "nan", "deep", "two", "image", "none"],
)
def test_what_is_not_a_single_json_text_stays_blocks(blocks: list[Any]) -> None:
    assert data_of({"content": blocks}, declared=True) == blocks


# --- ToolEnvelope V1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
def test_the_payload_of_a_tool_envelope_is_the_data(declared: bool) -> None:
    blocks = encode_blocks("## Sum", {"sum": 3}, tool="add")
    envelope = result_envelope({"content": blocks}, "ns.tool", declared=declared)
    assert envelope.data == {"sum": 3}
    assert mcp_meta(envelope).content == blocks


@pytest.mark.parametrize(
    "text", ["__ENVELOPE_V2__:e30=", "__ENVELOPE_V1__:!!", "__ENVELOPE_V1__:eyJwYXl", "__ENVELOPE_V"]
)
def test_a_tool_envelope_that_cannot_be_read_stays_blocks_with_a_warning(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = [TEXT, {"type": "text", "text": text}]
    assert data_of({"content": blocks}) == blocks
    assert "ToolEnvelope" in caplog.text


def test_of_many_tool_envelopes_that_cannot_be_read_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    blocks = [{"type": "text", "text": "__ENVELOPE_V1__:!!"}] * 1_000
    assert data_of({"content": blocks}) == blocks
    assert len(caplog.records) == 1


@pytest.mark.parametrize("is_envelope", [True, False])
def test_a_text_of_too_many_objects_and_lists_is_not_parsed(is_envelope: bool) -> None:
    values = [[]] * 100_000
    text = encode(values, tool="count") if is_envelope else json.dumps(values)
    blocks = [{"type": "text", "text": text}]
    assert data_of({"content": blocks}, declared=True) == blocks
    quoted = [",[{" * 100_000]
    text = encode(quoted, tool="count") if is_envelope else json.dumps(quoted)
    assert data_of({"content": [{"type": "text", "text": text}]}, declared=True) == quoted


def test_structured_content_is_stronger_than_a_tool_envelope() -> None:
    blocks = encode_blocks("## Sum", {"sum": 3}, tool="add")
    assert data_of({"content": blocks, "structuredContent": {"sum": 4}}) == {"sum": 4}


# --- what another opwire says of its result ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", [[1, 2], None, 3, "x", {"result": 1}])
def test_data_that_another_opwire_wrapped_is_unwrapped(value: Any) -> None:
    result = {"structuredContent": {"result": value}, "_meta": {"opwire/result": {"wrapped": True}}}
    assert data_of(result) == value


@pytest.mark.parametrize("wrapped", [True, False])
def test_bytes_of_another_opwire_are_bytes_again(wrapped: bool) -> None:
    text = b64encode(b"\x00\xff").decode()
    origin = {"wrapped": wrapped, "encoding": "base64"}
    result = {"structuredContent": {"result": text} if wrapped else text, "_meta": {"opwire/result": origin}}
    assert data_of(result) == b"\x00\xff"


@pytest.mark.parametrize("origin", [{"wrapped": "yes"}, 3, {"wrapped": True}])
@pytest.mark.parametrize("structured", [{"other": 1}, [1], None])
def test_what_does_not_fit_what_is_said_of_it_stays_unchanged(origin: Any, structured: Any) -> None:
    assert data_of({"structuredContent": structured, "_meta": {"opwire/result": origin}}) == structured


@pytest.mark.parametrize("value", ["not base64!", 3, None, {"a": 1}])
def test_data_that_is_said_to_be_base64_and_is_not_is_kept(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert decode_bytes(value, "base64", "ns.tool") == value
    assert "base64" in caplog.text


# --- results that are wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [{}, {"content": None}, {"content": []}])
def test_a_result_without_content_has_no_blocks(result: dict[str, Any]) -> None:
    assert data_of(result) == []


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("just text", ["just text"]),
        (TEXT, ["three"]),
        (["a", 1, None, [2], TEXT], ["a", "1", "null", "[2]", "three"]),
        (5, ["5"]),
    ],
)
def test_content_that_is_not_a_list_of_objects_is_kept_as_text(
    content: Any, texts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert [block["text"] for block in data_of({"content": content})] == texts
    assert "ns.tool" in caplog.text


def test_a_result_of_strange_fields_alone_is_kept_as_text() -> None:
    (block,) = data_of({"toolResult": [1, 2], "_meta": {}})
    assert json.loads(block["text"]) == {"toolResult": [1, 2]}


def test_flags_and_meta_of_a_wrong_type_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    envelope = result_envelope({"content": [], "isError": "yes", "_meta": [1]}, "ns.tool", declared=False)
    assert mcp_meta(envelope).is_error is True
    assert mcp_meta(envelope)._meta is UNSET
    assert "isError" in caplog.text
    assert "_meta" in caplog.text


def test_a_block_without_a_json_form_is_a_protocol_error() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CallError, match="PROTOCOL_ERROR: ns"):
        read_blocks([{"type": "hologram", "rays": deep}], "ns.tool")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
BLOCKS = st.fixed_dictionaries({"type": st.sampled_from(["text", "image", "resource", "?"])}, optional={"text": JSON})
RESULTS = st.fixed_dictionaries(
    {},
    optional={
        "content": JSON | st.lists(BLOCKS | JSON, max_size=3),
        "structuredContent": JSON,
        "isError": st.booleans() | JSON,
        "_meta": JSON | st.fixed_dictionaries({"opwire/result": JSON}),
        "other": JSON,
    },
)


@settings(max_examples=examples(150), deadline=None)
@given(RESULTS, st.booleans())
def test_every_json_object_is_a_readable_result(result: dict[str, Any], declared: bool) -> None:
    logging.getLogger("opwire.mcp.client").setLevel(logging.ERROR)
    try:
        envelope = result_envelope(result, "ns.tool", declared=declared)
    finally:
        logging.getLogger("opwire.mcp.client").setLevel(logging.NOTSET)
    structured, found = result.get("structuredContent", UNSET), mcp_meta(envelope).structured_content
    # Some servers write null beside content for a missing value.
    assert found == structured or (structured is None and found is UNSET and mcp_meta(envelope).content)
    if isinstance(result.get("content"), list):
        assert len(mcp_meta(envelope).content) == len(result["content"])


# --- results of other requests ----------------------------------------------------------------------------------------


def test_a_structured_result_is_its_own_data_and_its_meta_stays_apart() -> None:
    result = {"messages": [], "description": "d", "_meta": {"a": 1}, "resultType": "complete"}
    envelope = structured_envelope(result, "ns.prompts/p")
    assert envelope.data == {"messages": [], "description": "d"}
    assert mcp_meta(envelope)._meta == {"a": 1}


def test_a_result_of_blocks_has_no_structured_content() -> None:
    envelope = blocks_envelope({}, "ns.resources/read", read_blocks([TEXT], "ns.resources/read"))
    assert envelope.data == [TEXT]
    assert mcp_meta(envelope).structured_content is UNSET


@pytest.mark.parametrize("entry", [0, {"type": "text", "text": "x"}])
def test_a_result_of_too_many_blocks_is_refused(entry: Any) -> None:
    assert len(data_of({"content": [entry] * MAX_BLOCKS})) == MAX_BLOCKS
    with pytest.raises(CallError, match="content blocks, and the limit is") as caught:
        data_of({"content": [entry] * (MAX_BLOCKS + 1)})
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
