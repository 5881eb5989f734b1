"""Plain data: what becomes what, what is left alone, and what is refused without hanging or crashing."""

import enum
import io
import math
import re
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import NotPlainError
from opwire.typed import plain
from opwire.typed.plain import MAX_DEPTH, Survey, find_nonfinite, replace_surrogates, survey, to_plain


class Text(str):
    def __str__(self) -> str:
        return "not what it holds"


class Markup(str):
    """A str that the garbage collector does not know, as that of markupsafe."""

    __slots__ = ()


class Whole(int):
    def __int__(self) -> int:
        return -1


class Real(float):
    """As numpy's float64 is: a subclass of float with a representation of its own."""

    def __repr__(self) -> str:
        return f"Real({float(self)})"


class Words(dict[str, Any]):
    pass


class Items(list[Any]):
    pass


class Color(enum.Enum):
    RED = 1
    NAMED = "named"
    PAIR = (1, 2)
    DAY = date(2026, 5, 16)
    RAW = b"hi"
    NOTHING = None
    NESTED = {"when": {date(2026, 5, 16)}}  # noqa: RUF012 - a member, not an attribute


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    HELLO = "hello"


class Bits(enum.Flag):
    A = 1
    B = 2


class IntBits(enum.IntFlag):
    A = 1
    B = 2


class Opaque(enum.Enum):
    THING = object()


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclass
class Box:
    content: Any
    tags: set[str] = field(default_factory=set)


@dataclass(slots=True, frozen=True)
class Slotted:
    content: Any


class Struct(msgspec.Struct, rename="camel"):
    my_field: Any
    not_there: Any = msgspec.UNSET


class Tagged(msgspec.Struct, tag=True):
    content: Any


@attrs.define
class Attrs:
    content: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    content: Any = pydantic.Field(alias="theContent")
    when: date = date(2026, 5, 16)


class Masked(pydantic.BaseModel):
    token: pydantic.SecretStr
    size: int

    @pydantic.field_serializer("size", when_used="json")
    def in_words(self, size: int) -> str:
        return f"{size} bytes"


class Root(pydantic.RootModel[list[Decimal]]):
    pass


