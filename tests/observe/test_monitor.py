"""Figures and records of calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from opwire import CallError, Context, Identity, OperationRegistry, mcp_envelope
from opwire.errors import ErrorCode
from opwire.observe.monitor import (
    CALLS,
    MAX_RECORDS,
    MAX_WATCHERS,
    STATISTICS,
    CallMonitor,
    CallRecord,
    CallWatcher,
    OperationTimings,
    ServerStatistics,
    json_size,
)
from opwire.registry.dispatch import Dispatcher

PATIENCE = 20.0


class Watch:
    """A subscription of `opwire.calls`; entered when it has begun."""

    def __init__(self, monitor: CallMonitor, **wanted: Any) -> None:
        self._monitor = monitor
        self._items = monitor.operations.subscribe(CALLS, wanted, Context())
        self._next: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> "Watch":
        before = len(self._monitor._watchers)
        self._next = asyncio.ensure_future(anext(self._items))
        async with asyncio.timeout(PATIENCE):
            while len(self._monitor._watchers) == before:
                await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._items.aclose()

    async def next(self) -> Any:
        """The next record, as JSON data."""
        assert self._next is not None
        async with asyncio.timeout(PATIENCE):
            envelope = await self._next
        self._next = asyncio.ensure_future(anext(self._items))
        return envelope.data


def shop() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.price")
    async def price(article: str) -> float:
        if article == "rare":
            raise CallError("TIMEOUT", "a secret")
        if article == "broken":
            raise ZeroDivisionError
        return 1.5

    @registry.query("shop.tool")
    async def tool() -> Any:
        return mcp_envelope("no", is_error=True, content=[])

    @registry.subscription("shop.orders")
    async def orders() -> AsyncIterator[int]:
        yield 1
        yield 2

    return registry


class Surface:
    """A registry behind a dispatcher with a monitor."""

    def __init__(self) -> None:
        registry = shop()
        self.monitor = CallMonitor(registry, name="shop", version="2", kind="server")
        self.dispatcher = Dispatcher(registry, own=lambda: self.monitor.operations)
        self.dispatcher.use(self.monitor.interceptor("http"))

    async def call(self, id: str, input: Any = None, **context: Any) -> Any:
        given = {"request_id": "r1", "identity": Identity(id="ann", scopes=("*",)), **context}
        spec = self.dispatcher.find(id, given["identity"])
        try:
            return (await self.dispatcher.execute(spec, input, Context(**given))).data
        except CallError as error:
            return error.code


async def test_a_call_is_recorded_with_its_caller_outcome_duration_and_sizes_and_without_its_data() -> None:
    surface = Surface()
    async with Watch(surface.monitor) as watch:
        assert await surface.call("shop.price", {"article": "tea"}) == 1.5
        record = await watch.next()
        assert record.pop("time") > 1.7e12
        assert record.pop("ms") >= 0
        assert record == {
            "requestId": "r1",
            "operationId": "shop.price",
            "outcome": "OK",
            "server": "shop",
            "via": "http",
            "caller": "ann",
            "inputBytes": len('{"article":"tea"}'),
            "outputBytes": len("1.5"),
        }


async def test_the_outcome_is_the_code_of_the_error_and_its_text_is_not_recorded() -> None:
    surface = Surface()
    async with Watch(surface.monitor) as watch:
        for article, code in (("rare", "TIMEOUT"), ("broken", "EXECUTION_ERROR"), (7, "VALIDATION_ERROR")):
            assert await surface.call("shop.price", {"article": article}) == code
            record = await watch.next()
            assert record["outcome"] == code
            assert "secret" not in str(record)
        await surface.call("shop.tool")
        assert (await watch.next())["outcome"] == "TOOL_ERROR"


async def test_a_subscription_is_recorded_with_the_number_of_its_items() -> None:
    surface = Surface()
    async with Watch(surface.monitor) as watch:
        spec = surface.dispatcher.find("shop.orders", Identity(id="ann"))
        async with aclosing(surface.dispatcher.subscribe(spec, None, Context())) as items:
            assert [item.data async for item in items] == [1, 2]
        assert ((record := await watch.next())["items"], record["outcome"]) == (2, "OK")
        assert "caller" not in record


@pytest.mark.parametrize(
    ("wanted", "selected"),
    [
        ({"id": "b"}, ["b1", "b2"]),
        ({"operation": "shop.pr*"}, ["a1", "b2"]),
        ({"operation": "shop.price"}, ["a1", "b2"]),
        ({"outcome": "OK"}, ["a1"]),
        ({"outcome": "error"}, ["b1", "b2"]),
        ({"outcome": "TIMEOUT"}, ["b2"]),
        ({"caller": "ann"}, ["a1"]),
        ({"operation": "shop.pr*", "outcome": "error"}, ["b2"]),
    ],
)
async def test_records_are_filtered_at_the_server(wanted: dict[str, str], selected: list[str]) -> None:
    """Records are filtered by request id, operation, outcome and caller at the server."""
    monitor = CallMonitor(shop())
    async with Watch(monitor, **wanted) as watch:
        monitor.record("a1", "shop.price", "OK", 0.1, "call", caller="ann")
        monitor.record("b1", "shop.tool", "TOOL_ERROR", 0.1, "call")
        monitor.record("b2", "shop.price", "TIMEOUT", 0.1, "call", caller="bob")
        assert [(await watch.next())["requestId"] for _ in selected] == selected
        monitor.close()
        with pytest.raises(StopAsyncIteration):
            await watch.next()


async def test_a_slow_watcher_loses_the_oldest_records_and_learns_how_many() -> None:
    monitor = CallMonitor(shop())
    async with Watch(monitor) as watch:
        for number in range(MAX_RECORDS + 5):
            monitor.record(str(number), "shop.price", "OK", 0.1, "call")
        first, second = await watch.next(), await watch.next()
        assert (first["requestId"], first["dropped"]) == ("5", 5)
        assert (second["requestId"], "dropped" in second) == ("6", False)


async def test_ids_that_a_caller_chooses_do_not_fill_the_records() -> None:
    monitor, long = CallMonitor(shop()), "x" * 2_000_000
    async with Watch(monitor) as watch:
        monitor.record(long, long, "OPERATION_NOT_FOUND", 0.1, "call", parent_request_id=long)
        record = await watch.next()
        assert [len(record[name]) for name in ("requestId", "operationId", "parentRequestId")] == [1_000] * 3


async def test_the_number_of_watchers_is_bounded() -> None:
    monitor = CallMonitor(shop())
    async with AsyncExitStack() as watching:
        for _ in range(MAX_WATCHERS):
            await watching.enter_async_context(Watch(monitor))
        with pytest.raises(CallError) as failed:
            await anext(monitor.operations.subscribe(CALLS, None, Context()))
    assert failed.value.code is ErrorCode.RATE_LIMITED


async def test_without_a_watcher_nothing_is_recorded_and_its_coming_and_going_is_reported() -> None:
    monitor, reported = CallMonitor(shop()), list[bool]()
    monitor.on_watched = reported.append
    assert not monitor.watched
    async with Watch(monitor), Watch(monitor):
        assert monitor.watched
        assert reported == [True]
    assert not monitor.watched
    assert reported == [True, False]


async def test_calls_of_the_monitor_itself_are_neither_counted_nor_recorded() -> None:
    surface = Surface()
    async with Watch(surface.monitor) as watch:
        found = await surface.call(STATISTICS)
        assert (found["calls"], found["inFlight"], found["watchers"]) == (0, 0, 1)
        surface.monitor.record("x", STATISTICS, "OK", 0.1, "call")
        await surface.call("shop.price", {"article": "tea"})
        assert (await watch.next())["operationId"] == "shop.price"


async def test_the_figures_of_a_server() -> None:
    surface = Surface()
    for article in ("tea", "rare", "tea"):
        await surface.call("shop.price", {"article": article})
    await surface.call("shop.tool")
    found = await surface.call(STATISTICS)
    assert (found["name"], found["version"], found["kind"], found["status"]) == ("shop", "2", "server", "serving")
    assert (found["operations"], found["calls"], found["errors"]) == (3, 4, 1)
    assert [(each["id"], each["calls"], each["lastError"]) for each in found["busiest"]] == [
        ("shop.price", 3, "TIMEOUT"),
        ("shop.tool", 1, None),
    ]


@pytest.mark.parametrize("id", [STATISTICS, CALLS])
@pytest.mark.parametrize(
    ("identity", "code"),
    [
        (None, "UNAUTHENTICATED"),
        (Identity(id="ann", scopes=("shop",)), "ACCESS_DENIED"),
        (Identity(id="ann", scopes=("opwire:observe",)), None),
        (Identity(id="ann", scopes=("*",)), None),
    ],
)
def test_observing_needs_a_scope_of_its_own(id: str, identity: Identity | None, code: str | None) -> None:
    dispatcher = Surface().dispatcher
    if code is None:
        assert dispatcher.find(id, identity).id == id
        return
    with pytest.raises(CallError) as failed:
        dispatcher.find(id, identity)
    assert failed.value.code == code


def test_the_operations_of_the_monitor_are_not_listed_and_the_registry_overrides_them() -> None:
    surface, boss = Surface(), Identity(id="boss", scopes=("*",))
    assert all(spec.namespace == "shop" for spec in surface.dispatcher.visible(boss))
    registry = surface.dispatcher.registry
    registry.query(STATISTICS)(lambda: 7)
    assert surface.dispatcher.find(STATISTICS, boss) is registry.get_spec(STATISTICS)


def test_a_value_without_a_json_form_has_no_size() -> None:
    assert (json_size({"a": 1}), json_size(object())) == (7, None)


def test_percentiles_are_at_most_a_quarter_too_high() -> None:
    timings, seconds = OperationTimings(), [1.001**number / 1e5 for number in range(10_000)]
    for each in seconds:
        timings.add(each, "OK")
    for share, found in zip((0.5, 0.95, 0.99), timings.percentiles(0.5, 0.95, 0.99), strict=True):
        exact = 1000 * seconds[int(share * len(seconds)) - 1]
        assert exact <= found <= 1.26 * exact
    assert sum(count for _, count in timings.histogram()) == len(seconds)


def test_any_duration_has_a_bucket_and_there_are_few() -> None:
    timings = OperationTimings()
    for exponent in range(-9, 300):
        timings.add(10.0**exponent, "OK")
    for number in range(20):
        timings.add(number / 1e6, "TIMEOUT")
    assert len(timings.buckets) < 160
    uppers = [upper for upper, _ in timings.histogram()]
    assert uppers == sorted(uppers)
    assert uppers[:9] == [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01]
    assert timings.outcomes["TIMEOUT"] == 20


async def test_durations_are_kept_for_known_operations_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = shop()
    monitor = CallMonitor(registry)
    monitor.count("shop.price", 0.1, "OK")
    before = monitor.timings
    assert before is None
    monitor.keep_timings()
    monitor.count("shop.price", 0.1, "OK")
    monitor.count("shop.unknown", 0.1, "OK")
    monitor.time("shop.price", 0.1, "TIMEOUT")
    assert monitor.timings is not None
    assert {id: each.outcomes for id, each in monitor.timings.items()} == {"shop.price": {"OK": 1, "TIMEOUT": 1}}


async def test_a_record_that_is_created_lazily_is_filtered_as_any_other() -> None:
    created = list[str]()

    def create(id: str) -> CallRecord:
        created.append(id)
        return CallRecord(time=0, request_id=id, operation_id="a.b", outcome="OK", ms=1, server="s", via="relay")

    monitor = CallMonitor(shop())
    everything, some = CallWatcher(), CallWatcher(id="x")
    with monitor.watching(everything), monitor.watching(some):
        monitor.record_lazily("OK", create, "y1")
        monitor.record_lazily("OK", create, "x1")
        assert created == ["y1", "x1"]
        assert [each.request_id for each in some.take()[0]] == ["x1"]
        assert [each.request_id for each in everything.take()[0]] == ["y1", "x1"]
        assert everything.take() == ([], 0)


async def test_a_watcher_with_a_rate_counts_the_calls_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("opwire.observe.monitor.time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    monitor, watcher = CallMonitor(shop()), CallWatcher(rate=100)

    def record(number: int, outcome: str = "OK") -> None:
        for each in range(number):
            monitor.record(f"r{each}", "shop.price", outcome, 0.001, "call")

    with monitor.watching(watcher):
        record(300)
        record(5, "TIMEOUT")  # errors are shown beyond it
        records, dropped = watcher.take()
        assert (len(records), dropped) == (105, 200)
        assert [each.outcome for each in records[-5:]] == ["TIMEOUT"] * 5
        record(10)
        assert [len(records) for records, _ in (watcher.take(), watcher.take())] == [1, 0]  # one, however late it is
        now += 0.5
        watcher.take()
        record(200)
        records, dropped = watcher.take()
        assert (len(records), dropped) == (52, 148)
        now += 3600
        watcher.take()
        record(2_000)
        assert len(watcher.take()[0]) == 1_000


async def test_a_stream_with_a_rate_counts_the_calls_beyond_it_and_goes_on() -> None:
    monitor = CallMonitor(shop())
    async with Watch(monitor, rate=10) as watch:
        for number in range(30):
            monitor.record(f"r{number}", "shop.price", "OK", 0.001, "call")
        monitor.record("wrong", "shop.price", "TIMEOUT", 0.001, "call")
        records = [await watch.next() for _ in range(11)]
        assert [each["requestId"] for each in records] == [*(f"r{number}" for number in range(10)), "wrong"]
        assert sum(each.get("dropped", 0) for each in records) == 20
        waiting = asyncio.ensure_future(watch.next())
        async with asyncio.timeout(PATIENCE):
            while not waiting.done():  # the stream allows records again after a tenth of a second
                monitor.record("later", "shop.price", "OK", 0.001, "call")
                await asyncio.sleep(0.01)
        assert waiting.result()["requestId"] == "later"


@pytest.mark.parametrize(
    "wrong",
    [
        {"started": 10**30},
        {"calls": -1},
        {"inFlight": 10**30},
        {"seconds": 1e300},
        {"busiest": [{"id": "a.b", "calls": 10**30}]},
        {"busiest": [{"id": "a.b"}] * 2_000},
    ],
)
def test_figures_of_a_server_that_are_out_of_range_are_rejected(wrong: dict[str, Any]) -> None:
    figures = msgspec.to_builtins(CallMonitor(OperationRegistry(), name="shop").snapshot())
    msgspec.convert(figures, ServerStatistics)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(figures | wrong, ServerStatistics)


def test_a_record_of_no_time_is_rejected() -> None:
    call = {"requestId": "1", "operationId": "a.b", "outcome": "OK", "ms": 1.0, "server": "x", "via": "call"}
    assert msgspec.convert({"time": 1, **call}, CallRecord).time == 1
    for time in (-1, 10**18):  # a terminal could not show it
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"time": time, **call}, CallRecord)
