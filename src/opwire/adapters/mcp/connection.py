"""One connection to an MCP server, from the handshake to its end.

One task owns the connection: the SDK's transports and dispatcher open cancel scopes, which must be left by the task
that entered them. Each request runs in a task of its own, so that a cancelled caller returns at once while the
cancellation is still being sent to the server.

A server may send requests too, at any rate. `ServerRequests` bounds how many are open and how many it may send for each
request of the client; those above are rejected, and a server that does not read the rejections is disconnected.
"""

import asyncio
import inspect
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, NamedTuple, cast

import anyio
import anyio.abc
import msgspec
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse

from opwire.adapters.mcp.errors import ServerLog, call_error, http_failure, with_output
from opwire.adapters.mcp.http import MCPHTTPClient, sse_stream
from opwire.adapters.mcp.negotiation import (
    Agreement,
    ListenStreams,
    MCPServerInfo,
    announced_changes,
    as_text,
    negotiate,
)
from opwire.adapters.mcp.process import MessageStream, server_process
from opwire.adapters.mcp.servers import Callbacks, MCPServer, StdioServer
from opwire.deadlines import back_off
from opwire.errors import CallError, ErrorCode
from opwire.typed.plain import as_dict

logger = logging.getLogger("opwire.mcp")

MAX_OPEN_REQUESTS = 100
"""Requests of a server without a response, or with one that it has not read."""

MAX_REQUESTS = 1000
"""Requests of a server for each request of the client."""

MAX_ROUNDS = 10
"""Input-required results of one call."""

MAX_LOGS = 100
"""Log messages that a coroutine callback has not finished handling; those above are dropped."""

_PATIENCE = 5.0  # seconds for a server to read a rejection
_DISCOVERY = 10.0  # timeout of `server/discover`: some servers never respond to it
_INPUT_METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})  # may return input requests
_LEVELS = {"debug": logging.DEBUG, "warning": logging.WARNING} | dict.fromkeys(
    ("error", "critical", "alert", "emergency"), logging.ERROR
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.25  # seconds, if a server wants the call repeated without requesting input


class SessionLostError(Exception):
    """The server has dropped the session, and has not processed the request."""


class TransportStreams(NamedTuple):
    """The two streams of the SDK's dispatcher, the reason of their end, if known, and the server's last lines."""

    read: Any
    write: Any
    failure: Callable[[], CallError | None]
    last_output: Callable[[], str] = str


@asynccontextmanager
async def open_streams(server: MCPServer, max_message: int) -> AsyncGenerator[TransportStreams]:
    """Start the server or connect to it; stop or disconnect on exit.

    Raises:
        CallError: UNAVAILABLE, or PROTOCOL_ERROR. Streamable HTTP connects lazily: its first request fails.
    """
    if isinstance(server, StdioServer):
        async with server_process(server, max_message) as process:
            yield TransportStreams(process, process, lambda: process.failure, lambda: process.last_output)
        return
    if server.kind == "sse":
        async with sse_stream(server, max_message) as stream:
            yield TransportStreams(stream, stream, lambda: stream.failure)
        return
    async with (
        MCPHTTPClient(server, max_message) as client,
        streamable_http_client(server.name, http_client=client, max_sse_event_size=max_message) as (read, write),
    ):
        yield TransportStreams(read, write, lambda: None)


class ServerRequests(MessageStream):
    """The streams of a connection, with bounded server requests. Call `answered` when a callback has finished."""

    def __init__(self, streams: TransportStreams, server: str) -> None:
        self._streams = streams
        self._server = server
        self._open = 0
        self._left = MAX_REQUESTS

    def answered(self) -> None:
        """Count a finished callback; sending its response is counted separately."""
        self._open -= 1

    async def send(self, item: SessionMessage, /) -> None:
        if isinstance(item.message, JSONRPCRequest):
            self._left = MAX_REQUESTS
        if not isinstance(item.message, JSONRPCResponse | JSONRPCError):
            return await self._streams.write.send(item)
        self._open += 1
        try:
            await self._streams.write.send(item)
        finally:
            self._open -= 1

    async def receive(self) -> Any:
        while True:
            item = await self._streams.read.receive()
            message = None if isinstance(item, Exception) else item.message
            if not isinstance(message, JSONRPCRequest):
                return item
            self._left -= message.method != "ping"
            if self._open >= MAX_OPEN_REQUESTS:
                reason = f"more than {MAX_OPEN_REQUESTS} requests are open"
            elif self._left < 0:
                reason = f"more than {MAX_REQUESTS} requests came for one of the client"
            else:
                self._open += 1
                return item
            error = ErrorData(code=INVALID_REQUEST, message=f"rejected: {reason}")
            with anyio.move_on_after(_PATIENCE) as waiting:
                await self._streams.write.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.id, error=error)))
            if waiting.cancelled_caught:
                reason = f"the MCP server {self._server} asks without reading the answers; the connection is closed"
                self.failure = CallError(ErrorCode.PROTOCOL_ERROR, reason)
                raise anyio.EndOfStream


