"""What the tests of the NATS transport are made with."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import nats
from nats.aio.client import Client

from opwire.call import Address
from opwire.testing.harness import soon
from opwire.transports.nats.connection import Credentials, Security, Servers
from opwire.transports.nats.transport import NatsBrokerConnection, ServiceInfo, Subjects
from tests.transports.recording import Log, connected

ANYONE = Security(Credentials())


class End:
    """A medium that is connected, and what its listener was told."""

    def __init__(self, medium: NatsBrokerConnection, address: Address, log: Log) -> None:
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
    medium = NatsBrokerConnection(Servers(url), Subjects(prefix), security, describe=describe)
    log, address = Log(), token_hex(8)
    async with connected(medium, address, log, *operations):
        yield End(medium, address, log)


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
