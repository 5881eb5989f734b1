"""Places in an input, as a plan names them: the steps from the input to a value."""

from collections.abc import Sequence
from typing import Any, cast

from opwire.errors import CallError, ErrorCode

MISSING: Any = object()
"""What is at a place where nothing is; None is a value."""


def find(input: Any, place: Sequence[str]) -> Any:
    """The value at a place, or MISSING."""
    for step in place:
        if not isinstance(input, dict) or step not in input:
            return MISSING
        input = cast("dict[str, Any]", input)[step]
    return input


def invalid(operation_id: str, place: Sequence[str], message: str) -> CallError:
    """The error for a value that its schema let pass and that cannot be used all the same."""
    pointer = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in place)
    return CallError(
        ErrorCode.VALIDATION_ERROR,
        f"{operation_id}: {pointer or 'the input'}: {message}",
        {"problems": [{"path": pointer, "message": message}]},
    )
