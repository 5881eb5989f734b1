"""Respond to HTTP requests: results of calls, errors, and subscriptions as server-sent events.

A response is the data as JSON, `null` included: an empty 204 would not distinguish "nothing" from "no body", and
generated clients parse the type that the document declares. Bytes are an octet stream.

Each item of a subscription is an event with JSON data: the item, or its envelope. If the subscription can be resumed,
the id is the cursor of the item, and a request with `Last-Event-ID` continues behind it; other events have no id, which
a browser would send back when it reconnects. An item from an HTTP stream keeps its type. An error before the first item
is an ordinary problem response; afterwards it is an event of type `error` with the problem as data. Comment lines keep
a silent connection open.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from opwire.asgi.problem import (
    PROBLEM_JSON,
    Header,
    HTTPStatusError,
    Send,
    encode_problem,
    problem_details,
    send_problem,
)
from opwire.asgi.request import ADMITTED, App, Receive, Scope
from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.model.envelope import (
    HTTPResponseMeta,
    MCPResponseMeta,
    ResponseEnvelope,
    ToolErrorPolicy,
    encode_envelope,
    tool_error_text,
    warn_of_nulls,
)
from opwire.model.origin import ENVELOPE_JSON
from opwire.observe.logs import CANCELLED
from opwire.openapi.server.request import REQUEST, CancelOnDisconnect, Request
from opwire.runtime.text import EscapingLogger
from opwire.typed.plain import write_json

NO_STORE: Header = (b"cache-control", b"no-store")
"""Without `vary`, which would only matter to a cache."""

JSON: Header = (b"content-type", b"application/json")

UPSTREAM = "opwire-upstream-"

_FORWARDED = frozenset(
    "age content-language content-location content-type deprecation etag last-modified link location retry-after "
    "sunset warning x-request-id x-correlation-id x-trace-id request-id".split()
)
_FORWARDED_PREFIXES = (
    *("ratelimit", "x-ratelimit", "x-rate-limit"),
    *("x-total", "x-page", "x-per-page", "x-next", "x-prev"),
)
_MAX_HEADER_VALUE_CHARACTERS = 4_096
_OK = int(HTTPStatus.OK)  # an attribute of HTTPStatus takes 0.3 µs on Python 3.11
_STATUSES_WITHOUT_LENGTH = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_encoder = msgspec.json.Encoder()


class Requests:
    """Middleware that parses each admitted request, and responds with a problem if its endpoint raises an error."""

    def __init__(self, app: App, logger: EscapingLogger, error_headers: Iterable[Header] = ()) -> None:
        self._app = app
        self._logger = logger
        self._error_headers = error_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = scope[REQUEST] = Request(scope, scope[ADMITTED])
        if request.access is not None:
            request.access.request_id = request.request_id
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server stops, and does not wait any longer
            if request.access is not None:
                request.access.outcome = CANCELLED
            raise
        except Exception as error:
            await send_error(send, request, error, self._logger, self._error_headers)


class EncodedResponse(Struct, frozen=True):  # not a named tuple: saves 0.2 µs
    """A response: status, body and headers."""

    status: int
    content_type: bytes
    body: bytes
    headers: list[Header]


def encode_response(
    envelope: ResponseEnvelope[Any], *, whole: bool, is_error: ToolErrorPolicy, request_id: str | None = None
) -> EncodedResponse:
    """Encode the data of an envelope, or the `whole` of it.

    Raises:
        CallError: EXECUTION_ERROR, if the data cannot be encoded.
    """
    if whole:
        return EncodedResponse(_OK, ENVELOPE_JSON.encode(), encode_whole(envelope), [])
    meta = envelope.meta
    headers: list[Header] = []
    if isinstance(meta, HTTPResponseMeta):
        headers = upstream_headers(meta)
    elif isinstance(meta, MCPResponseMeta) and meta.is_error:
        headers = [(b"opwire-is-error", b"true")]
        if is_error == "raise":
            message = tool_error_text(meta, "the tool returned an error without a text")
            problem = problem_details(CallError(ErrorCode.EXECUTION_ERROR, message), request_id=request_id)
            problem.data = msgspec.Raw(encode_data(envelope.data))
            return EncodedResponse(problem.status, PROBLEM_JSON.encode(), encode_problem(problem), headers)
    if isinstance(envelope.data, bytes):
        return EncodedResponse(_OK, b"application/octet-stream", envelope.data, headers)
    return EncodedResponse(_OK, b"application/json", encode_data(envelope.data), headers)


def encode_data(data: Any) -> bytes:
    """Encode plain data as JSON.

    Raises:
        CallError: EXECUTION_ERROR, if it is nested too deeply.
    """
    try:
        try:
            encoded = _encoder.encode(data)
        except UnicodeEncodeError:
            encoded = write_json(_encoder, data)
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, f"the result cannot be encoded as JSON: {error}") from error
    if encoded.rfind(b"null") >= 0:
        warn_of_nulls(encoded, data)
    return encoded


def encode_whole(envelope: ResponseEnvelope[Any]) -> bytes:
    """Encode an envelope as JSON.

    Raises:
        CallError: EXECUTION_ERROR, if its data cannot be encoded.
    """
    try:
        return encode_envelope(envelope)
    except ConversionError as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, str(error)) from error


def upstream_headers(meta: HTTPResponseMeta) -> list[Header]:
    """Return the useful headers of an upstream HTTP response: status, rate limits, pages. Never its cookies.

    A handler can put anything into an envelope, so values that could break out of a header line are dropped.
    """
    return [
        (f"{UPSTREAM}status".encode(), b"%d" % meta.status_code),
        *(
            (f"{UPSTREAM}{name}".encode(), value.encode("latin-1", "replace"))
            for name, value in meta.headers.items()
            if (name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES))
            and (name.isascii() and name.replace("-", "").isalnum())
            and (len(value) <= _MAX_HEADER_VALUE_CHARACTERS and value.isprintable())
        ),
    ]


async def send_methods(send: Send, request: Request, *methods: str) -> None:
    """Respond to OPTIONS; reject another method that a path does not have.

    Raises:
        HTTPStatusError: METHOD_NOT_ALLOWED.
    """
    allow = (b"allow", ", ".join((*methods, "OPTIONS")).encode())
    if request.method != "OPTIONS":
        wrong = CallError(ErrorCode.PROTOCOL_ERROR, f"the methods of this path are {', '.join(methods)} and OPTIONS")
        raise HTTPStatusError(HTTPStatus.METHOD_NOT_ALLOWED, wrong, allow)
    await send_response(send, request, HTTPStatus.NO_CONTENT, b"", [allow])


async def send_response(send: Send, request: Request, status: int, body: bytes, headers: list[Header]) -> None:
    """Send a complete response; to HEAD without its body."""
    headers.append((b"x-content-type-options", b"nosniff"))
    headers.append((b"x-request-id", request.request_id.encode()))
    if status not in _STATUSES_WITHOUT_LENGTH:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


async def send_error(
    send: Send, request: Request, error: Exception, logger: EscapingLogger, headers: Iterable[Header] = ()
) -> None:
    """Send the problem of an error. An unexpected one is logged, under the request id that the client gets."""
    if not isinstance(error, CallError | HTTPStatusError):
        logger.error("request %s failed", request.request_id, exc_info=error)
        wrong = f"internal error; the server's log has it under request id {request.request_id}"
        error = CallError(ErrorCode.INTERNAL, wrong)
    await send_problem(
        send,
        error,
        access=request.access,
        request_id=request.request_id,
        headers=[(b"x-request-id", request.request_id.encode()), *headers],
        with_body=request.method != "HEAD",
    )


def shutting_down() -> CallError:
    """Return the error for streams, probes and webhooks while the server drains."""
    return CallError(ErrorCode.UNAVAILABLE, "the server is shutting down: connect again", retry_after=1)


# --- server-sent events -----------------------------------------------------------------------------------------------

FIRST_ITEM_TIMEOUT = 0.5
"""Seconds to wait for the first item: until then an error is still a response of its own."""

RETRY_MILLISECONDS = 3_000
"""Milliseconds after which a browser reconnects."""

STALLED_CLIENT_TIMEOUT = 60.0
"""Timeout in seconds for a client that does not read; it counts as disconnected."""

COMMENT = b":\n\n"
"""Keeps a silent connection open."""

MIN_HEARTBEAT = 0.01
"""Shortest time between two comment lines, in seconds; a shorter one would leave time for nothing else."""

_ITEMS_BETWEEN_YIELDS = 64  # a producer that never waits would hide a disconnect
_LINE_BREAKS = {ord("\r"): " ", ord("\n"): " ", 0: " "}  # a line break ends a field; a NUL makes parsers ignore an id
_EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx buffers events otherwise
    (b"x-content-type-options", b"nosniff"),
)


class EventResponse:
    """A response as server-sent events, from any task; a client that does not read them counts as disconnected."""

    def __init__(self, send: Send, running: CancelOnDisconnect, headers: Iterable[Header], start: bytes = b"") -> None:
        self.is_started = False
        self.last_sent = time.monotonic()
        self._send = send
        self._running = running
        self._headers = headers
        self._start = start  # of the body
        self._lock = asyncio.Lock()

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        """Send a part of the stream, the first one after the headers."""
        try:
            async with self._lock, asyncio.timeout(STALLED_CLIENT_TIMEOUT):
                if not self.is_started:
                    self.is_started = True
                    headers = [*_EVENT_HEADERS, *self._headers]
                    await self._send({"type": "http.response.start", "status": _OK, "headers": headers})
                    chunk = self._start + chunk
                await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
                self.last_sent = time.monotonic()
        except TimeoutError:
            self._running.interrupt()


class EventStream:
    """The response to a subscription."""

    def __init__(
        self,
        request: Request,
        running: CancelOnDisconnect,
        send: Send,
        headers: Iterable[Header],
        *,
        heartbeat: float,
        has_ids: bool,
    ) -> None:
        self._request = request
        self._running = running
        self._writer = EventResponse(send, running, headers, b"retry: %d\n\n" % RETRY_MILLISECONDS)
        self._has_ids = has_ids
        self._heartbeat = max(heartbeat, MIN_HEARTBEAT)

    async def run(self, items: AsyncGenerator[ResponseEnvelope[Any]]) -> CallError | None:
        """Send the items until they end, the client disconnects, or the stream is interrupted.

        Return the error that was sent as an event.

        Raises:
            CallError: an error before anything was sent.
        """
        error: CallError | None = None
        running = self._running
        beating = asyncio.create_task(self._beat())
        try:
            with running:
                running.interrupt_when(self._request.admitted.ended)
                count = 0
                try:
                    async for envelope in items:
                        count += 1
                        await self._writer.write(self._encode_event(envelope))
                        if count % _ITEMS_BETWEEN_YIELDS == 0:
                            await asyncio.sleep(0)
                except CallError as raised:
                    error = raised
            if running.interrupted:
                error = running.reason
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
            await items.aclose()
        if running.interrupted and error is None:
            return None
        if error is not None and not self._writer.is_started:
            raise error
        last = b""
        if error is not None:
            problem = encode_problem(problem_details(error, request_id=self._request.request_id))
            last = b"event: error\ndata: " + problem + b"\n\n"
        await self._writer.write(last, more=False)
        return error

    def _encode_event(self, envelope: ResponseEnvelope[Any]) -> bytes:
        data = encode_whole(envelope) if self._request.wants_envelope else encode_data(envelope.data)
        kind = envelope.meta.event_type if isinstance(envelope.meta, HTTPResponseMeta) else None
        fields = {b"id": envelope.cursor if self._has_ids else None, b"event": "" if kind == "message" else kind}
        lines = [
            name + b": " + value.translate(_LINE_BREAKS).encode("utf-8", "replace")
            for name, value in fields.items()
            if value
        ]
        return b"\n".join((*lines, b"data: " + data, b"", b""))

    async def _beat(self) -> None:
        wait = min(FIRST_ITEM_TIMEOUT, self._heartbeat)
        while True:
            await asyncio.sleep(wait)
            silent = time.monotonic() - self._writer.last_sent
            if not self._writer.is_started or silent >= self._heartbeat:
                await self._writer.write(COMMENT)
                silent = 0
            wait = self._heartbeat - silent
