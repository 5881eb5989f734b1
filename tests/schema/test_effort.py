"""How much work one value may cause."""

from typing import Any

import pytest

from opwire.schema.effort import Effort, ExhaustedError
from tests.requirements import requirement


def looks(value: Any, part: Any) -> int:
    """How often a part of a value may be looked at."""
    effort, count = Effort(value), 0
    try:
        while True:
            effort.spend(part)
            count += 1
    except ExhaustedError:
        return count


@requirement("schema.cost")
def test_each_look_at_a_part_costs_its_size_and_the_budget_grows_with_the_whole() -> None:
    inner = [1] * 999
    value = {"a": inner, "b": "x"}
    assert looks(value, inner) == 140  # 100,000 places, and 40 for each of 1,003, for looks at 1,000 at a time
    assert looks(value, value) < looks(value, inner) < looks(value, 1)
    assert looks([inner] * 1_000, inner) > 100 * looks(value, inner)


@requirement("schema.cost")
def test_a_long_text_costs_more_than_a_short_one() -> None:
    text = "x" * 1_000_000
    assert looks([text], text) < looks([text], "x") // 1_000


@requirement("schema.cost")
def test_a_container_that_is_not_part_of_the_value_counts_by_its_members() -> None:
    inner = [1] * 999
    assert looks([inner], [inner, inner]) < looks([inner], inner)
    assert looks([inner], {"a": inner}) <= looks([inner], inner)


@requirement("schema.cost")
def test_a_container_that_is_shared_counts_each_time() -> None:
    value: Any = []
    for _ in range(20):
        value = [value, value]
    assert Effort(value).places > 2**20


@requirement("schema.cost")
def test_a_limited_effort_is_a_budget_of_its_own() -> None:
    effort = Effort([1, 2])
    limited = effort.limited(5)
    limited.spend([1, 2])
    with pytest.raises(ExhaustedError):
        limited.spend([1, 2])
    effort.spend([1, 2])
