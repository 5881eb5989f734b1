"""One HTTP exchange of MCP: check the request, run it, and answer with JSON or with events.

A response is JSON if the request ends without a notification, and else events: some clients limit the size of an event,
and JSON has a length. After 15 s without either, events start, with comments in between, so that proxies keep the
connection.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorObject,
    InvalidMessageError,
    RequestId,
    RPCError,
    RPCFailure,
    RPCNotification,
    RPCRequest,
    decode_message,
    encode_message,
)
from opwire.mcp.protocol import (
    METHOD_HEADER,
    NAME_HEADER,
    PARAM_HEADER,
    VERSION_HEADER,
    check_argument_headers,
    check_stateless_version,
    read_envelope,
)
from opwire.operation import check_access
from opwire.serve.guard import EXPIRES, IDENTITY, OAUTH, TOKEN, Header, Receive, Scope, Send, challenge_of
from opwire.serve.mcp.calls import Params, ServedRequest
from opwire.serve.mcp.server import RegistryServer, encode_reply, stop_request
from opwire.typed.plain import as_dict

PING = 15.0
"""Seconds without an event, after which a comment is sent."""

JSON: Header = (b"content-type", b"application/json")
EVENTS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx buffers events otherwise
)

_STATUS = dict.fromkeys(
    (
        PARSE_ERROR,
        INVALID_REQUEST,
        INVALID_PARAMS,
        HEADER_MISMATCH,
        MISSING_CAPABILITY,
        UNSUPPORTED_PROTOCOL_VERSION,
    ),
    400,
) | {METHOD_NOT_FOUND: 404}
_ROUTING = frozenset(name.encode() for name in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER))
_PARAM = PARAM_HEADER.encode()
_STEPS = 3  # of the event loop


class Headers:
    """The headers of a request by name, in lower case."""

    def __init__(self, lines: Iterable[Header]) -> None:
        self._lines = [*lines]
        self.by_name = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._lines}

    def get(self, name: str) -> str | None:
        """Return the value of a header, or None."""
        return self.by_name.get(name)

    def accepts(self, *kinds: str) -> bool:
        """Return whether the client accepts each of these media types."""
        return _accepts(self.by_name.get("accept", ""), kinds)

    @property
    def prefers_events(self) -> bool:
        """Whether the client names events before JSON."""
        accepted = self.by_name.get("accept", "").lower()
        return 0 <= accepted.find("text/event-stream") < accepted.find("application/json")

    def check_unique(self) -> None:
        """Reject headers that proxies route by, and that are there twice: two readers could disagree.

        Raises:
            RPCError: HEADER_MISMATCH.
        """
        names = [name for name, _ in self._lines if name in _ROUTING or name.startswith(_PARAM)]
        if len(set(names)) != len(names):
            raise RPCError(HEADER_MISMATCH, "a header of the request is there twice")


@lru_cache(maxsize=64)
def _accepts(header: str, kinds: tuple[str, ...]) -> bool:
    given = {each.partition(";")[0].strip().lower() for each in header.split(",")}
    return "*/*" in given or all(kind in given or f"{kind.partition('/')[0]}/*" in given for kind in kinds)


async def read_body(receive: Receive) -> bytes:
    """Return the body, which the guard has limited."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def send_json(send: Send, status: int, body: bytes = b"", headers: Iterable[Header] = ()) -> None:
    """Send a response without a stream."""
    length = (b"content-length", str(len(body)).encode())
    kind = (JSON,) if body else ()
    await send({"type": "http.response.start", "status": status, "headers": [*kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_batch(send: Send, replies: list[bytes], headers: Iterable[Header] = ()) -> None:
    """Send the responses to a batch, one by one: joining 200 MB would stop the event loop for a second."""
    length = (b"content-length", str(sum(map(len, replies)) + len(replies) + 1).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [JSON, length, *headers]})
    for number, reply in enumerate(replies):
        await send({"type": "http.response.body", "body": (b"," if number else b"[") + reply, "more_body": True})
    await send({"type": "http.response.body", "body": b"]"})


async def send_error(send: Send, status: int, code: int, message: str, headers: Iterable[Header] = ()) -> None:
    """Send a JSON-RPC error as the body of a failed request."""
    await send_json(send, status, encode_message(RPCFailure(None, ErrorObject(code, message))), headers)


class EventWriter:
    """The response to one request: JSON, or events from the first notification on.

    `preface` returns what the stream begins with.
    """

    def __init__(self, send: Send, headers: Iterable[Header] = (), preface: Callable[[], bytes] | None = None) -> None:
        self._send = send
        self._headers = headers
        self._preface = preface
        self._lock: asyncio.Lock | None = None
        self.is_started = False
        self.is_closed = False

    async def notify(self, method: str, params: Params) -> None:
        """Send a notification."""
        await self.event(encode_message(RPCNotification(method, params)))

    async def event(self, data: bytes, id: str = "") -> None:
        """Send an event, and start the stream."""
        name = f"id: {id}\r\n".encode() if id else b""
        await self.write(b"event: message\r\n" + name + b"data: " + data + b"\r\n\r\n")

    async def ping(self) -> None:
        """Send a comment, and start the stream."""
        await self.write(b": ping\r\n\r\n")

    async def finish(self, data: bytes, status: int = 200) -> None:
        """Send the response to the request."""
        if not self.is_started:
            self.is_closed = True
            await send_json(self._send, status, data, self._headers)
        else:
            await self.event(data)
            await self.end()

    async def end(self) -> None:
        """End the stream."""
        if self.is_started and not self.is_closed:
            self.is_closed = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def write(self, chunk: bytes) -> None:
        """Send a part of the stream, and start it; without effect after its end."""
        if self.is_closed:
            return
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self.is_started:
                self.is_started = True
                headers = [*EVENTS, *self._headers]
                chunk = chunk if self._preface is None else self._preface() + chunk
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


async def follow(
    task: "asyncio.Future[Any]",
    writer: EventWriter,
    receive: Receive,
    *,
    left: "Callable[[], asyncio.Future[None]] | None" = None,
    within: float | None = None,
    starts: float = PING,
) -> bool:
    """Wait for a task, with pings, the first after `starts` seconds.

    Return False if the client disconnects, the future of `left` is done, or `within` seconds have passed before.
    """
    for _ in range(_STEPS):  # many calls end within these: watching the client takes 60 µs
        await asyncio.sleep(0)
        if task.done():
            return True

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(disconnected())
    ends = None if within is None else time.monotonic() + within
    pause = starts
    replaced = None if left is None else left()
    awaited = (task, leaving) if replaced is None else (task, leaving, replaced)
    try:
        while True:
            wait = pause if ends is None else max(min(pause, ends - time.monotonic()), 0)
            await asyncio.wait(awaited, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return True
            if (
                leaving.done()
                or (replaced is not None and replaced.done())
                or (ends is not None and time.monotonic() >= ends)
            ):
                return False
            pause = PING
            await writer.ping()
    finally:
        leaving.cancel()


def remaining(expires: float | None) -> float | None:
    """Return the seconds until a token expires, or None."""
    return None if expires is None else expires - time.time()


async def challenge(server: RegistryServer, scope: Scope, request: RPCRequest, send: Send) -> bool:
    """Reject a call that lacks a token or a scope with a 401 or 403, so the client gets one; return whether it was.

    Only for requests with OAUTH: without it, that is an error of the call, which the model reads.
    """
    spec = server.operation_of(request, scope[IDENTITY])
    try:
        if spec is not None:
            check_access(spec, scope[IDENTITY])
        return False
    except CallError as error:
        lines = challenge_of(error)
        if lines:
            status = 401 if error.code is ErrorCode.UNAUTHENTICATED else 403
            failure = RPCFailure(request.id, ErrorObject(INVALID_REQUEST, error.message))
            await send_json(send, status, encode_message(failure), lines)
        return bool(lines)


async def serve_stateless(server: RegistryServer, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
    """Serve a request of the stateless era."""
    if scope["method"] != "POST":
        await send_json(send, 405, headers=[(b"allow", b"POST")])
        return
    if not headers.accepts("application/json", "text/event-stream"):
        await send_error(send, 406, INVALID_REQUEST, "the client must accept application/json and text/event-stream")
        return
    id: RequestId | None = None
    try:
        message = _read_message(await read_body(receive))
        if isinstance(message, RPCNotification):  # accepted and ignored: a client cancels by disconnecting
            check_stateless_version(headers.get(VERSION_HEADER) or "")
            await send_json(send, 202)
            return
        id = message.id
        headers.check_unique()
        read_envelope(message.method, message.params, headers.by_name)
        name = (message.params or {}).get("name") if message.method == "tools/call" else None
        tool = server.catalogue.find(name) if isinstance(name, str) else None
        if tool is not None and tool.headers:
            check_argument_headers(tool.headers, as_dict((message.params or {}).get("arguments")), headers.by_name)
    except RPCError as error:
        await send_json(send, _STATUS.get(error.code, 200), encode_message(RPCFailure.of(id, error)))
        return
    if OAUTH in scope and await challenge(server, scope, message, send):
        return
    writer = EventWriter(send)
    request = ServedRequest(message.id, True, scope[IDENTITY], writer.notify, token=scope[TOKEN])
    task = server.start(server.respond(message, request), request)
    within = remaining(scope[EXPIRES]) if message.method == "subscriptions/listen" else None
    try:
        is_done = task.done() or await follow(task, writer, receive, within=within)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not is_done:
        await stop_request(request)
        await writer.end()
        return
    reply = task.result()
    status = _STATUS.get(reply.error.code, 200) if isinstance(reply, RPCFailure) else 200
    await writer.finish(encode_reply(reply), status)


def _read_message(body: bytes) -> RPCRequest | RPCNotification:
    try:
        message = decode_message(body)
    except InvalidMessageError as error:
        code, problem = (INVALID_REQUEST, "not a JSON-RPC request") if error.is_json else (PARSE_ERROR, "not JSON")
        raise RPCError(code, f"the body is {problem}") from None
    if not isinstance(message, RPCRequest | RPCNotification):
        raise RPCError(INVALID_REQUEST, "the body is not a JSON-RPC request")
    return message
