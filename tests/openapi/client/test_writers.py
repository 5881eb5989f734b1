"""One parameter to text, where it goes."""

from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.openapi.client.plan import Location, RequestParameter, Style
from opwire.openapi.client.serialize import parameter_writer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def written(location: Location, value: Any, style: Style = "form", explode: bool = True, **options: Any) -> str:
    parameter = RequestParameter(
        name="a b", location=location, input_path=("a",), style=style, explode=explode, **options
    )
    return parameter_writer(parameter)(value)


@pytest.mark.parametrize(
    ("location", "style", "text"),
    [
        ("path", "simple", "x%20y,z"),
        ("path", "matrix", ";a%20b=x%20y;a%20b=z"),
        ("path", "pipeDelimited", "x%20y%7Cz"),
        ("query", "form", "a%20b=x%20y&a%20b=z"),
        ("header", "simple", "x y,z"),
        ("header", "tabDelimited", "x y\tz"),
        ("cookie", "form", "a%20b=x%20y; a%20b=z"),
    ],
)
def test_each_place_has_its_own_escapes_and_separators(location: Location, style: Style, text: str) -> None:
    assert written(location, ["x y", "z"], style) == text


def test_reserved_characters_are_kept_where_that_is_asked_for() -> None:
    assert written("query", "a/b:c&d", allow_reserved=True) == "a%20b=a/b:c%26d"
    assert written("query", "a/b:c&d") == "a%20b=a%2Fb%3Ac%26d"
    assert written("path", "a:b/c", "simple", allow_reserved=True) == "a:b%2Fc"


@pytest.mark.parametrize(
    ("location", "kind", "value", "text"),
    [
        ("query", "application/json", {"b": [1]}, "a%20b=%7B%22b%22%3A%5B1%5D%7D"),
        ("query", "application/json", "x", "a%20b=%22x%22"),
        ("query", "text/plain", "x y", "a%20b=x%20y"),
        ("path", "application/json", [1, 2], "%5B1%2C2%5D"),
        ("header", "application/json", {"b": 1}, '{"b":1}'),
        ("cookie", "application/json", {"b": 1}, "a%20b=%7B%22b%22%3A1%7D"),
    ],
)
def test_a_parameter_with_a_content_type_is_written_as_that(
    location: Location, kind: str, value: Any, text: str
) -> None:
    assert written(location, value, content_type=kind) == text


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("application/x-www-form-urlencoded", {"x": "1 2", "y": ["a", "b"]}, "x=1%202&y=a&y=b"),
        ("application/json", {"x": 1}, "%7B%22x%22%3A1%7D"),
        ("application/jsonpath", "$.a[1:2]", "%24.a%5B1%3A2%5D"),
    ],
)
def test_a_query_string_is_written_whole(kind: str, value: Any, text: str) -> None:
    assert written("querystring", value, content_type=kind) == text


@pytest.mark.parametrize("location", ["header", "cookie"])
@pytest.mark.parametrize("bad", ["x\r\nEvil: 1", "x\ny", "x\x00y"])
def test_no_line_break_gets_into_a_header(location: Location, bad: str) -> None:
    style: Style = "simple" if location == "header" else "cookie"
    for value in (bad, [bad], {"k": bad}, {bad: "v"}):
        with pytest.raises(ValueError, match=r"header|cookie"):
            written(location, value, style)
    with pytest.raises(ValueError, match="header"):
        written("header", bad, content_type="text/plain")


@pytest.mark.parametrize("value", ["x; admin=1", "ä", {"admin=1; b": "x"}, ["a", "b;c"]])
def test_a_cookie_that_is_not_escaped_can_neither_add_another_nor_hold_more_than_ascii(value: Any) -> None:
    parameter = RequestParameter(name="a", location="cookie", input_path=("a",), style="cookie", explode=True)
    with pytest.raises(ValueError, match=r"cookie|header"):
        parameter_writer(parameter)(value)


@given(TEXTS)
def test_an_escaped_cookie_is_one_cookie_and_can_be_read_back(text: str) -> None:
    parameter = RequestParameter(name="a", location="cookie", input_path=("a",), style="form", explode=True)
    cookies = SimpleCookie(parameter_writer(parameter)(text))
    assert {name: unquote(morsel.value) for name, morsel in cookies.items()} == {"a": text}


@given(TEXTS, st.booleans())
def test_no_path_value_leaves_its_segment_and_each_can_be_read_back(text: str, allow_reserved: bool) -> None:
    segment = written("path", text, "simple", allow_reserved=allow_reserved)
    assert not set("/?#\\") & set(segment)
    assert unquote(segment) == text
