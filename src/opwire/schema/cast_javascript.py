"""JSON values as JavaScript sees them, where Python sees them differently.

`Value.Cast` is defined by JavaScript's semantics: `true` is not 1, a string has the length of its UTF-16 form, a
missing property is `undefined`, an array is an object with the properties "0", "1", … and "length".
"""

import math
import struct
from enum import Enum
from functools import lru_cache
from typing import Any, Final, cast

from opwire.errors import SchemaError
from opwire.schema.pattern_cost import PatternCost
from opwire.schema.validator import Validator, compile_validator

_MAX_UNITS = 250_000  # units of 10 to 20 ns for one text


class Missing(Enum):
    """JavaScript's `undefined`: the value of a missing property. JSON's null is None, which is a value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING

# Those that are registered where the parity cases come from; every other format is ignored, as an annotation.
ASSERTED_FORMATS = frozenset({"date-time", "date", "uuid", "email"})


def is_container(value: Any) -> bool:
    """Return whether a value is an object or an array; both are objects in JavaScript."""
    return isinstance(value, dict | list)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; a boolean is not."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """`Number.isInteger`: 1.0 is an integer."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def is_multiple(value: float, of: float) -> bool:
    """`value % of === 0` in doubles, where 0.3 is not a multiple of 0.1. Whole numbers keep every digit."""
    if of == 0:
        return False
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    try:
        return math.fmod(value, of) == 0
    except OverflowError:  # an integer beyond the doubles
        return False


def is_same(value: Any, other: Any) -> bool:
    """`===`, and deep equality for the objects and arrays that JSON Schema allows as constants."""
    if isinstance(value, dict) and isinstance(other, dict):
        a, b = cast("dict[str, Any]", value), cast("dict[str, Any]", other)
        return a.keys() == b.keys() and all(is_same(item, b[key]) for key, item in a.items())
    if isinstance(value, list) and isinstance(other, list):
        pair = cast("list[Any]", value), cast("list[Any]", other)
        return len(pair[0]) == len(pair[1]) and all(map(is_same, *pair))
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def code_units(text: str) -> str:
    """Return the text with one character per UTF-16 code unit.

    Surrogates move to a private area, since the regular expression engines reject them. A pattern is moved in the same
    way, so `^.$` does not match an emoji, just as in JavaScript.
    """
    if text.isascii():
        return text
    raw = text.encode("utf-16-le", "surrogatepass")
    units = struct.unpack(f"<{len(raw) // 2}H", raw)
    return "".join(chr(unit + 0x800 if 0xD800 <= unit <= 0xDFFF else unit) for unit in units)


def matches(pattern: str | None, format: str | None, text: str) -> bool:
    """Return whether the text matches the pattern somewhere and has the format.

    A pattern that is invalid, or may take long for this text, matches nothing.
    """
    validator, cost = _text_validator(pattern, format)
    return validator is not None and cost.units(text) <= _MAX_UNITS and validator.is_valid(code_units(text))


@lru_cache(maxsize=1024)
def _text_validator(pattern: str | None, format: str | None) -> tuple[Validator | None, PatternCost]:
    cost = PatternCost(pattern)
    schema: dict[str, Any] = {}
    if pattern is not None:
        schema["pattern"] = code_units(pattern)
    if format in ASSERTED_FORMATS:
        schema["format"] = format
    try:
        return compile_validator(schema), cost
    except SchemaError:
        return None, cost


def own_names(value: Any) -> list[str]:
    """`Object.getOwnPropertyNames`."""
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value))
    if isinstance(value, list | str):
        return [*map(str, range(len(cast("list[Any] | str", value)))), "length"]
    return []


def member(value: Any, name: str) -> Any:
    """`value[name]`, own properties only."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name, MISSING)
    if not isinstance(value, list | str):
        return MISSING
    items = cast("list[Any] | str", value)
    if name == "length":
        return len(items)
    if not (name.isascii() and name.isdigit() and len(name) < 16 and str(int(name)) == name):
        return MISSING
    index = int(name)
    return items[index] if index < len(items) else MISSING


def spread(value: Any) -> dict[str, Any]:
    """`{...value}`."""
    return {name: member(value, name) for name in own_names(value) if isinstance(value, dict) or name != "length"}


def fingerprint(value: Any) -> bytes:
    """Return what TypeBox's `Value.Hash` digests; `uniqueItems` compares nothing else.

    Neither strings nor arrays have an end marker, so [[1], 2] and [[1, 2]] are duplicates there, and here.
    """
    match value:
        case Missing.MISSING:
            return b"\x00"
        case None:
            return b"\x01"
        case bool():
            return b"\x02\x01" if value else b"\x02\x00"
        case int() if abs(value) > 2**53:  # two such integers may share a double, and yet they differ
            return b"\x03" + value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        case int() | float():
            return b"\x03" + struct.pack(">d", value)
        case str():
            codes = map(ord, code_units(value))
            return b"\x04" + b"".join(code.to_bytes(1 if code < 0x100 else 2, "big") for code in codes)
        case dict():
            fields = cast("dict[str, Any]", value)
            pairs = ((fingerprint(name), fingerprint(fields[name])) for name in sorted(fields, key=code_units))
            return b"\x05" + b"".join(name + item for name, item in pairs)
        case list():
            return b"\x06" + b"".join(map(fingerprint, cast("list[Any]", value)))
        case _:
            return repr(value).encode("utf-8", "backslashreplace")
