"""A registry over streamable HTTP, as an ASGI app.

`serve_mcp`: a registry as an MCP server.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from math import ceil
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from urllib.parse import quote

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from opwire.call import LOCAL_IDENTITY
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts
from opwire.operation import Identity, OperationSpec
from opwire.registry import OperationRegistry
from opwire.serve.guard import Door, Receive, Refusal, Scope, Send, expires_of, identity_of, send_problem
from opwire.serve.listener import run_until_signalled
from opwire.serve.mcp.server import About, Limits, RegistryServer, RequestContext, Serving
from opwire.serve.mcp.stdio import stdio_streams
from opwire.serve.mcp.tools import Catalogue

if TYPE_CHECKING:
    from opwire.auth import Authenticator


class HTTPOptions(TypedDict, total=False):
    """Who may come in over HTTP, and with how much; see `Door` for all but the last four.

    `path` is where the server answers, below the place that the app is mounted at. `max_sessions` are at the same
    time, and as many again of clients without an identity, so that these cannot take the place of the others. One
    identity has at most `max_sessions_per_identity`, half of them unless given. When there is no room for a new one,
    the idle session that was not used for the longest time ends, of the same identity or of the one that has most.
    `session_idle` is the seconds without a request after which one ends.
    """

    authenticate: "Authenticator | None"
    identity: Identity | None
    hosts: Iterable[str] | None
    origins: Iterable[str]
    max_body: int
    max_headers: int
    max_requests: int
    body_timeout: float
    path: str
    max_sessions: int
    max_sessions_per_identity: int | None
    session_idle: float


class MCPApp:
    """An ASGI app that serves MCP. It runs from the start of its server (`lifespan`), or from its first request."""

    def __init__(
        self,
        server: RegistryServer,
        catalogue: Catalogue,
        *,
        path: str = "/mcp",
        max_sessions: int = 1_000,
        max_sessions_per_identity: int | None = None,
        session_idle: float = 1_800.0,
        max_body: int = 4 * 1024 * 1024,
        **options: Any,
    ) -> None:
        check_counts(max_sessions=max_sessions, max_sessions_per_identity=max_sessions_per_identity)
        check_above_zero(session_idle=session_idle)
        self._server = server
        self._catalogue = catalogue
        self._path = path.rstrip("/")
        self._door = Door(self._enter, max_body=max_body, **options)

        def manager(max_each: int) -> _SessionManager:
            limits = {"max_request_body_size": max_body, "max_sessions": max_sessions}
            return _SessionManager(server, max_each=max_each, session_idle_timeout=session_idle, **limits)

        each = max_sessions_per_identity or ceil(max_sessions / 2)
        self._start = lambda: _Sessions(of_known=manager(each), of_nobody=manager(max_sessions))
        self._open: _Sessions | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._door(scope, receive, send)

    def drain(self) -> None:
        """End the streams on which clients listen for changes: they would hold up the server's end."""
        self._server.end_streams()
        if self._open is not None:
            self._open.draining.set()

    async def close(self) -> None:
        """End every session, and what runs in it."""
        self.drain()
        sessions, self._open = self._open, None
        if sessions is not None:
            await sessions.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """For the lifespan of an app that this one is mounted into: `async with app.running(): yield`."""
        await self._started()
        try:
            yield
        finally:
            await self.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        """The ASGI lifespan protocol."""
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _started(self) -> "_Sessions":
        if self._open is None or self._open.is_over:
            self._open = self._start()
        await self._open.started.wait()
        return self._open

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except Refusal as refusal:
            await send_problem(send, refusal, with_body=scope["method"] != "HEAD")
            return
        sessions = await self._started()
        identity = identity_of(scope)
        manager = sessions.of_nobody if identity is None else sessions.of_known
        scope = {**scope, "user": _owner(identity)}
        is_listening = dict(scope["headers"]).get(b"mcp-method") == b"subscriptions/listen"
        if scope["method"] != "GET" and not is_listening:
            await manager.handle_request(scope, receive, send)
            return
        # Who listens in the newest way is told of the end by the SDK, who listens on a GET only by its end.
        ends = asyncio.Event() if is_listening else sessions.draining
        stream = _Stream(receive, send, ends, expires_of(scope))
        await manager.handle_request(scope, stream.receive, stream.send)
        await stream.finish()

    def _check(self, scope: Scope) -> None:
        root: str = scope.get("root_path", "")
        path: str = scope["path"].removeprefix(root)
        is_plain = b"%" not in (scope.get("raw_path") or b"").removeprefix(root.encode())
        if path != (self._path or "/") or not is_plain:  # one spelling: a proxy's rule for it cannot be evaded
            where = self._path or "/"
            wrong = CallError(ErrorCode.OPERATION_NOT_FOUND, f"there is nothing here; MCP is at {where}")
            if path.rstrip("/") != self._path or not is_plain:
                raise Refusal(HTTPStatus.NOT_FOUND, wrong)
            location = quote(f"/{root.strip('/')}{where}" if root.strip("/") else where, safe="/~")
            raise Refusal(HTTPStatus.PERMANENT_REDIRECT, wrong, (b"location", location.encode()))
        if identity_of(scope) is None and not self._catalogue.has_public():
            needed = CallError(ErrorCode.UNAUTHENTICATED, "a token is needed, as Authorization: Bearer")
            raise Refusal(HTTPStatus.UNAUTHORIZED, needed, (b"www-authenticate", b"Bearer"))


