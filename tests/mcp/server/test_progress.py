"""Progress: of handlers that report, and of a subscription's items."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from unittest.mock import ANY

import pytest

from opwire import CallError, Context, OperationRegistry
from opwire.mcp.server import serve_mcp
from opwire.model.origin import ITEM_META
from tests.mcp.server.operations import shop
from tests.mcp.server.raw import Raw, call, raw
from tests.mcp.server.shop import ERAS, NEWEST, PATIENCE, connected


async def _until_answered(client: Raw) -> tuple[list[Any], Any]:
    """The progress notifications that come before the result, and the result."""
    told: list[Any] = []
    while "result" not in (message := await client.receive()):
        assert message["method"] == "notifications/progress"
        told.append(message["params"])
    return told, message["result"]


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_handler_reports_reaches_the_client_before_the_result(era: str) -> None:
    told: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with connected(serve_mcp(shop()), era) as client:
        await client.call_tool("work_report", {"steps": 2}, progress_callback=on_progress)
    assert told[-1] == (2, 2, "step 2")


async def test_a_thread_may_report_and_only_what_goes_forward_is_reported() -> None:
    registry = OperationRegistry()

    @registry.mutation("a.b")
    def b(context: Context) -> None:
        for step in (1, 3, 2, 3, float("nan"), 4):
            context.report(step, message=str(step))

    async with raw(serve_mcp(registry)) as client:
        await client.send(call("a_b", progressToken=5))
        told, _ = await _until_answered(client)
    values = [each["progress"] for each in told]
    assert values == sorted(set(values))
    assert values[-1] == 4
    assert {each["progressToken"] for each in told} == {5}


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ((10**400,), []),
        ((float("inf"),), []),
        (("much",), []),
        ((1, float("inf")), [{"progress": 1.0}]),
        ((1, 2, "\ud800"), [{"progress": 1.0, "total": 2.0, "message": "\ufffd"}]),
        ((1, None, 5), [{"progress": 1.0, "message": "5"}]),
        ((1, None, "x" * 10_000), [{"progress": 1.0, "message": "x" * 2_000}]),
    ],
)
async def test_a_progress_report_that_cannot_be_encoded_does_not_lose_the_result(report: Any, told: list[Any]) -> None:
    registry = OperationRegistry()

    @registry.mutation("a.b")
    async def b(context: Context) -> str:
        context.report(*report)
        return "done"

    async with raw(serve_mcp(registry)) as client:
        await client.send(call("a_b", progressToken=5))
        assert await _until_answered(client) == ([{"progressToken": 5, **each} for each in told], ANY)


async def test_a_client_that_reads_slowly_gets_the_newest_report_and_then_the_result() -> None:
    registry = OperationRegistry()
    reported = asyncio.Event()

    @registry.mutation("a.b")
    async def b(context: Context) -> None:
        for step in range(1, 101):
            context.report(step)
            await asyncio.sleep(0)
        reported.set()

    async with raw(serve_mcp(registry)) as client:
        await client.send(call("a_b", progressToken=5))
        async with asyncio.timeout(PATIENCE):
            await reported.wait()
        told, _ = await _until_answered(client)
    assert told[-1]["progress"] == 100
    assert len(told) < 10


async def test_a_call_that_fails_does_not_wait_for_its_reports() -> None:
    registry = OperationRegistry()
    reported = asyncio.Event()

    @registry.mutation("a.b")
    async def b(context: Context) -> None:
        for step in range(1, 11):
            context.report(step)
            await asyncio.sleep(0)
        reported.set()
        raise CallError("UNAVAILABLE", "gone")

    async with raw(serve_mcp(registry)) as client:
        await client.send(call("a_b", progressToken=5))
        async with asyncio.timeout(PATIENCE):
            await reported.wait()
        told, result = await _until_answered(client)
    assert result["isError"]
    assert told[-1]["progress"] < 10


async def test_a_client_that_did_not_subscribe_is_not_notified() -> None:
    async with raw(serve_mcp(shop())) as client:
        for tool in ("work_report", "feed_count"):
            await client.send(call(tool))
            assert (await _until_answered(client))[0] == []


async def test_progress_after_the_response_is_dropped() -> None:
    registry = OperationRegistry()
    kept: list[Context] = []

    @registry.mutation("a.b")
    async def b(context: Context) -> None:
        kept.append(context)

    async with raw(serve_mcp(registry)) as client:
        await client.ask(call("a_b", progressToken=5))
        kept[0].report(1)
        await asyncio.sleep(0)
        assert (await client.ask({"jsonrpc": "2.0", "id": 3, "method": "ping"}))["result"] == {}


@pytest.mark.parametrize("era", ["", NEWEST])
async def test_each_item_is_reported_as_it_comes(era: str) -> None:
    registry = OperationRegistry()
    go_on = asyncio.Event()

    @registry.subscription("a.b")
    async def b() -> AsyncGenerator[Any]:
        yield None
        await go_on.wait()
        yield b"\x00"
        yield "x" * 1_000

    async with raw(serve_mcp(registry), handshake=not era) as client:
        await client.send(call("a_b", progressToken="t", era=era))
        first = (await client.receive())["params"]
        assert first["_meta"][ITEM_META] == {"n": 0, "data": None}
        assert (first["progress"], first["message"], first["progressToken"]) == (1, "null", "t")
        go_on.set()
        (second, third), result = await _until_answered(client)
    assert second["_meta"][ITEM_META] == {"n": 1, "data": "AA==", "encoding": "base64"}
    assert len(third["message"]) == 201
    assert result["structuredContent"]["items"] == [None, "AA==", "x" * 1_000]
