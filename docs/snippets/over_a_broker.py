import asyncio
import os

from opwire import Identity
from opwire.hub import Spoke

from shop import registry

URL = os.environ.get("BROKER_URL", "redis://127.0.0.1:6379")  # or nats://127.0.0.1:4222
ORDER = {"lines": [{"article": "tea", "price": 4.5}]}


async def main() -> None:
    callers = Identity(id="callers")  # every client of the broker
    async with (
        Spoke(registry, URL, name="shop", version="2.1.0", anonymous=callers),
        Spoke(None, URL) as caller,
    ):
        print(await caller.call("shop.order", ORDER, timeout=5))
        for found in await caller.discover():
            print(found.server.name, found.server.version, found.server.status)
            for operation in found.operations:
                counted = operation.statistics
                print("  ", operation.id, counted.calls, counted.errors)


asyncio.run(main())
