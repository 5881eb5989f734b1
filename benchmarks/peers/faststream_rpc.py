"""FastStream's own request and reply over NATS and Redis, as its documentation shows them.

The benchmark itself runs where FastStream is not installed, and reads the scenarios here: it is imported when they run.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from benchmarks.transports.messages import NOTE, OPERATION
from benchmarks.transports.scenario import SERVERS, Call, Scenario
from benchmarks.upstream import round_trip


def _broker(engine: str, url: str) -> Any:
    # Logging each message would be most of the cost.
    if engine == "nats":
        from faststream.nats import NatsBroker  # pyright: ignore[reportMissingImports] - its own environment

        return NatsBroker(url, log_level=logging.DEBUG)
    from faststream.redis import RedisBroker  # pyright: ignore[reportMissingImports]

    # Its pool has a connection for each call in flight, and each call takes a second one for its reply.
    return RedisBroker(url, log_level=logging.DEBUG, max_connections=1000)


@asynccontextmanager
async def _responder(engine: str, url: str) -> AsyncGenerator[str]:
    broker = _broker(engine, url)

    # Servers share a queue group of NATS and a list of Redis: each of them would respond to every message of a channel.
    subscriber = (
        broker.subscriber(OPERATION, queue="servers") if engine == "nats" else broker.subscriber(list=OPERATION)
    )

    @subscriber
    async def add(a: int, b: int, note: str) -> int:
        await round_trip()
        return a + b

    async with broker:
        await broker.start()
        yield url


@asynccontextmanager
async def _caller(engine: str, url: str) -> AsyncGenerator[Call]:
    destination = "subject" if engine == "nats" else "list"
    async with _broker(engine, url) as broker:

        async def call(a: int) -> int:
            request = {"a": a, "b": 1, "note": NOTE}
            reply = await broker.request(request, **{destination: OPERATION}, timeout=10)
            return await reply.decode()

        yield call


def _scenario(engine: str) -> Scenario:
    return Scenario(
        f"faststream, {engine}",
        __name__,
        partial(_responder, engine),
        partial(_caller, engine),
        library="faststream",
        peer="faststream",
        ahead=True,
        servers=SERVERS,
        engine={"nats": "NATS", "redis": "Redis"}[engine],
    )


NATS, REDIS = _scenario("nats"), _scenario("redis")
SCENARIOS = [NATS, REDIS]
