"""What opwire assumes about jsonschema-rs and that library does not document: the reason to require one exact release.

To move to another release, change the pin and run these tests and `test_memo.py`. If one of them fails, `memo` or
`keyword_cost` no longer bounds the time of a check.
"""

import tomllib
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Any

import jsonschema_rs
import pytest

from opwire.schema.keyword_cost import hashed_part


def seconds_of(validator: Any, value: Any) -> float:
    began = process_time()
    validator.is_valid(value)
    return process_time() - began


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def test_opwire_requires_exactly_the_release_that_these_tests_ran_with() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"jsonschema-rs=={version('jsonschema-rs')}" in project["dependencies"]


def test_the_verdict_of_a_definition_is_cached_for_references_that_lead_back_to_it() -> None:
    """`memo` makes every reference such a one."""
    node = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}}}
    leading_back = jsonschema_rs.validator_for({"$ref": "#/$defs/node", "$defs": {"node": node}})
    assert not leading_back.is_valid(nested(100))
    assert seconds_of(leading_back, nested(100)) < 1  # uncached, 2 ** 100 evaluations


def test_the_verdict_of_other_definitions_is_not_cached() -> None:
    """If it is some day, `memo` can go."""
    definitions: dict[str, Any] = {
        str(level): {"properties": {"a": {"anyOf": [{"$ref": f"#/$defs/{level + 1}"}] * 2}}} for level in range(18)
    }
    validator = jsonschema_rs.validator_for({"$ref": "#/$defs/0", "$defs": {**definitions, "18": False}})
    assert seconds_of(validator, nested(18)) > 20 * seconds_of(validator, nested(10))


COLLIDING = {
    "inner containers": [[[] for _ in range(number)] for number in range(1_500)],
    "integers beyond 64 bits": [10**30 + number for number in range(1_500)],
}
DISTINCT = {
    "scalars": list(range(20_000)),
    "arrays": [[number] for number in range(20_000)],
    "objects": [{"a": {"b": number}} for number in range(20_000)],
}


@pytest.mark.parametrize("items", DISTINCT.values(), ids=DISTINCT)
def test_items_with_different_hashes_are_not_compared(items: list[Any]) -> None:
    assert len(set(map(hashed_part, items))) == len(items)
    unique = jsonschema_rs.validator_for({"uniqueItems": True})
    assert unique.is_valid(items)
    assert seconds_of(unique, items) < 1  # 200 million comparisons would take 8 s


@pytest.mark.parametrize("items", COLLIDING.values(), ids=COLLIDING)
def test_a_hash_leaves_out_the_ends_of_containers_and_large_integers(items: list[Any]) -> None:
    assert len(set(map(hashed_part, items))) == 1
    distinct = [[number] for number in range(len(items))]
    unique = jsonschema_rs.validator_for({"uniqueItems": True})
    assert seconds_of(unique, items) > 5 * seconds_of(unique, distinct)


def test_a_pattern_that_exceeds_the_backtracking_limit_does_not_match() -> None:
    limited = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000)
    validator = jsonschema_rs.validator_for({"pattern": "^(?=(a+)+$)"}, pattern_options=limited)
    assert validator.is_valid("a")
    assert not validator.is_valid("a" * 40_000 + "b")
