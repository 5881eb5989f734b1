"""Error responses of HTTP surfaces: RFC 9457 problem details.

A `CallError` gets its status from `ERROR_TABLE`; an `HTTPStatusError` is for what HTTP itself forbids (a method, a
media type, a host): it names the status and carries the closest code.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from math import ceil
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.errors import ERROR_TABLE, CallError, ErrorCode
from opwire.observe.logs import AccessEntry
from opwire.typed.plain import as_dict, as_list, write_json

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

PROBLEM_JSON = "application/problem+json"
MAX_DETAILS = 64 * 1024
"""Longest `details` of a problem as JSON, in bytes; longer ones are omitted, because they are meant for reading."""

SCOPES = re.compile(r"[!#-\[\]-~ ]+")
"""Scopes as they may be in a header (RFC 6749, section 3.3)."""

_encoder = msgspec.json.Encoder()


class ProblemDetails(Struct, omit_defaults=True, rename="camel"):
    """An error as RFC 9457 problem details. Clients decide by `code` and `retryable`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    instance: str | UnsetType = UNSET
    foreign_code: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET
    details: msgspec.Raw | UnsetType = UNSET
    data: msgspec.Raw | UnsetType = UNSET  # of a tool that returned an error as its result


class HTTPStatusError(Exception):
    """An error with an HTTP status or headers of its own. It never leaves a surface: it becomes a response."""

    def __init__(self, status: HTTPStatus, error: CallError, *headers: Header) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


def problem_details(error: CallError, *, status: int | None = None, request_id: str | None = None) -> ProblemDetails:
    """Return the problem of an error. A request id identifies the occurrence; `status` overrides the table's."""
    row = ERROR_TABLE[error.code]
    overridden = status is not None and status != row.http_status  # then the status says more than the code
    details = UNSET
    if error.details is not None:
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            encoded = write_json(_encoder, error.details)
            details = msgspec.Raw(encoded) if len(encoded) <= MAX_DETAILS else UNSET
    return ProblemDetails(
        type="about:blank" if overridden else f"urn:opwire:{error.code.value}",
        title=HTTPStatus(status).phrase if overridden else row.message,
        status=row.http_status if status is None else status,
        detail=error.message,
        code=error.code.value,
        retryable=error.retryable,
        instance=UNSET if request_id is None else f"urn:opwire:request:{quote(request_id)}",
        foreign_code=error.foreign_code or UNSET,
        retry_after_ms=UNSET if error.retry_after is None else max(0, round(error.retry_after * 1000)),
        details=details,
    )


def encode_problem(problem: ProblemDetails) -> bytes:
    """Encode a problem as JSON."""
    return write_json(_encoder, problem)


async def send_problem(
    send: Send,
    error: CallError | HTTPStatusError,
    *,
    access: AccessEntry | None = None,
    request_id: str | None = None,
    headers: Iterable[Header] = (),
    with_body: bool = True,
) -> None:
    """Send a problem response, and note it in the access log. Without a body (HEAD) it still has the length of one."""
    status_error = error if isinstance(error, HTTPStatusError) else None
    cause = error.error if isinstance(error, HTTPStatusError) else error
    if access is not None:
        access.failed(cause)
    problem = problem_details(cause, status=status_error and status_error.status, request_id=request_id)
    body = encode_problem(problem)
    lines: list[Header] = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *(status_error.headers if status_error else ()),
        *headers,
    ]
    if cause.retry_after is not None:
        lines.append((b"retry-after", b"%d" % max(0, ceil(cause.retry_after))))
    if not any(name == b"www-authenticate" for name, _ in lines):
        lines += challenge_of(cause)
    await send({"type": "http.response.start", "status": problem.status, "headers": lines})
    await send({"type": "http.response.body", "body": body if with_body else b""})


def challenge_of(error: CallError) -> list[Header]:
    """Return the `WWW-Authenticate` of an error: required with a 401 by RFC 9110, with missing scopes by RFC 6750."""
    if error.code is ErrorCode.UNAUTHENTICATED:
        return [(b"www-authenticate", b"Bearer")]
    scopes = " ".join(as_list(as_dict(error.details).get("requiredScopes")))
    if error.code is not ErrorCode.ACCESS_DENIED or not SCOPES.fullmatch(scopes):
        return []
    return [(b"www-authenticate", f'Bearer error="insufficient_scope", scope="{scopes}"'.encode())]
