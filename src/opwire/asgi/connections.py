"""Limits of connections, around the protocol of uvicorn, which has none.

uvicorn waits without a limit for headers, for clients that do not read, and for connections that send nothing. So
`Connection` is what uvicorn's setting `http` creates: an asyncio protocol that forwards to uvicorn's, and holds back
what uvicorn should not have yet. `TrackedApp` tells it when a request begins and ends.

Rules: only the interfaces of asyncio and httptools, and the arguments of the setting, are relied upon. Nothing is
parsed while a request waits for the one before it, or while a client does not read its response.
"""

import asyncio
import contextlib
import re
from http import HTTPStatus
from math import inf
from typing import Any, NamedTuple, cast

from opwire.asgi.problem import Send, send_problem
from opwire.asgi.request import ADMITTED, AdmittedRequest, App, Receive, Scope, has_no_token
from opwire.errors import CallError, ErrorCode, needs_extra

with needs_extra("http"):
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_UNREAD_BYTES = 256 * 1024 * 1024
"""Bytes of responses in all that clients do not read; each may take its time."""

MAX_HEAD_BYTES = 256 * 1024
"""Bytes of a head, of trailers, or of the head of a chunk."""

_MAX_PARSED_BYTES = 4 * 1024  # at once: they may be 200 requests, with 4 kB of memory each
_MAX_PARSED_BYTES_PER_TURN = 32 * 1024  # of the event loop: 256 kB of chunks of one byte take 0.4 s
_MIN_SPARE_FILES = 64
_CONNECTION = "opwire.connection"  # key of the state of an ASGI scope


class ConnectionLimits(NamedTuple):
    """The limits of `listening`; times are in seconds."""

    header_timeout: float
    write_timeout: float
    max_connections: int


class Connections:
    """The open connections. When there are too many, those without a request are closed in favour of new ones.

    Otherwise a client could lock all others out with connections on which it sends nothing.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.all: dict[Connection, None] = {}  # the oldest first, as in the others
        self.idle: dict[Connection, None] = {}  # without a request
        self.unread: dict[Connection, None] = {}  # with a response that its client does not read
        self._limit = limits.max_connections
        self._first_spare_file = _first_spare_file()

    def create(self, **options: Any) -> "Connection":
        """Create the protocol of a connection from the arguments of uvicorn's."""
        return Connection(self, options)

    def add(self, connection: "Connection", file: int) -> None:
        """Count a connection, and close another one, or itself if all others are in use, to stay within the limit."""
        self.all[connection] = self.idle[connection] = None
        if file >= self._first_spare_file:
            self._limit = min(self._limit, len(self.all) - 1)
        elif 2 * len(self.all) < self._limit:
            self._limit = self.limits.max_connections  # the files may be free again
        while len(self.all) > max(self._limit, 1):
            victim = next(iter(self.idle), connection)
            if victim is connection:
                victim = next((other for other in self.all if any(map(has_no_token, other.requests))), connection)
            self.discard(victim)
            victim.transport.abort()

    def hold_unread(self, connection: "Connection") -> None:
        """Note that a client does not read a response; disconnect the oldest such clients if they take too much memory.

        A request has ended when its response is written, and counts in no other limit. Those without a token go first.
        """
        self.unread[connection] = None
        unread_bytes = sum(connection.unread_bytes for connection in self.unread)
        while unread_bytes > MAX_UNREAD_BYTES:
            victim = next((other for other in self.unread if other.is_anonymous), next(iter(self.unread)))
            unread_bytes -= victim.unread_bytes
            del self.unread[victim]
            victim.transport.abort()

    def discard(self, connection: "Connection") -> None:
        """Forget a connection."""
        self.all.pop(connection, None)
        self.idle.pop(connection, None)
        self.unread.pop(connection, None)


