"""How much work one value may cause."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.schema.effort import Effort, ExhaustedError, extent
from tests.schema.strategies import values


@pytest.mark.parametrize(
    ("value", "count"),
    [(1, 1), ("x", 1), (None, 1), ([], 1), ({}, 1), ([1, 2.5, None], 4), ({"a": [True, {}], "b": "x"}, 5), ([[[]]], 3)],
    ids=repr,
)
def test_every_value_at_any_depth_is_a_place(value: Any, count: int) -> None:
    assert extent(value)[0] == count


def test_a_long_text_counts_for_more_places_than_one() -> None:
    assert extent("x" * 1_000_000)[0] == extent(["x" * 1_000_000])[0] - 1 == 10_001


def test_a_container_that_is_shared_counts_each_time_up_to_an_end() -> None:
    value: Any = []
    for _ in range(12):
        value = [value, value]
    assert extent(value) == (2**13 - 1, 13)


def test_counting_ends_beyond_a_limit() -> None:
    value: Any = []
    for _ in range(100):
        value = [value, value]
    assert extent(value, 1_000) == (2**10 - 1, 10)


@given(values, st.integers(0, 20))
def test_a_count_is_exact_up_to_the_limit(value: Any, limit: int) -> None:
    count, depth = extent(value)
    limited = extent(value, limit)
    assert limited == (count, depth) if count <= limit else limited[0] > limit


def test_the_budget_grows_with_the_value_and_comes_to_an_end() -> None:
    small, large = Effort([]), Effort([1] * 100_000)
    assert large.remaining > 10 * small.remaining
    small.spend(small.remaining)
    with pytest.raises(ExhaustedError):
        small.spend(1)


def test_a_check_of_some_items_of_a_deep_array_counts_what_is_in_them() -> None:
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    value = [deep, [], []]
    effort = Effort(value)
    before = effort.remaining
    effort.spend_check(value[:2])
    assert before - effort.remaining > 50
