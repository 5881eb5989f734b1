"""Sessions over streamable HTTP, of the handshake era: whose they are, how many there may be, and when they end.

A dropped connection does not stop a call in this era; the end of its session does. Notifications that belong to no
request are sent on the stream of a GET, one per session, and wait for it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any
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
)
from opwire.mcp.peer import Answer, CancelledRequest, JsonRpcPeer, Rejection
from opwire.mcp.protocol import SESSION_HEADER
from opwire.serve.guard import EXPIRES, IDENTITY, TOKEN, Header, Receive, Scope, Send
from opwire.serve.mcp.calls import ServedRequest
from opwire.serve.mcp.connection import MAX_OPEN, Handshake
from opwire.serve.mcp.exchange import EventWriter, Headers, challenge, follow, read_body, send_error, send_json
from opwire.serve.mcp.questions import MAX_QUESTIONS, ClientRequests, Waiter
from opwire.serve.mcp.server import RegistryServer, encode_reply, stop_request

_JSON, _EVENTS = "application/json", "text/event-stream"


async def read_post(headers: Headers, receive: Receive, send: Send) -> RPCMessage | None:
    """Return the message of a POST; None if it is invalid, and was rejected."""
    status, code, problem = 400, INVALID_REQUEST, ""
    if not headers.accepts(_JSON, _EVENTS):
        status, problem = 406, f"the client must accept {_JSON} and {_EVENTS}"
    elif (headers.get("content-type") or "").partition(";")[0].strip().lower() != _JSON:
        status, problem = 415, f"the content type must be {_JSON}"
    else:
        try:
            return decode_message(await read_body(receive))
        except InvalidMessageError as error:
            code, problem = INVALID_PARAMS if error.is_json else PARSE_ERROR, "the body is not a JSON-RPC message"
    await send_error(send, status, code, problem)
    return None


class HTTPSession:
    """One session. `owner` is the id of the identity that opened it; None: it is anonymous."""

    def __init__(self, server: RegistryServer, owner: str | None, idle: float, ended: Callable[[str], object]) -> None:
        self.id = uuid4().hex
        self.owner = owner
        self.exchanges = 0  # HTTP requests that are being served
        self._server = server
        self._idle = idle
        self._ended = ended
        self._headers: tuple[Header, ...] = ((SESSION_HEADER.encode(), self.id.encode()),)
        self._peer: JsonRpcPeer[Waiter] = JsonRpcPeer(max_open=MAX_OPEN, max_pending=MAX_QUESTIONS)
        self._questions = ClientRequests(self._peer)
        self._handshake = Handshake(server, self._spawn)
        self._running: dict[RequestId, tuple[asyncio.Task[RPCMessage], ServedRequest]] = {}
        self._stream: asyncio.Future[None] | None = None  # of the GET; done: it has to end
        self._notices: EventWriter | None = None  # of the GET
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_used = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(idle, self._expire)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served, and no call is running."""
        return not self.exchanges and not self._running

    def end(self) -> None:
        """Cancel the calls and end the streams; idempotent."""
        self._timer.cancel()
        self._handshake.close()
        self.end_stream()
        running, self._running = self._running, {}
        for found in running.values():
            self._spawn(stop_request(*found))

    def end_stream(self) -> None:
        """End the stream of the GET."""
        if self._stream is not None and not self._stream.done():
            self._stream.set_result(None)

    async def close(self) -> None:
        """End the session, and wait for its calls."""
        self.end()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _expire(self) -> None:
        left = self._last_used + self._idle - time.monotonic()
        if self.exchanges or left > 0:
            self._timer = asyncio.get_running_loop().call_later(max(left, self._idle / 4), self._expire)
        else:
            self._ended(self.id)
            self.end()

    async def open(self, request: RPCRequest, send: Send) -> None:
        """Answer the handshake."""
        await send_json(send, 200, encode_reply(self._handshake.initialize(request)), self._headers)

    async def serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Serve one HTTP request of the session."""
        self.exchanges += 1
        try:
            match scope["method"]:
                case "POST":
                    await self._post(scope, headers, receive, send)
                case "GET":
                    await self._get(scope, headers, receive, send)
                case _:  # DELETE
                    self._ended(self.id)
                    self.end()
                    await send_json(send, 200, headers=self._headers)
        finally:
            self.exchanges -= 1
            self._last_used = time.monotonic()

    async def _post(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        message = await read_post(headers, receive, send)
        if message is None:
            return
        match self._peer.receive(message):
            case RPCRequest() as request:
                await self._answer(request, scope, receive, send)
                return
            case Rejection(reply=reply):
                await send_json(send, 200, encode_message(reply), self._headers)
                return
            case CancelledRequest(id=id):
                self._cancel(id)
            case Answer() as answer:
                self._questions.answered(answer)
            case RPCNotification(method="notifications/initialized"):
                self._handshake.initialized()
            case _:
                pass
        await send_json(send, 202, headers=self._headers)

    async def _answer(self, request: RPCRequest, scope: Scope, receive: Receive, send: Send) -> None:
        writer = EventWriter(send, self._headers)
        if request.method == "initialize":
            self._peer.finish(request.id)
            await writer.finish(encode_reply(self._handshake.initialize(request)))
            return
        try:
            self._handshake.check(request.method)
        except RPCError as error:
            self._peer.finish(request.id)
            await writer.finish(encode_message(RPCFailure.of(request.id, error)))
            return
        if await challenge(self._server, scope, request, send):
            self._peer.finish(request.id)
            return

        async def send_question(message: RPCMessage) -> None:
            stream = self._notices if writer.is_closed else writer
            if stream is None:
                raise CallError(ErrorCode.ABORTED, "the client has disconnected, and cannot be asked")
            await stream.event(encode_message(message))

        served = ServedRequest(
            request.id,
            self._handshake.version,
            scope[IDENTITY],
            writer.notify,
            token=scope[TOKEN],
            on_question=self._questions.callback(self._handshake.capabilities, send_question),
            client=self._handshake.client,
        )
        task = asyncio.create_task(self._server.respond(request, served))
        self._running[request.id] = (task, served)
        try:
            await follow(task, writer, receive)
        finally:
            if not task.done():  # the client has left; the call goes on, but nothing can be sent any more
                writer.is_closed = True
                task.add_done_callback(lambda _: self._finish(request.id))
        if task.done():
            is_wanted = self._finish(request.id) and not task.cancelled()
            cancelled = RPCFailure(request.id, ErrorObject(REQUEST_CANCELLED, "Request cancelled"))
            await writer.finish(encode_reply(task.result() if is_wanted else cancelled))

    def _finish(self, id: RequestId) -> bool:
        """Forget a request that has ended; return False if it was cancelled."""
        self._peer.finish(id)
        return self._running.pop(id, None) is not None

    def _cancel(self, id: RequestId) -> None:
        found = self._running.pop(id, None)
        if found is not None:
            self._spawn(stop_request(*found))

    # --- the stream of the GET ----------------------------------------------------------------------------------------

    async def _get(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        if not headers.accepts(_EVENTS):
            await send_error(send, 406, INVALID_REQUEST, f"the client must accept {_EVENTS}")
            return
        if self._stream is not None:
            await send_error(send, 409, INVALID_REQUEST, "Conflict: Only one SSE stream is allowed per session")
            return
        self._stream = asyncio.get_running_loop().create_future()
        writer = self._notices = EventWriter(send, self._headers)
        sending = self._spawn(self._send_changes(writer))
        try:
            await writer.ping()
            await follow(self._stream, writer, receive, expires=scope[EXPIRES])
            await writer.end()
        finally:
            sending.cancel()
            self._stream = self._notices = None

    async def _send_changes(self, writer: EventWriter) -> None:
        while (found := await self._handshake.client.pending.next()) is not None:
            method, params = found
            await writer.event(encode_message(RPCNotification(method, params or None)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Sessions:
    """The sessions of one kind of client, ordered by their last request.

    At most `max_each` belong to one owner. When there are too many, an idle session ends in favour of a new one:
    rejecting it would let one client lock all others out, for as long as its idle sessions last.
    """

    def __init__(self, server: RegistryServer, *, max_sessions: int, max_each: int, idle: float) -> None:
        self._server = server
        self._max_sessions = max_sessions
        self._max_each = max_each
        self._idle = idle
        self._by_id: dict[str, HTTPSession] = {}

    async def serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Serve a request of the handshake era, in its session or in a new one."""
        owner = None if scope[IDENTITY] is None else scope[IDENTITY].id
        id = headers.get(SESSION_HEADER)
        if scope["method"] not in ("GET", "POST", "DELETE"):
            await send_error(send, 405, INVALID_REQUEST, "Method Not Allowed", [(b"allow", b"GET, POST, DELETE")])
        elif id is None:
            await self._begin(owner, scope, headers, receive, send)
        elif (session := self._by_id.get(id)) is None or session.owner != owner:  # exactly as if it did not exist
            await send_error(send, 404, INVALID_REQUEST, "Session not found")
        else:
            self._by_id[id] = self._by_id.pop(id)
            await session.serve(scope, headers, receive, send)

    async def _begin(self, owner: str | None, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Open a session, for a handshake only: another one may have to end for it."""
        message = None
        if scope["method"] == "POST":
            message = await read_post(headers, receive, send)
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
        session = HTTPSession(self._server, owner, self._idle, lambda id: self._by_id.pop(id, None))
        self._by_id[session.id] = session
        return session
