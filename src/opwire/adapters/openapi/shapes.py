"""Parts of a foreign document or answer, as what they ought to be: a wrong kind of value counts as none."""

import re
from typing import Any, cast

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_MAX_TEXT = 100  # characters of a number; more of them mean nothing


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def text(value: Any) -> str:
    """The value if it is a string, else an empty one. YAML takes names such as `1.0` and `true` for something else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else ""


def texts(value: Any) -> list[str]:
    """The strings of an array."""
    return [text(each) for each in sequence(value) if isinstance(each, str | int | float)]


def bounded(value: Any, most: float) -> float | None:
    """Return a number that a stranger says, between 0 and `most`; None if it is none.

    Waits, lives and sizes from documents and answers are read here and nowhere else: 10^400 fits into no float, NaN is
    not less than anything, and a retry in 30,000 years is a leak.
    """
    if isinstance(value, str):
        digits = value.strip()
        value = float(digits) if len(digits) <= _MAX_TEXT and _DECIMAL.fullmatch(digits) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:  # noqa: PLR0124 - NaN
        return None
    return float(min(max(value, 0), most))
