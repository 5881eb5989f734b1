from typing import Any

import pytest

from opwire.schema.fit import Demand, Evaluator, Force
from opwire.schema.validator import Checks


def applied(schema: Any, value: Any) -> list[tuple[str, Force]]:
    """The titles of what applies, with its force."""
    scope = Evaluator(Checks(schema)).scope([Demand(schema, Force.FILL)], value)
    return [(each.node["title"], each.force) for each in scope.applied if "title" in each.node]


def titles(schema: Any, value: Any) -> list[str]:
    return [title for title, _ in applied(schema, value)]


def variant(title: str, *, required: str = "", **properties: Any) -> dict[str, Any]:
    return {"title": title, "type": "object", "properties": properties, "required": required.split()}


A = variant("A", required="a", a={"type": "integer"}, both={"type": "string"})
B = variant("B", required="b", b={"type": "integer"}, both={"type": "string"})
CAT = variant("Cat", required="kind name", kind={"const": "cat"}, lives={"type": "integer"})
DOG = variant("Dog", required="kind name", kind={"enum": ["dog", "wolf"]}, tail={"type": "boolean"})


def test_parts_with_a_type_that_excludes_the_value_do_not_apply() -> None:
    schema = {"title": "all", "allOf": [{"title": "s", "type": "string"}, {"title": "n", "type": ["integer", "null"]}]}
    assert titles(schema, 5) == ["all", "n"]
    assert titles(schema, "x") == ["all", "s"]


@pytest.mark.parametrize(("value", "expected"), [({"k": 1}, ["if", "then"]), ({"k": 2}, ["else"])])
def test_one_side_of_a_condition_applies(value: Any, expected: list[str]) -> None:
    condition = {"title": "if", "properties": {"k": {"const": 1}}}
    assert titles({"if": condition, "then": {"title": "then"}, "else": {"title": "else"}}, value) == expected


def test_a_condition_only_evaluates() -> None:
    assert applied({"if": {"title": "if"}, "then": {"title": "then"}}, 1) == [
        ("if", Force.EVALUATE),
        ("then", Force.FILL),
    ]


def test_dependent_schemas_apply_where_their_property_is_there() -> None:
    schema = {"dependentSchemas": {"a": {"title": "a"}}, "dependencies": {"b": {"title": "b"}, "a": ["b"]}}
    assert titles(schema, {"a": 1}) == ["a"]
    assert titles(schema, {"b": 1}) == ["b"]
    assert titles(schema, "a") == []


def test_all_matching_variants_of_any_of_apply_but_only_the_best_fills() -> None:
    more = variant("more", a={}, c={})
    assert applied({"anyOf": [A, B, more]}, {"a": 1, "c": 2}) == [("A", Force.CONVERT), ("more", Force.FILL)]


def test_matching_variants_that_are_equally_good_do_not_fill() -> None:
    assert applied({"anyOf": [A, B]}, {"a": 1, "b": 2}) == [("A", Force.CONVERT), ("B", Force.CONVERT)]
    assert applied({"oneOf": [A, B]}, {"a": 1, "b": 2}) == [("A", Force.CONVERT), ("B", Force.CONVERT)]


def test_of_several_matching_variants_of_one_of_the_best_alone_applies() -> None:
    assert applied({"oneOf": [A, variant("more", a={}, c={})]}, {"a": 1, "c": 2}) == [("more", Force.FILL)]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"kind": "cat", "tail": True}, ["Cat"]),
        ({"kind": "wolf", "lives": 1}, ["Dog"]),
        ({"kind": "cow", "lives": 1}, []),
        ({"tail": True}, ["Dog"]),
        ({"tail": "long"}, []),
        ({"tail": True, "lives": 9}, []),
        ({"kind": ["cat"]}, []),
        ({}, []),
    ],
)
def test_where_none_matches_constants_choose_and_then_the_score(keyword: str, value: Any, expected: list[str]) -> None:
    """A union's variant is chosen by discriminator, then by const or enum, then by score; where none stands out
    the value is left alone."""
    assert titles({keyword: [CAT, DOG]}, value) == expected


@pytest.mark.parametrize(
    ("mapping", "kind", "expected"),
    [
        ({}, "Cat", ["Cat"]),
        ({"c": "#/$defs/Cat"}, "c", ["Cat"]),
        ({"c": "Dog"}, "c", ["Dog"]),
        ({"Cat": "#/$defs/Dog"}, "Cat", ["Dog"]),
        ({"c": "#/$defs/Gone"}, "c", []),
        ({}, "Cow", []),
        ({}, 5, []),
    ],
)
def test_the_discriminator_comes_before_everything(mapping: dict[str, str], kind: Any, expected: list[str]) -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"allOf": [{"$ref": "#/$defs/Dog"}]}, False],
        "discriminator": {"propertyName": "kind", "mapping": mapping},
        "$defs": {name: variant(name, required="name", kind={"maxLength": 0}) for name in ("Cat", "Dog")},
    }
    assert titles(schema, {"kind": kind}) == expected


def test_a_discriminator_never_names_a_boolean() -> None:
    schema = {"anyOf": [True, variant("A", kind={})], "discriminator": {"propertyName": "kind"}}
    assert titles(schema, {"kind": "True"}) == ["A"]


def test_the_only_variant_that_takes_the_type_needs_no_match() -> None:
    assert titles({"anyOf": [A, {"title": "null", "type": "null"}]}, {"a": "wrong"}) == ["A"]


def test_arrays_are_scored_by_their_items() -> None:
    lists = [{"title": each["title"], "type": "array", "items": each, "minItems": 3} for each in (A, B)]
    assert titles({"anyOf": lists}, [{"b": 1}, {"b": "x"}]) == ["B"]
    assert titles({"anyOf": lists}, [{}]) == []


def test_a_variant_that_a_tag_rules_out_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    is_valid = Checks.is_valid

    def record(self: Checks, schema: Any, value: Any) -> bool:
        checked.append(schema)
        return is_valid(self, schema, value)

    monkeypatch.setattr(Checks, "is_valid", record)
    assert titles({"oneOf": [CAT, DOG]}, {"kind": "wolf", "name": "Lupa"}) == ["Dog"]
    assert checked == [DOG]


def test_scalars_have_no_score() -> None:
    assert titles({"anyOf": [{"title": "low", "maximum": 1}, {"title": "high", "minimum": 9}]}, 5) == []


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"anyOf": [A, B]}, ["z"]),  # nothing points to either: left alone
        ({"properties": {"p": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, []),  # mere constraints
        ({"properties": {"p": {}}, "$ref": "https://example.com/elsewhere"}, ["z"]),
    ],
)
def test_what_cannot_be_resolved_keeps_extras(schema: Any, kept: list[str]) -> None:
    scope = Evaluator(Checks(schema)).scope([Demand(schema, Force.FILL)], {"z": 1})
    assert list(scope.kept(dict.fromkeys(["z"]), strip=True)) == kept


def test_meeting_demands_is_being_valid_against_each() -> None:
    schemas = [{"type": "integer"}, {"minimum": 5}]
    evaluator = Evaluator(Checks({"allOf": schemas}))
    demands = [Demand(each, Force.FILL) for each in schemas]
    assert evaluator.meets(demands, 5)
    assert not evaluator.meets(demands, 4)
