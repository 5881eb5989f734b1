import asyncio
import os

from opwire import Identity
from opwire.durable import DurableCalls, DurableWorker
from opwire.durable.redis import RedisJournal

from shop import registry

URL = os.environ.get("BROKER_URL", "redis://127.0.0.1:6379")
ORDER = {"lines": [{"article": "tea", "price": 4.5}]}


async def main() -> None:
    async with (
        RedisJournal(URL) as journal,
        DurableWorker(registry, journal, anonymous=Identity(id="team")),
    ):
        calls = DurableCalls(journal)
        print((await calls.call("shop.order", ORDER, key="order-17")).data)
        again = await calls.call("shop.order", ORDER, key="order-17")
        print(again.data)  # the same outcome; nothing ran again


asyncio.run(main())
