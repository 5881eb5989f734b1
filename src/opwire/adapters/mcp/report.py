"""What of a server could not be used, or not as it was given, and why."""

import logging
import reprlib
import time
from collections.abc import Iterable

from msgspec import Struct

from opwire.typed.text import harmless

logger = logging.getLogger("opwire.mcp")

MAX_SHOWN = 2000
"""Characters of one line of a server that the log shows."""

MAX_LINES = 100
"""Lines of a server that the log shows within a second."""

MAX_FINDINGS = 100
"""Skipped entries of a report, and warnings of it: a server may have any number of broken tools."""

_MAX_PART = 300  # a name or a schema's error may be as long as the server likes


class Skipped(Struct, frozen=True):
    """A tool or prompt that is no operation."""

    namespace: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.namespace}: {self.name!r} is left out: {self.reason}"


class Report(Struct, frozen=True):
    """What was skipped, and what is there but not as the server gave it."""

    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()

    def since(self, earlier: "Report") -> list[str]:
        """What an earlier report of the same server did not say yet."""
        known = {*earlier.skipped, *earlier.warnings}
        return [str(each) for each in (*self.skipped, *self.warnings) if each not in known]


class Findings:
    """A report in the making. `schema_bytes` counts the schemas that were compiled for it."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._skipped: list[Skipped] = []
        self._warnings: list[str] = []
        self._more = 0
        self.schema_bytes = 0

    def skip(self, name: object, reason: str) -> None:
        """Something is left out."""
        if len(self._skipped) >= MAX_FINDINGS:
            self._more += 1
            return
        shown = name if isinstance(name, str) else reprlib.repr(name)
        self._skipped.append(Skipped(self._namespace, _short(shown), _short(reason)))

    def warn(self, name: str, warning: str) -> None:
        """Something is there, but not as it was given."""
        if len(self._warnings) >= MAX_FINDINGS:
            self._more += 1
            return
        self._warnings.append(_short(f"{self._namespace}: {_short(name)}: {warning}"))

    def report(self) -> Report:
        """Return what was found so far."""
        more = (f"{self._namespace}: {self._more:,} more of this kind are not listed",) if self._more else ()
        return Report(tuple(self._skipped), (*self._warnings, *more))


class ServerLog:
    """The lines of one server in our log: cut, escaped, and so many in a second that a flood does not fill a disk."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._second_ends = 0.0
        self._lines = 0

    def write(self, level: int, text: str) -> None:
        """Log a line; where there are too many, say once that the rest of this second is left out."""
        if not logger.isEnabledFor(level):
            return
        now = time.monotonic()
        if now >= self._second_ends:
            self._second_ends, self._lines = now + 1, 0
        self._lines += 1
        if self._lines <= MAX_LINES:
            line = harmless(text[:MAX_SHOWN]).replace("\n", "\\n")
            logger.log(level, "%s: %s", self._name, line)
        elif self._lines == MAX_LINES + 1:
            logger.warning("%s writes more than %d lines a second; the others are left out", self._name, MAX_LINES)


def merged(reports: Iterable[Report]) -> Report:
    """Several reports as one."""
    reports = tuple(reports)
    skipped = tuple(each for report in reports for each in report.skipped)
    return Report(skipped, tuple(each for report in reports for each in report.warnings))


def _short(text: str) -> str:
    return harmless(text if len(text) <= _MAX_PART else f"{text[:_MAX_PART]}…")
