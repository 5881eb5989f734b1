"""What the tests of the NATS transport are made with."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import nats
from nats.aio.client import Client

from opwire.model.operation import OperationType
from opwire.protocol import Address, Description
from opwire.protocol.description import OperationInfo, ServerInfo, Statistics
from opwire.transports.nats.connection import NatsCredentials, NatsServers, Security
from opwire.transports.nats.transport import NatsBrokerConnection, Subjects
from opwire_conformance.harness import soon
from tests.transports.recording import Log, connected

ANYONE = Security(NatsCredentials())


class End:
    """A connection that is connected, and what its listener was told."""

    def __init__(self, connection: NatsBrokerConnection, address: Address, log: Log) -> None:
        self.connection = connection
        self.address = address
        self.log = log

    async def barrier(self) -> None:
        """Wait until the server has processed everything that this end has sent."""
        await soon("the server answers", self.connection.unserve([]))


def description(operations: Mapping[str, Statistics]) -> Description:
    """What a service says about itself."""
    server = ServerInfo(id="7f", name="shop", version="1.2.3", started=1_767_323_045_678, status="serving", in_flight=0)
    made = [
        OperationInfo(
            id=each,
            type=OperationType.QUERY,
            title="",
            description="",
            tags=(),
            version="1.0.0",
            input_schema=True,
            output_schema=True,
            access=None,
            statistics=statistics,
        )
        for each, statistics in operations.items()
    ]
    return Description(server=server, operations=made)


@asynccontextmanager
async def end(
    url: str | list[str],
    *operations: str,
    prefix: str = "opwire",
    security: Security = ANYONE,
    describe: Callable[[], Description | None] = lambda: None,
) -> AsyncIterator[End]:
    """An end that serves these operations, without heartbeats."""
    connection = NatsBrokerConnection(NatsServers(url), Subjects(prefix), security, describe=describe)
    log, address = Log(), token_hex(8)
    async with connected(connection, address, log, *operations):
        yield End(connection, address, log)


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
