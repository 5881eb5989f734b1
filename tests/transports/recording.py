"""What the tests of all mediums are made with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from opwire.call import Address
from opwire.testing.harness import soon
from opwire.transports.broker_connection import BrokerConnection


class Log:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[Address, str, bytes]] = []
        self.rumours: list[tuple[Address, str, bytes]] = []
        self.routes: list[tuple[str, Address]] = []
        self.failures: list[tuple[str, str]] = []
        self.refusals: list[tuple[str, str]] = []
        self.gone: list[Address] = []
        self.ends: list[str] = []
        self._news = asyncio.Event()

    @property
    def messages(self) -> list[bytes]:
        return [message for _, _, message in self.arrivals]

    def arrived(self, sender: Address, token: str, message: bytes) -> None:
        self.arrivals.append((sender, token, message))
        self._news.set()

    def overheard(self, sender: Address, token: str, message: bytes) -> None:
        self.rumours.append((sender, token, message))
        self._news.set()

    def routed(self, token: str, peer: Address) -> None:
        self.routes.append((token, peer))
        self._news.set()

    def undelivered(self, token: str, reason: str) -> None:
        self.failures.append((token, reason))
        self._news.set()

    def refused(self, operation_id: str, reason: str) -> None:
        self.refusals.append((operation_id, reason))
        self._news.set()

    def unreachable(self, peer: Address) -> None:
        self.gone.append(peer)
        self._news.set()

    def disconnected(self, reason: str) -> None:
        self.ends.append(reason)
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true of what was told."""

        async def wait() -> None:
            while not condition():
                self._news.clear()
                await self._news.wait()

        await soon("something is told", wait())


@asynccontextmanager
async def connected(connection: BrokerConnection, address: Address, log: Log, *operations: str) -> AsyncIterator[None]:
    """Serve these operations at this address. Nobody beats for it."""
    await connection.connect(address, log)
    try:
        if operations:
            await connection.serve(operations)
        yield
    finally:
        await connection.close()
