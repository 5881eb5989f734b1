"""`serve_mcp`: a registry as an MCP server, over stdio or as an ASGI app over streamable HTTP.

The standard input and output of the process as the streams of an MCP connection.

The SDK's own streams read in a thread that cannot be interrupted: on shutdown a server would wait for the client's next
line. Here both threads are daemons, and abandoned. Output that handlers print goes to standard error.
"""

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from io import RawIOBase
from math import ceil
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, Unpack, cast
from urllib.parse import quote

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from opwire.call import LOCAL_IDENTITY
from opwire.dispatch import Dispatcher
from opwire.errors import CallError, ErrorCode, UsageError, check_above_zero, check_counts, check_not_below_zero
from opwire.invoke import CLOSE_GRACE
from opwire.operation import Identity, Interceptor
from opwire.registry import OperationRegistry
from opwire.serve.guard import (
    ACCESS,
    EXPIRES,
    IDENTITY,
    MAX_BODY,
    GuardOptions,
    HTTPStatusError,
    Receive,
    RequestGuard,
    Scope,
    Send,
    operation_filter,
    send_problem,
)
from opwire.serve.listener import ListeningApp, ListenOptions
from opwire.serve.mcp.server import CallLimits, ImplementationInfo, RegistryServer, ServedTools
from opwire.serve.mcp.tools import MAX_OUTPUT_SCHEMA, MAX_PAGE, ToolCatalogue
from opwire.tools.names import LONGEST_MAX_NAME, MAX_NAME, SHORTEST_MAX_NAME
from opwire.typed.plain import as_dict, replace_surrogates

logger = logging.getLogger("opwire.serve")

MAX_LINE = 16 * 1024 * 1024
"""Longest message in bytes; longer ones are rejected."""


@asynccontextmanager
async def stdio_streams() -> AsyncGenerator[MessageStream]:
    """Yield the streams of a client on stdio. They end with the standard input.

    Raises:
        CallError: UNAVAILABLE, if standard input or output is closed.
    """
    with _standard_files() as (source, sink):
        async with line_streams(source, sink) as streams:
            yield streams


@asynccontextmanager
async def line_streams(source: BinaryIO, sink: RawIOBase) -> AsyncGenerator[MessageStream]:
    """Yield the streams of a connection over two files with one message per line."""
    lines, writer = _LineReader(source), _LineWriter(sink)
    async with create_client_server_memory_streams() as ((incoming, outgoing), theirs):

        async def read() -> None:
            async with outgoing:
                while line := await lines.next():
                    message = _parse(line)
                    if isinstance(message, JSONRPCError):
                        await writer.write(message)
                        continue
                    try:
                        await outgoing.send(SessionMessage(message))
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server has ended
                        return

        async def write() -> None:
            async for each in incoming:
                if isinstance(each, SessionMessage):
                    await writer.write(each.message)

        reading, writing = asyncio.create_task(read()), asyncio.create_task(write())
        try:
            try:
                yield theirs
            finally:
                await theirs[1].aclose()
                await asyncio.wait([writing], timeout=CLOSE_GRACE)  # for the last responses
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            lines.close()
            writer.close()


def _parse(line: bytes) -> JSONRPCMessage:
    """Parse the message of a line; lone surrogates, which JavaScript writes, are replaced.

    Return an error for an invalid line, with the id of the request if there is one, so that its client does not wait.
    """
    with suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    id: Any = None
    with suppress(ValueError, RecursionError):
        found: Any = json.loads(line.decode("utf-8-sig", "replace"))
        id = as_dict(found).get("id")
        return jsonrpc_message_adapter.validate_python(replace_surrogates(found), by_name=False)
    error = ErrorData(code=PARSE_ERROR, message=f"a line is one JSON-RPC message of at most {MAX_LINE:,} bytes")
    return JSONRPCError(jsonrpc="2.0", id=replace_surrogates(id) if type(id) in (int, str) else None, error=error)


