"""The schemas of tools: objects wherever clients ask for them, and never a reference that leads elsewhere."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire.agents.tools import input_schema, items_schema, output_schema
from opwire.errors import SchemaError
from opwire.schema import UNKNOWN, Schema

TREE: dict[str, Any] = {
    "anyOf": [{"type": "null"}, {"$ref": "#/$defs/Node"}],
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"$ref": "#/$defs/Number"}}},
              "Number": {"type": "integer"}},
}  # fmt: skip

_scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["n", "next"]), inner)
)


def test_an_object_schema_is_shown_unchanged() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    assert input_schema(Schema(schema)).schema == schema
    form = output_schema(Schema(schema), objects_only=True)
    assert form is not None
    assert (form.schema, form.wraps) == (schema, False)


def test_an_input_that_is_not_an_object_is_the_property_input_of_one() -> None:
    form = input_schema(Schema({"type": "array", "items": {"type": "integer"}}))
    assert form.wraps
    assert form.schema == {
        "type": "object",
        "properties": {"input": {"type": "array", "items": {"type": "integer"}}},
        "required": ["input"],
    }


def test_any_input_at_all_may_be_left_out() -> None:
    assert input_schema(UNKNOWN).schema == {"type": "object", "properties": {"input": {}}}


def test_only_older_clients_see_outputs_wrapped() -> None:
    schema = Schema({"type": "array"})
    newest, older = output_schema(schema, objects_only=False), output_schema(schema, objects_only=True)
    assert newest is not None
    assert (newest.schema, newest.wraps) == ({"type": "array"}, False)
    assert older is not None
    assert older.wraps
    assert older.schema == {"type": "object", "properties": {"result": {"type": "array"}}, "required": ["result"]}


def test_an_unknown_output_has_no_schema_and_an_impossible_one_has() -> None:
    assert output_schema(UNKNOWN, objects_only=True) is None
    impossible = output_schema(Schema(False), objects_only=False)
    assert impossible is not None
    assert impossible.schema == {"not": {}}


@settings(max_examples=50)
@given(_values)
def test_a_wrapped_schema_accepts_exactly_what_the_schema_accepted(value: Any) -> None:
    is_valid = Schema(TREE).is_valid(value)
    wrapped = output_schema(Schema(TREE), objects_only=True)
    assert wrapped is not None
    assert wrapped.schema["$defs"].keys() == {"Node", "Number"}
    assert Schema(wrapped.schema).is_valid({"result": value}) is is_valid
    assert Schema(input_schema(Schema(TREE)).schema).is_valid({"input": value}) is is_valid
    items = Schema(items_schema(Schema(TREE)).schema)
    assert items.is_valid({"items": [value], "complete": True}) is is_valid


def test_what_only_looks_like_a_reference_stays_unchanged() -> None:
    schema = {"enum": [{"$ref": "#"}], "default": {"$ref": "#"}}
    form = output_schema(Schema(schema), objects_only=True)
    assert form is not None
    assert form.schema["properties"]["result"] == schema


def test_a_schema_with_an_id_is_a_document_of_its_own_wherever_it_stands() -> None:
    schema = {"$id": "urn:list", "type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "integer"}}}
    form = output_schema(Schema(schema), objects_only=True)
    assert form is not None
    assert form.schema["properties"]["result"] == schema
    assert Schema(form.schema).is_valid({"result": [1]})
    assert not Schema(form.schema).is_valid({"result": ["a"]})


def test_older_dialects_are_lowered() -> None:
    schema = Schema({"type": "array", "items": [{"type": "integer"}]}, dialect="draft-07")
    form = output_schema(schema, objects_only=False)
    assert form is not None
    assert form.schema == {"type": "array", "prefixItems": [{"type": "integer"}]}


@pytest.mark.parametrize(
    "broken", [{"properties": []}, {"properties": {"a": 1}}, {"required": "a"}, {"required": [1]}, {"$schema": 1}]
)
def test_a_schema_that_would_fail_a_whole_list_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        input_schema(Schema({"type": "object", **broken}))


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(20_000):
        schema = {"items": schema}
    with pytest.raises(SchemaError):
        output_schema(Schema(schema), objects_only=True)
    with pytest.raises(SchemaError):
        output_schema(Schema(schema, dialect="draft-07"), objects_only=False)
