"""Schemas of operations as components of a document."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import Schema
from opwire.openapi.server.components import PREFIX, Components

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": {"type": "integer"}}}


def ref(name: str) -> dict[str, str]:
    return {"$ref": PREFIX + name}


def place(json: Any, label: str = "op_input", components: Components | None = None, **options: Any) -> Any:
    return (components or Components({})).place(Schema(json, **options), label)


def whole(placed: Any, components: Components) -> Schema:
    """What was placed, as a schema that stands alone."""
    return Schema({"allOf": [placed], "components": {"schemas": components.schemas}})


def test_definitions_become_components_and_references_follow() -> None:
    components = Components({})
    schema = {"type": "array", "items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": NODE, "Unused": {}}}
    assert place(schema, components=components) == {"type": "array", "items": ref("Node")}
    assert components.schemas == {"Node": {**NODE, "properties": {**NODE["properties"], "next": ref("Node")}}}


def test_the_same_definition_is_shared_and_another_one_of_that_name_is_not() -> None:
    components = Components({"Taken": {}})
    first = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "integer"}}}
    other = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "string"}}}
    assert place(first, "one", components) == ref("A")
    assert place(first, "two", components) == ref("A")
    assert place(other, "three", components) == ref("three_A")
    assert components.schemas["three_A"] == ref("three_B")
    assert components.schemas["three_B"] == {"type": "string"}
    assert place({"$ref": "#/$defs/Taken", "$defs": {"Taken": {"type": "null"}}}, "x", components) == ref("x_Taken")


@pytest.mark.parametrize(
    ("schema", "expected", "components"),
    [
        ({"properties": {"a": {"$ref": "#"}}}, ref("op_input"), {"op_input": {"properties": {"a": ref("op_input")}}}),
        (
            {"properties": {"a/b": {"type": "null"}, "c": {"$ref": "#/properties/a~1b"}}},
            ref("op_input"),
            {"op_input": {"properties": {"a/b": {"type": "null"}, "c": ref("op_input/properties/a~1b")}}},
        ),
        (
            {"items": {"$ref": "#/$defs/A/items"}, "$defs": {"A": {"items": {"type": "null"}}}},
            {"items": ref("A/items")},
            {"A": {"items": {"type": "null"}}},
        ),
        ({"$ref": "#/definitions/A", "definitions": {"A": {}}}, ref("A"), {"A": {}}),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {}}}}, ref("A"), {"A": {}}),
        ({"$ref": "#here", "$defs": {"A": {"$anchor": "here", "type": "null"}}}, ref("A"), {"A": {"type": "null"}}),
        ({"$ref": "A", "$defs": {"x": {"$id": "A", "type": "null"}}}, ref("x"), {"x": {"type": "null"}}),
        ({"$ref": "#/$defs/Page%C2%ABA%C2%BB", "$defs": {"Page«A»": {}}}, ref("Page_A"), {"Page_A": {}}),
        ({"$defs": {"A": {}}, "default": {"$ref": "#/$defs/A"}}, {}, {}),
    ],
    ids=["root", "pointer", "inside", "definitions", "components", "anchor", "id", "odd name", "data"],
)
def test_references_of_every_form_are_followed(schema: Any, expected: Any, components: Any) -> None:
    found = Components({})
    assert place(schema, components=found) == expected
    assert found.schemas == components


def test_a_dynamic_reference_leads_where_it_leads_without_others() -> None:
    components = Components({})
    schema = {"$id": "tree", "$dynamicAnchor": "node", "properties": {"child": {"$dynamicRef": "#node"}}}
    assert place(schema, "tree", components) == ref("tree")
    assert components.schemas == {"tree": {"properties": {"child": ref("tree")}}}


def test_booleans_stand_only_where_generators_know_them() -> None:
    schema = {"properties": {"a": True, "b": False}, "items": False, "additionalProperties": False}
    nothing = {"not": {}}
    assert place(schema) == {"properties": {"a": {}, "b": nothing}, "items": nothing, "additionalProperties": False}


def test_a_schema_that_leads_nowhere_leaves_nothing_behind() -> None:
    components = Components({})
    lost = {"items": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/Gone"}}}
    assert place({"allOf": lost["items"], "$defs": lost["$defs"]}, components=components) == {}
    assert components.schemas == {}


def test_a_definition_that_refers_to_its_root_is_that_roots_own() -> None:
    components = Components({})
    first, other = ({"title": title, "properties": {"a": {"$ref": "#/$defs/A"}}} for title in ("one", "two"))
    definitions = {"$defs": {"A": {"items": {"$ref": "#"}}}}
    place({**first, **definitions}, "one", components)
    place({**other, **definitions}, "two", components)
    assert components.schemas["A"] == {"items": ref("one")}
    assert components.schemas["two_A"] == {"items": ref("two")}


def test_a_long_chain_of_definitions_is_accepted() -> None:
    components = Components({})
    chain = {f"D{number}": {"items": {"$ref": f"#/$defs/D{number + 1}"}} for number in range(2_000)}
    placed = place({"$ref": "#/$defs/D0", "$defs": {**chain, "D2000": {"type": "null"}}}, components=components)
    assert placed == ref("D0")
    assert len(components.schemas) == 2_001


def test_a_discriminator_follows_too() -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/Cat"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "Dog"}},
        "$defs": {"Cat": {"type": "object"}},
    }
    mapping = {"cat": f"{PREFIX}Cat", "dog": "Dog"}
    assert place(schema)["discriminator"] == {"propertyName": "kind", "mapping": mapping}


def test_older_dialects_are_lowered() -> None:
    assert place({"type": "string", "nullable": True}, dialect="openapi-3.0") == {"type": ["string", "null"]}
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}
    assert place(draft4) == {"exclusiveMinimum": 1}


@pytest.mark.parametrize("schema", [True, {}, {"$ref": "https://far.example/x"}, {"items": {"$ref": "#/$defs/Gone"}}])
def test_what_says_nothing_or_leads_nowhere_is_anything(schema: Any) -> None:
    assert place(schema) == {}


def test_what_is_used_in_several_places_is_a_component_unless_it_says_little() -> None:
    components = Components({})
    for little in ({"type": "integer"}, {}, ref("X"), False):
        assert components.share(little, "op_output") == little
    assert components.share({"enum": [1]}, "op_output") == ref("op_output")
    assert components.share({"enum": [1]}, "other_output") == ref("op_output")
    assert components.share({"enum": [2]}, "op_output") == ref("op_output_2")
    assert components.share({"enum": [3]}, "op_output") == ref("op_output_3")


leaves = st.sampled_from([{"type": "integer"}, {"type": "string"}, {"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}])
schemas = st.recursive(
    leaves,
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("xy"), inner, max_size=2)}
        )
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
    ),
    max_leaves=4,
)
objects = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("xy"), schemas, max_size=2)}
)
values = st.recursive(
    st.integers(0, 1) | st.just("s"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)


@given(schemas, objects, objects, st.lists(values, max_size=5))
def test_a_schema_means_the_same_wherever_it_is_placed(root: Any, a: Any, b: Any, samples: list[Any]) -> None:
    original = Schema({**root, "$defs": {"A": a, "B": b}})
    components = Components({"A": {"type": "null"}})
    moved = whole(components.place(original, "op"), components)
    again = whole(components.place(original, "op_again"), components)
    for value in samples:
        assert original.is_valid(value) == moved.is_valid(value) == again.is_valid(value)


def test_base64_text_has_the_format_by_which_tools_know_it() -> None:
    data = {"type": "string", "contentEncoding": "base64"}
    assert place({"properties": {"data": data}}) == {"properties": {"data": {**data, "format": "byte"}}}
    assert place({**data, "format": "own"}) == {**data, "format": "own"}


def test_a_discriminator_keeps_its_variants_and_drops_those_that_are_missing() -> None:
    schema = {
        "$ref": "#/$defs/Pet",
        "$defs": {
            "Pet": {
                "type": "object",
                "discriminator": {
                    "propertyName": "kind",
                    "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog", "other": "Other"},
                },
            },
            "Cat": {"allOf": [{"$ref": "#/$defs/Pet"}], "properties": {"lives": {"type": "integer"}}},
        },
    }
    components = Components({})
    assert place(schema, components=components) == ref("Pet")
    placed: Any = components.schemas
    assert placed["Pet"]["discriminator"]["mapping"] == {"cat": PREFIX + "Cat", "other": "Other"}
    assert placed["Cat"]["allOf"] == [ref("Pet")]
    nothing = {"discriminator": {"propertyName": "kind", "mapping": {"dog": "#/$defs/Dog"}}}
    assert place(nothing) == {"discriminator": {"propertyName": "kind"}}
    assert "mapping" in nothing["discriminator"]  # the schema of the operation is not changed


def test_the_branches_of_a_discriminated_union_are_references() -> None:
    wrapped = {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"kind": {"not": {"enum": ["b"]}}}}
    other = {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"kind": {"const": "a"}}}
    definitions = {"A": {"type": "object"}, "B": {"type": "object"}}
    union = {"anyOf": [wrapped, other, {"$ref": "#/$defs/B"}], "$defs": definitions}
    assert place(union)["anyOf"][0] == {**wrapped, "allOf": [ref("A")]}
    found = place({**union, "discriminator": {"propertyName": "kind"}})
    assert found["anyOf"] == [ref("A"), {**other, "allOf": [ref("A")]}, ref("B")]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": "array", "prefixItems": [{"type": "null"}]},
            {"type": "array", "prefixItems": [{"type": "null"}], "items": {}},
        ),
        (
            {"type": "array", "prefixItems": [{"type": "null"}, {}], "maxItems": 2},
            {
                "type": "array",
                "prefixItems": [{"type": "null"}, {}],
                "maxItems": 2,
                "items": {"anyOf": [{"type": "null"}, {}]},
            },
        ),
        ({"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}}),
        ({"type": "string", "nullable": True, "min_items": 1, "x-a": 1}, {"type": "string", "x-a": 1}),
        ({"type": "object", "default": None}, {"type": "object"}),
        ({"type": "object", "items": {}, "properties": {}}, {"type": "object", "properties": {}}),
        ({"type": ["string", "null"], "properties": {}}, {"type": ["string", "null"]}),
        ({"type": "integer", "enum": [1, 2.0, "a", True]}, {"type": "integer", "enum": [1, 2.0]}),
        ({"type": "object", "enum": ["a"]}, {"type": "object"}),
        ({"properties": {}, "enum": [1, "a"]}, {"properties": {}, "enum": [1, "a"]}),
        ({"type": "integer", "default": 5, "maximum": 4}, {"type": "integer", "maximum": 4}),
        ({"type": "integer", "default": 5}, {"type": "integer", "default": 5}),
        ({"type": "object", "examples": [{"$ref": "#/nowhere"}]}, {"type": "object"}),
        ({"type": "object", "examples": [{"$price": 1}]}, {"type": "object", "examples": [{"$price": 1}]}),
    ],
    ids=[
        "open tuple",
        "tuple",
        "nullable array",
        "unknown keywords",
        "null",
        "items",
        "properties",
        "enum",
        "no enum",
        "no type",
        "too large",
        "valid",
        "reference",
        "dollar",
    ],
)
def test_what_validators_of_documents_reject_is_left_out(schema: Any, expected: Any) -> None:
    assert place(schema) == expected


def placed_in(seconds: float, schemas: list[Any]) -> Components:
    """Place schemas within this many seconds of CPU."""
    components, spent = Components({}), time.process_time()
    for number, each in enumerate(schemas):
        assert place(each, f"op{number}", components) != {}
    assert time.process_time() - spent < seconds
    return components


def test_thousands_of_anchors_are_found_in_proportion() -> None:
    definitions = {f"d{number}": {"$anchor": f"a{number}", "maxLength": number} for number in range(2_000)}
    properties = {f"p{number}": {"$ref": f"#a{number}"} for number in range(2_000)}
    placed = placed_in(5, [{"properties": properties, "$defs": definitions}])  # 32 s
    assert len(placed.schemas) == 2_000


def test_names_that_become_the_same_are_numbered_in_proportion() -> None:
    names = [f"d{chr(0x4E00 + number)}" for number in range(6_000)]
    schema = {
        "properties": {f"p{number}": {"$ref": f"#/$defs/{name}"} for number, name in enumerate(names)},
        "$defs": {name: {"maxLength": number} for number, name in enumerate(names)},
    }
    placed = placed_in(5, [schema])  # 12 s
    assert len(placed.schemas) == 6_000
    assert {"d", "op0_d", "op0_d_2", "op0_d_5999"} <= placed.schemas.keys()


def test_a_name_that_thousands_of_schemas_define_differently_is_compared_a_bounded_number_of_times() -> None:
    def schema(number: int) -> dict[str, Any]:
        fields = {f"q{each}": {"type": "string"} for each in range(10)}
        definition = {"type": "object", "properties": fields, "maxProperties": number}
        return {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": definition}}

    placed = placed_in(5, [schema(number) for number in range(3_000)])  # 13 s
    assert len(placed.schemas) == 3_000


def test_chains_of_definitions_that_differ_at_their_end_are_compared_in_proportion() -> None:
    def chain(end: int) -> dict[str, Any]:
        links = {f"d{each}": {"properties": {"a": {"$ref": f"#/$defs/d{each + 1}"}}} for each in range(600)}
        return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**links, "d600": {"maxLength": end}}}

    assert len(placed_in(5, [chain(number) for number in range(6)]).schemas) == 6 * 601  # 18 s
    assert len(placed_in(5, [chain(1) for _ in range(6)]).schemas) == 601
