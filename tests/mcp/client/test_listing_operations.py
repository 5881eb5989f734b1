"""Tests of opwire.mcp.client.source."""

from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.session import MCPSession
from opwire.mcp.client.source import Listing, ListingReader
from opwire.model.operation import Operation, OperationSpec
from opwire.registry.source import Skipped
from opwire.schema import UNKNOWN
from tests.mcp.client.listed_server import MODERN, Stage, tool


async def read(stage: Stage, *, timeout: float = 5.0, prompts: bool = True) -> Listing:
    session = MCPSession(stage.server)
    reader = ListingReader(session, session, MCPOptions(namespace="ns", prompts=prompts), "ns")
    try:
        await session.start()
        return await reader.read(timeout)
    finally:
        await session.close()


async def test_one_bad_tool_affects_no_other(tmp_path: Path) -> None:
    tools = [
        tool("good"),
        42,
        tool("tab\tin it"),
        tool(""),
        {"inputSchema": {}},
        tool(["a", "list"]),
        tool("good", description="a second one"),
        tool("no input", inputSchema="text"),
        tool("bad output", outputSchema={"type": "nonsense"}),
        {"name": "bare", "description": 3, "title": [], "annotations": "none", "_meta": "none"},
    ]
    listing = await read(Stage(tmp_path, tools=tools))
    assert list(listing.by_id) == ["ns.good", "ns.no input", "ns.bad output", "ns.bare"]
    assert [each.name for each in listing.report.skipped] == [
        "tools/list.42",
        "ns.'tab\\tin it'",
        "ns.",
        "ns.None",
        "ns.['a', 'list']",
        "ns.good",
    ]
    assert listing.report.skipped[-1] == Skipped("operation", "ns.good", "the id is a duplicate")
    assert [each.split(":")[0] for each in listing.report.warnings] == ["ns.no input", "ns.bad output", "ns.bare"]
    assert listing.by_id["ns.good"].operation.spec.description == ""
    assert listing.by_id["ns.bad output"].operation.spec.output_schema is UNKNOWN


async def test_a_tool_keeps_its_name_where_another_operation_would_have_it(tmp_path: Path) -> None:
    listing = await read(
        Stage(tmp_path, tools=[tool("resources/read")], capabilities={"resources": {}}, resources=[{"uri": "a:1"}])
    )
    assert [id for id in listing.by_id if id.endswith("read")] == ["ns.resources/read"]
    assert listing.by_id["ns.resources/read"].definition == tool("resources/read")
    assert [each.name for each in listing.report.skipped] == ["ns.resources/read"]


@pytest.mark.parametrize("code", [-32601, -32602, -32603])
async def test_a_server_without_tools_has_none_and_nothing_is_said_of_it(tmp_path: Path, code: int) -> None:
    errors = {"tools/list": {"code": code, "message": "what?"}}
    listing = await read(Stage(tmp_path, capabilities={"prompts": {}}, prompts=[{"name": "p"}], errors=errors))
    assert list(listing.by_id) == ["ns.prompts/list", "ns.prompts/p"]
    assert listing.report.warnings == []


async def test_tools_that_are_not_announced_are_found_and_those_that_are_not_there_are_warned_of(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, capabilities={}, tools=[tool("quiet")])
    assert list((await read(stage)).by_id) == ["ns.quiet"]
    (tmp_path / "other").mkdir()
    listing = await read(Stage(tmp_path / "other", capabilities={"tools": {}, "prompts": {}}))
    assert list(listing.by_id) == []
    assert [each.split(":")[0] for each in listing.report.warnings] == ["tools/list", "prompts/list"]


async def test_a_server_that_announces_its_tools_and_fails_to_list_them_is_an_error(tmp_path: Path) -> None:
    errors = {"tools/list": {"code": -32603, "message": "out of order"}}
    with pytest.raises(CallError, match="out of order"):
        await read(Stage(tmp_path, errors=errors))


async def test_prompts_are_left_out_where_they_are_not_wanted(tmp_path: Path) -> None:
    stage = Stage(tmp_path, tools=[], capabilities={"prompts": {}}, prompts=[{"name": "p"}])
    assert (await read(stage, prompts=False)).by_id == {}


async def test_a_tool_that_the_protocol_tells_clients_to_leave_out_is_left_out(tmp_path: Path) -> None:
    asks_twice = {"type": "object", "properties": {key: {"type": "string", "x-mcp-header": "H"} for key in "ab"}}
    tools = [tool("a"), tool("twice", inputSchema=asks_twice)]
    listing = await read(Stage(tmp_path, tools=tools, answers=MODERN))
    assert list(listing.by_id) == ["ns.a"]
    assert [each.name for each in listing.report.skipped] == ["ns.twice"]


async def test_a_large_schema_is_not_searched_for_headers(tmp_path: Path) -> None:
    properties = {f"p{number}": {"type": "string", "x-mcp-header": f"H{number}"} for number in range(6_000)}
    tools = [tool("large", inputSchema={"type": "object", "properties": properties}), tool("small")]
    listing = await read(Stage(tmp_path, tools=tools, answers=MODERN))
    assert list(listing.by_id) == ["ns.small"]
    assert "x-mcp-header exceeds the limit of 262,144 bytes" in listing.report.skipped[0].reason
    (tmp_path / "older").mkdir()
    assert list((await read(Stage(tmp_path / "older", tools=tools))).by_id) == ["ns.large", "ns.small"]


async def test_a_prompt_with_very_many_arguments_is_left_out(tmp_path: Path) -> None:
    prompts = [
        {"name": name, "arguments": [{"name": f"a{number}"} for number in range(count)]}
        for name, count in (("large", 20_000), ("small", 1_000))
    ]
    listing = await read(Stage(tmp_path, tools=[], capabilities={"prompts": {}}, prompts=prompts))
    assert list(listing.by_id) == ["ns.prompts/list", "ns.prompts/small"]
    assert listing.report.skipped[0].reason == "its arguments exceed the limit of 262,144 bytes"


async def test_entries_that_are_not_objects_count_as_entries(tmp_path: Path) -> None:
    listing = await read(Stage(tmp_path, tools=[None] * 15_000 + [tool("late")], page=20_000))
    assert list(listing.by_id) == []
    assert listing.report.warnings == [
        "tools/list: more than 10,000 entries; the rest is ignored",
        "9,900 more entries are not listed",
    ]


async def test_a_list_that_takes_too_long_is_a_timeout(tmp_path: Path) -> None:
    with pytest.raises(CallError) as why:
        await read(Stage(tmp_path, tools=[tool("a")], cursors="endless"), timeout=0.01)
    assert why.value.code is ErrorCode.TIMEOUT


def listing_of(**definitions: Any) -> Listing:
    listing = Listing()
    for name, definition in definitions.items():
        listing.put(Operation(OperationSpec(namespace="ns", name=name)), definition)
    return listing


def test_what_is_new_or_different_has_changed() -> None:
    before = listing_of(same={"a": [1]}, other={"a": 1}, gone={})
    changed = listing_of(same={"a": [1]}, other={"a": 2}, new={}).changed_since(before)
    assert [each.spec.name for each in changed] == ["other", "new"]