def _first_spare_file() -> float:
    """Return the first file descriptor that is left to the rest of the process, and to a burst of connections.

    A process gets the lowest free descriptor, so that the highest one tells how many are in use.
    """
    try:
        import resource
    except ImportError:  # Windows, where sockets are not files
        return inf
    max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return inf if max_files == resource.RLIM_INFINITY else max_files - max(_MIN_SPARE_FILES, max_files // 8)


class TrackedApp:
    """Tell the connection of each request when it begins and ends."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or follow the server's lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection: Connection = scope["state"].pop(_CONNECTION)
        # The response to a pipelined request would be a second one in memory.
        if not await connection.wait_until_read():
            # The client is gone; uvicorn logs requests without a response.
            await send({"type": "http.response.start", "status": HTTPStatus.SERVICE_UNAVAILABLE, "headers": []})
            await send({"type": "http.response.body"})
            return
        connection.begin(scope)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the time to drain is over; uvicorn would log the traceback, and send 500
            with contextlib.suppress(RuntimeError):  # a response has begun, and is cut off
                await send_problem(send, CallError(ErrorCode.UNAVAILABLE, "the server is shutting down"))
        finally:
            connection.end(scope)


# --- one connection ---------------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """A connection that forwards to uvicorn's protocol, with timeouts for headers and for writes.

    uvicorn reads on after each response, whatever it holds: 6 MB of pipelined requests took 400 MB and all of the event
    loop.
    """

    transport: asyncio.Transport
    _joined: "JoiningTransport"

    def __init__(self, connections: Connections, options: dict[str, Any]) -> None:
        self.requests: list[Scope] = []  # in flight
        self._connections = connections
        self._parser = StrictParser(**options | {"app_state": options["app_state"] | {_CONNECTION: self}})
        self._loop = asyncio.get_running_loop()
        self._last_request: Scope = {}  # that has ended
        self._served = 0  # requests
        self._drained = asyncio.Event()  # the client has read its responses, or is gone; meaningful after a pause
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unparsed = b""
        self._head_bytes = 0  # parsed without progress
        self._is_reading_paused = False
        self._next_turn: asyncio.Handle | None = None  # in which it reads on

    # --- requests

    async def wait_until_read(self) -> bool:
        """Wait until the client has read its responses; return False if it is gone."""
        if self in self._connections.unread:
            await self._drained.wait()
        return self in self._connections.all

    def begin(self, request: Scope) -> None:
        """Note that a request is complete as far as its headers."""
        self.requests.append(request)
        self._connections.idle.pop(self, None)
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def end(self, request: Scope) -> None:
        """Note the end of a request. uvicorn closes the connection if no other follows."""
        self.requests = [other for other in self.requests if other is not request]
        self._last_request = request
        self._served += 1
        if not self.requests and self in self._connections.all:
            self._connections.idle[self] = None
        self.resume_reading()

    @property
    def is_anonymous(self) -> bool:
        """Whether its requests came without a token."""
        admitted: list[AdmittedRequest | None]
        admitted = [request.get(ADMITTED) for request in self.requests or (self._last_request,)]
        return all(request is None or request.token is None for request in admitted)

    # --- reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self.transport = cast("asyncio.Transport", transport)
        self._joined = JoiningTransport(self.transport, self)
        self._parser.connection_made(cast("asyncio.Transport", self._joined))
        self._start_header_timer()
        socket = transport.get_extra_info("socket")
        self._connections.add(self, -1 if socket is None else socket.fileno())

    def data_received(self, data: bytes) -> None:
        """Parse what arrives, at once if it is little."""
        if len(data) <= _MAX_PARSED_BYTES and not self._unparsed and not self._has_to_wait():
            self._parse(data)
            return
        self._unparsed += data
        if self._next_turn is None:
            self._read_on()

    def eof_received(self) -> bool | None:
        """Forward the end of what the client sends."""
        return self._parser.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._connections.discard(self)
        self._drained.set()
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._parser.connection_lost(exc)

    def pause_reading(self) -> None:
        """Receive no more, until `resume_reading`; idempotent."""
        if not self._is_reading_paused and not self.transport.is_closing():
            self._is_reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on in the next turn of the event loop, if reading was paused."""
        if self._is_reading_paused and self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Parse what was received, a part of it per turn of the event loop, and receive more after the last part."""
        self._next_turn = None
        if self.transport.is_closing():
            self._unparsed = b""
            return
        data = self._unparsed
        position = 0
        while position < min(len(data), _MAX_PARSED_BYTES_PER_TURN) and not self._has_to_wait():
            self._parse(data[position : position + _MAX_PARSED_BYTES])
            position += _MAX_PARSED_BYTES
        self._unparsed = data[position:]
        if self._unparsed or self._has_to_wait():
            self.pause_reading()
            if not self._has_to_wait():
                self.resume_reading()
        elif self._is_reading_paused:
            self._is_reading_paused = False
            self.transport.resume_reading()

    def _has_to_wait(self) -> bool:
        """Whether uvicorn has paused, a request waits for the response to another, or the client does not read one."""
        is_request_waiting = self._parser.heads - self._served > 1
        return self._joined.is_reading_paused or is_request_waiting or self in self._connections.unread

    def _parse(self, data: bytes) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()
            return
        if not self.requests:
            self._start_header_timer()
        self._parser.has_progressed = False
        self._parser.data_received(data)
        self._head_bytes = 0 if self._parser.has_progressed else self._head_bytes + len(data)

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self._loop.call_later(self._connections.limits.header_timeout, self.transport.close)

    # --- writing

    @property
    def unread_bytes(self) -> int:
        """The size of what is written, and not sent."""
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        """Wait for a client that does not read its response."""
        self._drained.clear()
        self._connections.hold_unread(self)
        self._parser.pause_writing()
        self._write_timer = self._loop.call_later(self._connections.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Write and read on: the client has read its response."""
        self._connections.unread.pop(self, None)
        self._drained.set()
        self._parser.resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self.resume_reading()


class JoiningTransport:
    """The transport that uvicorn's protocol gets: sends what is written in one step of the event loop at once.

    uvicorn writes the head and the body of a response one after the other, and each write is a system call: joined, a
    call of a tool takes 280 µs of CPU time instead of 330. Reading is paused and resumed by the connection.
    """

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self.is_reading_paused = False
        self._transport = transport
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._unsent: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold the first part until the second one, or until the end of this step."""
        if self._unsent is None:
            self._unsent = data
            self._loop.call_soon(self._flush)
        else:
            self._unsent += data
            self._flush()

    def close(self) -> None:
        """Send what is held, and close."""
        self._flush()
        self._transport.close()

    def pause_reading(self) -> None:
        """Read no more: much of a body is held, or another request."""
        self.is_reading_paused = True
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        """Read again, as soon as the connection can."""
        self.is_reading_paused = False
        self._connection.resume_reading()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            self._transport.write(unsent)


class StrictParser(HttpToolsProtocol):
    """uvicorn's protocol, which notes its progress, and rejects or ignores what proxies read differently.

    It overrides the callbacks that httptools documents. uvicorn answers an error in one of them with 400.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.heads = 0  # of requests that are complete
        self.has_progressed = False  # the head of a request, or a part of its body, was complete
        self._target = b""
        self._host = b""
        self._is_in_head = True

    def on_message_begin(self) -> None:
        self._target = b""
        self._host = b""
        self._is_in_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._target += url
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Proxies do not check trailers: uvicorn would add a token in one of them to the request.
        if self._is_in_head:
            if name.lower() == b"host":
                self._host = value.lower()
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.has_progressed = True
        self._is_in_head = False
        # httptools omits a fragment, and a proxy may take it for part of the path: `/a/b#` evaded its rule for `/a/b`.
        if b"#" in self._target:
            raise ValueError("a fragment in the target of a request")
        if not self._target.startswith((b"/", b"*")):
            # uvicorn ignores the host of an absolute target, which a proxy has to go by. The guard checks the header.
            host = re.split(rb"[/?]", self._target.partition(b"://")[2])[0]
            if host.lower() != self._host:
                raise ValueError("a target with another host than the header")
        super().on_headers_complete()
        self.heads += 1

    def on_body(self, body: bytes) -> None:
        self.has_progressed = True
        super().on_body(body)
