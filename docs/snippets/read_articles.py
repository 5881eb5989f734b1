import asyncio
import sys

from opwire import CompletionRequest, OperationRegistry
from opwire.mcp.client import StdioServer, from_mcp


async def main() -> None:
    registry = OperationRegistry()
    async with from_mcp(
        StdioServer(sys.executable, ("articles.py",)), namespace="shop"
    ) as shop:
        registry.follow(shop)
        listed = await registry.execute("shop.resources/list")
        print([resource["uri"] for resource in listed.data["resources"]])
        read = await registry.execute(
            "shop.resources/read", {"uri": "shop://articles/tea"}
        )
        print(read.data[0]["resource"]["text"])
        begun = CompletionRequest(argument="article", value="c")
        print((await registry.complete("shop.prompts/shop_recommend", begun)).values)
        asked = await registry.execute(
            "shop.prompts/shop_recommend", {"article": "cups", "tone": "funny"}
        )
        print(asked.data["messages"][0]["content"]["text"])


asyncio.run(main())
