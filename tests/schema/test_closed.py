import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.errors import SchemaError
from opwire.schema.fit import Fitter
from opwire.schema.shape import Shapes, allows_extras, closed_document, plain_document
from opwire.schema.validator import Checks, compile_validator
from tests.properties import examples
from tests.schema.strategies import schemas, values, wrapped


def closed(schema: Any, *, strip: bool = True) -> Any:
    return closed_document(Shapes(schema), schema, strip=strip, fills=lambda _schema, _default: True)


def accepts(schema: Any, value: Any, *, strip: bool = True) -> bool:
    return compile_validator(closed(schema, strip=strip)).is_valid(value)


@settings(max_examples=examples(150))
@given(schemas, values, st.booleans())
def test_the_closed_schema_is_never_more_lenient_than_the_plain_one(schema: Any, value: Any, strip: bool) -> None:
    try:
        plain = compile_validator(schema)
    except SchemaError:
        return
    if Fitter(Checks(schema)).conformity(strip=strip)(value):
        assert plain.is_valid(value)


@settings(max_examples=examples(150))
@given(schemas, values, st.booleans())
def test_a_value_that_conforms_is_left_alone_where_it_is_walked(schema: Any, value: Any, strip: bool) -> None:
    if Fitter(Checks(schema)).conformity(strip=strip)(value):
        fitted = Fitter(Checks(wrapped(schema))).fit({"inside": value}, strip=strip)
        assert fitted.value["inside"] is value


@settings(max_examples=examples(150))
@given(schemas, values)
def test_a_plain_document_says_the_same_as_the_schema(schema: Any, value: Any) -> None:
    try:
        original = compile_validator(schema)
        written = compile_validator(plain_document(Shapes(schema), schema)[0])
    except SchemaError:
        return
    assert written.is_valid(value) == original.is_valid(value)


def test_a_document_holds_only_what_is_reachable() -> None:
    root = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}, "b": {"type": "integer"}}, "x-more": {"y": 1}}
    assert plain_document(Shapes(root), root)[0] == {"$ref": "#/$defs/0", "$defs": {"0": {"type": "string"}}}


def test_booleans_are_documents_already() -> None:
    assert plain_document(Shapes(True), True)[0] is True
    assert closed(False) is False


def test_one_schema_alone_is_closed_by_additional_properties() -> None:
    assert closed({"properties": {"a": {"type": "string"}}}) == {
        "properties": {"a": {"type": "string"}},
        "additionalProperties": False,
        "$defs": {},
    }


def test_several_schemas_together_are_closed_by_unevaluated_properties() -> None:
    document = closed({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]})
    assert document["unevaluatedProperties"] is False
    assert [set(part) for part in document["allOf"]] == [{"properties"}, {"properties"}]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "unevaluatedProperties": {"type": "string"}},
        {"allOf": [{"properties": {"a": {}}}, {"additionalProperties": {}}]},
        {"properties": {"a": {}}, "$ref": "https://json-schema.org/draft/2020-12/schema"},
    ],
)
def test_free_form_and_open_objects_are_not_closed(schema: Any) -> None:
    assert accepts(schema, {"z": "extra"})


def test_a_reference_hands_the_closing_on() -> None:
    document = closed({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": {}}}}})
    assert "unevaluatedProperties" not in document
    assert document["$defs"]["0"]["additionalProperties"] is False


def test_the_same_part_is_closed_in_one_place_and_open_in_another() -> None:
    schema = {
        "properties": {
            "alone": {"$ref": "#/$defs/a"},
            "more": {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"b": {}}},
        },
        "$defs": {"a": {"properties": {"a": {}}}},
    }
    assert accepts(schema, {"alone": {"a": 1}, "more": {"a": 1, "b": 2}})
    assert not accepts(schema, {"alone": {"a": 1, "b": 2}})
    assert not accepts(schema, {"more": {"a": 1, "z": 2}})


def test_properties_with_a_default_are_required() -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {}}, "required": ["b"]}
    assert closed(schema, strip=False)["required"] == ["a", "b"]
    assert closed(schema, strip=False).get("additionalProperties") is None


def test_an_object_is_closed_by_its_declared_and_required_properties() -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {}}, "required": ["b", "c"]}
    assert closed(schema) == {
        "properties": {"a": {}, "b": {}, "c": True},
        "additionalProperties": False,
        "required": ["a", "b", "c"],
        "$defs": {},
    }


names = st.sets(st.sampled_from("abcd"))


@given(
    names, names, names, st.sampled_from([{}, {"minProperties": 3}, {"patternProperties": {"^d": {}}}]), st.booleans()
)
def test_a_closed_object_has_the_required_properties_and_no_undeclared_ones(
    declared: set[str], required: set[str], present: set[str], more: dict[str, Any], forbids: bool
) -> None:
    schema = {"properties": {name: {} for name in declared}, "required": sorted(required), **more}
    extras = {"additionalProperties": False} if forbids else {}
    allowed = declared | ({"d"} if "patternProperties" in more else set())
    is_closed = bool(allowed) or forbids
    allowed |= set() if forbids else required
    is_valid = required <= present and len(present) >= more.get("minProperties", 0)
    conforms = is_valid and (present <= allowed or not is_closed)
    assert accepts({**schema, **extras}, dict.fromkeys(present, 1)) is conforms


