"""Schemas of documents as JSON Schema 2020-12 that stands alone."""

import time
from typing import Any

import pytest

from opwire.openapi.client.document import DocumentSet
from opwire.openapi.client.schemas import Direction, SchemaRewriter
from opwire.registry.source import Report
from opwire.schema import Schema
from tests.openapi.client.documents import document, input_of, json_body

PET = {"$ref": "#/components/schemas/Pet"}


class Reading:
    """Schemas of one document, read in one direction."""

    def __init__(self, version: str = "3.1", direction: Direction = "output", **schemas: Any) -> None:
        self.report = Report()
        self.direction: Direction = direction
        root = document({}, f"{version}.0" if version != "2.0" else version, schemas=schemas)
        self.documents = DocumentSet(root, "", version)  # pyright: ignore[reportArgumentType]
        self.schemas = SchemaRewriter(self.documents, self.report)

    def read(self, schema: Any) -> Any:
        written = self.schemas.read(schema, self.documents.main, self.direction, "here")
        json = self.schemas.complete(written, self.direction)
        Schema(json).compile()
        return json


def test_only_what_is_needed_stands_under_defs() -> None:
    reading = Reading(
        Pet={"properties": {"owner": {"$ref": "#/components/schemas/Owner"}}}, Owner={"type": "string"}, Other={}
    )
    assert reading.read({"anyOf": [PET]}) == {
        "anyOf": [{"$ref": "#/$defs/Pet"}],
        "$defs": {"Owner": {"type": "string"}, "Pet": {"properties": {"owner": {"$ref": "#/$defs/Owner"}}}},
    }


def test_what_is_nothing_but_a_reference_becomes_what_it_refers_to() -> None:
    reading = Reading(
        Pet={"$ref": "#/components/schemas/Animal"}, Animal={"type": "object", "properties": {"next": PET}}
    )
    assert reading.read(PET) == {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/Pet"}},
        "$defs": {
            "Animal": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Pet"}}},
            "Pet": {"$ref": "#/$defs/Animal"},
        },
    }
    assert Reading(Pet={"type": "null"}).read(PET) == {"type": "null"}


def test_recursion_is_kept() -> None:
    json = Reading(Pet={"type": "object", "properties": {"kids": {"type": "array", "items": PET}}}).read(PET)
    assert set(json["$defs"]) == {"Pet"}
    schema = Schema(json)
    assert schema.is_valid({"kids": [{"kids": []}]})
    assert not schema.is_valid({"kids": [{"kids": 7}]})


def test_definitions_are_shared_and_not_copied() -> None:
    reading = Reading(Pet={"type": "object"})
    one, other = reading.read({"anyOf": [PET]}), reading.read({"type": "array", "items": PET})
    assert one["$defs"]["Pet"] is other["$defs"]["Pet"]


def test_properties_that_are_named_like_keywords_are_not_keywords() -> None:
    names = ("$ref", "default", "enum", "examples", "const", "properties", "required", "readOnly", "x-y")
    refs = {name: {"$ref": f"#/components/schemas/{name}"} for name in names}
    others: dict[str, Any] = {name: {"type": "integer"} for name in names}
    json = Reading(Pet={"type": "object", "properties": refs}, **others).read(PET)
    assert set(json["$defs"]) == {name.replace("$", "_") for name in names}
    assert not Schema(json).is_valid({"default": "x"})


def test_the_dialect_of_3_0_is_lowered() -> None:
    reading = Reading(
        "3.0",
        Pet={
            "type": "object",
            "properties": {
                "name": {"type": "string", "nullable": True, "example": "Rex"},
                "kind": {"type": "string", "enum": ["cat"], "nullable": True},
                "age": {
                    "type": "number",
                    "minimum": 0,
                    "exclusiveMinimum": True,
                    "maximum": 9,
                    "exclusiveMaximum": False,
                },
                "owner": {"allOf": [{"$ref": "#/components/schemas/Owner"}], "nullable": True},
                "other": {"$ref": "#/components/schemas/Owner", "nullable": True, "type": "integer"},
            },
        },
        Owner={"type": "object"},
    )
    json = reading.read(PET)
    schema = Schema(json)
    assert schema.is_valid({"name": None, "kind": None, "age": 1, "owner": None, "other": {}})
    for wrong in ({"age": 0}, {"name": 1}, {"kind": "dog"}, {"other": None}, {"other": 1}, {"owner": 1}):
        assert not schema.is_valid(wrong), wrong
    assert json["properties"]["name"]["examples"] == ["Rex"]


