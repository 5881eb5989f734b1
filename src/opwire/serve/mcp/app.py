"""A registry over streamable HTTP, as an ASGI app."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, MutableMapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypedDict

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity
from opwire.serve.door import Door, Receive, Scope, expires_of, identity_of
from opwire.serve.mcp.server import RegistryServer
from opwire.serve.mcp.tools import Catalogue
from opwire.serve.problem import Refusal, Send, send_problem

if TYPE_CHECKING:
    from opwire.auth import Authenticator


class HTTPOptions(TypedDict, total=False):
    """Who may come in over HTTP, and with how much; see `Door` for all but the last three.

    `path` is where the server answers, below the place that the app is mounted at. `max_sessions` are at the same
    time, and as many again of clients without an identity, so that these cannot take the place of the others.
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
        session_idle: float = 1_800.0,
        max_body: int = 4 * 1024 * 1024,
        **options: Any,
    ) -> None:
        self._server = server
        self._catalogue = catalogue
        self._path = path.rstrip("/")
        self._door = Door(self._enter, max_body=max_body, **options)
        self._manager = lambda: StreamableHTTPSessionManager(
            server, max_request_body_size=max_body, max_sessions=max_sessions, session_idle_timeout=session_idle
        )
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
            self._open = _Sessions(self._manager(), self._manager())
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
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if path != self._path:
            wrong = CallError(ErrorCode.OPERATION_NOT_FOUND, f"there is nothing here; MCP is at {self._path or '/'}")
            raise Refusal(HTTPStatus.NOT_FOUND, wrong)
        if identity_of(scope) is None and not self._catalogue.has_public():
            needed = CallError(ErrorCode.UNAUTHENTICATED, "a token is needed, as Authorization: Bearer")
            raise Refusal(HTTPStatus.UNAUTHORIZED, needed, (b"www-authenticate", b"Bearer"))


class _Sessions:
    """The sessions of one run. They are started and ended by one task, as the SDK's task groups ask for."""

    def __init__(self, of_known: StreamableHTTPSessionManager, of_nobody: StreamableHTTPSessionManager) -> None:
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
