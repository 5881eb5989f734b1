"""Dialects: which one a schema is written in, and what it becomes in 2020-12."""

import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Event
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import SchemaError
from opwire.schema import Dialect, Schema
from opwire.schema.dialect import META_SCHEMAS, dialect_of, lazy_property, lower, map_subschemas, may_recurse

OLD: tuple[Dialect, ...] = ("2019-09", "draft-07", "draft-06", "draft-04", "openapi-3.0")


@pytest.mark.parametrize(
    ("address", "dialect"),
    [
        ("https://json-schema.org/draft/2020-12/schema", "2020-12"),
        ("https://json-schema.org/draft/2019-09/schema", "2019-09"),
        ("http://json-schema.org/draft-07/schema#", "draft-07"),
        ("http://json-schema.org/draft-07/schema", "draft-07"),
        ("http://json-schema.org/draft-06/schema#", "draft-06"),
        ("http://json-schema.org/draft-04/schema#", "draft-04"),
    ],
)
def test_the_dialect_is_the_one_that_the_schema_names(address: str, dialect: Dialect) -> None:
    """Schemas of 2020-12, 2019-09, draft-07, draft-06, draft-04 and OpenAPI 3.0 are read as they are meant."""
    assert dialect_of({"$schema": address}) == dialect
    assert Schema({"$schema": address}).dialect == dialect


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$schema": "https://example.com/own"},
        {"$schema": ""},
        {"$schema": 5},
        {"$schema": "http://json-schema.org/draft-03/schema#"},
        {"$schema": "http://json-schema.org/schema#"},
    ],
)
def test_a_dialect_that_is_not_known_is_read_as_2020_12(schema: Any) -> None:
    assert dialect_of(schema) == "2020-12"
    if isinstance(schema, dict):
        compiled = Schema({**schema, "prefixItems": [{"type": "integer"}]})
        assert compiled.is_valid([1])
        assert not compiled.is_valid(["x"])


def test_a_dialect_that_is_given_outweighs_the_one_that_is_named() -> None:
    schema = Schema({"$schema": META_SCHEMAS["2020-12"], "minimum": 5, "exclusiveMinimum": True}, dialect="draft-04")
    assert schema.is_valid(6)
    assert not schema.is_valid(5)


