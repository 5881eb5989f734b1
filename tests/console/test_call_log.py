"""The live part of the console: calls, figures, values and approvals."""

import asyncio
import time
from typing import Any

import aiohttp
import pytest

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry
from opwire.auth import tokens
from opwire.console import ConsoleSystem, call_log
from opwire.console.call_log import RecentValues
from opwire.observe.monitor import CallMonitor, CallRecord
from opwire.policies import Approval, ApprovalQueue
from tests.console.served import CLERK, Page, Revocable, make_registry, page_of


async def until(events: Any, name: str) -> Any:
    """Return the data of the next event of this name."""
    async with asyncio.timeout(10):
        async for event in events:
            if event.name == name:
                return event.data
    raise AssertionError(f"no event {name}")


def nested_registry() -> OperationRegistry:
    registry = make_registry()

    @registry.query("shop.total", access=AccessControl(public=True))
    async def total(a: int, password: str, context: Context) -> int:
        return await context.env.math.add(a=a, b=1)

    return registry


async def test_calls_of_all_surfaces_and_nested_ones_are_shown_with_their_parents() -> None:
    registry = nested_registry()
    monitor = CallMonitor(registry)
    async with page_of(registry, monitor=monitor) as page:
        await page.log_in()
        async with page.stream("GET", "events") as events:
            hello = await until(events, "hello")
            assert hello["server"]["id"] == monitor.id
            await page.result("shop.total", {"a": 1, "password": "p"})
            await registry.execute("math.add", {"a": 1})
            records = list[dict[str, Any]]()
            while len(records) < 3:
                records += (await until(events, "calls"))["records"]
        inner, outer, local = records
        assert (inner["operationId"], inner["via"], inner["parentRequestId"]) == (
            "math.add",
            "local",
            outer["requestId"],
        )
        assert (outer["operationId"], outer["via"], outer["outcome"]) == ("shop.total", "console", "OK")
        assert (local["requestId"], local["via"]) == ("", "local")
        assert monitor.snapshot().calls == 1


async def test_calls_and_figures_need_a_scope() -> None:
    registry = make_registry()
    async with page_of(registry) as page:
        await page.log_in(CLERK)
        async with page.stream("GET", "events?values=1") as events:
            await until(events, "hello")
            await page.result("math.add", {"a": 1})
            registry.unregister("shop.large")
            seen = [await anext(events)]
        assert seen[0].name == "changed"
        assert (await page.api("GET", "calls/x")).status == 403
        assert (await page.api("GET", "system")).status == 403


async def test_a_change_of_the_operations_is_sent_to_every_client() -> None:
    registry = make_registry()
    async with page_of(registry) as page, page.stream("GET", "events") as events:
        revision = (await until(events, "hello"))["revision"]
        registry.unregister("math.add")
        changed = (await until(events, "changed"))["revision"]
        assert changed != revision
        assert (await page.api("GET", "operations")).json["revision"] == changed


async def test_figures_are_sent_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_log, "STATISTICS_INTERVAL", 0.01)
    async with page_of() as page:
        await page.log_in()
        async with page.stream("GET", "events") as events:
            first = await until(events, "statistics")
            assert first["calls"] == 0
            assert abs(first["measured"] / 1000 - time.time()) < 60
            await page.result("math.add", {"a": 1})
            while (await until(events, "statistics"))["calls"] != 1:
                pass


async def test_a_thousand_calls_arrive_in_few_batches() -> None:
    registry = make_registry()
    async with page_of(registry) as page:
        await page.log_in()
        async with page.stream("GET", "events") as events:
            await until(events, "hello")
            await until(events, "statistics")
            for _ in range(1_000):
                await registry.execute("math.add", {"a": 1})
            batches = [await until(events, "calls")]
            while sum(len(each["records"]) + each["dropped"] for each in batches) < 1_000:
                batches.append(await until(events, "calls"))
        assert len(batches) < 20


async def test_of_very_many_calls_all_are_counted_and_the_errors_shown() -> None:
    registry = make_registry()
    monitor = CallMonitor(registry)
    async with page_of(registry, monitor=monitor) as page:
        await page.log_in()
        async with page.stream("GET", "events") as events:
            await until(events, "statistics")
            for number in range(2_500):  # without giving the page a turn
                monitor.record(f"x{number}", "math.add", "TIMEOUT" if number % 100 == 99 else "OK", 0.001, "local")
            batch = await until(events, "calls")
            assert len(batch["records"]) + batch["dropped"] == 2_500
            assert len(batch["records"]) == call_log.MAX_CALLS_WITH_VALUES
            assert sum(each["outcome"] == "TIMEOUT" for each in batch["records"]) == 25
            monitor.record("later", "math.add", "OK", 0.001, "local")
            assert (await until(events, "calls"))["records"][0]["requestId"] == "later"


