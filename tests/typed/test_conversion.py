import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.errors import ConversionError, HintError
from opwire.typed import convert, converter, identity_kinds, json_schema_of
from opwire.typed.convert import _CONVERTERS, _prepare
from opwire.typed.from_hint import from_hint
from opwire.typed.nodes import Misfit
from opwire.typed.plain import to_plain
from tests.properties import examples
from tests.typed.catalogue import (
    ALL,
    EXACT,
    Account,
    Case,
    Cat,
    Colour,
    Created,
    Deleted,
    Dog,
    Page,
    Point,
    Tree,
    label,
)

GONE: Any = object()
JUNK = [None, True, 0, 1, -7, 0.5, 1.0, 1e300, "", "x", "5", [], [1], ["x", "x"], {}, {"x": 1}, {"1": None}]
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 1e300]) | st.text(max_size=3)
JSON = st.recursive(SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part))


@cache
def validator(hint: Any) -> Any:
    return jsonschema_rs.Draft202012Validator(json_schema_of(hint), validate_formats=True)


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every place inside plain data, as the keys that lead to it."""
    yield path
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(each, *path, key)


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of plain data in which one place is different; GONE takes it away."""
    if not path:
        return change(value)
    copied = copy.copy(value)
    inner = changed(value[path[0]], path[1:], change)
    if inner is GONE:
        del copied[path[0]]
    else:
        copied[path[0]] = inner
    return copied


def damages(case: Case) -> Iterator[Any]:
    """The samples, each with one place replaced by something else, taken away or grown; some fit all the same."""
    for sample, _ in case.samples:
        for path in places(sample):
            for junk in JUNK:
                yield changed(sample, path, lambda _, junk=junk: junk)
            if path:
                yield changed(sample, path, lambda _: GONE)
            yield changed(sample, path, grown)


def grown(value: Any) -> Any:
    match value:
        case dict():
            return {**value, "another": 1}
        case list():
            return [*value, value[0] if value else 1]
        case str():
            return f"{value}1"
        case int() | float():
            return value + 1
        case _:
            return GONE if value is GONE else [value]


@st.composite
def damaged(draw: st.DrawFn, cases: list[Case]) -> tuple[Case, Any]:
    case = draw(st.sampled_from(cases))
    sample, _ = draw(st.sampled_from(case.samples))
    path = draw(st.sampled_from(list(places(sample))))
    junk = draw(JSON)
    return case, changed(sample, path, lambda _: junk)


def outcome(run: Any, data: Any) -> Any:
    try:
        return run(data)
    except (ConversionError, Misfit):
        return ConversionError


def test_plain_data_becomes_the_value_that_it_stands_for() -> None:
    """Plain data is converted to the annotated type: a dict becomes the dataclass that is asked for."""
    for case in ALL:
        for plain, value in case.samples:
            converted = convert(plain, case.hint)
            assert converted == value, label(case)
            assert type(converted) is type(value), label(case)


def test_values_of_a_type_are_valid_as_plain_data_and_come_back_the_same() -> None:
    """What is valid against the schema of a type can be converted to it, and the reverse."""
    for case in ALL:
        check = validator(case.hint)
        for plain, value in case.samples:
            assert check.is_valid(plain), label(case)
            assert check.is_valid(to_plain(value)), label(case)
            assert convert(to_plain(value), case.hint) == value, label(case)


def agrees(case: Case, plain: Any) -> bool:
    return validator(case.hint).is_valid(plain) == (outcome(converter(case.hint), plain) is not ConversionError)


def test_data_can_be_converted_exactly_if_it_is_valid() -> None:
    assert [(label(case), plain) for case in EXACT for plain in damages(case) if not agrees(case, plain)] == []


@given(damaged(EXACT))
@settings(max_examples=examples(150))
def test_any_json_can_be_converted_exactly_if_it_is_valid(given: tuple[Case, Any]) -> None:
    assert agrees(*given)


def test_msgspec_is_used_only_where_its_result_is_the_same() -> None:
    """msgspec converts what it converts exactly as the nodes do."""
    for case in ALL:
        slow = from_hint(case.hint).convert
        for plain in damages(case):
            by_msgspec, by_node = outcome(converter(case.hint), plain), outcome(slow, plain)
            assert type(by_msgspec) is type(by_node), (label(case), plain)
            assert by_msgspec == by_node, (label(case), plain)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"x": 1}, Point),
        ([{"value": 1}], list[Tree]),
        ({"items": []}, Page[int]),
        ({"userName": "u"}, Account),
        ({"name": "n"}, Cat | None),
        ({"event": "deleted", "id": 1}, Created | Deleted),
        ({"a": [{"x": 1}]}, dict[str, list[Point]]),
        (5, Annotated[int, msgspec.Meta(ge=1)]),
    ],
)
def test_types_that_msgspec_reads_as_we_do_are_left_to_it(
    data: Any, hint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    real = msgspec.convert
    monkeypatch.setattr(msgspec, "convert", lambda *args: calls.append(args) or real(*args))
    assert _prepare(hint)(data) == real(data, hint)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("5", int),
        (5, str),
        (1, bool),
        ("true", bool),
        (True, int),
        (True, float),
        ("0.5", float),
        (0, None),
        (5.5, int),
    ],
)
def test_one_json_type_is_never_taken_for_another(data: Any, hint: Any) -> None:
    for each, nested in ((data, hint), ([data], list[hint]), ({"a": data}, dict[str, hint])):
        with pytest.raises(ConversionError):
            convert(each, nested)


