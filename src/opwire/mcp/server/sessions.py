"""Sessions over streamable HTTP, of the handshake era: their owners, their number, and their end.

A dropped connection does not stop a call in this era; the end of its session does. Its client can resume the stream,
with a GET that names the last event. Notifications that belong to no request are sent on the stream of a GET, one per
session, and wait for it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast
from uuid import uuid4

from opwire.asgi.problem import Header, Send, challenge_of
from opwire.asgi.request import AdmittedRequest, Receive
from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import (
    InvalidMessageError,
    RequestId,
    RPCCode,
    RPCError,
    RPCFailure,
    RPCMessage,
    RPCNotification,
    RPCRequest,
    RPCResponse,
    decode_message,
    encode_message,
    encode_reply,
    split_batch,
)
from opwire.mcp.revisions import (
    BATCHED,
    LAST_EVENT_HEADER,
    METHOD_HEADER,
    NAME_HEADER,
    SESSION_HEADER,
    check_sent_routing,
)
from opwire.mcp.server.calls import Params, ServedRequest
from opwire.mcp.server.clients import LARGE_INPUT, MAX_INPUTS, MAX_OPEN, ClientState
from opwire.mcp.server.server import RegistryServer
from opwire.mcp.server.streams import PING, EventLog, EventStore, EventWriter, ResumableStream, ends_soon, follow
from opwire.model.access import check_access
from opwire.model.identity import Identity
from opwire.runtime.bounded import SharedLimit, Tally
from opwire.runtime.tasks import spawn, start_eagerly
from opwire.typed.plain import memory_of

PRIMED = "2025-11-25"
"""The first revision with events without data, from which clients resume a stream."""

PRIME_AFTER = 5.0
"""Seconds after which a call has a stream that its client can resume; before, its response is JSON."""

MAX_REPLIES = 64 * 1024 * 1024
"""Bytes of the responses to batches that clients have not read, half of them of one identity."""

JSON, EVENTS = "application/json", "text/event-stream"
_JSON_TYPE: Header = (b"content-type", JSON.encode())
_SESSION = SESSION_HEADER.encode()


# --- requests and responses -------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def accepts(header: bytes, *kinds: str) -> bool:
    """Return whether a client with this `Accept` header accepts each of these media types."""
    accepted_types = {
        media_range.partition(";")[0].strip().lower() for media_range in header.decode("latin-1").split(",")
    }
    return "*/*" in accepted_types or all(
        kind in accepted_types or f"{kind.partition('/')[0]}/*" in accepted_types for kind in kinds
    )


@lru_cache(maxsize=64)
def prefers_events(header: bytes) -> bool:
    """Return whether a client with this `Accept` header names events first."""
    accepted = header.lower()
    return 0 <= accepted.find(EVENTS.encode()) < accepted.find(JSON.encode())


async def read_post(post: AdmittedRequest, send: Send, *, batches: bool = False) -> list[RPCMessage]:
    """Return the message of a POST, or those of a batch; none if it is invalid, and was rejected."""
    headers = post.headers
    status, code, problem = 400, RPCCode.INVALID_REQUEST, ""
    if not accepts(headers.get(b"accept", b""), JSON, EVENTS):
        status, problem = 406, f"the client must accept {JSON} and {EVENTS}"
    elif headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON.encode():
        status, problem = 415, f"the content type must be {JSON}"
    else:
        try:
            body = post.take_body()
            parts = split_batch(body) if batches else [body]
            messages = [decode_message(part, is_checked=True) for part in parts]  # by the guard
            if METHOD_HEADER.encode() in headers or NAME_HEADER.encode() in headers:
                check_sent_routing(messages, post.lines)
            return messages
        except RPCError as error:
            code, problem = error.code, error.message
        except InvalidMessageError as error:
            code, problem = RPCCode.INVALID_PARAMS if error.is_json else RPCCode.PARSE_ERROR, f"the body is {error}"
    await send_error(send, status, code, problem)
    return []


async def send_json(send: Send, status: int, body: bytes = b"", headers: Iterable[Header] = ()) -> None:
    """Send a response without a stream."""
    length = (b"content-length", str(len(body)).encode())
    kind = (_JSON_TYPE,) if body else ()
    await send({"type": "http.response.start", "status": status, "headers": [*kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_batch(send: Send, replies: list[bytes], headers: Iterable[Header]) -> None:
    """Send the responses to a batch, one by one: joining 200 MB would stop the event loop for a second."""
    length = (b"content-length", str(sum(map(len, replies)) + len(replies) + 1).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [_JSON_TYPE, length, *headers]})
    for number, reply in enumerate(replies):
        await send({"type": "http.response.body", "body": (b"," if number else b"[") + reply, "more_body": True})
    await send({"type": "http.response.body", "body": b"]"})


async def send_error(send: Send, status: int, code: int, message: str, headers: Iterable[Header] = ()) -> None:
    """Send a JSON-RPC error as the body of a failed request."""
    await send_json(send, status, encode_message(RPCFailure.of(None, RPCError(code, message))), headers)


async def challenge(server: RegistryServer, request: RPCRequest, identity: Identity | None, send: Send) -> bool:
    """Reject a call that lacks a token or a scope with a 401 or 403, so the client gets one; return whether it was.

    Only if the server offers OAuth: without it, that is an error of the call, which the model reads.
    """
    spec = server.operation_of(request, identity)
    try:
        if spec is not None:
            check_access(spec, identity)
        return False
    except CallError as error:
        lines = challenge_of(error)
        if lines:
            status = 401 if error.code is ErrorCode.UNAUTHENTICATED else 403
            failure = RPCFailure.of(request.id, RPCError(RPCCode.INVALID_REQUEST, error.message))
            await send_json(send, status, encode_message(failure), lines)
        return bool(lines)


# --- sessions ---------------------------------------------------------------------------------------------------------


class SessionTiming(NamedTuple):
    """Seconds without a request after which a session ends, and those after which a stream of it does, if any."""

    idle: float
    poll_after: float | None


class RunningCalls:
    """The calls of all sessions by owner, at most `max_each` of one: they go on when their clients disconnect."""

    def __init__(self, max_each: int) -> None:
        self._max_each = max_each
        self._by_owner: Tally[str | None] = Tally()
        self.inputs: SharedLimit[str | None] = SharedLimit(MAX_INPUTS, MAX_INPUTS // 2)  # bytes of large ones
        # Bytes of the responses to batches that are not sent yet: those of one are complete before the first is sent.
        self.replies: SharedLimit[str | None] = SharedLimit(MAX_REPLIES, MAX_REPLIES // 2)

    def is_full(self, owner: str | None) -> bool:
        """Return whether an owner can start no more."""
        return self._by_owner[owner] >= self._max_each

    def add(self, owner: str | None, call: asyncio.Task[bytes]) -> None:
        """Count a call until it has ended."""
        self._by_owner[owner] += 1
        call.add_done_callback(lambda _: self._by_owner.subtract(owner))


class SessionRequest(ServedRequest, kw_only=True):
    """A request in a session. Most responses are JSON, so its stream of events is created with the first of these."""

    session: "HTTPSession"
    respond: Send | None = None  # to its POST; None: it is in a batch, and its events are on the stream of the GET
    stream: ResumableStream | None = None
    writer: EventWriter | None = None  # the response to its POST as events
    is_cancelled: bool = False
    is_ended: bool = False
    reply_bytes: int = 0  # bytes of its response that count, in a batch

    def events(self) -> ResumableStream:
        """Return the stream of its events."""
        if self.respond is None:
            return self.session.notices
        if self.stream is None:
            self.stream = ResumableStream(self.session.events)
            if not self.is_ended:  # a task that it has left behind may still ask
                self.writer = EventWriter(self.respond, self.session.headers, self.stream.preface)
                self.stream.attach(self.writer)
        return self.stream

    async def notify(self, method: str, params: Params) -> None:
        """Send a notification."""
        await self.events().event(encode_message(RPCNotification(method, params or None)))

    async def send(self, message: RPCRequest | RPCNotification) -> None:
        """Send a question on the first stream that a client reads, or may resume."""
        own_events, notices = self.events(), self.session.notices
        target = notices if own_events.writer is None and notices.writer is not None else own_events
        if target.writer is None and target.number is None:
            raise CallError(ErrorCode.ABORTED, "the client has disconnected, and cannot be asked")
        await target.event(encode_message(message))


class HTTPSession:
    """One session. `owner` is the id of the identity that opened it; None: it is anonymous."""

    def __init__(
        self,
        server: RegistryServer,
        owner: str | None,
        timing: SessionTiming,
        events: EventLog,
        on_end: Callable[[str], object],
        *,
        calls: RunningCalls,
    ) -> None:
        self.id = uuid4().hex
        self.owner = owner
        self.exchanges = 0  # HTTP requests that are being served
        self.headers: tuple[Header, ...] = ((_SESSION, self.id.encode()),)
        self.events = events
        self.notices = ResumableStream(events)  # of the GET
        self._server = server
        self._timing = timing
        self._ended = on_end
        self._calls = calls
        self._client = ClientState()
        self._tasks = self._client.tasks
        self._running: dict[RequestId, SessionRequest] = {}  # with those that were cancelled, until they have ended
        self._is_over = False
        self._last_used = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(timing.idle, self._expire)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served, and no call is running."""
        return not self.exchanges and not self._running

    def end(self) -> None:
        """Cancel the calls and end the streams; idempotent."""
        self._is_over = True
        self._timer.cancel()
        self._client.close()
        self.notices.detach()
        self.events.clear()
        running, self._running = self._running, {}
        for request in running.values():
            self._cancel(request)

    async def close(self) -> None:
        """End the session, and wait for its calls."""
        self.end()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _cancel(self, request: SessionRequest) -> None:
        if request.task is not None and not request.is_cancelled:
            request.is_cancelled = True
            spawn(request.stop(), self._tasks)

    def _expire(self) -> None:
        idle = self._timing.idle
        remaining_seconds = self._last_used + idle - time.monotonic()
        if self.exchanges or remaining_seconds > 0:
            self._timer = asyncio.get_running_loop().call_later(max(remaining_seconds, idle / 4), self._expire)
        else:
            self._ended(self.id)
            self.end()

    async def open(self, message: RPCRequest, result: Params, send: Send) -> None:
        """Answer the handshake with its result."""
        self._client.agree(message.params, result)
        self.events.primes = self._client.version >= PRIMED
        await send_json(send, 200, encode_reply(RPCResponse(message.id, result)), self.headers)

    async def serve(self, request: AdmittedRequest, receive: Receive, send: Send) -> None:
        """Serve one HTTP request of the session."""
        self.exchanges += 1
        try:
            match request.method:
                case "POST":
                    messages = await read_post(request, send, batches=self._client.version == BATCHED)
                    if len(messages) == 1 and isinstance(messages[0], RPCRequest):
                        await self._answer(messages[0], request, receive, send)
                    elif messages:
                        await self._answer_batch(messages, request, send)
                case "GET":
                    await self._get(request, receive, send)
                case _:  # DELETE
                    self._ended(self.id)
                    self.end()
                    await send_json(send, 200, headers=self.headers)
        finally:
            self.exchanges -= 1
            self._last_used = time.monotonic()

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _answer(self, message: RPCRequest, post: AdmittedRequest, receive: Receive, send: Send) -> None:
        """Answer one request: as JSON if it ends without an event, as most do."""
        if post.offers_oauth and await challenge(self._server, message, post.identity, send):
            return
        try:
            request = self._admit(message, post, send)
            if message.method == "initialize":
                del self._running[message.id]
                await self.open(message, self._server.initialize(message.params), send)
                return
            task = self._start(request)
        except RPCError as error:
            await send_json(send, 200, encode_message(RPCFailure.of(message.id, error)), self.headers)
            return
        streams = self.events.primes and prefers_events(post.headers.get(b"accept", b""))
        try:
            is_done = not streams and await ends_soon(task)
        except asyncio.CancelledError:  # the client has left; the call goes on
            task.add_done_callback(lambda _: self._outcome(request, task))
            raise
        if is_done and request.stream is None:
            await send_json(send, 200, self._outcome(request, task), self.headers)
        else:
            await self._stream(request, task, receive, starts=streams)

    def _admit(self, message: RPCRequest, post: AdmittedRequest, send: Send | None = None) -> SessionRequest:
        """Register a request that may be served now; `send` responds to its POST, if that is not a batch.

        Raises:
            RPCError: it comes before the handshake, its id is in use, or too many are open.
        """
        running, client = self._running, self._client
        if message.id in running or len(running) >= MAX_OPEN or not client.is_accepted:
            rejection = client.rejection(message, running)
            if rejection is not None:
                raise rejection
        request = running[message.id] = SessionRequest(
            message, post.identity, client, post.token, session=self, respond=send
        )
        return request

    def _start(self, request: SessionRequest) -> asyncio.Task[bytes]:
        """Start a request that was admitted.

        Raises:
            RPCError: too many calls of the owner are running, or their inputs are too large; the session has ended, as
                it may during a batch.
        """
        if self._is_over:
            raise RPCError(RPCCode.INVALID_REQUEST, "rejected: the session has ended")
        if request.message.method != "ping" and self._calls.is_full(self.owner):
            del self._running[request.message.id]
            raise RPCError(RPCCode.INTERNAL_ERROR, "rejected: too many requests of this identity are running")
        size = memory_of(request.message.params)
        if size > LARGE_INPUT and not self._calls.inputs.take(self.owner, size):
            del self._running[request.message.id]
            raise RPCError(RPCCode.INTERNAL_ERROR, "rejected: large inputs of other calls are in flight")
        request.task = task = start_eagerly(self._server.respond(request))
        if size > LARGE_INPUT:
            task.add_done_callback(lambda _: self._calls.inputs.give_back(self.owner, size))
        if not task.done():  # as most are
            self._calls.add(self.owner, task)
        return task

    def _outcome(self, request: SessionRequest, task: asyncio.Task[bytes]) -> bytes:
        """Return the response of a request that has ended; one that was cancelled gets an error."""
        id, request.is_ended = request.message.id, True
        self._running.pop(id, None)
        if request.is_cancelled or task.cancelled():
            return encode_message(RPCFailure.of(id, RPCError(RPCCode.REQUEST_CANCELLED, "Request cancelled")))
        return task.result()

    async def _stream(
        self, request: SessionRequest, task: asyncio.Task[bytes], receive: Receive, *, starts: bool
    ) -> None:
        """Answer a request with events, or with JSON if it ends before the first one; with `starts`, begin at once."""
        stream = request.events()
        writer, is_done = cast("EventWriter", request.writer), False
        try:
            if starts:  # the client names events first
                await writer.write(b"")
            is_done = await ends_soon(task) if starts else task.done()
            if not is_done:
                within, first = self._poll_after(), PING
                if self.events.primes:
                    first = min(PRIME_AFTER, (within or PING) / 2)
                is_done = await follow(task, writer, receive, detached=stream.detached, within=within, starts=first)
        finally:
            if not is_done:  # the client has left, or has to poll; the call goes on
                stream.detach(writer)
                task.add_done_callback(lambda _: spawn(stream.finish(self._outcome(request, task)), self._tasks))
        if is_done and not writer.is_started:
            stream.detach()
            await send_json(cast("Send", request.respond), 200, self._outcome(request, task), self.headers)
            return
        if is_done:
            await stream.finish(self._outcome(request, task))
        await writer.end()

    def _poll_after(self) -> float | None:
        return self._timing.poll_after if self.events.primes else None

    # --- batches, and messages without a response ---------------------------------------------------------------------

    async def _answer_batch(self, messages: list[RPCMessage], post: AdmittedRequest, send: Send) -> None:
        """Answer the requests of a batch with JSON; their notifications are sent on the stream of the GET."""
        replies: list[bytes] = []
        requests: list[SessionRequest] = []
        for message in messages:
            if not isinstance(message, RPCRequest):
                self._take(message)
                continue
            try:
                requests.append(self._admit(message, post))
            except RPCError as error:
                replies.append(encode_message(RPCFailure.of(message.id, error)))
        calls: list[asyncio.Task[bytes]] = []
        try:
            for request in requests:
                calls.append(asyncio.create_task(self._reply(request)))
                await asyncio.sleep(0)  # all at once would stop the event loop for as long as all of them take
            replies += await asyncio.gather(*calls)
            if replies:
                await send_batch(send, replies, self.headers)
            else:
                await send_json(send, 202, headers=self.headers)
        finally:
            for call in calls:
                call.cancel()  # unless it has ended
            for request in requests:
                if request.task is None and self._running.get(request.message.id) is request:
                    del self._running[request.message.id]
            self._calls.replies.give_back(self.owner, sum(request.reply_bytes for request in requests))

    async def _reply(self, request: SessionRequest) -> bytes:
        try:
            task = self._start(request)
        except RPCError as error:
            return encode_message(RPCFailure.of(request.message.id, error))
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the client has left; the call goes on
            task.add_done_callback(lambda _: self._outcome(request, task))
            raise
        reply, request.task = self._outcome(request, task), None  # which keeps its result
        if self._calls.replies.take(self.owner, len(reply)):
            request.reply_bytes = len(reply)
            return reply
        message = "the request was served, and its response is too large beside others of batches: send it alone"
        return encode_message(RPCFailure.of(request.message.id, RPCError(RPCCode.INTERNAL_ERROR, message)))

    def _take(self, message: RPCMessage) -> None:
        """Handle what has no response."""
        match message:
            case RPCNotification(method="notifications/cancelled", params=params):
                id: Any = (params or {}).get("requestId")
                if type(id) in (int, str) and (request := self._running.get(id)) is not None:
                    self._cancel(request)
            case RPCNotification(method="notifications/initialized"):
                self._client.follow(self._server.bus)
            case _:
                self._client.receive(message)

    # --- the stream of the session ------------------------------------------------------------------------------------

    async def _get(self, request: AdmittedRequest, receive: Receive, send: Send) -> None:
        """Send the notifications of the session, or the rest of a stream, after the event that the client names."""
        headers = request.headers
        seen = headers.get(LAST_EVENT_HEADER.encode())
        position = (self.notices, None) if seen is None else self.events.find(seen.decode("latin-1"))
        status, problem = 0, ""
        if not accepts(headers.get(b"accept", b""), EVENTS):
            status, problem = 406, f"the client must accept {EVENTS}"
        elif position is None:
            status, problem = 400, f"unknown {LAST_EVENT_HEADER}: the events of this stream are not kept any more"
        elif seen is None and self.notices.writer is not None:
            status, problem = 409, "Conflict: Only one SSE stream is allowed per session"
        if position is None or status:
            await send_error(send, status, RPCCode.INVALID_REQUEST, problem)
            return
        stream, after = position
        writer = EventWriter(send, self.headers)
        stream.attach(writer)
        detached = stream.detached()
        sending = spawn(self._client.announce(self.notices.event), self._tasks) if stream is self.notices else None
        try:
            await stream.resume(writer, after)
            await follow(detached, writer, receive, wait_for_end=request.ended, within=self._poll_after())
            await writer.end()
        finally:
            stream.detach(writer)
            if sending is not None:
                sending.cancel()