async def test_the_server_filters_for_a_page_that_asks_for_it() -> None:
    registry = make_registry()
    monitor = CallMonitor(registry)
    async with page_of(registry, monitor=monitor) as page:
        await page.log_in()
        async with page.stream("GET", "events?filter=caller%3AAN+add") as events:
            await until(events, "statistics")
            for caller in ("bob", "ann"):
                monitor.record(f"of {caller}", "math.add", "OK", 0.001, "local", caller=caller)
            assert [each["requestId"] for each in (await until(events, "calls"))["records"]] == ["of ann"]


@pytest.mark.parametrize(
    ("words", "is_found"),
    [
        ("outcome:timeout via:loc", True),
        ("ADD R2", True),
        ("operation:r2", False),
        ("id:r2 caller:ann", False),
        ("caller:", True),
        ("math:x", False),
    ],
)
def test_a_filter_has_words_for_any_column_or_one(words: str, is_found: bool) -> None:
    record = CallRecord(
        time=0, request_id="r2", operation_id="math.add", outcome="TIMEOUT", ms=1, server="s", via="local"
    )
    assert call_log.matcher(words)(record) is is_found


async def test_a_batch_is_taken_and_encoded_once_for_all_pages() -> None:
    monitor = CallMonitor(make_registry())
    feed = call_log.CallFeed(monitor)
    first, second = call_log.WatchingPage(), call_log.WatchingPage()
    async with feed.reading(first, ""):
        async with feed.reading(second, ""):
            assert monitor.snapshot().watchers == 1
            for each in (first, second):
                each.take()  # the figures
            monitor.record("r1", "math.add", "OK", 0.001, "local")
            first.news.clear()
            async with asyncio.timeout(10):
                await first.news.wait()
            ((name, data),) = first.take()
            assert name == "calls"
            assert b'"r1"' in data
            assert second.take()[0][1] is data
        monitor.record("r2", "math.add", "OK", 0.001, "local")  # the first page is still there
        first.news.clear()
        async with asyncio.timeout(10):
            await first.news.wait()
        assert b'"r2"' in first.take()[0][1]
    assert monitor.snapshot().watchers == 0


def test_a_page_that_does_not_read_loses_the_oldest_batches_and_learns_how_many_calls_they_had() -> None:
    page = call_log.WatchingPage()
    for number in range(12):
        page.put("calls", b"%d" % number, calls=100)
    lost, *kept = page.take()
    assert lost == ("calls", {"records": (), "dropped": 200})
    assert [data for _, data in kept] == [b"%d" % number for number in range(2, 12)]
    assert page.take() == []


async def test_the_streams_of_one_identity_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_log, "MAX_STREAMS_OF_IDENTITY", 2)
    monkeypatch.setattr(call_log, "MAX_ANONYMOUS_STREAMS", 1)
    async with page_of() as page, page.stream("GET", "events") as anonymous:
        await until(anonymous, "hello")
        assert (await page.api("GET", "events")).status == 429
        await page.log_in()
        async with page.stream("GET", "events") as first:
            await until(first, "hello")
            async with page.stream("GET", "events") as second:
                await until(second, "hello")
                reply = await page.api("GET", "events")
                assert (reply.status, reply.problem["code"]) == (429, "RATE_LIMITED")


async def test_values_are_kept_only_while_they_are_watched_and_have_no_secrets() -> None:
    registry = nested_registry()
    async with page_of(registry) as page:
        await page.log_in()
        async with page.stream("GET", "events") as events:
            await until(events, "hello")
            await page.result("shop.total", {"a": 1, "password": "hunter2"})
            record = (await until(events, "calls"))["records"][-1]
            assert (await page.api("GET", f"calls/{record['requestId']}")).status == 404
        async with page.stream("GET", "events?values=1") as events:
            await until(events, "hello")
            await page.result("shop.total", {"a": 1, "password": "hunter2"})
            inner, outer = (await until(events, "calls"))["records"]
            shown = (await page.api("GET", f"calls/{outer['requestId']}")).json
            assert shown == {
                "input": {"a": 1, "password": "***"},
                "output": 2,
                "error": None,
                "truncated": False,
            }
            assert (await page.api("GET", f"calls/{inner['requestId']}")).json["input"] == {"a": 1, "b": 1}
            await page.call("shop.total", {"a": "x"})
            failed = (await until(events, "calls"))["records"][-1]
            assert "VALIDATION_ERROR" in (await page.api("GET", f"calls/{failed['requestId']}")).json["error"]


