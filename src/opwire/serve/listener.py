"""Runs a surface under uvicorn: listens, waits for a signal, and lets what runs end before it stops."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from math import ceil, inf
from typing import Any, NamedTuple, cast

import uvicorn

from opwire.auth.tokens import LogLimit
from opwire.errors import CallError, ErrorCode, check_above_zero, check_counts, check_not_below_zero
from opwire.serve.guard import App, has_no_token

_MAX_PORT = 65_535
_QUEUED = 2_048  # connections that the system keeps for us
_ACCEPTED = 16  # that asyncio accepts before it looks at any of them: 2,048 are more than there may be files
_SPARE_FILES = 64
_READ = 32 * 1024  # bytes at a time: 256 kB of chunks that have one byte each take 0.4 s to parse
_MAX_HEAD = 256 * 1024  # bytes without a request in them; uvicorn's own limit is lower, but only with h11
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Limits(NamedTuple):
    """How long a client may take, in seconds, and how many connections there are."""

    header_timeout: float
    write_timeout: float
    max_connections: int


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process, and with an event when it listens."""

    def __init__(self, config: uvicorn.Config, limits: _Limits) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self._limits = limits

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.config.http2:  # whose connections do not have one request at a time
            own = {"crowd": _Crowd(self._limits)}
            self.config.http_protocol_class = type("Limited", (_Limited, self.config.http_protocol_class), own)
        try:
            await super().startup(sockets)
        except SystemExit:  # it would end the whole loop
            raise CallError(ErrorCode.UNAVAILABLE, "the application could not start: the log says why") from None
        for each in sockets or ():  # asyncio has set it to the number that it accepts at a time
            each.listen(_QUEUED)
        self.listens.set()


class _Crowd:
    """The connections of a listener: when there are too many, those that have no request give way to new ones.

    Else a client could keep all others out by connections on which it says nothing.
    """

    def __init__(self, limits: _Limits) -> None:
        self.limits = limits
        self.all: dict[Any, None] = {}
        self.waiting: dict[Any, None] = {}  # without a request, the oldest first
        self._room = limits.max_connections
        self._max_file = _max_file()

    def enter(self, connection: Any) -> None:
        """Count a new connection, and close another one if there is no room for it; or itself if all are in use."""
        self.all[connection] = self.waiting[connection] = None
        if _file_of(connection) >= self._max_file:
            self._room = min(self._room, len(self.all) - 1)
        elif 2 * len(self.all) < self._room:
            self._room = self.limits.max_connections  # what used up the files may be gone
        while len(self.all) > max(self._room, 1):
            victim = self._victim(connection)
            self.leave(victim)
            victim.transport.abort()

    def _victim(self, new: Any) -> Any:
        oldest = next(iter(self.waiting), new)
        if oldest is not new:
            return oldest
        return next((each for each in self.all if has_no_token(each.scope or {})), new)

    def leave(self, connection: Any) -> None:
        """Forget a connection."""
        self.all.pop(connection, None)
        self.waiting.pop(connection, None)


class _Limited(asyncio.Protocol):
    """What is added to uvicorn's protocol: it waits for ever for headers, and for clients that do not read."""

    crowd: _Crowd
    cycle: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _silence: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of headers that are not complete

    def connection_made(self, transport: Any) -> None:
        with contextlib.suppress(AttributeError):  # asyncio's own transport has it
            transport.max_size = _READ
        super().connection_made(transport)
        self._watch()
        self.crowd.enter(self)

    def data_received(self, data: bytes) -> None:
        if self in self.crowd.waiting:
            self._unread += len(data)
        super().data_received(data)
        self._watch()
        if self._unread > _MAX_HEAD:
            self.transport.abort()

    def on_response_complete(self) -> None:
        cast("Any", super()).on_response_complete()
        if self in self.crowd.all and self.cycle.response_complete:  # else the next request was there already
            self.crowd.waiting[self] = None  # uvicorn itself closes it if nothing more comes

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        self._silence, self._stall = _stopped(self._silence), _stopped(self._stall)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self.crowd.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall = _stopped(self._stall)

    def _watch(self) -> None:
        """Begin or end the time that the client has for its headers."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._silence, self._unread = _stopped(self._silence), 0
            self.crowd.waiting.pop(self, None)
        elif self._silence is None:
            self._silence = self.loop.call_later(self.crowd.limits.header_timeout, self.transport.close)


def _stopped(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _file_of(connection: Any) -> int:
    """Return the number of a connection's socket. A process is given the lowest that is free."""
    found = connection.transport.get_extra_info("socket")
    return -1 if found is None else found.fileno()


