"""The contract of transports, between clients of one server, and with the server as one of the ends."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from opwire.protocol import Address, CallEvent, Receiver, Transport
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from opwire_conformance import LIMIT_CONTRACT, TRANSPORT_CONTRACT, Connect
from tests.servers.leaks import Leaks
from tests.transports.websocket.ends import until

LIMIT = 100_000

# Where the server is the end that leaves, the others have lost their medium, and cannot go on without it.
NEEDS_THE_SERVER = {
    "several servers share the calls, and one that leaves gets no more",
    "closing a caller stops its handlers, and no others",
}


class Ear:
    """Hears what the server hears before the check has started it."""

    receiver: Receiver | None = None

    def received(self, event: CallEvent, sender: Address) -> None:
        if self.receiver is not None:
            self.receiver.received(event, sender)

    def lost(self, peer: Address | None, reason: str) -> None:
        if self.receiver is not None:
            self.receiver.lost(peer, reason)


class ServerEnd:
    """The server as one of the ends, which listens already when the check starts it."""

    def __init__(self, medium: "Medium") -> None:
        self._medium = medium

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium.server, name)

    async def start(self, receiver: Receiver) -> None:
        await self._medium.listen(receiver)


class Medium:
    """One server and its clients. The end with number `place` is the server itself; 0: none is."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.server = WebSocketServer(max_message=LIMIT)
        self._number = 0
        self._clients: list[WebSocketTransport] = []
        self._ear = Ear()

    async def listen(self, receiver: Receiver | None) -> None:
        """Start the server, or start it again where it listened before: its clients come back to it."""
        self._ear.receiver = receiver
        if not self.server.listening:
            await self.server.start(self._ear)
            await until(
                "the clients come back",
                lambda: all(client.connected or "closed" in repr(client) for client in self._clients),
            )

    def connect(self) -> Transport:
        self._number += 1
        if self._number == self.place or not self.server.listening:
            return ServerEnd(self)  # pyright: ignore[reportReturnType]
        client = WebSocketTransport(self.server.url, max_message=LIMIT)
        self._clients.append(client)
        return client


@asynccontextmanager
async def medium(place: int) -> AsyncIterator[Connect]:
    async with Leaks():
        medium = Medium(place)
        await medium.listen(None)
        try:
            yield medium.connect
        finally:
            assert len(medium.server.routes) == 0
            await medium.server.close()


PLACES = ("all are clients", "the server is the first", "the server is the second")
CASES = [
    (promise, place)
    for promise in TRANSPORT_CONTRACT
    for place in PLACES
    if not (place == PLACES[2] and promise in NEEDS_THE_SERVER)
]


@pytest.mark.parametrize(("promise", "place"), CASES)
async def test_the_websocket_keeps_its_promise(promise: str, place: str) -> None:
    async with medium(PLACES.index(place)) as connect:
        await TRANSPORT_CONTRACT[promise](connect)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("promise", LIMIT_CONTRACT)
async def test_the_websocket_keeps_its_promise_about_its_limit(promise: str, place: str) -> None:
    async with medium(PLACES.index(place)) as connect:
        await LIMIT_CONTRACT[promise](connect, LIMIT)
