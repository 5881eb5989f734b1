"""Streams of JSON values, however they are cut into pieces."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.errors import CallError, ErrorCode
from opwire.openapi.client.responses import JSONSeqDecoder, NDJSONDecoder
from tests.properties import examples

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=6,
)


def decoded(decoder: NDJSONDecoder, *chunks: bytes) -> list[Any]:
    return [value for chunk in chunks for value in decoder.feed(chunk)] + decoder.end()


@pytest.mark.parametrize(
    "stream",
    [
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\r\n{"a":2}\r\n',
        b'{"a":1}\n\n  \n{"a":2}',
        b'\xef\xbb\xbf{"a":1}\n\t{"a":2} \n',
        b'\x1e{"a":1}\n\x1e{"a":2}\n',
    ],
)
def test_each_line_is_a_value(stream: bytes) -> None:
    """Each line of an NDJSON stream is an item."""
    assert decoded(NDJSONDecoder(), stream) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "stream",
    [
        b'\x1e{"a":1}\n\x1e{"a":2}\n',
        b'\x1e{"a":1}\x1e{"a":2}',
        b'\x1e\x1e{"a":1}\r\n\x1e\n\x1e{\n"a":\n2}\n',
    ],
)
def test_each_record_is_a_value(stream: bytes) -> None:
    assert decoded(JSONSeqDecoder(), stream) == [{"a": 1}, {"a": 2}]


@settings(max_examples=examples(60))
@given(st.lists(VALUES, max_size=6), st.data())
def test_any_chunking_gives_the_same_lines(values: list[Any], data: st.DataObject) -> None:
    stream = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    cut = data.draw(st.integers(0, len(stream)))
    assert decoded(NDJSONDecoder(), stream[:cut], stream[cut:]) == values


@settings(max_examples=examples(60))
@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]), st.data())
def test_any_chunking_gives_the_same_records(values: list[Any], indent: int | None, data: st.DataObject) -> None:
    stream = b"".join(b"\x1e" + json.dumps(value, indent=indent).encode() + b"\n" for value in values)
    cut = data.draw(st.integers(0, len(stream)))
    assert decoded(JSONSeqDecoder(), stream[:cut], stream[cut:]) == values


def test_a_record_that_is_complete_does_not_wait_for_the_next() -> None:
    decoder = JSONSeqDecoder()
    assert decoder.feed(b'\x1e{"a":') == []
    assert decoder.feed(b"1}\n") == [{"a": 1}]
    assert decoder.feed(b"\x1e2\n") == [2]
    assert decoder.end() == []


def test_a_record_of_many_lines_is_not_read_again_with_each_of_them() -> None:
    decoder = JSONSeqDecoder()
    lines = [b"\x1e[\n", *[b"0,\n"] * 100_000, b"0]\n", b"\x1e1\n"]
    assert [len(value) for line in lines for value in decoder.feed(line) if value != 1] == [100_001]


@pytest.mark.parametrize(
    ("decoder", "stream"), [(NDJSONDecoder(), b'1\n{"a":\n2\n'), (JSONSeqDecoder(), b'\x1e1\n\x1e{"a":\n\x1e2\n')]
)
def test_what_is_not_json_is_left_out_with_a_warning(
    decoder: NDJSONDecoder, stream: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Malformed items are left out with a warning."""
    with caplog.at_level(logging.WARNING):
        assert decoded(decoder, stream) == [1, 2]
    assert "not JSON" in caplog.text


def test_big_integers_keep_every_digit() -> None:
    assert decoded(NDJSONDecoder(), b"123456789012345678901234567890\n") == [123456789012345678901234567890]


@pytest.mark.parametrize("decoder", [NDJSONDecoder(), JSONSeqDecoder()])
def test_the_sentinel_ends_the_stream(decoder: NDJSONDecoder) -> None:
    """`[DONE]` ends a stream cleanly."""
    assert decoded(decoder, b"\x1e1\n\x1e[DONE]\n\x1e3\n") == [1]
    assert decoder.done


@pytest.mark.parametrize("decoder", [NDJSONDecoder(max_item=100), JSONSeqDecoder(max_item=100)])
def test_an_item_that_is_too_large_is_an_error_and_not_a_growing_buffer(decoder: NDJSONDecoder) -> None:
    with pytest.raises(CallError) as caught:
        list(map(decoder.feed, [b"1"] * 200))
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_many_items_are_not_one_large_one() -> None:
    decoder = NDJSONDecoder(max_item=100)
    assert decoded(decoder, *[b'{"a": "0123456789"}\n'] * 50) == [{"a": "0123456789"}] * 50


def test_invalid_items_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert decoded(NDJSONDecoder(), b"x\n" * 20_000 + b"1\n") == [1]
    assert 0 < len(caplog.records) < 200
    assert "the rest of this second is dropped" in caplog.text


def test_an_item_of_nothing_but_small_lists_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    assert decoded(NDJSONDecoder(), b"[" + b"[]," * 200_000 + b"1]\n[]\n") == [[]]
    assert "objects and lists" in caplog.text
