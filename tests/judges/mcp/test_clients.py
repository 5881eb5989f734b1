"""Clients of others list and call the tools of a served registry."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.judges.mcp.served import over_http
from tests.judges.programs import NODE, python_program
from tests.judges.serving import finished
from tests.servers.processes import mortal

HERE = Path(__file__).parent
SDK1 = ("sdk1", "langchain")


async def judged(command: Sequence[str], tmp_path: Path) -> Any:
    """What a client says of the conformance suite's tools; its command gets the URL after the second word."""
    async with over_http("conformance_registry", tmp_path) as url:
        program, script, *more = command
        ended = await finished(mortal([program, script, *[url if word == "URL" else word for word in more]]))
    assert ended.code == 0, ended.complaints
    return json.loads(ended.output)


@pytest.mark.parametrize("client", [*SDK1, "sdk2", "fastmcp", "pydantic_ai", "openai_agents"])
async def test_a_client_in_python_lists_and_calls(client: str, tmp_path: Path) -> None:
    """The clients of the SDKs 1 and 2, FastMCP, pydantic-ai, the OpenAI Agents SDK and LangChain list and call
    what is served."""
    python = python_program("python", sdk=1 if client in SDK1 else 2)
    said = await judged([python, str(HERE / "clients.py"), client, "URL"], tmp_path)
    assert "test_simple_text" in said["tools"]
    assert said["echoed"] == {"region": "north"}


@pytest.mark.parametrize(("mode", "revision"), [("legacy", "2025-11-25"), ("auto", "2026-07-28")])
async def test_the_second_client_in_typescript_lists_and_calls(mode: str, revision: str, tmp_path: Path) -> None:
    said = await judged([str(NODE), str(HERE / "typescript_2.mjs"), "URL", mode], tmp_path)
    assert "test_simple_text" in said["tools"]
    assert said["echoed"] == {"region": "north"}
    assert said["revision"] == revision
