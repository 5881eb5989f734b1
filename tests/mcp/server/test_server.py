"""A registry as a server of every revision: what is announced, listed, answered and told."""

from typing import Any

import pytest
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from opwire import Identity, OperationRegistry, OperationSpec, mcp_envelope
from opwire.mcp.server import serve_mcp
from opwire.model.context import Context
from tests.mcp.server.operations import shop
from tests.mcp.server.raw import HANDSHAKE, call, raw, request
from tests.mcp.server.shop import ERAS, NEWEST, connected


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
async def test_every_revision_of_the_handshake_era_is_served(version: str) -> None:
    """Any pair of streams is a connection: `serve_stream` takes messages and a function for others."""
    async with raw(serve_mcp(shop(), name="shop", version="1.0", instructions="Buy."), handshake=False) as client:
        hello: Any = HANDSHAKE[0] | {"params": {**HANDSHAKE[0]["params"], "protocolVersion": version}}  # type: ignore[dict-item]
        result = (await client.ask(hello))["result"]
        assert result["protocolVersion"] == version
        assert result["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
        assert result["serverInfo"] == {"name": "shop", "version": "1.0"}
        assert result["instructions"] == "Buy."
        await client.send(HANDSHAKE[1])
        tools = (await client.ask(request("tools/list")))["result"]["tools"]
        declared = [tool["outputSchema"]["type"] for tool in tools if tool["name"] != "data_bytes"]
        assert declared == ["object"] * (len(tools) - 1)
        answered = (await client.ask(call("data_list")))["result"]
        assert answered["structuredContent"] == {"result": [1, 2]}
        assert (await client.ask(request("ping")))["result"] == {}


async def test_the_newest_revision_is_served_without_a_handshake() -> None:
    async with raw(serve_mcp(shop(), name="shop", version="1.0"), handshake=False) as client:
        found = (await client.ask(request("server/discover", era=NEWEST)))["result"]
        assert found["capabilities"] == {
            "logging": {},
            "tools": {"listChanged": True},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        }
        listed = (await client.ask(request("tools/list", era=NEWEST)))["result"]
        assert (listed["resultType"], listed["ttlMs"], listed["cacheScope"]) == ("complete", 0, "private")
        shown = {tool["name"]: tool.get("outputSchema") for tool in listed["tools"]}
        assert shown["data_list"] == {"type": "array", "items": {"type": "integer"}}
        answered = (await client.ask(call("data_none", era=NEWEST)))["result"]
        assert answered == {
            "resultType": "complete",
            "content": [{"type": "text", "text": "null"}],
            "structuredContent": None,
            "_meta": {SERVER_INFO_META_KEY: {"name": "shop", "version": "1.0"}},
        }


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_gets_every_page(era: str) -> None:
    async with connected(serve_mcp(shop(), max_page=1_500), era) as client:
        page = await client.list_tools()
        names, pages = [tool.name for tool in page.tools], 1
        while page.next_cursor is not None:
            page = await client.list_tools(cursor=page.next_cursor)
            names += [tool.name for tool in page.tools]
            pages += 1
        assert len(names) == len(set(names)) == len(shop())
        assert 1 < pages < len(names)


@pytest.mark.parametrize("message", [call("no_such"), call(""), request("tools/list", {"cursor": "made up"}),
                                     request("tools/call", {"name": 1}), request("tools/call", {"arguments": {}}),
                                     request("tools/call", {"name": "math_add", "arguments": [1]})])  # fmt: skip
async def test_a_request_that_cannot_be_meant_is_an_error_of_the_protocol(message: Any) -> None:
    async with raw(serve_mcp(shop())) as client:
        assert (await client.ask(message))["error"]["code"] == -32602
        newest = message | {"params": {**message["params"], "_meta": request("", era=NEWEST)["params"]["_meta"]}}
    async with raw(serve_mcp(shop()), handshake=False) as client:
        assert (await client.ask(newest))["error"]["code"] == -32602


async def test_what_is_not_there_is_not_found() -> None:
    async with raw(serve_mcp(shop())) as client:
        for method in ("prompts/list", "resources/list"):
            assert (await client.ask(request(method)))["error"]["code"] == -32601


async def test_before_the_handshake_no_tool_is_listed_or_called() -> None:
    async with raw(serve_mcp(shop()), handshake=False) as client:
        assert (await client.ask(request("tools/list")))["error"]["code"] == -32602
        assert (await client.ask(call("math_add", {"a": 1, "b": 1})))["error"]["code"] == -32602


async def test_a_client_that_says_only_that_it_is_there_is_served() -> None:
    async with raw(serve_mcp(shop()), handshake=False) as client:
        await client.send(HANDSHAKE[1])
        assert "tools" in (await client.ask(request("tools/list")))["result"]
        answered = await client.ask(call("math_add", {"a": 1, "b": 1}))
        assert answered["result"]["structuredContent"] == {"result": 2}


@pytest.mark.parametrize("era", ["", NEWEST])
async def test_nothing_of_another_servers_result_is_lost_on_the_way(era: str) -> None:
    block = {"type": "text", "text": "hi", "newer": {"field": None}}
    registry = OperationRegistry()

    @registry.query("other.tool")
    async def tool() -> Any:
        return mcp_envelope({}, is_error=True, content=[block], structured_content={"n": None}, _meta={"k": None})

    async with raw(serve_mcp(registry), handshake=not era) as client:
        result = (await client.ask(call("other_tool", era=era)))["result"]
    assert result["content"] == [block]
    assert result["structuredContent"] == {"n": None}
    assert result["isError"] is True
    assert result["_meta"]["k"] is None


async def test_a_local_caller_is_trusted_with_everything_by_default() -> None:
    async with connected(serve_mcp(shop())) as client:
        assert (await client.call_tool("admin_secret")).structured_content == "secret"
    async with connected(serve_mcp(shop(), stdio_identity=Identity(id="bob"))) as client:
        assert "admin_secret" not in {tool.name for tool in (await client.list_tools()).tools}
        assert (await client.call_tool("admin_secret")).is_error


async def test_a_change_is_sent_once_after_any_number_of_initialized_notifications() -> None:
    """Clients of both eras are notified of changes of the registry, once for many."""
    registry = shop()
    async with raw(serve_mcp(registry)) as client:
        await client.send(HANDSHAKE[1])
        await client.ask(request("ping"))  # the server has read all of the above
        for name in "abc":
            registry.register(OperationSpec(namespace="new", name=name), _handler)
        assert (await client.receive())["method"] == "notifications/tools/list_changed"
        registry.unregister("new.a")
        assert (await client.receive())["method"] == "notifications/tools/list_changed"
        await client.ask(request("ping"))
    assert not registry._listeners


async def test_a_client_of_the_newest_revision_listens_for_changes() -> None:
    registry = shop()
    surface = serve_mcp(registry)
    async with raw(surface, handshake=False) as client:
        wanted = {"notifications": {"toolsListChanged": True}}
        await client.send(request("subscriptions/listen", wanted, era=NEWEST))
        assert (await client.receive())["method"] == "notifications/subscriptions/acknowledged"
        registry.register(OperationSpec(namespace="new", name="a"), _handler)
        assert (await client.receive())["method"] == "notifications/tools/list_changed"
    assert not registry._listeners


async def _handler(input: Any, context: Context) -> Any:
    return input
