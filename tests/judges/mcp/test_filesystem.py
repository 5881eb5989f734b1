"""`from_mcp` and the reference server for files."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from opwire import MCPResponseMeta, OperationRegistry
from opwire.mcp.client import StdioServer, from_mcp
from tests.judges.programs import npm_program


@pytest.fixture
async def files(tmp_path: Path) -> AsyncGenerator[OperationRegistry]:
    registry = OperationRegistry()
    program, *arguments = npm_program("mcp-server-filesystem")
    async with from_mcp(StdioServer(program, (*arguments, str(tmp_path))), namespace="files") as source:
        registry.follow(source)
        yield registry


async def test_what_is_written_is_on_the_disk_and_can_be_read_and_listed(
    files: OperationRegistry, tmp_path: Path
) -> None:
    note = str(tmp_path / "note.txt")
    await files.execute("files.write_file", {"path": note, "content": "Grüße\n"})
    assert Path(note).read_text(encoding="utf-8") == "Grüße\n"
    read = await files.execute("files.read_text_file", {"path": note})
    assert read.data == {"content": "Grüße\n"}
    listed = await files.execute("files.list_directory", {"path": str(tmp_path)})
    assert listed.data == {"content": "[FILE] note.txt"}


async def test_a_path_outside_is_an_error_of_the_tool_and_no_exception(
    files: OperationRegistry, tmp_path: Path
) -> None:
    """The reference server for files writes, reads and lists; a path outside is an error result."""
    envelope = await files.execute("files.read_text_file", {"path": str(tmp_path.parent)})
    assert isinstance(envelope.meta, MCPResponseMeta)
    assert envelope.meta.is_error
    assert envelope.data[0]["text"].startswith("Access denied")
