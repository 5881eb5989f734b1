"""Calls over a transport; the contract itself is in `test_client`."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from opwire import CallError, ErrorCode, Identity, OperationRegistry
from opwire.auth import Grant, StaticTokens, allow_anonymous
from opwire.client import Client, Retries
from opwire.hub import Hub, Spoke
from opwire.protocol import OperationInfo, Statistics
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.client.samples import ME, Samples


def serving(name: str) -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("both.name", title=name)
    async def both() -> str:
        return name

    @registry.query(f"{name}.name")
    async def own() -> str:
        return name

    return registry


async def test_what_several_serve_is_shown_once() -> None:
    bus = MemoryBus()
    async with (
        Spoke(serving("one"), MemoryTransport(bus)),
        Spoke(serving("two"), MemoryTransport(bus)),
        Client(MemoryTransport(bus)) as client,
    ):
        assert [spec.id for spec in await client.operations()] == ["both.name", "one.name", "two.name"]
        assert {await client.call("both.name") for _ in range(4)} == {"one", "two"}


async def test_what_a_peer_shows_that_is_not_an_operation_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bus, registry = MemoryBus(), serving("one")
    shown = OperationInfo.of(registry.list()[0], Statistics())

    @registry.subscription("opwire.operations")
    async def operations() -> AsyncIterator[OperationInfo]:
        yield shown
        yield replace(shown, id="nodot")

    async with Spoke(registry, MemoryTransport(bus)), Client(MemoryTransport(bus)) as client:
        assert [spec.id for spec in await client.operations()] == ["both.name"]
    assert "'nodot' has no dot" in caplog.text


async def test_the_token_is_shown_to_the_hub() -> None:
    tokens = StaticTokens({"token-of-ada-1234": Grant(Identity(id="ada")), "token-of-bob-1234": Identity(id="bob")})
    async with Hub(Samples().registry, "ws://127.0.0.1:0", authenticate=tokens) as hub:
        async with Client(hub.url, token="token-of-ada-1234") as client:
            assert await client.call("who.calls") == "ada"
        async with Client([hub.url], token=lambda: "token-of-bob-1234") as client:
            assert await client.call("who.calls") == "bob"
        with pytest.raises(CallError) as caught:
            await Client(hub.url, token="token-of-nobody-12").start()
        assert caught.value.code is ErrorCode.UNAUTHENTICATED


async def test_closing_ends_the_calls_that_are_under_way() -> None:
    bus, samples = MemoryBus(), Samples()
    async with Spoke(samples.registry, MemoryTransport(bus)), Client(MemoryTransport(bus)) as client:
        call = asyncio.create_task(client.call("slow.wait"))
        await asyncio.wait_for(samples.began.wait(), 5)
        await client.close()
        with pytest.raises(CallError) as caught:
            await asyncio.wait_for(call, 5)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        await asyncio.wait_for(samples.stopped.wait(), 5)


async def test_a_query_survives_a_restart_of_its_hub() -> None:
    """What fails while the connection is lost is asked again, and answered when it is back."""
    everybody = allow_anonymous(Grant(ME))
    patient = Retries(max_attempts=200, back_off=0.05, max_back_off=0.05, reserve=200)
    first = await Hub(Samples().registry, "ws://127.0.0.1:0", authenticate=everybody).start()
    async with Client(first.url, retries=patient) as client:
        await first.close()
        call = asyncio.create_task(client.call("math.add", {"a": 1}))
        await asyncio.sleep(0)
        async with Hub(Samples().registry, first.url, authenticate=everybody):
            assert await asyncio.wait_for(call, 10) == 3
