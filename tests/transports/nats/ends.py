"""What the tests of the NATS transport are made with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import nats
from nats.aio.client import Client

from opwire.call import Address
from opwire.testing.scene import soon
from opwire.transports.nats.connection import Security
from opwire.transports.nats.credentials import Credentials
from opwire.transports.nats.medium import NatsMedium
from opwire.transports.nats.servers import Servers
from opwire.transports.nats.service import ServiceInfo
from opwire.transports.nats.subjects import Subjects

ANYONE = Security(Credentials())


class Log:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[Address, str, bytes]] = []
        self.rumours: list[tuple[Address, str, bytes]] = []
        self.failures: list[str] = []
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

    def undelivered(self, token: str, reason: str) -> None:
        assert reason == "nobody serves it"
        self.failures.append(token)
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


class End:
    """A medium that is connected, and what its listener was told."""

    def __init__(self, medium: NatsMedium, address: Address, log: Log) -> None:
        self.medium = medium
        self.address = address
        self.log = log

    async def barrier(self) -> None:
        """Wait until the server has dealt with whatever this end has sent."""
        await soon("the server answers", self.medium._connected().barrier())


@asynccontextmanager
async def end(
    url: str | list[str],
    *operations: str,
    prefix: str = "opwire",
    security: Security = ANYONE,
    describe: Callable[[], ServiceInfo | None] | None = None,
) -> AsyncIterator[End]:
    """An end that serves these operations. Nobody beats for it."""
    medium = NatsMedium(Servers(url), Subjects(prefix), security, describe=describe)
    log, address = Log(), token_hex(8)
    await medium.connect(address, log)
    try:
        if operations:
            await medium.serve(operations)
        yield End(medium, address, log)
    finally:
        await medium.close()


@asynccontextmanager
async def plain_client(url: str, **options: Any) -> AsyncIterator[Client]:
    """NATS' own client, which knows nothing of opwire."""
    client = await nats.connect(url, allow_reconnect=False, **options)
    try:
        yield client
    finally:
        await client.close()


async def flushed(client: Client) -> None:
    """The first flush of nats-py may overtake what was written before it."""
    await client.flush()
    await client.flush()
