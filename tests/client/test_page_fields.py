"""The names that APIs give to pages."""

from typing import Any

import pytest

from opwire.client.pages import Field, input_field, items_field, next_fields, total_reached
from tests.requirements import requirement


@requirement("client.pages")
@pytest.mark.parametrize(
    ("data", "items"),
    [
        ([1], [1]),
        ({"items": [1], "data": [2]}, [1]),
        ({"errors": [], "results": [1]}, [1]),
        ({"repositories": [1], "total_count": 1}, [1]),
        ({"a": [1], "b": [2]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_items_are_in_the_usual_field_or_in_the_only_list(data: Any, items: Any) -> None:
    assert items_field(data) == items


@requirement("client.pages")
def test_the_outer_field_counts_and_one_that_says_it_is_the_end_most() -> None:
    assert next_fields({"next_cursor": "a", "meta": {"next_cursor": "b"}}, []) == [Field("nextcursor", "a")]
    assert next_fields({"next_cursor": "a", "pageInfo": {"hasNextPage": False}}, []) is None
    assert next_fields({"next_cursor": None, "next_page": True}, []) == []
    assert next_fields({"x": {"next_cursor": "a"}}, []) == []


@requirement("client.pages")
@pytest.mark.parametrize(
    ("field", "known", "name"),
    [
        (Field("nextpagetoken", "x"), ["page_token"], "page_token"),
        (Field("nextcursor", "x"), ["after", "cursor"], "cursor"),
        (Field("nextcursor", "x"), ["after", "page"], "after"),
        (Field("next", "x", is_certain=False), ["page"], None),
        (Field("nexttoken", "x"), ["NextToken"], "NextToken"),
        (Field("nextcursor", "x"), [], None),
    ],
)
def test_a_field_of_the_input_is_found_for_one_of_the_answer(field: Field, known: list[str], name: str | None) -> None:
    assert input_field(field, known) == name


@requirement("client.pages")
def test_totals_say_when_it_is_over() -> None:
    assert total_reached({"total": 5}, 5, None)
    assert not total_reached({"total": 5}, 4, None)
    assert total_reached({"meta": {"totalPages": 2}}, 4, 2)
    assert not total_reached({"totalPages": 2, "total": True}, 4, 1)
    assert not total_reached([1], 4, 1)
