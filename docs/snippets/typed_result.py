import asyncio

from shop import Receipt, registry


async def main() -> None:
    lines = [{"article": "tea", "price": 4.5, "quantity": 2}]
    envelope = await registry.execute(
        "shop.order", {"lines": lines}, output_type=Receipt
    )
    print(envelope.data)
    print(envelope.data.total + 1)  # your editor knows that this is a float


asyncio.run(main())
