"""The MCP Inspector's command line lists and calls the tools of a registry that is served."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.judges.mcp.served import over_http, over_stdio
from tests.judges.programs import npm_environment, npm_program
from tests.judges.serving import finished
from tests.servers.processes import mortal


@pytest.fixture(params=["stdio", "http"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[list[str]]:
    """The Inspector's options for the server."""
    if request.param == "stdio":
        yield over_stdio("conformance_registry")
        return
    async with over_http("conformance_registry", tmp_path) as url:
        yield [url, "--transport", "http"]


async def inspect(server: list[str], method: str, *arguments: str) -> Any:
    """What the Inspector prints of the server's answer."""
    command = [*npm_program("mcp-inspector"), "--cli", *server, "--method", method, *arguments]
    ended = await finished(mortal(command), npm_environment())
    assert ended.code == 0, ended.complaints
    return json.loads(ended.output)


async def test_the_inspector_lists_the_tools(server: list[str]) -> None:
    """The MCP Inspector lists and calls the tools of a served registry over stdio and HTTP."""
    tools = {tool["name"]: tool for tool in (await inspect(server, "tools/list"))["tools"]}
    assert tools["test_simple_text"]["description"] == "Returns text."
    assert tools["test_simple_text"]["annotations"]["readOnlyHint"] is True
    assert tools["test_header_echo"]["inputSchema"]["properties"]["region"]["type"] == "string"


async def test_the_inspector_calls_a_tool(server: list[str]) -> None:
    result = await inspect(server, "tools/call", "--tool-name", "test_header_echo", "--tool-arg", "region=north")
    assert result["structuredContent"] == {"region": "north"}
    assert result["content"] == [{"type": "text", "text": '{"region":"north"}'}]
