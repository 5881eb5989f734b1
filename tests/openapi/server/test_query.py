"""Input that fits into a query string."""

from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire import CallError, ErrorCode, Schema
from opwire.openapi.server.request import (
    MAX_PARAMETERS,
    QueryParameter,
    parse_query,
    parse_value,
    query_parameters,
)


def flat(**properties: Any) -> Schema:
    return Schema({"type": "object", "properties": properties, "$defs": {"Kind": {"enum": ["a", "b"]}}})


def kinds(schema: Any) -> tuple[set[str], bool] | None:
    found = query_parameters(flat(x=schema))
    return None if found is None else (set(found["x"].kinds), found["x"].is_array)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, ({"string"}, False)),
        ({"type": ["integer", "null"]}, ({"integer", "null"}, False)),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, ({"number", "null"}, False)),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, ({"integer", "boolean"}, False)),
        ({"enum": ["a", None]}, ({"string", "null"}, False)),
        ({"const": 1}, ({"number"}, False)),
        ({"const": True}, ({"boolean"}, False)),
        ({"$ref": "#/$defs/Kind"}, ({"string"}, False)),
        ({"type": "array", "items": {"type": "integer"}}, ({"integer"}, True)),
        ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}, ({"string"}, True)),
        ({"type": ["array", "null"], "items": {"$ref": "#/$defs/Kind"}}, ({"string"}, True)),
    ],
)
def test_scalars_and_arrays_of_scalars_are_flat(schema: Any, expected: Any) -> None:
    assert kinds(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": ["string", "integer"]},
        {"enum": ["a", 1]},
        {"const": {}},
        {"type": "array"},
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        {"type": "array", "items": {"type": "object"}},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        {"anyOf": [{"type": "string"}, {"type": "object"}]},
        {"allOf": [{"type": "string"}]},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "#/properties/x"},
    ],
)
def test_what_a_query_string_could_not_say_clearly_is_not_flat(schema: Any) -> None:
    assert kinds(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "array"},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
        {"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]},
        {"$ref": "#/$defs/x"},
    ],
)
def test_only_an_object_that_declares_all_its_properties_is_flat(schema: Any) -> None:
    assert query_parameters(Schema(schema)) is None


def test_older_dialects_are_read_too() -> None:
    schema = Schema(
        {"type": "object", "properties": {"a": {"type": "integer", "nullable": True}}}, dialect="openapi-3.0"
    )
    assert query_parameters(schema) == {"a": QueryParameter(frozenset({"integer", "null"}), is_array=False)}


def test_the_schema_says_what_a_value_is() -> None:
    parameters = query_parameters(
        flat(
            text={"type": "string"},
            n={"type": "integer"},
            x={"type": "number"},
            yes={"type": "boolean"},
            maybe={"type": ["integer", "null"]},
            list={"type": "array", "items": {"type": "number"}},
        )
    )
    assert parameters is not None
    query = b"text=007&n=-12&x=1.5e2&yes=true&maybe=null&list=1&list=2.5&list=x&other=1&text%20=%C3%A9+%2B"
    assert parse_query(parameters, query) == {
        "text": "007",
        "n": -12,
        "x": 150.0,
        "yes": True,
        "maybe": None,
        "list": [1, 2.5, "x"],
        "other": "1",
        "text ": "é +",
    }
    assert parse_query(parameters, b"") == {}


@pytest.mark.parametrize(
    "text", ["", "x", "1_000", "٣", "+1", "01", "0x1", " 1", "1e999", "nan", "Infinity", "9" * 5_000]
)
def test_what_is_not_a_number_in_json_stays_text(text: str) -> None:
    assert parse_value(text, frozenset({"number"})) == text


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_every_scalar_survives_a_query_string(value: float | bool) -> None:
    schema = {"type": "boolean" if isinstance(value, bool) else "number"}
    parameters = query_parameters(flat(x=schema))
    assert parameters is not None
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert parse_query(parameters, urlencode({"x": text}).encode()) == {"x": value}


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_every_text_survives_a_query_string(values: dict[str, str]) -> None:
    assert parse_query({}, urlencode(values).encode()) == values


@given(
    st.text("ab=&", max_size=12)
    | st.lists(st.sampled_from("a = & + é % %2 %26 %2B %C3 %C3%A9 %zz".split())).map("".join)
)
def test_a_query_string_means_what_it_means_to_urllib(query: str) -> None:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        pairs = None
    if pairs is not None and len(dict(pairs)) == len(pairs):
        assert parse_query({}, query.encode()) == dict(pairs)
    else:
        with pytest.raises(CallError, match="invalid query string" if pairs is None else "duplicate query parameter"):
            parse_query({}, query.encode())


def test_a_long_name_that_is_given_twice_is_shortened_in_the_error() -> None:
    with pytest.raises(CallError, match="duplicate query parameter") as failure:
        parse_query({}, b"&".join([b"a" * 10_000 + b"=1"] * 2))
    assert len(failure.value.message) < 200


@pytest.mark.parametrize(
    "query", [b"a=1&a=2", b"a=%FF", b"a=%C3", b"\xff=1", b"&".join([b"b=1"] * (MAX_PARAMETERS + 1))]
)
def test_a_query_string_that_two_readers_would_read_differently_is_refused(query: bytes) -> None:
    with pytest.raises(CallError) as raised:
        parse_query({}, query)
    assert raised.value.code is ErrorCode.PROTOCOL_ERROR
