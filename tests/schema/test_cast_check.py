"""How JavaScript sees JSON values."""

from typing import Any

import pytest

from opwire.schema.cast_javascript import (
    MISSING,
    code_units,
    fingerprint,
    is_integer,
    is_multiple,
    is_number,
    is_same,
    matches,
    member,
    own_names,
    spread,
)


def test_a_boolean_is_not_a_number_and_a_whole_float_is_an_integer() -> None:
    assert [is_integer(value) for value in (1, 1.0, 1.5, True, "1", None)] == [True, True, False, False, False, False]
    assert [is_number(value) for value in (1, 1.5, False, "1", MISSING)] == [True, True, False, False, False]


def test_infinities_and_nan_are_neither_numbers_nor_integers() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        assert not is_number(value)
        assert not is_integer(value)
    assert is_number(10**400)


@pytest.mark.parametrize(
    ("value", "of", "answer"),
    [
        (0.3, 0.1, False),  # in doubles
        (0.75, 0.25, True),
        (6, 3, True),
        (-6, 4, False),
        (9007199254740993, 2, False),  # a double would be even
        (1, 0, False),
        (10**400, 0.5, False),
    ],
)
def test_multiples_are_those_of_doubles_and_of_exact_integers(value: float, of: float, answer: bool) -> None:
    assert is_multiple(value, of) is answer


@pytest.mark.parametrize(
    ("left", "right", "answer"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ("1", 1, False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        ([], {}, False),
    ],
)
def test_constants_are_compared_strictly_and_in_depth(left: Any, right: Any, answer: bool) -> None:
    assert is_same(left, right) is answer


def test_a_string_has_as_many_characters_as_utf_16_code_units() -> None:
    assert [len(code_units(text)) for text in ("", "ab", "é", "😀", "\ud83d")] == [0, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        ("b", "abc", True),  # anywhere
        ("^.{2}$", "😀", True),
        ("^.$", "😀", False),
        ("^😀$", "😀", True),
        ("^[^a]+$", "\ud83d", True),
        (r"^\d$", "٣", False),
        ("^a$", "a\n", False),
        ("(", "(", False),
    ],
)
def test_patterns_match_as_in_javascript_and_unusable_ones_match_nothing(pattern: str, text: str, answer: bool) -> None:
    assert matches(pattern, None, text) is answer


@pytest.mark.timeout(10)
def test_a_pattern_that_backtracks_without_end_matches_nothing() -> None:
    assert not matches("^(a+)+$", None, "a" * 60 + "!")
    assert not matches("^(?=(a+)+$)", None, "a" * 60 + "!")


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        ("date-time", "2024-05-01T10:00:00Z", "2024-05-01"),
        ("date", "2024-05-01", "2024-13-01"),
        ("uuid", "00000000-0000-0000-0000-000000000000", "0000"),
        ("email", "me@example.org", "me"),
    ],
)
def test_four_formats_are_asserted(format: str, good: str, bad: str) -> None:
    """date-time, date, uuid and email are asserted, other formats are ignored."""
    assert matches(None, format, good)
    assert not matches(None, format, bad)


def test_other_formats_are_ignored() -> None:
    assert matches(None, "uri", "no uri at all")
    assert matches("^n", "color", "nothing")


def test_an_array_is_an_object_with_indices_and_a_length() -> None:
    assert own_names(["a", "b"]) == ["0", "1", "length"]
    assert [member(["a", "b"], name) for name in ("0", "1", "length")] == ["a", "b", 2]
    assert all(member(["a"], name) is MISSING for name in ("1", "00", "-1", "x", "9" * 40))
    assert spread(["a", "b"]) == {"0": "a", "1": "b"}


def test_an_object_has_its_keys_and_a_scalar_has_none() -> None:
    assert own_names({"a": 1, "length": 2}) == ["a", "length"]
    assert member({"a": 1}, "b") is MISSING
    assert spread({"length": 2}) == {"length": 2}
    assert spread("ab") == {"0": "a", "1": "b"}
    assert own_names(5) == []
    assert member(5, "a") is MISSING
    assert spread(None) == {}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (1, "1"),
        (None, False),
        (None, MISSING),
        (0.0, -0.0),
        ([], {}),
        (2**53 + 1, 2**53 + 2),
        ("a", "b"),
        (b"a", b"b"),
    ],
)
def test_different_values_have_different_fingerprints(left: Any, right: Any) -> None:
    assert fingerprint(left) != fingerprint(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([[1], 2], [[1, 2]]),  # TypeBox marks no ends
        ({"a": {}, "b": 1}, {"a": {"b": 1}}),
        ("ab", "\u6162"),  # nor how many bytes a character has
    ],
)
def test_values_that_typebox_hashes_alike_have_the_same_fingerprint(left: Any, right: Any) -> None:
    assert fingerprint(left) == fingerprint(right)
