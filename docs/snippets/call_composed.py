import asyncio

from opwire import build_env

from composed import opened


async def main() -> None:
    async with opened() as registry:
        env = build_env(registry)
        offer = await env.shop.offer(article="tea", price=4.5, currency="USD")
        print(offer.data)


asyncio.run(main())
