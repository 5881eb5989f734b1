"""What a document held that could not be used: said once, readable, never raised."""

from typing import NamedTuple

_MAX_WARNINGS = 1_000  # a hostile document could bring millions
_MAX_TEXT = 500  # characters; thousands of operations may refer to one place with a name of a megabyte


class Skipped(NamedTuple):
    """An operation that could not be made."""

    method: str
    path: str
    reason: str


class Report:
    """What was skipped, and what was read with a reservation.

    Schemas are read when they are first used, so that `warnings` may grow after the document was loaded.
    """

    def __init__(self) -> None:
        self.skipped: list[Skipped] = []
        self._warnings: dict[str, None] = {}  # ordered, and each said once

    @property
    def warnings(self) -> list[str]:
        """What was read with a reservation, in the order in which it was found."""
        return list(self._warnings)

    def skip(self, method: str, path: str, reason: str) -> None:
        """Leave an operation out."""
        self.skipped.append(Skipped(_cut(method), _cut(path), _cut(reason)))

    def warn(self, warning: str) -> None:
        """Keep a warning."""
        if len(self._warnings) < _MAX_WARNINGS:
            self._warnings[_cut(warning)] = None

    def __str__(self) -> str:
        lines = [f"skipped {each.method} {each.path}: {each.reason}" for each in self.skipped]
        return "\n".join([*lines, *(f"warning: {each}" for each in self._warnings)])


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
