import collections.abc
import sys
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypedDict, TypeVar

import pytest
import typing_extensions

from opwire.errors import HintError
from opwire.typed import yield_type_of
from opwire.typed.fields import class_hints, default_of, describe, loaded, substitute
from tests.typed.catalogue import LabelledBox, NamedPage, Point

A = TypeVar("A")
B = TypeVar("B")
LIST: Any = list
DICT: Any = dict
UNION: Any = typing.Union


@dataclass
class Swapped(Generic[A, B]):
    first: A
    second: list[B]


@dataclass
class Half(Swapped[B, int], Generic[B]):
    third: B


@dataclass
class Whole(Half[str]):
    first: str


class Base(TypedDict):
    key: int


class Narrowed(Base):
    key: bool
    other: str


@dataclass
class Unresolved:
    field: "NowhereToBeFound"  # pyright: ignore # noqa: F821


@dataclass
class NotAType:
    field: "1 +"  # pyright: ignore # noqa: F722


def test_type_parameters_are_filled_in_through_all_bases() -> None:
    assert class_hints(Swapped[int, str]) == {"first": int, "second": list[str]}
    assert class_hints(Half[bool]) == {"first": bool, "second": list[int], "third": bool}
    assert class_hints(Whole) == {"first": str, "second": list[int], "third": str}
    assert class_hints(NamedPage)["items"] == list[Point]


def test_typed_dicts_fill_in_and_narrow_what_they_inherit() -> None:
    assert class_hints(LabelledBox) == {"content": int, "label": str}
    assert class_hints(Narrowed) == {"key": bool, "other": str}


def test_parameters_that_are_not_given_stay_open() -> None:
    assert class_hints(Swapped) == {"first": A, "second": LIST[B]}
    assert substitute(LIST[A], {B: int}) == LIST[A]
    assert substitute(DICT[A, B], {B: int}) == DICT[A, int]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="since Python 3.13 a union's members need no hash")
def test_type_parameters_that_python_itself_refuses_are_a_hint_error() -> None:
    with pytest.raises(HintError, match=r"^here: .* cannot be given its type parameters: unhashable"):
        substitute(UNION[A, str], {A: Annotated[int, []]}, "here")


def test_a_class_inside_a_function_may_refer_to_itself() -> None:
    @dataclass
    class Local:
        children: "list[Local]"

    assert class_hints(Local) == {"children": list[Local]}


@pytest.mark.parametrize(
    ("cls", "reason"),
    [(Unresolved, "cannot be resolved: name 'NowhereToBeFound'"), (NotAType, "is not a type")],
)
def test_an_annotation_that_cannot_be_evaluated_says_of_which_class(cls: type, reason: str) -> None:
    with pytest.raises(HintError, match=rf"^the place: an annotation of {cls.__name__} {reason}"):
        class_hints(cls, "the place")


def test_defaults_of_type_parameters_are_found() -> None:
    assert default_of(typing_extensions.TypeVar("D", default=int)) is int
    assert default_of(A) is None


@pytest.mark.parametrize(
    "hint",
    [
        collections.abc.AsyncIterator[Point],
        collections.abc.AsyncGenerator[Point, None],
        collections.abc.AsyncIterable[Point],
        collections.abc.Iterator[Point],
        collections.abc.Generator[Point, None, None],
        typing.AsyncGenerator[Point, None],
        Annotated[collections.abc.AsyncIterator[Point], "a note"],
    ],
)
def test_the_yield_type_of_an_iterator_is_its_first_argument(hint: Any) -> None:
    """The schema of a subscription is that of its generator's yield type."""
    assert yield_type_of(hint) is Point


@pytest.mark.parametrize("hint", [int, None, collections.abc.AsyncIterator, list[int], Point])
def test_what_does_not_say_what_it_yields_is_refused(hint: Any) -> None:
    with pytest.raises(HintError, match=r"^the result of ticks: .* write e\.g\. AsyncIterator\[int\]$"):
        yield_type_of(hint, where="the result of ticks")


def test_hints_are_described_as_they_are_written_but_not_at_any_length() -> None:
    assert describe(int) == "int"
    assert describe(typing.Optional[int]) in ("Optional[int]", "int | None")  # noqa: UP045  # before and since 3.14
    assert describe(Point) == "Point"
    assert len(describe(dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, Point]]]]]]])) == 80


def test_a_library_that_was_not_imported_is_not_imported_for_a_look() -> None:
    assert loaded("wave_that_is_not_there", "Wave") is None
    assert loaded("typing", "Any") is Any