def test_swagger_knows_nullable_by_its_extension() -> None:
    json = Reading("2.0", Pet={"type": "string", "x-nullable": True}).read({"$ref": "#/definitions/Pet"})
    assert json == {"type": ["string", "null"]}


def test_siblings_of_a_reference_count_since_3_1() -> None:
    given = {**PET, "minProperties": 1, "description": "mine"}
    newer = Reading("3.1", Pet={"type": "object"}).read(given)
    assert {key: newer[key] for key in ("$ref", "minProperties", "description")} == {**given, "$ref": "#/$defs/Pet"}
    older = Reading("3.0", Pet={"type": "object"}).read(given)
    assert older == {"type": "object"}


def test_what_3_1_leaves_of_older_dialects_is_understood() -> None:
    json = Reading().read(
        {"type": "array", "items": [{"type": "string"}], "contains": {"minimum": 1, "exclusiveMinimum": True}}
    )
    assert json == {"type": "array", "prefixItems": [{"type": "string"}], "contains": {"exclusiveMinimum": 1}}


@pytest.mark.parametrize(("direction", "left"), [("input", {"name", "secret"}), ("output", {"name", "id"})])
def test_what_is_for_the_other_direction_is_left_out(direction: Direction, left: set[str]) -> None:
    """readOnly is left out of inputs, writeOnly out of outputs."""
    properties = {"id": {"readOnly": True}, "name": {}, "secret": {"writeOnly": True}}
    pet = {"type": "object", "properties": properties, "required": ["id", "name", "secret"]}
    json = Reading(direction=direction, Pet=pet).read(PET)
    assert set(json["properties"]) == left
    assert set(json["required"]) == left


def test_what_is_hidden_in_one_part_is_not_required_by_another() -> None:
    reading = Reading(
        direction="input",
        Id={"type": "integer", "readOnly": True},
        Pet={"type": "object", "properties": {"id": {"$ref": "#/components/schemas/Id"}, "name": {}}},
    )
    json = reading.read({"allOf": [PET, {"required": ["id", "name"]}], "required": ["id"]})
    assert Schema(json).is_valid({"name": "Rex"})
    assert not Schema(json).is_valid({})


@pytest.mark.parametrize("mapping", [{"c": "#/components/schemas/Cat", "d": "Dog"}, None])
def test_a_discriminator_chooses_the_variant(mapping: dict[str, str] | None) -> None:
    variants = [{"$ref": f"#/components/schemas/{name}"} for name in ("Cat", "Dog")]
    reading = Reading(
        Cat={
            "type": "object",
            "properties": {"kind": {}, "lives": {"type": "integer", "default": 9}},
            "required": ["lives"],
        },
        Dog={
            "type": "object",
            "properties": {"kind": {}, "lives": {"type": "integer", "default": 1}},
            "required": ["lives"],
        },
    )
    discriminator = {"propertyName": "kind", **({"mapping": mapping} if mapping else {})}
    schema = Schema(reading.read({"oneOf": variants, "discriminator": discriminator}))
    assert schema.fit({"kind": "d" if mapping else "Dog"}).value["lives"] == 1
    assert schema.fit({"kind": "c" if mapping else "Cat"}).value["lives"] == 9


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "#/components/schemas/Nope"}, "there is no 'Nope'"),
        ({"$ref": "#/info/title"}, "not a schema"),
        ({"$ref": "#/components/schemas/Circle"}, "part of a cycle"),
        ({"$ref": "other.yaml#/Pet"}, "not loaded"),
        ({"type": "object", "properties": {"a": "string"}}, ""),
        ("string", "a schema is an object, not str"),
        ({"$dynamicRef": "#T"}, "is ambiguous"),
    ],
)
def test_a_schema_that_cannot_be_used_says_so_and_takes_anything(schema: Any, says: str) -> None:
    reading = Reading(Circle={"$ref": "#/components/schemas/Round"}, Round={"$ref": "#/components/schemas/Circle"})
    assert Schema(reading.read(schema)).is_valid({"a": 1})
    assert any(says in warning for warning in reading.report.warnings) or not says


