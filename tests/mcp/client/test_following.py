"""Tests of opwire.mcp.client.source."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError
from opwire.mcp.client import from_mcp
from opwire.mcp.client import source as following_source
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.source import ServerOperations
from opwire.registry import OperationRegistry
from tests.mcp.client.listed_server import Changes, Stage, following, tool
from tests.servers.leaks import Leaks

CHANGED = {"method": "notifications/tools/list_changed"}
PLAY = tool("play")


async def play(registry: OperationRegistry, **script: Any) -> Any:
    return (await registry.execute("misbehaving.play", script)).data


async def test_a_registry_keeps_up_with_what_is_added_changed_and_removed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[PLAY, tool("old"), tool("same"), tool("changing")])
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        changes = Changes(source)
        stage.set(tools=[PLAY, tool("same"), tool("changing", description="It did."), tool("new")])
        await play(registry, notify=[CHANGED])
        change = await changes.next()
        assert [each.spec.name for each in change.put] == ["changing", "new"]
        assert change.gone == ("misbehaving.old",)
        assert {spec.name for spec in registry.list()} == {"play", "same", "changing", "new"}
        assert (await registry.execute("misbehaving.new", {"a": 1})).data == {"a": 1}


async def test_many_changes_at_once_are_read_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[PLAY], page=100)
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        changes = Changes(source)
        stage.set(tools=[PLAY, tool("new")])
        await play(registry, notify=[CHANGED] * 20)
        await changes.next()
        received = await play(registry, result="received")
    assert [each["method"] for each in received].count("tools/list") == 2


async def test_a_server_that_tells_of_a_change_whenever_it_is_asked_is_asked_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following_source, "SETTLE_SECONDS", 0.01)
    started = time.monotonic()
    async with following(Stage(tmp_path, tools=[PLAY], page=100, restless=True)) as registry, asyncio.timeout(5):
        while [each["method"] for each in await play(registry, result="received")].count("tools/list") < 7:
            await asyncio.sleep(0.01)
    assert time.monotonic() - started > 0.01 + 0.02 + 0.04 + 0.08 + 0.16 + 0.32


async def test_a_change_that_changes_nothing_is_not_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[PLAY])
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        changes = Changes(source)
        await play(registry, notify=[CHANGED, {"method": "notifications/unheard-of", "params": {"uri": "a:"}}])
        async with asyncio.timeout(5):
            while [each["method"] for each in await play(registry, result="received")].count("tools/list") < 2:
                pass
        stage.set(tools=[PLAY, tool("new")])
        await play(registry, notify=[CHANGED])
        await changes.next()
    assert len(changes) == 1


async def test_prompts_are_kept_up_with_as_well(tmp_path: Path) -> None:
    capabilities = {"tools": {}, "prompts": {"listChanged": True}}
    stage = Stage(tmp_path, tools=[PLAY], capabilities=capabilities, prompts=[{"name": "one"}])
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        changes = Changes(source)
        stage.set(prompts=[{"name": "two"}])
        await play(registry, notify=[{"method": "notifications/prompts/list_changed"}])
        change = await changes.next()
    assert [each.spec.name for each in change.put] == ["prompts/two"]
    assert change.gone == ("misbehaving.prompts/one",)


async def test_a_server_that_comes_back_is_read_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[PLAY, tool("old")])
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        changes = Changes(source)
        stage.set(tools=[PLAY, tool("new")], serverInfo={"name": "renamed", "version": "2"})
        with pytest.raises(CallError, match="UNAVAILABLE"):
            await play(registry, crash=True)
        assert await play(registry, result={"structuredContent": 1}) == 1
        change = await changes.next()
        assert [each.spec.id for each in change.put] == ["misbehaving.new"]  # the namespace stays what it was
        assert change.gone == ("misbehaving.old",)


async def test_a_change_that_cannot_be_read_leaves_everything_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path, tools=[PLAY])
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        changes = Changes(source)
        stage.set(errors={"tools/list": {"code": -32603, "message": "out of order"}})
        await play(registry, notify=[CHANGED])
        async with asyncio.timeout(5):
            while "cannot be read" not in caplog.text:
                await asyncio.sleep(0.01)
        assert [spec.name for spec in registry.list()] == ["play"]
        stage.set(errors={}, tools=[PLAY, tool("new")])
        await play(registry, notify=[CHANGED])
        assert [each.spec.name for each in (await changes.next()).put] == ["new"]


async def test_what_was_found_before_is_logged_only_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The report says what was left out or changed and why; the log says it once."""
    stage = Stage(tmp_path, tools=[PLAY, tool("a\tb")])
    registry = OperationRegistry()
    async with from_mcp(stage.server) as source:
        registry.follow(source)
        changes = Changes(source)
        stage.set(tools=[PLAY, tool("a\tb"), tool("c\td"), tool("new")])
        await play(registry, notify=[CHANGED])
        await changes.next()
        assert [each.name for each in source.report.skipped] == ["misbehaving.'a\\tb'", "misbehaving.'c\\td'"]
    assert caplog.text.count("skipped tool") == 2


async def test_a_server_that_cannot_be_read_is_closed_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, errors={"tools/list": {"code": -32603, "message": "out of order"}})
    async with Leaks():
        with pytest.raises(CallError, match="out of order"):
            await ServerOperations(stage.server, MCPOptions(), lambda change: None).open()
