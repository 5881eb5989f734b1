"""A schema in words, and an input to begin with."""

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import OperationSpec, Schema
from opwire.cli.inputs import SchemaField, example_command, example_input, read_input, schema_summary, type_name

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "For us.", "default": "none"},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "article": {"type": "string", "minLength": 2},
                    "pieces": {"type": "integer", "minimum": 3},
                },
                "required": ["article", "pieces"],
            },
        },
        "size": {"enum": ["s", "m"]},
        "when": {"type": "string", "format": "date"},
    },
    "required": ["lines", "size", "when"],
}


def spec(schema: Any, **fields: Any) -> OperationSpec:
    return OperationSpec(namespace="shop", name="order", input_schema=schema, **fields)


def test_required_fields_come_first_each_with_its_own() -> None:
    lines = [
        (line.depth, line.name, line.type, line.note, line.required) for line in schema_summary(SchemaField(ORDER))
    ]
    assert lines == [
        (0, "lines", "list of object", "", True),
        (1, "article", "string", "at least 2 characters", True),
        (1, "pieces", "integer", "≥ 3", True),
        (0, "size", "one of s, m", "", True),
        (0, "when", "string", "format date", True),
        (0, "note", "string", "For us; default none", False),
    ]


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert [line.depth for line in schema_summary(SchemaField(tree))] == [0, 1, 2, 3]
    assert example_input(spec(tree)) is not None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": ["integer", "null"]}, "integer or null"),
        ({"type": "array", "items": {"type": "array", "items": {"const": 1}}}, "list of list of 1"),
        ({"enum": list(range(100))}, "integer"),
        (True, "anything"),
    ],
)
def test_types_in_words(schema: Any, words: str) -> None:
    assert type_name(SchemaField(schema)) == words


def test_an_example_is_given_or_made_of_what_is_required() -> None:
    made = {"lines": [{"article": "text", "pieces": 3}], "size": "s", "when": "2026-01-31"}
    assert example_input(spec(ORDER)) == made
    assert example_input(spec(ORDER, examples=[{"size": "m"}])) == {"size": "m"}
    assert example_input(spec(True)) is None


@pytest.mark.parametrize(
    ("schema", "command"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "opwire call shop.order a=1"),
        ({"type": "integer", "minimum": 4}, "opwire call shop.order 4"),
        ({"type": "object"}, "opwire call shop.order"),
        (
            {"type": "object", "properties": {"a": {"example": {"b": 1}}}, "required": ["a"]},
            """opwire call shop.order 'a:={"b":1}'""",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "default": "@me"}}, "required": ["a"]},
            """opwire call shop.order 'a:="@me"'""",
        ),
    ],
)
def test_the_command_of_an_example(schema: Any, command: str) -> None:
    assert example_command(spec(schema), "call") == command


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["string", "object", "array", "#", "#/x", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "type enum const properties items required anyOf allOf $ref minimum format default examples "
                "description additionalProperties a".split()
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(anything)
def test_what_is_not_a_schema_at_all_is_read_without_a_crash(schema: Any) -> None:
    field = SchemaField(schema)
    list(schema_summary(field))
    type_name(field)
    read_input(["a=1", "b.c=2", "b.d=3"], field)
    if isinstance(schema, dict):
        example_command(OperationSpec(namespace="a", name="b", input_schema=Schema.deferred(lambda: schema)), "call")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=5), values, min_size=1, max_size=4), st.sampled_from(["string", "integer", ""]))
def test_the_command_of_an_example_is_read_as_that_example(example: dict[str, Any], kind: str) -> None:
    schema = {"type": "object", "additionalProperties": {"type": kind} if kind else {}}
    _, _, _, *words = shlex.split(example_command(spec(schema, examples=[example]), "call"))
    assert read_input(words, SchemaField(schema)) == example
