"""Calls of tools: every one ends in a result, and abandoned calls are stopped."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from opwire import CallError, Context, OperationRegistry, OperationSpec, mcp_envelope
from opwire.mcp.server import calls, serve_mcp
from opwire.mcp.server.tools import ERROR_META
from opwire.schema import Schema
from tests.mcp.server.operations import shop
from tests.mcp.server.raw import call, raw
from tests.mcp.server.shop import ERAS, PATIENCE, connected, until


def _cancelled(id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


@pytest.mark.parametrize("era", ERAS)
async def test_what_goes_wrong_is_a_result_that_says_so(era: str) -> None:
    """A failed call is a result with isError that says what to do, and the error in _meta."""
    registry = shop()

    @registry.query("bad.known")
    async def known() -> None:
        raise CallError("RATE_LIMITED", "slow down", retry_after=3)

    @registry.query("bad.unforeseen")
    async def unforeseen() -> None:
        raise RuntimeError("password is hunter2")

    @registry.query("bad.result")
    async def bad_result() -> Any:
        return mcp_envelope(1, is_error=False, content=[], _meta={"no": object()})

    async with connected(serve_mcp(registry), era) as client:
        for name, arguments, code in (
            ("bad_known", {}, "RATE_LIMITED"),
            ("bad_result", {}, "EXECUTION_ERROR"),
            ("bad_unforeseen", {}, "EXECUTION_ERROR"),
            ("math_add", {"a": 1}, "VALIDATION_ERROR"),
            ("feed_count", {"n": "x"}, "VALIDATION_ERROR"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert result.meta is not None
            assert result.meta[ERROR_META]["code"] == code
            assert "hunter2" not in str(result)


async def test_a_handler_knows_its_caller_request_and_trace() -> None:
    registry = OperationRegistry()
    seen: list[Context] = []

    @registry.query("a.b")
    async def b(context: Context) -> None:
        seen.append(context)

    async with raw(serve_mcp(registry)) as client:
        await client.ask(
            call("a_b", id=1, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tracestate=5)
        )
        await client.ask(call("a_b", id=1))
    first, second = seen
    assert first.identity is not None
    assert first.identity.id == "local"
    assert first.metadata == {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert first.request_id
    assert second.request_id not in {None, first.request_id}


async def test_a_call_has_a_deadline_that_its_operation_may_move() -> None:
    registry = OperationRegistry()

    @registry.query("a.slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    @registry.query("a.patient", timeout=60)
    async def patient(context: Context) -> float:
        return context.remaining or 0

    async with connected(serve_mcp(registry, timeout=0.05)) as client:
        result = await client.call_tool("a_slow")
        assert result.meta is not None
        assert result.meta[ERROR_META]["code"] == "TIMEOUT"
        left = (await client.call_tool("a_patient")).structured_content
        assert 30 < left <= 60


async def test_a_client_that_gives_up_cancels_the_handler_which_may_clean_up() -> None:
    registry = OperationRegistry()
    steps: list[str] = []

    @registry.mutation("a.b")
    async def b() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):  # anyio alone would cancel each of these again
                await asyncio.sleep(0)
            steps.append("cleaned up")

    async with raw(serve_mcp(registry)) as client:
        await client.send(call("a_b", id=7))
        await until(lambda: bool(steps))
        await client.send(_cancelled(7))
        await until(lambda: len(steps) == 2)
        assert "tools" in (await client.ask({"jsonrpc": "2.0", "id": 8, "method": "tools/list"}))["result"]


async def test_a_client_that_leaves_cancels_its_calls() -> None:
    registry = OperationRegistry()
    steps: list[str] = []

    @registry.subscription("a.b")
    async def b() -> AsyncGenerator[int]:
        try:
            yield 1
            steps.append("begun")
            await asyncio.Event().wait()
        finally:
            steps.append("closed")

    async with raw(serve_mcp(registry)) as client:
        await client.send(call("a_b"))
        await until(lambda: bool(steps))
    assert steps == ["begun", "closed"]


async def test_a_handler_that_does_not_stop_is_left_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CLOSE_GRACE", 0.01)
    registry = OperationRegistry()
    begun, release = asyncio.Event(), asyncio.Event()

    @registry.mutation("a.b")
    async def b() -> None:
        begun.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with raw(serve_mcp(registry, timeout=None)) as client:
        await client.send(call("a_b", id=7))
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        with caplog.at_level(logging.WARNING, "opwire.mcp.server"):
            await client.send(_cancelled(7))
            await until(lambda: "is abandoned" in caplog.text)
        release.set()
        await asyncio.sleep(0)


# --- input ------------------------------------------------------------------------------------------------------------


async def test_an_input_that_is_not_an_object_comes_out_of_its_wrapper() -> None:
    """Values other than objects are wrapped if the protocol asks; references stay right."""
    registry = OperationRegistry()
    received: list[Any] = []

    async def handler(input: Any, context: Context) -> None:
        received.append(input)

    registry.register(OperationSpec(namespace="a", name="list", input_schema=Schema({"type": "array"})), handler)
    registry.register(OperationSpec(namespace="a", name="any"), handler)
    async with connected(serve_mcp(registry)) as client:
        assert not (await client.call_tool("a_list", {"input": [1]})).is_error
        assert not (await client.call_tool("a_any", {"input": {"input": 1}})).is_error
        assert not (await client.call_tool("a_any", {})).is_error
        assert (await client.call_tool("a_list", {})).is_error
        assert (await client.call_tool("a_list", {"input": [1], "other": 1})).is_error
    assert received == [[1], {"input": 1}, None]


# --- subscriptions ----------------------------------------------------------------------------------------------------


async def test_a_subscription_is_collected_to_its_end_or_to_a_limit() -> None:
    async with connected(serve_mcp(shop(), max_items=3)) as client:
        assert (await client.call_tool("feed_count", {"n": 2})).structured_content == {
            "items": [0, 1],
            "complete": True,
        }
        cut = await client.call_tool("feed_count", {"n": 1_000_000})
        assert cut.structured_content == {"items": [0, 1, 2], "complete": False}


async def test_large_items_are_not_collected_without_limit() -> None:
    registry = OperationRegistry()

    @registry.subscription("a.b")
    async def b() -> AsyncGenerator[str]:
        while True:
            yield "x" * 400

    async with connected(serve_mcp(registry, max_bytes=1000)) as client:
        result = await client.call_tool("a_b")
    assert result.structured_content == {"items": ["x" * 400] * 3, "complete": False}


async def test_when_the_time_is_up_the_generator_is_closed_and_what_came_is_kept() -> None:
    registry = OperationRegistry()
    closed: list[bool] = []

    @registry.subscription("a.b")
    async def b() -> AsyncGenerator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async with connected(serve_mcp(registry, max_seconds=0.05)) as client:
        result = await client.call_tool("a_b")
    assert result.structured_content == {"items": [1], "complete": False}
    assert not result.is_error
    assert closed == [True]


async def test_a_subscription_that_fails_keeps_what_came_before() -> None:
    registry = OperationRegistry()

    @registry.subscription("a.b")
    async def b(items: int) -> AsyncGenerator[bytes]:
        for _ in range(items):
            yield b"\x00"
        raise CallError("UNAVAILABLE", "gone")

    async with raw(serve_mcp(registry)) as client:
        failed = (await client.ask(call("a_b", {"items": 1})))["result"]
        assert (failed["isError"], failed["structuredContent"]) == (True, {"items": ["AA=="], "complete": False})
        at_once = (await client.ask(call("a_b", {"items": 0})))["result"]
        assert at_once["isError"]
        assert "structuredContent" not in at_once
