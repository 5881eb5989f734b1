"""WebSocket without opwire, from end to end and through a relay, and opwire."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from benchmarks.transports.ends import calling, responding
from benchmarks.transports.messages import Calls, answer
from benchmarks.transports.scenario import Call, Scenario
from benchmarks.transports.websocket_libraries import HOST, LIBRARIES, Library, Send
from opwire import Identity
from opwire.auth import Grant, allow_anonymous
from opwire.hub import Hub
from opwire.protocol import PendingRequestMap
from opwire.transports.websocket import WebSocketServer, WebSocketTransport

_SERVE = b"serve"  # what a responder says to a relay


class _Id(msgspec.Struct, rename="camel"):
    request_id: str


class _Relay:
    """Hands requests to the responder, and replies to the sender; their contents stay unchanged."""

    def __init__(self) -> None:
        self._responder: Send | None = None
        self._askers: dict[str, Send] = {}
        self._id = msgspec.json.Decoder(_Id).decode

    def arrived(self, message: bytes, sender: Send) -> Awaitable[None] | None:
        if message == _SERVE:
            self._responder = sender
            return None
        request_id = self._id(message).request_id
        if self._responder is not None and sender != self._responder:
            self._askers[request_id] = sender
            return self._responder(message)
        return self._askers.pop(request_id)(message)


def _direct(library: Library) -> Scenario:
    return Scenario(
        library.name,
        __name__,
        lambda _: library.listen(answer),
        lambda url: _caller(library, url),
        library=library.library,
    )


def _relayed(library: Library) -> Scenario:
    @asynccontextmanager
    async def responder(url: str) -> AsyncGenerator[str]:
        async with library.connect(url, answer) as send:
            waiting = send(_SERVE)
            if waiting is not None:
                await waiting
            yield url

    def relay(_: str) -> AbstractAsyncContextManager[str]:
        return library.listen(_Relay().arrived)

    return Scenario(
        f"{library.name}, relay",
        __name__,
        responder,
        lambda url: _caller(library, url),
        relay,
        library.library,
    )


@asynccontextmanager
async def _caller(library: Library, url: str) -> AsyncGenerator[Call]:
    calls = Calls()

    async with library.connect(url, calls.arrived) as send:

        async def call(a: int) -> int:
            message, future = calls.open(a)
            waiting = send(message)
            if waiting is not None:
                await waiting
            return await future

        yield call


# --- opwire -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _serving(_: str) -> AsyncGenerator[str]:
    """The server answers by itself."""
    server = WebSocketServer(HOST)
    async with responding(server):
        yield server.url


@asynccontextmanager
async def _relaying(_: str) -> AsyncGenerator[str]:
    """The server has nothing to answer, and passes on."""
    server = WebSocketServer(HOST)
    async with PendingRequestMap(server):
        yield server.url


@asynccontextmanager
async def _hub(_: str) -> AsyncGenerator[str]:
    """A relay that authenticates, marks each request with its sender, and lists what is served in its registry."""
    everybody = allow_anonymous(Grant(Identity(id="everybody", scopes=("*",)), announces=("*",)))
    async with Hub(None, f"ws://{HOST}:0", authenticate=everybody) as hub:
        yield hub.url


@asynccontextmanager
async def _responding(url: str) -> AsyncGenerator[str]:
    async with responding(WebSocketTransport(url)):
        yield url


def _calling(url: str) -> AbstractAsyncContextManager[Call]:
    return calling(WebSocketTransport(url))


OPWIRE = Scenario("opwire", __name__, _serving, _calling, library="opwire")
OPWIRE_RELAYED = Scenario("opwire, relay without a gate", __name__, _responding, _calling, _relaying, "opwire")
OPWIRE_HUB = Scenario("opwire, Hub", __name__, _responding, _calling, _hub, "opwire")
RAW = [*map(_direct, LIBRARIES)]
RAW_RELAYED = [*map(_relayed, LIBRARIES)]
SCENARIOS = [*RAW, *RAW_RELAYED, OPWIRE, OPWIRE_RELAYED, OPWIRE_HUB]
