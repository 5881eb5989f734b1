"""The transcripts of the protocol's page are what a hub and the brokers' ends really send."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from opwire import AccessControl, Context, Identity, OperationRegistry
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub, Spoke
from tests.servers.brokers import HOST, NatsServer, RedisServer
from tests.transports.transcripts import TRANSCRIPTS, HttpThenFrames, Lines, RedisCommands, connections, replay

PUBLIC = AccessControl(public=True)
TOKENS = {
    "shop-token-0123456789": Grant(Identity(id="shop", scopes=("shop:read",)), announces=("shop",)),
    "user-token-0123456789": Grant(Identity(id="ann", scopes=("math:add",))),
}


def registry() -> OperationRegistry:
    """Make the operations of the server in the transcripts."""
    served = OperationRegistry()

    @served.query("math.add", access=PUBLIC)
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @served.subscription("clock.count", access=PUBLIC)
    async def count(to: int) -> AsyncIterator[int]:
        """Count from one."""
        for number in range(1, to + 1):
            yield number

    @served.query("work.long", access=PUBLIC)
    async def long(context: Context) -> None:
        """Report progress, and wait to be stopped."""
        context.report(1, 10, "it has begun")
        await asyncio.Event().wait()

    @served.mutation("archive.purge", access=PUBLIC)
    async def purge(context: Context) -> str:
        """Delete orders, after a confirmation."""
        return "deleted" if await context.elicit(bool, "Delete 3 orders?") else "kept"

    return served


@pytest.mark.parametrize("transcript", ["call", "subscription", "question", "serve", "refused"])
async def test_a_hub_sends_what_its_transcripts_say(transcript: str) -> None:
    async with Hub(registry(), f"ws://{HOST}:0", authenticate=StaticTokens(TOKENS), linger=0) as hub:
        port = urlsplit(hub.url).port
        assert port is not None
        async with connections(HOST, port, HttpThenFrames) as connect:
            await replay(f"{transcript}.txt", connect)


@pytest.mark.parametrize("engine", ["redis", "nats"])
async def test_a_server_on_a_broker_sends_what_the_transcript_says(
    engine: str, redis_server: RedisServer, nats_server: NatsServer
) -> None:
    server = {"redis": redis_server, "nats": nats_server}[engine]
    kind = RedisCommands if engine == "redis" else Lines
    port = urlsplit(server.url).port
    assert port is not None
    async with (
        Spoke(registry(), server.url, prefix="page", heartbeat=60.0) as spoke,
        connections(HOST, port, kind, spoke.call) as connect,
    ):
        await replay(f"{engine}.txt", connect)


def test_every_transcript_is_replayed() -> None:
    names = {path.stem for path in TRANSCRIPTS.glob("*.txt")}
    assert names == {"call", "subscription", "question", "serve", "refused", "redis", "nats"}
