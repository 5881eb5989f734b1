import asyncio
import os

from opwire.durable import DurableWorker
from opwire.durable.redis import RedisJournal
from opwire.mcp.server import DurableTasks, serve_mcp

from shop import registry

URL = os.environ.get("BROKER_URL", "redis://127.0.0.1:6379")


async def main() -> None:
    async with (
        RedisJournal(URL, trusted=True) as journal,
        DurableWorker(registry, journal),  # here, or in processes of its own
    ):
        server = serve_mcp(
            registry,
            name="shop",
            state_key=os.environ["SHOP_STATE_KEY"],  # at least 16 bytes
            durable_tasks=DurableTasks(journal, ["shop.order"]),
        )
        await server.run_stdio()


if __name__ == "__main__":
    asyncio.run(main())