class _LineReader:
    """Read the lines of a file in a thread, each on demand."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[asyncio.Future[bytes] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="opwire-stdin", daemon=True).start()

    async def next(self) -> bytes:
        """Return the next line that is not blank; b"" at the end."""
        line: asyncio.Future[bytes] = self._loop.create_future()
        self._requests.put(line)
        return await line

    def close(self) -> None:
        self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                while (line := self._source.readline(MAX_LINE)).isspace():
                    pass
                ended = not line or line.endswith(b"\n")
                while not ended:
                    more = self._source.readline(MAX_LINE)
                    ended = not more or more.endswith(b"\n")
                    line = b"too long" if more else line
            except (OSError, ValueError):  # the file was closed
                line = b""
            _resolve(self._loop, request, line)


class _LineWriter:
    """Write messages to a file in a thread, which a client that does not read may block indefinitely."""

    def __init__(self, sink: RawIOBase) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[bytes, asyncio.Future[bytes]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="opwire-stdout", daemon=True).start()

    async def write(self, message: JSONRPCMessage) -> None:
        written: asyncio.Future[bytes] = self._loop.create_future()
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        self._queue.put((line, written))
        await written

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            line, written = job
            try:
                while line:
                    line = line[self._sink.write(line) :]
            except (OSError, ValueError):
                logger.debug("standard output is closed: a message is dropped")
            _resolve(self._loop, written, b"")


def _resolve(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[bytes]", value: bytes) -> None:
    """Set the result of a future from a thread, unless it is cancelled or its loop closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(value))


