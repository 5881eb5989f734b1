"""Requests and responses of the console: static files, JSON, checks against other pages, and event streams.

Rules: no response may be framed, sniffed or cached by accident, and no page of another origin may send a request, even
one whose origin the HTTP surface allows. Files are read once, at the start: a path of a request is only a key.
"""

import asyncio
import contextlib
import gzip
import mimetypes
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from opwire.auth.tokens import EXPIRED
from opwire.deadlines import Deadlines
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity, holds
from opwire.serve.console.session import SessionStore
from opwire.serve.guard import Receive
from opwire.serve.http.request import CancelOnDisconnect, Request
from opwire.serve.problem import Header, Send, problem_details
from opwire.typed.plain import write_json

T = TypeVar("T")

CONSOLE_HEADER = b"x-opwire-console"
"""Required of requests that change anything: a page of another origin cannot add it without asking first."""

HEARTBEAT = 15.0
"""Seconds of silence after which a stream gets a comment line."""

STALLED = 60.0
"""Timeout in seconds for a client that does not read a stream."""

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; font-src 'self'; connect-src 'self'; frame-src blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY: tuple[Header, ...] = (
    (b"content-security-policy", _CSP.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response, beside `_NO_SNIFFING`, which problems have anyway."""

_NO_SNIFFING: Header = (b"x-content-type-options", b"nosniff")
_NO_STORE: Header = (b"cache-control", b"no-store")
_TYPES = {".js": "text/javascript", ".woff2": "font/woff2", ".svg": "image/svg+xml", ".webmanifest": "application/json"}
_encoder = msgspec.json.Encoder()


class StaticFile(NamedTuple):
    """A file of the page."""

    content_type: bytes
    body: bytes
    compressed: bytes
    etag: bytes


@lru_cache(maxsize=4)  # to compress the page takes 0.1 s
def read_files(folder: Path) -> Mapping[str, StaticFile]:
    """Read the files of a folder, by their path in it."""
    found: dict[str, StaticFile] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            guessed = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            kind = f"{guessed}; charset=utf-8" if guessed.startswith("text/") else guessed
            body = path.read_bytes()
            etag = f'"{sha256(body).hexdigest()[:32]}"'.encode()
            packed = gzip.compress(body, 9, mtime=0)
            found[path.relative_to(folder).as_posix()] = StaticFile(kind.encode(), body, packed, etag)
    return found


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


# --- responses --------------------------------------------------------------------------------------------------------


async def send_bytes(
    send: Send,
    request: Request,
    body: bytes,
    content_type: bytes = b"application/json",
    *headers: Header,
    status: HTTPStatus = HTTPStatus.OK,
) -> None:
    """Send a response."""
    lines = [(b"content-length", b"%d" % len(body)), (b"x-request-id", request.request_id.encode()), *headers]
    if body:
        lines.append((b"content-type", content_type))
    if not any(name == b"cache-control" for name, _ in headers):
        lines.append(_NO_STORE)
    await send({"type": "http.response.start", "status": int(status), "headers": [*SECURITY, _NO_SNIFFING, *lines]})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


async def send_nothing(send: Send, request: Request, *headers: Header) -> None:
    """Send an empty response, 204."""
    lines = [*SECURITY, _NO_SNIFFING, _NO_STORE, (b"x-request-id", request.request_id.encode()), *headers]
    await send({"type": "http.response.start", "status": int(HTTPStatus.NO_CONTENT), "headers": lines})
    await send({"type": "http.response.body", "body": b""})


async def send_json(
    send: Send,
    request: Request,
    value: Any,
    compressed: bytes | None = None,
    *,
    etag: bytes | None = None,
    headers: Iterable[Header] = (),
) -> None:
    """Send data as JSON, or bytes that are JSON already; with an ETag that the client knows, send 304."""
    lines: list[Header] = [*headers, (b"vary", b"accept-encoding, cookie")]
    if etag is not None:
        lines += [(b"etag", etag), (b"cache-control", b"private, no-cache")]
        if etag in request.headers.get(b"if-none-match", b""):
            await send_bytes(send, request, b"", b"", *lines, status=HTTPStatus.NOT_MODIFIED)
            return
    body = value if isinstance(value, bytes) else write_json(_encoder, value)
    if compressed is not None and accepts_gzip(request):
        body = compressed
        lines.append((b"content-encoding", b"gzip"))
    await send_bytes(send, request, body, b"application/json", *lines)


def accepts_gzip(request: Request) -> bool:
    """Return whether a client accepts a compressed response."""
    return b"gzip" in request.headers.get(b"accept-encoding", b"")


async def send_file(send: Send, request: Request, file: StaticFile, *, is_immutable: bool) -> None:
    """Send a file of the page. `is_immutable`: its name changes with its content."""
    cache = b"public, max-age=31536000, immutable" if is_immutable else b"no-cache"
    lines: list[Header] = [(b"cache-control", cache), (b"etag", file.etag), (b"vary", b"accept-encoding")]
    if file.etag in request.headers.get(b"if-none-match", b""):
        await send_bytes(send, request, b"", b"", *lines, status=HTTPStatus.NOT_MODIFIED)
        return
    is_smaller = len(file.compressed) < len(file.body) and accepts_gzip(request)
    encoding: list[Header] = [(b"content-encoding", b"gzip")] if is_smaller else []
    body = file.compressed if is_smaller else file.body
    await send_bytes(send, request, body, file.content_type, *lines, *encoding)


# --- server-sent events -----------------------------------------------------------------------------------------------


class EventStreamWriter:
    """Writes one stream of server-sent events, from any task; a client that does not read counts as disconnected."""

    def __init__(self, request: Request, send: Send, running: CancelOnDisconnect) -> None:
        self._request = request
        self._send = send
        self._running = running
        self._lock = asyncio.Lock()
        self._last = time.monotonic()

    async def start(self) -> None:
        """Send the headers."""
        lines: list[Header] = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            _NO_STORE,
            (b"x-accel-buffering", b"no"),  # nginx buffers events otherwise
            (b"x-request-id", self._request.request_id.encode()),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*SECURITY, _NO_SNIFFING, *lines]})

    async def event(self, name: str, data: Any) -> None:
        """Write an event with JSON data; bytes are JSON already."""
        encoded = data if isinstance(data, bytes) else write_json(_encoder, data)
        await self._write(b"event: %s\ndata: %s\n\n" % (name.encode(), encoded))

    async def beat(self) -> None:
        """Write a comment line if there was a silence."""
        if time.monotonic() - self._last >= HEARTBEAT:
            await self._write(b":\n\n")

    async def end(self) -> None:
        """End the response."""
        await self._write(b"", more=False)

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        try:
            async with self._lock, asyncio.timeout(STALLED):
                await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
                self._last = time.monotonic()
        except TimeoutError:
            self._running.interrupt()


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
        wanted = (None if identity is None else identity.id,)
        return sum(each.counts_for == wanted for each in self._open.values())

    def interrupt(self, reason: CallError) -> None:
        """End all streams."""
        for each in tuple(self._open):
            each.interrupt(reason)

    def log_out(self, request: Request) -> None:
        """End the session of a request, and its streams."""
        if (key := self._sessions.close(request.headers)) is not None:
            for running in [each for each, stream in self._open.items() if stream.session == key]:
                running.interrupt(signed_out())

    @asynccontextmanager
    async def writing(
        self, request: Request, receive: Receive, send: Send, *, counted: bool = False
    ) -> AsyncGenerator[tuple[EventStreamWriter, CancelOnDisconnect]]:
        """Write a stream for the duration of the block, which is cancelled when the client disconnects.

        `counted` streams are those of `count`. An error that ends the block early is sent as the event `error`.
        """
        running = CancelOnDisconnect(receive, self._deadlines)
        writer = EventStreamWriter(request, send, running)
        identity = request.identity
        counts_for = (None if identity is None else identity.id,) if counted else None
        stream = self._open[running] = OpenStream(self._sessions.key(request.headers), counts_for)
        beating: asyncio.Task[None] | None = None

        async def beat() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT)
                await writer.beat()
                with contextlib.suppress(CallError):  # the authenticator cannot say: the session goes on
                    if stream.session is not None and await self._sessions.find(request.headers) is None:
                        running.interrupt(signed_out())  # or its token was revoked

        try:
            with running:
                running.interrupt_at(request.expires, CallError(ErrorCode.UNAUTHENTICATED, EXPIRED))
                await writer.start()
                beating = asyncio.create_task(beat())
                yield writer, running
            if running.interrupted and running.reason is not None:
                await writer.event("error", error_data(running.reason))
            if not running.interrupted or running.reason is not None:
                await writer.end()
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
