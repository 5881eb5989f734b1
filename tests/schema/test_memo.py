"""Verdicts that are remembered: the same ones, in time that grows with parts × places and not with the ways to them."""

from collections.abc import Iterator
from itertools import product
from random import Random
from time import process_time
from typing import Any

import pytest

from opwire import SchemaError
from opwire.schema.cost import SchemaCosts
from opwire.schema.memo import memoised
from opwire.schema.validator import Validator, compile_validator


def ref(number: int) -> dict[str, str]:
    return {"$ref": f"#/$defs/{number}"}


def document(definitions: list[Any]) -> dict[str, Any]:
    return {**ref(0), "$defs": {str(number): each for number, each in enumerate(definitions)}}


def remembering(schema: dict[str, Any]) -> Validator:
    return compile_validator(memoised(schema, SchemaCosts(schema)))


def nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"a": leaf}
    return leaf


def linked(count: int, *steps: int, keyword: str = "anyOf") -> dict[str, Any]:
    """Definitions in a ring, each of which names others twice, a number of steps on."""
    return document(
        [
            {"type": "object", "properties": {"a": {keyword: [ref((n + step) % count) for step in (*steps, *steps)]}}}
            for n in range(count)
        ]
    )


@pytest.mark.parametrize("steps", [(1,), (-1,), (1, -1), (2, -3), (9,), (-9,), (17, -17), (31, 5, -7)], ids=repr)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_no_order_of_the_definitions_brings_the_doubling_back(steps: tuple[int, ...], keyword: str) -> None:
    check = remembering(linked(101, *steps, keyword=keyword)).is_valid
    began = process_time()
    assert not check(nested(28, 1))  # 2 ** 28 looks would take half a minute
    check(nested(28, {}))
    assert process_time() - began < 5


def graphs() -> Iterator[dict[str, Any]]:
    for seed, count in product(range(40), (3, 8, 20)):
        random = Random(seed)
        yield document([_definition(random, count) for _ in range(count)])


def _definition(random: Random, count: int) -> dict[str, Any]:
    def some() -> list[Any]:
        return [ref(random.randrange(count)) for _ in range(random.choice((1, 2, 3)))]

    schema: dict[str, Any] = {
        "properties": {"a": {random.choice(("anyOf", "oneOf", "allOf")): some()}, "b": random.choice((True, False))}
    }
    if random.random() < 0.3:
        schema["required"] = [random.choice("ab")]
    if random.random() < 0.3:
        schema["anyOf"] = [{"type": "string"}, {"properties": {"a": {"not": some()[0]}}}]
    if random.random() < 0.3:
        schema["additionalProperties"] = random.choice((False, some()[0]))
    return {"type": random.choice(("object", ["object", "integer"])), **schema}


def test_no_verdict_changes() -> None:
    changed = 0
    for schema in graphs():
        bare, other = compile_validator(schema), remembering(schema)
        changed += memoised(schema, SchemaCosts(schema)) is not schema
        for levels, leaf in product(range(5), ({}, {"b": 1}, {"c": {}}, 1, "x", {"a": {"c": 1}, "b": {}})):
            value = nested(levels, leaf)
            assert other.is_valid(value) is bare.is_valid(value), (schema, value)
    assert changed > 50


def test_what_looks_like_a_reference_in_data_is_left_alone() -> None:
    schema = linked(5, 1)
    schema["$defs"]["0"]["enum"] = [{"$ref": "#/$defs/1"}, {"a": {"a": 1}}]
    assert remembering(schema).is_valid({"$ref": "#/$defs/1"})
    assert not remembering(schema).is_valid({"$ref": "#/$defs/2"})


def test_a_schema_that_does_not_multiply_stays_unchanged() -> None:
    schema = document([{"properties": {"a": ref(0), "b": ref(1)}}, {"type": "string"}])
    assert memoised(schema, SchemaCosts(schema)) is schema
    assert memoised(True, SchemaCosts(True)) is True


def test_unevaluated_members_among_definitions_that_multiply_are_refused() -> None:
    schema = linked(10, 1)
    schema["$defs"]["3"]["unevaluatedProperties"] = False
    with pytest.raises(SchemaError, match="unevaluated"):
        remembering(schema)


def test_definitions_that_multiply_and_apply_their_own_negation_are_refused() -> None:
    schema = linked(10, 1)
    schema["$defs"]["3"]["anyOf"] = [{"allOf": [ref(4)]}, True]
    remembering(schema)
    schema["$defs"]["4"]["allOf"] = [ref(3)]
    schema["$defs"]["5"]["not"] = {"not": True}
    remembering(schema)
    schema["$defs"]["4"]["not"] = {"not": ref(3)}
    with pytest.raises(SchemaError, match="own negation"):
        remembering(schema)


def test_too_many_definitions_that_multiply_are_refused() -> None:
    twice = {"properties": {"a": {"anyOf": [ref(0), ref(0)]}}}
    schema = {
        "allOf": [ref(number) for number in range(2_100)],
        "$defs": document([dict(twice) for _ in range(2_100)])["$defs"],
    }
    with pytest.raises(SchemaError, match="of its definitions multiply"):
        memoised(schema, SchemaCosts(schema))
