"""What strangers send, as what it ought to be: empty where it is something else."""

from collections.abc import Mapping
from typing import Any, cast


def object_of(value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    """A JSON array."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A JSON string."""
    return value if isinstance(value, str) else ""
