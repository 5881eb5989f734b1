"""Envelopes as HTTP responses."""

from typing import Any

import msgspec
import pytest

from opwire import CallError, ErrorCode, HTTPResponseMeta, decode_envelope, http_envelope, local_envelope, mcp_envelope
from opwire.openapi.server.responses import encode_data, encode_response, upstream_headers

FAILED = mcp_envelope(
    [{"type": "text", "text": "no such city"}], is_error=True, content=[{"type": "text", "text": "no such city"}]
)


def headers_of(**headers: str) -> dict[str, str]:
    meta = HTTPResponseMeta(200, {name.replace("_", "-"): value for name, value in headers.items()}, "application/json")
    return {name.decode(): value.decode("latin-1") for name, value in upstream_headers(meta)}


@pytest.mark.parametrize(
    ("data", "content_type", "body"),
    [
        ({"a": [1, None]}, b"application/json", b'{"a":[1,null]}'),
        (None, b"application/json", b"null"),
        ("<b>", b"application/json", b'"<b>"'),
        (10**30, b"application/json", b"1" + b"0" * 30),
        (b"\x00", b"application/octet-stream", b"\x00"),
        (b"", b"application/octet-stream", b""),
    ],
)
def test_data_is_json_and_bytes_are_bytes(data: Any, content_type: bytes, body: bytes) -> None:
    """Data is JSON, bytes are an octet stream, None is null."""
    found = encode_response(local_envelope(data, "a.b"), whole=False, is_error="return")
    assert (found.content_type, found.body, found.headers) == (content_type, body, [])


@pytest.mark.parametrize("data", [{"a": 1}, None, b"\x00\xff"])
def test_the_whole_envelope_can_be_had(data: Any) -> None:
    envelope = local_envelope(data, "a.b")
    found = encode_response(envelope, whole=True, is_error="return")
    assert found.content_type == b"application/vnd.opwire.envelope+json"
    assert decode_envelope(found.body) == envelope


def test_data_that_cannot_be_sent_fails_the_call() -> None:
    deep: list[Any] = []
    for _ in range(1_000_000):
        deep = [deep]
    for whole in (False, True):
        with pytest.raises(CallError) as raised:
            encode_response(local_envelope(deep, "a.b"), whole=whole, is_error="return")
        assert raised.value.code is ErrorCode.EXECUTION_ERROR


def test_not_a_number_is_null_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    assert encode_data([float("nan")]) == b"[null]"
    assert "NaN" in caplog.text


def test_headers_of_the_answer_behind_a_result_are_kept_under_another_name() -> None:
    envelope = http_envelope(
        [1],
        status_code=206,
        headers={"Link": "<x>; rel=next", "X-RateLimit-Remaining": "7", "RateLimit": "r=1", "Server": "far"},
        content_type="application/json",
    )
    assert encode_response(envelope, whole=False, is_error="return").headers == [
        (b"opwire-upstream-status", b"206"),
        (b"opwire-upstream-link", b"<x>; rel=next"),
        (b"opwire-upstream-x-ratelimit-remaining", b"7"),
        (b"opwire-upstream-ratelimit", b"r=1"),
    ]


def test_nothing_of_them_can_break_out_of_its_header() -> None:
    kept = headers_of(link="a\r\nx-evil: 1", etag="\x00", location="x" * 5_000, retry_after="5")
    assert kept == {"opwire-upstream-status": "200", "opwire-upstream-retry-after": "5"}
    assert headers_of(**{"x_page\r\n": "1", "x_page ": "1", "x_pagé": "1"}) == {"opwire-upstream-status": "200"}
    assert headers_of(link="<é€>") == {"opwire-upstream-status": "200", "opwire-upstream-link": "<é?>"}


def test_a_tool_that_failed_is_a_problem_with_its_text_and_its_data() -> None:
    found = encode_response(FAILED, whole=False, is_error="raise", request_id="r-1")
    assert (found.status, found.content_type) == (500, b"application/problem+json")
    assert found.headers == [(b"opwire-is-error", b"true")]
    problem = msgspec.json.decode(found.body)
    assert (problem["code"], problem["status"], problem["detail"]) == ("EXECUTION_ERROR", 500, "no such city")
    assert problem["data"] == FAILED.data
    assert problem["instance"].endswith("r-1")
    assert decode_envelope(encode_response(FAILED, whole=True, is_error="raise").body) == FAILED


def test_the_data_of_a_tool_that_failed_is_kept_whole_and_its_text_bounded() -> None:
    blocks: list[Any] = [{"type": "text", "text": "x" * 200_000}]
    found = encode_response(mcp_envelope(blocks, is_error=True, content=blocks), whole=False, is_error="raise")
    problem = msgspec.json.decode(found.body)
    assert (len(problem["detail"]), problem["data"]) == (2_000, blocks)
    silent = encode_response(mcp_envelope({"a": 1}, is_error=True, content=[]), whole=False, is_error="raise")
    problem = msgspec.json.decode(silent.body)
    assert (problem["detail"], problem["data"]) == ("the tool returned an error without a text", {"a": 1})


def test_a_tool_that_failed_may_be_an_answer_with_a_mark() -> None:
    found = encode_response(FAILED, whole=False, is_error="return")
    assert (found.status, found.body) == (200, b'[{"type":"text","text":"no such city"}]')
    assert found.headers == [(b"opwire-is-error", b"true")]
