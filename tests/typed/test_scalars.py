from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.errors import ConversionError
from opwire.typed import convert, json_schema_of
from opwire.typed.nodes import INTEGER_KEY, Misfit, subclass_scalar
from opwire.typed.plain import to_plain
from tests.typed.catalogue import Email, Point


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (date, {"type": "string", "format": "date"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Path, {"type": "string", "format": "path"}),
        (Email, {"type": "string"}),
    ],
)
def test_scalars_have_the_schema_of_their_json_form(hint: Any, schema: dict[str, Any]) -> None:
    """A JSON Schema (2020-12) is derived from every kind of Python type, and compiles."""
    assert json_schema_of(hint) == schema


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (datetime, st.datetimes(timezones=st.just(UTC))),
        (date, st.dates()),
        (time, st.times()),
        (timedelta, st.timedeltas()),
        (UUID, st.uuids()),
        (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
        (bytes, st.binary()),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
@given(data=st.data())
def test_what_python_writes_is_valid_and_read_back(hint: Any, values: Any, data: st.DataObject) -> None:
    value = data.draw(values)
    plain = to_plain({"value": value})["value"]
    assert jsonschema_rs.Draft202012Validator(json_schema_of(hint), validate_formats=True).is_valid(plain)
    assert convert(plain, hint) == value


@pytest.mark.parametrize("text", ["P", "PT", "P1DT", "P1Y", "P1W", "1D", "PT1S1M", "p1d", ""])
def test_what_is_not_a_duration_is_neither_valid_nor_converted(text: str) -> None:
    assert not jsonschema_rs.is_valid(json_schema_of(timedelta), text)
    with pytest.raises(ConversionError, match="is not a duration"):
        convert(text, timedelta)


@pytest.mark.parametrize("text", ["24:00:00", "10:00", "10:60:00", "10:00:00+25:00", "noon"])
def test_what_is_not_a_time_of_day_is_neither_valid_nor_converted(text: str) -> None:
    assert not jsonschema_rs.is_valid(json_schema_of(time), text)
    with pytest.raises(ConversionError, match="is not a time of day"):
        convert(text, time)


@pytest.mark.parametrize("text", ["", "x", "NaN", "Infinity", "1_000", " 1", "1e", "٣"])
def test_what_is_not_a_decimal_is_neither_valid_nor_converted(text: str) -> None:
    assert not jsonschema_rs.is_valid(json_schema_of(Decimal), text)
    with pytest.raises(ConversionError, match="is not a decimal number"):
        convert(text, Decimal)


def test_json_numbers_are_taken_for_decimals_by_their_shortest_text() -> None:
    assert convert(0.1, Decimal) == Decimal("0.1")
    assert convert(2**70, Decimal) == Decimal(2**70)
    for wrong in (True, None, float("nan")):
        with pytest.raises(ConversionError):
            convert(wrong, Decimal)


def test_a_date_and_time_without_offset_is_read_since_python_writes_them() -> None:
    assert convert("2024-02-29T12:00:00", datetime) == datetime(2024, 2, 29, 12)


@pytest.mark.parametrize(("text", "hint"), [("2024-02-30", date), ("x", UUID), ("a===", bytes), (5, datetime)])
def test_text_of_the_wrong_form_does_not_fit(text: Any, hint: Any) -> None:
    with pytest.raises(ConversionError):
        convert(text, hint)


def test_a_duration_beyond_what_python_holds_does_not_fit() -> None:
    with pytest.raises(ConversionError, match="is not a duration"):
        convert("P99999999999D", timedelta)


def test_an_integer_beyond_what_a_float_holds_does_not_fit() -> None:
    with pytest.raises(ConversionError, match="too large"):
        convert(10**400, float)


def test_a_path_like_hint_gives_a_path() -> None:
    assert convert("a/b", PathLike) == Path("a/b")


def test_a_subclass_of_a_plain_type_checks_its_values_itself() -> None:
    assert type(convert("a@b", Email)) is Email
    with pytest.raises(ConversionError, match=r"^\$: is not a Email: no @ in it$"):
        convert("ab", Email)
    with pytest.raises(ConversionError, match="expected a string"):
        convert(1, Email)


def test_a_class_that_is_not_derived_from_a_plain_type_is_not_a_scalar() -> None:
    assert subclass_scalar(Point) is None


@pytest.mark.parametrize("text", ["01", "+1", "1.0", "x", "", "-", 5])
def test_only_plain_digits_are_integer_keys(text: Any) -> None:
    assert INTEGER_KEY.convert("-10") == -10
    with pytest.raises(Misfit):
        INTEGER_KEY.convert(text)
