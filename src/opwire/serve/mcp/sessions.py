"""Sessions over streamable HTTP, of the handshake era: whose they are, how many there may be, and when they end.

A dropped connection does not stop a call in this era; the end of its session does. Its client can resume the stream,
with a GET that names the last event. Notifications that belong to no request are sent on the stream of a GET, one per
session, and wait for it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from opwire.errors import CallError, ErrorCode
from opwire.mcp.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_CANCELLED,
    ErrorObject,
    InvalidMessageError,
    RequestId,
    RPCError,
    RPCFailure,
    RPCMessage,
    RPCNotification,
    RPCRequest,
    decode_message,
    encode_message,
    encode_reply,
    split_batch,
)
from opwire.mcp.peer import Answer, CancelledRequest, Effect, JsonRpcPeer, Rejection
from opwire.mcp.protocol import BATCHED, LAST_EVENT_HEADER, SESSION_HEADER
from opwire.serve.guard import BODY, EXPIRES, HEADERS, IDENTITY, OAUTH, TOKEN, Header, Receive, Scope, Send
from opwire.serve.mcp.calls import ServedRequest
from opwire.serve.mcp.connection import MAX_OPEN, MAX_VALUES, Handshake
from opwire.serve.mcp.exchange import accepts, challenge
from opwire.serve.mcp.questions import MAX_QUESTIONS, ClientRequests, Waiter
from opwire.serve.mcp.server import RegistryServer, stop_request
from opwire.serve.mcp.streams import (
    PING,
    EventLog,
    EventStore,
    EventWriter,
    ResumableStream,
    follow,
    remaining,
    send_batch,
    send_error,
    send_json,
)
from opwire.tasks import spawn

PRIMED = "2025-11-25"
"""The first revision with events without data, from which clients resume a stream."""

PRIME_AFTER = 5.0
"""Seconds after which a call has a stream that its client can resume; before, its response is JSON."""

_JSON, _EVENTS = "application/json", "text/event-stream"
_SESSION = SESSION_HEADER.encode()


async def read_post(scope: Scope, send: Send, *, batches: bool = False) -> list[RPCMessage]:
    """Return the message of a POST, or those of a batch; none if it is invalid, and was rejected."""
    headers: Mapping[bytes, bytes] = scope[HEADERS]
    status, code, problem = 400, INVALID_REQUEST, ""
    if not accepts(headers.get(b"accept", b""), _JSON, _EVENTS):
        status, problem = 406, f"the client must accept {_JSON} and {_EVENTS}"
    elif headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON.encode():
        status, problem = 415, f"the content type must be {_JSON}"
    else:
        try:
            parts = split_batch(scope[BODY], MAX_VALUES) if batches else [scope[BODY]]
            return [decode_message(each) for each in parts]
        except InvalidMessageError as error:
            code, problem = INVALID_PARAMS if error.is_json else PARSE_ERROR, "the body is not a JSON-RPC message"
    await send_error(send, status, code, problem)
    return []


class SessionTiming(NamedTuple):
    """Seconds without a request after which a session ends, and those after which a stream of it does, if any."""

    idle: float
    poll_after: float | None


class RunningCalls:
    """The calls of all sessions by owner, at most `max_each` of one: they go on when their clients disconnect."""

    def __init__(self, max_each: int) -> None:
        self._max_each = max_each
        self._by_owner: Counter[str | None] = Counter()

    def is_full(self, owner: str | None) -> bool:
        """Return whether an owner can start no more."""
        return self._by_owner[owner] >= self._max_each

    def add(self, owner: str | None, call: asyncio.Task[RPCMessage]) -> None:
        """Count a call until it has ended."""

        def ended(_: object) -> None:
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]

        self._by_owner[owner] += 1
        call.add_done_callback(ended)


class HTTPSession:
    """One session. `owner` is the id of the identity that opened it; None: it is anonymous."""

    def __init__(
        self,
        server: RegistryServer,
        owner: str | None,
        timing: SessionTiming,
        events: EventLog,
        ended: Callable[[str], object],
        *,
        calls: RunningCalls,
    ) -> None:
        self.id = uuid4().hex
        self.owner = owner
        self.exchanges = 0  # HTTP requests that are being served
        self._server = server
        self._timing = timing
        self._ended = ended
        self._calls = calls
        self._headers: tuple[Header, ...] = ((_SESSION, self.id.encode()),)
        self._peer: JsonRpcPeer[Waiter] = JsonRpcPeer(max_open=MAX_OPEN, max_pending=MAX_QUESTIONS)
        self._questions = ClientRequests(self._peer)
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshake = Handshake(server, partial(spawn, tasks=self._tasks))
        self._running: dict[RequestId, ServedRequest] = {}
        self._events = events
        self._notices = ResumableStream(events)  # of the GET
        self._last_used = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(timing.idle, self._expire)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served, and no call is running."""
        return not self.exchanges and not self._running

    def end(self) -> None:
        """Cancel the calls and end the streams; idempotent."""
        self._timer.cancel()
        self._handshake.close()
        self.end_stream()
        self._events.clear()
        running, self._running = self._running, {}
        for found in running.values():
            spawn(stop_request(found), self._tasks)

    def end_stream(self) -> None:
        """End the stream of the GET."""
        self._notices.detach()

    async def close(self) -> None:
        """End the session, and wait for its calls."""
        self.end()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _expire(self) -> None:
        idle = self._timing.idle
        left = self._last_used + idle - time.monotonic()
        if self.exchanges or left > 0:
            self._timer = asyncio.get_running_loop().call_later(max(left, idle / 4), self._expire)
        else:
            self._ended(self.id)
            self.end()

    async def open(self, request: RPCRequest, send: Send) -> None:
        """Answer the handshake."""
        reply = encode_reply(self._handshake.initialize(request))
        self._events.primes = self._handshake.version >= PRIMED
        await send_json(send, 200, reply, self._headers)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request of the session."""
        self.exchanges += 1
        try:
            match scope["method"]:
                case "POST":
                    await self._post(scope, receive, send)
                case "GET":
                    await self._get(scope, receive, send)
                case _:  # DELETE
                    self._ended(self.id)
                    self.end()
                    await send_json(send, 200, headers=self._headers)
        finally:
            self.exchanges -= 1
            self._last_used = time.monotonic()

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages = await read_post(scope, send, batches=self._handshake.version == BATCHED)
        if not messages:
            return
        found = [self._peer.receive(message) for message in messages]
        match found:
            case [RPCRequest() as request]:
                await self._answer(request, scope, receive, send)
                return
            case [Rejection(reply=reply)]:
                await send_json(send, 200, encode_message(reply), self._headers)
                return
            case _:
                pass
        replies = [encode_message(each.reply) for each in found if isinstance(each, Rejection)]
        for each in found:
            self._take(each)
        calls: list[asyncio.Task[bytes]] = []
        try:
            for each in found:
                if isinstance(each, RPCRequest):
                    calls.append(asyncio.create_task(self._reply(each, scope)))
                    await asyncio.sleep(0)  # all at once would stop the event loop for as long as all of them take
            replies += await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()  # unless it has ended
        if replies:
            await send_batch(send, replies, self._headers)
        else:
            await send_json(send, 202, headers=self._headers)

    def _take(self, effect: Effect[Waiter]) -> None:
        """Handle what has no response."""
        match effect:
            case CancelledRequest(id=id):
                if (found := self._running.pop(id, None)) is not None:
                    spawn(stop_request(found), self._tasks)
            case Answer() as answer:
                self._questions.answered(answer)
            case RPCNotification(method="notifications/initialized"):
                self._handshake.initialized()
            case _:
                pass

    async def _reply(self, request: RPCRequest, scope: Scope) -> bytes:
        """Return the response to a request of a batch; its notifications are sent on the stream of the GET.

        It is encoded here: all the responses of a batch at once would stop the event loop.
        """
        try:
            self._check(request)
        except RPCError as error:
            self._peer.finish(request.id)
            return encode_message(RPCFailure.of(request.id, error))
        served = self._served(request, scope, self._notices)
        task = self._start(request, served)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:  # the client has left; the call goes on
            task.add_done_callback(lambda _: self._outcome(request.id, task))
            raise
        return encode_reply(self._outcome(request.id, task))

    def _served(self, request: RPCRequest, scope: Scope, *streams: ResumableStream) -> ServedRequest:
        """Return a request whose questions are sent on the first stream that a client reads, or may resume."""

        async def send_question(message: RPCMessage) -> None:
            target = next((each for each in streams if each.writer is not None), streams[0])
            if target.writer is None and target.number is None:
                raise CallError(ErrorCode.ABORTED, "the client has disconnected, and cannot be asked")
            await target.event(encode_message(message))

        return ServedRequest(
            request.id,
            False,
            scope[IDENTITY],
            streams[0].notify,
            token=scope[TOKEN],
            on_question=self._questions.callback(self._handshake.capabilities, send_question)
            if self._handshake.is_askable
            else None,
            client=self._handshake.client,
        )

    def _check(self, request: RPCRequest) -> None:
        """Check that a request may be served now.

        Raises:
            RPCError: it comes before the handshake, or too many calls of the owner are running.
        """
        if request.method != "ping" and self._calls.is_full(self.owner):
            raise RPCError(INTERNAL_ERROR, "rejected: too many requests of this identity are running")
        self._handshake.check(request.method)

    def _start(self, request: RPCRequest, served: ServedRequest) -> asyncio.Task[RPCMessage]:
        task = self._server.start(self._server.respond(request, served), served)
        self._running[request.id] = served
        if not task.done():  # as most are
            self._calls.add(self.owner, task)
        return task

    async def _answer(self, request: RPCRequest, scope: Scope, receive: Receive, send: Send) -> None:
        if request.method == "initialize":
            self._peer.finish(request.id)
            await self.open(request, send)
            return
        try:
            self._check(request)
        except RPCError as error:
            self._peer.finish(request.id)
            await send_json(send, 200, encode_message(RPCFailure.of(request.id, error)), self._headers)
            return
        if OAUTH in scope and await challenge(self._server, scope, request, send):
            self._peer.finish(request.id)
            return
        stream = ResumableStream(self._events)
        writer = EventWriter(send, self._headers, stream.preface)
        stream.attach(writer)
        served = self._served(request, scope, stream, self._notices)
        task = self._start(request, served)
        is_done = False
        try:
            accepted = scope[HEADERS].get(b"accept", b"").lower()
            if self._events.primes and 0 <= accepted.find(_EVENTS.encode()) < accepted.find(_JSON.encode()):
                await writer.write(b"")  # the client names events first
            is_done = task.done()  # as most are
            if not is_done:
                within, starts = self._poll_after(), PING
                if self._events.primes:
                    starts = min(PRIME_AFTER, (within or PING) / 2)
                is_done = await follow(task, writer, receive, left=stream.left, within=within, starts=starts)
        finally:
            if not is_done:  # the client has left, or has to poll; the call goes on
                stream.detach(writer)
                task.add_done_callback(lambda _: spawn(self._finish(request.id, task, stream), self._tasks))
        if is_done and not writer.is_started:  # JSON, as most responses are
            reply = encode_reply(self._outcome(request.id, task))
            stream.detach()
            await writer.finish(reply)
            return
        if is_done:
            await self._finish(request.id, task, stream)
        await writer.end()

    async def _finish(self, id: RequestId, task: asyncio.Task[RPCMessage], stream: ResumableStream) -> None:
        await stream.finish(encode_reply(self._outcome(id, task)))

    def _outcome(self, id: RequestId, task: asyncio.Task[RPCMessage]) -> RPCMessage:
        """Return the response of a request that has ended; one that was cancelled gets an error."""
        self._peer.finish(id)
        is_wanted = self._running.pop(id, None) is not None and not task.cancelled()
        return task.result() if is_wanted else RPCFailure(id, ErrorObject(REQUEST_CANCELLED, "Request cancelled"))

    def _poll_after(self) -> float | None:
        return self._timing.poll_after if self._events.primes else None

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the notifications of the session, or the rest of the stream whose last event the client names."""
        headers: Mapping[bytes, bytes] = scope[HEADERS]
        seen = headers.get(LAST_EVENT_HEADER.encode())
        found = (self._notices, None) if seen is None else self._events.find(seen.decode("latin-1"))
        status, problem = 0, ""
        if not accepts(headers.get(b"accept", b""), _EVENTS):
            status, problem = 406, f"the client must accept {_EVENTS}"
        elif found is None:
            status, problem = 400, f"unknown {LAST_EVENT_HEADER}: the events of this stream are not kept any more"
        elif seen is None and self._notices.writer is not None:
            status, problem = 409, "Conflict: Only one SSE stream is allowed per session"
        if found is None or status:
            await send_error(send, status, INVALID_REQUEST, problem)
            return
        stream, after = found
        writer = EventWriter(send, self._headers)
        stream.attach(writer)
        left = stream.left()
        sending = spawn(self._send_changes(), self._tasks) if stream is self._notices else None
        limits = [each for each in (remaining(scope[EXPIRES]), self._poll_after()) if each is not None]
        try:
            await stream.resume(writer, after)
            await follow(left, writer, receive, within=min(limits, default=None))
            await writer.end()
        finally:
            stream.detach(writer)
            if sending is not None:
                sending.cancel()

    async def _send_changes(self) -> None:
        while (found := await self._handshake.client.pending.next()) is not None:
            await self._notices.notify(*found)


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

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of the handshake era, in its session or in a new one."""
        owner = None if scope[IDENTITY] is None else scope[IDENTITY].id
        header: bytes | None = scope[HEADERS].get(_SESSION)
        id = None if header is None else header.decode("latin-1")
        if scope["method"] not in ("GET", "POST", "DELETE"):
            await send_error(send, 405, INVALID_REQUEST, "Method Not Allowed", [(b"allow", b"GET, POST, DELETE")])
        elif id is None:
            await self._begin(owner, scope, send)
        elif (session := self._by_id.get(id)) is None or session.owner != owner:  # exactly as if it did not exist
            await send_error(send, 404, INVALID_REQUEST, "Session not found")
        else:
            self._by_id[id] = self._by_id.pop(id)
            await session.serve(scope, receive, send)

    async def _begin(self, owner: str | None, scope: Scope, send: Send) -> None:
        """Open a session, for a handshake only: another one may have to end for it."""
        message = None
        if scope["method"] == "POST":
            message = next(iter(await read_post(scope, send)), None)
            if message is None:
                return
        if not isinstance(message, RPCRequest) or message.method != "initialize":
            await send_error(send, 400, INVALID_REQUEST, "Bad Request: Missing session ID")
            return
        try:
            self._server.initialize(message.params)
        except RPCError as error:
            await send_json(send, 200, encode_message(RPCFailure.of(message.id, error)))
            return
        session = self._open(owner)
        if session is None:
            await send_error(send, 503, INTERNAL_ERROR, "Too many open sessions")
        else:
            await session.open(message, send)

    def end_streams(self) -> None:
        """End the streams on which clients listen for changes."""
        for session in self._by_id.values():
            session.end_stream()

    async def close(self) -> None:
        """End all sessions and their calls."""
        sessions = [*self._by_id.values()]
        self._by_id.clear()
        await asyncio.gather(*(each.close() for each in sessions))

    def _open(self, owner: str | None) -> HTTPSession | None:
        """Register a new session; None if there are too many, and none of them is idle."""
        by_owner: dict[str | None, list[HTTPSession]] = {}
        for each in self._by_id.values():
            by_owner.setdefault(each.owner, []).append(each)
        candidates = by_owner.get(owner, [])
        if len(candidates) < self._max_each:
            is_full = len(self._by_id) >= self._max_sessions
            candidates = max(by_owner.values(), key=len) if is_full else []
        if candidates:  # one of these has to end
            idle = next((each for each in candidates if each.is_idle), None)
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
