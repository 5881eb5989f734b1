"""What a schema says of a place."""

from typing import Any

import pytest

from opwire.cli.inputs import SchemaField

TREE: dict[str, Any] = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["name"],
        }
    },
}


def test_references_are_followed_as_deep_as_one_asks() -> None:
    field = SchemaField(TREE)
    for _ in range(20):
        assert field.required == ["name"]
        assert field.field("name").kinds == ["string"]
        field = field.field("children").items


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "integer"}, ["integer"]),
        ({"type": ["integer", "null"]}, ["integer", "null"]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["integer", "string"]),
        ({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "boolean"}}}, ["boolean"]),
        ({"enum": [1, "a", None]}, ["integer", "string", "null"]),
        ({"const": True}, ["boolean"]),
        ({"properties": {}}, ["object"]),
        ({"items": {}}, ["array"]),
        ({"$ref": "#/nowhere"}, []),
        ({}, []),
        (True, []),
        (None, []),
    ],
)
def test_the_types_of_a_place(schema: Any, kinds: list[str]) -> None:
    assert SchemaField(schema).kinds == kinds


def test_what_one_alternative_requires_is_not_required() -> None:
    either = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "allOf": [{"required": ["c"]}], "required": ["d"]}
    assert SchemaField(either).required == ["d", "c"]


def test_fields_that_are_not_declared_are_what_the_schema_says_of_all_others() -> None:
    field = SchemaField({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}})
    assert field.field("a").kinds == ["string"]
    assert field.field("b").kinds == ["integer"]
    assert SchemaField({"additionalProperties": False}).field("b").kinds == []


def test_a_schema_that_contains_itself_is_read_to_its_end() -> None:
    schema: dict[str, Any] = {"anyOf": [{"type": "null"}]}
    schema["anyOf"].append(schema)
    assert SchemaField(schema).kinds == ["null"]
