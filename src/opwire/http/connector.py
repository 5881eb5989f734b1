"""Connections of the HTTP client, bounded where aiohttp is not: before a response, and between two of them.

Only public interfaces are used: `TCPConnector.connect`, and `set_protocol` of asyncio's transports.
"""

import asyncio
from typing import Any, cast

from opwire.errors import needs_extra

with needs_extra("openapi"):
    import aiohttp
    from aiohttp import ClientResponse
    from aiohttp.connector import Connection
    from aiohttp.http_exceptions import HttpProcessingError

MAX_HEAD_BYTES = 256 * 1024
"""Bytes before a body: headers, which go into the meta of every result, and interim responses."""

_HEAD_CHUNK_BYTES = 16 * 1024  # read in one turn of the event loop
_BODY_CHUNK_BYTES = 64 * 1024


class _BoundedReader(asyncio.BufferedProtocol):
    """Reads from one connection for aiohttp, and bounds what the server sends before and after its response.

    It takes the place of aiohttp's protocol on the transport, and passes on what it reads. Before a response, it reads
    little in each turn of the event loop: aiohttp sees the response before more of it is read. Without that limit, it
    would parse any number of interim responses. Data that nothing was requested for close the connection: aiohttp would
    parse them as responses, without a limit (550 MB in 8 s), and return them for later requests.
    """

    def __init__(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self._buffer = memoryview(bytearray(_BODY_CHUNK_BYTES))
        self._is_requested = False
        self._is_answered = False
        self._received = 0  # bytes since the request
        self._problem: Exception | None = None

    def expect_response(self, connection: Connection) -> None:
        """Allow a response until aiohttp returns the connection to its pool, or closes it."""
        self._is_requested = True
        self._is_answered = False
        self._received = 0
        connection.add_callback(self._expect_nothing)

    def expect_body(self) -> None:
        """Read faster, and any number of bytes: the response has begun."""
        self._is_answered = True

    def _expect_nothing(self) -> None:
        self._is_requested = False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self._is_answered else self._buffer[:_HEAD_CHUNK_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if not self._is_requested:
            self._transport.abort()
        elif (
            not self._is_answered and self._received > MAX_HEAD_BYTES + _HEAD_CHUNK_BYTES
        ):  # a chunk may end in the body
            self._problem = HttpProcessingError(message=f"more than {MAX_HEAD_BYTES:,} bytes of headers")
            self._transport.abort()
        else:
            self._protocol.data_received(bytes(self._buffer[:nbytes]))
            if not self._is_answered and nbytes == _HEAD_CHUNK_BYTES:  # there is more, which uvloop would read at once
                self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(self._problem or exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


class BoundedConnector(aiohttp.TCPConnector):
    """Opens and pools connections that are bounded."""

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        transport = connection.transport
        if transport is None:  # it was closed meanwhile
            return connection
        reader = transport.get_protocol()
        if not isinstance(reader, _BoundedReader):
            reader = _BoundedReader(transport, cast("asyncio.Protocol", reader))
            transport.pause_reading()  # uvloop decides how to read when reading starts
            transport.set_protocol(reader)
            transport.resume_reading()
        reader.expect_response(connection)
        return connection


def expect_body(response: ClientResponse) -> None:
    """Read the rest of a response: its headers have arrived."""
    connection = response.connection
    if connection is None or connection.transport is None:  # a small body arrived with them
        return
    reader = connection.transport.get_protocol()
    if isinstance(reader, _BoundedReader):
        reader.expect_body()
