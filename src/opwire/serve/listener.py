"""Runs a surface under uvicorn: listens, waits for a signal, and lets what runs end before it stops."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from math import ceil
from typing import Any, cast

import uvicorn

from opwire.errors import CallError, ErrorCode
from opwire.serve.door import App

_MAX_PORT = 65_535
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process, and with a word when it listens."""

    def __init__(self, config: uvicorn.Config, header_timeout: float) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self._header_timeout = header_timeout

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.config.http2:  # whose connections do not have one request at a time
            self.config.http_protocol_class = _impatient(self.config.http_protocol_class, self._header_timeout)
        try:
            await super().startup(sockets)
        except SystemExit:  # it would end the whole loop
            raise CallError(ErrorCode.UNAVAILABLE, "the application could not start: the log says why") from None
        self.listens.set()


def _impatient(protocol: Any, seconds: float) -> Any:
    """uvicorn's protocol, with an end to its waiting: it lets a client take for ever to send the headers."""

    class Impatient(protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            protocol.connection_made(self, transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            protocol.data_received(self, data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            protocol.connection_lost(self, exc)

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:  # there is a request
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Impatient


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
    **options: Any,
) -> AsyncGenerator[str]:
    """Listen as long as the block lasts; gives the address, `http://127.0.0.1:8000`. Port 0 is a free one.

    At the end `on_drain` is told first. Then, `drain_delay` seconds later, so that a load balancer can notice, nothing
    new is accepted, and what runs has `drain_timeout` seconds to end. A client whose headers take longer than
    `header_timeout` seconds is disconnected. `options` are those of `uvicorn.Config`.

    Raises:
        CallError: UNAVAILABLE, if the address cannot be listened on, or the application does not start.
    """
    listener = _bind(host, port)
    settings: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False, "ws": "none"}
    settings["timeout_graceful_shutdown"] = ceil(drain_timeout)
    settings.update(options)
    server = _Server(uvicorn.Config(cast("Any", app), **settings), header_timeout)
    running = asyncio.create_task(server.serve(sockets=[listener]))
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
