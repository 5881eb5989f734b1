"""What of a server could not be used, or not as it was given, and why.

What strangers send, as what it ought to be: empty where it is something else.

Names that servers and their configuration give, as names that operations can have.

What went wrong with an MCP server, as a `CallError`. No I/O.

What HTTP says travels through the SDK as the `data` of a JSON-RPC error, under `HTTP_FAILURE`: its transport keeps
nothing else of a response that failed. The key is secret, because a server writes `data` too.
"""

import logging
import re
import reprlib
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorData,
)
from msgspec import Struct

from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import harmless, replace_surrogates

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


def object_of(value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    """A JSON array."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A JSON string."""
    return value if isinstance(value, str) else ""


MAX_NAME = 500
"""Characters of a tool's or prompt's name; the protocol asks for at most 128."""

_MAX_NAMESPACE = 100  # every id begins with it


def usable_namespace(name: str, otherwise: str = "mcp") -> str:
    """Return the name, cut, with what a namespace cannot hold, dots and control characters, as underscores."""
    given = name.strip()[:_MAX_NAMESPACE]
    shown = "".join(letter if letter.isprintable() and letter != "." else "_" for letter in given)
    return shown or otherwise


def usable_namespaces(names: Iterable[str]) -> dict[str, str]:
    """A namespace for each name, all of them different: "a.b" and "a_b" become "a_b" and "a_b_2"."""
    names = list(names)
    taken = {name for name in names if usable_namespace(name) == name}
    namespaces: dict[str, str] = {}
    for name in names:
        namespace = first = usable_namespace(name)
        number = 2
        while namespace in taken and namespace != name:
            namespace, number = f"{first}_{number}", number + 1
        taken.add(namespace)
        namespaces[name] = namespace
    return namespaces


def is_usable(name: object) -> bool:
    """Return whether an operation can have this name."""
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()


HTTP_FAILURE = f"opwire/http/{secrets.token_hex(8)}"
"""The key under which an `HTTPFailure` stands, different in every process: a server cannot forge one."""

MAX_RETRY_AFTER = 86_400.0
"""Seconds: a server that asks for more is asked again after a day."""


class HTTPFailure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What HTTP said. A status of 0 is a server that did not answer; `lost` is a session that it has forgotten.

    `too_long` is an answer above a limit, of any transport.
    """

    status: int
    reason: str = ""
    retry_after: float | None = None
    lost: bool = False
    too_long: bool = False


_MAX_TEXT = 2000  # characters of a server's message that are repeated
_MAX_DATA = 4000  # bytes of its error's data that are kept
_UNKNOWN_TOOL = re.compile(r"unknown tool|tool\b.{0,200}\bnot found", re.IGNORECASE | re.DOTALL)


def too_large(what: str) -> ErrorData:
    """Return the error that stands for an answer of which too much came."""
    failure = HTTPFailure(status=0, reason=f" {what}", too_long=True)
    return ErrorData(code=INTERNAL_ERROR, message="too large", data={HTTP_FAILURE: msgspec.to_builtins(failure)})


def call_error(error: MCPError, server: str, method: str) -> CallError:
    """Map a JSON-RPC error that answers `method`."""
    http = http_failure(error)
    if http is not None:
        return _of_http(http, server)
    code, text = error.code, str(replace_surrogates(error.message))[:_MAX_TEXT]
    details = {"code": code, "data": _capped(error.data)}
    said = f"the MCP server {server} answered {method} with an error: {text}"
    if code == METHOD_NOT_FOUND or (method == "tools/call" and _UNKNOWN_TOOL.search(text)):
        return CallError(ErrorCode.OPERATION_NOT_FOUND, said, details)
    if code == INVALID_PARAMS:
        return CallError(ErrorCode.VALIDATION_ERROR, said, details)
    if code in (PARSE_ERROR, INVALID_REQUEST):
        return CallError(ErrorCode.PROTOCOL_ERROR, said, details)
    if code == CONNECTION_CLOSED and text.startswith("SSE stream"):  # the SDK's own words: the answer was cut off
        return CallError(ErrorCode.UNAVAILABLE, f"the MCP server {server} did not finish its answer: {text}", details)
    return CallError(ErrorCode.EXECUTION_ERROR, said, details)


def http_failure(error: MCPError) -> HTTPFailure | None:
    """What HTTP said, if that is what failed."""
    data: Any = error.data
    if not isinstance(data, Mapping) or HTTP_FAILURE not in data:
        return None
    return msgspec.convert(data[HTTP_FAILURE], HTTPFailure)


def _of_http(http: HTTPFailure, server: str) -> CallError:
    """The server's refusal of *us* is never passed on as a refusal of our caller: to it, the server is unavailable."""
    status = http.status
    words = _HTTP_WORDS.get(status) or f"answered with HTTP {status}"
    if http.too_long and not status:
        words = "answered with"
    return CallError(
        ErrorCode.PAYLOAD_TOO_LARGE if http.too_long else ErrorCode.UNAVAILABLE,
        f"the MCP server {server} {words}{http.reason}",
        {"status": status} if status else None,
        retryable=not http.too_long and (status in (0, 408, 425, 429) or status >= 500),
        retry_after=http.retry_after,
    )


_HTTP_WORDS = {
    0: "cannot be reached",
    401: "does not know us (HTTP 401): check its headers or its auth option",
    403: "does not allow us (HTTP 403): check the rights of our credentials",
    404: "has nothing at this address (HTTP 404)",
}


def _capped(data: Any) -> Any:
    """Return the data of an error, cut where it is too much for one."""
    if data is None:
        return None
    try:
        raw = msgspec.json.encode(replace_surrogates(data))
    except (TypeError, ValueError, RecursionError):
        return "(data that cannot be shown)"
    return data if len(raw) <= _MAX_DATA else raw[:_MAX_DATA].decode("utf-8", "ignore") + "…"
