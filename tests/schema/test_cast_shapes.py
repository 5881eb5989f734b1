"""The rules of `Value.Cast` for objects, records, tuples and arrays."""

from typing import Any

import pytest

from opwire.errors import CastError
from opwire.schema.cast import Caster

STRING = {"type": "string"}
NUMBER = {"type": "number"}
USER = {
    "type": "object",
    "required": ["id", "name"],
    "properties": {"id": NUMBER, "name": STRING, "note": {"type": "string", "default": "none"}},
}


def cast(schema: Any, value: Any) -> Any:
    return Caster(schema).cast(value)


def test_a_missing_required_property_is_created_and_a_missing_optional_one_is_not() -> None:
    assert cast(USER, {"id": 1}) == {"id": 1, "name": ""}


def test_an_optional_property_that_is_wrong_is_replaced_not_dropped() -> None:
    assert cast(USER, {"id": 1, "name": "a", "note": None}) == {"id": 1, "name": "a", "note": "none"}


def test_undeclared_properties_stay_until_something_else_is_wrong() -> None:
    extra = {"id": 1, "name": "a", "x": 1}
    assert cast(USER, extra) is extra
    assert cast(USER, {**extra, "id": "1"}) == {"id": 0, "name": "a"}
    assert cast({**USER, "additionalProperties": True}, {**extra, "id": "1"}) == {"id": 0, "name": "a"}
    assert cast({**USER, "additionalProperties": False}, extra) == {"id": 1, "name": "a"}


def test_undeclared_properties_are_cast_to_the_schema_that_is_given_for_them() -> None:
    schema = {**USER, "additionalProperties": NUMBER}
    assert cast(schema, {"id": 1, "name": "a", "x": 1, "y": "2"}) == {"id": 1, "name": "a", "x": 1, "y": 0}


def test_the_number_of_properties_is_checked_and_not_repaired() -> None:
    assert cast({**USER, "maxProperties": 1}, {"id": 1, "name": "a", "x": 1}) == {"id": 1, "name": "a"}
    assert cast({**USER, "minProperties": 4}, {"id": 1, "name": "a"}) == {"id": 1, "name": "a"}


def test_a_scalar_becomes_the_object_s_default_or_its_required_properties() -> None:
    assert cast(USER, 5) == {"id": 0, "name": ""}
    assert cast({**USER, "default": {"id": 7}}, 5) == {"id": 7}
    assert cast({**USER, "default": {"id": 7}}, {}) == {"id": 0, "name": ""}


def test_an_array_is_taken_for_an_object_with_indices_and_a_length() -> None:
    assert cast(USER, [1, 2]) == {"id": 0, "name": ""}
    named = {"type": "object", "properties": {"0": NUMBER, "length": NUMBER, "other": NUMBER}}
    assert cast(named, [5]) == {"0": 5, "length": 1}
    assert cast({**USER, "additionalProperties": NUMBER}, [5]) == {"id": 0, "name": "", "0": 5, "length": 1}


def test_a_closed_object_with_as_many_keys_as_declared_passes_as_in_typebox() -> None:
    either = {"anyOf": [{}, STRING]}
    schema = {"type": "object", "required": ["a"], "properties": {"a": either}, "additionalProperties": False}
    value = {"b": 1}
    assert cast(schema, value) is value


def test_patterns_beside_properties_keep_the_keys_that_they_match() -> None:
    schema = {**USER, "patternProperties": {"^x_": NUMBER}, "additionalProperties": False}
    fitting = {"id": 1, "name": "a", "x_1": 2}
    assert cast(schema, fitting) is fitting
    assert cast(schema, {"id": 1, "x_1": "2", "y": 3}) == {"id": 1, "name": "", "x_1": 0}


def test_every_key_of_a_record_is_kept_and_cast_whether_it_matches_or_not() -> None:
    schema = {"type": "object", "patternProperties": {"^x_": NUMBER}}
    loose = {"other": "text"}
    assert cast(schema, loose) is loose
    assert cast(schema, {"x_1": 1, "x_2": "2", "other": "text"}) == {"x_1": 1, "x_2": 0, "other": 0}
    assert cast({**schema, "additionalProperties": False}, {"other": 1}) == {"other": 1}
    assert cast({**schema, "additionalProperties": STRING}, {"other": 1}) == {"other": 1}


def test_only_the_first_pattern_of_a_record_counts() -> None:
    schema = {"type": "object", "patternProperties": {"^x_": NUMBER, "^y_": NUMBER}}
    value = {"y_1": "text"}
    assert cast(schema, value) is value


@pytest.mark.parametrize("value", [None, 5, [1]], ids=repr)
def test_what_is_not_an_object_becomes_an_empty_record(value: Any) -> None:
    assert cast({"type": "object", "patternProperties": {".": NUMBER}}, value) == {}


def test_the_size_of_a_record_is_checked_and_not_repaired() -> None:
    schema = {"type": "object", "patternProperties": {".": NUMBER}, "minProperties": 2}
    assert cast(schema, {"a": 1}) == {"a": 1}


