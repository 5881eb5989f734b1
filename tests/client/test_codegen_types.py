"""Type hints from JSON Schemas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.client.codegen_types import Types, shadowed_in, shadowing, union, written
from opwire.names import UniqueNames
from opwire.schema import Schema

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
POINT = {"type": "object", "properties": {"x": INTEGER, "y": INTEGER}, "required": ["x"]}


def hint_of(json: Any, **options: Any) -> tuple[str, dict[str, str]]:
    types = Types(UniqueNames())
    reader = types.reader(Schema(json, **options))
    return written(reader.hint(reader.root, "Thing")), types.definitions


@pytest.mark.parametrize(
    ("json", "hint"),
    [
        (True, "Any"),
        (False, "Any"),
        ({}, "Any"),
        (STRING, "str"),
        ({"type": "number"}, "float"),
        ({"type": ["integer", "null"]}, "int | None"),
        ({"type": ["null", "string", "boolean"]}, "str | bool | None"),
        ({"const": "a"}, 'Literal["a"]'),
        ({"enum": ["a", 1, True, None, "a"]}, 'Literal["a", 1, True] | None'),
        ({"enum": [1.5, 2]}, "float | int"),
        ({"enum": [None]}, "None"),
        ({"enum": [{"a": 1}]}, "Any"),
        ({"enum": [f"n{number}" for number in range(300)]}, "str"),
        ({"type": "array"}, "list[Any]"),
        ({"items": STRING}, "list[str]"),
        ({"type": "array", "prefixItems": [STRING, INTEGER], "items": False}, "list[str | int]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}}, "dict[str, list[int]]"),
        ({"anyOf": [STRING, {"type": "null"}, STRING]}, "str | None"),
        ({"oneOf": [STRING, True]}, "Any"),
        ({"anyOf": [{"enum": ["a | b"]}, {"type": "null"}]}, 'Literal["a | b"] | None'),
        ({"allOf": [{"minLength": 1}, STRING]}, "str"),
        ({"$ref": "#/$defs/S", "$defs": {"S": STRING}}, "str"),
        ({"$ref": "#/nowhere"}, "Any"),
        ({"$ref": "#"}, "Any"),
        ({"type": "nonsense"}, "Any"),
    ],
)
def test_a_schema_has_a_hint(json: Any, hint: str) -> None:
    assert hint_of(json) == (hint, {})


def test_an_object_is_a_typed_dict_with_what_may_be_missing() -> None:
    hint, definitions = hint_of({"type": "array", "items": POINT})
    assert hint == "list[ThingItem]"
    assert definitions == {"ThingItem": "class ThingItem(TypedDict):\n    x: int\n    y: NotRequired[int]\n"}


@pytest.mark.parametrize("key", ["a-b", "class", "__x", "list", "Item", "é", ""])
def test_a_key_that_is_not_an_attribute_is_written_in_quotes(key: str) -> None:
    _, definitions = hint_of({"properties": {key: STRING}})
    module: dict[str, Any] = {}
    exec(f"from typing import NotRequired, TypedDict\n{definitions['Thing']}", module)
    assert set(module["Thing"].__annotations__) == {key}


def test_the_title_names_the_type_and_null_is_beside_it() -> None:
    hint, definitions = hint_of({**POINT, "title": "map point", "type": ["object", "null"]})
    assert (hint, [*definitions]) == ("MapPoint | None", ["MapPoint"])


def test_parts_of_an_object_are_put_together() -> None:
    json = {"allOf": [{"$ref": "#/$defs/P"}, {"properties": {"z": STRING}}], "required": ["y"], "$defs": {"P": POINT}}
    hint, definitions = hint_of(json)
    assert definitions[hint] == "class Thing(TypedDict):\n    x: int\n    y: int\n    z: NotRequired[str]\n"


def test_what_may_be_null_may_be_null_wherever_it_is_referred_to() -> None:
    node = {"type": ["object", "null"], "properties": {"next": {"$ref": "#/$defs/N"}}, "required": ["next"]}
    both = {"properties": {"a": {"$ref": "#/$defs/N"}, "b": {"$ref": "#/$defs/N"}}, "required": ["a", "b"]}
    _, definitions = hint_of({**both, "$defs": {"N": node}})
    assert definitions["N"] == "class N(TypedDict):\n    next: N | None\n"
    assert definitions["Thing"] == "class Thing(TypedDict):\n    a: N | None\n    b: N | None\n"


def test_what_only_a_variant_declares_may_be_missing() -> None:
    variants = [{"required": ["x"]}, {"properties": {"x": STRING, "z": STRING}, "required": ["z"]}]
    hint, definitions = hint_of({**POINT, "anyOf": variants})
    lines = definitions[hint].splitlines()[1:]
    assert sorted(map(str.strip, lines)) == ["x: int", "y: NotRequired[int]", "z: NotRequired[str]"]


def test_recursion_leads_back_to_the_name() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert hint_of(tree) == (
        "Thing",
        {"Thing": "class Thing(TypedDict):\n    children: NotRequired[list[Thing]]\n"},
    )
    value = {"anyOf": [STRING, {"type": "array", "items": {"$ref": "#/$defs/V"}}]}
    assert hint_of({"$ref": "#/$defs/V", "$defs": {"V": value}}) == ("V", {"V": 'V: TypeAlias = "str | list[V]"\n'})


def test_schemas_that_say_the_same_are_one_type_and_others_are_not() -> None:
    types = Types(UniqueNames())

    def hint(json: Any) -> str:
        reader = types.reader(Schema(json))
        return reader.hint(reader.root, "Thing")

    described = {**POINT, "description": "of a map"}
    assert hint(POINT) == hint(dict(POINT)) == hint(described) == "Thing"
    assert hint({**POINT, "required": []}) == "Thing_2"
    tree = {"type": "object", "properties": {"up": {"$ref": "#/$defs/T"}}}
    assert hint({"$ref": "#/$defs/T", "$defs": {"T": tree}}) == "T"
    assert hint({"$ref": "#/$defs/T", "$defs": {"T": {**tree, "properties": {"up": {"$ref": "#/$defs/T"}}}}}) == "T"
    assert [*types.definitions] == ["Thing", "Thing_2", "T"]


def test_other_dialects_are_read() -> None:
    assert hint_of({"type": "string", "nullable": True}, dialect="openapi-3.0")[0] == "str | None"


def test_names_that_are_hidden_are_written_in_full() -> None:
    hint = "\0dict[\0str, \0list[Any]]"
    assert written(hint) == "dict[str, list[Any]]"
    assert written(hint, shadowing(["list", "get"])) == "dict[str, builtins.list[Any]]"
    assert shadowed_in(hint) == {"dict", "str", "list"}


def test_a_union_has_each_once() -> None:
    assert union(["a", "b | None", "a"]) == "a | b | None"
    assert union(["a", "Any"]) == "Any"
    assert union([]) == "Any"


names = st.sampled_from(["type", "properties", "items", "anyOf", "allOf", "$ref", "enum", "required", "title", "$defs"])
schemas = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["object", "array", "string", "#", "#/$defs/x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.just("x"), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(names, schemas, max_size=5))
def test_any_schema_gives_a_hint_that_python_reads(json: dict[str, Any]) -> None:
    hint, definitions = hint_of(json)
    source = "from __future__ import annotations\nfrom typing import *\n" + "\n".join(definitions.values())
    exec(f"{source}\nfound: {hint}", {"__name__": "generated"})
