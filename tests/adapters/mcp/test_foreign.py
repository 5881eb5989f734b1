"""Tests of opwire.adapters.mcp.report."""

from typing import Any

import pytest

from opwire.adapters.mcp.report import list_of, object_of, text_of


@pytest.mark.parametrize(("value", "found"), [({"a": 1}, {"a": 1}), ([1], {}), (None, {}), ("a", {})])
def test_an_object_is_itself_and_all_else_is_an_empty_one(value: Any, found: Any) -> None:
    assert object_of(value) == found


@pytest.mark.parametrize(("value", "found"), [([1], [1]), ({"a": 1}, []), (None, []), ("ab", [])])
def test_a_list_is_itself_and_all_else_is_an_empty_one(value: Any, found: Any) -> None:
    assert list_of(value) == found


@pytest.mark.parametrize(("value", "found"), [("a", "a"), (1, ""), (None, ""), (["a"], "")])
def test_a_text_is_itself_and_all_else_is_an_empty_one(value: Any, found: Any) -> None:
    assert text_of(value) == found