def test_an_array_is_padded_with_null_before_its_items_are_cast() -> None:
    assert cast({"type": "array", "items": STRING, "minItems": 3}, ["a"]) == ["a", "", ""]
    assert cast({"type": "array", "items": {"type": ["string", "null"]}, "minItems": 2}, ["a"]) == ["a", None]
    assert cast({"type": "array", "items": {}, "minItems": 2}, []) == [None, None]


def test_an_array_is_cut_to_its_length_and_every_item_is_cast() -> None:
    assert cast({"type": "array", "items": NUMBER, "maxItems": 2}, [1, "2", 3]) == [1, 0]


def test_what_is_not_an_array_becomes_the_default_and_its_items_are_cast() -> None:
    assert cast({"type": "array", "items": NUMBER, "default": ["x", 2]}, "text") == [0, 2]
    assert cast({"type": "array", "items": NUMBER, "minItems": 2}, None) == [0, 0]
    assert cast({"type": "array", "items": NUMBER}, {"0": 1}) == []


def test_a_default_that_is_not_an_array_is_an_error_except_for_a_string_that_is_too_short() -> None:
    for default in (5, {}, None, "abc"):
        with pytest.raises(CastError, match="default of an array"):
            cast({"type": "array", "items": STRING, "default": default}, 5)
    assert cast({"type": "array", "items": STRING, "minItems": 3, "default": "ab"}, 5) == ["a", "b", ""]


def test_duplicate_scalars_are_removed_and_duplicate_objects_are_an_error() -> None:
    unique = {"type": "array", "items": {}, "uniqueItems": True}
    assert cast(unique, [1, 2, 1.0, "1", True, None, None]) == [1, 2, "1", True, None]
    with pytest.raises(CastError, match="cannot be made unique"):
        cast(unique, [{"a": 1}, {"a": 1}])
    with pytest.raises(CastError, match="cannot be made unique"):
        cast({**unique, "minItems": 2}, [1, 1])


def test_an_absent_value_does_not_fail_the_check_after_duplicates_are_removed() -> None:
    item = {"type": "object", "required": ["n", "any"], "properties": {"n": NUMBER, "any": {}}}
    assert cast({"type": "array", "items": item, "uniqueItems": True}, [{"n": 1}]) == [{"n": 1}]


@pytest.mark.parametrize("keyword", [{"uniqueItems": True}, {"contains": {"const": 1}}])
def test_an_array_of_unique_or_certain_items_can_be_made_from_a_default_only(keyword: dict[str, Any]) -> None:
    with pytest.raises(CastError, match="needs a default"):
        cast({"type": "array", "items": NUMBER, **keyword}, None)
    assert cast({"type": "array", "items": NUMBER, "default": [1], **keyword}, None) == [1]


def test_certain_items_are_checked_and_not_repaired_and_one_is_always_wanted() -> None:
    schema = {"type": "array", "items": {"type": ["number", "string"]}, "contains": STRING, "minContains": 0}
    either = {"anyOf": [{"type": "null"}, schema]}
    fitting = [1, "a"]
    assert cast(either, fitting) is fitting
    assert cast(either, [1]) is None
    assert cast(schema, [1]) == [1]
    assert cast({"anyOf": [{"type": "null"}, {**schema, "maxContains": 1}]}, ["a", "b"]) is None
    assert cast({"anyOf": [{"type": "null"}, {"type": "array", "minContains": 1}]}, ["a"]) is None


@pytest.mark.parametrize(
    "closed",
    [
        {"items": [NUMBER, STRING, {}], "additionalItems": False, "minItems": 3, "maxItems": 3},
        {"prefixItems": [NUMBER, STRING, {}], "items": False, "minItems": 3, "maxItems": 3},
    ],
    ids=["draft-07", "2020-12"],
)
def test_a_tuple_gets_exactly_its_items(closed: dict[str, Any]) -> None:
    schema = {"type": "array", **closed}
    assert cast(schema, ["1"]) == [0, "", None]
    assert cast(schema, [1, "a", 3, 4]) == [1, "a", 3]
    assert cast(schema, None) == [0, "", {}]
    assert cast({**schema, "default": "any"}, None) == "any"


@pytest.mark.parametrize("spelling", [{}, {"items": False}], ids=["draft-07", "2020-12"])
def test_an_empty_tuple_is_empty(spelling: dict[str, Any]) -> None:
    schema = {"type": "array", "minItems": 0, "maxItems": 0, **spelling}
    assert cast(schema, [1]) == []
    assert cast({**schema, "default": 5}, None) == 5


def test_a_tuple_that_is_open_accepts_what_json_schema_accepts() -> None:
    schema = {"type": "array", "prefixItems": [NUMBER, NUMBER], "items": STRING}
    for fitting in ([], [1], [1, 2, "a"]):
        assert cast(schema, fitting) is fitting
    assert cast(schema, [1, 2, 3]) == [1, 2]
    assert cast({"type": "array", "prefixItems": [NUMBER], "unevaluatedItems": False}, [1, 2]) == [1]
