"""What a pattern may cost."""

import time
from typing import Any

import pytest

from opwire.errors import CastError
from opwire.schema import Schema
from opwire.schema.pattern_cost import PatternCost

_BUDGET = 5_000_000  # units of 10 to 20 ns

TEXT = "ab" * 500_000

REREADING = [
    *("(?=a*b)c", "(?!a*b)c", "(?<=a*)b", "(?=.{1,900}b)c", "(a*)\\1b", "^(?:(?!a*b)a)*c", "^.*(?=a*b)c"),
    *("^(?=.*(?=a*b)c)", "^(?=a*b)c|(?=a*b)d", "^" + "(?=.*b)" * 100, "a(?=[^b]*b)c", "^x?(?=a+b)c"),
]
OPTIONAL = [f"^{part * 5_000}$" for part in ("a?", "a*", "a{0,1}", "(?:a|)", "(?:|a)")]
COUNTING = ["[ab]*a[ab]{900}c", "^(?:(?:a?){60}){60}b", "(?:(?:a{1,30}b?){30}){30,}c", "(?=(?:a?){900}b)c"]
HARMLESS = [
    *("^[a-z0-9-]{1,63}(\\.[a-z0-9-]{1,63})*$", "^(?!\\s*$).+", "^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{8,}$", "", "^$"),
    *("^(?!-)[a-z-]+(?<!-)$", "^([0-9a-f]{4}-){3}[0-9a-f]{12}$", "^(EUR|USD|CHF)$", "^(?!(?:x))a"),
    *("^a?b*(c|)" * 60 + "$", "^(" + "|".join(f"word{i}" for i in range(500)) + ")$"),
    *("[{(]", "a{b}", "{9}", "\\{900}", ")", "(((", "a)b(c"),
]


@pytest.mark.parametrize("pattern", REREADING + COUNTING + OPTIONAL)
def test_a_pattern_that_may_take_long_has_a_cost_that_grows_with_the_text(pattern: str) -> None:
    """Patterns of foreign schemas cannot hang the process."""
    cost = PatternCost(pattern)
    assert not cost.is_ordinary
    assert cost.units("a" * 20) < _BUDGET / 10
    assert cost.units("a" * 100_000) > _BUDGET


@pytest.mark.parametrize("pattern", HARMLESS)
def test_patterns_as_documents_have_them_are_free(pattern: str) -> None:
    assert PatternCost(pattern).is_ordinary


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"type": "string", "pattern": "(?=a*b)c"}}, [TEXT]),
        ({"items": {"type": "string", "pattern": "[ab]*a[ab]{900}c"}}, [TEXT]),
        ({"properties": {"a": {"patternProperties": {"(?=a*b)c": False}}}}, {"a": {TEXT: 1}}),
        ({"propertyNames": {"pattern": "(?=a*b)c"}}, {TEXT: 1}),
        ({"items": {"pattern": OPTIONAL[0]}}, ["a" * 5_000] * 10),
        ({"propertyNames": {"$ref": "#/$defs/name"}, "$defs": {"name": {"pattern": "(?=a*c)d"}}}, {"a" * 100_000: 1}),
    ],
)
def test_a_text_that_would_take_seconds_is_rejected_at_once(schema: dict[str, Any], value: Any) -> None:
    checked = Schema(schema)
    began = time.process_time()
    assert checked.problems(value)
    assert time.process_time() - began < 1  # was 8 to 20


def test_a_cast_does_not_search_in_a_text_that_would_take_seconds() -> None:
    began = time.process_time()
    with pytest.raises(CastError):
        Schema({"type": "string", "pattern": "(?=a*c)d"}).cast("a" * 100_000)
    assert time.process_time() - began < 1


def test_what_is_not_a_pattern_is_free() -> None:
    assert PatternCost(None).is_ordinary
    assert PatternCost(5).is_ordinary
    assert PatternCost("(?=a*b)c").units("short") == 0
