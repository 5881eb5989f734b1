import asyncio
import sys

from opwire import MCPResponseMeta
from opwire.mcp.client import StdioServer, from_mcp

from shop import registry


async def main() -> None:
    program = StdioServer(sys.executable, ("warehouse.py",))
    async with from_mcp(program, namespace="warehouse") as warehouse:
        registry.follow(warehouse)
        envelope = await registry.execute("warehouse.stock", {"article": "tea"})
        print(envelope.data, envelope.meta.source)

        envelope = await registry.execute("warehouse.stock", {"article": "gold"})
        if isinstance(envelope.meta, MCPResponseMeta):
            print(envelope.meta.is_error, envelope.data)


asyncio.run(main())
