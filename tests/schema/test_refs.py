"""References: found inside the document, by pointer, anchor or id, and nowhere else."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import SchemaError
from opwire.schema import Dialect, Schema
from opwire.schema.dialect import References, escaped, may_recurse

ROOT: dict[str, Any] = {
    "$id": "https://example.com/root.json",
    "$defs": {
        "name": {"type": "string"},
        "a/b~c%d é": {"title": "odd"},
        "anchored": {"$anchor": "here", "title": "anchored"},
        "dynamic": {"$dynamicAnchor": "there", "title": "dynamic"},
        "Person": {"$id": "Person", "type": "object", "properties": {"name": {"title": "inner"}}},
        "list": [{"title": "zero"}, {"title": "one"}],
        "never": False,
        "text": "not a schema",
    },
}


@pytest.mark.parametrize(
    ("ref", "target"),
    [
        ("#", ROOT),
        ("", ROOT),
        ("https://example.com/root.json", ROOT),
        ("https://example.com/root.json#", ROOT),
        ("#/$defs/name", {"type": "string"}),
        ("https://example.com/root.json#/$defs/name", {"type": "string"}),
        ("#/$defs/a~1b~0c%25d%20%C3%A9", {"title": "odd"}),
        ("#/$defs/list/1", {"title": "one"}),
        ("#/$defs/never", False),
        ("#here", ROOT["$defs"]["anchored"]),
        ("#there", ROOT["$defs"]["dynamic"]),
        ("Person", ROOT["$defs"]["Person"]),
        ("Person#/properties/name", {"title": "inner"}),
    ],
)
def test_a_reference_leads_to_its_schema(ref: str, target: Any) -> None:
    assert References(ROOT).resolve(ref) is target or References(ROOT).resolve(ref) == target


@pytest.mark.parametrize(
    "ref",
    [
        "#/$defs/missing",
        "#/$defs/list/2",
        "#/$defs/list/x",
        "#/$defs/name/type/deeper",
        "#nowhere",
        "Nobody",
        "Person#/properties/age",
        "https://example.com/other.json",
        "https://example.com/other.json#/$defs/name",
        "file:///etc/hostname",
    ],
)
def test_a_reference_that_leads_nowhere_is_a_schema_error_that_names_it(ref: str) -> None:
    with pytest.raises(SchemaError) as caught:
        References(ROOT).resolve(ref)
    assert repr(ref) in str(caught.value)


def test_a_reference_to_something_other_than_a_schema_is_a_schema_error() -> None:
    for ref in ("#/$defs/text", "#/$defs/list"):
        with pytest.raises(SchemaError, match="not a schema"):
            References(ROOT).resolve(ref)


def test_a_boolean_schema_refers_to_itself_only() -> None:
    assert References(True).resolve("#") is True
    with pytest.raises(SchemaError):
        References(True).resolve("#/x")
    with pytest.raises(SchemaError):
        References(False).resolve("x")


names = st.text(st.sampled_from("ab/~%#é 01"), max_size=5)


@given(names, names)
def test_any_name_can_be_pointed_at_and_both_ways_of_resolving_agree(name: str, other: str) -> None:
    schema: dict[str, Any] = {"$defs": {name: {"const": 1}, f"{other}!": {"const": 2}}}
    escaped = name.replace("~", "~0").replace("/", "~1").replace("%", "%25").replace("#", "%23").replace(" ", "%20")
    ref = f"#/$defs/{escaped}"
    assert References(schema).resolve(ref) == {"const": 1}
    assert Schema({"$ref": ref, **schema}).is_valid(1)
    assert not Schema({"$ref": ref, **schema}).is_valid(2)


@pytest.mark.parametrize("name", ["Page«User»", "Größe", "my type", "List[int]", "a|b", "{x}"])
@pytest.mark.parametrize("dialect", ["2020-12", "draft-07", "openapi-3.0"])
def test_a_reference_with_characters_that_are_invalid_in_a_uri_is_followed(name: str, dialect: Dialect) -> None:
    definitions = {name: {"type": "integer"}}
    schema = Schema({"items": {"$ref": f"#/definitions/{name}"}, "definitions": definitions}, dialect=dialect)
    assert schema.is_valid([1])
    assert not schema.is_valid(["x"])
    assert schema.json == {"items": {"$ref": f"#/definitions/{name}"}, "definitions": definitions}
    assert schema.fit([1.0]).value == [1]


@pytest.mark.parametrize("ref", ["https://example.com/item.json", "item.json", "/item.json", "#item"])
def test_a_schema_is_checked_through_references_relative_to_its_ids(ref: str) -> None:
    schema = Schema(
        {
            "$id": "https://example.com/root.json",
            "$defs": {"item": {"$id": "item.json", "type": "integer"}, "other": {"$anchor": "item", "type": "integer"}},
            "$ref": ref,
        }
    )
    assert schema.is_valid(1)
    assert not schema.is_valid("x")


def test_the_meta_schemas_are_there_without_fetching_them() -> None:
    schema = Schema({"$ref": "https://json-schema.org/draft/2020-12/schema"})
    assert schema.is_valid({"type": "string"})
    assert not schema.is_valid({"type": "text"})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, False),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "integer"}}}, False),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {}, "c": {"$ref": "#/$defs/c"}}}, False),
        ({"default": {"$ref": "#"}, "const": {"$ref": "#"}}, False),
        ({"items": {"$ref": "#"}}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}}, True),
        ({"$id": "R0", "properties": {"next": {"$ref": "R0"}}}, True),
        ({"items": {"$dynamicRef": "#node"}}, True),
        ({"properties": {"default": {"$ref": "#"}}}, True),
        ({"patternProperties": {"enum": {"$ref": "#"}}}, True),
        ({"properties": {"$defs": {"items": {"$ref": "#"}}}}, True),
        ({"default": {"$ref": "#"}}, False),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, True),
    ],
)
def test_a_schema_may_recurse_if_a_reference_leads_back_or_out_of_sight(schema: Any, expected: bool) -> None:
    assert may_recurse(schema) is expected


@given(st.text(max_size=8))
def test_an_escaped_step_is_found_again_by_a_pointer(name: str) -> None:
    root = {"$defs": {name: {"title": "here"}}}
    assert References(root).resolve(f"#/$defs/{quote(escaped(name))}") == {"title": "here"}
