"""Sessions with one MCP server for each caller, with the credentials of that caller.

Callers never share a session, and so neither a connection, cookies nor the state that the server keeps for it: the key
of a session is the identity of the caller and its credentials. Sessions are bounded, and closed when they are idle.
"""

import asyncio
import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from opwire.adapters.mcp.servers import HTTPServer, MCPServer
from opwire.adapters.mcp.session import MCPSession
from opwire.errors import CallError, ErrorCode
from opwire.operation import Context
from opwire.tasks import spawn

if TYPE_CHECKING:
    from opwire.adapters.mcp.auth import MCPAuth

MAX_SESSIONS = 100
"""Sessions of callers with one server; the least recently used idle one is closed for another."""

IDLE_SECONDS = 300.0
"""After which a session without a request is closed."""


class CallerSessions:
    """The sessions with a server, by caller. `shared` is the one that lists the tools, with the server's own headers.

    `auth` returns the credential of a caller for the context of a call, or exchanges its token.
    """

    def __init__(
        self,
        server: HTTPServer,
        auth: "Callable[[Context], Any] | MCPAuth",
        shared: MCPSession,
        create: Callable[[MCPServer], MCPSession],
        *,
        max_sessions: int = MAX_SESSIONS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        own = {name: value for name, value in server.headers.items() if name.lower() != "authorization"}
        options = {name: value for name, value in server.options.items() if name != "auth"}
        self._server = replace(server, headers=own, options=options)
        self._auth = auth
        self._shared = shared
        self._create = create
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
            server = self._server
            if isinstance(credential, dict):
                names = {name.lower() for name in credential}
                others = {name: value for name, value in server.headers.items() if name.lower() not in names}
                server = replace(server, headers={**others, **credential})
            else:  # the caller to request tokens for
                subject = await cast("MCPAuth", auth).of_caller(credential)
                server = replace(server, options={**server.options, "auth": subject})
            if key not in self._sessions:  # another call of this caller may have created it meanwhile
                if len(self._sessions) >= self._max_sessions:
                    idle = next((other for other, session in self._sessions.items() if session.is_idle), None)
                    if idle is None:
                        taken = (
                            f"{len(self._sessions)} other callers have sessions with the MCP server {self._server.name}"
                        )
                        raise CallError(ErrorCode.RATE_LIMITED, taken, retry_after=1.0)
                    self._drop(idle)
                self._sessions[key] = self._create(server)
        session = self._sessions[key]
        if session.tools is not self._shared.tools:  # some of their arguments are sent as headers
            session.remember_tools(self._shared.tools)
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
            given = auth(context)
            return _headers(await given if inspect.isawaitable(given) else given)
        except CallError:
            raise
        except Exception as error:  # it may contain a secret
            message = f"the credentials of a caller for the MCP server {self._server.name} cannot be used"
            raise CallError(ErrorCode.EXECUTION_ERROR, message) from error

    def _close_idle(self) -> None:
        oldest = time.monotonic() - self._idle_seconds
        for key, session in tuple(self._sessions.items()):
            if self._used[key] <= oldest and session.is_idle:
                self._drop(key)
        self._timer = None
        if self._sessions:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle)

    def _drop(self, key: bytes) -> None:
        del self._used[key]
        spawn(self._sessions.pop(key).close(), self._closing)


def _headers(credential: Any) -> dict[str, str]:
    """Return the headers of a credential: a token, a complete value of Authorization, headers, or None."""
    if credential is None:
        return {}
    if isinstance(credential, str):
        return {"Authorization": credential if " " in credential else f"Bearer {credential}"}
    if not isinstance(credential, Mapping):
        raise TypeError(f"expected a token or headers, not {type(credential).__name__}")
    given = cast("Mapping[Any, Any]", credential)
    if not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise TypeError("the names and values of headers are strings")
    return dict(given)
