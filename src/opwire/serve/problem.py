"""Errors as RFC 9457 problem details, for every surface that speaks HTTP.

A `CallError` gets its status from the one table. What HTTP itself forbids (a method, a media type, a host) has no code
of its own there: a `Refusal` names the status, and the code that comes closest.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from math import ceil
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.errors import ERROR_TABLE, CallError, ErrorCode
from opwire.typed.text import write_json

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

PROBLEM_JSON = "application/problem+json"
MAX_DETAILS = 64 * 1024
"""Bytes of `details` in JSON: what is longer is left out, because it is for reading and not for transport."""

_encoder = msgspec.json.Encoder()


class Problem(Struct, omit_defaults=True, rename="camel"):
    """What a client is told of an error. `code` is ours; a client decides by it, and by `retryable`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    instance: str | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET
    details: msgspec.Raw | UnsetType = UNSET


class Refusal(Exception):  # noqa: N818 - it never leaves a surface: it becomes a response
    """A request that is refused by HTTP's own rules, or with headers of its own."""

    def __init__(self, status: HTTPStatus, error: CallError, *headers: Header) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


def problem_of(error: CallError, *, status: int | None = None, request_id: str | None = None) -> Problem:
    """The problem that a client is shown; with a request id, it names the occurrence."""
    row = ERROR_TABLE[error.code]
    own = status is not None and status != row.http_status  # HTTP's own word for it says more than our code
    return Problem(
        type="about:blank" if own else f"urn:opwire:{error.code.value}",
        title=HTTPStatus(status).phrase if own else row.message,
        status=row.http_status if status is None else status,
        detail=error.message,
        code=error.code.value,
        retryable=error.retryable,
        instance=UNSET if request_id is None else f"urn:opwire:request:{quote(request_id)}",
        retry_after_ms=UNSET if error.retry_after is None else max(0, round(error.retry_after * 1000)),
        details=_details(error.details),
    )


def encode_problem(problem: Problem) -> bytes:
    """The problem as JSON."""
    return write_json(_encoder, problem)


async def send_problem(
    send: Send,
    error: CallError | Refusal,
    *,
    request_id: str | None = None,
    headers: Iterable[Header] = (),
    with_body: bool = True,
) -> None:
    """Answer a request with a problem. Without a body (HEAD) its length is still told."""
    given = error if isinstance(error, Refusal) else None
    cause = error.error if isinstance(error, Refusal) else error
    problem = problem_of(cause, status=given and given.status, request_id=request_id)
    body = encode_problem(problem)
    lines: list[Header] = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *(given.headers if given else ()),
        *headers,
    ]
    if cause.retry_after is not None:
        lines.append((b"retry-after", b"%d" % max(0, ceil(cause.retry_after))))
    if cause.code is ErrorCode.UNAUTHENTICATED and not any(name == b"www-authenticate" for name, _ in lines):
        lines.append((b"www-authenticate", b"Bearer"))  # RFC 9110 asks for it beside every 401
    await send({"type": "http.response.start", "status": problem.status, "headers": lines})
    await send({"type": "http.response.body", "body": body if with_body else b""})


def _details(details: Any) -> msgspec.Raw | UnsetType:
    if details is None:
        return UNSET
    try:
        encoded = write_json(_encoder, details)
    except (TypeError, ValueError, RecursionError):
        return UNSET
    return msgspec.Raw(encoded) if len(encoded) <= MAX_DETAILS else UNSET
