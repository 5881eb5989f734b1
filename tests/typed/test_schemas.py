import enum
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pydantic
import pytest

from opwire.errors import HintError
from opwire.typed import json_schema_of
from tests.typed import pep695
from tests.typed.catalogue import ALL, Colour, Comment, Page, Person, Point, Tree, label

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def other_point() -> Any:
    @dataclass
    class Point:
        z: int

    return Point


def other_person() -> Any:
    class Person(pydantic.BaseModel):
        z: int

    return Person


def test_every_schema_is_a_valid_one() -> None:
    for case in ALL:
        schema = json_schema_of(case.hint)
        assert jsonschema_rs.meta.is_valid({"$schema": DIALECT, **schema}), label(case)
        jsonschema_rs.Draft202012Validator(schema)


def test_every_schema_is_plain_json_and_the_same_each_time() -> None:
    for case in ALL:
        schema = json_schema_of(case.hint)
        assert msgspec.json.decode(msgspec.json.encode(schema)) == schema, label(case)
        assert json_schema_of(case.hint) == schema, label(case)
        assert json_schema_of(case.hint) is not schema, label(case)


def test_a_class_stands_at_the_root_and_in_defs_only_if_it_is_referred_to() -> None:
    assert json_schema_of(Point)["type"] == "object"
    assert "$defs" not in json_schema_of(Point)
    tree = json_schema_of(Tree)
    assert tree["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert tree["$defs"]["Tree"] == {key: each for key, each in tree.items() if key != "$defs"}
    assert json_schema_of(Comment)["type"] == "object"


def test_a_class_is_described_once_however_often_it_is_used() -> None:
    schema = json_schema_of(dict[str, tuple[Point, Point | None, list[Point]]])
    assert set(schema["$defs"]) == {"Point"}


def test_classes_that_share_a_name_get_longer_ones_in_any_order() -> None:
    other = other_point()
    schema = json_schema_of(tuple[Point, other])
    names = {"tests.typed.catalogue.Point", "tests.typed.test_schemas.other_point.Point"}
    assert set(schema["$defs"]) == names
    assert json_schema_of(tuple[other, Point])["$defs"] == schema["$defs"]
    assert schema["$defs"]["tests.typed.test_schemas.other_point.Point"]["properties"] == {"z": {"type": "integer"}}


def test_classes_that_share_even_their_place_are_numbered() -> None:
    schema = json_schema_of(tuple[other_point(), other_point()])
    assert [each["$ref"].rpartition("/")[2] for each in schema["prefixItems"]] == [
        "tests.typed.test_schemas.other_point.Point",
        "tests.typed.test_schemas.other_point.Point_2",
    ]


def test_models_that_share_a_name_with_other_classes_are_numbered() -> None:
    @dataclass
    class Address:
        x: int

    schema = json_schema_of(tuple[Person, other_person(), Person, Address])
    names = [each["$ref"].rpartition("/")[2] for each in schema["prefixItems"]]
    assert names == ["Person", "Person_2", "Person", "Address"]
    assert schema["$defs"]["Person"]["properties"]["address"]["anyOf"][0] == {"$ref": "#/$defs/Address_2"}
    assert set(schema["$defs"]) == {"Person", "Person_2", "Address", "Address_2"}


def test_generics_are_named_with_their_arguments() -> None:
    schema = json_schema_of(tuple[Page[int], Page[str]])
    assert set(schema["$defs"]) == {"Page_int_", "Page_str_"}
    assert schema["$defs"]["Page_int_"]["title"] == "Page[int]"


def test_documentation_beside_a_class_at_the_root_comes_before_its_own() -> None:
    schema = json_schema_of(Annotated[Point, msgspec.Meta(description="the centre")])
    assert (schema["type"], schema["description"]) == ("object", "the centre")


def test_constraints_beside_a_class_at_the_root_stay_beside_the_reference() -> None:
    schema = json_schema_of(Annotated[Point, msgspec.Meta(extra_json_schema={"minProperties": 1})])
    assert schema["$ref"] == "#/$defs/Point"
    assert schema["minProperties"] == 1


def test_enums_carry_their_docstring_and_the_type_of_their_values() -> None:
    assert json_schema_of(Colour) == {
        "title": "Colour",
        "description": "What it looks like.",
        "type": "string",
        "enum": ["red", "blue"],
    }


def test_a_docstring_is_cleaned_of_its_indentation() -> None:
    class Size(enum.Enum):
        """First line.

        Second.
        """

        SMALL = 1

    assert json_schema_of(Size)["description"] == "First line.\n\nSecond."


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is new in Python 3.12")
def test_aliases_are_definitions_and_may_be_recursive() -> None:
    types = pep695.load()
    schema = json_schema_of(types.Json)
    assert schema["anyOf"][0]["additionalProperties"] == {"$ref": "#/$defs/Json"}
    assert json_schema_of(types.Name) == {"type": "string"}
    assert "Nested_int_" in json_schema_of(types.Nested[int])["$defs"]
    with pytest.raises(HintError, match="grows without end"):
        json_schema_of(types.Endless[int])
