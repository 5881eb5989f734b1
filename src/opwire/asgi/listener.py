"""Run an ASGI app under uvicorn: listen, wait for a signal, drain, stop."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from math import ceil
from ssl import SSLContext
from typing import Any, Literal, TypedDict, cast

from opwire.asgi.connections import ConnectionLimits, Connections, TrackedApp
from opwire.asgi.request import App
from opwire.errors import (
    CallError,
    ErrorCode,
    UsageError,
    check_above_zero,
    check_counts,
    check_not_below_zero,
    needs_extra,
    system_message,
)
from opwire.runtime.limits import LogLimit

with needs_extra("http"):
    import uvicorn

_MAX_PORT = 65_535
_MAX_QUEUED_CONNECTIONS = 2_048  # in the kernel
_MAX_ACCEPTED_PER_TURN = 16  # of the event loop: 2,048 connections may be more than the limit of open files


class ListenOptions(TypedDict, total=False):
    """The options of `listening`."""

    ssl: SSLContext | None
    drain_delay: float
    drain_timeout: float
    header_timeout: float
    keep_alive: float
    write_timeout: float
    max_connections: int
    lifespan: Literal["auto", "on", "off"]


@contextlib.asynccontextmanager
async def listening(
    app: App,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    on_drain: Callable[[], object] | None = None,
    ssl: SSLContext | None = None,
    drain_delay: float = 0,
    drain_timeout: float = 30,
    header_timeout: float = 30,
    keep_alive: float = 5,
    write_timeout: float = 60,
    max_connections: int = 4_000,
    lifespan: Literal["auto", "on", "off"] = "auto",
) -> AsyncGenerator[str]:
    """Listen for the duration of the block, and yield the address: `http://127.0.0.1:8000`. Port 0 selects a free port.

    At the end `on_drain` is called. After `drain_delay` seconds, in which a load balancer can notice, new connections
    are no longer accepted, and requests in flight have `drain_timeout` seconds to complete.

    A client is disconnected if its headers take longer than `header_timeout` seconds, if it sends no further request
    for `keep_alive` seconds, or if it does not read a response for `write_timeout` seconds. With `max_connections`
    open, or when the process is about to run out of files (`ulimit -n`), a new connection replaces the one that has
    been without a request for longest; if all have requests, one without a token.

    Raises:
        CallError: UNAVAILABLE, if the address cannot be used, or the app fails to start.
        UsageError: an option is invalid.
    """
    check_not_below_zero(drain_delay=drain_delay, drain_timeout=drain_timeout)
    check_above_zero(header_timeout=header_timeout, keep_alive=keep_alive, write_timeout=write_timeout)
    check_counts(max_connections=max_connections)
    listener = bind(host, port)
    server = Server(
        app,
        ConnectionLimits(header_timeout, write_timeout, max_connections),
        ssl,
        lifespan=lifespan,
        timeout_keep_alive=cast("int", keep_alive),
        timeout_graceful_shutdown=ceil(drain_timeout),
    )
    running = asyncio.create_task(server.serve_limited(listener))
    ready = asyncio.create_task(server.listening.wait())
    try:
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running  # raises why it could not start
        address, bound_port = listener.getsockname()[:2]
        yield f"http{'' if ssl is None else 's'}://{f'[{address}]' if ':' in address else address}:{bound_port}"
    finally:
        ready.cancel()
        if on_drain is not None:
            on_drain()
        if drain_delay > 0 and not running.done():
            await asyncio.wait({running}, timeout=drain_delay)
        server.should_exit = True
        await asyncio.wait({running})
        listener.close()


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        CallError: UNAVAILABLE, if the address cannot be used.
        UsageError: the port is not a number of one.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not isinstance(port, int) or not 0 <= port <= _MAX_PORT:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"port must be a whole number from 0 to {_MAX_PORT}, not {port!r:.50}")
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=_MAX_QUEUED_CONNECTIONS)
    except OSError as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"cannot listen on {host}:{port}: {system_message(error)}") from error
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol. Without it each response takes 40 ms more.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())


class Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process, and with an event for its start."""

    def __init__(self, app: App, limits: ConnectionLimits, ssl: SSLContext | None, **options: Any) -> None:
        config = uvicorn.Config(
            cast("Any", TrackedApp(app)),
            http=cast("Any", Connections(limits).create),
            ws="none",
            ssl_context_factory=None if ssl is None else lambda config, default: ssl,
            backlog=_MAX_ACCEPTED_PER_TURN,
            access_log=False,
            log_config=None,
            server_header=False,
            **options,
        )
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the application."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell that it has."""
        await super().startup(sockets)
        for listener in sockets or ():  # asyncio has set the backlog to `_MAX_ACCEPTED_PER_TURN`
            listener.listen(_MAX_QUEUED_CONNECTIONS)
        self.listening.set()

    async def serve_limited(self, listener: socket.socket) -> None:
        """Serve, and limit the log: every invalid request and every connection too many writes a line."""
        accepting = "socket.accept() out of system resource"
        filters = {
            "uvicorn.error": LogLimit(),
            "mcp.server.streamable_http_manager": LogLimit(),
            "asyncio": LogLimit(most=logging.ERROR, start=accepting, per_second=0.1, burst=5),
        }
        for name, limit in filters.items():
            logging.getLogger(name).addFilter(limit)
        try:
            await self.serve(sockets=[listener])
        except SystemExit:  # would end the event loop
            raise CallError(ErrorCode.UNAVAILABLE, "the app failed to start: see the log") from None
        finally:
            for name, limit in filters.items():
                logging.getLogger(name).removeFilter(limit)
