"""Parity with the real TypeBox on its own cases, and the laws that hold for every schema and value."""

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import CastError
from opwire.schema.cast import Caster
from opwire.schema.cast_javascript import is_same
from opwire.schema.validator import compile_validator

CORPUS: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "cast-corpus.json").read_text())


@pytest.mark.parametrize("spelling", ["schema", "schema2020"])
def test_a_cast_gives_what_typebox_gives(spelling: str) -> None:
    """In mode `cast`, the result is exactly that of TypeBox 0.34's `Value.Cast`, and it raises exactly where that
    throws, whether the schema is spelled as TypeBox writes it or in 2020-12."""
    for case in (case for case in CORPUS if spelling in case):
        value, label = copy.deepcopy(case["value"]), case["id"]
        try:
            result = Caster(case[spelling]).cast(value)
        except CastError:
            assert "throws" in case, label
        else:
            assert "throws" not in case, label
            assert is_same(result, case["expected"]), label
            assert not case["valid"] or result is value, label
        assert is_same(value, case["value"]), label


def test_the_corpus_holds_results_errors_and_absent_values() -> None:
    assert len(CORPUS) == 1_015
    assert sum("throws" in case for case in CORPUS) == 80
    assert sum("undef" in case for case in CORPUS) == 10


PERSON = {
    "type": "object",
    "required": ["name", "home"],
    "properties": {
        "name": {"type": "string"},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def test_parts_that_need_no_repair_are_the_same_objects() -> None:
    value = {"name": 5, "home": {"city": "Wien", "zip": 1010}, "tags": ["a"]}
    result = Caster(PERSON).cast(value)
    assert result == {"name": "", "home": {"city": "Wien", "zip": 1010}, "tags": ["a"]}
    assert result["home"] is value["home"]
    assert result["tags"] is value["tags"]


def test_leaving_out_an_absent_value_copies_nothing_else() -> None:
    schema = {"type": "object", "required": ["any", "home", "list"], "properties": {"any": {}, "home": {}, "list": {}}}
    value = {"home": {"city": "Wien"}, "list": [1]}
    result = Caster(schema).cast(value)
    assert result == value
    assert result["home"] is value["home"]
    assert result["list"] is value["list"]


def test_a_result_shares_nothing_with_the_default() -> None:
    schema = {"type": "array", "items": {"type": "object"}, "default": [{}]}
    first = Caster(schema).cast(None)
    first[0]["touched"] = True
    assert Caster(schema).cast(None) == [{}]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"type": "object"}]},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}},
        {"type": "array", "minItems": 10**9, "items": {"type": "string"}},
        {"type": "array", "minItems": 10**9, "default": [], "items": {"type": "string"}},
        {"type": "string", "minLength": 10**400},
    ],
    ids=["itself", "part of itself", "variant of itself", "requires itself", "items", "padding", "length"],
)
def test_a_schema_that_asks_for_endless_values_is_an_error(schema: dict[str, Any]) -> None:
    """Neither schemas that ask for endless values nor deeply nested values hang or crash a cast."""
    with pytest.raises(CastError):
        Caster(schema).cast(None)


def chain(length: int, link: Any, end: dict[str, Any]) -> dict[str, Any]:
    """Definitions of which each refers twice to the next one: 2 ** length ways to the end."""
    defs = {f"D{index}": link({"$ref": f"#/$defs/D{index + 1}"}) for index in range(length)}
    return {"$ref": "#/$defs/D0", "$defs": {**defs, f"D{length}": end}}


STRING = {"type": "string"}
NAMED = {"type": "object", "required": ["name"], "properties": {"name": STRING}}


def test_variants_that_meet_again_are_checked_and_scored_once() -> None:
    schema = chain(60, lambda next: {"anyOf": [next, next]}, NAMED)
    assert Caster(schema).cast({"name": 5}) == {"name": ""}


@pytest.mark.parametrize(
    "link",
    [
        lambda next: {"type": "object", "required": ["a", "b"], "properties": {"a": next, "b": next}},
        lambda next: {"allOf": [next, next], "unevaluatedProperties": False},
    ],
    ids=["properties", "parts"],
)
def test_values_that_double_with_each_level_are_an_error(link: Any) -> None:
    with pytest.raises(CastError, match="more values than a cast may create"):
        Caster(chain(60, link, NAMED)).cast({})


def test_a_value_that_fits_no_variant_at_any_depth_takes_no_exponential_time() -> None:
    variants = [
        {
            "type": "object",
            "required": ["child", "kind"],
            "properties": {"child": {"$ref": "#"}, "kind": {"const": kind}},
        }
        for kind in ("a", "b", "c", "d")
    ]
    value: Any = "wrong"
    for _ in range(60):
        value = {"child": value, "kind": "d"}
    result = Caster({"anyOf": [{"type": "null"}, *variants]}).cast(value)
    for _ in range(60):
        assert result["kind"] == "d"
        result = result["child"]
    assert result is None


def test_a_value_nested_too_deeply_is_an_error_and_one_nested_200_deep_is_not() -> None:
    def nested(depth: int) -> Any:
        value: Any = []
        for _ in range(depth):
            value = [value]
        return value

    caster = Caster({"type": "array", "items": {"$ref": "#"}})
    deep = nested(200)
    assert caster.cast(deep) is deep
    with pytest.raises(CastError, match="nested too deeply"):
        caster.cast(nested(100_000))


