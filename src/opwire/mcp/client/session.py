"""Sessions with one MCP server, connected lazily and reconnected after a loss: one for all callers, or one for each.

The first call after a loss reconnects at once. If that fails, or the new connection is lost before its first response,
further attempts back off; calls in between fail at once, with a `retry_after`.

Callers with credentials of their own never share a session, and so neither a connection, cookies nor the state that the
server keeps for it: the key of a session is the identity of the caller and its credentials. Such sessions are bounded,
and closed when they are idle.
"""

import asyncio
import inspect
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.connection import MCPConnection, SessionLostError, load_http
from opwire.mcp.client.negotiation import MCPServerInfo
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.questions import ProgressCallback, RequestCaller
from opwire.mcp.client.servers import HTTPServer, MCPServer, StdioServer
from opwire.mcp.client.subscriptions import ResourceUpdates
from opwire.mcp.client.transport import with_output
from opwire.mcp.messages import RPCError, RPCResponse
from opwire.mcp.peer import with_meta
from opwire.mcp.revisions import REQUEST_META, ToolHeaders
from opwire.model.context import Context, Progress
from opwire.model.operation import PreparedRequest
from opwire.model.trace import trace_of
from opwire.runtime.bounded import Tally
from opwire.runtime.deadlines import back_off
from opwire.runtime.tasks import cancel_tasks, spawn
from opwire.runtime.text import get_logger

if TYPE_CHECKING:
    from opwire.mcp.client.auth import MCPAuth

logger = get_logger("opwire.mcp.client")


MAX_SESSIONS = 100
"""Sessions of callers with one server; the least recently used idle one is closed for another."""

IDLE_SECONDS = 300.0
"""After which a session without a request is closed."""

T = TypeVar("T")

_FIRST_RECONNECT_PAUSE = 0.25  # seconds after the second failure in a row; doubled each time
_LONGEST_RECONNECT_PAUSE = 30.0


