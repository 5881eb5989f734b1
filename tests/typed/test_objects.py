from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from opwire.errors import ConversionError
from opwire.typed import convert, json_schema_of
from tests.typed.catalogue import Account, Area, Coordinates, Created, Engine, Movie, Pair, Point
from tests.typed.future_types import Late


class Shape(msgspec.Struct, array_like=True, tag="shape", forbid_unknown_fields=True):
    sides: int
    name: str = ""


class Numbered(msgspec.Struct, tag=1, forbid_unknown_fields=True):
    pass


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (
            Point,
            {
                "title": "Point",
                "description": "Where it is.",
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": 0.0}},
                "required": ["x"],
            },
        ),
        (
            Account,
            {
                "title": "Account",
                "description": "A payer.",
                "type": "object",
                "properties": {
                    "userName": {"type": "string"},
                    "openSince": {"type": "string", "format": "date"},
                    "tags": {"type": "array", "items": {"type": "string"}, "default": []},
                },
                "required": ["userName"],
                "additionalProperties": False,
            },
        ),
        (
            Movie,
            {
                "title": "Movie",
                "type": "object",
                "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
                "required": ["title"],
            },
        ),
        (
            Created,
            {
                "title": "Created",
                "type": "object",
                "properties": {"event": {"const": "created"}, "id": {"type": "integer"}},
                "required": ["event", "id"],
            },
        ),
        (
            Pair,
            {
                "title": "Pair",
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string", "default": "right"}],
                "minItems": 1,
                "maxItems": 2,
            },
        ),
        (
            Shape,
            {
                "title": "Shape",
                "type": "array",
                "prefixItems": [{"const": "shape"}, {"type": "integer"}, {"type": "string", "default": ""}],
                "minItems": 2,
                "maxItems": 3,
            },
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_classes_have_the_schema_of_their_fields(hint: Any, schema: dict[str, Any]) -> None:
    assert json_schema_of(hint) == schema


def test_computed_fields_are_read_only_checked_and_left_to_the_class() -> None:
    assert json_schema_of(Area)["properties"]["size"] == {"type": "integer", "readOnly": True}
    assert convert({"width": 2, "height": 3, "size": 1, "unit": "cm"}, Area).label == "6 cm²"
    with pytest.raises(ConversionError, match=r"^\$\.size: expected an integer"):
        convert({"width": 2, "height": 3, "size": "x"}, Area)


def test_converters_and_validators_of_attrs_are_run() -> None:
    assert convert({"power": 1, "name": "v8"}, Engine).name == "V8"
    with pytest.raises(ConversionError, match="is not a Engine: 'power' must be > 0"):
        convert({"power": 0}, Engine)


def test_unknown_properties_are_ignored_unless_the_class_forbids_them() -> None:
    assert convert({"title": "t", "more": 1}, Movie) == {"title": "t"}
    assert "additionalProperties" not in json_schema_of(Movie)
    with pytest.raises(ConversionError, match=r"^\$\.more: is not a property"):
        convert({"userName": "u", "more": 1}, Account)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"id": 1}, r"^\$: the property 'event' is missing"),
        ({"event": "deleted", "id": 1}, r"^\$\.event: is not 'created'"),
    ],
)
def test_a_tagged_struct_needs_its_tag_as_its_schema_says(data: Any, reason: str) -> None:
    with pytest.raises(ConversionError, match=reason):
        convert(data, Created)


def test_a_number_as_tag_is_not_taken_for_a_boolean() -> None:
    assert convert({"type": 1}, Numbered) == Numbered()
    with pytest.raises(ConversionError, match="is not 1"):
        convert({"type": True}, Numbered)


def test_the_tag_of_a_closed_struct_is_a_property_of_it() -> None:
    with pytest.raises(ConversionError, match=r"^\$\.more: is not a property"):
        convert({"type": 1, "more": 1}, Numbered)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (["shape"], r"^\$: expected 2 to 3 items, got 1"),
        (["shape", 1, "n", 4], r"^\$: expected 2 to 3 items, got 4"),
        (["round", 1], r"^\$\[0\]: is not 'shape'"),
        (["shape", "1"], r"^\$\[1\]: expected an integer"),
        ({}, r"^\$: expected an array"),
    ],
)
def test_rows_are_checked_by_position(data: Any, reason: str) -> None:
    assert convert(["shape", 4], Shape) == Shape(4)
    with pytest.raises(ConversionError, match=reason):
        convert(data, Shape)


def test_rows_that_are_not_closed_ignore_more_items() -> None:
    assert convert([1, 2, 3, "more"], Coordinates) == Coordinates(1.0, 2.0, 3.0)


def test_annotations_that_are_text_are_resolved() -> None:
    assert convert({"key": 1, "start": 5, "others": [{"key": 2}]}, Late) == Late(1, others=[Late(2)])


def test_a_constructor_that_takes_other_arguments_is_a_conversion_error() -> None:
    @dataclass(init=False)
    class Strange:
        value: int

        def __init__(self) -> None:
            self.value = 1

    with pytest.raises(ConversionError, match="is not a Strange: "):
        convert({"value": 1}, Strange)
