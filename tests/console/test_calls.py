"""Calls made on the page."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire import AccessControl, Context, OperationRegistry
from opwire.console import calls
from opwire.console.calls import KeptResults
from opwire.errors import CallError
from opwire.model.identity import Identity
from opwire.openapi.server.responses import EncodedResponse
from tests.console.served import CLERK, ENDED, OTHER, STARTED, page_of


async def test_a_call_streams_its_start_its_result_and_its_end() -> None:
    async with page_of() as page:
        started, result, end = await page.call("math.add", {"a": 1})
        assert (started.name, result.name, end.name) == ("started", "result", "end")
        assert result.data["envelope"]["data"] == 3
        assert result.data["envelope"]["meta"]["source"] == "local"
        assert end.data["outcome"] == "OK"
        assert end.data["ms"] >= 0


async def test_a_failed_call_streams_the_error_with_its_details() -> None:
    async with page_of() as page:
        _, error, end = await page.call("math.add", {"a": "x"})
        assert (error.name, error.data["code"]) == ("error", "VALIDATION_ERROR")
        assert error.data["details"]["problems"][0]["path"] == "/a"
        assert end.data["outcome"] == "VALIDATION_ERROR"


async def test_a_subscription_streams_its_items() -> None:
    async with page_of() as page:
        await page.log_in()
        events = await page.call("shop.ticks", {"count": 200})
        assert [each.data["envelope"]["data"] for each in events if each.name == "item"] == list(range(200))
        assert (events[-1].data["outcome"], events[-1].data["items"]) == ("OK", 200)


async def test_progress_is_shown_and_a_page_that_goes_away_cancels_the_call() -> None:
    async with page_of() as page:
        await page.log_in()
        async with page.stream("POST", "call", {"operationId": "shop.slow"}) as events:
            assert (await anext(events)).name == "started"
            progress = await anext(events)
            assert progress == ("progress", {"progress": 1.0, "total": 2.0, "message": "halfway"})
            await asyncio.wait_for(STARTED.wait(), 5)
        await asyncio.wait_for(ENDED.wait(), 5)


async def test_log_messages_of_the_handler_are_shown() -> None:
    registry = OperationRegistry()

    @registry.query("shop.stock", access=AccessControl(public=True))
    async def stock(context: Context) -> int:
        for number in range(300):
            context.log("info", number)
        context.log("warning", {"article": "tea"}, logger="stock")
        context.log("info", "x" * 100_000)
        context.log("info", object())
        return 1

    async with page_of(registry) as page:
        events = await page.call("shop.stock")
        logged = [event.data for event in events if event.name == "log"]
        assert len(logged) == 100
        assert logged[-1] == {"level": "warning", "data": {"article": "tea"}, "logger": "stock"}
        assert [event.name for event in events][-2:] == ["result", "end"]


async def test_a_deadline_ends_the_call() -> None:
    async with page_of() as page:
        await page.log_in()
        events = await page.call("shop.slow", deadlineMs=50)
        assert events[-1].data["outcome"] == "TIMEOUT"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"operationId": 1},
        {"operationId": "math.add", "deadlineMs": 0},
        {"operationId": "math.add", "deadlineMs": 10**12},
        {"operationId": "math.add", "actAs": {"id": ""}},
        {"operationId": "math.add", "actAs": {"id": "x", "scopes": "*"}},
        {"operationId": "x" * 5_000},
        [],
    ],
)
async def test_an_invalid_request_is_rejected_before_anything_runs(body: Any) -> None:
    async with page_of() as page:
        await page.log_in()
        reply = await page.api("POST", "call", body)
        assert (reply.status, reply.problem["code"]) == (422, "VALIDATION_ERROR")


async def test_calls_pass_the_interceptors_of_the_surface_and_of_the_registry() -> None:
    seen: list[str] = []

    def intercept(spec: Any, handler: Any) -> Any:
        async def call(input: Any, context: Any) -> Any:
            seen.append(spec.id)
            return await handler(input, context)

        return call

    async with page_of(interceptors=[intercept]) as page:
        await page.result("math.add", {"a": 1})
    assert seen == ["math.add"]


async def test_a_large_result_is_downloaded_by_its_owner_alone() -> None:
    async with page_of() as page:
        await page.log_in(CLERK)
        size = 50_000_000
        events = {event.name: event.data for event in await page.call("shop.large", {"size": size})}
        assert events["result"] == {"download": events["result"]["download"], "bytes": size + 2}
        await page.log_in(OTHER)
        assert (await page.api("GET", events["result"]["download"])).status == 404
        await page.log_in(CLERK)
        reply = await page.api("GET", events["result"]["download"])
        assert len(reply.body) == size + 2
        assert reply.headers["content-disposition"] == 'attachment; filename="result.json"'


async def test_a_large_item_of_a_subscription_is_downloaded_too() -> None:
    registry = OperationRegistry()

    @registry.subscription("shop.photos", access=AccessControl(public=True))
    async def photos() -> AsyncIterator[bytes]:
        yield b"x" * 5_000_000
        yield b"small"

    async with page_of(registry) as page:
        _, large, small, end = await page.call("shop.photos")
        reply = await page.api("GET", large.data["download"])
        assert (len(reply.body), reply.headers["content-type"]) == (5_000_000, "application/octet-stream")
        assert reply.headers["content-disposition"] == 'attachment; filename="result.bin"'
        assert (small.data["envelope"]["data"], end.data["items"]) == ("c21hbGw=", 2)


async def test_unreadable_details_of_an_error_are_left_out() -> None:
    registry = OperationRegistry()

    @registry.query("shop.fail", access=AccessControl(public=True))
    async def fail(size: int) -> None:
        raise CallError("TIMEOUT", "late", {"text": "x" * size})

    async with page_of(registry) as page:
        _, small, _ = await page.call("shop.fail", {"size": 10})
        _, large, _ = await page.call("shop.fail", {"size": 100_000})
        assert (small.data["details"], "details" in large.data) == ({"text": "x" * 10}, False)


async def test_kept_results_are_bounded_in_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_DOWNLOAD_BYTES", 100)
    me, kept = Identity(id="me"), KeptResults()

    def response(size: int) -> EncodedResponse:
        return EncodedResponse(200, b"application/json", b"x" * size, [])

    kept.keep("1", me, response(60))
    kept.keep("2", me, response(60))
    with pytest.raises(CallError, match="no such result"):
        kept.get("1", me)
    assert len(kept.get("2", me).body) == 60
    with pytest.raises(CallError, match="over the HTTP API"):
        kept.keep("3", me, response(101))
    now = calls.time.monotonic()
    monkeypatch.setattr(calls.time, "monotonic", lambda: now + calls.DOWNLOAD_LIFETIME + 1)
    with pytest.raises(CallError, match="no such result"):
        kept.get("2", me)


async def test_a_server_that_shuts_down_ends_the_streams_with_an_error() -> None:
    async with page_of() as page:
        await page.log_in()
        async with page.stream("POST", "call", {"operationId": "shop.slow"}) as events:
            assert (await anext(events)).name == "started"
            page.console.drain()
            names = [event.name async for event in events]
        assert names[-1] == "error"


def asking_registry() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.mutation("shop.delete", access=AccessControl(public=True))
    async def delete(context: Context) -> str:
        answer = await context.elicit(bool, "Delete 3 orders?")
        return f"{answer.action} {bool(answer)}"

    @registry.query("shop.summary", access=AccessControl(public=True))
    async def summary(context: Context) -> str:
        return str(await context.sample("Summarize"))

    return registry


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"action": "accept", "content": {"value": True}}, "accept True"),
        ({"action": "accept", "content": {"value": False}}, "accept False"),
        ({"action": "decline"}, "decline False"),
        ({"action": "cancel"}, "cancel False"),
    ],
)
async def test_a_question_of_the_operation_is_answered_on_the_page(answer: Any, expected: str) -> None:
    async with page_of(asking_registry()) as page:
        async with page.stream("POST", "call", {"operationId": "shop.delete"}) as events:
            started, question = await anext(events), await anext(events)
            assert (question.name, question.data["kind"]) == ("question", "elicit")
            assert question.data["params"]["message"] == "Delete 3 orders?"
            path = f"calls/{started.data['requestId']}/answers/{question.data['questionId']}"
            assert (await page.api("POST", f"{path}x", answer)).status == 404
            await page.log_in()  # another person, now
            assert (await page.api("POST", path, answer)).status == 404
            await page.api("DELETE", "session")
            assert (await page.api("POST", path, answer)).status == 204
            rest = [event async for event in events]
        assert [event.name for event in rest] == ["questionEnded", "result", "end"]
        assert rest[1].data["envelope"]["data"] == expected
        assert (await page.api("POST", path, answer)).status == 404


async def test_a_completion_that_is_declined_fails_the_call() -> None:
    async with page_of(asking_registry()) as page:
        async with page.stream("POST", "call", {"operationId": "shop.summary"}) as events:
            started, question = await anext(events), await anext(events)
            assert question.data["kind"] == "sample"
            path = f"calls/{started.data['requestId']}/answers/{question.data['questionId']}"
            await page.api("POST", path, {"action": "decline"})
            names = {event.name: event.data async for event in events}
        assert names["error"]["code"] == "ABORTED"


async def test_an_invalid_answer_is_rejected_and_the_question_waits_on() -> None:
    async with (
        page_of(asking_registry()) as page,
        page.stream("POST", "call", {"operationId": "shop.delete"}) as events,
    ):
        started, question = await anext(events), await anext(events)
        path = f"calls/{started.data['requestId']}/answers/{question.data['questionId']}"
        for answer in ({}, {"action": "maybe"}, {"action": "accept", "content": 1}):
            assert (await page.api("POST", path, answer)).status == 422
        assert (await page.api("POST", path, {"action": "decline"})).status == 204
