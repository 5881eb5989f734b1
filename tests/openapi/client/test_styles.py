"""Values as text: the styles."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.openapi.client.plan import Style
from opwire.openapi.client.serialize import (
    encode,
    encode_reserved_in_path,
    encode_reserved_in_query,
    expand,
    join,
    json_text,
    pairs,
    to_text,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = TEXTS | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)


def written(location: str, name: str, style: Style, explode: bool, value: Any) -> str:
    if location == "query":
        return join(pairs(name, value, style, explode, encode))
    if location == "cookie":
        return join(pairs(name, value, style, explode, str), "; ")
    return expand(name, value, style, explode, str if location == "header" else encode)


def test_every_vector_of_the_specification_is_written_as_it_says(shared: Path) -> None:
    vectors = json.loads((shared / "openapi" / "param-style-vectors-dev.json").read_bytes())["vectors"]
    wrong = [
        (vector, location, text)
        for vector in vectors
        for location in vector["in"].split("|")
        if (text := written(location, vector["name"], vector["style"], bool(vector["explode"]), vector["value"]))
        != vector["serialized"]
    ]
    assert vectors
    assert not wrong


LIST, OBJECT = ["s", "m l"], {"w": 1, "h": 2.5}

# style, explode: undefined, text, array, object
PATH = {
    ("matrix", False): (";size", ";size=m%20l", ";size=s,m%20l", ";size=w,1,h,2.5"),
    ("matrix", True): (";size", ";size=m%20l", ";size=s;size=m%20l", ";w=1;h=2.5"),
    ("label", False): (".", ".m%20l", ".s,m%20l", ".w,1,h,2.5"),
    ("label", True): (".", ".m%20l", ".s.m%20l", ".w=1.h=2.5"),
    ("simple", False): ("", "m%20l", "s,m%20l", "w,1,h,2.5"),
    ("simple", True): ("", "m%20l", "s,m%20l", "w=1,h=2.5"),
}
QUERY = {
    ("form", False): ("size=", "size=m%20l", "size=s,m%20l", "size=w,1,h,2.5"),
    ("form", True): ("size=", "size=m%20l", "size=s&size=m%20l", "w=1&h=2.5"),
    ("spaceDelimited", False): ("size=", "size=m%20l", "size=s%20m%20l", "size=w%201%20h%202.5"),
    ("spaceDelimited", True): ("size=", "size=m%20l", "size=s&size=m%20l", "w=1&h=2.5"),
    ("pipeDelimited", False): ("size=", "size=m%20l", "size=s%7Cm%20l", "size=w%7C1%7Ch%7C2.5"),
    ("pipeDelimited", True): ("size=", "size=m%20l", "size=s&size=m%20l", "w=1&h=2.5"),
    ("tabDelimited", False): ("size=", "size=m%20l", "size=s%09m%20l", "size=w%091%09h%092.5"),
    ("deepObject", True): ("size=", "size=m%20l", "size%5B0%5D=s&size%5B1%5D=m%20l", "size%5Bw%5D=1&size%5Bh%5D=2.5"),
}
COOKIE = {
    ("cookie", False): ("size=", "size=m l", "size=s,m l", "size=w,1,h,2.5"),
    ("cookie", True): ("size=", "size=m l", "size=s; size=m l", "w=1; h=2.5"),
}
HEADER = {
    ("simple", False): ("", "m l", "s,m l", "w,1,h,2.5"),
    ("simple", True): ("", "m l", "s,m l", "w=1,h=2.5"),
}


@pytest.mark.parametrize(
    ("location", "style", "explode", "value", "text"),
    [
        (location, style, explode, value, text)
        for location, table in {"path": PATH, "query": QUERY, "cookie": COOKIE, "header": HEADER}.items()
        for (style, explode), texts in table.items()
        for value, text in zip((None, "m l", LIST, OBJECT), texts, strict=True)
    ],
)
def test_every_style_writes_every_kind_of_value(
    location: str, style: Style, explode: bool, value: Any, text: str
) -> None:
    assert written(location, "size", style, explode, value) == text


@given(st.text(st.characters(max_codepoint=255), max_size=60) | st.text("a b%;,/+~", max_size=60))
def test_texts_of_every_length_are_percent_encoded_as_the_standard_library_does(text: str) -> None:
    assert encode(text) == quote(text, safe="")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-7, "-7"),
        (2**100, "1267650600228229401496703205376"),
        (5.0, "5"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        ("", ""),
        ("2026-01-31T00:00:00Z", "2026-01-31T00:00:00Z"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
    ],
)
def test_scalars_are_written_as_json_writes_them_and_texts_as_they_are(value: Any, text: str) -> None:
    assert to_text(value) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_without_an_end_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        to_text(value)


@pytest.mark.parametrize("style", ["form", "deepObject", "pipeDelimited"])
def test_nulls_within_a_value_are_left_out(style: Style) -> None:
    assert written("query", "a", style, True, [None]) == ""
    assert written("query", "a", style, True, {"b": None}) == ""
    assert written("query", "a", style, False, {}) == ""


def test_an_empty_array_or_object_is_not_a_valid_part_of_a_path() -> None:
    for style in ("matrix", "label", "simple"):
        for value in ([], {}, [None]):
            assert written("path", "a", style, False, value) == ""
            assert written("path", "a", style, True, value) == ""


def test_the_delimiter_within_an_item_is_encoded() -> None:
    assert written("query", "a", "form", False, ["x,y", "z"]) == "a=x%2Cy,z"
    assert written("path", "a", "label", True, ["x.y", "z,"]) == ".x.y.z%2C"  # a full stop is unreserved


def test_what_is_nested_in_a_flat_style_is_written_as_json() -> None:
    assert parse_qsl(written("query", "a", "form", True, [{"b": [1]}])) == [("a", '{"b":[1]}')]


def test_deep_objects_go_as_deep_as_the_value_and_count_the_items_of_arrays() -> None:
    value = {"a": {"b": {"c": 1}}, "list": ["x", {"y": True}], "none": None}
    assert parse_qsl(written("query", "q", "deepObject", True, value)) == [
        ("q[a][b][c]", "1"),
        ("q[list][0]", "x"),
        ("q[list][1][y]", "true"),
    ]


def test_reserved_characters_stay_where_they_are_allowed_and_do_no_harm() -> None:
    """allowReserved keeps reserved characters, but for those that would end or change the value."""
    assert encode_reserved_in_query("a/b?c=d:e@f;g,h!$'()*") == "a/b?c=d:e@f;g,h!$'()*"
    assert encode_reserved_in_query("a&b#c+d[e] f%20g%zz%") == "a%26b%23c%2Bd%5Be%5D%20f%20g%25zz%25"
    assert encode_reserved_in_path("a:b@c;d=e,f+g&h!") == "a:b@c;d=e,f+g&h!"
    assert encode_reserved_in_path("a/b?c#d%2Fe f") == "a%2Fb%3Fc%23d%252Fe%20f"


def test_invalid_text_is_rejected() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        encode("\ud800")


# --- what is written can be read again --------------------------------------------------------------------------------


def read_deep(fields: list[tuple[str, str]]) -> Any:
    """Nested objects, and arrays as objects of their indices, by `a[b][c]`."""
    found: dict[str, Any] = {}
    for name, text in fields:
        *steps, last = name.replace("]", "").split("[")
        place = found
        for step in steps:
            place = place.setdefault(step, {})
        place[last] = text
    return found


def as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_read(each) for key, each in value.items()}
    if isinstance(value, list):
        return {str(index): as_read(each) for index, each in enumerate(value)}
    return to_text(value)


@given(st.text(max_size=5), SCALARS)
def test_a_scalar_in_a_query_is_one_parameter_of_the_same_value(name: str, value: Any) -> None:
    name = "n" + name.encode(errors="ignore").decode()
    for style in ("form", "spaceDelimited", "deepObject"):
        fields = parse_qsl(written("query", name, style, True, value), keep_blank_values=True, strict_parsing=True)
        assert fields == [(name, to_text(value))]


@given(st.lists(SCALARS, min_size=1, max_size=5))
def test_arrays_in_a_query_can_be_read_back(value: list[Any]) -> None:
    texts = [to_text(each) for each in value]
    exploded = written("query", "a", "form", True, value)
    assert parse_qsl(exploded, keep_blank_values=True) == [("a", text) for text in texts]
    name, _, joined = written("query", "a", "form", False, value).partition("=")
    assert (name, [unquote(each) for each in joined.split(",")]) == ("a", texts)


@given(st.dictionaries(st.text("ab &=,", min_size=1, max_size=3), SCALARS, min_size=1, max_size=4))
def test_objects_in_a_query_can_be_read_back(value: dict[str, Any]) -> None:
    texts = {key: to_text(each) for key, each in value.items()}
    assert dict(parse_qsl(written("query", "a", "form", True, value), keep_blank_values=True)) == texts
    items = [unquote(each) for each in written("query", "a", "form", False, value).partition("=")[2].split(",")]
    assert dict(zip(items[::2], items[1::2], strict=True)) == texts


@given(
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text("ab .", min_size=1), inner, min_size=1)
        ),
        max_leaves=8,
    )
)
def test_deep_objects_can_be_read_back(value: Any) -> None:
    fields = parse_qsl(written("query", "q", "deepObject", True, {"v": value}), keep_blank_values=True)
    assert read_deep(fields) == {"q": {"v": as_read(value)}}


@given(TEXTS)
def test_no_text_adds_a_parameter_even_where_reserved_characters_are_allowed(text: str) -> None:
    written_text = join(pairs("a", text, "form", True, encode_reserved_in_query))
    assert len(parse_qsl(written_text, keep_blank_values=True)) == 1
    assert "#" not in written_text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_number_loses_anything(value: float) -> None:
    assert float(to_text(value)) == value


def test_json_is_compact_and_keeps_every_digit() -> None:
    assert json_text({"a": 2**70, "b": "ä"}) == '{"a":1180591620717411303424,"b":"ä"}'
