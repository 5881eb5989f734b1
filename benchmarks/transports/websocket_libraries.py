"""Four WebSocket libraries, alike: one function that listens, one that connects.

Both are given what is to be done with a message, which also gets a way to answer. A way to send may give something to
wait for. All send text frames without compression.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import picows  # pyright: ignore[reportMissingImports] - in the environment of the benchmarks alone
from aiohttp import web
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.http11 import Request as Handshake
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from benchmarks.transports.connection import Connection, connected

Send = Callable[[bytes], Awaitable[None] | None]
Arrived = Callable[[bytes, Send], Awaitable[None] | None]

HOST = "127.0.0.1"


class Library(NamedTuple):
    """A way to use a library: its name begins with the library's."""

    name: str
    library: str
    listen: Callable[[Arrived], AbstractAsyncContextManager[str]]
    connect: Callable[[str, Arrived], AbstractAsyncContextManager[Send]]


def _url(sockets: Any) -> str:
    return f"ws://{HOST}:{sockets[0].getsockname()[1]}/"


# --- websockets, as its documentation shows it ------------------------------------------------------------------------


async def _read(connection: Any, arrived: Arrived) -> None:
    send = lambda message: connection.send(message, text=True)  # noqa: E731
    while True:
        waiting = arrived(await connection.recv(decode=False), send)
        if waiting is not None:
            await waiting


@asynccontextmanager
async def _websockets_listen(arrived: Arrived) -> AsyncGenerator[str]:
    async with serve(lambda connection: _read(connection, arrived), HOST, 0, compression=None) as server:
        yield _url(server.sockets)


@asynccontextmanager
async def _websockets_connect(url: str, arrived: Arrived) -> AsyncGenerator[Send]:
    async with connect(url, compression=None) as connection:
        reader = asyncio.create_task(_read(connection, arrived))
        yield lambda message: connection.send(message, text=True)
        reader.cancel()


# --- websockets' Sans-I/O core under a protocol of our own ------------------------------------------------------------


class _Core(Connection):
    def __init__(self, core: Protocol, arrived: Arrived) -> None:
        super().__init__()
        self._core = core
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if isinstance(self._core, ClientProtocol):
            self._core.send_request(self._core.connect())
            self._pass_on()

    def data_received(self, data: bytes) -> None:
        self._core.receive_data(data)
        for event in self._core.events_received():
            if isinstance(event, Frame):
                self._arrived(bytes(event.data), self.send)
            elif isinstance(self._core, ServerProtocol) and isinstance(event, Handshake):
                self._core.send_response(self._core.accept(event))
                self._pass_on()
            else:
                self.opened.set_result(None)

    def send(self, message: bytes) -> None:
        self._core.send_text(message)
        self._pass_on()

    def _pass_on(self) -> None:
        for piece in self._core.data_to_send():
            self.write(piece)


@asynccontextmanager
async def _core_listen(arrived: Arrived) -> AsyncGenerator[str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Core(ServerProtocol(), arrived), HOST, 0)
    yield _url(server.sockets)
    server.close()


@asynccontextmanager
async def _core_connect(url: str, arrived: Arrived) -> AsyncGenerator[Send]:
    async with connected(url, lambda: _Core(ClientProtocol(parse_uri(url)), arrived)) as core:
        yield core.send


# --- aiohttp ----------------------------------------------------------------------------------------------------------


async def _frames(connection: Any, arrived: Arrived) -> None:
    send = lambda message: connection.send_frame(message, aiohttp.WSMsgType.TEXT)  # noqa: E731
    async for message in connection:
        waiting = arrived(message.data, send)
        if waiting is not None:
            await waiting


@asynccontextmanager
async def _aiohttp_listen(arrived: Arrived) -> AsyncGenerator[str]:
    async def accept(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse(compress=False, decode_text=False)
        await connection.prepare(request)
        await _frames(connection, arrived)
        return connection

    app = web.Application()
    app.router.add_get("/", accept)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    yield f"http://{HOST}:{runner.addresses[0][1]}/"
    await runner.cleanup()


@asynccontextmanager
async def _aiohttp_connect(url: str, arrived: Arrived) -> AsyncGenerator[Send]:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, compress=0, decode_text=False) as connection,
    ):
        reader = asyncio.create_task(_frames(connection, arrived))
        yield lambda message: connection.send_frame(message, aiohttp.WSMsgType.TEXT)
        reader.cancel()


# --- picows -----------------------------------------------------------------------------------------------------------


class _Listener(picows.WSListener):
    def __init__(self, arrived: Arrived) -> None:
        self._arrived = arrived

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.send = lambda message: transport.send(picows.WSMsgType.TEXT, message)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        self._arrived(frame.get_payload_as_bytes(), self.send)


@asynccontextmanager
async def _picows_listen(arrived: Arrived) -> AsyncGenerator[str]:
    server = await picows.ws_create_server(lambda _: _Listener(arrived), HOST, 0)
    yield _url(server.sockets)
    server.close()


@asynccontextmanager
async def _picows_connect(url: str, arrived: Arrived) -> AsyncGenerator[Send]:
    transport, listener = await picows.ws_connect(lambda: _Listener(arrived), url)
    yield listener.send
    transport.disconnect()


LIBRARIES = (
    Library("websockets, its sans-I/O core", "websockets", _core_listen, _core_connect),
    Library("websockets, its asyncio API", "websockets", _websockets_listen, _websockets_connect),
    Library("aiohttp", "aiohttp", _aiohttp_listen, _aiohttp_connect),
    Library("picows", "picows", _picows_listen, _picows_connect),
)
