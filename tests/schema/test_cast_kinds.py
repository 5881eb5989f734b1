"""The rules of `Value.Cast` for scalars, references, unions and intersections."""

from typing import Any

import pytest

from opwire.errors import CastError
from opwire.schema.cast import Caster


def cast(schema: Any, value: Any) -> Any:
    return Caster(schema).cast(value)


@pytest.mark.parametrize(
    ("schema", "created"),
    [
        ({"type": "string"}, ""),
        ({"type": "string", "minLength": 3}, "   "),
        ({"type": "number"}, 0),
        ({"type": "number", "minimum": 2.5}, 2.5),
        ({"type": "integer", "maximum": -1}, 0),  # not valid, and yet that is the answer
        ({"type": "integer", "exclusiveMinimum": 3}, 0),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"const": "on"}, "on"),
        ({"enum": ["on", "off"]}, "on"),
    ],
    ids=str,
)
def test_what_is_unusable_becomes_the_empty_value_of_its_kind(schema: dict[str, Any], created: Any) -> None:
    result = cast(schema, {"unusable": True})
    assert result == created
    assert type(result) is type(created)


def test_nothing_is_converted() -> None:
    assert cast({"type": "number"}, "5") == 0
    assert cast({"type": "string"}, 5) == ""
    assert cast({"type": "boolean"}, 1) is False
    assert cast({"type": "integer"}, 1.0) == 1.0


@pytest.mark.parametrize("type", ["string", "number", "boolean", "object"])
def test_a_default_is_used_unchanged_even_where_it_is_wrong(type: str) -> None:
    assert cast({"type": type, "default": [None]}, ()) == [None]


@pytest.mark.parametrize("keyword", [{"pattern": "^a"}, {"format": "email"}, {"format": "color"}])
def test_a_string_with_a_pattern_or_a_format_can_be_made_from_a_default_only(keyword: dict[str, Any]) -> None:
    with pytest.raises(CastError, match="needs a default"):
        cast({"type": "string", **keyword}, 5)
    assert cast({"type": "string", "default": "", **keyword}, 5) == ""


def test_a_negation_needs_a_default_and_what_nothing_satisfies_is_always_an_error() -> None:
    assert cast({"not": {"type": "string"}}, 5) == 5
    assert cast({"not": {"type": "string"}, "default": 7}, "x") == 7
    with pytest.raises(CastError, match="needs a default"):
        cast({"not": {"type": "string"}}, "x")
    for never in ({"not": {}}, {"not": {}, "default": 7}, False):
        with pytest.raises(CastError, match="no value satisfies"):
            cast(never, "x")


def test_what_accepts_everything_accepts_an_absent_property_too_and_ignores_its_default() -> None:
    schema = {
        "type": "object",
        "required": ["n", "any", "not", "either"],
        "properties": {
            "n": {"type": "number"},
            "any": {"default": 1},
            "not": {"not": {"type": "string"}, "default": 2},
            "either": {"anyOf": [{}, {"type": "string"}], "default": 3},
        },
    }
    assert cast(schema, {}) == {"n": 0}


def test_lengths_are_counted_in_code_units() -> None:
    assert cast({"type": "string", "maxLength": 1}, "😀") == ""
    assert cast({"type": "string", "minLength": 2}, "😀") == "😀"


def test_references_are_followed_by_pointer_by_name_and_by_anchor() -> None:
    point = {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}
    for ref, name in (("#/$defs/P", {}), ("Point", {"$id": "Point"}), ("#point", {"$anchor": "point"})):
        schema = {"type": "array", "items": {"$ref": ref}, "$defs": {"P": {**point, **name}}}
        assert cast(schema, [{}, {"x": 1}]) == [{"x": 0}, {"x": 1}]


def test_a_recursive_schema_is_cast_at_every_depth() -> None:
    schema = {
        "$id": "Node",
        "type": "object",
        "required": ["id", "children"],
        "properties": {"id": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "Node"}}},
    }
    value = {"id": "a", "children": [{"id": "b"}, {"id": 3, "children": [None]}]}
    nested = [{"id": "b", "children": []}, {"id": "", "children": [{"id": "", "children": []}]}]
    assert cast(schema, value) == {"id": "a", "children": nested}


def test_recursion_without_a_way_out_is_an_error_and_a_default_is_a_way_out() -> None:
    def endless(**beside: Any) -> dict[str, Any]:
        properties = {"next": {"$ref": "#", **beside}}
        return {"type": "object", "required": ["next"], "properties": properties}

    with pytest.raises(CastError, match="requires itself without end"):
        cast(endless(), {})
    assert cast(endless(default=None), 5) == {"next": None}


def test_a_reference_that_points_at_nothing_is_an_error_when_it_is_needed() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/absent"}}}
    assert cast(schema, {}) == {}
    with pytest.raises(CastError, match="points at nothing"):
        cast(schema, {"a": 1})


CIRCLE = {
    "type": "object",
    "required": ["kind", "radius"],
    "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
}
SQUARE = {
    "type": "object",
    "required": ["kind", "side", "color"],
    "properties": {"kind": {"const": "square"}, "side": {"type": "number"}, "color": {"type": "string"}},
}


