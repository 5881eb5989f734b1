"""Listeners that record their callbacks, for the tests of every broker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from opwire.protocol import Address
from opwire.transports.broker_connection import BrokerConnection
from opwire_conformance.harness import soon

T = TypeVar("T")


class Recorder:
    """Records callbacks, and waits for them."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

    def record(self, to: list[T], callback: T) -> None:
        to.append(callback)
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition on the records holds."""

        async def wait() -> None:
            while not condition():
                self._news.clear()
                await self._news.wait()

        await soon("the callbacks arrive", wait())


class Log(Recorder):
    """A `BrokerListener` that records."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[tuple[Address, str, bytes]] = []
        self.rumours: list[tuple[Address, str, bytes]] = []
        self.routes: list[tuple[str, Address]] = []
        self.failures: list[tuple[str, str]] = []
        self.refusals: list[tuple[str, str]] = []
        self.gone: list[Address] = []
        self.denials: list[Address] = []
        self.ends: list[str] = []

    @property
    def messages(self) -> list[bytes]:
        return [message for _, _, message in self.arrivals]

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        self.record(self.arrivals, (sender, token, message))

    def overheard(self, sender: Address, token: str, message: bytes) -> None:
        self.record(self.rumours, (sender, token, message))

    def routed(self, token: str, peer: Address) -> None:
        self.record(self.routes, (token, peer))

    def undelivered(self, token: str, reason: str) -> None:
        self.record(self.failures, (token, reason))

    def refused(self, operation_id: str, reason: str) -> None:
        self.record(self.refusals, (operation_id, reason))

    def unreachable(self, peer: Address) -> None:
        self.record(self.gone, peer)

    def forbidden(self, peer: Address) -> None:
        self.record(self.denials, peer)

    def disconnected(self, reason: str) -> None:
        self.record(self.ends, reason)


@asynccontextmanager
async def connected(connection: BrokerConnection, address: Address, log: Log, *operations: str) -> AsyncIterator[None]:
    """Serve these operations at this address, without heartbeats."""
    await connection.connect(address, log)
    try:
        if operations:
            await connection.serve(operations)
        yield
    finally:
        await connection.close()