class _SessionManager(StreamableHTTPSessionManager):
    """The SDK's sessions, of which an idle one gives way to a new one. `max_each` are of one owner.

    The SDK refuses new ones once there are too many, so that one client could keep all others out for as long as its
    sessions last without a request.
    """

    def __init__(self, server: RegistryServer, *, max_each: int, **options: Any) -> None:
        super().__init__(server, **options)
        self._max_each = max_each

    async def handle_request(self, scope: Any, receive: Any, send: Any) -> None:
        session = dict(scope["headers"]).get(b"mcp-session-id", b"").decode("latin-1")
        if (transport := self._server_instances.pop(session, None)) is not None:
            self._server_instances[session] = transport  # in the order of their last use
        await super().handle_request(scope, receive, send)

    def _admit_session(self, requestor: Any) -> Any:
        crowd = self._crowd(requestor)
        if crowd:
            idle = next((each for each in crowd if not self._server_instances[each]._requests_in_flight), None)  # pyright: ignore[reportPrivateUsage]
            if idle is None:
                return None
            self._session_owners.pop(idle, None)
            scope = self._server_instances.pop(idle).idle_scope
            if scope is not None:
                scope.cancel()  # as if it had been idle for too long
        return super()._admit_session(requestor)

    def _crowd(self, requestor: Any) -> list[str]:
        """Return the sessions of which one has to end before this owner may open another."""
        by_owner: dict[str | None, list[str]] = {}
        for session in self._server_instances:
            owner = self._session_owners.get(session)
            by_owner.setdefault(None if owner is None else owner["client_id"], []).append(session)
        own = by_owner.get(None if requestor is None else requestor["client_id"], [])
        if len(own) >= self._max_each:
            return own
        is_full = self.max_sessions is not None and len(self._server_instances) >= self.max_sessions
        return max(by_owner.values(), key=len) if is_full else []


class _Sessions:
    """The sessions of one run. They are started and ended by one task, as the SDK's task groups ask for."""

    def __init__(self, *, of_known: _SessionManager, of_nobody: _SessionManager) -> None:
        self.of_known = of_known
        self.of_nobody = of_nobody
        self.started = asyncio.Event()
        self.draining = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        async with self.of_known.run(), self.of_nobody.run():
            self.started.set()
            await asyncio.Event().wait()

    @property
    def is_over(self) -> bool:
        """Whether the loop that they ran on has ended."""
        return self._keeper.done()

    async def close(self) -> None:
        self._keeper.cancel()
        await asyncio.wait([self._keeper])


