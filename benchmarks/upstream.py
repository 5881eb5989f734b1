"""What measured handlers wait for: a byte that comes back over a socket, as from a database or an API.

A handler without an `await` would favour whatever runs handlers at once, and users' handlers wait for something. All
requests of one turn of the event loop go out together, as pooled drivers send them. Only the standard library, because
the peers' environments use this file too.
"""

import asyncio
import socket
import sys
from collections import deque
from typing import Any


class _Echo(asyncio.Protocol):
    """The other side: returns every byte."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Connection(_Echo):
    """Resolves one future for each byte that comes back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._unsent = 0

    def request(self) -> asyncio.Future[None]:
        response: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(response)
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent += 1
        return response

    def _send(self) -> None:
        self._transport.write(b"." * self._unsent)
        self._unsent = 0

    def data_received(self, data: bytes) -> None:
        for _ in data:
            response = self._waiting.popleft()
            if not response.done():
                response.set_result(None)


_connections: dict[asyncio.AbstractEventLoop, asyncio.Task[_Connection]] = {}


async def round_trip() -> None:
    """Wait for the upstream once."""
    loop = asyncio.get_running_loop()
    if loop not in _connections:
        _connections[loop] = loop.create_task(_connect(loop))
    connecting = _connections[loop]
    connection = connecting.result() if connecting.done() else await asyncio.shield(connecting)
    await connection.request()


async def _connect(loop: asyncio.AbstractEventLoop) -> _Connection:
    near, far = socket.socketpair()
    # uvloop takes sockets of Unix here alone; Windows has no others than those of the Internet.
    is_unix = sys.platform != "win32" and near.family == socket.AF_UNIX
    connect: Any = loop.create_unix_connection if is_unix else loop.create_connection
    await connect(_Echo, sock=far)
    _, connection = await connect(lambda: _Connection(loop), sock=near)
    return connection


def blocking_round_trip(connection: socket.socket) -> None:
    """Wait for the upstream in a thread; `connection` is one of its own that returns every byte."""
    connection.sendall(b".")
    connection.recv(1)
