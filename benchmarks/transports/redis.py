"""Redis: publish and subscribe with redis-py, pooled and batched, with hiredis under a protocol of our own, and opwire.

A client is given the channel that it reads and what to do with a message, and gives a way to publish. Each server has a
channel of its own, and the caller takes them in turn.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import hiredis
import redis.asyncio

from benchmarks.transports.connection import Connection, connected
from benchmarks.transports.ends import calling, responding
from benchmarks.transports.messages import Calls, answer
from benchmarks.transports.scenario import SERVERS, Call, Scenario, server_number
from opwire.transports.redis import RedisTransport

Publish = Callable[[str, bytes], Awaitable[Any] | None]
Arrived = Callable[[bytes, Publish], Awaitable[Any] | None]
Client = Callable[[str, str, Arrived], AbstractAsyncContextManager[Publish]]

_POOL = 1000  # connections: redis-py takes one for each command in flight, and by default fails above 100
_pack: Any = hiredis.pack_command  # typed as if a command had one word


# --- redis-py ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _pooled(url: str, channel: str, arrived: Arrived) -> AsyncGenerator[Publish]:
    """Each command takes a connection from the pool."""
    pool = redis.asyncio.from_url(url, max_connections=_POOL)
    async with pool as client, _subscribed(client, channel, arrived, client.publish):
        yield client.publish


@asynccontextmanager
async def _batched(url: str, channel: str, arrived: Arrived) -> AsyncGenerator[Publish]:
    """What has gathered since the last pipeline goes out in the next one."""
    waiting: list[tuple[str, bytes]] = []
    news = asyncio.Event()

    def publish(to: str, message: bytes) -> None:
        waiting.append((to, message))
        news.set()

    async def write() -> None:
        while await news.wait():
            news.clear()
            pipeline = client.pipeline(transaction=False)
            for each in waiting:
                pipeline.publish(*each)
            waiting.clear()
            await pipeline.execute()

    async with redis.asyncio.from_url(url) as client, _subscribed(client, channel, arrived, publish):
        writer = asyncio.create_task(write())
        yield publish
        writer.cancel()


@asynccontextmanager
async def _subscribed(
    client: redis.asyncio.Redis, channel: str, arrived: Arrived, publish: Publish
) -> AsyncGenerator[None]:
    answers: set[asyncio.Future[Any]] = set()

    async def read() -> None:
        async for message in subscription.listen():
            if message["type"] != "message":
                continue
            waiting = arrived(message["data"], publish)
            if waiting is not None:
                task = asyncio.ensure_future(waiting)
                answers.add(task)
                task.add_done_callback(answers.discard)

    async with client.pubsub() as subscription:
        await subscription.subscribe(channel)
        reader = asyncio.create_task(read())
        yield
        reader.cancel()


# --- hiredis under a protocol of our own ------------------------------------------------------------------------------


class _Resp3(Connection):
    """Publishes and subscribes on one connection, which the third version of Redis' protocol allows."""

    def __init__(self, channel: str, arrived: Arrived) -> None:
        super().__init__()
        self._reader = hiredis.Reader()
        self._channel = channel
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.write(_pack(("HELLO", "3")) + _pack(("SUBSCRIBE", self._channel)))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if not isinstance(reply, hiredis.PushNotification):
                continue  # how many got a message
            if reply[0] == b"message":
                self._arrived(reply[2], self.publish)
            elif reply[0] == b"subscribe":
                self.opened.set_result(None)

    def publish(self, channel: str, message: bytes) -> None:
        self.write(_pack(("PUBLISH", channel, message)))


@asynccontextmanager
async def _by_hand(url: str, channel: str, arrived: Arrived) -> AsyncGenerator[Publish]:
    async with connected(url, lambda: _Resp3(channel, arrived)) as connection:
        yield connection.publish


def _scenario(name: str, library: str, client: Client, *, ahead: bool = False) -> Scenario:
    requests, replies = f"{name}.requests", f"{name}.replies"

    @asynccontextmanager
    async def responder(url: str) -> AsyncGenerator[str]:
        def arrived(message: bytes, publish: Publish) -> None:
            answer(message, lambda response: publish(replies, response))

        async with client(url, f"{requests}.{server_number()}", arrived):
            yield url

    @asynccontextmanager
    async def caller(url: str) -> AsyncGenerator[Call]:
        calls = Calls()
        async with client(url, replies, calls.arrived) as publish:

            async def call(a: int) -> int:
                message, future = calls.open(a)
                waiting = publish(f"{requests}.{a % SERVERS}", message)
                if waiting is not None:
                    await waiting
                return await future

            yield call

    return Scenario(name, __name__, responder, caller, library=library, ahead=ahead, servers=SERVERS, engine="Redis")


# --- opwire -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _responder(url: str) -> AsyncGenerator[str]:
    async with responding(RedisTransport(url)):
        yield url


OPWIRE = Scenario(
    "opwire",
    __name__,
    _responder,
    lambda url: calling(RedisTransport(url)),
    library="opwire",
    servers=SERVERS,
    engine="Redis",
)
RAW = [
    _scenario("redis, one pipelined writer", "redis", _batched),
    _scenario("redis, a pool", "redis", _pooled, ahead=True),
    _scenario("hiredis, RESP3 by hand", "hiredis", _by_hand),
]
SCENARIOS = [*RAW, OPWIRE]