def test_a_schema_that_is_nested_too_deeply_takes_anything() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"not": deep}
    reading = Reading()
    assert reading.read(deep) is True
    assert "nested too deeply" in reading.report.warnings[0]


def test_ids_and_anchors_inside_schemas_are_understood() -> None:
    tree = {
        "$id": "https://api.test/tree",
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/node"}, "leaf": {"$ref": "#leaf"}},
        "$defs": {"node": {"type": "integer"}, "leaf": {"$anchor": "leaf", "type": "null"}},
    }
    schema = Schema(Reading(Tree=tree).read({"$ref": "https://api.test/tree"}))
    assert schema.is_valid({"next": 1, "leaf": None})
    assert not schema.is_valid({"next": "x"})
    assert not schema.is_valid({"leaf": "x"})


@pytest.mark.parametrize(
    "node",
    [
        {"$dynamicAnchor": "node", "type": "object", "properties": {"next": {"$dynamicRef": "#node"}}},
        {"$recursiveAnchor": True, "type": "object", "properties": {"next": {"$recursiveRef": "#"}}},
    ],
)
def test_dynamic_references_with_one_target_are_ordinary_ones(node: dict[str, Any]) -> None:
    schema = Schema(Reading(Node=node).read({"$ref": "#/components/schemas/Node"}))
    assert schema.is_valid({"next": {"next": {}}})
    assert not schema.is_valid({"next": {"next": 1}})


def test_odd_names_of_schemas_become_usable_ones() -> None:
    schemas: dict[str, Any] = {"Page«User»": {"type": "integer"}, "a/b": {"type": "string"}}
    reading = Reading(**schemas)
    json = reading.read({"anyOf": [{"$ref": "#/components/schemas/Page«User»"}, {"$ref": "#/components/schemas/a~1b"}]})
    assert Schema(json).is_valid(1)
    assert Schema(json).is_valid("x")
    assert not Schema(json).is_valid(None)


def test_a_reference_into_a_schema_is_a_definition_of_its_own() -> None:
    pet = {"type": "object", "properties": {"name": {"type": "string"}}}
    json = Reading(Pet=pet).read({"$ref": "#/components/schemas/Pet/properties/name"})
    assert json == {"type": "string"}


def test_boolean_schemas_are_referred_to() -> None:
    json = Reading(Any=True, None_=False).read(
        {"properties": {"a": {"$ref": "#/components/schemas/Any"}, "b": {"$ref": "#/components/schemas/None_"}}}
    )
    assert Schema(json).is_valid({"a": 1})
    assert not Schema(json).is_valid({"b": 1})


def test_a_discriminator_that_very_many_variants_inherit_is_read_in_linear_time() -> None:
    count = 1_500
    schemas: dict[str, Any] = {
        "Base": {"discriminator": {"propertyName": "t", "mapping": {f"t{each}": f"V{each}" for each in range(count)}}},
        **{f"V{each}": {"allOf": [{"$ref": "#/components/schemas/Base"}]} for each in range(count)},
    }
    union = {"oneOf": [{"$ref": f"#/components/schemas/V{each}"} for each in range(count)]}
    spent = time.process_time()
    input_of({"requestBody": json_body(union)}, schemas=schemas)
    assert time.process_time() - spent < 4  # of CPU; every variant read the whole mapping, which took 9 s
