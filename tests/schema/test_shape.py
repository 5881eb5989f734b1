from typing import Any

import pytest

from opwire.errors import SchemaError
from opwire.schema.shape import Shapes, json_type, type_names


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "null"), (True, "boolean"), (1, "number"), (1.5, "number"), ("", "string"), ([], "array"), ({}, "object")],
)
def test_values_have_json_types(value: Any, name: str) -> None:
    assert json_type(value) == name


def test_keywords_of_the_wrong_shape_read_as_absent() -> None:
    root: dict[str, Any] = {"properties": 5, "allOf": {"a": 1}, "required": "a", "enum": 5, "type": "string"}
    shapes = Shapes(root)
    assert shapes.conjuncts(root) == (root,)
    assert shapes.defaults(root) == shapes.tags(root) == {}
    assert shapes.required(root) == set()
    assert not shapes.declares(root)
    assert type_names(root) == ["string"]
    assert type_names({}) == type_names({"type": 5}) == []


def test_what_always_applies_is_found_through_references_and_all_of() -> None:
    root = {
        "$ref": "#/$defs/a",
        "allOf": [{"title": "one"}, True],
        "$defs": {"a": {"title": "a", "allOf": [{"$ref": "#/$defs/b"}]}, "b": {"title": "b"}},
    }
    assert [node.get("title") for node in Shapes(root).conjuncts(root)] == [None, "a", None, "b", "one"]


def test_a_circle_of_references_is_walked_once() -> None:
    root = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert len(Shapes(root).conjuncts(root)) == 3


def test_a_reference_out_of_the_document_makes_a_schema_opaque() -> None:
    root = {"properties": {"in": {"type": "string"}, "out": {"allOf": [{"$ref": "https://example.com/x"}]}}}
    shapes = Shapes(root)
    assert not shapes.is_opaque(root["properties"]["in"])
    assert shapes.is_opaque(root["properties"]["out"])


def test_older_recursive_references_mean_the_root() -> None:
    root = {"properties": {"next": {"$recursiveRef": "#"}}}
    assert Shapes(root).conjuncts(root["properties"]["next"])[-1] is root


def test_a_dynamic_reference_prefers_the_roots_anchor() -> None:
    inner = {"$id": "https://example.com/inner", "$dynamicAnchor": "n"}
    root = {"$dynamicAnchor": "n", "properties": {"next": {"$dynamicRef": "#n"}}, "$defs": {"inner": inner}}
    assert Shapes(root).conjuncts(root["properties"]["next"])[-1] is root


def test_a_dynamic_reference_to_an_ordinary_anchor_is_an_ordinary_reference() -> None:
    root = {"properties": {"next": {"$dynamicRef": "#plain"}}, "$defs": {"p": {"$anchor": "plain"}}}
    assert Shapes(root).conjuncts(root["properties"]["next"])[-1] is root["$defs"]["p"]


def test_a_dynamic_reference_with_several_targets_is_refused() -> None:
    root = {"$dynamicRef": "#n", "$defs": {name: {"$dynamicAnchor": "n"} for name in "ab"}}
    with pytest.raises(SchemaError, match="several targets"):
        Shapes(root).conjuncts(root)


def test_the_default_nearest_to_the_property_counts() -> None:
    root: dict[str, Any] = {
        "properties": {"a": {"$ref": "#/$defs/d", "default": 1}, "b": {"$ref": "#/$defs/d"}, "c": {}, "d": True},
        "$defs": {"d": {"default": None}},
    }
    defaults = Shapes(root).defaults(root)
    assert {name: default for name, (_, default) in defaults.items()} == {"a": 1, "b": None}


def test_types_meet_through_all_of_const_and_enum() -> None:
    shapes = Shapes(True)
    both = {"allOf": [{"type": ["integer", "string"]}, {"type": ["number", "null"]}]}
    words = {"enum": ["a", None]}
    constant = {"const": {"a": 1}}
    assert shapes.types(both) == {"number"}
    assert shapes.types(words) == {"string", "null"}
    assert shapes.types(constant) == {"object"}
    assert shapes.types(False) == set()
    assert len(shapes.types(True)) == 6


def test_tags_are_the_scalars_that_properties_are_pinned_to() -> None:
    node = {"properties": {"t": {"const": True}, "u": {"enum": [1, "x"]}, "v": {"const": {}}, "w": {"type": "string"}}}
    assert Shapes(node).tags(node) == {"t": {("boolean", True)}, "u": {("number", 1), ("string", "x")}}
    assert Shapes(True).tags(True) == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}},
        {"patternProperties": {"a": {}}},
        {"anyOf": [True, {"properties": {"a": {}}}]},
        {"if": {}, "then": {"oneOf": [{"properties": {"a": {}}}]}},
        {"dependentSchemas": {"b": {"properties": {"a": {}}}}},
    ],
)
def test_a_property_named_in_any_branch_is_declared(schema: Any) -> None:
    assert Shapes(schema).declares(schema)


@pytest.mark.parametrize("schema", [True, {}, {"properties": {}}, {"required": ["a"]}, {"anyOf": [{"$ref": "#"}]}])
def test_nothing_is_declared_without_a_name(schema: Any) -> None:
    assert not Shapes(schema).declares(schema)


TAGGED = [{"properties": {"t": {"const": tag}}, "required": ["t"], "type": "object"} for tag in "ab"]


def _numbered(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"tag": {"const": number}}, "required": ["tag"]}


@pytest.mark.parametrize(
    ("schemas", "exclusive"),
    [
        ([{"type": "object"}, {"type": "null"}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"type": "integer"}, {"type": "string"}, True], False),
        (TAGGED, True),
        ([{**TAGGED[0], "required": []}, TAGGED[1]], False),
        ([TAGGED[0], TAGGED[0]], False),
        ([TAGGED[0], {**TAGGED[1], "type": ["object", "null"]}], True),
        (list(map(_numbered, range(5_000))), True),  # one tag tells all of them apart
        ([*map(_numbered, range(5_000)), _numbered(7)], False),
        ([False, TAGGED[0], False], True),
        ([], True),
        ([{**TAGGED[0], "type": ["array", "object"]}, {**TAGGED[1], "type": ["array", "object"]}], False),
    ],
)
def test_variants_exclude_each_other_by_type_or_by_a_tag_that_both_require(schemas: list[Any], exclusive: bool) -> None:
    assert Shapes(True).are_exclusive(schemas) is exclusive
