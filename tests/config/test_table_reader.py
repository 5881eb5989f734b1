"""Tables as settings: every problem is found, and reported without showing what may be secret."""

import datetime
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from opwire.config.reading import TableReader
from opwire.config.settings import Config, ConfigProblem, EnvText, Secret


class Inner(Struct, kw_only=True):
    mark: str
    size: Annotated[int, Meta(ge=1, le=9)] = 1


class Other(Struct, kw_only=True):
    sign: int


class Outer(Struct, kw_only=True):
    name: str
    inner: Inner | None = None
    either: dict[str, Inner | Other] = {}
    texts: tuple[EnvText, ...] = ()
    one_or_many: EnvText | tuple[EnvText, ...] = ()
    secret: Secret | Inner | None = None
    word: Literal["red", "green"] = "red"
    seconds: Annotated[float, Meta(gt=0, lt=10)] = 1.0
    on: bool = False
    hidden: int = 0


def read(table: dict[str, Any]) -> tuple[Outer | None, list[ConfigProblem]]:
    reader = TableReader()
    return reader.read(table, Outer, exclude=("hidden",)), reader.problems


def problems(table: dict[str, Any]) -> list[str]:
    """The problems of a table that has its name."""
    return [str(each) for each in read({"name": "n"} | table)[1]]


def test_what_is_right_is_read_into_its_types() -> None:
    table = {
        "name": "n",
        "inner": {"mark": "m"},
        "either": {"a": {"mark": "m", "size": 2}, "b": {"sign": 3}},
        "texts": ["a", {"env": "NAME"}],
        "one_or_many": ["a"],
        "secret": {"env": "NAME"},
        "word": "green",
        "seconds": 3,
    }
    expected = Outer(
        name="n",
        inner=Inner(mark="m"),
        either={"a": Inner(mark="m", size=2), "b": Other(sign=3)},
        texts=(EnvText("a"), EnvText("${NAME}")),
        one_or_many=(EnvText("a"),),
        secret=Secret("${NAME}"),
        word="green",
        seconds=3.0,
    )
    assert read(table) == (expected, [])
    assert read({"name": "n", "one_or_many": "a"})[0] == Outer(name="n", one_or_many=EnvText("a"))
    assert read({"name": "n", "secret": {"mark": "m"}})[0] == Outer(name="n", secret=Inner(mark="m"))


def test_all_problems_are_found_and_what_is_right_is_kept() -> None:
    settings, found = read({"name": "n", "nam": 1, "word": "blue", "on": 1, "texts": ["a", 2], "seconds": 3})
    assert sorted(each.path for each in found) == [("nam",), ("on",), ("texts", 1), ("word",)]
    assert settings == Outer(name="n", texts=(EnvText("a"),), seconds=3.0)


def test_a_table_without_a_key_that_it_needs_cannot_be_read() -> None:
    assert read({"on": True}) == (None, [ConfigProblem((), "missing key `name`")])
    assert problems({"either": {"a": {"mark": 1}}}) == ["either.a.mark: expected `string`, got `integer`"]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"inner": {"mark": "m", "sise": 1}}, "inner.sise: unknown key; did you mean `size`?"),
        ({"inner": {"mark": "m", "xyz": 1}}, "inner.xyz: unknown key; the keys are mark, size"),
        ({"hidden": 1}, "hidden: unknown key"),
        ({"word": "gren"}, 'word: expected one of "red", "green", got "gren"; did you mean `green`?'),
        ({"word": 1}, "word: expected `string`, got `integer`"),
        ({"inner": {"mark": "m", "size": 10}}, "inner.size: expected `integer` <= 9, got 10"),
        ({"seconds": 0}, "seconds: expected `number` > 0.0, got 0"),
        ({"seconds": "1"}, "seconds: expected `number`, got `string`"),
        ({"on": "yes"}, "on: expected `boolean`, got `string`"),
        ({"texts": "a"}, "texts: expected `array`, got `string`"),
        ({"either": []}, "either: expected `table`, got `array`"),
        ({"inner": "m"}, "inner: expected `table`, got `string`"),
        ({"either": {"a": 1}}, "either.a: expected `table`, got `integer`"),
        ({"either": {"a": {"marc": 1}}}, "either.a.marc: unknown key; did you mean `mark`?"),
        (
            {"either": {"a": {"mark": "m", "sign": 1}}},
            "either.a: the keys mark and sign exclude each other; keep one of them",
        ),
        ({"one_or_many": 1}, "one_or_many: expected `string | array`, got `integer`"),
        ({"secret": []}, "secret: expected `string | table`, got `array`"),
        ({"texts": [{"env": 1}]}, "texts[0]: expected `string`, got `table`"),
        ({"texts": [datetime.date(2026, 1, 1)]}, "texts[0]: expected `string`, got `date`"),
    ],
)
def test_a_problem_says_what_was_expected_and_what_to_do(table: dict[str, Any], problem: str) -> None:
    """A mistake says what was expected and, where something comes close, what was meant."""
    assert problems(table) == [problem]


def test_a_text_in_the_wrong_place_is_not_shown() -> None:
    for table in ({"seconds": "hunter2"}, {"secret": "hunter2"}, {"either": {"a": "hunter2"}}, {"inner": "hunter2"}):
        assert "hunter2" not in str(problems(table))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
known = st.sampled_from(["sources", "serve", "mcp", "http", "hub", "spoke", "identities", "auth", "jwt", "url", "port"])
documents = st.dictionaries(known, values | st.dictionaries(known, values | st.dictionaries(known, values)))


@settings(max_examples=50)
@given(documents)
def test_no_table_whatsoever_makes_it_raise(table: dict[str, Any]) -> None:
    TableReader().read(table, Config, exclude=("file",))
