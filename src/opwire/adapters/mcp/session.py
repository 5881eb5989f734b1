"""One MCP server as its users see it: connected when first needed, and again after it was lost.

The first call after a loss connects at once. If that fails, or the new connection is lost before it answered anything,
there is a pause, longer each time, in which calls fail at once and say how long it lasts.

Who waits for updates of which resource.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar

from opwire.adapters.mcp.connection import Connection, SessionLostError
from opwire.adapters.mcp.negotiation import ServerInfo
from opwire.adapters.mcp.servers import Callbacks, MCPServer, StdioServer
from opwire.errors import CallError, ErrorCode
from opwire.operation import Progress, trace_of

__all__ = ["MAX_MESSAGE", "ServerInfo", "Session"]

logger = logging.getLogger("opwire.mcp")

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message from a server."""

MAX_PROGRESS_MESSAGE = 2000
"""Characters of the message of a progress report; the rest is cut."""

T = TypeVar("T")

_MAX_AMOUNT = 2.0**63  # of progress, and of its total
_PAUSE, _LONGEST_PAUSE = 0.25, 30.0  # seconds after the second failure in a row; doubled each time


class Session:
    """A server, and the one connection to it that all callers share.

    `on_notification` gets method and params of what the server says by itself; `on_connected` is called after each
    connect, when requests can be made. Both are called in the order of events, and must not block.
    """

    def __init__(
        self,
        server: MCPServer,
        *,
        callbacks: Callbacks | None = None,
        connect_timeout: float = 30.0,
        on_notification: Callable[[str, dict[str, Any]], None] | None = None,
        on_connected: Callable[[], None] | None = None,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self._server = server
        self._callbacks = callbacks or Callbacks()
        self._connect_timeout = connect_timeout
        self._on_notification = on_notification or _unheard
        self._on_connected = on_connected or _unheard
        self._max_message = max_message
        self._discover = True  # whether the server may be asked which revisions it speaks: some end when they are
        self._info: ServerInfo | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._failures = 0  # in a row
        self._pause_ends = 0.0
        self._last_failure: CallError | None = None
        self._watched: Counter[str] = Counter()
        self._tools: list[Any] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def info(self) -> ServerInfo | None:
        """What the server said of itself when it was last connected."""
        return self._info

    async def start(self) -> ServerInfo:
        """Connect now, if there is no connection.

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
        on_progress_params: Callable[[dict[str, Any]], object] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The result as the server sent it, nothing checked and nothing lost.

        `deadline` is a monotonic time. `on_progress_params` gets the params of progress notifications as they are.
        `metadata` is that of the call's context, whose trace goes along.

        Raises:
            CallError: the server's error, or UNAVAILABLE, TIMEOUT, PROTOCOL_ERROR.
        """
        progress = on_progress_params if on_progress is None else _progress(on_progress, on_progress_params)
        if metadata and (trace := trace_of(metadata)):
            params = {**params, "_meta": {**params.get("_meta", {}), **trace}}
        result = await self._with_connection(lambda each: each.request(method, params, deadline, progress), deadline)
        self._failures = 0
        return result

    def remember_tools(self, tools: Iterable[Any]) -> dict[str, str]:
        """Tell of all tools, as they were listed: from 2026-07-28 on, some of their arguments travel as headers too.

        Returns the tools that the protocol tells clients to leave out, by name, each with the reason.
        """
        self._tools = list(tools)
        return {} if self._connection is None else self._connection.remember_tools(self._tools)

    async def watch_resource(self, uri: str) -> None:
        """From now on `on_notification` gets `notifications/resources/updated` for it, also after a new connect.

        Raises:
            CallError: the server does not do this, or there is no connection.
        """
        await self._connected(None)
        self._watched[uri] += 1
        if self._watched[uri] > 1:
            return
        try:
            await self._with_connection(lambda each: each.watch(uri, time.monotonic() + self._connect_timeout), None)
        except BaseException:
            self._uncount(uri)
            raise

    async def unwatch_resource(self, uri: str) -> None:
        """Not any more, once this was said as often as `watch_resource`.

        Raises:
            CallError: the server refused.
        """
        if self._uncount(uri) and self._connection is not None and not self._connection.lost:
            with suppress(SessionLostError):  # then the server has forgotten this, too
                await self._connection.unwatch(uri, time.monotonic() + self._connect_timeout)

    def _uncount(self, uri: str) -> bool:
        """One watch less; whether it was the last."""
        self._watched[uri] -= 1
        self._watched = +self._watched  # without those at zero
        return uri not in self._watched

    async def close(self) -> None:
        """Stop the server and its children, and settle what is pending; a second time does nothing."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        if self._connection is not None:
            self._leave(self._connection)
        if self._leaving:
            await asyncio.wait(self._leaving)

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def _with_connection(self, use: Callable[[Connection], Awaitable[T]], deadline: float | None) -> T:
        """What comes of using the connection; a server that has forgotten the session is connected again, once."""
        for _ in range(2):
            connection = await self._connected(deadline)
            try:
                return await use(connection)
            except SessionLostError:  # the server has not looked at the request, so it can be made again
                if connection is self._connection:
                    self._leave(connection)
        raise CallError(ErrorCode.UNAVAILABLE, f"the MCP server {self._server.name} forgets its sessions at once")

    async def _connected(self, deadline: float | None) -> Connection:
        """The connection, a new one if need be. All who wait for it wait for the same one."""
        if self._closed:
            raise CallError(ErrorCode.UNAVAILABLE, f"the MCP server {self._server.name} was closed", retryable=False)
        if self._connection is not None:
            if not self._connection.lost:
                return self._connection
            self._failed(self._connection.failure, 1)
            self._leave(self._connection)
        if self._connecting is None:
            self._refuse_in_pause()
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connect_ended)
        task = self._connecting
        await asyncio.wait((task,), timeout=None if deadline is None else deadline - time.monotonic())
        if not task.done():
            message = f"the MCP server {self._server.name} was not connected before the deadline"
            raise CallError(ErrorCode.TIMEOUT, message)
        if task.cancelled():
            raise CallError(ErrorCode.UNAVAILABLE, f"the MCP server {self._server.name} was closed", retryable=False)
        error = task.exception()
        if isinstance(error, CallError):
            raise copy(error)  # for each who waits one of his own, since it will carry his traceback
        return task.result()

    async def _connect(self) -> Connection:
        try:
            connection = await self._opened()
        except CallError as error:
            self._failed(error, 2)
            raise
        self._connection, self._info = connection, connection.info
        connection.remember_tools(self._tools)
        if self._watched:
            self._keep(asyncio.create_task(self._watch_again(connection)))
        try:
            self._on_connected()
        except Exception:
            logger.exception("a callback failed")
        return connection

    async def _opened(self) -> Connection:
        ends = time.monotonic() + self._connect_timeout
        connection = self._new_connection(discover=self._discover)
        try:
            await connection.open(self._connect_timeout)
            return connection
        except CallError:
            if not (connection.died_in_handshake and self._discover and isinstance(self._server, StdioServer)):
                raise
        # There are servers that end when anything comes before `initialize`.
        connection = self._new_connection(discover=False)
        await connection.open(ends - time.monotonic())
        self._discover = False
        return connection

    def _new_connection(self, *, discover: bool) -> Connection:
        return Connection(
            self._server,
            self._callbacks,
            max_message=self._max_message,
            on_notification=self._on_notification,
            discover=discover,
        )

    def _connect_ended(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # it was said in `_failed`, should nobody wait any more

    def _failed(self, failure: CallError | None, least: int) -> None:
        self._failures = max(self._failures + 1, least)
        self._last_failure = failure
        if self._failures > 1:
            pause = min(_PAUSE * 2 ** min(self._failures - 2, 10), _LONGEST_PAUSE)
            self._pause_ends = time.monotonic() + pause * random.uniform(0.5, 1.0)  # noqa: S311  so that not all come at once

    def _refuse_in_pause(self) -> None:
        left = self._pause_ends - time.monotonic()
        if left > 0 and self._last_failure is not None:
            raise CallError(
                ErrorCode.UNAVAILABLE,
                f"{self._last_failure.message}; the next attempt is in {left:.1f} seconds",
                retry_after=left,
            )

    async def _watch_again(self, connection: Connection) -> None:
        for uri in tuple(self._watched):
            try:
                await connection.watch(uri, time.monotonic() + self._connect_timeout)
            except (CallError, SessionLostError) as error:
                logger.warning("a resource is not watched any more: %s", error)

    # --- leaving ------------------------------------------------------------------------------------------------------

    def _leave(self, connection: Connection) -> None:
        """A process may take its time to end: nobody waits for that, except `close`."""
        self._connection = None
        self._keep(asyncio.create_task(connection.close()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _unheard(*_: Any) -> None:
    pass


def _progress(
    on_progress: Callable[[Progress], object], as_it_is: Callable[[dict[str, Any]], object] | None
) -> Callable[[dict[str, Any]], object]:
    def report(params: dict[str, Any]) -> None:
        if as_it_is is not None:
            as_it_is(params)
        progress, message = _amount(params.get("progress")), params.get("message")
        if progress is not None:
            text = message[:MAX_PROGRESS_MESSAGE] if isinstance(message, str) else None
            on_progress(Progress(progress, _amount(params.get("total")), text))

    return report


def _amount(value: Any) -> float | None:
    """Return a number that others can calculate with, or None: not NaN, an infinity, or an integer of 400 digits."""
    return value if type(value) in (int, float) and abs(value) <= _MAX_AMOUNT else None


MAX_WAITING = 1000
"""Updates of different resources that a watcher has not taken yet."""

MAX_URI = 8192
"""Characters of a resource's URI: updates of longer ones are ignored."""


class ResourceUpdates:
    """The updates that a server tells of, for whoever waits for them."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    def of(self, uri: str) -> "Watcher":
        """A watcher of a resource, which is told while its context is open."""
        return Watcher(uri, self._watchers)

    def tell(self, params: Mapping[str, Any]) -> None:
        """A resource was updated; `params` are those of the notification."""
        uri = params.get("uri")
        if isinstance(uri, str) and len(uri) <= MAX_URI:
            for each in self._watchers:
                each.tell(uri)

    def missed(self) -> None:
        """There was no connection for a while: whatever is watched may have been updated."""
        for each in self._watchers:
            each.tell(each.uri)

    def close(self) -> None:
        """There will be no more updates."""
        for each in self._watchers:
            each.end(CallError(ErrorCode.UNAVAILABLE, "the MCP server was closed", retryable=False))


class Watcher:
    """The updates that one consumer has not taken yet, each resource once."""

    def __init__(self, uri: str, among: "list[Watcher]") -> None:
        self.uri = uri
        self._under = f"{uri.rstrip('/')}/"  # the protocol lets a server name what lies under a watched resource
        self._among = among
        self._updated: dict[str, None] = {}
        self._told = asyncio.Event()
        self._end: CallError | None = None

    def __enter__(self) -> "Watcher":
        self._among.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._among.remove(self)

    def tell(self, uri: str) -> None:
        """A resource was updated."""
        if self._end is not None:
            return
        if uri != self.uri and not uri.startswith(self._under):
            return
        if uri not in self._updated and len(self._updated) >= MAX_WAITING:
            message = f"the consumer did not keep up: {MAX_WAITING} updates were waiting when the next one came"
            self.end(CallError(ErrorCode.ABORTED, message))
        self._updated[uri] = None
        self._told.set()

    def end(self, error: CallError) -> None:
        """Nothing more is told, and why; the first reason stands."""
        self._end = self._end or error
        self._told.set()

    async def next(self) -> str:
        """The URI of the next that was updated.

        Raises:
            CallError: ABORTED, if there were more than can wait; UNAVAILABLE, if the server was closed.
        """
        while not self._updated and self._end is None:
            self._told.clear()
            await self._told.wait()
        if self._end is not None:
            raise self._end
        uri = next(iter(self._updated))
        del self._updated[uri]
        return uri