# Each keyword that changed its meaning: schema, dialects that read it so, values that fit, values that do not.
MEANINGS: dict[str, tuple[Any, tuple[Dialect, ...], list[Any], list[Any]]] = {
    "exclusive bounds as flags": (
        {"minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
        ("draft-04", "openapi-3.0"),
        [1, 9],
        [0, 10],
    ),
    "exclusive bounds as numbers": (
        {"exclusiveMinimum": 0, "exclusiveMaximum": 9},
        ("2020-12", "2019-09", "draft-07", "draft-06"),
        [1, 8],
        [0, 9],
    ),
    "tuples as items": (
        {"items": [{"type": "string"}], "additionalItems": {"type": "integer"}},
        ("2019-09", "draft-07", "draft-06", "draft-04"),
        [[], ["a"], ["a", 1]],
        [[1], ["a", "b"]],
    ),
    "tuples without more": (
        {"items": [{"type": "string"}], "additionalItems": False},
        ("2019-09", "draft-07", "draft-06", "draft-04"),
        [["a"]],
        [["a", 1]],
    ),
    "additional items of no tuple say nothing": (
        {"items": {"type": "string"}, "additionalItems": False},
        ("2019-09", "draft-07", "draft-06", "draft-04"),
        [["a", "b"]],
        [[1]],
    ),
    "tuples as prefix": ({"prefixItems": [{"type": "string"}], "items": False}, ("2020-12",), [["a"]], [["a", 1], [1]]),
    "dependencies": (
        {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        ("draft-07", "draft-06", "draft-04"),
        [{}, {"a": 1, "b": 2}, {"c": 1, "d": 2}],
        [{"a": 1}, {"c": 1}],
    ),
    "dependent required": ({"dependentRequired": {"a": ["b"]}}, ("2020-12", "2019-09"), [{"a": 1, "b": 2}], [{"a": 1}]),
    "a reference hides what is beside it": (
        {"properties": {"a": {"$ref": "#/definitions/x", "maximum": 1}}, "definitions": {"x": {"type": "integer"}}},
        ("draft-07", "draft-06", "draft-04", "openapi-3.0"),
        [{"a": 5}],
        [{"a": "x"}],
    ),
    "a reference stands beside others": (
        {"properties": {"a": {"$ref": "#/definitions/x", "maximum": 1}}, "definitions": {"x": {"type": "integer"}}},
        ("2020-12", "2019-09"),
        [{"a": 1}],
        [{"a": 5}, {"a": "x"}],
    ),
    "nullable": ({"type": "string", "nullable": True}, ("openapi-3.0",), ["a", None], [5]),
    "nullable by extension": ({"type": "string", "x-nullable": True}, ("openapi-3.0",), ["a", None], [5]),
    "nullable null": ({"type": "null", "nullable": True}, ("openapi-3.0",), [None], ["a"]),
    "not nullable": ({"type": "string", "nullable": False}, ("openapi-3.0",), ["a"], [None]),
    "nullable is no keyword": (
        {"type": "string", "nullable": True},
        ("2020-12", "2019-09", "draft-07", "draft-06", "draft-04"),
        ["a"],
        [None],
    ),
    "nullable enum": ({"type": "string", "enum": ["a"], "nullable": True}, ("openapi-3.0",), ["a", None], ["b"]),
    "nullable enum that says so": ({"enum": ["a", None], "nullable": True}, ("openapi-3.0",), ["a", None], ["b"]),
    "nullable composition": (
        {"type": "object", "allOf": [{"type": "object", "required": ["a"]}], "nullable": True},
        ("openapi-3.0",),
        [{"a": 1}, None],
        [{}, 5],
    ),
    "nullable choice": ({"oneOf": [{"type": "string"}], "nullable": True}, ("openapi-3.0",), ["a", None], [5]),
    "nullable alternatives": ({"anyOf": [{"type": "string"}], "nullable": True}, ("openapi-3.0",), ["a", None], [5]),
    "nullable negation": ({"not": {"type": ["string", "null"]}, "nullable": True}, ("openapi-3.0",), [5, None], ["a"]),
    "nullable constant": ({"const": "a", "nullable": True}, ("openapi-3.0",), ["a", None], ["b"]),
    "nullable deep inside": (
        {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer", "nullable": True}}}},
        ("openapi-3.0",),
        [[{"a": None}, {"a": 1}]],
        [[{"a": "x"}], [None]],
    ),
    "a property that is called like a keyword": (
        {"properties": {"nullable": {"type": "boolean"}, "items": {"type": "string"}, "id": {"type": "integer"}}},
        (*OLD, "2020-12"),
        [{"nullable": True, "items": "x", "id": 5}],
        [{"nullable": "x"}, {"items": []}, {"id": "x"}],
    ),
    "references into components": (
        {
            "$ref": "#/components/schemas/Node",
            "components": {
                "schemas": {
                    "Node": {
                        "type": "object",
                        "nullable": True,
                        "properties": {"next": {"$ref": "#/components/schemas/Node"}},
                    }
                }
            },
        },
        ("openapi-3.0",),
        [None, {"next": None}, {"next": {"next": {}}}],
        [5, {"next": 5}],
    ),
    "recursion": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        (*OLD, "2020-12"),
        [{}, {"next": {"next": {}}}],
        [{"next": {"next": 5}}],
    ),
    "ids that are anchors": (
        {"definitions": {"x": {"$id": "#thing", "type": "integer"}}, "items": {"$ref": "#thing"}},
        ("draft-07", "draft-06"),
        [[1]],
        [["x"]],
    ),
    "ids of draft-04": (
        {"definitions": {"x": {"id": "#thing", "type": "integer"}}, "items": {"$ref": "#thing"}},
        ("draft-04",),
        [[1]],
        [["x"]],
    ),
}
CASES = [
    pytest.param(schema, dialect, fits, fails, id=f"{name} ({dialect})")
    for name, (schema, dialects, fits, fails) in MEANINGS.items()
    for dialect in dialects
]


@pytest.mark.parametrize(("schema", "dialect", "fits", "fails"), CASES)
def test_keywords_mean_what_their_dialect_says(
    schema: Any, dialect: Dialect, fits: list[Any], fails: list[Any]
) -> None:
    compiled = Schema(schema, dialect=dialect)
    assert [value for value in fits if compiled.problems(value)] == []
    assert [value for value in fails if compiled.is_valid(value)] == []


@pytest.mark.parametrize(("schema", "dialect", "fits", "fails"), CASES)
def test_a_lowered_schema_means_the_same_and_the_given_one_is_not_changed(
    schema: Any, dialect: Dialect, fits: list[Any], fails: list[Any]
) -> None:
    before = deepcopy(schema)
    lowered = Schema(lower(schema, dialect), dialect="2020-12")
    assert schema == before
    assert [value for value in fits if lowered.problems(value)] == []
    assert [value for value in fails if lowered.is_valid(value)] == []


@pytest.mark.parametrize(
    ("dialect", "schema", "lowered"),
    [
        ("draft-04", {"minimum": 0, "exclusiveMinimum": True}, {"exclusiveMinimum": 0}),
        ("draft-04", {"minimum": 0, "exclusiveMinimum": False}, {"minimum": 0}),
        ("draft-04", {"exclusiveMaximum": True}, {}),
        ("draft-04", {"id": "x"}, {"$id": "x"}),
        ("draft-07", {"exclusiveMinimum": 0, "$id": "x"}, {"exclusiveMinimum": 0, "$id": "x"}),
        ("draft-07", {"items": [True, False]}, {"prefixItems": [True, False]}),
        ("draft-07", {"items": [True], "additionalItems": False}, {"prefixItems": [True], "items": False}),
        ("draft-07", {"$ref": "#", "type": "string", "definitions": {}}, {"$ref": "#", "definitions": {}}),
        ("draft-07", {"$schema": META_SCHEMAS["draft-07"], "type": "string"}, {"type": "string"}),
        ("2019-09", {"$ref": "#", "type": "string"}, {"$ref": "#", "type": "string"}),
        ("openapi-3.0", {"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        (
            "openapi-3.0",
            {"allOf": [{}], "nullable": True, "title": "t", "default": None},
            {"anyOf": [{"allOf": [{}]}, {"type": "null"}], "title": "t", "default": None},
        ),
    ],
)
def test_only_what_changed_its_spelling_is_rewritten(dialect: Dialect, schema: Any, lowered: Any) -> None:
    assert lower(schema, dialect) == lowered


@pytest.mark.parametrize("dialect", OLD)
@pytest.mark.parametrize("keyword", ["default", "const", "enum", "examples", "example", "x-anything"])
def test_data_inside_a_schema_is_left_alone(dialect: Dialect, keyword: str) -> None:
    looks_like_a_schema = {
        "minimum": 0,
        "exclusiveMinimum": True,
        "nullable": True,
        "items": [1],
        "id": "x",
        "$ref": "#",
    }
    data: Any = [looks_like_a_schema] if keyword in ("enum", "examples") else looks_like_a_schema
    lowered = lower({"properties": {"a": {keyword: data}}}, dialect)
    assert lowered == {"properties": {"a": {keyword: data}}}


def test_a_schema_of_2020_12_and_a_boolean_are_given_back_as_they_are() -> None:
    schema = {"items": [1], "nullable": True}
    assert lower(schema, "2020-12") is schema
    for dialect in get_args(Dialect):
        assert lower(True, dialect) is True
        assert lower(False, dialect) is False


def test_a_schema_nested_too_deeply_to_be_lowered_is_a_schema_error() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(SchemaError, match="nested too deeply"):
        lower(schema, "openapi-3.0")


def test_dependencies_are_added_to_rewritten_ones_without_changing_the_given_ones() -> None:
    schema = {"dependencies": {"a": ["b"], "c": {}}, "dependentRequired": {"x": ["y"]}, "dependentSchemas": {"z": {}}}
    before = deepcopy(schema)
    assert lower(schema, "2019-09") == {
        "dependentRequired": {"x": ["y"], "a": ["b"]},
        "dependentSchemas": {"z": {}, "c": {}},
    }
    assert schema == before


@pytest.mark.parametrize("dialect", OLD)
@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [5]},
        {"properties": {"a": "string"}},
        {"enum": 5, "nullable": True},
        {"items": [None], "type": 5},
        {"dependencies": {"a": 5}, "required": 5},
    ],
)
def test_a_schema_that_is_not_valid_in_an_older_dialect_is_a_schema_error(schema: Any, dialect: Dialect) -> None:
    with pytest.raises(SchemaError, match="not a valid JSON Schema"):
        Schema(schema, dialect=dialect).compile()
    lower(schema, dialect)


