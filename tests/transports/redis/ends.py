"""What the tests of the Redis transport are made with."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hiredis

from opwire.protocol import Address
from opwire.transports.redis.connection import command, parse_url
from opwire.transports.redis.servers import parse_servers
from opwire.transports.redis.transport import RedisBrokerConnection
from tests.servers.brokers import HOST, RedisServer
from tests.transports.recording import Log, connected

BEAT = 60.0
"""Seconds between two beats: nobody beats unless a test does, so a lease lasts as long as the test."""


def ask(server: RedisServer, *parts: bytes | str | int) -> Any:
    """The reply of a server to one command, over a connection of its own."""
    password = parse_url(server.url).password
    commands = [command(*parts)] if password is None else [command("AUTH", password), command(*parts)]
    reader = hiredis.Reader(notEnoughData=Ellipsis)
    with socket.create_connection((HOST, server.port), timeout=5) as connection:
        connection.sendall(b"".join(commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            if (reply := reader.gets()) is Ellipsis:
                if not (data := connection.recv(65_536)):
                    raise ConnectionError("the server has closed the connection")
                reader.feed(data)
            else:
                replies.append(reply)
    return replies[-1]


class End:
    """A connection that is connected, and what its listener was told."""

    def __init__(self, connection: RedisBrokerConnection, address: Address, log: Log) -> None:
        self.connection = connection
        self.address = address
        self.log = log

    async def barrier(self) -> None:
        """Wait until Redis has processed everything that this end has sent."""
        number = len(self.log.arrivals)
        self.connection.send(self.address, "", b"barrier", control=True)
        await self.log.until(lambda: b"barrier" in self.log.messages[number:])
        self.log.arrivals = [each for each in self.log.arrivals if each[2] != b"barrier"]


@asynccontextmanager
async def end(
    url: str, address: Address, *operations: str, prefix: str = "opwire", beat: float = BEAT
) -> AsyncIterator[End]:
    """An end that serves these operations, without heartbeats."""
    connection, log = RedisBrokerConnection(parse_servers(url, prefix=prefix), prefix=prefix, heartbeat=beat), Log()
    async with connected(connection, address, log, *operations):
        yield End(connection, address, log)
    assert log.refusals == []  # Redis always says which request it refused


def exhaust(server: RedisServer) -> None:
    """Leave a server without memory: commands that need some are rejected."""
    ask(server, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    ask(server, "CONFIG", "SET", "maxmemory", 1)
