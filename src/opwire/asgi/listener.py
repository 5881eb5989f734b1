"""Run an ASGI app under uvicorn: listen, wait for a signal, drain, stop.

uvicorn waits without a limit for headers, for clients that do not read, and for connections that send nothing. The
limits are added around it: every connection is an asyncio protocol that forwards to uvicorn's, and the app is wrapped
to tell the connection when a request begins and ends.
"""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from http import HTTPStatus
from math import ceil, inf
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from opwire.asgi.problem import Send, send_problem
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope, has_no_token
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

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as UvicornProtocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as UvicornProtocol

_MAX_PORT = 65_535
_BACKLOG = 2_048  # connections in the queue of the kernel
_ACCEPTED = 16  # connections that asyncio accepts per iteration: 2,048 may be more than the limit of open files
_SPARE_FILES = 64
_READ = 32 * 1024  # bytes per turn of the loop: 256 kB of chunks of one byte, or of requests, take 0.4 s to parse
_PARSED = 4 * 1024  # bytes that are parsed at once: they may be 200 requests, with 4 kB of memory each
_MAX_UNREAD = 256 * 1024 * 1024  # bytes of responses in all that clients do not read; each may take its time
_MAX_HEAD = 256 * 1024  # bytes without progress; uvicorn's own limit is lower, but exists only with h11


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
    listener = _bind(host, port)
    connections = _Connections(header_timeout, write_timeout, max_connections)
    server = _Server(
        app,
        connections,
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
        name, number = listener.getsockname()[:2]
        yield f"http{'' if ssl is None else 's'}://{f'[{name}]' if ':' in name else name}:{number}"
    finally:
        ready.cancel()
        if on_drain is not None:
            on_drain()
        if drain_delay > 0 and not running.done():
            await asyncio.wait({running}, timeout=drain_delay)
        server.should_exit = True
        await asyncio.wait({running})
        listener.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not isinstance(port, int) or not 0 <= port <= _MAX_PORT:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"port must be a whole number from 0 to {_MAX_PORT}, not {port!r:.50}")
    try:
        bound = socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"cannot listen on {host}:{port}: {system_message(error)}") from error
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol. Without it each response takes 40 ms more.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=bound.detach())


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process, and with an event for its start."""

    def __init__(self, app: App, connections: "_Connections", ssl: SSLContext | None, **options: Any) -> None:
        async def tracked(scope: Scope, receive: Receive, send: Send) -> None:
            # Tell the connection of each request when it begins and ends.
            connection = _current.get() if scope["type"] == "http" else None
            if connection is None:
                await app(scope, receive, send)
                return
            if connection in connections.unread:  # a pipelined request: its response would be a second one in memory
                await connection.drained.wait()
                if connection not in connections.all:  # uvicorn logs requests without a response
                    await send({"type": "http.response.start", "status": HTTPStatus.SERVICE_UNAVAILABLE, "headers": []})
                    await send({"type": "http.response.body"})
                    return
            connection.begin(scope)
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:  # the time to drain is over; uvicorn would log the traceback, and send 500
                with contextlib.suppress(RuntimeError):  # a response has begun, and is cut off
                    await send_problem(send, CallError(ErrorCode.UNAVAILABLE, "the server is shutting down"))
            finally:
                connection.end(scope)

        config = uvicorn.Config(
            cast("Any", tracked),
            http=cast("Any", connections.create),
            ws="none",
            ssl_context_factory=None if ssl is None else lambda config, default: ssl,
            backlog=_ACCEPTED,
            access_log=False,
            log_config=None,
            server_header=False,
            **options,
        )
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():  # asyncio has set the backlog to `_ACCEPTED`
            each.listen(_BACKLOG)
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


# --- limits of connections --------------------------------------------------------------------------------------------

_current: ContextVar["_Connection | None"] = ContextVar("opwire_connection", default=None)


class _Connections:
    """The open connections. When there are too many, those without a request are closed in favour of new ones.

    Otherwise a client could lock all others out with connections on which it sends nothing.
    """

    def __init__(self, header_timeout: float, write_timeout: float, max_connections: int) -> None:
        self.header_timeout = header_timeout
        self.write_timeout = write_timeout
        self.all: dict[_Connection, None] = {}
        self.idle: dict[_Connection, None] = {}  # without a request, the oldest first
        self.unread: dict[_Connection, None] = {}  # with a response that its client does not read, the oldest first
        self._max = self._limit = max_connections
        self._max_file = _max_file()

    def create(self, **options: Any) -> "_Connection":
        """Create the protocol of a connection from the arguments of uvicorn's."""
        return _Connection(self, _HTTPProtocol(**options))

    def add(self, new: "_Connection", file: int) -> None:
        """Count a connection, and close another one, or itself if all others are in use, to stay within the limit."""
        self.all[new] = self.idle[new] = None
        if file >= self._max_file:
            self._limit = min(self._limit, len(self.all) - 1)
        elif 2 * len(self.all) < self._limit:
            self._limit = self._max  # the files may be free again
        while len(self.all) > max(self._limit, 1):
            victim = next(iter(self.idle), new)
            if victim is new:
                victim = next((each for each in self.all if any(map(has_no_token, each.requests))), new)
            self.discard(victim)
            victim.transport.abort()

    def hold(self, connection: "_Connection") -> None:
        """Note that a client does not read a response; disconnect the oldest such clients if they take too much memory.

        A request has ended when its response is written, and counts in no other limit. Those without a token go first.
        """
        self.unread[connection] = None
        total = sum(each.unread_bytes for each in self.unread)
        while total > _MAX_UNREAD:
            victim = next((each for each in self.unread if each.is_anonymous), next(iter(self.unread)))
            total -= victim.unread_bytes
            del self.unread[victim]
            victim.transport.abort()

    def discard(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self.all.pop(connection, None)
        self.idle.pop(connection, None)
        self.unread.pop(connection, None)


_IS_H11 = not hasattr(UvicornProtocol, "on_body")  # httptools is missing: the methods below are not called


class _HTTPProtocol(UvicornProtocol):
    """uvicorn's protocol, which notes the progress of a request, and rejects or ignores what proxies read differently.

    h11 has limits of its own, takes a fragment for a part of the path, and ignores trailers.
    """

    progressed = _IS_H11  # the head of a request, or a part of its body, was complete

    def on_headers_complete(self) -> None:
        self.progressed = True
        # httptools omits a fragment, and a proxy may take it for part of the path: `/a/b#` evaded its rule for `/a/b`.
        if b"#" in self.url:
            raise ValueError("a fragment in the target of a request")  # uvicorn answers with 400
        if not self.url.startswith((b"/", b"*")):
            # uvicorn ignores the host of an absolute target, which a proxy has to go by. The guard checks the header.
            host = re.split(rb"[/?]", self.url.partition(b"://")[2])[0]
            if host.lower() != dict(self.headers).get(b"host", b"").lower():
                raise ValueError("a target with another host than the header")
        super().on_headers_complete()
        self.headers = []  # takes the trailers, which proxies do not check: uvicorn would add a token to the request

    def on_body(self, body: bytes) -> None:
        self.progressed = True
        super().on_body(body)


class _UvicornTransport:
    """The transport of uvicorn's protocol: sends what is written in one step of the event loop at once.

    uvicorn writes the head and the body of a response one after the other, and each write is a system call: joined, a
    call of a tool takes 280 µs of CPU time instead of 330. Reading is paused and resumed by the connection.
    """

    def __init__(self, transport: asyncio.Transport, connection: "_Connection") -> None:
        self.is_paused = False
        self._transport = transport
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._held: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold the first part until the second one, or until the end of this step."""
        if self._held is None:
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._held += data
            self._flush()

    def close(self) -> None:
        """Send what is held, and close."""
        self._flush()
        self._transport.close()

    def pause_reading(self) -> None:
        """Read no more: much of a body is held, or another request."""
        self.is_paused = True
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        """Read again, as soon as the connection can."""
        self.is_paused = False
        self._connection.resume_reading()

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._transport.write(held)


class _Connection(asyncio.Protocol):
    """A connection that forwards to uvicorn's protocol, with timeouts for headers and for writes.

    uvicorn reads on after each response, whatever it holds: 6 MB of pipelined requests took 400 MB and all of the event
    loop. Here nothing is parsed while a request waits for the one before it.
    """

    transport: asyncio.Transport
    _inner_transport: _UvicornTransport

    def __init__(self, connections: _Connections, inner: _HTTPProtocol) -> None:
        self.requests: list[Scope] = []  # in flight
        self.drained = asyncio.Event()  # the client has read its responses, or is gone; meaningful after a pause
        self._last: Scope = {}  # the last request that has ended
        self._connections = connections
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unparsed = 0  # bytes of an incomplete head, of trailers, or of the head of a chunk
        self._unread = b""
        self._is_paused = False
        self._turn: asyncio.Handle | None = None  # in which it reads on

    def begin(self, request: Scope) -> None:
        """Note that a request is complete as far as its headers."""
        self.requests.append(request)
        self._connections.idle.pop(self, None)
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def end(self, request: Scope) -> None:
        """Note the end of a request. uvicorn closes the connection if no other follows."""
        self.requests = [each for each in self.requests if each is not request]
        self._last = request
        if not self.requests and self in self._connections.all:
            self._connections.idle[self] = None
        self.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        with contextlib.suppress(AttributeError):  # exists on asyncio's own transports
            cast("Any", transport).max_size = _READ
        self._inner_transport = _UvicornTransport(self.transport, self)
        self._inner.connection_made(cast("asyncio.Transport", self._inner_transport))
        self._start_header_timer()
        found = transport.get_extra_info("socket")
        self._connections.add(self, -1 if found is None else found.fileno())

    def data_received(self, data: bytes) -> None:
        if len(data) <= _PARSED and not self._unread and self not in self._connections.unread:
            self._parse(data)
            return
        self._unread += data
        if self._turn is None:
            self._read_on()

    def pause_reading(self) -> None:
        """Receive no more, until `resume_reading`; idempotent."""
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on in the next turn of the event loop, if reading was paused."""
        if self._is_paused and self._turn is None:
            self._turn = self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Parse what was received, a part of it per turn of the event loop, and receive more after the last part."""
        self._turn = None
        if self.transport.is_closing():
            self._unread = b""
            return
        until, left = len(self._unread) - _READ, self._unread
        while left and len(left) > until and not self._is_held():
            self._parse(left[:_PARSED])
            left = left[_PARSED:]
        self._unread = left
        if left or self._is_held():
            self.pause_reading()
            if not self._is_held():
                self.resume_reading()
        elif self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()

    def _is_held(self) -> bool:
        """Whether uvicorn has paused, a request waits for the response to another, or the client does not read one."""
        if self._inner_transport.is_paused or self in self._connections.unread:
            return True
        return bool(getattr(self._inner, "pipeline", ()))

    def _parse(self, data: bytes) -> None:
        if self._unparsed > _MAX_HEAD:
            self.transport.abort()
            return
        if not self.requests:
            self._start_header_timer()
        _current.set(self)  # inherited by the task of a request that begins here
        self._inner.progressed = _IS_H11
        self._inner.data_received(data)
        self._unparsed = 0 if self._inner.progressed else self._unparsed + len(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self.drained.set()
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._inner.connection_lost(exc)

    @property
    def is_anonymous(self) -> bool:
        """Whether its requests came without a token."""
        found: list[AdmittedRequest | None] = [each.get(ADMITTED) for each in self.requests or (self._last,)]
        return all(each is None or each.token is None for each in found)

    @property
    def unread_bytes(self) -> int:
        """The size of what is written, and not sent."""
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self.drained.clear()
        self._connections.hold(self)
        self._inner.pause_writing()
        self._write_timer = self._loop.call_later(self._connections.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        self._connections.unread.pop(self, None)
        self.drained.set()
        self._inner.resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self.resume_reading()

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self._loop.call_later(self._connections.header_timeout, self.transport.close)


def _max_file() -> float:
    """Return the first file descriptor that is left to the rest of the process, and to a burst of connections.

    A process gets the lowest free descriptor, so that the highest one tells how many are in use.
    """
    try:
        import resource
    except ImportError:  # Windows, where sockets are not files
        return inf
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return inf if most == resource.RLIM_INFINITY else most - max(_SPARE_FILES, most // 8)
