"""An envelope as an HTTP response: its data, or the whole of it.

Data is JSON, and `null` where there is none: with an empty 204 a client could not tell "nothing" from "no body", and
generated clients parse what the document promises. Bytes are an octet stream.

A subscription as server-sent events.

Each item is an event whose data is JSON: the item, or its whole envelope. Ids count the items, and go on from
`Last-Event-ID` where the operation takes it (its input has a property `last_event_id`); an item that came over HTTP
keeps the id and the type that it had there. What goes wrong before the first item is an ordinary problem response;
afterwards it is an event of type `error` that holds the problem. Comment lines keep a quiet connection open.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

import msgspec

from opwire.auth.tokens import EXPIRED
from opwire.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope, encode_envelope, warn_of_nulls
from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.origin import ENVELOPE_JSON
from opwire.serve.guard import Header, Send, encode_problem, problem_of
from opwire.serve.http.request import Guard, Request
from opwire.typed.plain import write_json

IsErrorPolicy = Literal["return", "fail"]
"""What becomes of the result of an MCP tool that says `isError`.

`return`: an answer like any other, marked with the header `opwire-is-error: true`. As everywhere in opwire, only what
raises is a failure. `fail`: a problem, EXECUTION_ERROR, for clients that look at nothing but the status. Who asks for
the envelope gets the envelope.
"""

UPSTREAM = "opwire-upstream-"

_KEPT = frozenset(
    "age content-language content-location content-type deprecation etag last-modified link location retry-after "
    "sunset warning x-request-id x-correlation-id x-trace-id request-id".split()
)
_KEPT_PREFIXES = ("ratelimit", "x-ratelimit", "x-rate-limit", "x-total", "x-page", "x-per-page", "x-next", "x-prev")
_MAX_VALUE = 4_096
_encoder = msgspec.json.Encoder()


class Answer(NamedTuple):
    """A response of status 200."""

    content_type: bytes
    body: bytes
    headers: list[Header]


def answer(envelope: ResponseEnvelope[Any], *, whole: bool, is_error: IsErrorPolicy) -> Answer:
    """The response that an envelope gives.

    Raises:
        CallError: EXECUTION_ERROR, if the data cannot be sent, or the policy makes a failure of it.
    """
    if whole:
        return Answer(ENVELOPE_JSON.encode(), encode_whole(envelope), [])
    meta, headers = envelope.meta, list[Header]()
    if isinstance(meta, HTTPResponseMeta):
        headers = upstream_headers(meta)
    elif isinstance(meta, MCPResponseMeta) and meta.is_error:
        if is_error == "fail":
            raise _tool_failed(meta)
        headers = [(b"opwire-is-error", b"true")]
    if isinstance(envelope.data, bytes):
        return Answer(b"application/octet-stream", envelope.data, headers)
    return Answer(b"application/json", encode_data(envelope.data), headers)


def encode_data(data: Any) -> bytes:
    """Plain data as JSON.

    Raises:
        CallError: EXECUTION_ERROR, if it is nested too deeply.
    """
    try:
        encoded = write_json(_encoder, data)
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, f"the result cannot be sent as JSON: {error}") from error
    warn_of_nulls(encoded, data)
    return encoded


def encode_whole(envelope: ResponseEnvelope[Any]) -> bytes:
    """An envelope as JSON.

    Raises:
        CallError: EXECUTION_ERROR, if its data cannot be sent.
    """
    try:
        return encode_envelope(envelope)
    except ConversionError as error:
        raise CallError(ErrorCode.EXECUTION_ERROR, str(error)) from error


def upstream_headers(meta: HTTPResponseMeta) -> list[Header]:
    """What is worth knowing of the HTTP answer behind a result: its status, limits, pages. Never its cookies."""
    kept = [
        (f"{UPSTREAM}{name}".encode(), value.encode("latin-1", "replace"))
        for name, value in meta.headers.items()
        if (name in _KEPT or name.startswith(_KEPT_PREFIXES)) and _is_harmless(name, value)
    ]
    return [(f"{UPSTREAM}status".encode(), b"%d" % meta.status_code), *kept]


def _is_harmless(name: str, value: str) -> bool:
    """Whether it can be a line of our own headers: a handler may have put anything into an envelope."""
    return name.isascii() and name.replace("-", "").isalnum() and len(value) <= _MAX_VALUE and value.isprintable()


def _tool_failed(meta: MCPResponseMeta) -> CallError:
    texts = [str(block["text"]) for block in meta.content if block["type"] == "text"]
    return CallError(ErrorCode.EXECUTION_ERROR, "\n".join(texts)[:2_000], {"content": meta.content})


START = 0.5
"""Seconds that the first item is waited for: until then an error still is a response of its own."""

RETRY = 3_000
"""Milliseconds after which a browser that lost the stream comes back."""

STALLED = 60.0
"""Seconds that a client may leave its buffers full. Then it is as good as gone."""

LEAST_HEARTBEAT = 0.01
"""Seconds between two comment lines: fewer would do nothing but write them."""

_BREATH = 64  # items after which others get a turn: a producer that never waits would hide that its client left


class EventStream:
    """The response to a subscription."""

    def __init__(
        self, request: Request, guard: Guard, send: Send, headers: Iterable[Header], *, heartbeat: float
    ) -> None:
        self._request = request
        self._guard = guard
        self._send = send
        self._headers = headers
        self._heartbeat = max(heartbeat, LEAST_HEARTBEAT)
        self._lock = asyncio.Lock()  # items and heartbeats come from two tasks
        self._started = False
        self._last_sent = time.monotonic()

    async def run(self, items: AsyncGenerator[ResponseEnvelope[Any]], after: str | None) -> None:
        """Send the items until they end, the client leaves, or the guard ends it. `after` is the last event it saw.

        Raises:
            CallError: what went wrong before anything was sent.
        """
        error: CallError | None = None
        guard = self._guard
        beating = asyncio.create_task(self._beat())
        try:
            with guard:
                guard.interrupt_at(self._request.expires, CallError(ErrorCode.UNAUTHENTICATED, EXPIRED))
                error = await self._send_items(items, after)
            if guard.interrupted:
                error = guard.reason
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
            await items.aclose()
        if guard.interrupted and error is None:
            return
        if error is not None and not self._started:
            raise error
        last = b"" if error is None else self._problem(error)
        await self._write(last, more=False)

    async def _send_items(self, items: AsyncGenerator[ResponseEnvelope[Any]], after: str | None) -> CallError | None:
        count = int(after) if after is not None and after.isdecimal() and len(after) < 19 else 0
        try:
            async for envelope in items:
                count += 1
                await self._write(self._event(envelope, count))
                if count % _BREATH == 0:
                    await asyncio.sleep(0)
        except CallError as error:
            return error
        return None

    def _event(self, envelope: ResponseEnvelope[Any], count: int) -> bytes:
        data = encode_whole(envelope) if self._request.wants_envelope else encode_data(envelope.data)
        meta = envelope.meta
        kind = id = None
        if isinstance(meta, HTTPResponseMeta):
            kind, id = meta.event_type, meta.last_event_id
        lines = [b"id: " + _one_line(id or str(count))]
        if kind and kind != "message":
            lines.append(b"event: " + _one_line(kind))
        return b"\n".join((*lines, b"data: " + data, b"", b""))

    def _problem(self, error: CallError) -> bytes:
        problem = encode_problem(problem_of(error, request_id=self._request.request_id))
        return b"event: error\ndata: " + problem + b"\n\n"

    async def _beat(self) -> None:
        wait = min(START, self._heartbeat)
        while True:
            await asyncio.sleep(wait)
            silent = time.monotonic() - self._last_sent
            if not self._started or silent >= self._heartbeat:
                await self._write(b":\n\n")
                silent = 0
            wait = self._heartbeat - silent

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        try:
            async with self._lock, asyncio.timeout(STALLED):
                if not self._started:
                    self._started = True
                    headers = [*_HEADERS, *self._headers]
                    await self._send({"type": "http.response.start", "status": int(HTTPStatus.OK), "headers": headers})
                    chunk = b"retry: %d\n\n" % RETRY + chunk
                await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
                self._last_sent = time.monotonic()
        except TimeoutError:
            self._guard.interrupt()


_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
    (b"x-content-type-options", b"nosniff"),
)


def _one_line(text: str) -> bytes:
    """As a field of an event, which a line break would end; a NUL would make a reader ignore an id."""
    return text.translate(_BREAKS).encode("utf-8", "replace")


_BREAKS = {ord("\r"): " ", ord("\n"): " ", 0: " "}
