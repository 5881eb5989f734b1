"""What a serving end says about itself, and queries to all servers."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry, OperationSpec, OperationType, Schema
from opwire.protocol import (
    LOCAL_IDENTITY,
    MAX_MESSAGE,
    CallHandler,
    FoundServer,
    OperationInfo,
    PendingRequestMap,
    ServerInfo,
    discover,
    discovery,
)
from opwire.protocol.transport import Receiver
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.chaos.virtual_time import run_virtually
from tests.protocol.harness import call_error, connected_ends, within


def shop() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.price", title="Price", description="What it costs.", tags=("money",), version="2")
    async def price(article: str) -> float:
        if article == "secret":
            raise ValueError("the password is hunter2")
        return 3.5

    @registry.mutation("shop.close", access=AccessControl(required_scopes=("shop:admin",)))
    async def close() -> bool:
        return True

    @registry.subscription("shop.orders", access=AccessControl(public=True))
    async def orders() -> AsyncIterator[int]:
        yield 1

    return registry


async def only(client: PendingRequestMap) -> FoundServer:
    (found,) = await within(discover(client, wait=0))
    return found


async def test_servers_are_found_with_schemas_health_and_version() -> None:
    async with connected_ends(shop(), name="shop", version="1.2.3") as here:
        found = await only(here.client)
        assert isinstance(found.server, ServerInfo)
        assert (found.server.name, found.server.version, found.server.status) == ("shop", "1.2.3", "serving")
        assert found.server.in_flight == 1  # the very call that asks
        price, close, orders = found.operations
        assert (price.id, price.type, price.title, price.version) == ("shop.price", "query", "Price", "2")
        assert (price.description, price.tags) == ("What it costs.", ("money",))
        spec = shop().get_spec("shop.price")
        assert spec is not None
        assert price.input_schema == spec.input_schema.json
        assert price.output_schema == {"type": "number"}
        assert close.access == AccessControl(required_scopes=("shop:admin",))
        assert orders.type is OperationType.SUBSCRIPTION


async def test_calls_and_errors_are_counted_with_the_code_of_the_last_error_and_nothing_of_its_text() -> None:
    """A server counts calls, errors and time per operation; of an error it keeps the code."""
    async with connected_ends(shop()) as here:
        for _ in range(3):
            await here.call("shop.price", {"article": "tea"})
        await call_error(here.client.call("shop.price", {"article": 7}))
        await call_error(here.client.call("shop.price", {"article": "secret"}))
        assert await here.items("shop.orders") == [1]
        price, close, orders = (each.statistics for each in (await only(here.client)).operations)
        assert (price.calls, price.errors, price.last_error) == (5, 2, "EXECUTION_ERROR")
        assert price.seconds > 0
        assert (close.calls, close.errors, close.last_error, close.seconds) == (0, 0, None, 0.0)
        assert (orders.calls, orders.errors) == (1, 0)


async def test_ids_that_are_not_served_do_not_grow_the_statistics() -> None:
    async with connected_ends(shop()) as here:
        for number in range(50):
            await call_error(here.client.call(f"made.up{number}"))
        assert here.handler.monitor.statistics == {}


async def test_a_caller_sees_what_it_may_call() -> None:
    """Discovery shows a caller the operations that it may call."""
    async with connected_ends(shop(), anonymous=Identity(id="guest")) as here:
        assert [each.id for each in (await only(here.client)).operations] == ["shop.price", "shop.orders"]
    async with connected_ends(shop(), anonymous=Identity(id="boss", scopes=("shop:admin",))) as here:
        assert len((await only(here.client)).operations) == 3


async def test_thousands_of_operations_with_large_schemas_are_found_within_the_limits_of_a_message() -> None:
    registry, text = OperationRegistry(), "x" * 10_000
    for number in range(300):
        spec = OperationSpec(namespace="many", name=f"op{number}", input_schema=Schema({"description": text}))
        registry.register(spec, lambda input, context: None)
    bus = MemoryBus(codec=True, max_message=MAX_MESSAGE // 20)
    async with connected_ends(registry, bus=bus) as here:
        operations = (await only(here.client)).operations
    assert [each.id for each in operations] == [f"many.op{number}" for number in range(300)]
    assert operations[-1].input_schema == {"description": text}


def test_a_server_that_does_not_answer_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Nothing:
        def received(self, event: Any, sender: str) -> None:
            pass

        def lost(self, peer: str | None, reason: str) -> None:
            pass

    class Deaf(MemoryTransport):
        async def start(self, receiver: Receiver) -> None:
            await super().start(Nothing())

    async def run() -> None:
        bus = MemoryBus()
        async with connected_ends(shop(), bus=bus) as here:
            deaf = PendingRequestMap(Deaf(bus))
            async with deaf, CallHandler(shop(), deaf):
                with caplog.at_level(logging.WARNING, "opwire.protocol"):
                    found = await discover(here.client, wait=0, timeout=5)
            assert [each.server.id for each in found] == [here.handler.about().id]
            assert "did not describe itself" in caplog.text

    run_virtually(run())


async def test_a_server_that_describes_itself_without_end_is_cut_off(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_MAX_DESCRIPTION_BYTES", 20_000)
    registry, described, closed = shop(), 0, asyncio.Event()

    @registry.subscription("opwire.operations", access=AccessControl(public=True))
    async def endless() -> AsyncIterator[dict[str, Any]]:
        nonlocal described
        try:
            while True:
                described += 1
                valid = {"id": f"shop.n{described}", "type": "query"}
                yield valid if described % 2 else {"id": 5}
        finally:
            closed.set()

    async with connected_ends(registry) as here:
        with caplog.at_level(logging.WARNING, "opwire.protocol"):
            found = await only(here.client)
        await within(closed.wait())
    assert len(found.operations) == 20  # of 512 bytes each, and as many invalid ones
    assert described < 1_000
    assert [record.getMessage()[:8] for record in caplog.records] == ["ignoring", "the serv"]


async def test_an_end_that_only_calls_is_not_found() -> None:
    bus = MemoryBus()
    async with PendingRequestMap(MemoryTransport(bus)) as alone:
        assert await discover(alone, wait=0) == []


async def test_a_call_can_be_directed_at_one_of_several_servers() -> None:
    bus = MemoryBus()
    async with connected_ends(shop(), bus=bus) as here, connected_ends(shop(), bus=bus, name="other") as there:
        addresses = {each.server.id: each.address for each in await discover(here.client, wait=0)}
        for server in (here, there):
            address = addresses[server.handler.about().id]
            for _ in range(3):
                answer = await within(here.client.call("opwire.about", to=address, output_type=ServerInfo))
                assert answer.data.id == server.handler.about().id
        await there.server.close()
        with pytest.raises(CallError, match="UNAVAILABLE"):
            await here.client.call("opwire.about", to=addresses[there.handler.about().id])


# --- draining ---------------------------------------------------------------------------------------------------------


class Slow:
    """An operation that ends when the test says so."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.registry.query("slow.call")(self.call)
        self.registry.subscription("slow.items")(self.items)

    async def call(self, context: Context) -> str:
        self.began.set()
        await self.go_on.wait()
        return "finished"

    async def items(self) -> AsyncIterator[int]:
        yield 1
        self.began.set()
        await self.go_on.wait()
        yield 2


