import asyncio

from opwire import OperationRegistry
from opwire.mcp.client import from_mcp
from opwire.mcp.server import serve_mcp


async def main() -> None:
    registry = OperationRegistry()
    async with from_mcp("servers.json") as servers:
        registry.follow(servers)
        await serve_mcp(registry).run_stdio()  # or run_http(authenticate=...)


if __name__ == "__main__":
    asyncio.run(main())
