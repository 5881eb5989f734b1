"""Unions with a discriminator."""

from typing import Any

import pytest

from opwire.openapi.client.schemas import discriminated, tags_of
from opwire.schema import Schema
from tests.openapi.client.documents import input_of, json_body

KIND = {"type": "string"}
CAT = {"type": "object", "required": ["kind"], "properties": {"kind": KIND, "lives": {"type": "integer"}}}
DOG = {"type": "object", "required": ["kind", "bark"], "properties": {"kind": KIND, "bark": {"type": "boolean"}}}
BRANCHES = [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}]
MAPPING = {"c": "Cat", "d": "#/components/schemas/Dog"}


def pets(union: str = "oneOf", version: str = "3.0.3", schemas: Any = None, **discriminator: Any) -> Schema:
    schema = {union: BRANCHES, "discriminator": {"propertyName": "kind", **discriminator}}
    operation = {"requestBody": json_body(schema)}
    return Schema(input_of(operation, version=version, schemas=schemas or {"Cat": CAT, "Dog": DOG}))


@pytest.mark.parametrize("union", ["oneOf", "anyOf"])
@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
@pytest.mark.parametrize(("cat", "dog", "mapping"), [("Cat", "Dog", {}), ("c", "d", {"mapping": MAPPING})])
def test_the_tag_says_which_variant_counts(union: str, version: str, cat: str, dog: str, mapping: Any) -> None:
    schema = pets(union, version, **mapping)
    assert schema.is_valid({"body": {"kind": dog, "bark": True}})  # by their shapes alone, this could be both
    assert schema.is_valid({"body": {"kind": cat, "lives": 9, "bark": 1}})
    assert not schema.is_valid({"body": {"kind": dog, "lives": 9}})
    assert not schema.is_valid({"body": {"kind": cat, "lives": "nine", "bark": True}})


def test_the_problems_are_those_of_the_variant_that_was_meant() -> None:
    (problem,) = pets(mapping=MAPPING).problems({"body": {"kind": "d", "bark": 1}})
    assert problem.path == "/body/bark"


def test_an_unknown_tag_decides_nothing() -> None:
    assert pets().is_valid({"body": {"kind": "tom", "lives": 9}})
    assert not pets().is_valid({"body": {"kind": "tom", "lives": "nine"}})


def test_variants_that_pin_the_tag_themselves_stay_as_they_are() -> None:
    schemas: dict[str, Any] = {
        name: {"type": "object", "properties": {"kind": {"enum": [name.lower()]}}, "required": ["kind"]}
        for name in ("Cat", "Dog")
    }
    json = pets(schemas={"Cat": schemas["Cat"], "Dog": {"allOf": [schemas["Dog"]]}}).json
    assert isinstance(json, dict)
    assert json["properties"]["body"]["anyOf"] == [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]


def test_a_base_that_lists_its_extensions_does_not_loop() -> None:
    base = {
        "type": "object",
        "properties": {"kind": KIND},
        "oneOf": BRANCHES,
        "discriminator": {"propertyName": "kind"},
    }
    lives, bark = ({"properties": {name: {"type": kind}}} for name, kind in (("lives", "integer"), ("bark", "boolean")))
    extends = {"$ref": "#/components/schemas/Pet"}
    schemas = {"Pet": base, "Cat": {"allOf": [extends, lives]}, "Dog": {"allOf": [extends, bark]}}
    schema = Schema(input_of({"requestBody": json_body(extends)}, schemas=schemas))
    assert schema.is_valid({"body": {"kind": "Dog", "bark": True, "lives": "?"}})
    assert not schema.is_valid({"body": {"kind": "Dog", "bark": 1}})


@pytest.mark.parametrize("mapping", [{}, {"mapping": {"d": "Dog"}}])
def test_the_discriminator_may_be_that_of_what_the_variants_extend(mapping: Any) -> None:
    base = {"type": "object", "properties": {"kind": KIND}, "discriminator": {"propertyName": "kind", **mapping}}
    lives, bark = ({"properties": {name: {"type": kind}}} for name, kind in (("lives", "integer"), ("bark", "boolean")))
    extends = {"$ref": "#/components/schemas/Pet"}
    schemas = {"Pet": base, "Cat": {"allOf": [extends, lives]}, "Dog": {"allOf": [extends, bark]}}
    schema = Schema(input_of({"requestBody": json_body({"oneOf": BRANCHES})}, schemas=schemas))
    dog = "d" if mapping else "Dog"
    assert schema.is_valid({"body": {"kind": dog, "bark": True}})
    assert not schema.is_valid({"body": {"kind": dog, "bark": 1}})
    assert schema.is_valid({"body": {"kind": "Cat", "bark": 1}})


def test_tags_are_those_of_the_mapping_and_the_names_of_the_schemas() -> None:
    refs: list[str | None] = ["#/$defs/Cat", "#/$defs/Dog", None]
    given = [*BRANCHES, {"type": "object"}]
    assert tags_of(given, {"c": "#/$defs/Cat", "Dog": "#/$defs/Cat"}, refs) == [{"c", "Dog", "Cat"}, set(), set()]


def test_a_branch_without_tags_refuses_none() -> None:
    inline = {"type": "object"}
    apart = discriminated([{"$ref": "#/a"}, {"$ref": "#/b"}, inline], "kind", [{"a"}, {"b", "B"}, set()])
    assert apart == [
        {"allOf": [{"$ref": "#/a"}], "properties": {"kind": {"not": {"enum": ["B", "b"]}}}},
        {"allOf": [{"$ref": "#/b"}], "properties": {"kind": {"not": {"enum": ["a"]}}}},
        inline,
    ]


def test_very_many_variants_are_not_told_apart() -> None:
    branches: list[Any] = [{"$ref": f"#/{number}"} for number in range(100)]
    assert discriminated(branches, "kind", [{str(number)} for number in range(100)]) == branches


def test_thousands_of_tags_do_not_multiply() -> None:
    meant = {f"t{number}": "#/$defs/Cat" for number in range(2_000)}
    tags = tags_of(BRANCHES, meant, ["#/$defs/Cat", "#/$defs/Dog"])
    assert [len(each) for each in tags] == [2_001, 1]
    assert discriminated([{}, {}], "kind", tags) == [{}, {}]
