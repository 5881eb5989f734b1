"""Input schemas in the subsets that providers accept, and strict ones."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.agents.providers import (
    ANTHROPIC_STRICT,
    GEMINI,
    OPENAI_STRICT,
    SchemaRules,
    UnsupportedSchemaError,
    provider_schema,
    without_nulls,
)
from opwire.agents.tools import input_schema
from opwire.openapi.client import from_openapi
from opwire.schema import Schema
from opwire.schema.dialect import References
from tests.properties import is_thorough

RULES = pytest.mark.parametrize(
    "rules", [OPENAI_STRICT, ANTHROPIC_STRICT, GEMINI], ids=["openai", "anthropic", "gemini"]
)


def schemas_in(schema: Any) -> list[dict[str, Any]]:
    """Every schema inside a converted one."""
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += [each for key in ("anyOf", "oneOf", "prefixItems") for each in schema.get(key, [])]
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    return [schema, *(each for one in inner for each in schemas_in(one))]


def check(schema: dict[str, Any], rules: SchemaRules) -> None:
    """Fail if a schema breaks the published rules of its provider."""
    assert schema["type"] == "object"
    for each in schemas_in(schema):
        assert set(each) <= rules.keywords | {"$defs"}
        if "$ref" in each:
            assert set(each) == {"$ref"}
            assert each["$ref"].removeprefix("#/$defs/") in schema["$defs"]
        if rules.closed and "properties" in each:
            assert each["additionalProperties"] is False
        if rules.all_required and "properties" in each:
            assert each["required"] == list(each["properties"])
        if rules.formats is not None and "format" in each:
            assert each["format"] in rules.formats


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from(
    [
        {"type": "string", "minLength": 1, "format": "uri"},
        {"type": "integer", "minimum": 0},
        {"enum": ["x", "y"], "type": "string"},
        {"const": 5},
        {"type": ["string", "null"], "default": None},
        {"$ref": "#/$defs/Leaf"},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "uniqueItems": True}, inner),
        st.builds(lambda one, two: {"oneOf": [one, two]}, inner, inner),
        st.builds(
            lambda properties, required: {
                "type": "object",
                "properties": properties,
                "required": [name for name in required if name in properties],
            },
            st.dictionaries(NAMES, inner, min_size=1),
            st.lists(NAMES, unique=True),
        ),
    ),
    max_leaves=6,
)
ROOTS = st.builds(
    lambda properties: {"type": "object", "properties": properties, "$defs": {"Leaf": {"type": "boolean"}}},
    st.dictionaries(NAMES, SCHEMAS),
)


@RULES
@given(ROOTS)
def test_a_converted_schema_keeps_the_rules_of_its_provider(rules: SchemaRules, schema: dict[str, Any]) -> None:
    check(provider_schema(schema, rules), rules)


def test_an_optional_property_is_required_and_nullable_and_its_null_is_dropped() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "size": {"type": "integer", "default": 1},
            "color": {"enum": ["red"], "type": "string"},
            "note": {"type": ["string", "null"]},
            "box": {"$ref": "#/$defs/Box"},
            "boxes": {"type": "array", "items": {"$ref": "#/$defs/Box"}},
        },
        "required": ["name"],
        "$defs": {"Box": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
    strict = provider_schema(schema, OPENAI_STRICT)
    assert strict["required"] == list(schema["properties"])
    properties = strict["properties"]
    assert properties["size"] == {"type": ["integer", "null"], "description": "(default: 1)"}
    assert properties["color"] == {"enum": ["red", None], "type": ["string", "null"]}
    assert properties["box"] == {"anyOf": [{"$ref": "#/$defs/Box"}, {"type": "null"}]}
    given = {
        "name": "a",
        "size": None,
        "color": None,
        "note": None,
        "box": {"x": None},
        "boxes": [{"x": None}, {"x": 1}],
    }
    assert Schema(strict).is_valid(given)
    kept = without_nulls(given, schema, References(schema))
    assert kept == {"name": "a", "note": None, "box": {}, "boxes": [{}, {"x": 1}]}
    assert Schema(schema).is_valid(kept)


@pytest.mark.parametrize(
    "inner",
    [
        {},
        True,
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "array"},
        {"$ref": "#/properties/a"},
        {"allOf": [{"$ref": "#/$defs/X"}]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
    ],
)
def test_a_schema_that_cannot_be_strict_is_reported(inner: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        provider_schema(
            {"type": "object", "properties": {"a": inner}, "$defs": {"X": {"type": "string"}}}, OPENAI_STRICT
        )


def test_what_a_provider_does_not_know_is_in_the_description() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "A.", "minLength": 2, "not": {}}}}
    converted = provider_schema(schema, OPENAI_STRICT)
    assert converted["properties"]["a"]["description"] == "A. (minLength: 2; not: {})"


def test_a_recursive_definition_is_kept_where_it_is_supported() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    schema = {"type": "object", "properties": {"first": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
    assert provider_schema(schema, OPENAI_STRICT)["$defs"]["Node"]["required"] == ["next"]
    with pytest.raises(UnsupportedSchemaError, match="itself"):
        provider_schema(schema, ANTHROPIC_STRICT)


@RULES
def test_the_schemas_of_real_apis_are_converted(rules: SchemaRules, shared: Path) -> None:
    converted = 0
    specs = [each.spec for each in from_openapi(shared / "openapi" / "github_api.json")]
    specs = specs[:: 1 if is_thorough() else 5]
    for spec in specs:
        with suppress(UnsupportedSchemaError):
            check(provider_schema(input_schema(spec.input_schema).schema, rules), rules)
            converted += 1
    assert converted > 0.9 * len(specs)


def test_a_hostile_schema_ends() -> None:
    deep: Any = {"type": "string"}
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}
    for rules in (OPENAI_STRICT, GEMINI):
        with pytest.raises(UnsupportedSchemaError):
            provider_schema({"type": "object", "properties": {"a": deep}}, rules)


def test_thousands_of_definitions_are_searched_for_recursion_in_linear_time() -> None:
    definitions: dict[str, Any] = {}
    for n in range(3_000):
        following = {f"p{m}": {"$ref": f"#/$defs/d{m}"} for m in range(n + 1, min(n + 21, 3_000))}
        definitions[f"d{n}"] = {"type": "object", "properties": {"leaf": {"type": "string"}, **following}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    before = time.process_time()
    assert len(provider_schema(schema, ANTHROPIC_STRICT)["$defs"]) == 3_000
    assert time.process_time() - before < 5  # a search from each of them took 7 s


def test_many_branches_and_repeated_names_are_merged_in_proportion() -> None:
    names = [f"p{number}" for number in range(4_000)]
    branches = [{"properties": {name: {"type": "string"}}, "required": [name, "p0"]} for name in names]
    repeated = {"properties": {name: {"type": "string"} for name in names}, "required": ["p1"] * 100_000}
    spent = time.process_time()
    merged = provider_schema({"type": "object", "allOf": branches * 5}, ANTHROPIC_STRICT)
    strict = provider_schema({"type": "object", **repeated}, OPENAI_STRICT)
    assert time.process_time() - spent < 3  # of CPU; 12 s and 4 s
    assert merged["required"] == names
    assert strict["required"] == names
    assert strict["properties"]["p1"]["type"] == "string"
    assert strict["properties"]["p2"]["type"] == ["string", "null"]


def test_a_required_name_that_is_not_text_is_ignored() -> None:
    given = {"type": "object", "properties": {"a": {"type": "string"}}, "required": [{}, 1, "a"]}
    assert provider_schema(given, ANTHROPIC_STRICT)["required"] == ["a"]


@RULES
@pytest.mark.parametrize("keyword", ["format", "type", "enum", "required", "description", "pattern", "anyOf"])
def test_a_keyword_of_a_wrong_kind_spoils_no_other_tool(keyword: str, rules: SchemaRules) -> None:
    for value in ({}, [[]], 5, None):
        with suppress(UnsupportedSchemaError):
            provider_schema({"type": "object", "properties": {"a": {"type": "string", keyword: value}}}, rules)
