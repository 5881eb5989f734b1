"""What the hand-written contenders stand on: a connection that joins small writes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

_FLUSH_AT = 4 * 1024  # bytes: a system call for each message costs twice as much; all in one let the peer wait idly


class Connection(asyncio.Protocol):
    """What is written in one turn of the loop leaves at its end, or when enough has gathered."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._size = 0
        self._scheduled = False
        self.opened: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Write soon."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _FLUSH_AT:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        self._scheduled = False
        if self._pieces:
            self._flush()

    def _flush(self) -> None:
        self._transport.write(b"".join(self._pieces))
        self._pieces.clear()
        self._size = 0


C = TypeVar("C", bound=Connection)


@asynccontextmanager
async def connected(url: str, make: Callable[[], C]) -> AsyncGenerator[C]:
    """A connection to a URL, once it says that it is open."""
    host, _, port = urlsplit(url).netloc.rpartition(":")
    transport, connection = await asyncio.get_running_loop().create_connection(make, host, int(port))
    await connection.opened
    yield connection
    transport.abort()
