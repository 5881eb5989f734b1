"""One connection to an MCP server, from the handshake to its end.

`JsonRpcPeer` keeps the requests of both sides, the transport carries them, and one task owns both. A request runs in
the task of its caller, which is cancelled at any time: the peer forgets the request, and the server is notified.

A server may send requests too, at any rate. Those above the limits of the peer are rejected, and a server that does not
read the rejections is disconnected.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.negotiation import Agreement, MCPServerInfo, negotiate
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.questions import ProgressCallback, RequestCaller, SentRequest, ServerQuestions, guarded
from opwire.mcp.client.servers import MCPServer, StdioServer
from opwire.mcp.client.stdio import server_process
from opwire.mcp.client.subscriptions import ListenStreams, announced_changes
from opwire.mcp.client.transport import ClientTransport, HTTPExchangeError, TransportEvents, call_error, with_output
from opwire.mcp.messages import (
    InvalidReply,
    ReceivedMessage,
    RequestId,
    RPCCode,
    RPCError,
    RPCFailure,
    RPCNotification,
    RPCRequest,
    RPCResponse,
)
from opwire.mcp.peer import MAX_REQUESTS, Answer, CancelledRequest, JsonRpcPeer, Rejection, Reported, with_meta
from opwire.mcp.revisions import ToolHeaders, write_argument_headers
from opwire.runtime.deadlines import Deadlines, back_off
from opwire.runtime.tasks import resolve
from opwire.runtime.text import get_logger
from opwire.typed.plain import as_dict

if TYPE_CHECKING:
    from opwire.mcp.client.auth import MCPAuth

logger = get_logger("opwire.mcp.client")

MAX_ROUNDS = 10
"""Input-required results of one call."""

REJECTION_TIMEOUT = 5.0
"""Seconds for a server to read that its request is rejected."""

_DISCOVERY_TIMEOUT = 10.0  # some servers never respond to `server/discover`
_INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})  # may return input requests
# Seconds, if a server wants the call repeated without requesting input.
_FIRST_REPEAT_PAUSE = 0.05
_LONGEST_REPEAT_PAUSE = 0.25


class SessionLostError(Exception):
    """The server has dropped the session, and has not processed the request."""


def open_transport(
    server: MCPServer, max_message: int, events: TransportEvents, auth: "MCPAuth | None"
) -> AbstractAsyncContextManager[ClientTransport]:
    """Start the server or connect to it; stop or disconnect on exit.

    Raises:
        CallError: UNAVAILABLE, or PROTOCOL_ERROR. Streamable HTTP connects lazily: its first request fails.
    """
    if isinstance(server, StdioServer):
        return server_process(server, max_message, events)
    return load_http().http_transport(server, max_message, events, auth)


def load_http() -> ModuleType:
    """Import the HTTP transports, which takes 0.2 s and needs an extra.

    Raises:
        MissingExtraError: `opwire[mcp]` is not installed.
    """
    from opwire.mcp.client import http

    return http


class MCPConnection:
    """Opened once, closed once. `on_notification` is called in the order of arrival, and must not block."""

    def __init__(
        self,
        server: MCPServer,
        options: MCPOptions,
        on_notification: Callable[[str, dict[str, Any]], object],
        *,
        discover: bool,
        auth: "MCPAuth | None" = None,
        on_ignored: Callable[[bytes], None] = lambda line: None,
    ) -> None:
        self._server = server
        self._name = server.name
        self._options = options
        self._on_notification = on_notification
        self._discover = discover
        self._auth = auth
        self.ignored = on_ignored
        self._agreement: Agreement | None = None
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()  # the connection has ended, or has to
        self._agreed = asyncio.Event()  # there is an agreement, or a failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deadlines = Deadlines()
        self._peer: JsonRpcPeer[SentRequest] = JsonRpcPeer(max_requests=MAX_REQUESTS)
        self._transport: ClientTransport | None = None
        self._questions = ServerQuestions(options, self._name, self._spawn)
        self._wants_logs = False  # the server was asked for them
        self._listening = ListenStreams(
            lambda params, id: self._send("subscriptions/listen", params, id=id), self._on_notification
        )
        self._watches: dict[str, asyncio.Task[None]] = {}  # of resources, by URI
        self._is_closing = False
        self.argument_headers: ToolHeaders = {}
        """Which arguments are sent as headers too."""
        self.lost = False
        """Whether nothing can be sent any more."""
        self.failure: CallError | None = None
        """The reason of the end."""
        self.last_output = ""
        """The server's last lines on stderr, once the connection has ended by itself."""
        self.died_in_handshake = False

    # --- life cycle ---------------------------------------------------------------------------------------------------

    async def open(self, timeout: float) -> None:
        """Connect and agree on a revision.

        Raises:
            CallError: UNAVAILABLE, TIMEOUT, PROTOCOL_ERROR. All resources are released then.
        """
        self._owner = asyncio.create_task(self._run(timeout), name=f"opwire.mcp {self._name}")
        try:
            async with asyncio.timeout(timeout):
                await self._agreed.wait()
        except TimeoutError:
            name = self._name
            message = f"the MCP server {name} was not ready within {timeout:g} seconds; increase the timeout if needed"
            self.failure = self.failure or CallError(ErrorCode.TIMEOUT, message)
        except asyncio.CancelledError:
            await self.close()
            raise
        if self._agreement is None or self.failure is not None:
            await self.close()
            raise self._reason()

    @property
    def info(self) -> MCPServerInfo:
        """The server's self-description, once the connection is open."""
        return cast("Agreement", self._agreement).info

    async def close(self) -> None:
        """Fail pending requests, and wait until all resources are released."""
        self._is_closing = True
        self._end()
        if self._transport is None:  # a server of 2024 may never send its endpoint
            self._owner.cancel()
        await asyncio.wait((self._owner,))

    def _end(self) -> None:
        self.lost = True
        self._over.set()
        self._agreed.set()

    async def _run(self, timeout: float) -> None:
        try:
            async with open_transport(self._server, self._options.max_message, self, self._auth) as self._transport:
                self._spawn(self._handshake(min(_DISCOVERY_TIMEOUT, timeout / 2)))
                await self._over.wait()
                self._fail_requests()
                for task in self._tasks:
                    task.cancel()
        except CallError as error:
            self.failure = self.failure or error
        except Exception as error:
            logger.exception("the connection to the MCP server %s broke", self._name)
            self.failure = self.failure or self._reason()
            self.failure.__cause__ = error
        finally:
            self._end()
            self._fail_requests()

    def _fail_requests(self) -> None:
        for sent in self._peer.close():
            sent.fail(self._reason())

    async def _handshake(self, patience: float) -> None:
        try:
            agreement = await negotiate(
                self, self._options, discover=self._discover, patience=patience, revision=self._options.revision
            )
        except (RPCError, HTTPExchangeError, CallError) as error:
            mapped = error if isinstance(error, CallError) else self._mapped(error, "the handshake")
            self.failure = self.failure or (mapped if isinstance(mapped, CallError) else self._reason())
            self._end()
            return
        self._agreement = agreement
        self._agreed.set()
        change_filter = announced_changes(agreement.info.capabilities)
        if not (agreement.modern and change_filter):
            return
        try:
            await self._listening.run(change_filter, lambda: None)
        except CallError as error:
            if not self.lost:
                logger.warning("changes of the MCP server %s are not reported: %s", self._name, error)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        def done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved here, because an abandoned task has no other reader

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        params: dict[str, Any],
        deadline: float | None,
        on_progress: ProgressCallback | None,
        caller: RequestCaller | None = None,
    ) -> Awaitable[RPCResponse]:
        """Return the response, unchecked. A cancelled caller returns at once, and the server is notified.

        Raises:
            CallError: the server's error, TIMEOUT, or the reason of the connection's end.
            SessionLostError: a new connection is needed.
        """
        if deadline is None:
            return self._complete(method, params, on_progress, caller)
        complaint = f"the MCP server {self._name} did not answer {method}"
        return self._deadlines.limit(lambda: self._complete(method, params, on_progress, caller), deadline, complaint)

    def preview(self, method: str, params: dict[str, Any], *, reports: bool) -> dict[str, Any]:
        """Return the message that `request` would send first, with or without a request for progress reports.

        Its id is an example.

        Raises:
            CallError: the reason of the connection's end.
        """
        if self._agreement is None or self.lost:
            raise self._reason()
        meta = {**self._agreement.meta, "progressToken": 1} if reports else self._agreement.meta
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": with_meta(params, meta) if meta else params}

    async def _complete(
        self, method: str, params: dict[str, Any], on_progress: ProgressCallback | None, caller: RequestCaller | None
    ) -> RPCResponse:
        """Send a request, and repeat it with the input that the server requests, until it returns a result."""
        response = await self._send(method, params, on_progress, caller=caller)
        attempt = 0
        while (result := response.result).get("resultType") == "input_required" and method in _INPUT_METHODS:
            attempt += 1
            if attempt > MAX_ROUNDS:
                message = f"the MCP server {self._name} answered {method} with questions {MAX_ROUNDS} times"
                raise CallError(ErrorCode.PROTOCOL_ERROR, message)
            input_params: dict[str, Any] = {}
            if result.get("inputRequests"):
                prefix = f"the MCP server {self._name} answered {method} with questions"
                # A task of its own, which ends with the connection.
                on_question = None if caller is None else caller.on_question
                task = self._spawn(self._options.answer_all(result["inputRequests"], prefix, on_question))
                try:
                    await asyncio.wait((task,))
                finally:
                    task.cancel()
                if task.cancelled():
                    raise self._reason()
                input_params["inputResponses"] = task.result()
            else:
                await asyncio.sleep(back_off(attempt, first=_FIRST_REPEAT_PAUSE, longest=_LONGEST_REPEAT_PAUSE))
            if "requestState" in result:
                input_params["requestState"] = result["requestState"]
            response = await self._send(method, {**params, **input_params}, on_progress, caller=caller)
        return response

    async def _send(
        self,
        method: str,
        params: dict[str, Any],
        on_progress: ProgressCallback | None = None,
        *,
        id: str | None = None,
        caller: RequestCaller | None = None,
    ) -> RPCResponse:
        agreement, transport = self._agreement, self._transport
        if agreement is None or transport is None or self.lost:
            raise self._reason()
        meta = agreement.meta
        if caller is not None:
            logs = caller.on_log is not None
            if agreement.modern:
                meta = agreement.meta_for(asks=caller.on_question is not None, logs=logs)
            elif logs and not self._wants_logs and "logging" in agreement.info.capabilities:
                # Ask a server of the handshake era for all log messages, once: each caller filters its own.
                self._wants_logs = True
                self._spawn(self._send("logging/setLevel", {"level": "debug"}))
        headers = agreement.headers(method, params) if transport.has_headers else None
        if headers is not None and method == "tools/call" and agreement.modern:
            declared = self.argument_headers.get(params.get("name", ""), [])
            headers |= write_argument_headers(declared, params.get("arguments") or {})
        try:
            return await self._exchange(
                transport, method, params, headers, on_progress, meta=meta, id=id, caller=caller
            )
        except (RPCError, HTTPExchangeError) as error:
            raise self._mapped(error, method) from error
        except (TypeError, ValueError, RecursionError) as error:
            message = f"the input for the MCP server {self._name} has no JSON form: {error}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message) from error

    async def _exchange(
        self,
        transport: ClientTransport,
        method: str,
        params: dict[str, Any],
        headers: Mapping[str, str] | None,
        on_progress: ProgressCallback | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        id: str | None = None,
        caller: RequestCaller | None = None,
    ) -> RPCResponse:
        """Send one request, and return its response."""
        sent = SentRequest(method, self._loop.create_future(), on_progress or as_dict, caller)
        request = self._peer.request(method, params, sent, id=id, meta=meta, reports=on_progress is not None)
        try:
            wait_for = transport.write(request, headers)
            if wait_for is not None:
                await wait_for
        except BaseException:
            self._peer.fail(request.id)
            if not sent.response.cancel():
                sent.response.exception()  # the end of the connection: it is raised by `send` as well
            raise
        if caller is not None:
            self._questions.add(request.id, sent)
        try:
            return await sent.response
        finally:
            if caller is not None:
                self._questions.discard(request.id, sent)
            if sent.response.cancelled():  # the caller has left
                transport.cancel(request.id, self._peer.abandon(request.id))

    async def request_once(
        self, method: str, params: dict[str, Any], headers: Mapping[str, str], timeout: float | None = None
    ) -> dict[str, Any]:
        """Send a request of the handshake."""
        if self._transport is None or self.lost:
            raise self._reason()
        try:
            async with asyncio.timeout(timeout):
                return (await self._exchange(self._transport, method, params, headers)).result
        except TimeoutError:
            raise RPCError(RPCCode.REQUEST_TIMEOUT, f"no response to {method} within {timeout:g} seconds") from None

    async def notify(self, method: str, headers: Mapping[str, str]) -> None:
        """Send a notification of the handshake."""
        if self._transport is not None:
            await self._transport.send(RPCNotification(method), headers)

    def _mapped(self, error: RPCError | HTTPExchangeError, method: str) -> CallError | SessionLostError:
        if isinstance(error, HTTPExchangeError) and error.lost:
            return SessionLostError()
        return call_error(error, self._name, method)

    def _reason(self) -> CallError:
        """Return the reason of the end: a copy for each caller, since it will carry the caller's traceback."""
        failure = self.failure or (None if self._transport is None else self._transport.failure)
        if failure is not None:
            return copy(failure)
        return CallError(ErrorCode.UNAVAILABLE, f"the connection to the MCP server {self._name} is closed")

    # --- what the transport reports -----------------------------------------------------------------------------------

    def received(self, message: ReceivedMessage, request: RequestId | None = None) -> Awaitable[None] | None:
        """Handle a message, in the order of arrival."""
        if self.lost:
            return None
        match self._peer.receive(message):
            case Answer(waiter=sent, message=RPCResponse() as response):
                resolve(sent.response, response)
            case Answer(waiter=sent, message=RPCFailure(error=error)):
                sent.fail(error.exception())
            case Answer(waiter=sent, message=InvalidReply(code=code, reason=reason)):
                sent.fail(CallError(code, f"the MCP server {self._name} answered {sent.method} with {reason}"))
            case Reported(waiter=sent, params=params):
                guarded(sent.on_progress, params)
            case RPCNotification() as notification:
                self._on_notify(notification.method, notification.params or {}, request)
            case RPCRequest() as question:
                sent, transport = self._questions.of(request), cast("ClientTransport", self._transport)
                task = self._spawn(self._questions.answer(question, sent, transport.send))
                task.add_done_callback(lambda _: self._peer.finish(question.id))
                self._questions.started(question.id, sent, task)
            case CancelledRequest(id=id):
                self._questions.cancel(id)
            case Rejection(reply=reply):
                return self._reject(reply)
            case _:
                pass
        return None

    def failed(self, id: RequestId, error: Exception) -> None:
        """Fail one request."""
        pending = self._peer.fail(id)
        if pending is not None:
            pending.waiter.fail(error)

    def ended(self) -> None:
        """Fail all requests: nothing is received any more. Stopping the server may still take a while."""
        self.failure = self.failure or self._reason()
        self.died_in_handshake = self._agreement is None and not self._is_closing
        self.last_output = "" if self._transport is None else self._transport.last_output
        if self._agreement is not None and not self._is_closing:
            logger.warning("%s", with_output(self.failure.message, self.last_output))
        self._end()
        self._fail_requests()

    async def _reject(self, reply: RPCFailure) -> None:
        try:
            async with asyncio.timeout(REJECTION_TIMEOUT):
                await cast("ClientTransport", self._transport).send(reply)
        except TimeoutError:
            reason = f"the MCP server {self._name} asks without reading the answers; the connection is closed"
            self.failure = self.failure or CallError(ErrorCode.PROTOCOL_ERROR, reason)
            self.ended()
        except CallError:
            pass  # the transport has ended

    def _on_notify(self, method: str, params: dict[str, Any], request: RequestId | None) -> None:
        match method:
            case "notifications/subscriptions/acknowledged":
                self._listening.acknowledge(params)
            case "notifications/cancelled":
                self._listening.end(params)
            case "notifications/message":
                self._questions.log(params, request)
            case _:
                guarded(self._on_notification, method, params)

    async def watch(self, uri: str, deadline: float) -> None:
        """Subscribe to updates of a resource.

        Raises:
            CallError: the server does not support this, or takes too long.
        """
        if self._agreement is None or not self._agreement.modern:
            await self.request("resources/subscribe", {"uri": uri}, deadline, None)
            return
        opened = asyncio.Event()
        task = self._watches[uri] = self._spawn(self._listening.run({"resourceSubscriptions": [uri]}, opened.set))
        task.add_done_callback(lambda _: opened.set())
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await opened.wait()
        except BaseException as error:
            await self.unwatch(uri, deadline)
            if not isinstance(error, TimeoutError):
                raise
            message = f"the MCP server {self._name} did not acknowledge in time that a resource is watched"
            raise CallError(ErrorCode.TIMEOUT, message) from None
        if task.done():
            raise self._reason() if task.cancelled() else cast("BaseException", task.exception())

    async def unwatch(self, uri: str, deadline: float) -> None:
        """Unsubscribe from updates of a resource."""
        if self._agreement is None or not self._agreement.modern:
            await self.request("resources/unsubscribe", {"uri": uri}, deadline, None)
        elif uri in self._watches:
            self._watches.pop(uri).cancel()
