from itertools import count as count_up
from typing import Any

import pytest

from opwire.errors import SchemaError
from opwire.schema.effort import Effort, ExhaustedError
from opwire.schema.fit import Fitter
from opwire.schema.report import Reporter
from opwire.schema.validator import Checks, MeteredChecks, compile_validator

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


def test_a_pattern_that_would_hang_a_backtracking_engine_just_does_not_match(checks: Checks) -> None:
    """Regular expressions of foreign schemas cannot hang the process."""
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


def test_a_mere_reference_and_its_target_are_compiled_once() -> None:
    compiled: list[int] = []
    checks = Checks(ROOT, compiled=lambda _document, parts: compiled.append(parts))
    for part in (ROOT["properties"]["part"], ROOT["properties"]["bad"], ROOT["$defs"]["word"]):
        assert checks.is_valid(part, "word")
    assert compiled == [1]


def test_references_in_a_circle_are_followed_once() -> None:
    root: dict[str, Any] = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    assert Checks(root).shapes.resolved(root["$defs"]["a"]) is root["$defs"]["a"]


def doubling(levels: int) -> dict[str, Any]:
    """Definitions that each name the next one six times."""

    def names(level: int) -> dict[str, Any]:
        following = {"$ref": f"#/$defs/d{level + 1}"}
        return {name: {"anyOf": [following, following | {"minProperties": 0}]} for name in "abc"}

    definitions = {f"d{level}": {"properties": names(level)} for level in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": False}}


def chain(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{level}": {"properties": {"a": {"$ref": f"#/$defs/d{level + 1}", "minProperties": 0}, "b": {"minLength": 1}}}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "string"}}}


def variants(count: int) -> dict[str, Any]:
    each = [{"properties": {f"k{n}": {"type": "string"}}, "required": [f"k{n}"]} for n in range(count)]
    return {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, *each]}


@pytest.mark.parametrize("root", [doubling(60), chain(190), variants(1_000)], ids=["doubling", "chain", "variants"])
def test_a_report_compiles_few_times_as_many_parts_as_the_schema_has(root: dict[str, Any]) -> None:
    compiled: list[int] = []
    checks = Checks(root, compiled=lambda _document, parts: compiled.append(parts))
    value: Any = 1
    for _ in range(190):
        value = {"a": value}
    whole = compile_validator(True)  # not asked: the value is not small
    assert Reporter(checks, whole).problems(value, 100)
    assert sum(compiled) <= 1_000 + 2 * checks.costs.size
    assert len(compiled) <= (1_000 + 2 * checks.costs.size) // 10


def test_a_check_of_a_part_counts_for_what_its_meter_measures() -> None:
    def checks_of_one_value(count: int) -> int:
        root, value = variants(count), {"a": {"a": {"z": 1}}}
        checks = MeteredChecks(Checks(root), Effort(value))
        for times in count_up():
            try:
                assert not checks.is_valid(root, value)
            except ExhaustedError:
                return times
        raise AssertionError

    assert checks_of_one_value(200) * 5 < checks_of_one_value(20)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of items in each check of a repair."""
    found: list[int] = []
    conform = MeteredChecks.conform

    def count(self: MeteredChecks, schema: Any, items: list[Any], *, strip: bool) -> bool:
        found.append(len(items))
        return conform(self, schema, items, strip=strip)

    monkeypatch.setattr(MeteredChecks, "conform", count)
    return found


ROWS = {"items": {"properties": {"a": {"type": "integer"}}}}


def test_many_items_that_need_a_repair_are_repaired() -> None:
    fitted = Fitter(Checks(ROWS)).fit([{"a": n, "z": n} for n in range(1_000)], strip=True)
    assert fitted.value == [{"a": n} for n in range(1_000)]
    assert len(fitted.repairs) == 1_000
    mixed = [{"a": n} if n % 3 else {"a": n, "z": n} for n in range(1_000)]
    assert Fitter(Checks(ROWS)).fit(mixed, strip=True).value == [{"a": n} for n in range(1_000)]


@pytest.mark.parametrize("bad", [0, 31, 32, 500, 999])
def test_items_beside_one_that_needs_a_repair_are_checked_together(checked: list[int], bad: int) -> None:
    rows = [{"a": n} for n in range(1_000)]
    given = [*rows[:bad], {"a": bad, "z": 1}, *rows[bad + 1 :]]
    fitted = Fitter(Checks(ROWS)).fit(given, strip=True)
    assert fitted.value == rows
    assert [each.path for each in fitted.repairs] == [f"/{bad}/z"]
    assert all(new is old for index, (new, old) in enumerate(zip(fitted.value, given, strict=True)) if index != bad)
    assert len(checked) < 100
