"""How JSON Schema that TypeBox would not write becomes TypeBox's kinds."""

from typing import Any

import pytest

from opwire.schema.cast import Caster

STRING = {"type": "string"}
NUMBER = {"type": "number"}


def cast(schema: Any, value: Any) -> Any:
    return Caster(schema).cast(value)


def accepts(schema: Any, value: Any) -> bool:
    """Whether the check passes: a negation then has to give its default."""
    return cast({"not": schema, "default": "accepted"}, value) == "accepted"


@pytest.mark.parametrize(
    ("schema", "value", "result"),
    [
        (True, 5, 5),
        ({}, 5, 5),
        ({"title": "anything"}, 5, 5),
        ({"type": "file"}, 5, 5),
        ({"type": "string", "enum": ["a", "b"]}, "c", "a"),
        ({"enum": [[1], {"a": 1}]}, {"a": True}, [1]),
        ({"enum": ["only"]}, "c", "only"),
        ({"type": ["string", "null"]}, 5, ""),
        ({"type": ["null", "string"]}, 5, None),
        ({"type": ["string"]}, 5, ""),
        ({"type": ["integer", "null"], "minimum": 3}, 1, 3),
        ({"type": "string", "nullable": True}, None, None),
        ({"type": "string", "nullable": True}, 5, ""),
        ({"type": "string", "nullable": True, "default": None}, 5, None),
        ({"type": "string", "enum": ["a"], "nullable": True}, None, None),
        ({"properties": {"a": NUMBER}, "required": ["a"]}, 5, {"a": 0}),
        ({"type": "object"}, 5, {}),
        ({"type": "object", "additionalProperties": NUMBER}, {"a": "1", "b\n": 2}, {"a": 0, "b\n": 2}),
        ({"type": "object", "additionalProperties": NUMBER}, {"a\n": "1"}, {"a\n": 0}),
        ({"additionalProperties": False}, {"a": 1}, {}),
        ({"items": NUMBER}, [1, "2"], [1, 0]),
        ({"type": "array"}, 5, []),
        ({"prefixItems": [NUMBER]}, ["1"], [0]),
        ({"items": [NUMBER]}, ["1", 2], [0]),
        ({"oneOf": [NUMBER, STRING]}, None, 0),
        ({"allOf": [STRING]}, 5, ""),
        ({"allOf": [{"$ref": "#/$defs/S"}], "default": "d", "$defs": {"S": STRING}}, None, ""),
    ],
    ids=str,
)
def test_a_schema_becomes_the_nearest_kind(schema: Any, value: Any, result: Any) -> None:
    cast_value = cast(schema, value)
    assert cast_value == result
    assert type(cast_value) is type(result)


def test_one_of_is_a_union_and_need_not_match_exactly_once() -> None:
    assert accepts({"oneOf": [NUMBER, {"type": "integer"}]}, 5)


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_keywords_beside_a_combinator_make_an_intersection(keyword: str) -> None:
    own = {"type": "object", "required": ["a"], "properties": {"a": NUMBER}}
    more = {"type": "object", "required": ["b"], "properties": {"b": NUMBER}}
    assert cast({**own, keyword: [more]}, {"a": 1}) == {"a": 1, "b": 0}


def test_keywords_beside_a_reference_make_an_intersection() -> None:
    named = {"type": "object", "required": ["a"], "properties": {"a": NUMBER}}
    schema = {"$ref": "#/$defs/N", "required": ["b"], "properties": {"b": NUMBER}, "$defs": {"N": named}}
    assert cast(schema, {"a": 1}) == {"b": 0, "a": 1}


def test_the_type_beside_all_of_says_nothing_new_as_typebox_writes_it() -> None:
    assert cast({"type": "object", "unevaluatedProperties": False, "allOf": [{}, {"type": "boolean"}]}, 5) is False


def test_exclusive_bounds_are_numbers_or_the_flags_of_older_drafts() -> None:
    for schema in ({"exclusiveMinimum": 3, "exclusiveMaximum": 5}, {"minimum": 3, "maximum": 5}):
        flags = {} if "exclusiveMinimum" in schema else {"exclusiveMinimum": True, "exclusiveMaximum": True}
        found = [accepts({"type": "number", **schema, **flags}, value) for value in (3, 4, 5)]
        assert found == [False, True, False]
    assert accepts({"type": "number", "minimum": 3, "exclusiveMinimum": False}, 3)


@pytest.mark.parametrize(
    ("keywords", "fitting", "failing"),
    [
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"if": {"required": ["a"]}, "else": {"required": ["b"]}}, {"a": 1}, {"c": 1}),
        ({"required": ["undeclared"]}, {"undeclared": 1}, {"a": 1}),
        ({"dependentRequired": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, {"c": 1, "d": 1}, {"c": 1}),
        ({"propertyNames": {"pattern": "^[a-z]+$"}}, {"abc": 1}, {"ABC": 1}),
        ({"not": {"required": ["a"]}}, {"b": 1}, {"a": 1}),
    ],
    ids=str,
)
def test_what_has_no_kind_is_checked_and_not_repaired(
    keywords: dict[str, Any], fitting: dict[str, Any], failing: dict[str, Any]
) -> None:
    schema = {"type": "object", **keywords}
    assert accepts(schema, fitting)
    assert not accepts(schema, failing)
    assert cast(schema, failing) is failing
    assert cast(schema, 5) == {}


def test_bounds_without_a_type_hold_for_values_of_their_type_alone() -> None:
    assert [accepts({"minimum": 3}, value) for value in (3, 2, "a", [])] == [True, False, True, True]
    assert [accepts({"minLength": 2}, value) for value in ("ab", "a", 1)] == [True, False, True]
    assert cast({"minLength": 2}, "a") == "a"


def test_a_default_and_a_score_are_those_of_the_kind_that_is_guarded() -> None:
    guarded = {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind", "x"], "default": {"d": 1}}
    assert cast(guarded, 5) == {"d": 1}
    assert cast({"anyOf": [{"type": "null"}, guarded]}, {"kind": "a", "y": 1}) == {"kind": "a", "y": 1}


def test_a_guarded_part_still_declares_its_keys() -> None:
    part = {"type": "object", "properties": {"a": NUMBER}, "propertyNames": {"maxLength": 1}}
    schema = {"allOf": [part, {"type": "object"}], "unevaluatedProperties": False}
    assert accepts(schema, {"a": 1})
    assert not accepts(schema, {"b": 1})


def test_a_required_property_of_any_kind_must_be_there_even_if_it_is_guarded() -> None:
    schema = {"type": "object", "required": ["a", "b"], "properties": {"a": {"minLength": 1}, "b": {"allOf": [{}, {}]}}}
    assert not accepts(schema, {"b": 1})
    assert accepts(schema, {"a": 1})  # TypeBox asks for presence where the kind itself is Unknown or a negation
