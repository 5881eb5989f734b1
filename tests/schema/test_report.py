"""What is wrong with a value: all of it for a small one, the first places of a large one, in bounded work."""

from time import process_time
from typing import Any

import pytest

from opwire import Schema
from opwire.schema import Problem

FILLER = ["x"] * 20_000  # makes any value large
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "filler": {"type": "array"},
        "age": {"type": ["integer", "null"]},
    },
    "required": ["name"],
    "additionalProperties": False,
}
KINDS = {
    "oneOf": [
        {"properties": {"kind": {"const": kind}, "n": {"type": "integer"}, "filler": {}}, "required": ["kind"]}
        for kind in ("a", "b")
    ]
}


def problems(schema: Any, value: Any) -> list[tuple[str, str]]:
    return [(problem.path, problem.message) for problem in Schema(schema).problems(value)]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (PERSON, {"name": "x"}, [("/name", "the value is shorter than 2 characters")]),
        (
            PERSON,
            {"age": "x"},
            [("", '"name" is a required property'), ("/age", 'the value is not of type "integer", "null"')],
        ),
        (
            PERSON,
            {"name": "Ann", "b": 1, "c": 2},
            [("", "Additional properties are not allowed ('b', 'c' were unexpected)")],
        ),
        (KINDS, {"kind": "a", "n": "x"}, [("/n", 'the value is not of type "integer"')]),
        (KINDS, {"kind": "c"}, [("", "the value does not fit exactly one of the variants")]),
        ({"maxProperties": 1}, {"a": 1}, [("", "the value has more than 1 properties")]),
        ({"propertyNames": {"maxLength": 6}}, {"too long": 1}, [("", "the name of a property is not allowed")]),
        ({"not": {"required": ["filler"]}}, {}, [("", "the value is one of those that are not allowed")]),
        ({"type": "array"}, {}, [("", 'the value is not of type "array"')]),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}, {}, [("", 'the value is not of type "null"')]),
        (
            {"properties": {"a~b": {"maximum": 1}}},
            {"a~b": 2},
            [("/a~0b", "the value is greater than the maximum of 1")],
        ),
        (
            {"patternProperties": {"^n": {"type": "integer"}}},
            {"n1": ""},
            [("/n1", 'the value is not of type "integer"')],
        ),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, [("", '"b" is a required property')]),
    ],
)
def test_the_places_of_a_large_object_that_do_not_fit_are_named(schema: Any, value: Any, expected: Any) -> None:
    assert problems(schema, {**value, "filler": FILLER}) == expected


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"items": {"type": "string"}}, [*FILLER, 1], [("/20000", 'the value is not of type "string"')]),
        ({"prefixItems": [{"type": "null"}]}, FILLER, [("/0", 'the value is not of type "null"')]),
        ({"maxItems": 3, "minItems": 1}, FILLER, [("", "the value has more than 3 items")]),
        ({"uniqueItems": True, "items": {"type": "string"}}, FILLER, [("", "the value has items that are not unique")]),
        (
            {"contains": {"const": 5}},
            FILLER,
            [("", "too few or too many items match `contains`")],
        ),
        ({"items": {"items": {"const": "x"}}}, [FILLER, ["y"]], [("/1/0", "the value is not the one that is allowed")]),
        ({"maxLength": 3}, "x" * 2_000_000, [("", "the value is longer than 3 characters")]),
    ],
)
def test_the_places_of_a_large_array_or_text_that_do_not_fit_are_named(schema: Any, value: Any, expected: Any) -> None:
    assert problems(schema, value) == expected


def test_a_small_value_gets_the_same_problems_as_before_with_a_union_told_by_its_variant() -> None:
    schema = {"items": KINDS}
    assert problems(schema, [{"kind": "a", "n": "x"}, {"kind": "b", "n": 1}]) == [
        ("/0/n", 'the value is not of type "integer"')
    ]


@pytest.mark.parametrize(
    ("branch", "value", "expected"),
    [
        ({"enum": ["a", "b"]}, "c", ("", 'the value is not one of "a" or "b"')),
        ({"type": "array", "items": {"type": "integer"}}, "x", ("", 'the value is not of type "array"')),
        ({"properties": {"a": {"type": "null"}}}, {"a": 1}, ("/a", 'the value is not of type "null"')),
        ({"type": "null"}, 1, ("", "the value is not valid under any of the schemas listed in the 'anyOf' keyword")),
    ],
)
def test_an_invalid_value_that_may_be_null_gets_the_problems_of_the_other_branch(
    branch: Any, value: Any, expected: Any
) -> None:
    assert problems({"anyOf": [branch, {"type": "null"}]}, value) == [expected]


def test_the_work_of_a_report_does_not_grow_with_the_number_of_wrong_items() -> None:
    schema = Schema({"type": "object", "properties": {"l": {"items": {"type": "string"}}}})
    assert len(schema.problems({"l": [1] * 2_000_000})) == 100
    began = process_time()
    schema.problems({"l": [1] * 2_000_000})
    assert process_time() - began < 10, "every error of such a value takes 48 s and 3.6 GB"


def test_a_report_on_nested_wrong_values_ends_and_names_the_last_place_that_is_known() -> None:
    node = {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}, {"type": "integer"}]}
    schema = Schema({"$ref": "#/$defs/n", "$defs": {"n": node}})
    value: Any = FILLER
    for _ in range(150):
        value = {"a": value}
    (problem,) = schema.problems(value)
    assert problem.path.startswith("/a/a")


def test_branches_of_unions_inside_each_other_are_not_multiplied_in_a_report() -> None:
    variants = [
        {"properties": {"children": {"items": {"$ref": "#"}}, "type": {"const": f"k{n}"}}, "required": ["type"]}
        for n in range(5)
    ]
    value: Any = {"type": "none"}
    for _ in range(40):
        value = {"type": "k0", "children": [value]}
    (problem,) = Schema({"oneOf": variants}).problems(value)
    assert problem == Problem(f"{'/children/0' * 27}/ch…", "the value does not fit exactly one of the variants")


def test_a_large_value_is_not_echoed() -> None:
    for problem in Schema({"items": {"enum": ["a", "b"]}}).problems(["hunter2" * 10] * 20_000):
        assert "hunter2" not in problem.message
