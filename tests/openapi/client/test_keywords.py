"""Keywords that cannot be used."""

from typing import Any

import pytest

from opwire.openapi.client.schemas import is_pattern, usable_keywords
from opwire.schema.dialect import lower_bounds


def kept(schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    warnings: list[str] = []
    return usable_keywords(schema, warnings.append), warnings


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"required": True, "type": "string"}, {"type": "string"}),
        ({"type": "any"}, {}),
        ({"type": ["string", "uuid"]}, {}),
        ({"type": 7}, {}),
        ({"enum": []}, {}),
        ({"enum": ["true", "false"], "type": "boolean"}, {"enum": ["true", "false"]}),
        ({"enum": ["1", True], "type": ["integer", "number"]}, {"enum": ["1", True]}),
        ({"minimum": "1", "maximum": 9}, {"maximum": 9}),
        ({"maxLength": -1, "minLength": 2.0}, {"minLength": 2.0}),
        ({"multipleOf": 0}, {}),
        ({"allOf": [], "anyOf": {}, "oneOf": ["x"]}, {}),
        ({"properties": [], "items": 1, "additionalProperties": "no"}, {}),
        ({"pattern": "(", "format": 1}, {}),
        ({"pattern": {}}, {}),
        ({"patternProperties": {"(": {}}}, {}),
        ({"description": 1, "title": ["x"], "examples": "x"}, {}),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_warning(schema: dict[str, Any], left: dict[str, Any]) -> None:
    found, warnings = kept(schema)
    assert found == left
    assert len(warnings) == len(schema) - len(left)


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": None}, {"type": "null"}),
        ({"type": "String"}, {"type": "string"}),
        ({"type": ["string", None]}, {"type": ["string", "null"]}),
        ({"type": "file"}, {}),
        ({"type": "integer", "enum": [1, "2"]}, {"type": "integer", "enum": [1, "2"]}),
        ({"type": ["integer", "null"], "enum": [None]}, {"type": ["integer", "null"], "enum": [None]}),
        ({"type": "null", "nullable": True, "x-nullable": True}, {"type": "null"}),
        ({"properties": None, "enum": None}, {}),
        ({"x-internal": 1, "xml": {}, "externalDocs": {}, "$comment": ""}, {}),
        ({"x-nullable": True}, {"x-nullable": True}),
        ({"example": 1}, {"examples": [1]}),
        ({"examples": {"a": {"value": 1}}}, {}),
        ({"required": ["a", "b", "a"]}, {"required": ["a", "b"]}),
        ({"properties": {"a": "string", "b": None, "c": {}}}, {"properties": {"a": True, "b": True, "c": {}}}),
        ({"exclusiveMinimum": True, "const": {"x-y": 1}}, {"exclusiveMinimum": True, "const": {"x-y": 1}}),
    ],
)
def test_what_only_looks_odd_is_read_without_a_warning(schema: dict[str, Any], left: dict[str, Any]) -> None:
    assert kept(schema) == (left, [])


def test_patterns_are_those_of_the_engine_that_checks() -> None:
    assert is_pattern(r"^(?=a)\p{L}+$")
    assert not is_pattern("[")


def test_boolean_bounds_become_numbers() -> None:
    schema = {"minimum": 1, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}
    lower_bounds(schema)
    assert schema == {"exclusiveMinimum": 1, "maximum": 9}
