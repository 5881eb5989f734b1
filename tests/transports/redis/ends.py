"""What the tests of the Redis transport are made with."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hiredis

from opwire.call import Address
from opwire.testing.scene import soon
from opwire.transports.redis.medium import RedisMedium
from opwire.transports.redis.resp import command
from opwire.transports.redis.url import parse_url
from tests.servers.brokers import HOST, RedisServer

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
                reader.feed(connection.recv(65_536))
            else:
                replies.append(reply)
    return replies[-1]


class Log:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[Address, str, bytes]] = []
        self.rumours: list[tuple[Address, str, bytes]] = []
        self.failures: list[tuple[str, str]] = []
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
        self.failures.append((token, reason))
        self._news.set()

    def refused(self, operation_id: str, reason: str) -> None:
        raise AssertionError("Redis always says what it refused")

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

    def __init__(self, medium: RedisMedium, address: Address, log: Log) -> None:
        self.medium = medium
        self.address = address
        self.log = log

    async def barrier(self) -> None:
        """Wait until Redis has dealt with whatever this end has sent."""
        number = len(self.log.arrivals)
        self.medium.tell(self.address, "", b"barrier", control=True)
        await self.log.until(lambda: b"barrier" in self.log.messages[number:])
        self.log.arrivals = [each for each in self.log.arrivals if each[2] != b"barrier"]


@asynccontextmanager
async def end(
    url: str, address: Address, *operations: str, prefix: str = "opwire", beat: float = BEAT
) -> AsyncIterator[End]:
    """An end that serves these operations. Nobody beats for it."""
    medium, log = RedisMedium(parse_url(url), prefix=prefix, heartbeat=beat), Log()
    await medium.connect(address, log)
    try:
        if operations:
            await medium.serve(operations)
        yield End(medium, address, log)
    finally:
        await medium.close()


def exhaust(server: RedisServer) -> None:
    """Leave a server without memory: whatever needs some is refused."""
    ask(server, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    ask(server, "CONFIG", "SET", "maxmemory", 1)
