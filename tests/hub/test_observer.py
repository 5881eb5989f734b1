"""The figures and the calls of servers behind a URL."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from opwire import CallError, Client, Context, OperationRegistry
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub, Observer, Spoke
from opwire.model.context import Inbound
from opwire.model.identity import Identity
from opwire.observe.monitor import CallMonitor, CallRecord, CallWatcher
from opwire.openapi.server import serve_http
from tests.hub.meeting import Meeting, Waiting, adding

PATIENCE = 20.0
TOKENS = {name: f"{name}-token-of-a-test" for name in ("math", "ann", "boss")}
AUTH = StaticTokens(
    {
        TOKENS["math"]: Grant(Identity(id="math"), announces=("math", "slow")),
        TOKENS["ann"]: Identity(id="ann"),
        TOKENS["boss"]: Identity(id="boss", scopes=("opwire:observe",)),
    }
)


async def first_record(
    records: AsyncGenerator[CallRecord], call: Callable[[], Awaitable[Any]], watched: Callable[[], bool]
) -> CallRecord:
    """The first record, of a call that is made as soon as the records are being watched."""
    waiting = asyncio.ensure_future(anext(records))
    async with asyncio.timeout(PATIENCE):
        while not watched():
            await asyncio.sleep(0.01)
        await call()
        return await waiting


async def next_record(records: AsyncGenerator[CallRecord]) -> CallRecord:
    async with asyncio.timeout(PATIENCE):
        return await anext(records)


async def failure(work: Awaitable[Any]) -> str:
    with pytest.raises(CallError) as failed:
        async with asyncio.timeout(PATIENCE):
            await work
    return failed.value.code


async def busy_hub(meeting: Meeting, registry: OperationRegistry | None = None) -> tuple[Hub, Spoke]:
    """A hub with a spoke that serves, and one that calls."""
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, registry or adding(), token=TOKENS["math"], name="maths", version="1.2")
    return hub, await meeting.spoke(hub.url, token=TOKENS["ann"])


async def test_a_hub_shows_the_calls_between_its_spokes_once_and_with_their_caller(meeting: Meeting) -> None:
    hub, ann = await busy_hub(meeting)
    async with Observer(hub.url, token=TOKENS["boss"]) as observer, aclosing(observer.calls()) as records:
        watched = hub.handler.monitor
        record = await first_record(records, lambda: ann.call("math.add", {"a": 1, "b": 2}), lambda: watched.watched)
        assert (record.operation_id, record.outcome, record.via) == ("math.add", "OK", "relay")
        assert (record.caller, record.server) == ("ann", "hub")
        assert record.ms > 0
        assert (record.input_bytes or 0) > 10
        assert (record.output_bytes or 0) > 10
        await failure(ann.call("math.add", {"a": 1, "b": "secret"}))
        record = await next_record(records)
        assert (record.outcome, "secret" in str(record)) == ("VALIDATION_ERROR", False)
        await failure(ann.call("math.unknown"))
        record = await next_record(records)
        assert (record.operation_id, record.outcome, record.via) == ("math.unknown", "UNAVAILABLE", "relay")


async def test_the_calls_of_a_spoke_that_is_lost_are_shown_as_unavailable(meeting: Meeting) -> None:
    slow = Waiting("slow.wait")
    hub = await meeting.hub(authenticate=AUTH)
    server = await meeting.spoke(hub.url, slow.registry, token=TOKENS["math"])
    ann = await meeting.spoke(hub.url, token=TOKENS["ann"])
    async with Observer(hub.url, token=TOKENS["boss"]) as observer, aclosing(observer.calls()) as records:

        async def lose() -> None:
            call = asyncio.ensure_future(ann.call("slow.wait"))
            await slow.began.wait()
            await server.close()
            await asyncio.gather(call, return_exceptions=True)

        record = await first_record(records, lose, lambda: hub.handler.monitor.watched)
        assert (record.operation_id, record.outcome) in (("slow.wait", "UNAVAILABLE"), ("slow.wait", "CANCELLED"))


async def test_a_hub_counts_relayed_calls_and_is_listed_with_its_spokes(meeting: Meeting) -> None:
    """A server reports its health, version, operations, calls, errors and open calls."""
    hub, ann = await busy_hub(meeting)
    for _ in range(3):
        await ann.call("math.add", {"a": 1, "b": 2})
    await failure(ann.call("math.add", {"a": "x"}))
    async with Observer(hub.url, token=TOKENS["boss"]) as observer:
        at_hub, at_spoke = [each.statistics for each in await observer.servers()]
    assert at_hub is not None
    assert (at_hub.name, at_hub.kind, at_hub.status, at_hub.operations) == ("hub", "hub", "serving", 1)
    assert (at_hub.calls, at_hub.errors, at_hub.relayed, at_hub.in_flight, at_hub.spokes) == (4, 1, 4, 0, 3)
    assert at_spoke is not None
    assert (at_spoke.name, at_spoke.version, at_spoke.kind) == ("maths", "1.2", "spoke")
    assert (at_spoke.calls, at_spoke.errors, at_spoke.operations) == (4, 1, 1)
    assert [(each.id, each.calls) for each in at_spoke.busiest] == [("math.add", 4)]


async def test_a_caller_without_the_scope_observes_neither_the_hub_nor_a_spoke(meeting: Meeting) -> None:
    hub, _ = await busy_hub(meeting)
    async with Observer(hub.url, token=TOKENS["ann"]) as observer:
        found = await observer.servers()
        assert [each.error and each.error.code for each in found] == ["ACCESS_DENIED", "ACCESS_DENIED"]
        assert await failure(anext(observer.calls())) == "ACCESS_DENIED"
    anonymous = await meeting.hub(None, authenticate=None)
    async with Observer(anonymous.url) as observer:
        assert await failure(anext(observer.calls())) == "UNAUTHENTICATED"


async def test_a_watcher_does_not_hold_up_the_draining_of_a_hub(meeting: Meeting) -> None:
    hub, ann = await busy_hub(meeting)
    async with Observer(hub.url, token=TOKENS["boss"]) as observer, aclosing(observer.calls()) as records:
        await first_record(records, lambda: ann.call("math.add", {"a": 1, "b": 2}), lambda: hub.handler.monitor.watched)
        async with asyncio.timeout(PATIENCE):
            assert await hub.drain(PATIENCE)


@pytest.mark.slow
async def test_all_servers_on_a_broker_are_observed_and_those_that_join_later(broker: str, meeting: Meeting) -> None:
    boss = Identity(id="boss", scopes=("*",))
    one = await meeting.spoke(broker, adding("one"), name="one", anonymous=boss, prefix="observed")
    async with Observer(broker, prefix="observed") as observer, aclosing(observer.calls(operation="*.add")) as records:

        def watched(spoke: Spoke) -> Callable[[], bool]:
            return lambda: spoke.handler.monitor.watched

        record = await first_record(records, lambda: one.call("one.add", {"a": 1, "b": 2}), watched(one))
        assert (record.operation_id, record.server, record.via, record.caller) == ("one.add", "one", "call", "boss")
        assert (record.input_bytes, record.output_bytes) == (len('{"a":1,"b":2}'), 1)
        two = await meeting.spoke(broker, adding("two"), name="two", anonymous=boss, prefix="observed")
        record = await first_record(records, lambda: one.call("two.add", {"a": 1, "b": 2}), watched(two))
        assert (record.operation_id, record.server) == ("two.add", "two")
        names = {each.statistics.name for each in await observer.servers() if each.statistics is not None}
        assert names == {"one", "two"}


async def test_anonymous_clients_of_a_broker_observe_nothing(broker: str, meeting: Meeting) -> None:
    await meeting.spoke(broker, adding("one"), prefix="closed")
    async with Observer(broker, prefix="closed") as observer:
        assert await failure(anext(observer.calls())) == "UNAUTHENTICATED"
        assert [each.error and each.error.code for each in await observer.servers()] == ["UNAUTHENTICATED"]


async def test_an_http_server_with_a_monitor_is_observed_and_does_not_list_its_operations() -> None:
    registry = adding()
    monitor = CallMonitor(registry, name="web")
    app = serve_http(registry, authenticate=AUTH, monitor=monitor)
    async with app.listening(port=0) as url, Observer(url, token=TOKENS["boss"]) as observer:
        async with Client(url, token=TOKENS["ann"]) as ann:
            async with aclosing(observer.calls()) as records:
                record = await first_record(
                    records, lambda: ann.call("math.add", {"a": 1, "b": 2}), lambda: monitor.watched
                )
                assert (record.operation_id, record.caller, record.via, record.server) == (
                    "math.add",
                    "ann",
                    "http",
                    "web",
                )
            assert [spec.id for spec in await ann.operations()] == ["math.add"]
            assert await failure(ann.call("opwire.statistics")) == "ACCESS_DENIED"
        [web] = await observer.servers()
        assert web.statistics is not None
        assert (web.statistics.kind, web.statistics.calls, web.statistics.name) == ("server", 1, "web")


async def test_an_http_server_without_a_monitor_has_no_such_operation() -> None:
    app = serve_http(adding(), authenticate=AUTH)
    async with app.listening(port=0) as url, Observer(url, token=TOKENS["boss"]) as observer:
        [found] = await observer.servers()
    assert found.error is not None
    assert found.error.code == "OPERATION_NOT_FOUND"


async def test_a_hub_returns_the_figures_of_its_spokes(meeting: Meeting) -> None:
    hub, caller = await busy_hub(meeting)
    await caller.call("math.add", {"a": 1, "b": 2})
    found = {each.name: each for each in await hub.servers()}
    assert (found["maths"].version, found["maths"].kind, found["maths"].calls) == ("1.2", "spoke", 1)


async def test_a_hub_times_relayed_calls_once_and_calls_of_its_own_where_they_are_made(meeting: Meeting) -> None:
    """A server can keep how long calls take, by operation, in few counters."""
    hub, caller = await busy_hub(meeting)
    monitor = hub.handler.monitor
    hub.registry.use(monitor.inner_interceptor())
    monitor.keep_timings()
    await caller.call("math.add", {"a": 1, "b": 2})
    await hub.registry.execute("math.add", {"a": 1, "b": 2})
    with pytest.raises(CallError):
        await caller.call("math.add", {"a": "x"})
    assert monitor.timings is not None
    assert monitor.timings["math.add"].outcomes == {"OK": 2, "VALIDATION_ERROR": 1}


async def test_a_relayed_call_is_shown_with_the_call_that_made_it(meeting: Meeting) -> None:
    hub, _ = await busy_hub(meeting)
    watcher = CallWatcher()
    with hub.handler.monitor.watching(watcher):
        context = Context(request_id="outer", inbound=Inbound("outer"), identity=Identity(id="ann"))
        await hub.registry.execute("math.add", {"a": 1, "b": 2}, context)
        (record,), _ = watcher.take()
    assert (record.via, record.parent_request_id) == ("relay", "outer")
