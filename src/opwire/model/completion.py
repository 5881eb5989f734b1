"""Completion of the arguments of an operation, as MCP has it."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

MAX_COMPLETIONS = 100
"""Values of one completion, as the protocol limits them."""


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """The beginning of an argument, and the arguments that are chosen already.

    `uri` is the template of the resource, for an operation that serves many.
    """

    argument: str
    value: str
    arguments: Mapping[str, str] = {}
    uri: str = ""


class Completion(Struct, frozen=True, kw_only=True):
    """Values that begin as asked for. `total` is their number, if known, and `has_more` whether some are left out."""

    values: tuple[str, ...] = ()
    total: int | None = None
    has_more: bool = False

    @classmethod
    def of(cls, values: Iterable[str]) -> "Completion":
        """Return the first values."""
        all_values = tuple(values)
        return cls(
            values=all_values[:MAX_COMPLETIONS], total=len(all_values), has_more=len(all_values) > MAX_COMPLETIONS
        )
