"""The report of an adapter: what a source offers and opwire cannot use, with the reason.

An adapter never raises for one broken tool or endpoint: it skips it, warns, and loads the rest. Names and reasons come
from foreign servers and documents, so entries are bounded in number and length, and control characters are escaped.
"""

from collections.abc import Iterator
from typing import NamedTuple

from opwire.typed.plain import harmless, shorten

MAX_ENTRIES = 1_000
"""Skipped items, and warnings, that a report keeps by default: a hostile document could produce millions."""

MAX_TEXT = 500
"""Characters of one name or reason: thousands of operations may refer to one name of a megabyte."""


class Skipped(NamedTuple):
    """An item without an operation: `Skipped("GET", "/pets", "…")`, `Skipped("tool", "fs.read", "…")`."""

    kind: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"skipped {self.kind} {self.name}: {self.reason}"


class Report:
    """Skipped items and warnings of one source.

        print(source.report)  # "skipped GET /pets: …", then "warning: …", one line each

    Schemas are parsed lazily, so `warnings` may grow after a document was loaded. Duplicate warnings are dropped.
    """

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self.skipped: list[Skipped] = []
        self._warnings: dict[str, None] = {}  # a set that keeps its order
        self._limit = limit
        self._dropped = 0

    @property
    def warnings(self) -> list[str]:
        """The warnings, in the order of their discovery."""
        dropped = [f"{self._dropped:,} more entries are not listed"] if self._dropped else []
        return [*self._warnings, *dropped]

    def skip(self, kind: str, name: str, reason: str) -> None:
        """Record an item that is skipped."""
        if len(self.skipped) < self._limit:
            self.skipped.append(Skipped(_shortened(kind), _shortened(name), _shortened(reason)))
        else:
            self._dropped += 1

    def warn(self, warning: str) -> None:
        """Record a warning, once."""
        text = _shortened(warning)
        if text not in self._warnings:
            if len(self._warnings) < self._limit:
                self._warnings[text] = None
            else:
                self._dropped += 1

    def add(self, other: "Report") -> None:
        """Append the entries of another report."""
        self.skipped += other.skipped
        self._warnings |= other._warnings
        self._dropped += other._dropped

    def __iter__(self) -> Iterator[str]:
        """Iterate over the lines of the report."""
        yield from map(str, self.skipped)
        for warning in self.warnings:
            yield f"warning: {warning}"

    def __str__(self) -> str:
        return "\n".join(self)


def _shortened(text: str) -> str:
    return harmless(shorten(text, MAX_TEXT))
