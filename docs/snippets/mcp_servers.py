import asyncio

from opwire import OperationRegistry
from opwire.mcp.client import from_mcp


async def main() -> None:
    registry = OperationRegistry()
    async with from_mcp(
        "servers.json"
    ) as servers:  # all at once; each has the namespace of its key
        registry.follow(servers)
        print([spec.id for spec in registry.list()])
        print((await registry.execute("warehouse.stock", {"article": "pot"})).data)
        for name, error in servers.failures.items():
            print(name, error.code)


asyncio.run(main())
