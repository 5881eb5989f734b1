import asyncio

from opwire import CallError
from opwire.client import Client, Retries

from shop import Receipt, registry

LINES = {"lines": [{"article": "tea", "price": 4.5, "quantity": 2}]}


async def main() -> None:
    async with Client(registry, timeout=10, retries=Retries(max_attempts=5)) as client:
        print(await client.call("shop.order", LINES))
        print(await client.call("shop.order", LINES, output_type=Receipt))
        envelope = await client.call_envelope("shop.order", LINES)
        print(envelope.meta.source)
        async for visitor in client.subscribe("shop.visitors"):
            print(visitor)
            break  # leaving the loop stops the producer
        print([spec.id for spec in await client.operations()])
        try:
            await client.call("shop.order", {}, timeout=1)
        except CallError as error:
            print(error)


asyncio.run(main())
