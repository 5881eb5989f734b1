import collections.abc
import enum
import io
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, LiteralString, Optional, Protocol, TypeVar

import pytest
import typing_extensions

from opwire.errors import HintError
from opwire.typed import convert, json_schema_of
from opwire.typed.from_hint import from_hint
from tests.typed.catalogue import Chain, Colour, Page, Point, Wrapped

T = TypeVar("T")
Defaulted = typing_extensions.TypeVar("Defaulted", default=int)


class Custom:
    pass


class Shape(Protocol):
    sides: int


class Pairs(enum.Enum):
    ONE = (1, 2)


class Broken(enum.Enum):
    ONE = object()


@dataclass
class Opener:
    file: io.StringIO


@dataclass
class Growing(Generic[T]):
    inner: "Growing[list[T]] | None"


@dataclass
class Slot(Generic[Defaulted]):
    content: Defaulted


EXPRESSIBLE = "use a dataclass, TypedDict, Struct, model, Enum or a plain type"


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (io.StringIO, f"StringIO cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (
            Callable[[int], int],
            f"collections.abc.Callable[[int], int] cannot be expressed as JSON Schema; {EXPRESSIBLE}",
        ),
        (Custom, f"Custom cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (list[Custom], f"Custom cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (Shape, f"Shape cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (complex, f"complex cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (type[int], f"type[int] cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (typing.Never, f"Never cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (
            collections.abc.Iterator[int],
            f"collections.abc.Iterator[int] cannot be expressed as JSON Schema; {EXPRESSIBLE}",
        ),
        (5, f"5 cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        ([int], f"[<class 'int'>] cannot be expressed as JSON Schema; {EXPRESSIBLE}"),
        (T, "the type parameter T is open; fill it in, e.g. Page[int] for Page"),
        ("Point", "the forward reference 'Point' is not resolved; pass the type itself"),
        (list["Point"], "the forward reference 'Point' is not resolved; pass the type itself"),
        (typing.Self, "Self is used outside of a class; name the class"),
        (Pairs, "Pairs is not a list of JSON scalars; use str, int, float, bool or None"),
        (Broken, "Broken is not a list of JSON scalars; use str, int, float, bool or None"),
        (enum.Enum, "Enum is not a list of JSON scalars; use str, int, float, bool or None"),
        (dict[float, int], "float cannot be the key of a JSON object; use str, int, Enum, UUID or date"),
        (dict[Point, int], "Point cannot be the key of a JSON object; use str, int, Enum, UUID or date"),
    ],
)
def test_a_hint_that_cannot_be_expressed_says_where_and_what_to_do(hint: Any, message: str) -> None:
    with pytest.raises(HintError) as caught:
        json_schema_of(hint, where="parameter 'f' of open_file")
    assert str(caught.value) == f"parameter 'f' of open_file: {message}"


@pytest.mark.parametrize(
    ("hint", "place"),
    [
        (Opener, "field 'file' of Opener"),
        (list[Opener | None], "field 'file' of Opener"),
        (Page, "field 'items' of Page"),
    ],
)
def test_inside_a_class_the_field_is_named(hint: Any, place: str) -> None:
    with pytest.raises(HintError, match=f"^the result of f, {place}: "):
        json_schema_of(hint, where="the result of f")
    with pytest.raises(HintError, match=f"^{place}: "):
        json_schema_of(hint)


def test_a_generic_that_grows_without_end_is_refused() -> None:
    with pytest.raises(HintError, match="grows without end"):
        json_schema_of(Growing[int])


def test_defaults_of_type_parameters_are_used() -> None:
    assert json_schema_of(Slot)["properties"]["content"] == {"type": "integer"}
    assert json_schema_of(Slot[str])["properties"]["content"] == {"type": "string"}


def test_self_means_the_enclosing_class() -> None:
    assert json_schema_of(Chain)["properties"]["next"]["anyOf"][0] == {"$ref": "#/$defs/Chain"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (typing.List[int], list[int]),  # noqa: UP006
        (typing.Dict[str, int], dict[str, int]),  # noqa: UP006
        (typing.Tuple, tuple),  # noqa: UP006
        (Optional[int], int | None),  # noqa: UP045
        (LiteralString, str),
        (typing_extensions.Literal["a"], typing.Literal["a"]),
        (dict[Any, int], dict[str, int]),
    ],
)
def test_old_and_new_spellings_mean_the_same(one: Any, other: Any) -> None:
    assert json_schema_of(one) == json_schema_of(other)


def test_each_class_is_one_node_however_often_it_is_named() -> None:
    first, second = from_hint(tuple[Colour, Colour]).parts()
    assert first is second


def test_metadata_that_cannot_be_hashed_does_no_harm() -> None:
    hint = Wrapped[typing.Annotated[int, {"a": "dict"}]]
    assert convert({"content": 1.0}, hint) == Wrapped(1)
    assert json_schema_of(hint)["properties"]["content"] == {"type": "integer"}


def test_an_enum_that_maps_unknown_values_still_takes_only_what_is_listed() -> None:
    class Lenient(enum.Enum):
        A = "a"

        @classmethod
        def _missing_(cls, value: object) -> Any:
            return cls.A

    with pytest.raises(ValueError, match="is not one of 'a'"):
        convert("b", Lenient)
