"""A client over a pair of streams: its era, its requests in flight, and its notifications. No I/O.

The first request decides the era: with the envelope of the stateless one, every request has to have it; otherwise the
client shakes hands. What the other era would send is rejected.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from opwire.errors import ERROR_TABLE, ErrorCode
from opwire.invoke import CLOSE_GRACE
from opwire.mcp.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorObject,
    InvalidMessageError,
    RequestId,
    RPCError,
    RPCFailure,
    RPCMessage,
    RPCNotification,
    RPCRequest,
    RPCResponse,
    decode_message,
    encode_message,
    encode_reply,
    max_values,
    split_batch,
)
from opwire.mcp.peer import Answer, CancelledRequest, JsonRpcPeer, Rejection
from opwire.mcp.protocol import BATCHED, DEFAULT_VERSION, STATELESS_VERSIONS, VERSION_META, read_envelope
from opwire.serve.mcp.calls import Params, ServedRequest
from opwire.serve.mcp.notifications import ClientState
from opwire.serve.mcp.questions import CAPABILITIES, MAX_QUESTIONS, ClientRequests, Waiter
from opwire.serve.mcp.server import RegistryServer, stop_request
from opwire.tasks import spawn
from opwire.typed.plain import as_dict

MAX_LINE = 16 * 1024 * 1024
"""Longest message in bytes; longer ones are rejected."""

MAX_VALUES = max_values(MAX_LINE)
"""JSON values of a batch."""

MAX_OPEN = 1000
"""Requests of one connection without a response."""

CONNECTION_CLOSED = -32000

_BEFORE_HANDSHAKE = frozenset({"ping"})

Write = Callable[[bytes], Awaitable[None] | None]


class Handshake:
    """What a client of the handshake era has agreed on; shared by stdio and by sessions over HTTP."""

    def __init__(
        self, server: RegistryServer, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self.version = DEFAULT_VERSION
        self.capabilities: Params = {}
        self.is_askable = False  # whether the client can answer any questions
        self.client = ClientState(spawn)
        self._server = server
        self._is_accepted = False
        self._unsubscribe: Callable[[], None] | None = None

    def initialize(self, request: RPCRequest) -> RPCMessage:
        """Return the response to `initialize`."""
        try:
            result = self._server.initialize(request.params)
        except RPCError as error:
            return RPCFailure.of(request.id, error)
        self.version, self._is_accepted = result["protocolVersion"], True
        self.capabilities = as_dict((request.params or {}).get("capabilities"))
        self.is_askable = not self.capabilities.keys().isdisjoint(CAPABILITIES.values())
        return RPCResponse(request.id, result)

    def initialized(self) -> None:
        """Notify the client of changes from now on; it may have skipped `initialize`."""
        self._is_accepted = True
        if self._unsubscribe is None:
            self._unsubscribe = self._server.bus.subscribe(self.client.pending.list_changed)

    def check(self, method: str) -> None:
        """Reject a request that comes before the handshake.

        Raises:
            RPCError: INVALID_PARAMS.
        """
        if not self._is_accepted and method not in _BEFORE_HANDSHAKE:
            raise RPCError(INVALID_PARAMS, "Invalid request: send initialize first")

    def close(self) -> None:
        """Stop following changes, and end subscriptions."""
        self.client.close()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None


def _error_of(error: InvalidMessageError) -> ErrorObject:
    if error.excess is None:
        return ErrorObject(PARSE_ERROR, f"a line is one JSON-RPC message of at most {MAX_LINE:,} bytes")
    problem = f"the message has {error.excess}, too many for its size: send values in parts, or as text"
    return ErrorObject(ERROR_TABLE[ErrorCode.PAYLOAD_TOO_LARGE].json_rpc_code, problem)


async def _all(waits: list[Awaitable[None]]) -> None:
    for each in waits:
        await each


class DuplexConnection:
    """One client. `write` takes an encoded message, and returns what to wait for until the next one, if anything."""

    def __init__(self, server: RegistryServer, write: Write) -> None:
        self._server = server
        self._write = write
        self._peer: JsonRpcPeer[Waiter] = JsonRpcPeer(max_open=MAX_OPEN, max_pending=MAX_QUESTIONS)
        self._questions = ClientRequests(self._peer, self._send)
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshake = Handshake(server, partial(spawn, tasks=self._tasks))
        self._is_stateless: bool | None = None
        self._running: dict[RequestId, ServedRequest] = {}
        self._announcing: asyncio.Task[None] | None = None

    def receive(self, line: bytes) -> Awaitable[None] | None:
        """Handle a message or a batch; the caller waits for what is returned before it reads on."""
        if line.startswith(b"[") and self._handshake.version == BATCHED and not self._is_stateless:
            parts = split_batch(line, MAX_VALUES)
            if parts != [line]:
                waits = [each for each in map(self.receive, parts) if each is not None]
                return _all(waits) if waits else None
        try:
            message = decode_message(line)
        except InvalidMessageError as error:
            return self._write(encode_message(RPCFailure(error.id, _error_of(error))))
        match self._peer.receive(message):
            case RPCRequest() as request:
                return self._start(request)
            case Rejection(reply=reply):
                return self._write(encode_message(reply))
            case CancelledRequest(id=id):
                self._peer.finish(id)
                if (found := self._running.pop(id, None)) is not None:
                    spawn(stop_request(found), self._tasks)
            case Answer() as answer:
                self._questions.answered(answer)
            case RPCNotification(method="notifications/initialized") if not self._is_stateless:
                self._handshake.initialized()
                self._announcing = self._announcing or spawn(self._announce(), self._tasks)
            case _:
                pass
        return None

    async def close(self) -> None:
        """Cancel the client's calls, answer them, and wait until they have ended."""
        self._handshake.close()
        running, self._running = self._running, {}
        stopping = [spawn(stop_request(request), self._tasks) for request in running.values()]
        try:
            async with asyncio.timeout(CLOSE_GRACE):
                for id in running:
                    await self._send(RPCFailure(id, ErrorObject(CONNECTION_CLOSED, "Connection closed")))
        except TimeoutError:  # the client does not read
            pass
        if stopping:
            await asyncio.wait(stopping)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, request: RPCRequest) -> Awaitable[None] | None:
        has_envelope = VERSION_META in as_dict((request.params or {}).get("_meta"))
        if self._is_stateless is None:
            self._is_stateless = has_envelope and request.method != "initialize"
        if request.method == "initialize" and not self._is_stateless:  # at once: requests may follow without waiting
            self._peer.finish(request.id)
            return self._write(encode_reply(self._handshake.initialize(request)))
        try:
            self._check_era(request, has_envelope)
        except RPCError as error:
            self._peer.finish(request.id)
            return self._write(encode_message(RPCFailure.of(request.id, error)))
        is_stateless, client = bool(self._is_stateless), self._handshake.client
        served = ServedRequest(
            request.id,
            is_stateless,
            self._server.trusted,
            lambda method, params: self._send(RPCNotification(method, params)),
            client=client,
        )
        if self._handshake.is_askable:
            served.on_question = self._questions.callback(self._handshake.capabilities)
        self._running[request.id] = served
        self._server.start(self._serve(request, served), served)
        return None

    def _check_era(self, request: RPCRequest, has_envelope: bool) -> None:
        if not self._is_stateless:
            if has_envelope:
                wrong = f"this connection began with a handshake; requests of {STATELESS_VERSIONS[-1]} need another one"
                raise RPCError(INVALID_REQUEST, wrong)
            self._handshake.check(request.method)
            return
        if request.method == "initialize":
            wanted = (request.params or {}).get("protocolVersion")
            data: Params = {"supported": list(STATELESS_VERSIONS)}
            if isinstance(wanted, str):
                data["requested"] = wanted[:100]
            raise RPCError(UNSUPPORTED_PROTOCOL_VERSION, "this connection began without a handshake", data)
        read_envelope(request.method, request.params, None)

    async def _serve(self, request: RPCRequest, served: ServedRequest) -> None:
        reply = await self._server.respond(request, served)
        if self._running.pop(request.id, None) is not None:  # else it was cancelled, and gets no response
            self._peer.finish(request.id)
            await self._send(reply)

    async def _send(self, message: RPCMessage) -> None:
        wait_for = self._write(encode_reply(message))
        if wait_for is not None:
            await wait_for

    async def _announce(self) -> None:
        """Notify the client of changes, each once until it has read the notification."""
        while (found := await self._handshake.client.pending.next()) is not None:
            method, params = found
            await self._send(RPCNotification(method, params or None))
