import asyncio

from opwire import Client

from shop import registry
from shop_async import Shop


async def main() -> None:
    async with Client(registry) as client:
        shop = Shop(client).shop
        receipt = await shop.order([{"article": "pot", "price": 39.0}])
        print(receipt["total"], [visitor async for visitor in shop.visitors(count=2)])


asyncio.run(main())
