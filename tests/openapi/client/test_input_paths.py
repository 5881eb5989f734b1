"""Paths to values in an input."""

from typing import Any

import pytest

from opwire.errors import ErrorCode
from opwire.openapi.client.plan import invalid_input
from opwire.openapi.client.request import MISSING, value_at


@pytest.mark.parametrize(("place", "value"), [((), {"a": {"b": None}}), (("a",), {"b": None}), (("a", "b"), None)])
def test_a_value_is_found_by_its_steps_even_if_it_is_null(place: tuple[str, ...], value: Any) -> None:
    assert value_at({"a": {"b": None}}, place) == value


@pytest.mark.parametrize("input", [None, [], "a", {}, {"a": None}, {"a": ["b"]}, {"a": {}}])
def test_where_nothing_is_the_place_is_missing(input: Any) -> None:
    assert value_at(input, ("a", "b")) is MISSING


def test_an_error_names_the_operation_and_the_place() -> None:
    error = invalid_input("pets.get", ("query", "a/b~c"), "it is odd")
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert error.message == "pets.get: /query/a~1b~0c: it is odd"
    assert error.details == {"problems": [{"path": "/query/a~1b~0c", "message": "it is odd"}]}


def test_an_error_of_the_whole_input_says_so() -> None:
    assert invalid_input("pets.get", (), "it is odd").message == "pets.get: the input: it is odd"
