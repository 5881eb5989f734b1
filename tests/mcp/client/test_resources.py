"""Tests of opwire.mcp.client.source."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client import StdioServer, from_mcp
from opwire.mcp.client import resources as listing
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import OperationType
from opwire.registry import OperationRegistry
from tests.mcp.client.listed_server import Changes, Stage, answer, following, mcp_meta, tool

PLAIN = {"resources": {}}
WATCHABLE = {"resources": {"subscribe": True}}
ONE = [{"uri": "a:1", "name": "one"}]
ANSWERS = {"resources/subscribe": {}, "resources/unsubscribe": {}}
LIBRARY = StdioServer(sys.executable, (str(Path(__file__).with_name("library.py")),))


async def first_item(registry: OperationRegistry, uri: str, then: Any) -> ResponseEnvelope[Any]:
    """The first item of a watch, after something was done while it was open."""
    async with aclosing(registry.subscribe("misbehaving.resources/watch", {"uri": uri})) as items:
        item = asyncio.ensure_future(anext(items))
        await then()
        async with asyncio.timeout(5):
            return await item


async def methods(registry: OperationRegistry) -> list[tuple[str, Any]]:
    received = (await answer(registry, "received")).data
    return [(each["method"], each.get("params", {}).get("uri")) for each in received if "method" in each]


async def until_watched(registry: OperationRegistry, times: int = 1) -> None:
    async with asyncio.timeout(5):
        while [method for method, _ in await methods(registry)].count("resources/subscribe") < times:
            pass


async def test_resources_are_operations_only_where_the_server_announces_them(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[], resources=ONE)
    found: list[set[str]] = []
    for capabilities, options in [({}, {}), (PLAIN, {}), (WATCHABLE, {}), (WATCHABLE, {"resources": False})]:
        stage.set(capabilities=capabilities)
        async with following(stage, namespace="ns", **options) as registry:
            found.append({spec.name.removeprefix("resources/") for spec in registry.list()})
    assert found == [set(), {"list", "templates", "read"}, {"list", "templates", "read", "watch"}, set()]


async def test_a_server_that_announces_resources_and_prompts_and_has_none_has_no_operations_for_them(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, tools=[], capabilities={**WATCHABLE, "prompts": {}}, resources=[], prompts=[])
    templates = [{"uriTemplate": "a:{n}", "name": "a"}]
    async with following(stage) as registry:
        assert len(registry) == 0
    stage.set(resourceTemplates=templates)
    async with following(stage) as registry:
        assert {spec.mcp.role for spec in registry.list()} == {spec.name for spec in registry.list()}
        assert len(registry) == 4


async def test_resources_and_templates_are_listed_whole(tmp_path: Path) -> None:
    many = [{"uri": f"a:{n}", "name": str(n), "new": {}} for n in range(8)]
    templates = [{"uriTemplate": "a:{n}", "name": "a"}]
    stage = Stage(tmp_path, tools=[], capabilities=PLAIN, resources=many, resourceTemplates=templates)
    async with following(stage, namespace="ns") as registry:
        assert (await registry.execute("ns.resources/list")).data == {"resources": many}
        assert (await registry.execute("ns.resources/templates", {})).data == {"resourceTemplates": templates}


async def test_what_a_resource_holds_are_blocks(tmp_path: Path) -> None:
    contents = [{"uri": "a:1", "text": "one", "_meta": {"x": 1}}, {"uri": "a:2", "blob": "AP8=", "mimeType": "x/y"}]
    stage = Stage(
        tmp_path, tools=[], capabilities=PLAIN, resources=ONE, answers={"resources/read": {"contents": contents}}
    )
    async with following(stage, namespace="ns") as registry:
        envelope = await registry.execute("ns.resources/read", {"uri": "a:1"})
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await registry.execute("ns.resources/read", {})
    assert envelope.data == [{"type": "resource", "resource": each} for each in contents]
    assert mcp_meta(envelope).content == envelope.data


@pytest.mark.parametrize("result", [{}, {"contents": None}, {"contents": {"uri": "a:1"}}])
async def test_a_resource_without_contents_is_a_protocol_error(tmp_path: Path, result: Any) -> None:
    stage = Stage(tmp_path, tools=[], capabilities=PLAIN, resources=ONE, answers={"resources/read": result})
    async with following(stage, namespace="ns") as registry:
        with pytest.raises(CallError, match="PROTOCOL_ERROR"):
            await registry.execute("ns.resources/read", {"uri": "a:1"})


async def test_a_watch_gives_an_item_for_each_update_and_ends_at_the_server_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[tool("play")], capabilities=WATCHABLE, resources=ONE, answers=ANSWERS)
    updated = {"method": "notifications/resources/updated", "params": {"uri": "a:1"}}

    async with following(stage) as registry:

        async def update() -> None:
            await until_watched(registry)
            await registry.execute("misbehaving.play", {"notify": [updated]})

        envelope = await first_item(registry, "a:1", update)
        assert envelope.data == {"uri": "a:1"}
        assert ("resources/unsubscribe", "a:1") in await methods(registry)


async def test_a_watch_that_the_server_does_not_end_ends_here(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path, tools=[tool("play")], capabilities=WATCHABLE, resources=ONE, answers={"resources/subscribe": {}}
    )
    async with following(stage) as registry:
        items = registry.subscribe("misbehaving.resources/watch", {"uri": "a:1"})
        item = asyncio.ensure_future(anext(items))
        await until_watched(registry)
        item.cancel()
        with pytest.raises(asyncio.CancelledError):
            await item
        assert ("resources/unsubscribe", "a:1") in await methods(registry)


async def test_a_watch_outlives_the_connection_and_counts_the_gap_as_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "CHECK_EVERY", 0.05)
    stage = Stage(tmp_path, tools=[tool("play")], capabilities=WATCHABLE, resources=ONE, answers=ANSWERS)
    async with following(stage) as registry:

        async def crash() -> None:
            await until_watched(registry)
            with pytest.raises(CallError):
                await registry.execute("misbehaving.play", {"crash": True})

        assert (await first_item(registry, "a:1", crash)).data == {"uri": "a:1"}
        assert ("resources/subscribe", "a:1") in await methods(registry)  # asked again of the new process


async def test_a_watch_of_a_server_that_does_not_come_back_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "CHECK_EVERY", 0.05)
    stage = Stage(tmp_path, tools=[tool("play")], capabilities=WATCHABLE, resources=ONE, answers=ANSWERS)
    async with following(stage) as registry:

        async def vanish() -> None:
            await until_watched(registry)
            stage.remove()
            with pytest.raises(CallError):
                await registry.execute("misbehaving.play", {"crash": True})

        with pytest.raises(CallError) as why:
            await first_item(registry, "a:1", vanish)
    assert why.value.code is ErrorCode.UNAVAILABLE


async def test_a_watch_that_the_server_refuses_is_an_error(tmp_path: Path) -> None:
    async with following(Stage(tmp_path, tools=[], capabilities=WATCHABLE, resources=ONE)) as registry:
        with pytest.raises(CallError, match="OPERATION_NOT_FOUND"):
            await anext(registry.subscribe("misbehaving.resources/watch", {"uri": "a:1"}))


async def test_a_server_on_the_sdk_is_read_watched_and_followed_in_its_newest_revision() -> None:
    registry = OperationRegistry()
    async with from_mcp(LIBRARY) as source:
        registry.follow(source)
        assert [each.protocol for each in source.servers.values()] == ["2026-07-28"]
        (dune,) = (await registry.execute("library.resources/read", {"uri": "book://dune"})).data
        assert dune["resource"]["text"] == "Sand."
        (cover,) = (await registry.execute("library.resources/read", {"uri": "cover://dune"})).data
        assert cover["resource"]["blob"] == "iVBORw=="
        templates = (await registry.execute("library.resources/templates")).data["resourceTemplates"]
        assert [each["uriTemplate"] for each in templates] == ["book://{title}"]
        prompt = await registry.execute("library.prompts/review", {"title": "Dune"})
        assert prompt.data["messages"][0]["content"]["text"] == "Write a kind review of Dune."

        watch = registry.subscribe("library.resources/watch", {"uri": "book://dune"})
        async with aclosing(watch), asyncio.timeout(5):
            item = asyncio.ensure_future(anext(watch))
            while not item.done():  # the watch is open at some point
                await registry.execute("library.rewrite", {"text": "Spice."})
            assert item.result().data == {"uri": "book://dune"}

        changes = Changes(source)
        await registry.execute("library.hire", {"name": "clerk"})
        assert [each.spec.id for each in (await changes.next()).put] == ["library.clerk"]
        assert registry.get_spec("library.resources/watch").type is OperationType.SUBSCRIPTION  # pyright: ignore
        assert (await registry.execute("library.clerk", {"text": "ab"})).data == {"result": 2}
