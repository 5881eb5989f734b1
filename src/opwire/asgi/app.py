"""The base of surfaces over HTTP: ASGI apps with routes of their own that can listen without another server."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

from opwire.asgi.listener import ListenOptions, listening
from opwire.asgi.problem import Send
from opwire.asgi.request import App, Receive, Scope
from opwire.errors import needs_extra
from opwire.runtime.signals import stop_signals

with needs_extra("http"):
    from starlette.routing import BaseRoute, Router


class ListeningApp(ABC):
    """Base of ASGI apps that can listen without a server of the application.

    Requests go to the first of `routes` that matches, or else to `default`, which is behind a guard.
    """

    def __init__(self, default: App, routes: Sequence[BaseRoute] = ()) -> None:
        self._router = Router(routes, False, default, lambda app: self.running())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's lifespan."""
        await self._router(scope, receive, send)

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
