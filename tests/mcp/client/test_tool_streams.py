"""Tests of opwire.mcp.client.tools."""

import asyncio
from base64 import b64encode
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import tools
from opwire.model.operation import OperationType
from opwire.registry import OperationRegistry
from tests.mcp.client.listed_server import Stage, answer, following, mcp_meta, opwire_tool, tool

ITEMS = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/N"}}, "complete": {"type": "boolean"}},
    "$defs": {"N": {"type": "integer"}},
}
TICKS = opwire_tool("ticks", output=ITEMS, id="clock.ticks", type="subscription", idleTimeout=9)
STAGE = [TICKS, opwire_tool("any", id="clock.any", type="subscription"), tool("play")]


def item(n: int, data: Any, **more: Any) -> dict[str, Any]:
    return {"progress": n + 1, "message": "…", "_meta": {"opwire/item": {"n": n, "data": data, **more}}}


def result(*items: Any, complete: bool = True, **more: Any) -> dict[str, Any]:
    return {"content": [], "structuredContent": {"items": [*items], "complete": complete}, **more}


async def collected(registry: OperationRegistry, script: Any, operation: str = "clock.any") -> list[Any]:
    return [envelope.data async for envelope in registry.subscribe(operation, script)]


async def test_a_trusted_subscription_is_one_again(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True, tool_timeout=1) as registry:
        spec = registry.get_spec("clock.ticks")
        assert spec is not None
        items = await collected(registry, {"result": result(1, 2)}, "clock.ticks")
    assert (spec.type, spec.timeout, spec.idle_timeout) == (OperationType.SUBSCRIPTION, None, 9)
    assert spec.output_schema.json == {"$ref": "#/$defs/N", "$defs": {"N": {"type": "integer"}}}
    assert items == [1, 2]


async def test_a_subscription_that_is_not_trusted_is_a_mutation(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=STAGE)) as registry:
        assert {spec.type for spec in registry.list()} == {OperationType.MUTATION}
        envelope = await registry.execute("misbehaving.ticks", {"result": result(1, 2)})
    assert envelope.data == {"items": [1, 2], "complete": True}