class _Stream:
    """The channels of a stream, which the SDK ends only when its client leaves.

    It is told so at a given event, and when the token expires that opened the stream.
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
        """End the response properly, if its client is still there."""
        if self._is_cut and self._is_open:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _owner(identity: Identity | None) -> AuthenticatedUser | None:
    """Who opens a session, in the SDK's terms: it lets nobody else into it."""
    return None if identity is None else AuthenticatedUser(AccessToken(token="", client_id=identity.id, scopes=[]))


class MCPSurface:
    """A registry as an MCP server; nothing runs until one of its methods is called. Made by `serve_mcp`."""

    def __init__(self, about: About, serving: Serving, identity: Identity) -> None:
        self._about = about
        self._serving = serving
        self._identity = identity

    def __repr__(self) -> str:
        return f"<MCPSurface {self._about.name!r} of {self._serving.registry!r}>"

    def sdk_server(self) -> RegistryServer:
        """The SDK's server for callers that are trusted: to run on a transport of one's own, or in a test.

        async with mcp.Client(surface.sdk_server()) as client: ...
        """
        return RegistryServer(self._about, self._serving, lambda _: self._identity)

    async def run_stdio(self) -> None:
        """Serve the process that started this one, on standard input and output, until it closes them.

        Raises:
            CallError: UNAVAILABLE, if they are closed already.
        """
        server = self.sdk_server()
        async with stdio_streams() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    async def run_http(self, host: str = "127.0.0.1", port: int = 8000, **options: Unpack[HTTPOptions]) -> None:
        """Serve over streamable HTTP at `/mcp`, until SIGINT or SIGTERM, or until the task is cancelled.

        Raises:
            CallError: UNAVAILABLE, if the address cannot be listened on.
        """
        app = self.asgi(**options)
        await run_until_signalled(app, host, port, on_drain=app.drain)

    def asgi(self, **options: Unpack[HTTPOptions]) -> MCPApp:
        """The server as an ASGI app, for a server of one's own or to be mounted into another app.

            app = Starlette(routes=[Mount("/", surface.asgi(authenticate=..., hosts=["tools.example"]))])

        Without `authenticate` and without `identity` only public operations can be called.
        """
        server = RegistryServer(self._about, self._serving, _sender)
        return MCPApp(server, self._serving.catalogue, **options)


def serve_mcp(
    registry: OperationRegistry,
    *,
    name: str = "opwire",
    version: str = "",
    title: str | None = None,
    instructions: str | None = None,
    identity: Identity = LOCAL_IDENTITY,
    serves: Callable[[OperationSpec], bool] | None = None,
    timeout: float | None = 30.0,
    max_items: int = 100,
    max_seconds: float = 30.0,
    max_bytes: int = 4 * 1024 * 1024,
    page_size: int = 100,
    tool_envelopes: bool = False,
) -> MCPSurface:
    """A registry as an MCP server: every operation is a tool.

        server = serve_mcp(registry, name="shop", version="1.0")
        asyncio.run(server.run_stdio())

    `identity` is who calls over stdio. `serves` picks the operations that are shown. `timeout` is in seconds, for
    operations that have none of their own. Of a subscription at most `max_items` are collected in at most
    `max_seconds`, and none after `max_bytes` of JSON. `tool_envelopes` writes results and errors as ToolEnvelope V1.

    Raises:
        CallError: VALIDATION_ERROR, if one of the numbers is not above zero.
    """
    check_above_zero(timeout=timeout, max_seconds=max_seconds)
    check_counts(max_items=max_items, max_bytes=max_bytes, page_size=page_size)
    serving = Serving(
        registry=registry,
        catalogue=Catalogue(registry, serves),
        limits=Limits(timeout=timeout, max_items=max_items, max_seconds=max_seconds, max_bytes=max_bytes),
        page_size=page_size,
        tool_envelopes=tool_envelopes,
    )
    about = About(name=name, version=version, title=title, instructions=instructions)
    return MCPSurface(about, serving, identity)


def _sender(ctx: RequestContext) -> Identity | None:
    """Who sent a request over HTTP."""
    return None if ctx.request is None else identity_of(ctx.request.scope)
