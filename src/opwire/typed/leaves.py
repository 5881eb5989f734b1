"""The types without parts: numbers, text, dates and what else is written as text."""

import datetime
import decimal
import enum
import pathlib
import re
import uuid
from os import PathLike
from types import NoneType
from typing import Any, cast

import msgspec

from opwire.typed.nodes import ALL_KINDS, NUMERIC, PLAIN_TYPES, Leaf, Misfit, expected

# RFC 3339 has no time of day without an offset, and no fractions or signs in durations, so the formats "time" and
# "duration" would refuse what `datetime.time` and `datetime.timedelta` are written as. Patterns say what is read.
TIME_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?$"
_N = r"[0-9]+(\.[0-9]+)?"
DURATION_PATTERN = rf"^[+-]?P(?=[0-9]|T)({_N}D)?(T(?=[0-9])({_N}H)?({_N}M)?({_N}S)?)?$"
DECIMAL_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
INTEGER_PATTERN = r"^-?(0|[1-9][0-9]*)$"


def _integer(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise expected("an integer", value)


def _number(value: Any) -> Any:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Misfit("is too large for a floating-point number") from None
    raise expected("a number", value)


def _boolean(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    raise expected("a boolean", value)


def _string(value: Any) -> Any:
    if isinstance(value, str):
        return value
    raise expected("a string", value)


def _null(value: Any) -> Any:
    if value is None:
        return value
    raise expected("null", value)


def _itself(value: Any) -> Any:
    return value


def _decimal(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)  # the shortest text of a float, so that 0.1 is not 0.1000000000000000055511151231
    if not isinstance(value, str):
        raise expected("a decimal number as a string", value)
    if not re.search(DECIMAL_PATTERN, value):
        raise Misfit("is not a decimal number")
    return decimal.Decimal(value)


def _integer_key(value: Any) -> int:
    if isinstance(value, str) and re.search(INTEGER_PATTERN, value):
        return int(value)
    raise Misfit("the key is not an integer")


def _text(type_: Any, what: str, **schema: str) -> Leaf:
    """A type written as text that msgspec reads; not native where a pattern allows less than msgspec does."""
    pattern = schema.get("pattern", "")

    def read(value: Any) -> Any:
        if isinstance(value, type_):
            return value
        if not isinstance(value, str):
            raise expected(f"{what} as a string", value)
        try:
            if not pattern or re.search(pattern, value):
                return msgspec.convert(value, type_)
        except (msgspec.ValidationError, OverflowError):
            pass
        raise Misfit(f"is not {what}")

    return Leaf(type_, _STRING, {"type": "string", **schema}, read, name=type_.__name__, native=not pattern)


_STRING = frozenset({"string"})
_ANY = Leaf(Any, ALL_KINDS, {}, _itself, name="any", identity=PLAIN_TYPES, native=True)
_NULL = Leaf(None, {"null"}, {"type": "null"}, _null, identity={NoneType}, native=True)

LEAVES: dict[Any, Leaf] = {
    Any: _ANY,
    object: _ANY,
    None: _NULL,
    NoneType: _NULL,
    bool: Leaf(bool, {"boolean"}, {"type": "boolean"}, _boolean, identity={bool}, native=True),
    int: Leaf(int, NUMERIC, {"type": "integer"}, _integer, identity={int}, native=True),
    float: Leaf(float, NUMERIC, {"type": "number"}, _number, identity={float}, native=True),
    str: Leaf(str, _STRING, {"type": "string"}, _string, identity={str}, native=True),
    bytes: _text(bytes, "base64 text", contentEncoding="base64"),
    bytearray: _text(bytearray, "base64 text", contentEncoding="base64"),
    datetime.datetime: _text(datetime.datetime, "a date and time (RFC 3339)", format="date-time"),
    datetime.date: _text(datetime.date, "a date (YYYY-MM-DD)", format="date"),
    datetime.time: _text(datetime.time, "a time of day (HH:MM:SS)", pattern=TIME_PATTERN),
    datetime.timedelta: _text(datetime.timedelta, "a duration (ISO 8601, e.g. PT90S)", pattern=DURATION_PATTERN),
    uuid.UUID: _text(uuid.UUID, "a UUID", format="uuid"),
    decimal.Decimal: Leaf(
        decimal.Decimal,
        _STRING | NUMERIC,
        {"type": "string", "format": "decimal", "pattern": DECIMAL_PATTERN},
        _decimal,
        name="Decimal",
    ),
}
_PATH_TEXT = Leaf(str, _STRING, {"type": "string", "format": "path"}, _string)
_BASES: dict[type, Leaf] = {
    pathlib.PurePath: _PATH_TEXT,
    enum.Flag: LEAVES[int],
    str: LEAVES[str],
    int: LEAVES[int],
    float: LEAVES[float],
}
INTEGER_KEY = Leaf(int, _STRING, {"type": "string", "pattern": INTEGER_PATTERN}, _integer_key)


def subclass_leaf(hint: type) -> Leaf | None:
    """A class derived from a plain type, e.g. `class Email(str)`: the plain value is handed to the class."""
    base = next((leaf for above, leaf in _BASES.items() if issubclass(hint, above)), None)
    if base is None:
        return None

    def read(value: Any) -> Any:
        if isinstance(value, hint):
            return value
        plain = base.run(value)
        try:
            return hint(plain)
        except (TypeError, ValueError) as error:
            raise Misfit(f"is not a {hint.__name__}: {error}") from error

    return Leaf(hint, base.kinds, base.fixed, read, name=hint.__name__)


LEAVES[PathLike] = cast("Leaf", subclass_leaf(pathlib.Path))
