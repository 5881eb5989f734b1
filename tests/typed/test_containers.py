import collections
from datetime import datetime
from typing import Any

import jsonschema_rs
import pytest

from opwire.errors import ConversionError
from opwire.typed import convert, json_schema_of
from tests.typed.catalogue import Colour, Level


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (dict, {"type": "object", "additionalProperties": True}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (
            dict[int, Any],
            {
                "type": "object",
                "propertyNames": {"type": "string", "pattern": "^-?(0|[1-9][0-9]*)$"},
                "additionalProperties": True,
            },
        ),
        (
            dict[Level, int],
            {
                "type": "object",
                "propertyNames": {"type": "string", "enum": ["1", "2"]},
                "additionalProperties": {"type": "integer"},
            },
        ),
    ],
)
def test_containers_have_the_schema_of_their_parts(hint: Any, schema: dict[str, Any]) -> None:
    assert json_schema_of(hint) == schema


@pytest.mark.parametrize("data", [[1, 1], [1, 1.0], [[1], [1.0]], [{"a": 1}, {"a": 1.0}]])
def test_a_set_refuses_items_that_are_the_same_in_json(data: Any) -> None:
    hint = set[tuple[int, ...]] if isinstance(data[0], list) else set[Any] if data[0] == 1 else set[frozenset[str]]
    assert not jsonschema_rs.is_valid(json_schema_of(set[Any]), data)
    with pytest.raises(ConversionError):
        convert(data, hint)


def test_items_that_are_different_in_json_may_be_one_in_a_set() -> None:
    same_moment = ["2024-02-29T12:00:00Z", "2024-02-29T13:00:00+01:00"]
    assert len(convert(same_moment, set[datetime])) == 1
    assert convert([1, True], set[Any]) == {1}


def test_a_large_set_with_a_repeated_item_is_refused_at_once() -> None:
    with pytest.raises(ConversionError, match="has the same item twice"):
        convert([*range(50_000), 7], set[int])


def test_items_that_cannot_be_hashed_cannot_be_a_set() -> None:
    with pytest.raises(ConversionError, match=r"cannot be a set: .*unhashable type"):
        convert([[1]], set[list[int]])


def test_a_default_dict_makes_new_values_of_its_own_type() -> None:
    assert convert({}, collections.defaultdict[str, list[int]])["new"] == []
    with pytest.raises(KeyError):
        convert({}, collections.defaultdict[str, Colour])["new"]


def test_a_key_that_does_not_fit_is_named_in_the_path() -> None:
    with pytest.raises(ConversionError, match=r"^\$\['1x'\]: the key is not an integer$"):
        convert({"1x": 1}, dict[int, int])
    with pytest.raises(ConversionError, match=r"^\$\.green: is not one of 'red', 'blue'$"):
        convert({"green": 1}, dict[Colour, int])
