from typing import Any

import pytest

from opwire.errors import SchemaError
from opwire.schema.shape import Checks
from tests.requirements import requirement

ROOT: dict[str, Any] = {
    "properties": {"part": {"$ref": "#/$defs/word", "default": "ok"}, "bad": {"$ref": "#/$defs/word", "default": 5}},
    "$defs": {"word": {"type": "string"}},
}


@pytest.fixture
def checks() -> Checks:
    return Checks(ROOT)


def test_a_part_is_checked_with_the_references_of_its_root(checks: Checks) -> None:
    part = ROOT["properties"]["part"]
    assert checks.is_valid(part, "word")
    assert not checks.is_valid(part, 5)


def test_booleans_answer_for_themselves(checks: Checks) -> None:
    assert checks.is_valid(True, 1)
    assert not checks.is_valid(False, 1)


def test_each_part_is_compiled_once(checks: Checks) -> None:
    assert checks.conformity(ROOT, strip=True) is checks.conformity(ROOT, strip=True)
    assert checks.conformity(ROOT, strip=True) is not checks.conformity(ROOT, strip=False)


def test_a_default_is_usable_if_it_fits_its_own_schema(checks: Checks) -> None:
    part, bad = ROOT["properties"]["part"], ROOT["properties"]["bad"]
    assert checks.is_usable(part, part["default"])
    assert not checks.is_usable(bad, bad["default"])


def test_an_unusable_default_is_not_missed_by_a_value_that_conforms(checks: Checks) -> None:
    assert checks.conforms(ROOT, {"part": "x"}, strip=True)
    assert not checks.conforms(ROOT, {"bad": "x"}, strip=True)


@requirement("fit.patterns")
def test_a_pattern_that_would_hang_a_backtracking_engine_just_does_not_match(checks: Checks) -> None:
    assert checks.matches("^(a+)+$", "aaa")
    assert not checks.matches("^(a+)+$", "a" * 5000 + "!")
    assert not checks.matches("^(?=(a+)+$)", "a" * 200 + "!")


def test_what_is_not_json_is_not_valid(checks: Checks) -> None:
    assert not checks.is_valid(ROOT, {1: 2})
    assert not checks.conforms(ROOT, {"part": b"word"}, strip=True)
    assert not checks.matches("^a", "\ud800")


def test_a_part_that_cannot_be_compiled_is_an_error() -> None:
    root = {"$ref": "#/$defs/gone"}
    with pytest.raises(SchemaError):
        Checks(root).is_valid(root, 1)


def test_a_part_that_cannot_be_closed_raises_the_same_error_each_time() -> None:
    root = {"properties": {"a": {"$ref": "#/$defs/gone"}}}
    checks = Checks(root)
    errors: list[pytest.ExceptionInfo[SchemaError]] = []
    for _ in range(3):
        with pytest.raises(SchemaError) as caught:
            checks.conformity(root, strip=True)
        errors.append(caught)
    assert len({str(each.value) for each in errors}) == 1
    assert "gone" in str(errors[0].value)
    assert len({id(each.value) for each in errors}) == 3  # raised again, one error would grow by a traceback per value