class MCPConnection:
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
        self._over = asyncio.Event()  # the connection has ended, or has to
        self._agreed = asyncio.Event()  # there is an agreement, or a failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._log = ServerLog(server.name)
        self._logs: set[asyncio.Task[Any]] = set()  # of `log` callbacks, which are in `_tasks` as well
        self._tokens = itertools.count(1)
        self._progress: dict[str, Callable[[dict[str, Any]], object]] = {}  # callbacks, by token
        self._headers: dict[str, dict[tuple[str, ...], str]] = {}  # arguments that are sent as headers, by tool
        self._listening = ListenStreams(
            lambda params, id: self._send("subscriptions/listen", params, id), self._on_notification
        )
        self._watches: dict[str, asyncio.Task[None]] = {}  # of resources, by URI
        self._is_closing = False
        self._streams_failure: Callable[[], CallError | None] = lambda: None
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
        self._owner = asyncio.create_task(self._run(timeout), name=f"opwire.mcp {self._server.name}")
        try:
            async with asyncio.timeout(timeout):
                await self._agreed.wait()
        except TimeoutError:
            name = self._server.name
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
        await asyncio.wait((self._owner,))

    def _end(self) -> None:
        self.lost = True
        self._over.set()
        self._agreed.set()

    async def _run(self, timeout: float) -> None:
        try:
            async with open_streams(self._server, self._max_message) as streams:
                requests: Any = ServerRequests(streams, self._server.name)
                self._streams_failure = lambda: streams.failure() or requests.failure
                self._dispatcher = JSONRPCDispatcher(requests, requests)
                async with anyio.create_task_group() as group:
                    await group.start(self._receive, requests, streams)
                    group.start_soon(self._handshake, min(_DISCOVERY, timeout / 2))
                    await self._over.wait()
                    group.cancel_scope.cancel()
                for task in self._tasks:  # those that wait for a callback, not for the server
                    task.cancel()
        except CallError as error:
            self.failure = self.failure or error
        except Exception as error:  # from a transport of the SDK
            logger.exception("the connection to the MCP server %s broke", self._server.name)
            self.failure = self.failure or self._reason()
            self.failure.__cause__ = error
        finally:
            self._end()

    async def _receive(
        self,
        requests: ServerRequests,
        streams: TransportStreams,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        async def on_request(context: DispatchContext[Any], method: str, params: Any) -> dict[str, Any]:
            try:
                return await self._callbacks.answer(method, params)
            finally:
                requests.answered()

        async def ignore(context: DispatchContext[Any], method: str, params: Any) -> None:
            """Ignore notifications: `_on_notify` has handled them, in their order."""

        try:
            await self._dispatcher.run(on_request, ignore, self._on_notify, task_status=task_status)
        finally:  # nothing is received any more; stopping the server may still take a while
            self.failure = self.failure or self._reason()
            self.last_output = streams.last_output()
            if self._agreement is not None and not self._is_closing:
                logger.warning("%s", with_output(self.failure.message, self.last_output))
            self._end()

    async def _handshake(self, patience: float) -> None:
        try:
            agreement = await negotiate(self._dispatcher, self._callbacks, discover=self._discover, patience=patience)
        except (MCPError, CallError) as error:
            self.died_in_handshake = self._streams_failure() is not None
            mapped = error if isinstance(error, CallError) else self._mapped(error, "the handshake")
            self.failure = self.failure or (mapped if isinstance(mapped, CallError) else self._reason())
            self._end()
            return
        self._agreement = agreement
        self._agreed.set()
        wanted = announced_changes(agreement.info.capabilities)
        if not (agreement.modern and wanted):
            return

        async def follow_changes() -> None:
            try:
                await self._listening.run(wanted, lambda: None)
            except CallError as error:
                if not self.lost:
                    logger.warning("changes of the MCP server %s are not reported: %s", self._server.name, error)

        self._spawn(follow_changes())

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

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        deadline: float | None,
        on_progress: Callable[[dict[str, Any]], object] | None,
    ) -> dict[str, Any]:
        """Return the raw result. A cancelled caller returns at once, and the server is notified.

        Raises:
            CallError: the server's error, TIMEOUT, or the reason of the connection's end.
            SessionLostError: a new connection is needed.
        """
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise CallError(ErrorCode.TIMEOUT, f"the deadline had passed before {method} was sent")
        token, params = self._with_token(params, on_progress)
        if on_progress is not None:
            self._progress[token] = on_progress
        task = self._spawn(self._exchange(method, params))
        try:
            await asyncio.wait((task,), timeout=left)
        finally:
            self._progress.pop(token, None)
            late = not task.done() and task.cancel()
        if late:
            message = f"the MCP server {self._server.name} did not answer {method} before the deadline"
            raise CallError(ErrorCode.TIMEOUT, message)
        if task.cancelled():
            raise self._reason()
        return task.result()

    def preview(self, method: str, params: dict[str, Any], on_progress: object) -> dict[str, Any]:
        """Return the message that `request` would send first; its id is an example.

        Raises:
            CallError: the reason of the connection's end.
        """
        _, params = self._with_token(params, on_progress)
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": self._prepared(method, params)[0]}

    def _with_token(self, params: dict[str, Any], on_progress: object) -> tuple[str, dict[str, Any]]:
        token = str(next(self._tokens))
        if on_progress is None:
            return token, params
        return token, {**params, "_meta": {**(params.get("_meta") or {}), "progressToken": int(token)}}

    def _prepared(self, method: str, params: dict[str, Any]) -> tuple[dict[str, Any], CallOptions]:
        if self._agreement is None or self.lost:
            raise self._reason()
        headers: Mapping[str, str] = {}
        if method == "tools/call" and self._headers:
            headers = mcp_param_headers(self._headers.get(params.get("name", ""), {}), params.get("arguments") or {})
        return self._agreement.prepare(method, params, headers)

    async def _exchange(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and repeat it with the input that the server requests."""
        result = await self._send(method, params)
        for attempt in range(1, MAX_ROUNDS + 1):
            if method not in _INPUT_METHODS or result.get("resultType") != "input_required":
                return result
            more: dict[str, Any] = {}
            if result.get("inputRequests"):
                prefix = f"the MCP server {self._server.name} answered {method} with questions"
                more["inputResponses"] = await self._callbacks.answer_all(result["inputRequests"], prefix)
            else:
                await asyncio.sleep(back_off(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
            if "requestState" in result:
                more["requestState"] = result["requestState"]
            result = await self._send(method, {**params, **more})
        message = f"the MCP server {self._server.name} answered {method} with questions {MAX_ROUNDS} times"
        raise CallError(ErrorCode.PROTOCOL_ERROR, message)

    async def _send(self, method: str, params: dict[str, Any], id: str | None = None) -> dict[str, Any]:
        prepared, options = self._prepared(method, params)
        if id is not None:
            options["request_id"] = id
        try:
            msgspec.json.encode(prepared)  # over HTTP, an encoding error would end the connection
            return await self._dispatcher.send_raw_request(method, prepared, options)
        except MCPError as error:
            raise self._mapped(error, method) from error
        except (TypeError, ValueError, RecursionError) as error:
            message = f"the input for the MCP server {self._server.name} has no JSON form: {error}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message) from error

    def _mapped(self, error: MCPError, method: str) -> CallError | SessionLostError:
        if error.code == CONNECTION_CLOSED and (self.lost or error.message == "Connection closed"):
            self._end()  # the dispatcher fails requests before `run` returns, and the next call must not be sent here
            return self._reason()
        http = http_failure(error)
        if http is not None and http.lost:
            return SessionLostError()
        return call_error(error, self._server.name, method)

    def _reason(self) -> CallError:
        """Return the reason of the end: a copy for each caller, since it will carry the caller's traceback."""
        known = self.failure or self._streams_failure()
        if known is not None:
            return copy(known)
        return CallError(ErrorCode.UNAVAILABLE, f"the connection to the MCP server {self._server.name} is closed")

    def remember_tools(self, tools: Iterable[Any]) -> dict[str, str]:
        """Store which arguments are sent as headers too, from 2026-07-28 on; return tools with invalid headers."""
        self._headers = {}
        invalid: dict[str, str] = {}
        for tool in map(as_dict, tools if self._agreement is not None and self._agreement.modern else ()):
            name, schema = as_text(tool.get("name")), tool.get("inputSchema")
            reason = find_invalid_x_mcp_header(schema)
            if reason is None:
                self._headers[name] = x_mcp_header_map(schema)
            else:
                invalid[name] = reason
        return invalid

    # --- notifications ------------------------------------------------------------------------------------------------

    def _on_notify(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Handle a notification, in the order of arrival; True: the dispatcher does not have to."""
        given = dict(params or {})
        match method:
            case "notifications/progress":
                callback = self._progress.get(str(given.get("progressToken")))  # some servers return it as a string
                if callback is not None:
                    _guarded(callback, given)
            case "notifications/subscriptions/acknowledged":
                self._listening.acknowledge(given)
            case "notifications/cancelled":  # the dispatcher handles cancelled requests of the server
                self._listening.end(given)
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
            self._log.write(logging.WARNING, "a log message is dropped: the log callback does not keep up")
            return
        written = _guarded(self._callbacks.log, params)
        if inspect.iscoroutine(written):
            task = self._spawn(written)
            self._logs.add(task)
            task.add_done_callback(self._logs.discard)

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
            message = f"the MCP server {self._server.name} did not acknowledge in time that a resource is watched"
            raise CallError(ErrorCode.TIMEOUT, message) from None
        if task.done():
            raise self._reason() if task.cancelled() else cast("BaseException", task.exception())

    async def unwatch(self, uri: str, deadline: float) -> None:
        """Unsubscribe from updates of a resource."""
        if self._agreement is None or not self._agreement.modern:
            await self.request("resources/unsubscribe", {"uri": uri}, deadline, None)
        elif uri in self._watches:
            self._watches.pop(uri).cancel()


def _guarded(callback: Callable[..., object], *arguments: Any) -> object:
    """Call a user's callback; log what it raises, which must not end the connection."""
    try:
        return callback(*arguments)
    except Exception:
        logger.exception("a callback failed")
        return None
