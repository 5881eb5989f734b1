"""One connection to an MCP server, from its handshake to its end.

One task owns it: transports and dispatcher of the SDK open cancel scopes, which must be left by the task that entered
them, whatever callers do. A request runs in a task of its own, so that a caller who gives up leaves at once, while the
server is still being told.

How messages travel to a server and back: one small interface, three transports behind it.

A server may ask, too, at any time and as often as it likes. `Questions` bounds how many it has open and how many it may
ask for each request of ours; those above are refused, and a server that does not read its refusals is disconnected.
"""

import asyncio
import inspect
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import copy
from typing import Any, NamedTuple, cast

import anyio
import anyio.abc
import msgspec
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from opwire.adapters.mcp.http import HTTPClient, sse_stream
from opwire.adapters.mcp.negotiation import Agreement, ServerInfo, Subscriptions, changes_of, negotiate
from opwire.adapters.mcp.process import MessageStream, server_process
from opwire.adapters.mcp.report import ServerLog, call_error, http_failure, object_of, text_of
from opwire.adapters.mcp.servers import Callbacks, HTTPServer, MCPServer, StdioServer
from opwire.errors import CallError, ErrorCode

MAX_OPEN_QUESTIONS = 100
"""Questions of a server that are not answered yet, or whose answers it has not read."""

MAX_QUESTIONS = 1000
"""Questions of a server for each request of ours."""

_PATIENCE = 5.0  # seconds for a server to read a refusal


class Wire(NamedTuple):
    """The two streams of the SDK's dispatcher, and the reason why they ended, if it is known."""

    read: Any
    write: Any
    failure: Callable[[], CallError | None]


class Questions(MessageStream):
    """The streams of a connection, with a bound on what the server asks. Call `answered` when an answer is found."""

    def __init__(self, wire: Wire, server: str) -> None:
        self._wire = wire
        self._server = server
        self._open = 0
        self._left = MAX_QUESTIONS

    def answered(self) -> None:
        """An answer was found, or will not be; sending it counts by itself."""
        self._open -= 1

    async def send(self, item: SessionMessage, /) -> None:
        if isinstance(item.message, JSONRPCRequest):
            self._left = MAX_QUESTIONS
        if not isinstance(item.message, JSONRPCResponse | JSONRPCError):
            return await self._wire.write.send(item)
        self._open += 1
        try:
            await self._wire.write.send(item)
        finally:
            self._open -= 1

    async def receive(self) -> Any:
        while True:
            item = await self._wire.read.receive()
            message = None if isinstance(item, Exception) else item.message
            if not isinstance(message, JSONRPCRequest):
                return item
            self._left -= message.method != "ping"
            if self._open >= MAX_OPEN_QUESTIONS:
                await self._refuse(message, f"more than {MAX_OPEN_QUESTIONS} requests are open")
            elif self._left < 0:
                await self._refuse(message, f"more than {MAX_QUESTIONS} requests came for one of the client")
            else:
                self._open += 1
                return item

    async def _refuse(self, request: JSONRPCRequest, reason: str) -> None:
        error = ErrorData(code=INVALID_REQUEST, message=f"refused: {reason}")
        refusal = JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
        with anyio.move_on_after(_PATIENCE) as waiting:
            await self._wire.write.send(SessionMessage(refusal))
        if waiting.cancelled_caught:
            message = f"the MCP server {self._server} asks without reading the answers; the connection is closed"
            self.failure = CallError(ErrorCode.PROTOCOL_ERROR, message)
            raise anyio.EndOfStream


def open_wire(server: MCPServer, max_message: int) -> AbstractAsyncContextManager[Wire]:
    """Start the server or get in touch with it; leaving ends that.

    Raises:
        CallError: UNAVAILABLE, or PROTOCOL_ERROR. Streamable HTTP has nothing to open: its first request fails.
    """
    if isinstance(server, StdioServer):
        return _stdio(server, max_message)
    return _sse(server, max_message) if server.kind == "sse" else _streamable(server, max_message)


def _wire(stream: MessageStream) -> Wire:
    return Wire(stream, stream, lambda: stream.failure)


@asynccontextmanager
async def _stdio(server: StdioServer, max_message: int) -> AsyncGenerator[Wire]:
    async with server_process(server, max_message) as process:
        yield _wire(process)


@asynccontextmanager
async def _sse(server: HTTPServer, max_message: int) -> AsyncGenerator[Wire]:
    async with sse_stream(server, max_message) as stream:
        yield _wire(stream)