def test_an_undeclared_required_name_is_accepted() -> None:
    assert accepts({"properties": {"a": {}}, "required": ["b"]}, {"b": 1})
    assert not accepts({"properties": {"a": {}}, "required": ["b"], "additionalProperties": False}, {"b": 1})


@pytest.mark.parametrize(
    ("schema", "whole_float"),
    [
        ({"type": "integer"}, False),
        ({"type": ["integer", "null"]}, False),
        ({"type": ["integer", "number"]}, True),
        ({"type": "number"}, True),
        ({"$ref": "#/$defs/n", "type": "integer", "$defs": {"n": {"minimum": 1}}}, False),
        ({"not": {"type": "string"}}, True),
        ({"if": {"type": "integer"}, "then": {"minimum": 1}}, True),
    ],
)
def test_integers_have_to_be_written_as_such(schema: Any, whole_float: bool) -> None:
    assert accepts(schema, 5)
    assert accepts(schema, 5.0) is whole_float


OVERLAPPING = {"anyOf": [{"properties": {"a": {"default": 1}}}, {"properties": {"b": {}}, "required": ["b"]}]}


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ({"a": 1}, True),
        ({"b": 1}, False),  # matches the first one too, which lacks its default
        ({"a": 1, "b": 1}, True),
        ({"a": 1, "z": 1}, False),
        ({"a": 1, "b": 1, "z": 1}, False),
    ],
)
def test_each_variant_that_a_value_matches_has_to_be_content(value: Any, accepted: bool) -> None:
    assert accepts(OVERLAPPING, value) is accepted


def test_tightening_never_turns_two_matches_of_one_of_into_one() -> None:
    schema = {
        "oneOf": [{"properties": {"o": {"properties": {"a": {}}}}}, {"properties": {"o": {"properties": {"b": {}}}}}]
    }
    assert not compile_validator(schema).is_valid({"o": {"a": 1}})
    assert not accepts(schema, {"o": {"a": 1}})


def test_overlapping_unions_in_each_other_do_not_explode() -> None:
    schema: dict[str, Any] = {"properties": {"leaf": {"default": 1}}}
    for _ in range(25):
        others = [{"properties": {name: {}}, "required": [name]} for name in "abc"]
        schema = {"anyOf": [{"properties": {"deeper": schema}, "required": ["deeper"]}, *others]}
    assert len(closed(schema)["$defs"]) < 500


def test_variants_of_leaves_stay_as_they_are() -> None:
    leaves = [{"type": "string", "minLength": 2}, {"type": "string", "pattern": "^a"}]
    assert closed({"anyOf": leaves}) == {"anyOf": leaves, "$defs": {}}


def test_a_part_with_references_relative_to_itself_is_refused() -> None:
    part = {"$id": "https://example.com/part", "allOf": [{"items": {"$ref": "#/$defs/x"}}], "$defs": {"x": {}}}
    root = {"properties": {"p": part}}
    with pytest.raises(SchemaError, match="relative to itself"):
        closed(root)


def test_a_part_that_is_only_named_by_id_is_followed() -> None:
    root = {
        "properties": {"p": {"$ref": "Node"}},
        "$defs": {"n": {"$id": "Node", "properties": {"next": {"$ref": "Node"}}}},
    }
    assert accepts(root, {"p": {"next": {"next": {}}}})
    assert not accepts(root, {"p": {"next": {"z": {}}}})


def test_a_reference_to_a_boolean_is_kept() -> None:
    root = {"$ref": "#/$defs/never", "$defs": {"never": False}}
    assert not accepts(root, 1)


def test_two_references_of_one_schema_both_count() -> None:
    root = {
        "$ref": "#/$defs/a",
        "$dynamicRef": "#b",
        "$defs": {"a": {"minimum": 1}, "b": {"$anchor": "b", "maximum": 2}},
    }
    assert [accepts(root, value) for value in (0, 1, 2, 3)] == [False, True, True, False]


def test_dependencies_of_older_drafts_keep_their_lists() -> None:
    root = {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}
    assert plain_document(Shapes(root), root)[0] == {**root, "$defs": {}}


@pytest.mark.parametrize(
    ("node", "allowed"),
    [
        ({}, False),
        ({"additionalProperties": False}, False),
        ({"additionalProperties": {}}, True),
        ({"unevaluatedProperties": True}, True),
    ],
)
def test_extras_are_allowed_only_where_it_is_said(node: Any, allowed: bool) -> None:
    assert allows_extras(node) is allowed


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_the_closed_schema_of_a_union_grows_with_the_number_of_its_variants_and_not_with_its_square(
    keyword: str,
) -> None:
    def size(count: int) -> int:
        variants = [{"properties": {f"p{i}": {"type": "string"}}, "required": [f"p{i}"]} for i in range(count)]
        return len(json.dumps(closed({"type": "object", keyword: variants})))

    assert size(400) < 2.2 * size(200)