def test_every_schema_directly_inside_another_is_visited_once_and_nothing_else() -> None:
    visited: list[Any] = []

    def mark(schema: Any) -> Any:
        visited.append(schema)
        return {"was": schema}

    schema: dict[str, Any] = {
        "items": {"title": "items"},
        "not": False,
        "anyOf": [{"title": "any"}, True],
        "properties": {"properties": {"title": "property"}, "flag": True},
        "components": {"schemas": {"x": {"title": "component"}}, "parameters": {"y": {"title": "untouched"}}},
        "default": {"title": "untouched"},
        "required": ["a"],
        "additionalProperties": "nonsense",
        "allOf": "nonsense",
        "$defs": "nonsense",
    }
    before = deepcopy(schema)
    copy = map_subschemas(schema, mark)
    assert schema == before
    assert visited == [
        {"title": "items"},
        False,
        {"title": "any"},
        True,
        {"title": "property"},
        True,
        {"title": "component"},
    ]
    assert copy["anyOf"] == [{"was": {"title": "any"}}, {"was": True}]
    assert copy["components"]["schemas"] == {"x": {"was": {"title": "component"}}}
    assert {key: copy[key] for key in ("default", "required", "allOf", "$defs")} == {
        key: schema[key] for key in ("default", "required", "allOf", "$defs")
    }


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, "a", "b", "ab"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
schemas = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "object", "array"]),
            "minimum": st.integers(-1, 1),
            "exclusiveMinimum": st.booleans(),
            "maximum": st.integers(0, 2),
            "exclusiveMaximum": st.booleans(),
            "enum": st.lists(values, min_size=1, max_size=3, unique_by=repr),
            "required": st.lists(st.sampled_from("abc"), min_size=1, unique=True),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "items": inner | st.lists(inner, min_size=1, max_size=2),
            "additionalItems": inner | st.booleans(),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
            "additionalProperties": inner | st.booleans(),
            "dependencies": st.dictionaries(st.sampled_from("abc"), inner | st.just(["a"]), max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "definitions": st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
        },
    ),
    max_leaves=5,
)