@asynccontextmanager
async def _streamable(server: HTTPServer, max_message: int) -> AsyncGenerator[Wire]:
    async with (
        HTTPClient(server, max_message) as client,
        streamable_http_client(server.name, http_client=client, max_sse_event_size=max_message) as (read, write),
    ):
        yield Wire(read, write, lambda: None)


logger = logging.getLogger("opwire.mcp")

MAX_ROUNDS = 10
"""How often a server may answer one call with questions."""

MAX_LOGS = 100
"""Log messages of a server that a coroutine callback has not finished with; those above are left out."""

_DISCOVERY = 10.0  # seconds for a server to say whether it knows `server/discover`; some never answer
_ASKING = frozenset({"tools/call", "prompts/get", "resources/read"})  # what may be answered with questions
_LEVELS = {"debug": logging.DEBUG, "warning": logging.WARNING} | dict.fromkeys(
    ("error", "critical", "alert", "emergency"), logging.ERROR
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25  # seconds, where a server has no question but wants to be asked again


class SessionLostError(Exception):
    """The server has forgotten the session; it has not looked at the request."""


class Connection:
    """Opened once, closed once. `on_notification` is called in the order of arrival, and must not block."""

    def __init__(
        self,
        server: MCPServer,
        callbacks: Callbacks,
        *,
        max_message: int,
        on_notification: Callable[[str, dict[str, Any]], object],
        discover: bool = True,
    ) -> None:
        self._server = server
        self._callbacks = callbacks
        self._max_message = max_message
        self._on_notification = on_notification
        self._discover = discover
        self._agreement: Agreement | None = None
        self._over = asyncio.Event()  # the connection ended, or is to end
        self._agreed = asyncio.Event()  # there is an agreement, or a failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = ServerLog(server.name)
        self._logs: set[asyncio.Task[Any]] = set()  # of `log` callbacks, which are tasks as well
        self._tokens = itertools.count(1)
        self._watchers: dict[str, Callable[[dict[str, Any]], object]] = {}  # of progress, by token
        self._headers: dict[str, dict[tuple[str, ...], str]] = {}  # which arguments of a tool are headers, too
        self._subscriptions = Subscriptions(self._listen, self._on_notification)
        self._watches: dict[str, asyncio.Task[None]] = {}  # of resources, by URI
        self._wire_failure: Callable[[], CallError | None] = lambda: None
        self.failure: CallError | None = None  # why it is over
        self.died_in_handshake = False

    # --- its life -----------------------------------------------------------------------------------------------------

    async def open(self, timeout: float) -> None:
        """Connect and agree on a revision.

        Raises:
            CallError: UNAVAILABLE, TIMEOUT, PROTOCOL_ERROR. Nothing is left behind then.
        """
        self._owner = asyncio.create_task(self._live(timeout), name=f"opwire.mcp {self._server.name}")
        try:
            async with asyncio.timeout(timeout):
                await self._agreed.wait()
        except TimeoutError:
            message = f"the MCP server {self._server.name} was not ready within {timeout:g} seconds"
            self.failure = self.failure or CallError(ErrorCode.TIMEOUT, message)
        except asyncio.CancelledError:
            await self.close()
            raise
        if self._agreement is None or self.failure is not None:
            await self.close()
            raise self._reason()

    @property
    def info(self) -> ServerInfo:
        """What the server said of itself, once it is open."""
        return cast("Agreement", self._agreement).info

    @property
    def lost(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._over.is_set()

    async def close(self) -> None:
        """Settle what is pending, and wait until nothing is left."""
        self._end()
        await asyncio.wait((self._owner,))

    def _end(self) -> None:
        self._over.set()
        self._agreed.set()

    async def _live(self, timeout: float) -> None:
        try:
            async with open_wire(self._server, self._max_message) as wire:
                self._questions = Questions(wire, self._server.name)
                self._wire_failure = lambda: wire.failure() or self._questions.failure
                streams: Any = self._questions
                self._dispatcher = JSONRPCDispatcher(streams, streams)
                await self._speak(min(_DISCOVERY, timeout / 2))
        except CallError as error:
            self.failure = self.failure or error
        except Exception as error:  # of a transport of the SDK
            logger.exception("the connection to the MCP server %s broke", self._server.name)
            self.failure = self.failure or self._reason()
            self.failure.__cause__ = error
        finally:
            self._end()

    async def _speak(self, patience: float) -> None:
        async with anyio.create_task_group() as group:
            await group.start(self._serve)
            group.start_soon(self._greet, patience)
            await self._over.wait()
            group.cancel_scope.cancel()
        for task in self._tasks:  # those that do not wait for the server, but for a callback
            task.cancel()

    async def _greet(self, patience: float) -> None:
        peer = self._dispatcher
        try:
            self._agreement = await negotiate(peer, self._callbacks, discover=self._discover, patience=patience)
        except (MCPError, CallError) as error:
            self.died_in_handshake = self._wire_failure() is not None
            mapped = self._mapped(error, "the handshake")
            self.failure = self.failure or (mapped if isinstance(mapped, CallError) else self._reason())
            self._end()
        else:
            self._agreed.set()
            wanted = changes_of(self._agreement.info.capabilities)
            if self._agreement.modern and wanted:
                self._spawn(self._follow_changes(wanted))

    async def _serve(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            await self._dispatcher.run(self._on_request, _ignore, self._on_notify, task_status=task_status)
        finally:  # whatever became of it, nobody reads any more; to stop the server may still take a while
            self.failure = self.failure or self._reason()
            self._end()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has seen it; of one that nobody waits for any more, nobody wants to know

    # --- requests -----------------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        deadline: float | None,
        on_progress: Callable[[dict[str, Any]], object] | None,
    ) -> dict[str, Any]:
        """The raw result. A caller who gives up leaves at once, and the server is told.

        Raises:
            CallError: what the server said, or TIMEOUT, or why the connection is over.
            SessionLostError: a new connection is needed.
        """
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise CallError(ErrorCode.TIMEOUT, f"the deadline had passed before {method} was sent")
        token = next(self._tokens)
        if on_progress is not None:
            self._watchers[str(token)] = on_progress
            params = {**params, "_meta": {**(params.get("_meta") or {}), "progressToken": token}}
        task = self._spawn(self._exchange(method, params))
        try:
            await asyncio.wait((task,), timeout=left)
        finally:
            self._watchers.pop(str(token), None)
            late = not task.done() and task.cancel()
        if late:
            message = f"the MCP server {self._server.name} did not answer {method} before the deadline"
            raise CallError(ErrorCode.TIMEOUT, message)
        if task.cancelled():
            raise self._reason()
        return task.result()

    async def _exchange(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One request, and as many more as it takes to answer the questions that come back."""
        result = await self._send(method, params)
        said = f"the MCP server {self._server.name} answered {method} with questions"
        pause = _FIRST_PAUSE
        for _ in range(MAX_ROUNDS):
            if method not in _ASKING or result.get("resultType") != "input_required":
                return result
            more: dict[str, Any] = {}
            if result.get("inputRequests"):
                more["inputResponses"] = await self._callbacks.answer_all(result["inputRequests"], said)
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            if "requestState" in result:
                more["requestState"] = result["requestState"]
            result = await self._send(method, {**params, **more})
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"{said} {MAX_ROUNDS} times")

    async def _send(self, method: str, params: dict[str, Any], name: str | None = None) -> dict[str, Any]:
        """One request on the wire."""
        if self._agreement is None or self.lost:
            raise self._reason()
        headers: Mapping[str, str] = {}
        if method == "tools/call" and self._headers:
            headers = mcp_param_headers(self._headers.get(params.get("name", ""), {}), params.get("arguments") or {})
        stamped, options = self._agreement.stamp(method, params, headers)
        if name is not None:
            options["request_id"] = name
        try:
            msgspec.json.encode(stamped)  # over HTTP, what cannot be encoded would cost the connection
            return await self._dispatcher.send_raw_request(method, stamped, options)
        except MCPError as error:
            raise self._mapped(error, method) from error
        except (TypeError, ValueError, RecursionError) as error:
            message = f"what is sent to the MCP server {self._server.name} has no JSON form: {error}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message) from error

    def _mapped(self, error: MCPError | CallError, method: str) -> Exception:
        if isinstance(error, CallError):
            return error
        if error.code == CONNECTION_CLOSED and (self.lost or error.message == "Connection closed"):
            self._end()  # the dispatcher fails requests before `run` returns, and the next call must not be sent here
            return self._reason()
        http = http_failure(error)
        if http is not None and http.lost:
            return SessionLostError()
        return call_error(error, self._server.name, method)

    def _reason(self) -> CallError:
        """Why it is over: for each who asks an error of his own, since it will carry his traceback."""
        known = self.failure or self._wire_failure()
        if known is not None:
            return copy(known)
        return CallError(ErrorCode.UNAVAILABLE, f"the connection to the MCP server {self._server.name} is closed")

    def remember_tools(self, tools: Iterable[Any]) -> dict[str, str]:
        """Which arguments travel as headers too, from 2026-07-28 on; returns tools whose headers are not allowed."""
        self._headers = {}
        refused: dict[str, str] = {}
        for tool in map(object_of, tools if self._agreement is not None and self._agreement.modern else ()):
            name, schema = text_of(tool.get("name")), tool.get("inputSchema")
            reason = find_invalid_x_mcp_header(schema)
            if reason is None:
                self._headers[name] = x_mcp_header_map(schema)
            else:
                refused[name] = reason
        return refused

    # --- what the server says by itself -------------------------------------------------------------------------------

    async def _on_request(self, context: DispatchContext[Any], method: str, params: Any) -> dict[str, Any]:
        try:
            return await self._callbacks.answer(method, params)
        finally:
            self._questions.answered()

    def _on_notify(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Called in the order of arrival; True: nobody else has to see it."""
        given = dict(params or {})
        match method:
            case "notifications/progress":
                watcher = self._watchers.get(str(given.get("progressToken")))  # some give it back as a text
                if watcher is not None:
                    _guarded(watcher, given)
            case "notifications/subscriptions/acknowledged":
                self._subscriptions.acknowledge(given)
            case "notifications/cancelled":  # of a request of the server's, the dispatcher has seen to it
                self._subscriptions.end(given)
            case "notifications/message":
                self._on_log(given)
            case _:
                _guarded(self._on_notification, method, given)
        return True

    def _on_log(self, params: dict[str, Any]) -> None:
        if self._callbacks.log is None:
            data = params.get("data")
            text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
            self._log.write(_LEVELS.get(str(params.get("level")), logging.INFO), text)
            return
        if len(self._logs) >= MAX_LOGS:
            self._log.write(logging.WARNING, "a log message is left out: the log callback does not keep up")
            return
        written = _guarded(self._callbacks.log, params)
        if inspect.iscoroutine(written):
            task = self._spawn(written)
            self._logs.add(task)
            task.add_done_callback(self._logs.discard)

    # --- changes ------------------------------------------------------------------------------------------------------

    async def _listen(self, params: dict[str, Any], name: str) -> None:
        await self._send("subscriptions/listen", params, name)

    async def _follow_changes(self, wanted: dict[str, bool]) -> None:
        try:
            await self._subscriptions.run(wanted, lambda: None)
        except CallError as error:
            if not self.lost:
                logger.warning("changes of what the MCP server %s offers go unnoticed: %s", self._server.name, error)

    async def watch(self, uri: str, deadline: float) -> None:
        """Be told when a resource changes.

        Raises:
            CallError: the server does not do this, or takes too long.
        """
        if self._agreement is None or not self._agreement.modern:
            await self.request("resources/subscribe", {"uri": uri}, deadline, None)
            return
        opened = asyncio.Event()
        task = self._watches[uri] = self._spawn(self._subscriptions.run({"resourceSubscriptions": [uri]}, opened.set))
        task.add_done_callback(lambda _: opened.set())
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await opened.wait()
        except BaseException as error:
            await self.unwatch(uri, deadline)
            if not isinstance(error, TimeoutError):
                raise
            message = f"the MCP server {self._server.name} did not say in time whether a resource can be watched"
            raise CallError(ErrorCode.TIMEOUT, message) from None
        if task.done():
            raise self._reason() if task.cancelled() else cast("BaseException", task.exception())

    async def unwatch(self, uri: str, deadline: float) -> None:
        """Not any more."""
        if self._agreement is None or not self._agreement.modern:
            await self.request("resources/unsubscribe", {"uri": uri}, deadline, None)
        elif uri in self._watches:
            self._watches.pop(uri).cancel()


async def _ignore(context: DispatchContext[Any], method: str, params: Any) -> None:
    """Notifications have been seen in `_on_notify`, in their order."""


def _guarded(callback: Callable[..., object], *arguments: Any) -> object:
    """Call what a user gave; what it raises must not cost the connection."""
    try:
        return callback(*arguments)
    except Exception:
        logger.exception("a callback failed")
        return None
