"""`serve_mcp`: the face of the MCP server."""

import asyncio
import socket
from typing import Any, cast

import pytest

from opwire import CallError, Identity, OperationRegistry
from opwire.errors import UsageError
from opwire.mcp.server import MCPSurface, serve_mcp
from opwire.model.tool_envelope import ToolEnvelope, parse_or_text
from tests.mcp.server.operations import shop
from tests.mcp.server.shop import PATIENCE, connected, http_client


def test_nothing_runs_until_it_is_asked_for() -> None:
    surface = serve_mcp(OperationRegistry(), name="shop")
    assert isinstance(surface, MCPSurface)
    assert repr(surface) == "<MCPSurface 'shop' of <OperationRegistry of 0 operations>>"
    surface.asgi()


@pytest.mark.parametrize("option", ["timeout", "max_items", "max_seconds", "max_bytes", "max_page"])
def test_limits_are_above_zero(option: str) -> None:
    with pytest.raises(UsageError, match=option):
        serve_mcp(OperationRegistry(), **cast("Any", {option: 0}))


async def test_results_can_be_tool_envelopes() -> None:
    async with connected(serve_mcp(shop(), tool_envelopes=True)) as client:
        for tool, payload in (("data_object", {"n": 1}), ("feed_count", {"items": [0, 1, 2], "complete": True})):
            result = await client.call_tool(tool)
            envelope = parse_or_text([block.model_dump() for block in result.content])
            assert isinstance(envelope, ToolEnvelope)
            assert envelope.payload == payload
        failed = await client.call_tool("math_add", {})
        assert isinstance(parse_or_text([block.model_dump() for block in failed.content]), ToolEnvelope)


async def test_some_operations_can_be_kept_to_oneself() -> None:
    async with connected(serve_mcp(shop(), include=["data.*"])) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"data_object", "data_list", "data_none", "data_bytes"}
        with pytest.raises(Exception, match="Unknown tool"):
            await client.call_tool("math_add", {"a": 1, "b": 1})


async def test_an_unknown_tool_is_an_error_with_the_names_that_look_alike_and_may_be_called() -> None:
    messages: list[str] = []
    for caller in (Identity(id="ann"), Identity(id="root", scopes=("admin",))):
        async with connected(serve_mcp(shop(), stdio_identity=caller)) as client:
            for name in ("math_ad", "admin_secrets", "x" * 10_000):
                with pytest.raises(Exception, match="Unknown tool") as failure:
                    await client.call_tool(name, {})
                messages.append(str(failure.value))
    suggested, secret = "Unknown tool: math_ad; did you mean math_add?", "Unknown tool: admin_secrets"
    long = f"Unknown tool: {'x' * 100}"
    assert messages == [suggested, secret, long, suggested, f"{secret}; did you mean admin_secret?", long]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


async def _connect(port: int) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)


async def test_it_listens_until_it_is_stopped() -> None:
    """Streamable HTTP is served at /mcp until the server is stopped."""
    port = _free_port()
    surface = serve_mcp(shop())
    running = asyncio.create_task(surface.run_http(port=port, anonymous=Identity(id="guest")))
    _, writer = await _connect(port)
    writer.close()
    async with http_client(f"http://127.0.0.1:{port}/mcp") as client:
        assert (await client.call_tool("public_hello")).structured_content == "hello"
        running.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([running])
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_an_address_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CallError, match="cannot listen"):
        await serve_mcp(shop()).run_http(port=taken.getsockname()[1])


@pytest.mark.parametrize(
    ("where", "option"),
    [
        *(("surface", each) for each in ("timeout", "max_items", "max_seconds", "max_bytes", "max_page")),
        *(("http", each) for each in ("max_sessions", "max_sessions_per_identity", "session_idle", "max_body")),
    ],
)
@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5"])
def test_an_option_that_is_not_a_number_above_zero_is_refused_by_its_name(where: str, option: str, wrong: Any) -> None:
    def make(options: dict[str, Any]) -> object:
        return serve_mcp(shop(), **options) if where == "surface" else serve_mcp(shop()).asgi(**options)

    with pytest.raises(UsageError, match=option):
        make({option: wrong})