class MCPSession:
    """A server and one connection to it, which all callers share unless each has credentials of its own.

    `on_notification` gets method and params of the server's notifications; `on_connected` is called after each connect,
    when requests can be made. Both are called in the order of events, and must not block.
    """

    def __init__(
        self,
        server: MCPServer,
        options: MCPOptions = MCPOptions(),  # noqa: B008 - frozen
        *,
        auth: "MCPAuth | None" = None,
        on_notification: Callable[[str, dict[str, Any]], object] = lambda method, params: None,
        on_connected: Callable[[], object] = lambda: None,
    ) -> None:
        if not isinstance(server, StdioServer):
            load_http()  # now, and not with the first call: the extra may be missing
        self._server = server
        self._options = options
        self._auth = auth
        self._notify = on_notification
        self._on_connected = on_connected
        self._discover = True  # whether `server/discover` may be sent: some servers exit when they receive it
        self._connection: MCPConnection | None = None
        self._connecting: asyncio.Task[MCPConnection] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the connection
        self._failures = 0  # in a row
        self._pause_ends = 0.0
        self._last_failure: CallError | None = None
        self._watched: Tally[str] = Tally()
        self._background: set[asyncio.Task[None]] = set()
        self._requests = 0  # in flight
        self._warned = False
        self._closed = False
        self.argument_headers: ToolHeaders = {}
        """Which arguments are sent as headers too."""
        self.updates = ResourceUpdates()
        """The updates of the resources that are watched."""
        self.info: MCPServerInfo | None = None
        """The server's self-description at the last connect."""
        self.last_output = ""
        """The last lines on stderr of a server that was not ready. Not in errors, which reach remote callers."""

    async def of(self, context: Context) -> "MCPSession":
        """Return the session for a caller: this one."""
        return self

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight, and no resource is watched."""
        return not self._requests and not self._watched

    async def start(self) -> MCPServerInfo:
        """Connect now, if not connected.

        Raises:
            CallError: UNAVAILABLE, TIMEOUT, or PROTOCOL_ERROR.
        """
        return (await self._connected(None)).info

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        *,
        deadline: float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> dict[str, Any]:
        """Return the raw result of a request of this process itself, unchecked. `deadline` is a monotonic time.

        Raises:
            CallError: as `call`.
        """
        return (await self.call(method, params, Context(deadline=deadline, on_progress=on_progress))).result

    async def preview(
        self, method: str, params: dict[str, Any], context: Context, *, reports: bool = False
    ) -> PreparedRequest:
        """Return the JSON-RPC request that `call` would send; connect first, since its form depends on the revision.

        `reports`: it requests progress reports, even without `context.on_progress`.

        Raises:
            CallError: UNAVAILABLE, TIMEOUT, PROTOCOL_ERROR.
        """
        connection = await self._connected(context.deadline)
        traced = _with_trace(params, context.metadata)
        message = connection.preview(method, traced, reports=reports or context.on_progress is not None)
        body = msgspec.json.encode(message)
        return PreparedRequest(protocol="mcp", method=method, url=self._server.name, body=body)

    async def call(
        self, method: str, params: dict[str, Any], context: Context, on_progress: ProgressCallback | None = None
    ) -> RPCResponse:
        """Return the response to a request, unchecked, with the deadline, caller and trace of a call's context.

        `on_progress` gets the raw params of progress notifications, instead of the callback of the context.

        Raises:
            CallError: the server's error, or UNAVAILABLE, TIMEOUT, PROTOCOL_ERROR.
        """
        metadata, deadline, caller = context.metadata, context.deadline, None
        if metadata:
            request_meta = metadata.get(REQUEST_META) if context.is_served else None
            if request_meta:  # of the request that this one is made for, and of no nested call
                params = {**params, "_meta": {**request_meta, **params.get("_meta", {})}}
            params = _with_trace(params, metadata)
        if on_progress is None and context.on_progress is not None:
            on_progress = progress_callback(context.on_progress)
        if context.on_question is not None or context.on_log is not None:
            owner = None if context.identity is None else context.identity.id
            caller = RequestCaller(context.on_question, context.on_log, owner)
        try:
            return await self._with_connection(
                MCPConnection.request, method, params, deadline, on_progress, caller, deadline=deadline
            )
        except CallError as error:
            if isinstance(error.__cause__, RPCError):
                error.__cause__.request_id = context.request_id
            raise

    def send_headers(self, declared: ToolHeaders) -> None:
        """Send these arguments of tools as headers too, from 2026-07-28 on."""
        self.argument_headers = declared
        if self._connection is not None:
            self._connection.argument_headers = declared

    async def watch_resource(self, uri: str) -> None:
        """Pass `notifications/resources/updated` of a resource to `on_notification`, also after a reconnect.

        Raises:
            CallError: the server does not support this, or is unreachable.
        """
        await self._connected(None)
        self._watched[uri] += 1
        if self._watched[uri] > 1:
            return
        try:
            await self._with_connection(MCPConnection.watch, uri, time.monotonic() + self._options.connect_timeout)
        except BaseException:
            self._release(uri)
            raise

    async def unwatch_resource(self, uri: str) -> None:
        """Stop watching, after as many calls as there were of `watch_resource`.

        Raises:
            CallError: the server rejected the request.
        """
        if self._release(uri) and self._connection is not None and not self._connection.lost:
            with suppress(SessionLostError):  # then the server has dropped the subscription as well
                await self._connection.unwatch(uri, time.monotonic() + self._options.connect_timeout)

    def _release(self, uri: str) -> bool:
        """Count one watch less; return whether it was the last."""
        self._watched.subtract(uri)
        return uri not in self._watched

    async def close(self) -> None:
        """Stop the server and its children, and fail pending requests; idempotent."""
        self._closed = True
        self.updates.close()
        if self._loop is not None and self._loop.is_closed():
            self._forget_connection()
        await cancel_tasks(self._connecting)
        if self._connection is not None:
            self._leave(self._connection)
        if self._background:
            await asyncio.wait(self._background)

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def _with_connection(
        self, use: Callable[..., Awaitable[T]], *arguments: Any, deadline: float | None = None
    ) -> T:
        """Use the connection; reconnect once if the server has dropped the session."""
        if self._loop is not asyncio.get_running_loop():
            self._change_loop()
        self._requests += 1
        try:
            for _ in range(2):
                connection = self._connection
                if connection is None or connection.lost or self._closed:
                    connection = await self._connected(deadline)
                try:
                    result = await use(connection, *arguments)
                    self._failures = 0
                    return result
                except SessionLostError:  # the server has not processed the request, so it can be repeated
                    if connection is self._connection:
                        self._leave(connection)
        finally:
            self._requests -= 1
        raise CallError(ErrorCode.UNAVAILABLE, f"the MCP server {self._server.name} drops its sessions at once")

    def _change_loop(self) -> None:
        """Use the running event loop from now on: the previous one has ended, and the connection with it.

        Raises:
            CallError: UNAVAILABLE, if it has not.
        """
        is_used = self._connection is not None or self._connecting is not None
        if self._loop is not None and not self._loop.is_closed() and is_used:
            message = (
                f"the MCP server {self._server.name} is connected in another event loop: make all calls in that one, "
                "or use SyncClient, which may be called from any thread"
            )
            raise CallError(ErrorCode.UNAVAILABLE, message, retryable=False)
        self._loop = asyncio.get_running_loop()
        self._forget_connection()

    def _forget_connection(self) -> None:
        """Drop what belongs to an event loop that has ended."""
        self._connection = self._connecting = None
        self._background.clear()

    async def _connected(self, deadline: float | None) -> MCPConnection:
        """Return the connection, or a new one, which all waiting callers share."""
        if self._loop is not asyncio.get_running_loop():
            self._change_loop()
        closed = f"the MCP server {self._server.name} was closed"
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, closed, retryable=False)
        if self._connection is not None:
            if not self._connection.lost:
                return self._connection
            self._failed(self._connection.failure, 1)
            self._leave(self._connection)
        if self._connecting is None:
            pause_left = self._pause_ends - time.monotonic()
            if pause_left > 0 and self._last_failure is not None:
                message = f"{self._last_failure.message}; the next attempt is in {pause_left:.1f} seconds"
                raise CallError(ErrorCode.UNAVAILABLE, message, retry_after=pause_left)
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connect_ended)
        task = self._connecting
        await asyncio.wait((task,), timeout=None if deadline is None else deadline - time.monotonic())
        if not task.done():
            message = f"the MCP server {self._server.name} was not connected before the deadline"
            raise CallError(ErrorCode.TIMEOUT, message)
        if task.cancelled():
            raise CallError(ErrorCode.UNAVAILABLE, closed, retryable=False)
        error = task.exception()
        if isinstance(error, CallError):
            raise copy(error)  # one for each waiting caller, since it will carry the caller's traceback
        return task.result()

    async def _open(self, timeout: float, *, discover: bool) -> MCPConnection:
        connection = MCPConnection(
            self._server,
            self._options,
            self._on_notification,
            discover=discover,
            auth=self._auth,
            on_ignored=self._ignored,
        )
        ends = time.monotonic() + timeout
        try:
            await connection.open(timeout)
        except CallError:
            self.last_output = connection.last_output
            if not (connection.died_in_handshake and discover and isinstance(self._server, StdioServer)):
                raise
            # Some servers exit when they receive anything before `initialize`.
            connection = await self._open(ends - time.monotonic(), discover=False)
            self._discover = False
        return connection

    def _ignored(self, line: bytes) -> None:
        if line.strip() and not self._warned:  # once: a server that prints to stdout does so all the time
            self._warned = True
            line_start = line[:200].decode("utf-8", "replace")
            logger.warning("%s writes to stdout what is not a message, for example: %r", self._server.name, line_start)

    async def _connect(self) -> MCPConnection:
        try:
            connection = await self._open(self._options.connect_timeout, discover=self._discover)
        except CallError as error:
            self._failed(error, 2)
            if self.info is not None:
                logger.warning("%s", with_output(error.message, self.last_output))
            raise
        if self.info is not None:
            logger.info("the MCP server %s is connected again", self._server.name)
        self._connection, self.info = connection, connection.info
        connection.argument_headers = self.argument_headers

        async def watch_again() -> None:
            for uri in tuple(self._watched):
                try:
                    await connection.watch(uri, time.monotonic() + self._options.connect_timeout)
                except (CallError, SessionLostError) as error:
                    logger.warning("a resource is not watched any more: %s", error)
            self.updates.missed()

        if self._watched:
            spawn(watch_again(), self._background)
        try:
            self._on_connected()
        except Exception:
            logger.exception("a callback failed")
        return connection

    def _on_notification(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/resources/updated":
            self.updates.publish(params)
        self._notify(method, params)

    def _connect_ended(self, task: asyncio.Task[MCPConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # retrieved here, in case that no caller waits any more

    def _failed(self, failure: CallError | None, least: int) -> None:
        self._failures = max(self._failures + 1, least)
        self._last_failure = failure
        if self._failures > 1:
            pause = back_off(self._failures - 1, first=_FIRST_RECONNECT_PAUSE, longest=_LONGEST_RECONNECT_PAUSE)
            self._pause_ends = time.monotonic() + pause

    def _leave(self, connection: MCPConnection) -> None:
        """Close a connection in the background: a process may take its time to exit, and only `close` waits for it."""
        self._connection = None
        spawn(connection.close(), self._background)


def _with_trace(params: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    trace = trace_of(metadata) if metadata else None
    return with_meta(params, trace) if trace else params


def progress_callback(on_progress: Callable[[Progress], object]) -> ProgressCallback:
    """Return a callback for progress notifications that passes them on as `Progress`."""

    def report(params: dict[str, Any]) -> None:
        message = params.get("message")
        text = message if isinstance(message, str) else None
        progress = Progress(params.get("progress", math.nan), params.get("total"), text).bounded()
        if progress is not None:
            on_progress(progress)

    return report


# --- sessions by caller -----------------------------------------------------------------------------------------------


class MCPSessions(Protocol):
    """The sessions with a server: one that all callers share, or one for each caller."""

    async def of(self, context: Context) -> MCPSession:
        """Return the session for the caller of a context."""
        ...


class CallerSessions:
    """The sessions with a server, by caller. `shared` is the one that lists the tools, with the server's own headers.

    `auth` returns the credential of a caller for the context of a call, or exchanges its token.
    """

    def __init__(
        self,
        server: HTTPServer,
        auth: "Callable[[Context], Any] | MCPAuth",
        shared: MCPSession,
        options: MCPOptions = MCPOptions(),  # noqa: B008 - frozen
        *,
        max_sessions: int = MAX_SESSIONS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        shared_headers = {name: value for name, value in server.headers.items() if name.lower() != "authorization"}
        self._server = replace(server, headers=shared_headers)
        self._auth = auth
        self._shared = shared
        self._options = options
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._sessions: OrderedDict[bytes, MCPSession] = OrderedDict()  # the latest used last
        self._used: dict[bytes, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    async def of(self, context: Context) -> MCPSession:
        """Return the session of a caller.

        Raises:
            CallError: UNAUTHENTICATED, if the caller has no token; RATE_LIMITED, if too many callers have sessions;
                EXECUTION_ERROR, if its credential cannot be used.
        """
        auth = self._auth
        credential = await self._headers(auth, context) if callable(auth) else auth.subject_of(context)
        proof = credential if isinstance(credential, dict) else credential.key
        key = msgspec.msgpack.encode((context.identity, proof), order="deterministic")
        if key not in self._sessions:
            server, caller_auth = self._server, None
            if isinstance(credential, dict):
                names = {name.lower() for name in credential}
                other_headers = {name: value for name, value in server.headers.items() if name.lower() not in names}
                server = replace(server, headers={**other_headers, **credential})
            else:  # the caller to request tokens for
                caller_auth = await cast("MCPAuth", auth).of_caller(credential)
            if key not in self._sessions:  # another call of this caller may have created it meanwhile
                if len(self._sessions) >= self._max_sessions:
                    idle = next((other for other, session in self._sessions.items() if session.is_idle), None)
                    if idle is None:
                        message = (
                            f"{len(self._sessions)} other callers have sessions with the MCP server {self._server.name}"
                        )
                        raise CallError(ErrorCode.RATE_LIMITED, message, retry_after=1.0)
                    self._drop(idle)
                self._sessions[key] = MCPSession(server, self._options, auth=caller_auth)
        session = self._sessions[key]
        session.send_headers(self._shared.argument_headers)
        self._sessions.move_to_end(key)
        self._used[key] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle)
        return session

    async def close(self) -> None:
        """Close all sessions; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for key in tuple(self._sessions):
            self._drop(key)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _headers(self, auth: Callable[[Context], Any], context: Context) -> dict[str, str]:
        try:
            credential = auth(context)
            return credential_headers(await credential if inspect.isawaitable(credential) else credential)
        except CallError:
            raise
        except Exception as error:  # it may contain a secret
            message = f"the credentials of a caller for the MCP server {self._server.name} cannot be used"
            raise CallError(ErrorCode.EXECUTION_ERROR, message) from error

    def _close_idle(self) -> None:
        idle_since = time.monotonic() - self._idle_seconds
        for key, session in tuple(self._sessions.items()):
            if self._used[key] <= idle_since and session.is_idle:
                self._drop(key)
        self._timer = None
        if self._sessions:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle)

    def _drop(self, key: bytes) -> None:
        del self._used[key]
        spawn(self._sessions.pop(key).close(), self._closing)


def credential_headers(credential: Any) -> dict[str, str]:
    """Return the headers of a credential: a token, a complete value of Authorization, headers, or None."""
    if credential is None:
        return {}
    if isinstance(credential, str):
        return {"Authorization": credential if " " in credential else f"Bearer {credential}"}
    if not isinstance(credential, Mapping):
        raise TypeError(f"expected a token or headers, not {type(credential).__name__}")
    headers = cast("Mapping[Any, Any]", credential)
    if not all(isinstance(text, str) for pair in headers.items() for text in pair):
        raise TypeError("the names and values of headers are strings")
    return dict(headers)