def without_flags_alone(schema: Any) -> Any:
    """Draft-04 demands the bound beside its flag."""
    if isinstance(schema, list):
        return [without_flags_alone(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value if key == "enum" else without_flags_alone(value) for key, value in schema.items()}
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if bound not in kept:
            kept.pop(flag, None)
    return kept


@given(schemas.map(without_flags_alone), st.lists(values, max_size=5))
def test_lowering_any_schema_of_draft_04_does_not_change_what_fits(schema: Any, candidates: list[Any]) -> None:
    original = Schema(schema, dialect="draft-04").compile()
    lowered = Schema(lower(schema, "draft-04")).compile()
    for value in candidates:
        assert original.is_valid(value) is lowered.is_valid(value)


def test_what_references_point_at_stays_in_its_place_when_a_nullable_union_is_wrapped() -> None:
    document = {
        "nullable": True,
        "oneOf": [{"$ref": "#/components/schemas/A"}],
        "components": {"schemas": {"A": {"type": "integer", "nullable": True}}},
    }
    schema = Schema(document, dialect="openapi-3.0")
    assert schema.is_valid(None)
    assert schema.is_valid(5)
    assert not schema.is_valid("x")


@pytest.mark.parametrize("dialect", ["draft-04", "openapi-3.0"])
def test_both_exclusive_bounds_that_are_booleans_become_numbers(dialect: Dialect) -> None:
    bounds = {"minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": True}
    assert lower({"items": bounds}, dialect) == {"items": {"exclusiveMinimum": 1, "exclusiveMaximum": 5}}
    given = {"minimum": 1, "exclusiveMinimum": False, "maximum": 5, "exclusiveMaximum": False}
    assert lower({"items": given}, dialect) == {"items": {"minimum": 1, "maximum": 5}}


def test_a_lazy_property_of_one_object_does_not_wait_for_that_of_another() -> None:
    begun, computed = Event(), Event()

    class Slow:
        def __init__(self, *, waits: bool) -> None:
            self.waits = waits

        @lazy_property
        def value(self) -> list[int]:
            if self.waits:
                begun.set()
                assert computed.wait(60)
            return []

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: Slow(waits=True).value)
        assert begun.wait(60)
        quick = Slow(waits=False)
        assert quick.value is quick.value
        computed.set()
        assert waiting.result() == []


def test_thousands_of_dependencies_are_lowered_in_proportion() -> None:
    names = {f"p{number}": ["a"] for number in range(20_000)}
    schemas = {f"s{number}": {"required": ["b"]} for number in range(20_000)}
    spent = time.process_time()
    lowered = lower({"dependencies": names | schemas, "dependentRequired": {"z": ["a"]}}, "draft-07")
    assert time.process_time() - spent < 1  # of CPU; 2.5 s when each one copied those before it
    assert lowered == {"dependentRequired": {"z": ["a"], **names}, "dependentSchemas": schemas}


def test_a_schema_that_is_referred_to_in_many_spellings_is_searched_once() -> None:
    def spelled(number: int) -> str:
        letters = (f"%{ord('b'):x}" if number >> place & 1 else "b" for place in range(12))
        return "#/$defs/" + "".join(letters)

    large = {"properties": {f"x{number}": {"type": "string"} for number in range(4_000)}}
    refs = {f"p{number}": {"$ref": spelled(number)} for number in range(4_000)}
    spent = time.process_time()
    assert not may_recurse({"properties": refs, "$defs": {"b" * 12: large}})
    assert time.process_time() - spent < 1.5  # of CPU; 16 million schemas took 5 s


@pytest.mark.parametrize(
    ("ref", "recurs"),
    [("#", True), ("", True), ("#/properties/a", True), ("#/%24defs/Leaf", False), ("#/$defs/Self", True)],
)
def test_a_reference_leads_back_by_its_target_not_by_its_spelling(ref: str, recurs: bool) -> None:
    definitions = {"Leaf": {"type": "string"}, "Self": {"items": {"$ref": "#/%24defs/Self"}}}
    assert may_recurse({"properties": {"a": {"items": {"$ref": ref}}}, "$defs": definitions}) is recurs
