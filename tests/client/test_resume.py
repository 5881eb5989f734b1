"""Subscriptions that are lost and resumed: in process, over a hub, over HTTP and over brokers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import pytest

from opwire import Client, Context, Handler, Item, OperationRegistry, OperationSpec, ResponseEnvelope
from opwire.client import Retries
from opwire.errors import CallError, UsageError, is_resume_error
from opwire.hub import Hub, Spoke
from opwire.openapi.server import serve_http
from opwire_conformance.harness import soon
from tests.client.samples import ME, WAYS, Way
from tests.hub.meeting import OPEN
from tests.servers.faults import FaultProxy

QUICK = Retries(max_back_off=0.02, outage=20)


class Log:
    """Numbers from 1, each with its cursor; a stream fails behind those in `breaks`."""

    def __init__(self, *, breaks: set[int] | None = None, count: int = 9) -> None:
        self.breaks = set(breaks or ())
        self.failure = CallError("UNAVAILABLE", "the stream broke")
        self.opened: list[str | None] = []
        self.registry = OperationRegistry()

        @self.registry.subscription("log.follow")
        async def follow(first: int = 1, resume_from: str | None = None) -> AsyncIterator[Item[int]]:
            self.opened.append(resume_from)
            for number in range(first if resume_from is None else int(resume_from) + 1, count + 1):
                yield Item(number, cursor=str(number))
                if number in self.breaks:
                    self.breaks.discard(number)
                    raise self.failure

        @self.registry.subscription("log.plain")
        async def plain() -> AsyncIterator[int]:
            yield 1
            raise self.failure

        @self.registry.subscription("log.unavailable")
        async def unavailable(resume_from: str | None = None) -> AsyncIterator[Item[int]]:
            self.opened.append(resume_from)
            raise self.failure
            yield Item(1, cursor="1")


async def every(items: Any) -> list[Any]:
    return [each async for each in items]


async def refusal(items: Any) -> CallError:
    with pytest.raises(CallError) as raised:
        await soon("it is refused", every(items))
    return raised.value


async def test_a_lost_subscription_goes_on_behind_its_last_item(way: Way) -> None:
    log = Log(breaks={1, 4, 5})
    async with way(log.registry, retries=QUICK) as client:
        got = await soon("it ends", every(client.subscribe("log.follow", {"first": 1}, resume=True)))
    assert got == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert log.opened == [None, "1", "4", "5"]


async def test_a_subscription_begins_behind_a_stored_cursor(way: Way) -> None:
    log = Log()
    async with way(log.registry) as client:
        items = client.subscribe_envelopes("log.follow", resume_from="7")
        assert [(each.data, each.cursor) for each in await soon("it ends", every(items))] == [(8, "8"), (9, "9")]


async def test_what_cannot_be_resumed_is_an_error_and_does_not_start_over(way: Way) -> None:
    log = Log()
    async with way(log.registry, retries=QUICK) as client:
        for items in (
            client.subscribe("log.plain", resume=True),
            client.subscribe("log.plain", resume_from="3"),
        ):
            error = await refusal(items)
            assert is_resume_error(error), error
            assert error.code == "VALIDATION_ERROR"
            assert not error.retryable
            assert "log.plain" in error.message
            assert "cannot be resumed" in error.message


@pytest.mark.parametrize("cursor", ["", " 1", "1\n2", "x" * 4097, "é" * 2049, "\ud800"])
async def test_a_text_that_is_not_a_cursor_is_refused_on_both_sides(cursor: str) -> None:
    """A cursor is a printable text of at most 4,096 bytes."""
    async with WAYS["registry"](Log().registry) as client:
        assert is_resume_error(await refusal(client.subscribe("log.follow", resume_from=cursor)))
    with pytest.raises(UsageError, match="a cursor is a printable text of 1 to 4,096 bytes"):
        Item(1, cursor=cursor)


async def test_without_success_the_loss_is_final() -> None:
    log = Log()
    async with WAYS["registry"](log.registry, retries=Retries(max_back_off=0.01, outage=0.1)) as client:
        error = await refusal(client.subscribe("log.unavailable", resume=True, resume_from="2"))
    assert error is log.failure
    assert len(log.opened) > 2
    assert set(log.opened) == {"2"}


@pytest.mark.parametrize("code", ["TIMEOUT", "EXECUTION_ERROR", "ABORTED", "OPERATION_NOT_FOUND"])
async def test_other_errors_are_not_losses(code: str) -> None:
    log = Log()
    log.failure = CallError(code, "it failed")
    async with WAYS["registry"](log.registry, retries=QUICK) as client:
        assert await refusal(client.subscribe("log.unavailable", resume=True)) is log.failure
    assert log.opened == [None]


async def test_a_server_that_is_unknown_for_a_moment_is_waited_for() -> None:
    log = Log(breaks={2})
    log.failure = CallError("OPERATION_NOT_FOUND", "it restarts")
    async with WAYS["registry"](log.registry, retries=QUICK) as client:
        got = await soon("it ends", every(client.subscribe("log.follow", resume=True)))
    assert got == [1, 2, 3, 4, 5, 6, 7, 8, 9]


async def test_timeouts_of_the_caller_end_a_subscription_that_cannot_be_resumed_yet() -> None:
    async with WAYS["registry"](Log().registry, retries=Retries(max_back_off=0.01)) as client:
        for items in (
            client.subscribe("log.unavailable", resume=True, idle_timeout=0.1),
            client.subscribe("log.unavailable", resume=True, timeout=0.1),
        ):
            error = await refusal(items)
            assert error.code in ("TIMEOUT", "UNAVAILABLE")


async def test_a_closed_client_does_not_resume() -> None:
    log = Log(breaks={1})
    async with WAYS["registry"](log.registry, retries=QUICK) as client:
        items = client.subscribe("log.follow", resume=True)
        assert await anext(items) == 1
        await client.close()
        assert await refusal(items) is log.failure


async def test_interceptors_see_one_subscription_with_all_its_items() -> None:
    log, seen = Log(breaks={3, 6}), list[Any]()

    def watch(spec: OperationSpec, handler: Handler) -> Handler:
        async def stream(input: Any, context: Context) -> AsyncIterator[ResponseEnvelope[Any]]:
            seen.append(spec.id)
            async with aclosing(handler(input, context)) as items:
                async for each in items:
                    seen.append(each.data)
                    yield each

        return stream

    async with WAYS["registry"](log.registry, retries=QUICK) as client:
        client.use(watch)
        assert await every(client.subscribe("log.follow", resume=True)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert seen == ["log.follow", 1, 2, 3, 4, 5, 6, 7, 8, 9]


async def test_the_cursor_of_a_call_is_not_that_of_calls_inside_it(way: Way) -> None:
    log = Log()
    client: Client

    @log.registry.subscription("log.twice")
    async def twice(context: Context, resume_from: str | None = None) -> AsyncIterator[Item[Any]]:
        plain = client.subscribe("log.follow", {"first": 8}, context=context.detached())
        own = context.env.log.follow(first=9)
        yield Item([resume_from, await every(plain), [each.data async for each in own]], cursor="1")

    async with way(log.registry) as client:
        items = client.subscribe("log.twice", resume_from="5")
        assert await soon("it ends", every(items)) == [["5", [8, 9], [9]]]


async def test_a_server_that_drains_hands_its_subscriptions_to_another() -> None:
    """A hub, two spokes: the first leaves in the middle, and the second continues."""
    reached = asyncio.Event()

    def spoke(name: str) -> OperationRegistry:
        registry = OperationRegistry()

        @registry.subscription("log.shared")
        async def shared(resume_from: str | None = None) -> AsyncIterator[Item[list[Any]]]:
            for number in range(int(resume_from or 0) + 1, 7):
                yield Item([name, number], cursor=str(number))
                if name == "first" and number == 3:
                    reached.set()
                    await asyncio.Event().wait()

        return registry

    async with (
        Hub(None, "ws://127.0.0.1:0", authenticate=OPEN) as hub,
        Spoke(spoke("first"), hub.url) as first,
        Client(hub.url, retries=QUICK) as client,
    ):
        following = asyncio.create_task(every(client.subscribe("log.shared", resume=True)))
        await soon("the first is in the middle", reached.wait())
        async with Spoke(spoke("second"), hub.url):
            assert await soon("nothing is waited for", first.drain())
            got = await soon("it ends", following)
    assert got == [["first", number] for number in (1, 2, 3)] + [["second", number] for number in (4, 5, 6)]


async def test_a_caller_can_learn_beforehand_what_can_be_resumed(way: Way) -> None:
    """Descriptions of operations say whether they can be resumed."""
    async with way(Log().registry) as client:
        found = {spec.id: spec.resumable for spec in await client.operations()}
    assert found == {"log.follow": True, "log.plain": False, "log.unavailable": True}


async def test_an_identity_without_access_learns_nothing_of_a_cursor() -> None:
    registry = Log().registry
    async with Client(registry, act_as=ME) as client:
        assert "Operation not found" in str(await refusal(client.subscribe("log.none", resume_from="1")))


async def test_events_over_http_lose_no_item_while_connections_are_cut() -> None:
    count, cuts = 600, {40, 41, 300}
    registry = OperationRegistry()

    @registry.subscription("log.count")
    async def numbers(resume_from: str | None = None) -> AsyncIterator[Item[int]]:
        for number in range(int(resume_from or 0) + 1, count + 1):
            yield Item(number, cursor=str(number))
            await asyncio.sleep(0)

    async with (
        serve_http(registry, anonymous=ME).listening(drain_timeout=1) as address,
        FaultProxy("127.0.0.1", urlsplit(address).port or 0) as proxy,
        Client(f"http://127.0.0.1:{proxy.port}", retries=QUICK) as client,
    ):
        got: list[int] = []

        async def follow() -> None:
            async for number in client.subscribe("log.count", resume=True):
                got.append(number)
                if number in cuts:
                    proxy.cut()

        await asyncio.wait_for(follow(), 60)
    assert got == list(range(1, count + 1))
