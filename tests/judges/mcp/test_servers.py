"""`from_mcp` and servers of others: each is listed without a complaint, and called."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opwire import OperationRegistry
from opwire.mcp.client import StdioServer, from_mcp
from tests.judges.programs import npm_program, python_program

CONNECT = 120.0  # seconds: some import much


@asynccontextmanager
async def connected(program: str, *arguments: str, **options: Any) -> AsyncGenerator[OperationRegistry]:
    """The operations of a server in the namespace `it`."""
    registry = OperationRegistry()
    server = StdioServer(program, arguments, stop_timeout=0.2, **options)
    async with from_mcp(server, namespace="it", connect_timeout=CONNECT) as source:
        assert [*source.report] == []
        registry.follow(source)
        yield registry


async def text(registry: OperationRegistry, name: str, **input: Any) -> str:
    """The text of a result."""
    envelope = await registry.execute(f"it.{name}", input)
    assert not envelope.meta.is_error, envelope  # pyright: ignore
    return "".join(block.get("text", "") for block in envelope.meta.content)  # pyright: ignore


async def test_a_thought_is_counted() -> None:
    async with connected(*npm_program("mcp-server-sequential-thinking")) as registry:
        thought = {"thought": "tea?", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
        envelope = await registry.execute("it.sequentialthinking", thought)
        assert envelope.data["thoughtHistoryLength"] == 1


async def test_a_table_is_written_and_queried(tmp_path: Path) -> None:
    program = python_program("mcp-server-sqlite", sdk=1)
    async with connected(program, "--db-path", str(tmp_path / "shop.db")) as registry:
        await text(registry, "create_table", query="CREATE TABLE tea (name TEXT, price REAL)")
        await text(registry, "write_query", query="INSERT INTO tea VALUES ('Assam', 4.5)")
        assert "Assam" in await text(registry, "read_query", query="SELECT * FROM tea")
        resources = (await registry.execute("it.resources/list")).data["resources"]
        assert [each["uri"] for each in resources] == ["memo://insights"]


async def test_a_workbook_is_written_and_read(tmp_path: Path) -> None:
    """Servers that others wrote for thinking, databases, spreadsheets, documents and browsers are read and called."""
    file = str(tmp_path / "prices.xlsx")
    async with connected(python_program("excel-mcp-server", sdk=1), "stdio") as registry:
        await text(registry, "create_workbook", filepath=file)
        await text(registry, "write_data_to_excel", filepath=file, sheet_name="Sheet1", data=[["tea", 4.5]])
        assert "4.5" in await text(registry, "read_data_from_excel", filepath=file, sheet_name="Sheet1")


async def test_a_page_becomes_markdown(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<h1>Tea</h1><p>Hot.</p>", encoding="utf-8")
    async with connected(python_program("markitdown-mcp", sdk=1)) as registry:
        assert "# Tea" in await text(registry, "convert_to_markdown", uri=page.as_uri())


async def test_collections_are_listed(tmp_path: Path) -> None:
    settings = ("--client-type", "persistent", "--data-dir", str(tmp_path))
    async with connected(python_program("chroma-mcp", sdk=1), *settings, cwd=str(tmp_path)) as registry:
        assert "__NO_COLLECTIONS_FOUND__" in await text(registry, "chroma_list_collections")


async def test_the_tools_of_a_browser_are_listed() -> None:
    async with connected(*npm_program("playwright-mcp"), "--headless") as registry:
        names = {spec.name for spec in registry.list()}
        assert {"browser_navigate", "browser_click", "browser_snapshot"} <= names
