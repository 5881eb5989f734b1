"""What surfaces over HTTP are made of: routes for Starlette's `Router`, and ASGI apps that can listen by themselves.

The routes accept one spelling of a path. With several, a proxy's rule for one of them could be evaded by another. So
nothing that is percent-encoded matches, and a slash too many is another path.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack
from urllib.parse import quote

from opwire.asgi.listener import ListenOptions, listening
from opwire.asgi.problem import Send
from opwire.asgi.request import UPGRADE, App, Receive, Scope
from opwire.errors import needs_extra
from opwire.runtime.signals import stop_signals

with needs_extra("http"):
    from starlette.routing import BaseRoute, Match, Router

PARENT_ROOT = "opwire.parent_root"
"""Key of the ASGI scope of a mounted app: the root path of the app that it is mounted into."""

_NO_MATCH: tuple[Match, Scope] = (Match.NONE, {})


class ListeningApp(ABC):
    """Base of ASGI apps that can listen without a server of the application.

    Requests go to the first of `routes` that matches, or else to `default`, which is behind a guard.
    """

    def __init__(self, default: App, routes: Sequence[BaseRoute] = ()) -> None:
        self._router = Router(routes, False, default, lambda app: self.running())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's lifespan."""
        await self._router(scope, receive, closing_upgrade(scope, send))

    @abstractmethod
    def drain(self) -> None:
        """Prepare for shutdown: end streams, and let calls in flight complete."""

    async def close(self) -> None:
        """End what is left at the end of the server's lifespan."""
        self.drain()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run within the lifespan of an app that this one is mounted into: `async with app.running(): yield`."""
        try:
            yield
        finally:
            await self.close()

    async def run(self, host: str = "127.0.0.1", port: int = 8000, **options: Unpack[ListenOptions]) -> None:
        """Listen until SIGINT or SIGTERM, or until the task is cancelled, then drain; see `listening` for the options.

        A second signal does not drain.

        Raises:
            CallError: UNAVAILABLE, if the address cannot be used.
        """
        async with self.listening(host, port, **options):
            with stop_signals() as stop:
                await stop.wait()

    def listening(
        self, host: str = "127.0.0.1", port: int = 0, **options: Unpack[ListenOptions]
    ) -> AbstractAsyncContextManager[str]:
        """Listen for the duration of the block, and yield the address. Port 0 selects a free port.

        async with app.listening() as address: ...
        """
        return listening(self, host, port, on_drain=self.drain, **options)


def closing_upgrade(scope: Scope, send: Send) -> Send:
    """Return `send`; for a request that asks for another protocol, with a response that ends the connection.

    httptools reads no body of such a request, and would take it for the next one: request smuggling behind a proxy that
    passes `Upgrade` on, as those do that are configured for WebSockets.
    """
    if all(name != UPGRADE for name, _ in scope.get("headers", ())):
        return send

    async def send_and_close(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [line for line in message["headers"] if line[0] != b"connection"]
            message["headers"] = [*headers, (b"connection", b"close")]
        await send(message)

    return send_and_close


# --- routes -----------------------------------------------------------------------------------------------------------


class ExactRoute(BaseRoute):
    """One path, with all of its methods."""

    def __init__(self, path: str, app: App) -> None:
        self.path = path
        self.app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        return (Match.FULL, {}) if path_in_app(scope) == self.path and is_plain(scope) else _NO_MATCH

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        await self.app(scope, receive, send)


class PrefixRoute(ExactRoute):
    """All paths below one. What follows it may be encoded, and is for the app to decide about."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        path, start = path_in_app(scope), f"{self.path}/"
        is_below = path.startswith(start) and path != start
        return (Match.FULL, {}) if is_below and is_spelled(scope, self.path) else _NO_MATCH


class AppMount(ExactRoute):
    """An app with paths of its own below one path, which itself is for the app, too."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        path, root = path_in_app(scope), scope.get("root_path", "")
        is_inside = path == self.path or path.startswith(f"{self.path}/")
        if not is_inside or not is_spelled(scope, self.path):
            return _NO_MATCH
        return Match.FULL, {"root_path": root + self.path, PARENT_ROOT: root}


def path_in_app(scope: Scope) -> str:
    """Return the path of a request below the one that its app is mounted at; the latter without a slash as it is."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def is_plain(scope: Scope) -> bool:
    """Return whether the path of a request came without percent-encoding, as that of the mounted app needs it.

    %61 is an `a` to us, and may not be to a proxy: its rules for a path could be evaded.
    """
    raw: bytes = scope.get("raw_path") or b""
    return b"%" not in raw or b"%" not in raw.removeprefix(quote(scope.get("root_path", "")).encode())


def is_spelled(scope: Scope, path: str) -> bool:
    """Return whether the path of a request, which begins with this one, came without percent-encoding so far."""
    raw: bytes = scope.get("raw_path") or b""
    sent = raw.removeprefix(quote(scope.get("root_path", "")).encode())
    return b"%" not in raw or sent.startswith(path.encode() + b"/")
