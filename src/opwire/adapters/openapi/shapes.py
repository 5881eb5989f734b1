"""Parts of a foreign document, as what they ought to be: a wrong kind of value counts as none."""

from typing import Any, cast


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
