import asyncio
import os

from opwire import OperationRegistry
from opwire.client import Client
from opwire.durable.streams.redis import RedisStream

URL = os.environ.get("BROKER_URL", "redis://127.0.0.1:6379")


async def main() -> None:
    registry = OperationRegistry()
    async with RedisStream(URL, "snippet-orders") as orders, Client(registry) as client:
        registry.subscription("orders.follow")(orders.follow)
        for article in ("tea", "pot", "cup"):
            await orders.append({"article": article})

        cursor = None
        async for envelope in client.subscribe_envelopes("orders.follow", resume=True):
            print(envelope.data)
            cursor = envelope.cursor
            if envelope.data == {"article": "pot"}:
                break

        items = client.subscribe_envelopes("orders.follow", resume_from=cursor)
        print((await anext(items)).data)


asyncio.run(main())