async def test_items_arrive_before_the_call_ends(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        stream = registry.subscribe("clock.any", {"progress": [item(0, "a"), item(1, None)], "hold": True})
        async with aclosing(stream), asyncio.timeout(5):
            first, second = await anext(stream), await anext(stream)
        received = (await answer(registry, "received")).data
    assert (first.data, second.data) == ("a", None)
    assert mcp_meta(first).structured_content == "a"
    assert received[-2]["method"] == "notifications/cancelled"  # a caller that stops listening stops the call


@pytest.mark.parametrize(
    "progress",
    [
        [],
        [item(0, 10)],
        [item(0, 10), item(1, 11), item(2, 12)],
        [item(1, 11), item(2, 12)],
        [item(0, 10), item(2, 12)],
        [item(0, 10), item(0, 10), item(1, 11)],
        [{"progress": 1}, {"progress": 2, "_meta": 3}, {"progress": 3, "_meta": {"opwire/item": {"n": "x"}}}],
    ],
    ids=["none", "one", "all", "late", "gap", "twice", "others"],
)
async def test_each_item_comes_once_and_in_order_beside_any_progress(tmp_path: Path, progress: Any) -> None:
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        assert await collected(registry, {"progress": progress, "result": result(10, 11, 12)}) == [10, 11, 12]


async def test_items_that_find_no_room_are_taken_from_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_BUFFERED_ITEMS", 2)
    numbers = list(range(50))
    script = {"progress": [item(n, n) for n in numbers], "result": result(*numbers)}
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        assert await collected(registry, script) == numbers


async def test_bytes_are_bytes_again(tmp_path: Path) -> None:
    text = b64encode(b"\xff").decode()
    meta = {"opwire/result": {"meta": {"encodings": {"0": "base64", "2": "base64"}}}}
    script = {"progress": [item(0, text, encoding="base64")], "result": result(text, text, text, _meta=meta)}
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        assert await collected(registry, script) == [b"\xff", text, b"\xff"]


async def test_a_subscription_that_failed_gives_its_items_and_then_its_error(tmp_path: Path) -> None:
    said = {"code": "RATE_LIMITED", "retryable": True, "retryAfter": 2.5, "details": {"a": 1}}
    failed = result(1, 2, complete=False, isError=True, _meta={"opwire/error": said})
    failed["content"] = [{"type": "text", "text": "RATE_LIMITED: too many"}, {"type": "text", "text": "{}"}]
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        stream = registry.subscribe("clock.any", {"progress": [item(0, 1)], "result": failed})
        assert [(await anext(stream)).data, (await anext(stream)).data] == [1, 2]
        with pytest.raises(CallError) as why:
            await anext(stream)
    assert (why.value.code, why.value.message) == (ErrorCode.RATE_LIMITED, "too many")
    assert (why.value.details, why.value.retry_after) == ({"a": 1}, 2.5)


@pytest.mark.parametrize("meta", [{}, {"_meta": {"opwire/error": {"code": "NEW"}}}, {"_meta": 3}])
async def test_a_failure_that_does_not_say_more_is_an_execution_error(tmp_path: Path, meta: Any) -> None:
    failed = {"content": [{"type": "text", "text": "no"}], "isError": True, **meta}
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        with pytest.raises(CallError, match="EXECUTION_ERROR: no"):
            await collected(registry, {"result": failed})


@pytest.mark.parametrize("structured", [None, [], {"items": 3}, {}])
async def test_a_result_without_items_is_a_protocol_error(tmp_path: Path, structured: Any) -> None:
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        with pytest.raises(CallError, match="PROTOCOL_ERROR"):
            await collected(registry, {"result": {"structuredContent": structured}})


async def test_an_end_at_a_limit_of_the_server_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        assert await collected(registry, {"result": result(1, complete=False)}) == [1]
    assert "a limit of its own" in caplog.text


async def test_a_connection_that_is_lost_ends_the_subscription_with_an_error(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        with pytest.raises(CallError) as why:
            await collected(registry, {"progress": [item(0, 1)], "crash": True})
    assert why.value.code is ErrorCode.UNAVAILABLE


async def test_items_that_do_not_fit_into_the_buffer_are_taken_from_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_BUFFERED_BYTES", 100)
    texts = [f"{n}" * 60 for n in range(10)]
    script = {"progress": [item(n, text) for n, text in enumerate(texts)], "result": result(*texts)}
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        assert await collected(registry, script) == texts


async def test_waiting_items_are_bounded_in_number_and_in_bytes() -> None:
    waiting = tools.ItemBuffer()
    for n in range(tools.MAX_BUFFERED_ITEMS + 10):
        waiting.put(tools.StreamItem(n))
    waiting.end()
    assert [await waiting.get() for _ in range(tools.MAX_BUFFERED_ITEMS)][-1] == tools.StreamItem(
        tools.MAX_BUFFERED_ITEMS - 1
    )
    assert await waiting.get() is None
    large = tools.StreamItem(0, "x" * tools.MAX_BUFFERED_BYTES)
    waiting.put(large)
    waiting.put(large)
    assert await waiting.get() is large
    waiting.put(tools.StreamItem(1))
    waiting.end()
    assert await waiting.get() == tools.StreamItem(1)
    assert await waiting.get() is None


async def test_what_a_server_says_of_its_failure_is_bounded(tmp_path: Path) -> None:
    said = {"code": "RATE_LIMITED", "message": "x" * 100_000, "retryAfter": 1e300}
    failed = result(complete=False, isError=True, _meta={"opwire/error": said})
    async with following(Stage(tmp_path, tools=STAGE), trust_annotations=True) as registry:
        with pytest.raises(CallError) as why:
            await collected(registry, {"result": failed})
    assert why.value.code is ErrorCode.RATE_LIMITED
    assert (len(why.value.message), why.value.retry_after) == (2000, 86_400)