CONVERSIONS: dict[str, tuple[Any, Any]] = {
    "str subclass": (Text("a"), "a"),
    "int subclass": (Whole(5), 5),
    "float subclass": (Real(1.5), 1.5),
    "dict subclass": (Words(a=Whole(5)), {"a": 5}),
    "list subclass": (Items([Text("a")]), ["a"]),
    "tuple": ((1, (2,)), [1, [2]]),
    "set": ({1}, [1]),
    "frozenset": (frozenset({1}), [1]),
    "deque": (deque([1, (2,)]), [1, [2]]),
    "range": (range(3), [0, 1, 2]),
    "keys": ({"a": 1}.keys(), ["a"]),
    "user list": (UserList([1]), [1]),
    "mapping proxy": (MappingProxyType({"a": {1}}), {"a": [1]}),
    "ordered dict": (OrderedDict(a=1), {"a": 1}),
    "default dict": (defaultdict(list, a=[1]), {"a": [1]}),
    "counter": (Counter("aab"), {"a": 2, "b": 1}),
    "chain map": (ChainMap({"a": 1}, {"b": 2}), {"b": 2, "a": 1}),
    "user dict": (UserDict(a=1), {"a": 1}),
    "integer keys": ({1: "one"}, {"1": "one"}),
    "date keys": ({date(2026, 5, 16): 1}, {"2026-05-16": 1}),
    "enum keys": ({Word.HELLO: 1, Color.NAMED: 2, Level.LOW: 3}, {"hello": 1, "named": 2, "1": 3}),
    "datetime": (datetime(2026, 5, 16, 6, 3, 21), "2026-05-16T06:03:21"),
    "datetime in UTC": (datetime(2026, 5, 16, 6, 3, 21, 5000, tzinfo=UTC), "2026-05-16T06:03:21.005000Z"),
    "datetime elsewhere": (
        datetime(2026, 5, 16, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        "2026-05-16T00:00:00+05:30",
    ),
    "date": (date(2026, 5, 16), "2026-05-16"),
    "time": (clock(6, 3), "06:03:00"),
    "timedelta": (timedelta(days=1, seconds=3), "P1DT3S"),
    "UUID": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "Decimal": (Decimal("1.10"), "1.10"),
    "path": (PurePosixPath("a/b"), "a/b"),
    "enum of a number": (Color.RED, 1),
    "enum of a text": (Color.NAMED, "named"),
    "enum of a tuple": (Color.PAIR, [1, 2]),
    "enum of a date": (Color.DAY, "2026-05-16"),
    "enum of bytes": (Color.RAW, "aGk="),
    "enum of None": (Color.NOTHING, None),
    "enum of a structure": (Color.NESTED, {"when": ["2026-05-16"]}),
    "IntEnum": (Level.LOW, 1),
    "StrEnum": (Word.HELLO, "hello"),
    "Flag": (Bits.A | Bits.B, 3),
    "IntFlag": (IntBits.A | IntBits.B, 3),
    "NamedTuple": (Point(1, Point(2)), [1, [2, 0]]),
    "dataclass": (Box(1, {"t"}), {"content": 1, "tags": ["t"]}),
    "dataclass with slots": (Slotted(1), {"content": 1}),
    "Struct": (Struct(1), {"myField": 1}),
    "tagged Struct": (Tagged(1), {"type": "Tagged", "content": 1}),
    "attrs": (Attrs(1), {"content": 1}),
    "pydantic model": (Model(theContent={1}), {"theContent": [1], "when": "2026-05-16"}),
    "pydantic serializers": (
        Masked(token=pydantic.SecretStr("hunter2"), size=5),
        {"token": "**********", "size": "5 bytes"},
    ),
    "pydantic root model": (Root([Decimal("1.10")]), ["1.10"]),
    "nested bytes": ([b"hi", bytearray(b"hi"), memoryview(b"hi")], ["aGk=", "aGk=", "aGk="]),
}


def nested(value: Any, times: int = 100_000, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    for _ in range(times):
        value = wrap(value)
    return value


def is_plain(value: Any) -> bool:
    """Independently of the module under test: exact types all the way down."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(each) for key, each in value.items())
    if type(value) is list:
        return all(is_plain(each) for each in value)
    return type(value) in (NoneType, bool, int, float, str)


@pytest.mark.parametrize(
    "around",
    [lambda it: it, lambda it: {"deep": [it]}, lambda it: (it,), lambda it: deque([it])],
    ids=["bare", "in plain data", "in a tuple", "in a deque"],
)
def test_instances_of_the_usual_types_become_plain_data(around: Callable[[Any], Any]) -> None:
    wrapper = to_plain(around("here"))
    for name, (value, expected) in CONVERSIONS.items():
        result = to_plain(around(value))
        assert is_plain(result), name
        assert repr(result) == repr(wrapper).replace("'here'", repr(expected)), name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Box(Model(theContent=1)), {"content": {"theContent": 1, "when": "2026-05-16"}, "tags": []}),
        (Model(theContent=Box(1)), {"theContent": {"content": 1, "tags": []}, "when": "2026-05-16"}),
        (Attrs(Struct(Point(Slotted({1})))), {"content": {"myField": [{"content": [1]}, 0]}}),
        (
            Struct(Attrs(deque([Model(theContent=Color.DAY)]))),
            {"myField": {"content": [{"theContent": "2026-05-16", "when": "2026-05-16"}]}},
        ),
        ({"a": [Box([Attrs(b"hi")])]}, {"a": [{"content": [{"content": "aGk="}], "tags": []}]}),
    ],
)
def test_instances_of_different_libraries_may_hold_each_other(value: Any, expected: Any) -> None:
    result = to_plain(value)
    assert is_plain(result)
    assert result == expected


def test_the_original_is_not_changed() -> None:
    inner = {"when": date(2026, 5, 16)}
    box = Box([inner], {"t"})
    to_plain(box)
    assert box == Box([inner], {"t"})
    assert inner == {"when": date(2026, 5, 16)}


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
mixtures = st.recursive(
    st.sampled_from([value for value, _ in CONVERSIONS.values()]) | plain_values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
        st.builds(Box, inner),
        st.builds(Attrs, inner),
        st.builds(Struct, inner),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


@given(plain_values)
def test_plain_data_is_given_back_as_the_same_object(value: Any) -> None:
    """Data that is plain already is never copied."""
    assert to_plain(value) is value
    assert survey(value).plain
    assert not survey(value).deep


@given(mixtures)
def test_any_mixture_becomes_plain_once_and_for_all(value: Any) -> None:
    result = to_plain(value)
    assert is_plain(result)
    assert to_plain(result) is result
    assert survey(value).plain is is_plain(value)


class _Instance:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize("count", [1, 100])
def test_a_survey_looks_into_the_dict_of_an_instance(count: int) -> None:
    instances, numbered = [_Instance(object()) for _ in range(count)], [{1: "a"} for _ in range(count)]
    assert not survey([*map(vars, instances), *numbered]).plain
    assert not survey([*map(vars, instances)]).plain
    assert survey([vars(_Instance("plain")) for _ in range(count)]).plain


@pytest.mark.parametrize(
    "value",
    [
        object(),
        io.StringIO(),
        (each for each in ()),
        iter([1]),
        map(str, [1]),
        lambda: 0,
        int,
        Box,
        Model,
        1j,
        Exception("x"),
        Opaque.THING,
        {(1, 2): 3},
        {None: 1},
        Model(theContent=object()),
        ...,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("around", [lambda it: it, lambda it: [{"a": (it,)}], Box], ids=["bare", "nested", "in a box"])
def test_what_has_no_json_form_is_refused(value: Any, around: Callable[[Any], Any]) -> None:
    with pytest.raises(NotPlainError, match="no JSON form"):
        to_plain(around(value))


def test_an_open_file_is_refused_by_the_name_of_its_type(tmp_path: Any) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(NotPlainError, match="TextIOWrapper"):
        to_plain({"file": file})


def list_in_itself() -> Any:
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    return cycle


def list_twice_in_itself() -> Any:
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    return cycle


def dict_in_its_tuple() -> Any:
    cycle: dict[str, Any] = {}
    cycle["again"] = (cycle,)
    return cycle


def box_in_itself() -> Any:
    box = Box(None)
    box.content = box
    return box


def cycle_below_a_long_way() -> Any:
    return nested(list_in_itself(), MAX_DEPTH + 50)


@pytest.mark.parametrize(
    "cycle", [list_in_itself, list_twice_in_itself, dict_in_its_tuple, box_in_itself, cycle_below_a_long_way]
)
def test_a_value_that_refers_to_itself_is_refused(cycle: Callable[[], Any]) -> None:
    with pytest.raises(NotPlainError, match="refers to itself"):
        to_plain(cycle())


@pytest.mark.parametrize("wrap", [lambda it: [it], lambda it: {"a": it}], ids=["lists", "dicts"])
def test_plain_data_nested_100_000_deep_is_given_back_and_known_to_be_deep(wrap: Callable[[Any], Any]) -> None:
    value = nested(0, wrap=wrap)
    assert to_plain(value) is value
    assert survey(value) == Survey(plain=True, deep=True)


@pytest.mark.parametrize(
    "wrap", [lambda it: (it,), lambda it: deque([it]), Box, Attrs, lambda it: [it, ()], lambda it: Items([it])]
)
def test_other_data_nested_100_000_deep_is_refused_without_a_crash(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(NotPlainError, match="nested too deeply"):
        to_plain(nested(0, wrap=wrap))


@pytest.mark.parametrize("depth", [150, 300, 500, 700, 900, 100_000])
def test_what_lies_deep_beside_something_to_convert_is_kept_or_refused(depth: int) -> None:
    try:
        day, deep = to_plain([Color.DAY, nested(0, depth)])
    except NotPlainError:
        assert depth > MAX_DEPTH  # how far the stack reaches beyond that differs between versions of Python
    else:
        assert day == "2026-05-16"
        assert survey(deep) == Survey(plain=True, deep=depth > MAX_DEPTH)


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1])
def test_deep_begins_where_the_limit_ends(depth: int) -> None:
    assert survey(nested(0, depth)).deep is (depth > MAX_DEPTH)
    assert survey(nested([], depth - 1)).deep is (depth > MAX_DEPTH)


@pytest.mark.parametrize("wrap", [lambda it: [it, it], lambda it: {"a": it, "b": it}], ids=["lists", "dicts"])
def test_containers_that_are_shared_until_they_count_as_millions_are_rejected_quickly(
    wrap: Callable[[Any], Any],
) -> None:
    shared = nested([1.5], 150, wrap)  # 2 ** 150 ways to the leaf
    assert survey(shared) == Survey(plain=True, deep=True)
    assert to_plain(shared) is shared
    few = nested([1.5], 16, wrap)  # 65,536 ways
    assert survey(few) == Survey(plain=True, deep=False)


def test_a_container_that_is_shared_very_often_on_one_level_counts_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_MAX_CONTAINERS", 100_000)
    leaf = [1.5]
    assert survey([[leaf] * 400] * 200) == Survey(plain=True, deep=False)  # 80,000
    assert survey([[leaf] * 600] * 200) == Survey(plain=True, deep=True)  # 120,000


def table(rows: int) -> list[dict[str, Any]]:
    """Return objects of the same shape; large ones are surveyed column by column."""
    return [{"id": i, "name": "x", "tags": ["a", i], "place": {"x": 0.5, "y": None}} for i in range(rows)]


@given(
    st.sampled_from([1, 31, 32, 33, 100]),
    st.data(),
    st.sampled_from(
        [
            (1,),
            Text("x"),
            Whole(1),
            Real(1),
            Word.HELLO,
            Color.DAY,
            Decimal(1),
            b"",
            Items(),
            Words(),
            OrderedDict(),
            {1: 2},
        ]
    ),
)
def test_one_foreign_value_anywhere_in_a_table_is_found(rows: int, data: st.DataObject, foreign: Any) -> None:
    value = table(rows)
    assert survey(value) == Survey(plain=True, deep=False)
    row = value[data.draw(st.integers(0, rows - 1))]
    where: Any = data.draw(st.sampled_from([row, row["tags"], row["place"], value]))
    where[data.draw(st.sampled_from(sorted(where) if isinstance(where, dict) else range(len(where))))] = foreign
    assert survey(value) == Survey(plain=False, deep=False)


members = st.recursive(
    st.sampled_from([None, True, 1, 2.5, "x", [], {}, Text("x"), Whole(1), Markup("x"), Decimal(1), (), Word.HELLO]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "c", 1, Text("d")]), inner),
    max_leaves=12,
)


@given(st.lists(members, min_size=1, max_size=3), st.sampled_from([1, 31, 32, 63, 64, 100]), st.booleans())
def test_a_survey_of_many_containers_agrees_with_one_value_after_another(
    kinds: list[Any], count: int, in_turn: bool
) -> None:
    rows = kinds * count if in_turn else [each for each in kinds for _ in range(count)]
    for value in (rows, {"rows": rows, "more": kinds}, dict(zip(map(str, range(len(rows))), rows, strict=True))):
        assert survey(value) == Survey(plain=is_plain(value), deep=False)


@pytest.mark.parametrize("width", [1, 63, 64, 100])
@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH])
def test_wide_levels_do_not_change_how_deep_a_value_may_be(width: int, depth: int) -> None:
    for outside in (0, 3, depth):
        value = nested([nested(0, depth - outside)] * width, outside)
        assert survey(value) == Survey(plain=True, deep=depth + 1 > MAX_DEPTH)


@pytest.mark.parametrize("rows", [1, 100])
def test_rows_of_different_types_and_lengths_are_plain(rows: int) -> None:
    value: list[Any] = [*table(rows), *([{"id": None, "name": [], "tags": {}, "place": 1}] * rows), {}, [], 1]
    value += [{"id": 1}, {"id": 1, "name": 1, "tags": 2, "place": 3, "more": 4, "last": []}] * rows
    assert survey(value) == Survey(plain=True, deep=False)


def test_the_keys_that_a_dict_has_now_are_what_counts() -> None:
    value: list[dict[Any, Any]] = [{"a": [i], 1: 2} for i in range(100)]
    assert not survey(value).plain
    for each in value:
        del each[1]
    assert survey(value).plain


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_found_anywhere(number: float) -> None:
    assert find_nonfinite(number)
    assert find_nonfinite([0, {"a": [number]}])
    assert find_nonfinite(nested(number))


@given(st.recursive(
    st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["nan", "inf", None, True, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
))  # fmt: skip
def test_no_finite_number_is_taken_for_another(value: Any) -> None:
    assert not find_nonfinite(value)


any_text = st.text(st.characters(), max_size=6) | st.text(
    st.characters(min_codepoint=0xD7FF, max_codepoint=0xE000), max_size=6
)


def without_surrogates(text: str) -> str:
    """The definition: a high one before a low one is the character that they encode, any other one is U+FFFD."""
    pairs = re.sub(
        "([\ud800-\udbff])([\udc00-\udfff])",
        lambda pair: chr(0x10000 + ((ord(pair[1]) & 0x3FF) << 10) + (ord(pair[2]) & 0x3FF)),
        text,
    )
    return re.sub("[\ud800-\udfff]", "\ufffd", pairs)


@given(any_text)
def test_pairs_of_surrogates_are_joined_and_lone_ones_replaced_in_keys_and_values(text: str) -> None:
    expected = without_surrogates(text)
    assert replace_surrogates(text) == expected
    assert replace_surrogates({text: [text, 1, None]}) == {expected: [expected, 1, None]}
    expected.encode()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_that_utf_8_can_carry_is_left_unchanged(text: str) -> None:
    assert replace_surrogates(text) == text