def test_a_constant_decides_for_a_variant_against_many_fitting_properties() -> None:
    value = {"kind": "circle", "side": 1, "color": "red"}
    assert cast({"anyOf": [SQUARE, CIRCLE]}, value) == {"kind": "circle", "radius": 0}


def test_without_a_constant_the_variant_with_the_most_fitting_properties_wins() -> None:
    assert cast({"anyOf": [CIRCLE, SQUARE]}, {"side": 1, "color": "red"}) == {
        "kind": "square",
        "side": 1,
        "color": "red",
    }


def test_a_key_that_is_present_counts_a_little_even_if_its_value_is_wrong() -> None:
    assert cast({"anyOf": [CIRCLE, SQUARE]}, {"side": None}) == {"kind": "square", "side": 0, "color": ""}


def test_among_equals_the_first_variant_wins() -> None:
    assert cast({"anyOf": [{"type": "string"}, {"type": "number"}]}, None) == ""
    assert cast({"anyOf": [{"type": "number"}, {"type": "string"}]}, None) == 0
    assert cast({"anyOf": [{"type": "array", "items": {"type": "number"}}, SQUARE]}, 5) == []


def test_arrays_records_and_intersections_earn_nothing_while_they_do_not_fit() -> None:
    arrays = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "number"}}]}
    assert cast(arrays, [1, "2"]) is None
    both = {"allOf": [CIRCLE, {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}]}
    assert cast({"anyOf": [{"type": "null"}, both]}, {"kind": "circle", "radius": 1}) is None


def test_a_nested_union_scores_as_its_best_variant_also_behind_a_reference() -> None:
    schema = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Shape"}], "$defs": {"Shape": {"anyOf": [CIRCLE, SQUARE]}}}
    assert cast(schema, {"kind": "square"}) == {"kind": "square", "side": 0, "color": ""}


def test_the_default_of_a_union_replaces_what_does_not_fit() -> None:
    assert cast({"anyOf": [CIRCLE, SQUARE], "default": None}, {"kind": "circle"}) is None


LEFT = {"type": "object", "required": ["a"], "properties": {"a": {"type": "number"}, "extra": {"type": "string"}}}
RIGHT = {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}


def test_a_missing_property_is_added_and_optional_ones_are_lost() -> None:
    """A failing intersection gives the created value, holding the given values if all fit."""
    assert cast({"allOf": [LEFT, RIGHT]}, {"a": 5, "extra": "x"}) == {"a": 5, "b": ""}


def test_one_wrong_scalar_resets_every_property() -> None:
    assert cast({"allOf": [LEFT, RIGHT]}, {"a": "wrong", "b": "kept?"}) == {"a": 0, "b": ""}
    assert cast({"allOf": [LEFT, RIGHT]}, {"a": {}, "b": "kept"}) == {"a": 0, "b": "kept"}


def test_an_array_among_the_properties_resets_every_property() -> None:
    tags = {"type": "object", "required": ["tags"], "properties": {"tags": {"type": "array", "items": {}}}}
    assert cast({"allOf": [LEFT, tags]}, {"a": 5, "tags": [1], "extra": 6}) == {"a": 0, "tags": []}


def test_parts_that_contradict_each_other_need_a_default() -> None:
    parts = [{"type": "number"}, {"type": "string"}]
    with pytest.raises(CastError, match="contradict"):
        cast({"allOf": parts}, 5)
    assert cast({"allOf": parts, "default": "d"}, 5) == "d"


def test_unevaluated_properties_are_checked_against_the_names_that_the_parts_declare() -> None:
    closed = {"allOf": [LEFT, RIGHT], "unevaluatedProperties": False}
    fitting = {"a": 5, "b": "x", "extra": "y"}
    assert cast(closed, fitting) is fitting
    assert cast(closed, {**fitting, "more": 1}) == {"a": 5, "b": "x"}
    open_to_numbers = {**closed, "unevaluatedProperties": {"type": "number"}}
    more = {**fitting, "more": 1}
    assert cast(open_to_numbers, more) is more
    assert cast(open_to_numbers, {**fitting, "more": "1"}) == {"a": 5, "b": "x"}
    with pytest.raises(CastError, match="on null"):
        cast(closed, None)


def test_unevaluated_properties_see_patterns_shared_keys_and_pointers() -> None:
    variants = [
        {"type": "object", "properties": {"both": {}, "one": {}}},
        {"type": "object", "properties": {"both": {}, "other": {}}},
    ]
    parts = [{"$ref": "#/$defs/L"}, {"anyOf": variants}, {"type": "object", "patternProperties": {"^x_.*$": {}}}]
    schema = {"allOf": parts, "unevaluatedProperties": False, "$defs": {"L": LEFT}}
    fitting = {"a": 5, "extra": "", "both": 1, "x_1": 2}
    assert cast(schema, fitting) is fitting
    assert cast(schema, {"a": 5, "one": 1}) == {"a": 5}


def test_parts_that_are_not_objects_replace_each_other() -> None:
    assert cast({"allOf": [{}, {"type": "boolean"}]}, 5) is False
    assert cast({"allOf": [{"type": "object"}, {"default": "ab"}, {"type": "object"}]}, 5) == {"0": "a", "1": "b"}