class Sessions:
    """The sessions of one kind of client, ordered by their last request.

    At most `max_each` belong to one owner, and `max_calls` calls in all of them. When there are too many sessions, an
    idle one ends in favour of a new one: rejecting it would let one client lock all others out, for as long as its idle
    sessions last.
    """

    def __init__(
        self, server: RegistryServer, timing: SessionTiming, *, max_sessions: int, max_each: int, max_calls: int
    ) -> None:
        self._calls = RunningCalls(max_calls)
        self._server = server
        self._timing = timing
        self._events = EventStore()
        self._max_sessions = max_sessions
        self._max_each = max_each
        self._by_id: dict[str, HTTPSession] = {}

    async def serve(self, request: AdmittedRequest, receive: Receive, send: Send) -> None:
        """Serve a request of the handshake era, in its session or in a new one."""
        owner = None if request.identity is None else request.identity.id
        header = request.headers.get(_SESSION)
        id = None if header is None else header.decode("latin-1")
        if request.method not in ("GET", "POST", "DELETE"):
            allow = (b"allow", b"GET, POST, DELETE")
            await send_error(send, 405, RPCCode.INVALID_REQUEST, "Method Not Allowed", [allow])
        elif id is None:
            await self._begin(owner, request, send)
        elif (session := self._by_id.get(id)) is None or session.owner != owner:  # exactly as if it did not exist
            await send_error(send, 404, RPCCode.INVALID_REQUEST, "Session not found")
        else:
            self._by_id[id] = self._by_id.pop(id)
            await session.serve(request, receive, send)

    async def _begin(self, owner: str | None, request: AdmittedRequest, send: Send) -> None:
        """Open a session, for a handshake only: another one may have to end for it."""
        message = None
        if request.method == "POST":
            message = next(iter(await read_post(request, send)), None)
            if message is None:
                return
        if not isinstance(message, RPCRequest) or message.method != "initialize":
            await send_error(send, 400, RPCCode.INVALID_REQUEST, "Bad Request: Missing session ID")
            return
        try:
            result = self._server.initialize(message.params)
        except RPCError as error:
            await send_json(send, 200, encode_message(RPCFailure.of(message.id, error)))
            return
        session = self._open(owner)
        if session is None:
            await send_error(send, 503, RPCCode.INTERNAL_ERROR, "Too many open sessions")
        else:
            await session.open(message, result, send)

    def end_streams(self) -> None:
        """End the streams on which clients listen for changes."""
        for session in self._by_id.values():
            session.notices.detach()

    async def close(self) -> None:
        """End all sessions and their calls."""
        sessions = [*self._by_id.values()]
        self._by_id.clear()
        await asyncio.gather(*(session.close() for session in sessions))

    def _open(self, owner: str | None) -> HTTPSession | None:
        """Register a new session; None if there are too many, and none of them is idle."""
        by_owner: dict[str | None, list[HTTPSession]] = {}
        for other in self._by_id.values():
            by_owner.setdefault(other.owner, []).append(other)
        candidates = by_owner.get(owner, [])
        if len(candidates) < self._max_each:
            is_full = len(self._by_id) >= self._max_sessions
            candidates = max(by_owner.values(), key=len) if is_full else []
        if candidates:  # one of these has to end
            idle = next((session for session in candidates if session.is_idle), None)
            if idle is None:
                return None
            del self._by_id[idle.id]
            idle.end()
        events = EventLog(self._events)
        session = HTTPSession(
            self._server, owner, self._timing, events, lambda id: self._by_id.pop(id, None), calls=self._calls
        )
        self._by_id[session.id] = session
        return session
