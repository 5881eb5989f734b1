"""What clients and people learn about an operation beside its schemas: hints, icons, completions, log messages.

Names and levels are those of MCP, which has most of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from opwire.errors import RegistrationError, UsageError

Role = Literal[
    "tool",
    "resource",
    "prompt",
    "resources/list",
    "resources/templates",
    "resources/read",
    "resources/watch",
    "prompts/list",
]
"""What an operation is to clients of MCP.

A resource is read by its URI, a prompt returns messages. The others serve the resources and prompts of a whole server;
operations of the same namespace belong together.
"""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""The levels of RFC 5424, the least severe first."""

MAX_COMPLETIONS = 100
"""Values of one completion, as the protocol limits them."""


class Annotations(Struct, frozen=True, kw_only=True):
    """Hints about the effects of an operation; None: unknown. They are not enforced.

    `open_world`: it reaches systems outside of its server. `extra` are further annotations in the names of MCP, such
    as `audience` and `priority` of a resource.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    extra: Mapping[str, Any] = {}

    @classmethod
    def from_mcp(cls, given: Mapping[str, Any]) -> "Annotations":
        """Parse the annotations of a tool; fields that are not hints are kept unchanged."""
        hints = {name: given[key] for name, key in _HINTS.items() if isinstance(given.get(key), bool)}
        used = {_HINTS[name] for name in hints}
        return cls(**hints, extra={key: value for key, value in given.items() if key not in used})

    def to_mcp(self) -> dict[str, Any]:
        """Return the annotations of a tool: the known hints, and the extra ones."""
        hints = {key: value for name, key in _HINTS.items() if (value := getattr(self, name)) is not None}
        return {**self.extra, **hints}


_HINTS = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}

Icon = str | Mapping[str, Any]
"""The URL of an image, or an icon of MCP: `{"src": URL, "mimeType": "image/png", "sizes": ["48x48"]}`."""


def read_icons(icons: Iterable[Icon]) -> tuple[dict[str, Any], ...]:
    """Return icons in the form of MCP.

    Raises:
        RegistrationError: one of them has no `src`, or they are a single one.
    """
    if isinstance(icons, str | Mapping):
        raise RegistrationError("icons is a list: write [icon]")
    found = [{"src": each} if isinstance(each, str) else dict(each) for each in icons]
    if not all(isinstance(each.get("src"), str) for each in found):
        raise RegistrationError('an icon is a URL, or {"src": URL, …}')
    return tuple(found)


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
        found = tuple(values)
        return cls(values=found[:MAX_COMPLETIONS], total=len(found), has_more=len(found) > MAX_COMPLETIONS)
