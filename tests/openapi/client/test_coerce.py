"""Parts of a document as what they ought to be."""

from typing import Any

import pytest

from opwire.http.client import bounded_number
from opwire.openapi.client.document import as_text, as_texts


def test_a_wrong_kind_of_value_counts_as_empty() -> None:
    assert as_text("a") == "a"
    assert as_text([1]) == as_text(None) == ""
    assert as_texts(["a", None, "b"]) == ["a", "b"]
    assert as_texts("ab") == []


def test_what_yaml_took_for_a_number_or_a_boolean_is_text_again() -> None:
    assert (
        [as_text(each) for each in (1, 1.5, True, False)]
        == as_texts([1, 1.5, True, False])
        == ["1", "1.5", "true", "false"]
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5.0),
        ("5", 5.0),
        (" 1.5 ", 1.5),
        (10**400, 60.0),
        ("9" * 50, 60.0),
        (float("inf"), 60.0),
        (-5, 0.0),
        (-(10**400), 0.0),
        (float("nan"), None),
        ("nan", None),
        ("-5", None),
        ("1e400", None),
        ("9" * 400, None),
        ("\u0663", None),
        (True, None),
        (None, None),
        ([5], None),
    ],
)
def test_numbers_of_strangers_are_bounded(value: Any, expected: float | None) -> None:
    assert bounded_number(value, 60) == expected
