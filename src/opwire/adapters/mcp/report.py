"""What of a server could not be used, or not as it was given, and why."""

from collections.abc import Iterable

from msgspec import Struct

_MAX_SHOWN = 300  # a name or a schema's error may be as long as the server likes


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
    """A report in the making."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._skipped: list[Skipped] = []
        self._warnings: list[str] = []

    def skip(self, name: object, reason: str) -> None:
        """Something is left out."""
        shown = name if isinstance(name, str) else repr(name)
        self._skipped.append(Skipped(self._namespace, _short(shown), _short(reason)))

    def warn(self, name: str, warning: str) -> None:
        """Something is there, but not as it was given."""
        self._warnings.append(_short(f"{self._namespace}: {_short(name)}: {warning}"))

    def report(self) -> Report:
        """What was found so far."""
        return Report(tuple(self._skipped), tuple(self._warnings))


def merged(reports: Iterable[Report]) -> Report:
    """Several reports as one."""
    reports = tuple(reports)
    skipped = tuple(each for report in reports for each in report.skipped)
    return Report(skipped, tuple(each for report in reports for each in report.warnings))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