@pytest.mark.parametrize("value", [None, "x", 5, [1], {"a": 1}], ids=repr)
@pytest.mark.parametrize(
    "schema",
    [
        5,
        {"type": 5},
        {"type": []},
        {"type": ["x", 5]},
        {"properties": 5},
        {"anyOf": 5},
        {"anyOf": []},
        {"anyOf": [5]},
        {"enum": []},
        {"items": 5},
        {"type": "object", "required": 5},
        {"$ref": 5},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.org/schema"},
        {"not": 5},
        {"type": "string", "pattern": "("},
        {"patternProperties": {"(": True}},
        {"type": "array", "minItems": -3},
        {"type": "number", "multipleOf": 0},
        {"if": 5},
        {"dependencies": {"a": 5}},
    ],
    ids=repr,
)
def test_a_malformed_schema_raises_nothing_but_a_cast_error(schema: Any, value: Any) -> None:
    with contextlib.suppress(CastError):
        Caster(schema).cast(value)


NAMES = st.sampled_from(["a", "b", "x_1", "0", "length"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
SIZES = st.integers(0, 3)


def keywords(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=optional)


LEAVES = st.one_of(
    st.booleans(),
    st.sampled_from([{"$ref": "#"}, {"$ref": "Root"}, {"$ref": "#/$defs/absent"}, {"not": {}}]),
    st.builds(
        lambda name, rest: {"type": name, **rest}, st.sampled_from(["boolean", "null"]), keywords(default=VALUES)
    ),
    keywords(const=SCALARS, default=VALUES, nullable=st.booleans()),
    keywords(enum=st.lists(SCALARS, max_size=3), default=VALUES),
    keywords(
        type=st.sampled_from(["string", ["string", "null"]]),
        minLength=SIZES,
        maxLength=SIZES,
        pattern=st.sampled_from(["^[a-z]", "(", "^(a+)+$"]),
        format=st.sampled_from(["date", "email", "color"]),
        default=VALUES,
    ),
    keywords(
        type=st.sampled_from(["number", "integer"]),
        minimum=st.integers(-3, 3),
        exclusiveMaximum=st.integers(-3, 3) | st.booleans(),
        multipleOf=st.sampled_from([0, 2, 0.1]),
        default=VALUES,
    ),
)


def nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    schemas = st.lists(inner, max_size=3)
    return st.one_of(
        keywords(
            type=st.just("object"),
            properties=st.dictionaries(NAMES, inner, max_size=3),
            patternProperties=st.dictionaries(st.sampled_from(["^x_", "["]), inner, max_size=1),
            required=st.lists(NAMES, max_size=2),
            additionalProperties=inner,
            minProperties=SIZES,
            default=VALUES,
        ),
        keywords(
            type=st.just("array"),
            items=inner | schemas,
            prefixItems=schemas,
            minItems=SIZES,
            maxItems=SIZES,
            uniqueItems=st.booleans(),
            contains=inner,
            default=VALUES,
        ),
        keywords(anyOf=schemas, oneOf=schemas, default=VALUES, nullable=st.booleans()),
        keywords(allOf=schemas, unevaluatedProperties=inner, default=VALUES),
        st.fixed_dictionaries({"if": inner, "then": inner}),
        st.builds(lambda schema: {"not": schema}, inner),
    )


SCHEMAS = st.recursive(LEAVES, nest, max_leaves=6).map(
    lambda schema: {"$id": "Root", **schema} if isinstance(schema, dict) else schema
)


@given(schema=SCHEMAS, value=VALUES)
def test_for_any_schema_and_value_a_cast_mutates_neither_and_raises_only_its_error(schema: Any, value: Any) -> None:
    before = copy.deepcopy((schema, value))
    caster = Caster(schema)
    with contextlib.suppress(CastError):
        result = caster.cast(value)
        json.dumps(result)  # plain data, no trace of what was absent
        caster.cast(result)
    assert repr((schema, value)) == repr(before)


TEXTS = st.text("abcx_", max_size=4)
PLAIN_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 2.0]) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def typed(name: str, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(name)}, optional=optional)


# Where JSON Schema and TypeBox agree on what is valid, so that jsonschema-rs can be the judge.
AGREED = st.recursive(
    st.one_of(
        st.booleans(),
        st.sampled_from([{"type": ["string", "null"]}, {"type": "boolean"}, {"type": "null"}]),
        st.builds(lambda values: {"enum": values}, st.lists(PLAIN_VALUES, min_size=1, max_size=3)),
        typed("string", minLength=SIZES, pattern=st.sampled_from(["^a", "[bc]"])),
        typed("number", minimum=st.integers(-3, 3), exclusiveMaximum=st.integers(-3, 3)),
        typed("integer", multipleOf=st.sampled_from([2, 3])),
    ),
    lambda inner: st.one_of(
        typed(
            "object",
            properties=st.dictionaries(NAMES, inner, max_size=3),
            required=st.lists(NAMES, max_size=2, unique=True),
            additionalProperties=inner,
            maxProperties=SIZES,
        ),
        typed("array", items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2), maxItems=SIZES),
        st.builds(lambda variants: {"anyOf": variants}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"allOf": parts}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)


@given(schema=AGREED, value=PLAIN_VALUES)
def test_what_json_schema_calls_valid_is_returned_as_the_same_object(schema: Any, value: Any) -> None:
    """A value that passes the check is returned as the same object."""
    if compile_validator(schema).is_valid(value):
        assert Caster(schema).cast(value) is value
