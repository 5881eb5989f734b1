"""Requests and responses of the console: static files, JSON, checks against other pages, and event streams.

Rules: no response may be framed, sniffed or cached by accident, and no page of another origin may send a request, even
one whose origin the HTTP surface allows. Files are read once, at the start: a path of a request is only a key.
"""

import asyncio
import contextlib
import gzip
import mimetypes
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from opwire.asgi.problem import Header, HTTPStatusError, Send, problem_details
from opwire.asgi.request import App, Receive, Scope
from opwire.console.session import SessionStore
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity, holds
from opwire.openapi.server.request import REQUEST, CancelOnDisconnect, Request
from opwire.openapi.server.responses import COMMENT, EventResponse
from opwire.runtime.deadlines import Deadlines
from opwire.typed.plain import write_json

T = TypeVar("T")

CONSOLE_HEADER = b"x-opwire-console"
"""Required of requests that change anything: a page of another origin cannot add it without asking first."""

HEARTBEAT = 15.0
"""Seconds of silence after which a stream gets a comment line."""

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = {
    "content-security-policy": _CSP,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
SECURITY: tuple[Header, ...] = tuple((name.encode(), value.encode()) for name, value in _SECURITY.items())
"""Headers of every response, beside the one against sniffing, which problems and events have anyway."""

_TYPES = {".js": "text/javascript", ".woff2": "font/woff2", ".svg": "image/svg+xml", ".webmanifest": "application/json"}
_encoder = msgspec.json.Encoder()


class StaticFile(NamedTuple):
    """A file of the page, or what else clients keep in their caches."""

    media_type: str
    body: bytes
    compressed: bytes
    etag: str


@lru_cache(maxsize=4)  # to compress the page takes 0.1 s
def read_files(folder: Path) -> Mapping[str, StaticFile]:
    """Read the files of a folder, by their path in it."""
    files: dict[str, StaticFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            body = path.read_bytes()
            packed = gzip.compress(body, 9, mtime=0)
            files[path.relative_to(folder).as_posix()] = StaticFile(kind, body, packed, etag_of(body))
    return files


def etag_of(content: bytes) -> str:
    """Return the ETag of a content, or of what determines it."""
    return f'"{sha256(content).hexdigest()[:32]}"'


def check_sender(request: Request) -> None:
    """Check that a request comes from the page itself, or from a program that is not a browser.

    Raises:
        CallError: ACCESS_DENIED.
    """
    host = request.headers.get(b"host", b"").lower()
    origin, site = request.headers.get(b"origin"), request.headers.get(b"sec-fetch-site")
    is_own = origin is None or origin.lower() in (b"http://" + host, b"https://" + host)
    if not is_own or site not in (None, b"same-origin", b"none"):
        raise CallError(ErrorCode.ACCESS_DENIED, "pages of other origins may not use the console")
    if request.method not in ("GET", "HEAD") and request.headers.get(CONSOLE_HEADER) != b"1":
        raise CallError(ErrorCode.ACCESS_DENIED, f"the header {CONSOLE_HEADER.decode()}: 1 is missing")


def require(request: Request, scope: str) -> Identity:
    """Return the identity of a caller with this scope.

    Raises:
        CallError: UNAUTHENTICATED, ACCESS_DENIED.
    """
    if request.identity is None:
        raise CallError(ErrorCode.UNAUTHENTICATED, "sign in")
    if not holds(request.identity, scope):
        raise CallError(ErrorCode.ACCESS_DENIED, f"this needs the scope {scope}")
    return request.identity


def read_body(request: Request, kind: type[T]) -> T:
    """Parse the JSON body of a request.

    Raises:
        CallError: VALIDATION_ERROR, PROTOCOL_ERROR.
        HTTPStatusError: its content type is not JSON.
    """
    value = request.json()
    try:
        return msgspec.convert({} if value is msgspec.UNSET else value, kind)
    except msgspec.ValidationError as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the body: {error}") from None


# --- endpoints --------------------------------------------------------------------------------------------------------

Handle = Callable[[Request], Awaitable[App]]
"""Returns the response to a request, or the app that streams it."""


class Endpoint:
    """One path as an ASGI app: its handlers by method. A HEAD is a GET without the body, unless that has no end."""

    def __init__(self, *, is_endless: bool = False, **handlers: Handle) -> None:
        self._is_endless = is_endless
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request.

        Raises:
            HTTPStatusError: the path does not have its method.
        """
        request: Request = scope[REQUEST]
        is_head = request.method == "HEAD" and not self._is_endless
        handle = self._handlers.get("GET" if is_head else request.method)
        if handle is None:
            raise wrong_method(*self._handlers)
        response = await handle(request)
        if is_head and isinstance(response, Response):
            response.body = b""  # with the headers of the whole
        await response(scope, receive, send)


def wrong_method(*methods: str) -> HTTPStatusError:
    """Return the error for a method that a path does not have."""
    wrong = CallError(ErrorCode.PROTOCOL_ERROR, f"the methods of this path are {', '.join(methods)}")
    return HTTPStatusError(HTTPStatus.METHOD_NOT_ALLOWED, wrong, (b"allow", ", ".join(methods).encode()))


def no_such_path(request: Request) -> CallError:
    """Return the error for a path that does not exist."""
    return CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path {request.path[:200]}")


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Reject a request that no route matches.

    Raises:
        CallError: OPERATION_NOT_FOUND.
    """
    raise no_such_path(scope[REQUEST])


# --- responses --------------------------------------------------------------------------------------------------------


def reply(
    request: Request,
    body: bytes = b"",
    media_type: str = "application/json",
    *,
    status: HTTPStatus = HTTPStatus.OK,
    headers: Mapping[str, str] = {},
) -> Response:
    """Return a response; without a body it has no content type."""
    defaults = {"x-content-type-options": "nosniff", "cache-control": "no-store", "x-request-id": request.request_id}
    return Response(body, status, {**_SECURITY, **defaults, **headers}, media_type if body else None)


def empty_reply(request: Request) -> Response:
    """Return an empty response, 204."""
    return reply(request, status=HTTPStatus.NO_CONTENT)


def json_reply(request: Request, value: Any) -> Response:
    """Return data as JSON."""
    return reply(request, write_json(_encoder, value))


def cached_reply(request: Request, file: StaticFile, *, cache_control: str, vary: str = "accept-encoding") -> Response:
    """Return what a client may have in its cache, compressed if it accepts that; 304 if it has it."""
    headers = {"cache-control": cache_control, "etag": file.etag, "vary": vary}
    if file.etag.encode() in request.headers.get(b"if-none-match", b""):
        return reply(request, status=HTTPStatus.NOT_MODIFIED, headers=headers)
    if len(file.compressed) >= len(file.body) or b"gzip" not in request.headers.get(b"accept-encoding", b""):
        return reply(request, file.body, file.media_type, headers=headers)
    return reply(request, file.compressed, file.media_type, headers={**headers, "content-encoding": "gzip"})


# --- server-sent events -----------------------------------------------------------------------------------------------


class ConsoleEvents(EventResponse):
    """Writes one stream of server-sent events with JSON data."""

    async def event(self, name: str, data: Any) -> None:
        """Write an event; data as bytes is JSON already."""
        encoded = data if isinstance(data, bytes) else write_json(_encoder, data)
        await self.write(b"event: %s\ndata: %s\n\n" % (name.encode(), encoded))


class OpenStream(NamedTuple):
    """An open stream: the key of its session, if it has one, and an id if it counts towards a limit."""

    session: bytes | None
    counts_for: tuple[str | None] | None


class Streams:
    """The open streams of a console, which end when the server shuts down or their session ends."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions
        self._deadlines = Deadlines()
        self._open: dict[CancelOnDisconnect, OpenStream] = {}

    def count(self, identity: Identity | None) -> int:
        """Return how many counted streams an identity has open; None: anonymous callers."""
        counted_identity = (None if identity is None else identity.id,)
        return sum(stream.counts_for == counted_identity for stream in self._open.values())

    def interrupt(self, reason: CallError) -> None:
        """End all streams."""
        for running in tuple(self._open):
            running.interrupt(reason)

    def log_out(self, request: Request) -> None:
        """End the session of a request, and its streams."""
        if (key := self._sessions.close(request.headers)) is not None:
            for running in [running for running, stream in self._open.items() if stream.session == key]:
                running.interrupt(signed_out())

    @asynccontextmanager
    async def writing(
        self, request: Request, receive: Receive, send: Send, *, counted: bool = False
    ) -> AsyncGenerator[ConsoleEvents]:
        """Write a stream for the duration of the block, which is cancelled when the client disconnects.

        `counted` streams are those of `count`. An error that ends the block early is sent as the event `error`.
        """
        running = CancelOnDisconnect(receive, self._deadlines)
        writer = ConsoleEvents(send, running, [*SECURITY, (b"x-request-id", request.request_id.encode())])
        identity = request.identity
        counts_for = (None if identity is None else identity.id,) if counted else None
        self._open[running] = OpenStream(self._sessions.key(request.headers), counts_for)
        beating: asyncio.Task[None] | None = None

        async def beat() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT)
                if time.monotonic() - writer.last_sent >= HEARTBEAT:
                    await writer.write(COMMENT)

        try:
            with running:
                running.interrupt_when(request.admitted.ended)
                await writer.write(b"")  # the headers
                beating = asyncio.create_task(beat())
                yield writer
            if running.interrupted and running.reason is not None:
                await writer.event("error", error_data(running.reason))
            if not running.interrupted or running.reason is not None:
                await writer.write(b"", more=False)
        finally:
            del self._open[running]
            if beating is not None:
                beating.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await beating


def signed_out() -> CallError:
    """Return the error for a session that has ended."""
    return CallError(ErrorCode.UNAUTHENTICATED, "the session has ended: sign in again")


def error_data(error: CallError) -> Mapping[str, Any]:
    """Return an error as the data of an event."""
    problem = problem_details(error)
    data: dict[str, Any] = {"code": problem.code, "message": problem.detail, "retryable": problem.retryable}
    if error.retry_after is not None:
        data["retryAfterMs"] = round(error.retry_after * 1000)
    return data if problem.details is msgspec.UNSET else {**data, "details": problem.details}
