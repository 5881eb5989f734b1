"""The MCP server of the demo, asked by the SDK's own client."""

from mcp import Client

from opwire.cli.demo_warehouse import warehouse


async def test_its_tools_answer() -> None:
    async with Client(warehouse()) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["stock", "reserve"]
        stock = await client.call_tool("stock", {"article": "pot"})
        assert stock.structured_content == {"article": "pot", "pieces": 3, "shelf": "B4"}
        reserved = await client.call_tool("reserve", {"article": "pot", "pieces": 3})
        assert not reserved.is_error
        refused = await client.call_tool("reserve", {"article": "pot", "pieces": 4})
        assert refused.is_error
        assert "only 3 pieces of pot in stock" in str(refused.content)
