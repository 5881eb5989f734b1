import asyncio

from shop import registry


async def main() -> None:
    lines = [{"article": "tea", "price": 4.5, "quantity": 2}]
    envelope = await registry.execute("shop.order", {"lines": lines})
    print(envelope.data)
    print(envelope.meta.source)

    async for visitor in registry.subscribe("shop.visitors", {"count": 2}):
        print(visitor.data)


asyncio.run(main())
