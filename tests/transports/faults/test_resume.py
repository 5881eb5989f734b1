"""Subscriptions go on while connections are cut and servers are killed: no item is lost, and none comes twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from opwire import Client, Item, OperationRegistry
from opwire.client import Retries
from opwire.protocol import LOCAL_IDENTITY, CallHandler, PendingRequestMap
from tests.servers.brokers import HOST, Server
from tests.servers.faults import FaultProxy
from tests.transports.engines import Engine, through

COUNT = 2_000
CUTS = (150, 700, 1_400)
QUICK = Retries(max_back_off=0.1)


def counting() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.subscription("log.count")
    async def count(resume_from: str | None = None) -> AsyncIterator[Item[int]]:
        for number in range(int(resume_from or 0) + 1, COUNT + 1):
            yield Item(number, cursor=str(number))
            if number % 16 == 0:
                await asyncio.sleep(0.001)

    return registry


@pytest.mark.slow
@pytest.mark.usefixtures("quick_reconnects")
@pytest.mark.parametrize("side", ["caller", "server"])
async def test_a_connection_that_is_cut_loses_no_item(engine: Engine, server: Server, side: str) -> None:
    async with FaultProxy(HOST, server.port) as near, FaultProxy(HOST, server.port) as far:
        serving = PendingRequestMap(engine.connect(through(far, server.url)))
        client = Client(engine.connect(through(near, server.url)), retries=QUICK)
        async with serving, CallHandler(counting(), serving, anonymous=LOCAL_IDENTITY), client:
            got: list[int] = []

            async def follow() -> None:
                async for number in client.subscribe("log.count", resume=True):
                    got.append(number)
                    if number in CUTS:
                        (near if side == "caller" else far).cut()

            await asyncio.wait_for(follow(), 60)
    assert got == list(range(1, COUNT + 1))


@pytest.mark.usefixtures("quick_reconnects")
async def test_an_engine_that_is_killed_and_started_again_loses_no_item(engine: Engine, own_server: Server) -> None:
    serving = PendingRequestMap(engine.connect(own_server.url))
    client = Client(engine.connect(own_server.url), retries=QUICK)
    async with serving, CallHandler(counting(), serving, anonymous=LOCAL_IDENTITY), client:
        got: list[int] = []

        async def follow() -> None:
            async for number in client.subscribe("log.count", resume=True):
                got.append(number)
                if number == CUTS[0]:
                    own_server.kill()
                    await asyncio.to_thread(own_server.start)

        await asyncio.wait_for(follow(), 60)
    assert got == list(range(1, COUNT + 1))