@contextmanager
def _standard_files() -> Generator[tuple[BinaryIO, RawIOBase]]:
    """Yield private copies of standard input and output; meanwhile the public ones are empty and standard error.

    Raises:
        CallError: UNAVAILABLE, if the process has none.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:  # their descriptors may belong to other files by now
        raise CallError(ErrorCode.UNAVAILABLE, "standard input or output is closed; a server on stdio needs both")
    source, sink = os.dup(0), os.dup(1)
    try:
        with Path(os.devnull).open("rb") as empty:
            os.dup2(empty.fileno(), 0)
        os.dup2(2, 1)
        # Not closed: a thread may still wait on them, and their descriptors must not be reused.
        yield os.fdopen(source, "rb", closefd=False), os.fdopen(sink, "wb", buffering=0, closefd=False)
    finally:
        os.dup2(source, 0)
        os.dup2(sink, 1)


class MCPHTTPOptions(GuardOptions, total=False):
    """The options of an MCP server over HTTP, besides those of `RequestGuard`.

    `path` is the path of the server, below the one that the app is mounted at. `max_sessions` bounds concurrent
    sessions, and separately those of anonymous clients, so that these cannot displace the others. One identity has at
    most `max_sessions_per_identity`, by default half of them. When there are too many, the idle session with the oldest
    last request ends, of the same identity or of the one that has most. `session_idle` is the timeout of sessions
    without a request, in seconds.
    """

    path: str
    max_sessions: int
    max_sessions_per_identity: int | None
    session_idle: float


class MCPServeOptions(MCPHTTPOptions, ListenOptions, total=False):
    """The options of `MCPSurface.run_http`."""


def serve_mcp(
    registry: OperationRegistry,
    *,
    name: str = "opwire",
    version: str = "",
    title: str | None = None,
    instructions: str | None = None,
    stdio_identity: Identity = LOCAL_IDENTITY,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    interceptors: Iterable[Interceptor] = (),
    timeout: float | None = 30.0,
    max_items: int = 100,
    max_seconds: float = 30.0,
    max_bytes: int = 4 * 1024 * 1024,
    max_page: int = MAX_PAGE,
    max_name: int = MAX_NAME,
    max_output_schema: int = MAX_OUTPUT_SCHEMA,
    tool_envelopes: bool = False,
) -> "MCPSurface":
    """Return a registry as an MCP server: every operation is a tool.

        server = serve_mcp(registry, name="shop", version="1.0")
        asyncio.run(server.run_stdio())

    `stdio_identity` is the identity of the client on stdio. `include` and `exclude` are patterns of ids or tags that
    select the served operations. `interceptors` run around every call of this surface, the first outermost. `timeout`
    is the default of calls in seconds. Of a subscription at most `max_items` are collected in at most `max_seconds`,
    and none after `max_bytes` of JSON. A page of the list has at most `max_page` bytes, a tool name at most `max_name`
    characters, and an output schema with more than `max_output_schema` bytes is not listed. `tool_envelopes` encodes
    results and errors as ToolEnvelope V1.

    Raises:
        UsageError: an option is invalid.
    """
    check_above_zero(timeout=timeout, max_seconds=max_seconds)
    check_counts(max_items=max_items, max_bytes=max_bytes, max_page=max_page)
    check_not_below_zero(max_output_schema=max_output_schema)
    if not SHORTEST_MAX_NAME <= max_name <= LONGEST_MAX_NAME:
        raise UsageError(f"max_name is {max_name}; it is between {SHORTEST_MAX_NAME} and {LONGEST_MAX_NAME}")
    dispatcher = Dispatcher(registry, serves=operation_filter(include, exclude))
    for interceptor in interceptors:
        dispatcher.use(interceptor)
    served = ServedTools(
        dispatcher=dispatcher,
        catalogue=ToolCatalogue(dispatcher, max_name=max_name, max_output_schema=max_output_schema),
        limits=CallLimits(timeout=timeout, max_items=max_items, max_seconds=max_seconds, max_bytes=max_bytes),
        max_page=max_page,
        tool_envelopes=tool_envelopes,
    )
    info = ImplementationInfo(name=name, version=version, title=title, instructions=instructions)
    return MCPSurface(info, served, stdio_identity)


class MCPSurface:
    """A registry as an MCP server that runs when one of its methods is called; `serve_mcp` returns one."""

    def __init__(self, info: ImplementationInfo, served: ServedTools, stdio_identity: Identity) -> None:
        self._info = info
        self._served = served
        self._stdio_identity = stdio_identity

    def __repr__(self) -> str:
        return f"<MCPSurface {self._info.name!r} of {self._served.dispatcher.registry!r}>"

    def use(self, interceptor: Interceptor) -> Callable[[], None]:
        """Install an interceptor around every call of this surface; the returned function removes it."""
        return self._served.dispatcher.use(interceptor)

    def sdk_server(self) -> RegistryServer:
        """Return the SDK's server for trusted callers: for a custom transport, or for a test.

        async with mcp.Client(surface.sdk_server()) as client: ...
        """
        return RegistryServer(self._info, self._served, self._stdio_identity)

    async def run_stdio(self) -> None:
        """Serve the parent process on standard input and output until it closes them.

        Raises:
            CallError: UNAVAILABLE, if they are closed already.
        """
        server = self.sdk_server()
        async with stdio_streams() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    async def run_http(self, host: str = "127.0.0.1", port: int = 8000, **options: Unpack[MCPServeOptions]) -> None:
        """Serve over streamable HTTP at `/mcp` until SIGINT or SIGTERM, or until the task is cancelled.

        Raises:
            CallError: UNAVAILABLE, if the address cannot be used.
        """
        given = cast("dict[str, Any]", options)
        listen = cast(
            "ListenOptions", {name: given.pop(name) for name in ListenOptions.__annotations__ if name in given}
        )
        await self.asgi(**cast("MCPHTTPOptions", given)).run(host, port, **listen)

    def asgi(self, **options: Unpack[MCPHTTPOptions]) -> "MCPApp":
        """Return the server as an ASGI app, for any ASGI server or to be mounted into another app.

            app = Starlette(routes=[Mount("/", surface.asgi(authenticate=..., hosts=["tools.example"]))])

        Without `authenticate` and without `anonymous` only public operations can be called.
        """
        return MCPApp(RegistryServer(self._info, self._served), self._served.catalogue, **options)


class MCPApp(ListeningApp):
    """An ASGI app that serves MCP. It starts with its server (`lifespan`), or lazily with its first request."""

    def __init__(
        self,
        server: RegistryServer,
        catalogue: ToolCatalogue,
        *,
        path: str = "/mcp",
        max_sessions: int = 1_000,
        max_sessions_per_identity: int | None = None,
        session_idle: float = 1_800.0,
        **guard: Unpack[GuardOptions],
    ) -> None:
        check_counts(max_sessions=max_sessions, max_sessions_per_identity=max_sessions_per_identity)
        check_above_zero(session_idle=session_idle)
        self._server = server
        self._catalogue = catalogue
        self._path = path.rstrip("/") or "/"
        self._guarded = RequestGuard(self._handle, surface="mcp", **guard)
        limits = {
            "max_request_body_size": guard.get("max_body", MAX_BODY),
            "max_sessions": max_sessions,
            "session_idle_timeout": session_idle,
        }
        each = max_sessions_per_identity or ceil(max_sessions / 2)
        self._create_sessions = lambda: _SessionManagers(
            identified=_SessionManager(server, max_each=each, **limits),
            anonymous=_SessionManager(server, max_each=max_sessions, **limits),
        )
        self._sessions: _SessionManagers | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's lifespan."""
        if scope["type"] != "lifespan":
            await self._guarded(scope, receive, send)
            return
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def drain(self) -> None:
        """End the streams on which clients listen for changes: they would delay the shutdown."""
        self._server.end_streams()
        if self._sessions is not None:
            self._sessions.draining.set()

    async def close(self) -> None:
        """End every session and its calls."""
        self.drain()
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            await sessions.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run within the lifespan of an app that this one is mounted into: `async with app.running(): yield`."""
        await self._start()
        try:
            yield
        finally:
            await self.close()

    async def _start(self) -> "_SessionManagers":
        if self._sessions is None or self._sessions.task.done():  # done: it ran on another event loop
            self._sessions = self._create_sessions()
        await self._sessions.started.wait()
        return self._sessions

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        identity: Identity | None = scope[IDENTITY]
        try:
            self._check_path(scope)
            if identity is None and not self._catalogue.has_public():
                needed = CallError(ErrorCode.UNAUTHENTICATED, "a token is needed, as Authorization: Bearer")
                raise HTTPStatusError(HTTPStatus.UNAUTHORIZED, needed, (b"www-authenticate", b"Bearer"))
        except HTTPStatusError as error:
            if (entry := scope.get(ACCESS)) is not None:
                entry.failed(error.error)
            await send_problem(send, error, with_body=scope["method"] != "HEAD")
            return
        sessions = await self._start()
        manager, owner = sessions.anonymous, None
        if identity is not None:  # the SDK rejects requests of other owners to a session
            manager = sessions.identified
            owner = AuthenticatedUser(AccessToken(token="", client_id=identity.id, scopes=[]))
        scope = {**scope, "user": owner}
        is_listening = dict(scope["headers"]).get(b"mcp-method") == b"subscriptions/listen"
        if scope["method"] != "GET" and not is_listening:
            await manager.handle_request(scope, receive, send)
            return
        # The SDK ends a stream of `subscriptions/listen` with a message; one of a GET just ends.
        ends = asyncio.Event() if is_listening else sessions.draining
        stream = _ExpiringStream(receive, send, ends, scope[EXPIRES])
        await manager.handle_request(scope, stream.receive, stream.send)
        await stream.finish()

    def _check_path(self, scope: Scope) -> None:
        root: str = scope.get("root_path", "")
        path: str = scope["path"].removeprefix(root)
        is_plain = b"%" not in (scope.get("raw_path") or b"").removeprefix(root.encode())
        if path == self._path and is_plain:  # one spelling only: a proxy's rule for it cannot be evaded
            return
        wrong = CallError(ErrorCode.OPERATION_NOT_FOUND, f"unknown path; MCP is at {self._path}")
        if path.rstrip("/") != self._path.rstrip("/") or not is_plain:
            raise HTTPStatusError(HTTPStatus.NOT_FOUND, wrong)
        root = root.strip("/")
        location = quote(f"/{root}{self._path}" if root else self._path, safe="/~")
        raise HTTPStatusError(HTTPStatus.PERMANENT_REDIRECT, wrong, (b"location", location.encode()))


class _SessionManager(StreamableHTTPSessionManager):
    """The SDK's sessions, with at most `max_each` per owner; an idle session ends in favour of a new one.

    The SDK rejects new sessions when there are too many, so that one client could lock all others out for as long as
    its idle sessions last.
    """

    def __init__(self, server: RegistryServer, *, max_each: int, **options: Any) -> None:
        super().__init__(server, **options)
        self._max_each = max_each

    async def handle_request(self, scope: Any, receive: Any, send: Any) -> None:
        session = dict(scope["headers"]).get(b"mcp-session-id", b"").decode("latin-1")
        if (transport := self._server_instances.pop(session, None)) is not None:
            self._server_instances[session] = transport  # ordered by their last request
        await super().handle_request(scope, receive, send)

    def _admit_session(self, requestor: Any) -> Any:
        by_owner: dict[str | None, list[str]] = {}
        for session in self._server_instances:
            owner = self._session_owners.get(session)
            by_owner.setdefault(None if owner is None else owner["client_id"], []).append(session)
        candidates = by_owner.get(None if requestor is None else requestor["client_id"], [])
        is_full = self.max_sessions is not None and len(self._server_instances) >= self.max_sessions
        if len(candidates) < self._max_each:
            candidates = max(by_owner.values(), key=len) if is_full else []
        if candidates:  # one of these has to end
            idle = next((each for each in candidates if not self._server_instances[each]._requests_in_flight), None)  # pyright: ignore[reportPrivateUsage]
            if idle is None:
                return None
            self._session_owners.pop(idle, None)
            scope = self._server_instances.pop(idle).idle_scope
            if scope is not None:
                scope.cancel()  # as after `session_idle`
        return super()._admit_session(requestor)


class _SessionManagers:
    """The sessions of one run. One task starts and ends them, as the SDK's task groups require."""

    def __init__(self, *, identified: _SessionManager, anonymous: _SessionManager) -> None:
        self.identified = identified
        self.anonymous = anonymous
        self.started = asyncio.Event()
        self.draining = asyncio.Event()

        async def run() -> None:
            async with identified.run(), anonymous.run():
                self.started.set()
                await asyncio.Event().wait()

        self.task = asyncio.create_task(run())

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


class _ExpiringStream:
    """The channels of a stream, which the SDK ends only when its client disconnects.

    It gets a disconnect when an event is set, and when the token that opened the stream expires.
    """

    def __init__(self, receive: Receive, send: Send, ends: asyncio.Event, expires: float | None) -> None:
        self._receive = receive
        self._send = send
        self._ends = ends
        self._expires = expires
        self._is_cut = False
        self._is_open = False

    async def receive(self) -> MutableMapping[str, Any]:
        message = asyncio.ensure_future(self._receive())
        ended = asyncio.create_task(self._ends.wait())
        seconds = None if self._expires is None else max(0.0, self._expires - time.time())
        try:
            await asyncio.wait({message, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return message.result()
            self._is_cut = True
            return {"type": "http.disconnect"}
        finally:
            message.cancel()
            ended.cancel()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self._send(message)
        self._is_open = message.get("more_body", message["type"] == "http.response.start")

    async def finish(self) -> None:
        """Complete the response, unless the client has disconnected."""
        if self._is_cut and self._is_open:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
