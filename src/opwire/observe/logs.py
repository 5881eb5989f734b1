"""The access log, one line per call that a surface serves, and a formatter that writes log records as JSON.

    logging.getLogger("opwire.access").setLevel(logging.INFO)

The access log is the logger `opwire.access` at level INFO. A record has the message for a person, and the fields of
`AccessEntry` as its attribute `access`. Without a handler for INFO nothing is measured.

Rules: text of callers is bounded, and its control characters are escaped. Inputs, outputs and error messages, which may
quote them, are not logged.
"""

import logging
import re
import time
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from opwire.errors import CallError, ConversionError
from opwire.model.envelope import MCPResponseMeta, ResponseEnvelope, encode_envelope
from opwire.model.identity import Identity
from opwire.model.operation import is_own
from opwire.runtime.text import get_logger, harmless_json, one_line, traceback_of
from opwire.typed.plain import as_dict, write_json

logger = get_logger("opwire.access")

OK = "OK"
TOOL_ERROR = "TOOL_ERROR"
"""The outcome of a call with an error as the result of its tool (`isError`)."""

CANCELLED = "CANCELLED"
"""The outcome of a call that its caller cancelled, or left by disconnecting."""

INPUT_REQUIRED = "INPUT_REQUIRED"
"""The outcome of a call that asks its client a question, which is answered by another call."""

MAX_TEXT = 200
"""Characters of an id in a line."""

_SECRET_NAMES = "(?i)passw|secret|token|authorization|api[-_]?key|credential|cookie|private"  # noqa: S105 - of names
_encoder = msgspec.json.Encoder()

SurfaceName = Literal["http", "mcp", "call", "console"]


class AccessEntry:
    """A call in progress. `write` logs it, once, when it has ended.

    `outcome` is "OK", an error code, "TOOL_ERROR", "CANCELLED" or "INPUT_REQUIRED". `bytes` is the size of the body of
    a response over HTTP, and of the encoded results on the other surfaces. `operation` is None if the request names no
    operation; one over HTTP then has its `path`.
    """

    __slots__ = (
        "began",
        "bytes",
        "error_id",
        "identity",
        "operation",
        "outcome",
        "path",
        "request_id",
        "status",
        "surface",
    )

    def __init__(self, surface: SurfaceName, *, operation: str | None = None, identity: Identity | None = None) -> None:
        self.surface: SurfaceName = surface
        self.operation = operation
        self.identity = None if identity is None else identity.id
        self.path: str | None = None
        self.request_id: str | None = None
        self.outcome = OK
        self.error_id: str | None = None
        self.status: int | None = None
        self.bytes = 0
        self.began = time.perf_counter()

    def answered(self, envelope: ResponseEnvelope[Any]) -> None:
        """Note whether a result is a tool's error."""
        if isinstance(envelope.meta, MCPResponseMeta) and envelope.meta.is_error:
            self.outcome = TOOL_ERROR

    def measured(self, envelope: ResponseEnvelope[Any]) -> None:
        """Note a result that is not encoded here, and its size."""
        self.answered(envelope)
        try:
            self.bytes += len(encode_envelope(envelope))
        except ConversionError:  # it has no JSON form; within a process it needs none
            pass

    def failed(self, error: CallError) -> None:
        """Note an error."""
        self.outcome = error.code.value
        error_id = as_dict(error.details).get("errorId")
        self.error_id = error_id if isinstance(error_id, str) else None

    def write(self) -> None:
        """Log the call; a successful one of `opwire.*` at level DEBUG, since `opwire top` makes one per second."""
        is_routine = self.outcome == OK and self.operation is not None and is_own(self.operation)
        fields = self.fields()
        target, identity = fields["operation"] or fields.get("path") or "-", fields["identity"] or "-"
        text = f"{self.surface} {target} {identity} {self.outcome} {fields['duration_ms']:.1f} ms {self.bytes:,} B"
        if self.error_id is not None:
            text += f" error id {fields['error_id']}"
        logger.log(logging.DEBUG if is_routine else logging.INFO, "%s", text, extra={"access": fields})

    def fields(self) -> dict[str, Any]:
        """Return the call as data."""
        fields: dict[str, Any] = {
            "surface": self.surface,
            "operation": _shown(self.operation),
            "identity": _shown(self.identity),
            "outcome": self.outcome,
            "duration_ms": round((time.perf_counter() - self.began) * 1000, 3),
            "bytes": self.bytes,
            "request_id": _shown(self.request_id),
        }
        if self.operation is None and self.path is not None:
            fields["path"] = _shown(self.path)
        if self.status is not None:
            fields["status"] = self.status
        if self.error_id is not None:
            fields["error_id"] = _shown(self.error_id)
        return fields


def begin_access(
    surface: SurfaceName, *, operation: str | None = None, identity: Identity | None = None
) -> AccessEntry | None:
    """Return the entry of a call that begins now; None if it is not in the access log."""
    if not logger.isEnabledFor(logging.INFO) or (operation or "").startswith("opwire.hub."):
        return None
    return AccessEntry(surface, operation=operation, identity=identity)


def masked(value: Any, names: Collection[str] = ()) -> Any:
    """Return plain data with "***" for the values of secret names, and of those in `names`, which are lower case."""
    if isinstance(value, dict):
        return {
            name: "***" if re.search(_SECRET_NAMES, name) or name.lower() in names else masked(member, names)
            for name, member in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [masked(element, names) for element in cast("list[Any]", value)]
    return value


class JSONFormatter(logging.Formatter):
    """Format log records as JSON, one object per line: `time`, `level`, `logger`, `message`.

    A record of the access log has the fields of the call as well, one with an exception its `traceback`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **as_dict(getattr(record, "access", None)),
        }
        if (traceback := traceback_of(record)) is not None:
            line["traceback"] = traceback
        return harmless_json(write_json(_encoder, line).decode())


def _shown(text: str | None) -> str | None:
    """Return text of a caller for one line of a log."""
    return None if text is None else one_line(text[:MAX_TEXT], MAX_TEXT)
