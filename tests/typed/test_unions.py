from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from opwire.errors import ConversionError
from opwire.typed import convert, json_schema_of
from tests.typed.catalogue import (
    KEY,
    NOON,
    Cat,
    Circle,
    Colour,
    Coordinates,
    Created,
    Deleted,
    Dog,
    Movie,
    Pair,
    Person,
    Point,
    Square,
)


class Text(pydantic.BaseModel):
    kind: Literal["text"]
    body: str


class Image(msgspec.Struct, tag="image", tag_field="kind"):
    url: str


@dataclass
class Sound:
    kind: Literal["sound", "music"]
    url: str


@dataclass
class Round:
    kind: Literal["circle"]
    radius: float
    size: int


def test_a_discriminator_is_found_and_part_of_the_schema() -> None:
    schema = json_schema_of(Circle | Square)
    assert schema["anyOf"] == [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]
    assert schema["discriminator"] == {
        "propertyName": "kind",
        "mapping": {"circle": "#/$defs/Circle", "square": "#/$defs/Square"},
    }


def test_models_structs_and_dataclasses_are_distinguished_by_one_property() -> None:
    hint = Text | Image | Sound | None
    assert set(json_schema_of(hint)["discriminator"]["mapping"]) == {"text", "image", "sound", "music"}
    assert convert({"kind": "text", "body": "b"}, hint) == Text(kind="text", body="b")
    assert convert({"kind": "image", "url": "u"}, hint) == Image("u")
    assert convert({"kind": "music", "url": "u"}, hint) == Sound("music", "u")
    assert convert(None, hint) is None


@dataclass
class Plus:
    left: int
    op: Annotated[Literal["+"], "an operator"] = "+"


@dataclass
class Minus:
    left: int
    op: Literal["-"] = "-"
    right: int = 0


def test_a_discriminator_with_a_default_may_be_left_out() -> None:
    assert "discriminator" not in json_schema_of(Plus | Minus)
    assert convert({"op": "-", "left": 1}, Plus | Minus) == Minus(1)
    assert convert({"left": 1}, Plus | Minus) == Plus(1)
    assert convert({"left": 1, "right": 2}, Plus | Minus) == Minus(1, right=2)
    with pytest.raises(ConversionError, match=r"^\$\.op: is not one of '\+', '-'$"):
        convert({"op": "*", "left": 1}, Plus | Minus)


def test_a_member_with_documentation_is_distinguished_too() -> None:
    validated = Annotated[Text, pydantic.AfterValidator(lambda text: text)]
    assert json_schema_of(validated | Image)["discriminator"]["mapping"] == {"image": "#/$defs/Image"}
    documented = Annotated[Circle, "a note"]
    assert set(json_schema_of(documented | Square)["discriminator"]["mapping"]) == {"circle", "square"}
    assert convert({"kind": "circle", "radius": 1}, documented | Square) == Circle("circle", 1.0)
    assert convert({"name": "a", "lives": 1}, Annotated[Cat, "a note"] | Dog) == Cat("a", 1)


def test_constants_that_do_not_distinguish_the_members_are_not_a_discriminator() -> None:
    assert "discriminator" not in json_schema_of(Circle | Round)
    assert "discriminator" not in json_schema_of(Circle | Cat)
    assert convert({"kind": "circle", "radius": 1, "size": 2}, Circle | Round) == Round("circle", 1.0, 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"kind": "triangle"}, r"^\$\.kind: is not one of 'circle', 'square'$"),
        ({"kind": []}, r"^\$\.kind: is not one of"),
        ({"side": 1}, r"^\$: the property 'kind' is missing$"),
        ({"kind": "square", "side": "x"}, r"^\$\.side: expected a number"),
        (5, r"^\$: expected Circle | Square, got an integer$"),
    ],
)
def test_with_a_discriminator_the_failure_is_that_of_the_member_that_is_meant(data: Any, reason: str) -> None:
    with pytest.raises(ConversionError, match=reason):
        convert(data, Circle | Square)


def test_without_a_discriminator_the_member_that_keeps_most_is_meant() -> None:
    @dataclass
    class Wide(Cat):
        colour: str = ""

    assert convert({"name": "a", "lives": 3}, Wide | Cat) == Wide("a", 3)
    assert convert({"name": "a", "colour": "red"}, Cat | Wide) == Wide("a", 9, "red")
    assert convert({"name": "a"}, Cat | Wide) == Cat("a")
    assert convert({"name": "a", "x": 1}, Point | dict[str, Any]) == {"name": "a", "x": 1}
    assert convert({"name": "A"}, Person | Movie) == Person(name="A")


def test_if_nothing_fits_the_reason_of_each_member_is_reported() -> None:
    with pytest.raises(ConversionError) as caught:
        convert([{"name": 5}], list[Cat | Dog])
    assert str(caught.value) == (
        "$[0]: fits none of Cat | Dog (Cat: $.name expected a string, got an integer; "
        "Dog: $.name expected a string, got an integer)"
    )


def test_text_is_read_by_the_first_member_that_takes_it() -> None:
    assert convert("2024-02-29T12:00:00Z", datetime | str) == NOON
    assert convert("soon", datetime | str) == "soon"
    assert convert(str(KEY), str | UUID) == str(KEY)
    assert convert("red", Colour | Literal["none"]) is Colour.RED
    assert convert("none", Colour | Literal["none"]) == "none"


def test_numbers_stay_what_they_are_in_any_order() -> None:
    for hint in (int | float, float | int, float | int | str):
        assert repr(convert(5, hint)) == "5"
        assert repr(convert(5.0, hint)) == "5.0"


def test_tagged_structs_beside_other_types() -> None:
    hint = Created | Deleted | list[int] | str
    assert convert({"event": "created", "id": 1.0}, hint) == Created(1)
    assert convert([1], hint) == [1]
    with pytest.raises(ConversionError, match="'event' is missing"):
        convert({"id": 1}, hint)


def test_arrays_by_position_beside_objects() -> None:
    assert convert([1], Pair | Point) == Pair(1)
    assert convert({"x": 1}, Pair | Point) == Point(1)
    assert convert([1, 2], Pair | Coordinates) == Coordinates(1.0, 2.0)
    assert "discriminator" not in json_schema_of(Pair | Coordinates)


def test_members_with_the_same_schema_are_listed_once() -> None:
    @dataclass
    class Holder:
        value: Literal["a"] | Literal["b"] | list | list[Any]

    assert json_schema_of(Holder)["properties"]["value"] == {
        "anyOf": [{"type": "string", "const": "a"}, {"type": "string", "const": "b"}, {"type": "array"}]
    }
