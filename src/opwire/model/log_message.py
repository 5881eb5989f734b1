"""Messages that a handler logs for its caller, as MCP has them."""

from typing import Any, Literal, get_args

from msgspec import Struct

from opwire.errors import UsageError

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""The levels of RFC 5424, the least severe first."""


class LogMessage(Struct, frozen=True):
    """A message of a handler for its caller. `data` is any JSON value; `logger` names its origin."""

    level: LogLevel
    data: Any
    logger: str | None = None


def severity(level: str) -> int:
    """Return the position of a log level.

    Raises:
        UsageError: it is unknown.
    """
    try:
        return LOG_LEVELS.index(level)  # type: ignore[arg-type]
    except ValueError:
        raise UsageError(f"unknown log level {level!r:.50}; use one of {', '.join(LOG_LEVELS)}") from None
