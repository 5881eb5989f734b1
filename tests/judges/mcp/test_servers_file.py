"""`from_mcp` reads the file that desktop applications keep of their MCP servers, and starts the servers in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from opwire import ErrorCode, OperationRegistry
from opwire.mcp.client import from_mcp
from tests.judges.programs import NODE, npm_program


def entry(program: str, *arguments: str, **more: Any) -> dict[str, Any]:
    return {"command": "${JUDGE_NODE}", "args": [*npm_program(program)[1:], *arguments], **more}


async def test_every_server_of_the_file_has_its_namespace_and_a_broken_one_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_NODE", str(NODE))
    notes = tmp_path / "notes"
    notes.mkdir()
    servers = {
        "everything": entry("mcp-server-everything"),
        "my files": entry("mcp-server-filesystem", str(notes)),
        "memory": entry("mcp-server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}),
        "broken": {"command": str(tmp_path / "nothing-here")},
        "switched off": {"command": str(tmp_path / "nothing-here"), "disabled": True},
    }
    file = tmp_path / "claude_desktop_config.json"
    file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    registry = OperationRegistry()
    async with from_mcp(file) as source:
        registry.follow(source)
        assert {name: error.code for name, error in source.failures.items()} == {"broken": ErrorCode.UNAVAILABLE}
        assert {spec.namespace for spec in registry.list()} == {"everything", "my files", "memory"}
        await registry.execute("my files.write_file", {"path": str(notes / "a.txt"), "content": "tea"})
        assert (notes / "a.txt").read_text() == "tea"
        assert (await registry.execute("memory.read_graph", {})).data == {"entities": [], "relations": []}
        echoed = await registry.execute("everything.echo", {"message": "hello"})
        assert echoed.data == [{"type": "text", "text": "Echo: hello"}]
