"""JSON text in and out, with what JavaScript's strings may hold."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.typed.plain import read_json, replace_surrogates, write_json

ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
NUMBERS = msgspec.json.Decoder(dict[str, int])
ENCODER = msgspec.json.Encoder()
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=10)  # surrogates too


@pytest.mark.parametrize("message", [b'{"\\ud800":1}', '{"\\ud800":1}', '{"\ud800":1}'])
def test_a_lone_surrogate_is_replaced_and_the_value_still_checked(message: bytes | str) -> None:
    assert read_json(NUMBERS, message) == {"\ufffd": 1}


@pytest.mark.parametrize("message", [b'{"\\ud800":"x"}', '{"\ud800":"x"}'])
def test_a_value_with_a_lone_surrogate_still_has_to_fit_its_type(message: bytes | str) -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        read_json(NUMBERS, message)


@given(st.recursive(ANY_TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3)))
def test_what_is_written_is_read_back_with_lone_surrogates_replaced(value: Any) -> None:
    assert read_json(ANY, write_json(ENCODER, value)) == replace_surrogates(value)


@pytest.mark.parametrize(
    "message",
    [
        b'["\\ud800",NaN]',
        b'["\\ud800",-Infinity]',
        b'["\\ud800",1e999]',
        b'["\\ud800",]',
        b'"\xed\xa0\x80"',
        b"",
        b"\xff",
    ],
)
def test_what_is_not_json_is_a_value_error_with_lone_surrogates_or_without(message: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(ANY, message)


def test_nesting_without_end_is_a_recursion_error_and_no_crash() -> None:
    with pytest.raises(RecursionError):
        read_json(ANY, b'["\\ud800",' + b"[" * 100_000)
    with pytest.raises((RecursionError, ValueError)):
        read_json(ANY, b"[" * 100_000)
    deep: Any = "\ud800"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        write_json(ENCODER, deep)
    with pytest.raises(RecursionError):
        write_json(ENCODER, ["\ud800", deep])


def test_text_that_needs_no_repair_is_left_to_msgspec() -> None:
    assert read_json(ANY, b'"\\ud83d\\ude00"') == "\U0001f600"
    assert write_json(ENCODER, {"a": ["\U0001f600", 2**70]}) == '{"a":["😀",1180591620717411303424]}'.encode()
