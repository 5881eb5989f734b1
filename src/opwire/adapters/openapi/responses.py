"""What an API answered: data and its schema, or the error that it is. No I/O.

A 2xx, and a 304 to a conditional request, is a result. Everything else is EXECUTION_ERROR, "HTTP <status>: <reason>":
what an API thinks of its own callers is never said of ours, so that its 401 or 429 is not our UNAUTHENTICATED or
RATE_LIMITED. `retryable` means that a retry may help: the API was busy, late or broken for a moment, or says itself
when to come back. Whether it is safe to repeat the call is for the caller to know.
"""

import logging
import time
from collections.abc import Iterable
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from opwire.adapters.openapi.document import bounded
from opwire.adapters.openapi.plan import Media, MediaType, Plan, choose, media_type
from opwire.envelope import http_envelope
from opwire.errors import CallError, ErrorCode
from opwire.operation import ShapedResult
from opwire.schema import UNKNOWN, Schema
from opwire.typed.plain import MAX_DEPTH, read_json, survey

logger = logging.getLogger("opwire.adapters.openapi")

MAX_ERROR_BODY = 8 * 1024
"""Bytes of an error's body that are told."""

_BOM = b"\xef\xbb\xbf"
_EMPTY = frozenset({204, 205, 304})
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_UNTOLD = frozenset({"set-cookie", "set-cookie2", "authorization", "cookie"})
_MAX_REASON = 200
_MAX_SHAPES = 64  # an API may make up a content type for each answer: a boundary stands there
MAX_WAIT = 30 * 24 * 60 * 60.0
"""Seconds after which a retry is no longer worth to wait for: an API that says more means never."""

_MAX_DATE = 100  # characters
_FAR = 1e12  # seconds; no time of day is as large
_EPOCH = 1_000_000_000  # a number of seconds above this is a time of day, not a while
_ASCII_BRACKETS = (None, "utf-8", "ascii")  # charsets in which a bracket is the byte that it is in ASCII
_json = msgspec.json.Decoder()


class Head(Struct, frozen=True, kw_only=True):
    """The beginning of an answer."""

    method: str
    status: int
    reason: str
    headers: list[tuple[str, str]]
    content_type: str = ""  # as it came

    @property
    def is_result(self) -> bool:
        """Whether it is a result, and not an error."""
        return 200 <= self.status < 300 or self.status == 304

    @property
    def media_type(self) -> MediaType:
        """The content type, read."""
        return media_type(self.content_type)

    def values(self, name: str) -> Iterable[str]:
        """The values of a header."""
        return (value for each, value in self.headers if each.lower() == name)