def test_values_are_bounded_and_dropped_with_the_last_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_log, "MAX_CALLS_WITH_VALUES", 3)
    monitor = CallMonitor(OperationRegistry())
    values = RecentValues(monitor)
    assert monitor.on_values is None
    with values.watching(), values.watching():
        for number in range(5):
            values.put(str(number), {"n": number}, "x" * call_log.MAX_VALUE_BYTES if number == 4 else number)
        assert values.shown("4") == {"input": {"n": 4}, "output": None, "error": None, "truncated": True}
        with pytest.raises(CallError, match="not kept"):
            values.shown("1")
        monkeypatch.setattr(call_log, "MAX_BYTES_OF_VALUES", 20)
        values.put("5", "x" * 15, None)
        with pytest.raises(CallError, match="not kept"):
            values.shown("3")
    assert monitor.on_values is None
    with pytest.raises(CallError, match="not kept"):
        values.shown("5")


async def test_calls_that_wait_for_approval_are_shown_and_decided_on_the_page() -> None:
    registry, queue = make_registry(), ApprovalQueue()
    registry.use(Approval(queue))
    async with page_of(registry, system=ConsoleSystem(approvals=queue)) as page:
        await page.log_in()
        me = Context(identity=Identity(id="ann"), request_id="r1")
        calling = asyncio.create_task(registry.execute("shop.order", {"lines": ["a"], "password": "p"}, me))
        async with page.stream("GET", "events") as events:
            waiting = await until(events, "approval")
            assert (waiting["operationId"], waiting["identity"], waiting["requestId"]) == ("shop.order", "ann", "r1")
            assert waiting["input"] == {"lines": ["a"], "password": "***"}
            assert waiting["expires"] > waiting["since"]
            reply = await page.api("POST", f"approvals/{waiting['id']}", {"approve": True})
            assert reply.status == 204
            assert (await calling).data == ["a"]
            ended = await until(events, "approvalEnded")
            assert ended == {"id": waiting["id"], "outcome": "approved", "by": "owner", "reason": ""}
            assert (await page.api("POST", f"approvals/{waiting['id']}", {"approve": True})).status == 404
            calling = asyncio.create_task(registry.execute("shop.order", {"lines": ["a"]}, me))
            waiting = await until(events, "approval")
            await page.api("POST", f"approvals/{waiting['id']}", {"approve": False, "reason": "not today"})
            with pytest.raises(CallError, match="not today"):
                await calling


async def test_only_a_person_with_the_scope_sees_and_decides_approvals() -> None:
    registry, queue = make_registry(), ApprovalQueue()
    registry.use(Approval(queue))
    async with page_of(registry, system=ConsoleSystem(approvals=queue)) as page:
        assert (await page.api("POST", "approvals/x", {"approve": True})).status == 401
        await page.log_in(CLERK)
        calling = asyncio.create_task(registry.execute("shop.order", {"lines": []}))
        async with page.stream("GET", "events") as events:
            await until(events, "hello")
            registry.unregister("shop.large")
            assert (await anext(events)).name == "changed"
        (request,) = queue.waiting
        assert (await page.api("POST", f"approvals/{request.id}", {"approve": True})).status == 403
        calling.cancel()


async def test_a_server_without_approvals_has_none_to_decide() -> None:
    async with page_of() as page:
        await page.log_in()
        assert (await page.api("POST", "approvals/x", {"approve": True})).status == 404


async def test_logging_out_ends_the_streams_of_the_session_and_no_others() -> None:
    async with page_of() as page, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as other:
        await page.log_in()
        elsewhere = Page(other, page.address)
        await elsewhere.log_in()
        async with page.stream("GET", "events") as events, elsewhere.stream("GET", "events") as others:
            await until(events, "statistics")
            await until(others, "statistics")
            await page.api("DELETE", "session")
            assert (await until(events, "error"))["code"] == "UNAUTHENTICATED"
            assert await until(others, "statistics")


@pytest.mark.parametrize("by_cookie", [True, False])
async def test_a_stream_ends_soon_after_its_token_was_revoked(monkeypatch: pytest.MonkeyPatch, by_cookie: bool) -> None:
    monkeypatch.setattr(tokens, "RECHECK", 0.01)
    auth = Revocable()
    async with page_of(authenticate=auth) as page:
        if by_cookie:
            await page.log_in()
        else:
            page.session.headers["authorization"] = "Bearer of-a-program"
        async with page.stream("GET", "events") as events:
            await until(events, "hello")
            auth.valid = False
            assert (await until(events, "error"))["code"] == "UNAUTHENTICATED"


async def test_calls_nested_in_an_operation_of_a_view_are_shown() -> None:
    registry = nested_registry()
    async with page_of(registry.view(include=["shop"])) as page:
        await page.log_in()
        async with page.stream("GET", "events") as events:
            await until(events, "hello")
            await page.result("shop.total", {"a": 1, "password": "p"})
            records = list[dict[str, Any]]()
            while len(records) < 2:
                records += (await until(events, "calls"))["records"]
        assert [each["operationId"] for each in records] == ["math.add", "shop.total"]
