"""Tests of opwire.mcp.client.source."""

from pathlib import Path
from typing import Any

import pytest

from opwire.mcp.client import resources
from opwire.mcp.client.resources import list_all, list_operation
from opwire.mcp.client.session import MCPSession
from opwire.model.context import Context
from opwire.model.operation import OperationType
from opwire.registry.source import Report
from tests.mcp.client.listed_server import Stage, tool


async def listed(stage: Stage, report: Report) -> list[Any]:
    session = MCPSession(stage.server)
    try:
        return await list_all(session, "tools/list", "tools", report, deadline=None)
    finally:
        await session.close()


@pytest.mark.parametrize("count", [0, 1, 3, 10])
async def test_every_page_is_read(tmp_path: Path, count: int) -> None:
    tools = [tool(f"t{n}") for n in range(count)]
    report = Report()
    assert await listed(Stage(tmp_path, tools=tools, page=3), report) == tools
    assert report.warnings == []


async def test_a_cursor_that_comes_again_ends_the_list(tmp_path: Path) -> None:
    report = Report()
    assert await listed(Stage(tmp_path, tools=[tool("a")], cursors="same"), report) == [tool("a"), tool("a")]
    assert "repeated cursor" in report.warnings[0]


async def test_pages_without_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_PAGES", 20)
    report = Report()
    assert await listed(Stage(tmp_path, tools=[tool("a")], cursors="endless"), report) == [tool("a")]
    assert "more than 20 pages" in report.warnings[0]


async def test_a_list_is_bounded_in_entries_and_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [tool(f"t{n}", description="x" * 1000) for n in range(20)]
    stage = Stage(tmp_path, tools=tools, page=3)
    session = MCPSession(stage.server)
    try:
        report = Report()
        assert await list_all(session, "tools/list", "tools", report, deadline=None, max_entries=7) == tools[:7]
        assert "more than 7 entries" in report.warnings[0]
        monkeypatch.setattr(resources, "MAX_LIST_BYTES", 10_000)
        report = Report()
        assert await list_all(session, "tools/list", "tools", report, deadline=None) == tools[:9]
        assert "more than 10,000 bytes; the 9 entries before are used" in report.warnings[0]
    finally:
        await session.close()


async def test_entries_that_are_not_objects_affect_no_others(tmp_path: Path) -> None:
    report = Report()
    assert await listed(Stage(tmp_path, tools=[42, tool("a"), None, "b"]), report) == [tool("a")]
    assert [each.name for each in report.skipped] == ["tools/list.42", "tools/list.None", "tools/list.b"]


@pytest.mark.parametrize("page", [None, "text", {"a": 1}])
async def test_a_page_that_is_not_a_list_is_empty_with_a_warning(tmp_path: Path, page: Any) -> None:
    report = Report()
    answers = {"resources/list": {"resources": page}}
    session = MCPSession(Stage(tmp_path, answers=answers).server)
    try:
        assert await list_all(session, "resources/list", "resources", report, deadline=None) == []
    finally:
        await session.close()
    assert len(report.warnings) == 1


async def test_the_operation_of_a_list_gives_it_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resources: list[Any] = [{"uri": f"a:{n}", "name": "a"} for n in range(5)]
    session = MCPSession(Stage(tmp_path, resources=[*resources, 7], page=2).server)
    operation = list_operation(session, "ns", "resources/list", "resources", "All.", method="resources/list")
    assert operation.handler is not None
    try:
        envelope = await operation.handler({}, Context())
    finally:
        await session.close()
    assert envelope.data == {"resources": resources}
    assert operation.spec.type is OperationType.QUERY
    assert "skipped entry resources/list.7: it is not an object" in caplog.text
