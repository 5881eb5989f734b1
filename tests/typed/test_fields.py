from dataclasses import dataclass, field
from typing import Any

import attrs
import msgspec
import pytest

from opwire.typed.fields import NOTHING, FieldSpec, class_hints, plain_default, spec_reader, unwrap_qualifiers
from tests.typed import future_types
from tests.typed.catalogue import (
    Account,
    Area,
    Coordinates,
    Created,
    Draft,
    Engine,
    Everything,
    Movie,
    Pair,
    Point,
    Record,
    Sealed,
)


def fields_of(cls: Any) -> dict[str, FieldSpec]:
    read = spec_reader(cls)
    assert read is not None
    return {each.name: each for each in read(cls, class_hints(cls)).fields}


def required(cls: Any) -> set[str]:
    return {name for name, each in fields_of(cls).items() if each.required}


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Point, {"x"}),
        (Everything, {"name"}),
        (Area, {"width", "height"}),
        (Movie, {"title"}),
        (Draft, {"title"}),
        (Record, {"key"}),
        (Pair, {"left"}),
        (Account, {"userName"}),
        (Coordinates, {"lat", "lon"}),
        (Engine, {"power"}),
        (future_types.Late, {"key"}),
        (future_types.LateDict, {"key"}),
    ],
)
def test_fields_without_a_default_are_required(cls: Any, names: set[str]) -> None:
    assert required(cls) == names


def test_class_variables_are_not_fields() -> None:
    assert "total" not in fields_of(Everything)


def test_fields_that_the_class_computes_are_known_but_are_no_arguments() -> None:
    assert not fields_of(Area)["size"].is_argument
    assert not fields_of(Engine)["serial"].is_argument
    assert fields_of(Area)["unit"].hint is str


def test_a_field_goes_by_its_alias_where_its_constructor_does() -> None:
    assert fields_of(Engine)["code"].key == "engine_code"
    assert fields_of(Account)["userName"].key == "user_name"


def test_defaults_are_plain_and_only_there_if_they_are_always_the_same() -> None:
    defaults = {name: each.default for name, each in fields_of(Everything).items()}
    assert defaults == {
        "name": NOTHING,
        "fixed": 1,
        "points": [],
        "colour": "red",
        "when": None,
        "id": NOTHING,
        "flag": False,
    }
    assert fields_of(Engine)["parts"].default == []
    assert fields_of(Account)["openSince"].default is NOTHING


def test_a_default_without_json_form_is_left_out() -> None:
    assert plain_default(object()) is NOTHING
    assert plain_default(float("nan")) is NOTHING
    assert plain_default(Point(1)) == {"x": 1, "y": 0.0}
    assert plain_default(NOTHING, dict) == {}


def test_empty_defaults_are_not_shared_between_schemas() -> None:
    assert plain_default(NOTHING, list) is not plain_default(NOTHING, list)


def test_tags_and_closedness_are_taken_from_the_class() -> None:
    for cls, tag, closed in ((Created, ("event", "created"), False), (Account, None, True), (Sealed, None, True)):
        read = spec_reader(cls)
        assert read is not None
        plan = read(cls, class_hints(cls))
        assert (plan.tag, plan.closed) == (tag, closed)


def test_a_class_without_fields_has_no_plan() -> None:
    assert spec_reader(object) is None
    assert spec_reader(dict) is None
    assert spec_reader(tuple) is None


def test_old_attrs_classes_tell_their_types_without_annotations() -> None:
    import attr

    Old = attr.make_class("Old", {"typed": attr.ib(type=int), "untyped": attr.ib(default=None)})
    assert (fields_of(Old)["typed"].hint, fields_of(Old)["untyped"].hint) == (int, Any)
    assert required(Old) == {"typed"}


def test_a_factory_that_needs_the_instance_has_no_default_to_show() -> None:
    @attrs.define
    class Made:
        base: int = 1
        double: int = attrs.field(default=attrs.Factory(lambda self: self.base * 2, takes_self=True))

    assert fields_of(Made)["double"].default is NOTHING
    assert required(Made) == set()


def test_only_classes_that_msgspec_builds_like_their_constructor_are_native() -> None:
    @dataclass(init=False)
    class Custom:
        value: int

        def __init__(self, value: int) -> None:
            self.value = value + 1

    @dataclass
    class Computed:
        value: int = field(init=False, default=1)

    for cls, native in ((Point, True), (Custom, False), (Computed, False), (Area, False), (Engine, False)):
        read = spec_reader(cls)
        assert read is not None
        assert read(cls, class_hints(cls)).native is native


def test_marks_around_a_hint_are_taken_off() -> None:
    from typing import Final, NotRequired

    assert unwrap_qualifiers(NotRequired[int]) == ({"NotRequired"}, int)
    assert unwrap_qualifiers(Final[int]) == ({"Final"}, int)
    assert unwrap_qualifiers(int) == (set(), int)
    assert msgspec.NODEFAULT is NOTHING