async def serving(slow: Slow, bus: MemoryBus) -> tuple[PendingRequestMap, CallHandler]:
    calls = await PendingRequestMap(MemoryTransport(bus)).start()
    return calls, await CallHandler(slow.registry, calls, anonymous=LOCAL_IDENTITY).start()


async def test_draining_finishes_calls_and_subscriptions_and_takes_no_new_ones() -> None:
    slow = Slow()
    async with connected_ends(slow.registry) as here:
        call = asyncio.ensure_future(here.call("slow.call"))
        items = asyncio.ensure_future(here.items("slow.items"))
        await within(slow.began.wait())
        draining = asyncio.ensure_future(here.handler.drain(5))
        await asyncio.sleep(0)
        assert here.handler.about().status == "draining"
        assert (await call_error(here.client.call("slow.call"))).code == "UNAVAILABLE"
        assert not draining.done()
        slow.go_on.set()
        assert await within(draining)
        assert (await within(call), await within(items)) == ("finished", [1, 2])


async def test_draining_ends_in_time_and_says_that_something_is_left(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    async with connected_ends(slow.registry) as here:
        call = asyncio.ensure_future(here.call("slow.call"))
        await within(slow.began.wait())
        with caplog.at_level(logging.WARNING, "opwire.protocol"):
            assert not await within(here.handler.drain(0.02))
        assert "1 calls did not end within 0.02 s of draining" in caplog.text
        await here.handler.close()
        assert (await call_error(call)).code == "ABORTED"


async def test_an_idle_server_has_drained_at_once_and_can_serve_again() -> None:
    async with connected_ends(shop()) as here:
        assert await within(here.handler.drain(5))
        await here.handler.start()
        assert await here.call("shop.price", {"article": "tea"}) == 3.5


async def test_a_request_that_reaches_a_draining_server_is_answered_by_another() -> None:
    class Stale(MemoryBus):
        """Routes to servers that have withdrawn, as a broker does with what was on its way."""

        def withdraw(self, address: str, operation_ids: Any) -> None:
            pass

    bus, slow = Stale(), Slow()
    slow.go_on.set()
    ends = [await serving(slow, bus) for _ in range(3)]
    async with PendingRequestMap(MemoryTransport(bus)) as client:
        for _, handler in ends[:2]:
            assert await handler.drain(5)
        for _ in range(6):
            assert (await within(client.call("slow.call"))).data == "finished"
        await ends[2][1].drain(5)
        assert (await call_error(client.call("slow.call"))).code == "UNAVAILABLE"
        assert client.open_calls == 0
    for calls, handler in ends:
        await handler.close()
        await calls.close()


async def test_some_operations_can_be_asked_for_and_those_that_are_known_are_not_described() -> None:
    async with connected_ends(shop(), anonymous=Identity(id="boss", scopes=("shop:admin",))) as here:

        async def ask(**input: Any) -> list[Any]:
            return [item.data async for item in here.client.subscribe("opwire.operations", input)]

        infos = {each["id"]: msgspec.convert(each, OperationInfo) for each in await ask()}
        known = {id: info.fingerprint().digest for id, info in infos.items()}
        assert [each["id"] for each in await ask(operations=["shop.orders", "shop.unknown"])] == ["shop.orders"]
        known["shop.orders"] = "another"
        described, unchanged = await ask(operations=list(infos), known=known)
        assert described["id"] == "shop.orders"
        assert sorted(unchanged["unchanged"]) == sorted(known.keys() - {"shop.orders"})