class Results:
    """The results of one operation. What its document says of a status and content type is looked up once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shapes: dict[tuple[int, str], tuple[MediaType, Schema]] = {}

    def of(self, head: Head, body: bytes) -> ShapedResult:
        """The result that an answer is, with the schema of the status and content type with which it came."""
        data, schema, is_plain = None, UNKNOWN, False
        if body and head.method != "HEAD" and head.status not in _EMPTY:
            kind, schema = self._shape(head)
            data, is_readable = _read(self._plan, kind, body)
            schema = schema if is_readable else UNKNOWN
            is_plain = is_readable and kind.is_json and _is_shallow(kind, body)
        envelope = http_envelope(data, status_code=head.status, headers=head.headers, content_type=head.content_type)
        return ShapedResult(envelope, schema, is_plain)

    def _shape(self, head: Head) -> tuple[MediaType, Schema]:
        key = (head.status, head.content_type)
        shape = self._shapes.get(key)
        if shape is None:
            shape = _shape_of(self._plan, head)
            if len(self._shapes) < _MAX_SHAPES:
                self._shapes[key] = shape
        return shape


def _shape_of(plan: Plan, head: Head) -> tuple[MediaType, Schema]:
    declared = [each for each in declared_for(plan, head.status) if each.stream is None]
    kind = head.media_type
    if not kind.name and len(declared) == 1:
        kind = media_type(declared[0].content_type)  # the API does not say: it will be what its document says
    found = choose(declared, kind)
    return kind, found.schema if found else UNKNOWN


def declared_for(plan: Plan, status: int) -> tuple[Media, ...]:
    """The kinds of answer that are declared for a status, or for its class.

    `default` counts where no success is declared at all: beside one, it describes the errors.
    """
    responses = plan.responses
    for key in (str(status), f"{status // 100}XX", f"{status // 100}xx"):
        if key in responses:
            return responses[key]
    return () if any(key.startswith("2") for key in responses) else responses.get("default", ())


def _read(plan: Plan, kind: MediaType, body: bytes) -> tuple[Any, bool]:
    """The data of a body, and whether it is what its content type says."""
    if kind.is_json:
        try:
            return _read_json(kind, body), True
        except (ValueError, RecursionError) as error:
            logger.warning("%s: the answer is said to be JSON and is not, so it is text: %s", plan.operation_id, error)
            return _read_text(plan, kind, body), False
    if kind.is_text:
        return _read_text(plan, kind, body), True
    return body, True


def _read_json(kind: MediaType, body: bytes) -> Any:
    if kind.charset not in _ASCII_BRACKETS:
        return read_json(_json, body.decode(kind.charset).removeprefix("\ufeff"))
    return read_json(_json, body.removeprefix(_BOM))


def _is_shallow(kind: MediaType, body: bytes) -> bool:
    """Whether JSON cannot be too deep: it opens fewer arrays and objects than it may nest."""
    return kind.charset in _ASCII_BRACKETS and body.count(b"[") + body.count(b"{") <= MAX_DEPTH


def _read_text(plan: Plan, kind: MediaType, body: bytes) -> str:
    charset = kind.charset or "utf-8"
    body = body.removeprefix(_BOM) if charset == "utf-8" else body
    try:
        return body.decode(charset)
    except UnicodeError:
        logger.warning("%s: the answer is not valid %s: what is not is replaced", plan.operation_id, charset)
        return body.decode(charset, errors="replace")


# --- errors ---------------------------------------------------------------------------------------------------------


def error_of(head: Head, body: bytes, *, is_whole: bool = True, hint: str = "") -> CallError:
    """The error that an answer is. Its body is told as far as it is here; `hint` says what the user may do."""
    details: dict[str, Any] = {
        "status": head.status,
        "headers": _told_headers(head.headers),
        "body": _told_body(head.media_type, body, is_whole),
    }
    if hint:
        details["hint"] = hint
    wait = _retry_after(head)
    return CallError(
        ErrorCode.EXECUTION_ERROR,
        f"HTTP {head.status}: {_reason(head)}",
        details,
        retryable=head.status in _RETRYABLE or (wait is not None and head.status >= 400),
        retry_after=wait,
    )


def _reason(head: Head) -> str:
    if head.reason.strip():
        return head.reason.strip()[:_MAX_REASON]
    try:
        return HTTPStatus(head.status).phrase
    except ValueError:
        return "Unknown"


def _told_headers(headers: list[tuple[str, str]]) -> dict[str, str]:
    told: dict[str, str] = {}
    for raw_name, value in headers:
        name = raw_name.lower()
        if name not in _UNTOLD:
            told[name] = f"{told[name]}, {value}" if name in told else value
    return told


def _told_body(kind: MediaType, body: bytes, is_whole: bool) -> Any:
    if not body:
        return None
    if kind.is_json and is_whole:
        try:
            value = _read_json(kind, body)
            if not survey(value).deep:
                return value
        except (ValueError, RecursionError):
            pass
    if kind.is_json or kind.is_text or not kind.name:
        text = body[:MAX_ERROR_BODY].decode(kind.charset or "utf-8", errors="replace")
        return text if is_whole else f"{text}…"
    return f"<{len(body)} bytes{'' if is_whole else ' or more'} of {kind.name}>"


def _retry_after(head: Head) -> float | None:
    """Seconds to wait, if the API says so: in Retry-After, or where it limits a rate, in a plain reset header."""
    for value in head.values("retry-after"):
        seconds = _seconds(value)
        return _until(value) if seconds is None else seconds
    if head.status == HTTPStatus.TOO_MANY_REQUESTS:
        for name in ("ratelimit-reset", "x-ratelimit-reset"):
            for value in head.values(name):
                return _seconds(value)
    return None


def _seconds(text: str) -> float | None:
    """Return the wait that a number of seconds means, from now or since 1970; None if it is no number."""
    seconds = bounded(text, _FAR)
    if seconds is None:
        return None
    return bounded(seconds - time.time() if seconds > _EPOCH else seconds, MAX_WAIT)


def _until(date: str) -> float | None:
    try:
        when = parsedate_to_datetime(date[:_MAX_DATE])
        return bounded(when.replace(tzinfo=when.tzinfo or UTC).timestamp() - time.time(), MAX_WAIT)
    except (ValueError, OverflowError, IndexError, TypeError):  # what the parser of the standard library raises
        return None
