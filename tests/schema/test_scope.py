from typing import Any

import pytest

from opwire.schema.fit import Applied, Demand, Force, Scope
from opwire.schema.validator import Checks

CHECKS = Checks(True)


def scope(*nodes: dict[str, Any], force: Force = Force.FILL, unresolved: bool = False) -> Scope:
    return Scope(CHECKS, [Applied(node, force, ()) for node in nodes], unresolved=unresolved)


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ([{"properties": {"a": {}}}], ["a"]),
        ([{"properties": {"a": {}}}, {"properties": {"z": {}}}], ["a", "z"]),
        ([{"properties": {"a": {}}}, {"patternProperties": {"^z": {}}}], ["a", "z"]),
        ([{"properties": {"a": {}}, "required": ["z"]}], ["a", "z"]),
        ([{}], ["a", "z"]),
        ([{"properties": {"a": {}}}, {"additionalProperties": True}], ["a", "z"]),
        ([{"properties": {"a": {}}}, {"unevaluatedProperties": {}}], ["a", "z"]),
        ([{"properties": {"a": {}}, "additionalProperties": False}, {"additionalProperties": True}], ["a"]),
        ([{"properties": {"a": {}}, "unevaluatedProperties": False}], ["a"]),
        ([{"additionalProperties": False}], []),
    ],
)
def test_undeclared_properties_are_removed(nodes: list[dict[str, Any]], kept: list[str]) -> None:
    assert list(scope(*nodes).kept(dict.fromkeys(["a", "z"]), strip=True)) == kept


def test_only_false_strips_when_the_switch_is_off() -> None:
    assert list(scope({"properties": {"a": {}}}).kept(dict.fromkeys(["z"]), strip=False)) == ["z"]
    assert list(scope({"additionalProperties": False}).kept(dict.fromkeys(["z"]), strip=False)) == []
    assert list(scope({"unevaluatedProperties": False}).kept(dict.fromkeys(["z"]), strip=False)) == []


def test_an_unresolved_union_keeps_everything() -> None:
    assert list(
        scope({"properties": {}, "additionalProperties": False}, unresolved=True).kept(dict.fromkeys(["z"]), strip=True)
    ) == ["z"]


def test_a_condition_declares_but_does_not_close() -> None:
    condition = {"properties": {"a": {}}, "additionalProperties": False}
    assert list(scope(condition, force=Force.EVALUATE).kept(dict.fromkeys(["a", "z"]), strip=True)) == ["a", "z"]


@pytest.mark.parametrize(("unions", "kept"), [((), []), ((1,), ["z"]), ((2,), []), ((2, 1), ["z"])])
def test_a_loose_variant_frees_the_object_only_if_nothing_outside_its_union_declares(
    unions: tuple[int, ...], kept: list[str]
) -> None:
    found = Scope(CHECKS, [Applied({"properties": {"a": {}}}, Force.FILL, unions)], loose=[1])
    assert list(found.kept(dict.fromkeys(["z"]), strip=True)) == kept


def test_a_member_meets_what_is_said_by_name_and_by_pattern() -> None:
    node = {"properties": {"a1": {"title": "name"}}, "patternProperties": {"^a": {"title": "pattern"}}}
    rest = {"additionalProperties": {"title": "rest"}}
    assert [demand.schema for demand in scope(node).member("a1")] == [{"title": "name"}, {"title": "pattern"}]
    assert [demand.schema for demand in scope(node, rest).member("a2")] == [{"title": "pattern"}, {"title": "rest"}]
    assert [demand.schema for demand in scope({**node, **rest}).member("a2")] == [{"title": "pattern"}]


def test_unevaluated_schemas_are_for_what_nothing_else_evaluates() -> None:
    late = {"unevaluatedProperties": {"title": "late"}, "unevaluatedItems": {"title": "late"}}
    assert scope(late).member("a") == [Demand({"title": "late"}, Force.FILL)]
    assert scope(late).item(0) == [Demand({"title": "late"}, Force.FILL)]
    assert scope(late, {"additionalProperties": True}).member("a") == []
    assert scope(late, {"items": {}}).item(0) == [Demand({}, Force.FILL)]
    assert scope(late, {"contains": {}}).item(0) == []


def test_of_several_unevaluated_schemas_none_is_sure_to_apply() -> None:
    assert scope({"unevaluatedProperties": {}}, {"unevaluatedProperties": {"title": "outer"}}).member("a") == []


def test_the_greater_force_wins_where_two_meet() -> None:
    shared: dict[str, Any] = {"title": "both"}
    applied = [
        Applied({"properties": {"a": shared}}, force, ()) for force in (Force.EVALUATE, Force.FILL, Force.CONVERT)
    ]
    assert Scope(CHECKS, applied).member("a") == [Demand(shared, Force.FILL)]


def test_items_follow_the_tuple_of_their_own_schema() -> None:
    found = scope(
        {"prefixItems": [{"title": "0"}, {"title": "1"}], "items": {"title": "+"}}, {"items": {"title": "all"}}
    )
    schemas = [[demand.schema for demand in found.item(index)] for index in range(4)]
    everywhere = {"title": "all"}
    assert schemas == [[{"title": each}, everywhere] for each in ("0", "1", "+", "+")]
    assert found.item(2) is found.item(3)


INTEGER, NUMBER = {"type": "integer"}, {"type": "number"}


@pytest.mark.parametrize(
    ("applied", "wanted"),
    [
        ([Applied(INTEGER, Force.FILL, ())], True),
        ([Applied(INTEGER, Force.EVALUATE, ())], False),
        ([Applied(INTEGER, Force.FILL, ()), Applied(NUMBER, Force.FILL, ())], True),
        ([Applied({"type": ["integer", "null"]}, Force.FILL, ())], True),
        ([Applied({"type": ["integer", "number"]}, Force.FILL, ())], False),
        ([Applied(INTEGER, Force.CONVERT, (1,))], True),
        ([Applied(INTEGER, Force.CONVERT, (1,)), Applied(NUMBER, Force.CONVERT, (1,))], False),
        ([], False),
    ],
)
def test_an_integer_is_wanted_unless_a_variant_takes_any_number(applied: list[Applied], wanted: bool) -> None:
    assert Scope(CHECKS, applied).wants_integer is wanted
