"""Names that are given once each, and limits in messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.names import UniqueNames, limit_text


def test_no_name_is_given_twice() -> None:
    names = UniqueNames(["a"])
    assert [names.take("a"), names.take("a"), names.take("b")] == ["a_2", "a_3", "b"]
    names.give_back("a_3")
    assert names.take("a") == "a_3"
    assert names.take("a") == "a_4"


@given(st.lists(st.text(alphabet="a_23", max_size=30)))
def test_names_stay_distinct_and_short_for_any_wishes(wishes: list[str]) -> None:
    names = UniqueNames(longest=20)
    given = [names.take(wish) for wish in wishes]
    assert len(set(given)) == len(given)
    assert all(len(name) <= 20 for name in given)


class Counted(set[str]):
    """A set that counts how often something is looked up in it."""

    lookups = 0

    def __contains__(self, name: object) -> bool:
        self.lookups += 1
        return super().__contains__(name)


def lookups(wishes: list[str]) -> int:
    names = UniqueNames(longest=30)
    taken = names._taken = Counted()
    for wish in wishes:
        names.take(wish)
    return taken.lookups


def test_numbering_is_linear_however_names_collide() -> None:
    count = 2_000
    equal = ["a"] * count
    in_the_way = [f"a_{number}" for number in range(2, count)] + equal
    alike_at_the_start = [f"{'a' * 30}{number}" for number in range(count)]
    chained = ["a" + "_2" * (number % 10) for number in range(count)]
    for wishes in (equal, in_the_way, alike_at_the_start, chained):
        assert lookups(wishes) <= 4 * len(wishes)


@pytest.mark.parametrize(
    ("left", "limit"),
    [
        (0.997, "1"),
        (0.985, "1"),
        (1.0, "1"),
        (1.1, "1.1"),
        (1.247, "1.25"),
        (2.4999, "2.5"),
        (29.98, "30"),
        (17.3, "17.3"),
        (86_399.5, "86400"),
        (1e9, "1000000000"),
        (0.0497, "0.05"),
        (0.0012, "0.0012"),
        (0.0, "0"),
        (-3.0, "0"),
    ],
)
def test_a_message_names_the_limit_and_not_the_time_that_was_left_of_it(left: float, limit: str) -> None:
    assert limit_text(left) == limit