def test_numbers_are_converted_where_nothing_is_lost() -> None:
    assert repr(convert({"x": 5.0, "y": 5}, Point)) == "Point(x=5, y=5.0)"
    assert repr(convert([5.0, 5], list[int])) == "[5, 5]"
    assert repr(convert([5.0, 5], list[float])) == "[5.0, 5.0]"
    assert convert(1e300, int) == int(1e300)


@pytest.mark.parametrize(
    ("data", "hint", "message"),
    [
        ([{"x": 1}, {"x": "1"}], list[Point], "$[1].x: expected an integer, got a string"),
        ({"items": [{"when": "x"}]}, Page[dict[str, datetime]], "$.items[0].when: is not a date and time (RFC 3339)"),
        ({"a b": 1}, dict[str, str], "$['a b']: expected a string, got an integer"),
        ({"value": 1, "children": [{}]}, Tree, "$.children[0]: the property 'value' is missing"),
        ({"userName": "u", "x": 1}, Account, "$.x: is not a property of this object"),
        ("green", Colour, "$: is not one of 'red', 'blue'"),
        ([1, "x", 3], tuple[int, str], "$: expected 2 items, got 3"),
        ({}, list[int], "$: expected an array, got an object"),
        (b"", int, "$: expected an integer, got a bytes"),
    ],
)
def test_a_failure_says_where_and_why(data: Any, hint: Any, message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(data, hint)
    assert str(caught.value) == message


@pytest.mark.parametrize("hint", [int, Colour, Literal["a"], Point, Cat | Dog, datetime, Decimal, Deleted, Account])
def test_a_failure_never_repeats_a_large_value(hint: Any) -> None:
    large = "x" * 10_000
    for data in (large, {large: large}, {"name": 5, "barks": large, "event": large, "userName": "u", "x": large}):
        with pytest.raises(ConversionError) as caught:
            convert(data, hint)
        assert len(str(caught.value)) < 500


def test_a_value_nested_too_deeply_is_a_conversion_error() -> None:
    value: Any = {"value": 1}
    for _ in range(100_000):
        value = {"value": 1, "children": [value]}
    with pytest.raises(ConversionError, match="nested too deeply"):
        convert(value, Tree)


def test_an_instance_of_the_type_is_passed_on() -> None:
    for case in ALL:
        for _, value in case.samples:
            if isinstance(case.hint, type) and type(value) is case.hint:
                assert convert(value, case.hint) == value


def test_equal_hints_share_one_converter() -> None:
    assert converter(list[Point]) is converter(list[Point])


def test_unions_in_another_order_are_not_equal_hints() -> None:
    @dataclass
    class Kitten(Cat):
        pass

    for first, second in ((Cat, Kitten), (Kitten, Cat)):
        assert type(convert({"name": "a"}, first | second)) is first
        assert type(convert([{"name": "a"}], list[first | second])[0]) is first


def test_converters_of_types_that_are_made_as_a_program_goes_are_not_kept_for_ever() -> None:
    for index in range(1_100):
        convert(index, Literal[index])
    assert len(_CONVERTERS) <= 1_000


def test_a_hint_that_cannot_be_hashed_is_converted_too() -> None:
    assert convert(5.0, Annotated[int, ["a list"]]) == 5


def test_a_bad_hint_is_a_hint_error_not_a_conversion_error() -> None:
    with pytest.raises(HintError):
        convert(1, print)


def test_what_a_constructor_raises_is_reported_with_its_cause() -> None:
    @dataclass
    class Even:
        value: int

        def __post_init__(self) -> None:
            if self.value % 2:
                raise ValueError("odd")

    assert convert({"value": 2}, Even) == Even(2)
    with pytest.raises(ConversionError, match=r"^\$\[0\]: is not a Even: odd$") as caught:
        convert([{"value": 1}], list[Even])
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("hint", "kinds"),
    [
        (int, {int}),
        (float, {float}),
        (str, {str}),
        (bool, {bool}),
        (None, {type(None)}),
        (Any, {int, float, str, bool, type(None), dict, list}),
        (object, {int, float, str, bool, type(None), dict, list}),
        (int | None, {int, type(None)}),
        (int | float, {int, float}),
        (Literal["a", "b"], {str}),
        (dict, {dict}),
        (dict[str, Any], {dict}),
        (list, {list}),
        (list[Any], {list}),
        (list[str], {list}),
        (dict[str, list[bool]], {dict}),
        (list[str] | str | None, {list, str, type(None)}),
        (Point | int, {int}),
        (datetime | str, None),
        (list[int], None),
        (dict[str, float], None),
        (dict[int, str], None),
        (Literal[Colour.RED], None),
        (tuple[str, ...], None),
        (set[str], None),
        (datetime, None),
        (Colour, None),
        (Point, None),
    ],
)
def test_identity_kinds_are_the_types_that_need_no_conversion(hint: Any, kinds: set[type] | None) -> None:
    """Values that need no conversion are known beforehand and passed on as they are."""
    assert identity_kinds(hint) == kinds


def test_valid_values_of_an_identity_kind_are_converted_to_themselves() -> None:
    for case in ALL:
        kinds = identity_kinds(case.hint) or frozenset()
        for plain in damages(case):
            if type(plain) in kinds and validator(case.hint).is_valid(plain):
                assert repr(convert(plain, case.hint)) == repr(plain), label(case)
