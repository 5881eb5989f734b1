"""A server that is read with `from_mcp` and served again with `serve_mcp` is the same to the official client."""

from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from opwire import OperationRegistry
from opwire.mcp.client import StdioServer, from_mcp
from opwire.mcp.server import serve_mcp
from tests.judges.programs import npm_program
from tests.mcp.server.shop import in_process

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("echo", {"message": "Grüße"}),
    ("get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("get-resource-links", {"count": 3}),
    ("get-structured-content", {"location": "Los Angeles"}),
    ("get-tiny-image", {}),
    ("gzip-file-as-resource", {"data": "ftp://files.example/a", "outputType": "resource"}),
]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_server_is_the_same_straight_and_through_opwire(mode: str) -> None:
    """A server read with `from_mcp` and served with `serve_mcp` gives clients the same tools and results."""
    program, *arguments = npm_program("mcp-server-everything")
    registry = OperationRegistry()
    async with from_mcp(StdioServer(program, tuple(arguments), stop_timeout=0.2), namespace="every") as source:
        registry.follow(source)
        served = serve_mcp(registry, name="gateway")
        async with (
            Client(StdioServerParameters(command=program, args=arguments), mode="legacy") as straight,
            Client(in_process(served), mode=mode) as through,
        ):
            await compare_tools(straight, through)
            for tool, input in CALLS:
                await compare_results(straight, through, tool, input)


async def compare_tools(straight: Client, through: Client) -> None:
    tools = (await straight.list_tools()).tools
    assert {tool for tool, _ in CALLS} <= {tool.name for tool in tools}
    served = {tool.name: tool for tool in (await through.list_tools()).tools}
    for tool in tools:
        same = served[f"every_{tool.name}"]
        assert (same.title, same.description) == (tool.title, tool.description)
        for keyword in ("properties", "required"):
            assert same.input_schema.get(keyword) == tool.input_schema.get(keyword)
        assert (same.output_schema is None) is (tool.output_schema is None)


async def compare_results(straight: Client, through: Client, tool: str, input: dict[str, Any]) -> None:
    expected = await straight.call_tool(tool, input)
    given = await through.call_tool(f"every_{tool}", input)
    assert (given.content, given.structured_content, given.is_error) == (
        expected.content,
        expected.structured_content,
        expected.is_error,
    )