def _max_file() -> float:
    """Return the number from which on files are left to the rest of the process, and to a burst of connections."""
    try:
        import resource
    except ImportError:  # Windows, where a socket is not a file
        return inf
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return inf if most == resource.RLIM_INFINITY else most - max(_SPARE_FILES, most // 8)


@contextlib.contextmanager
def _limited_log() -> Generator[None]:
    """Keep strangers from filling the log: each broken request and each connection too many writes a line."""
    filters = {
        "uvicorn.error": LogLimit(),
        "asyncio": LogLimit(
            most=logging.ERROR, start="socket.accept() out of system resource", per_second=0.1, burst=5
        ),
        "mcp.server.streamable_http_manager": LogLimit(),
    }
    for name, each in filters.items():
        logging.getLogger(name).addFilter(each)
    try:
        yield
    finally:
        for name, each in filters.items():
            logging.getLogger(name).removeFilter(each)


@contextlib.asynccontextmanager
async def listening(
    app: App,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    on_drain: Callable[[], object] | None = None,
    drain_delay: float = 0,
    drain_timeout: float = 30,
    header_timeout: float = 30,
    write_timeout: float = 60,
    max_connections: int = 4_000,
    **options: Any,
) -> AsyncGenerator[str]:
    """Listen as long as the block lasts; gives the address, `http://127.0.0.1:8000`. Port 0 is a free one.

    At the end `on_drain` is called first. Then, `drain_delay` seconds later, so that a load balancer can notice,
    nothing new is accepted, and what runs has `drain_timeout` seconds to end.

    A client whose headers take longer than `header_timeout` seconds is disconnected, and so is one that does not read
    an answer for `write_timeout` seconds. When there are `max_connections`, or the process is about to run out of files
    (`ulimit -n`), the connection that has waited longest without a request gives way to a new one; if all have
    requests, one without a token does. `options` are those of `uvicorn.Config`.

    Raises:
        CallError: UNAVAILABLE, if the address cannot be listened on, or the application does not start;
            VALIDATION_ERROR, if one of the numbers cannot be used.
    """
    check_not_below_zero(drain_delay=drain_delay, drain_timeout=drain_timeout)
    check_above_zero(header_timeout=header_timeout, write_timeout=write_timeout)
    check_counts(max_connections=max_connections)
    listener = _bind(host, port)
    settings: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False, "ws": "none"}
    settings["timeout_graceful_shutdown"] = ceil(drain_timeout)
    settings["backlog"] = _ACCEPTED
    settings.update(options)
    limits = _Limits(header_timeout, write_timeout, max_connections)
    server = _Server(uvicorn.Config(cast("Any", app), **settings), limits)
    running = asyncio.create_task(_served(server, listener))
    ready = asyncio.create_task(server.listens.wait())
    try:
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running  # it could not start, and says why
        yield _address(listener, tls=server.config.is_ssl)
    finally:
        ready.cancel()
        if on_drain is not None:
            on_drain()
        if drain_delay > 0 and not running.done():
            await asyncio.wait({running}, timeout=drain_delay)
        server.should_exit = True
        await asyncio.wait({running})
        listener.close()


async def _served(server: _Server, listener: socket.socket) -> None:
    with _limited_log():
        await server.serve(sockets=[listener])


async def run_until_signalled(app: App, host: str, port: int, **options: Any) -> None:
    """Listen until SIGINT or SIGTERM, or until the task is cancelled; see `listening`. A second signal does not wait.

    Raises:
        CallError: UNAVAILABLE, if the address cannot be listened on.
    """
    stop = asyncio.Event()
    async with listening(app, host, port, **options):
        with _signals(stop.set):
            await stop.wait()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if not 0 <= port <= _MAX_PORT:
            raise OSError(f"a port is a number up to {_MAX_PORT}")
        bound = socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except OSError as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"cannot listen on {host}:{port}: {error}") from error
    # asyncio sends without delay only over sockets that say that they are TCP's. Else each answer takes 40 ms more.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=bound.detach())


def _address(listener: socket.socket, *, tls: bool) -> str:
    host, port = listener.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():  # there, nobody may listen to signals
        yield
        return
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
