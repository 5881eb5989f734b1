import asyncio
from collections.abc import AsyncIterator

from opwire import CallError, Item, OperationRegistry, is_resume_error, resume_error
from opwire.client import Client

registry = OperationRegistry()
ORDERS = ["tea", "pot", "cup", "milk"]
restarts = [2]  # the orders behind which the server restarts, once


@registry.subscription("orders.follow")
async def follow(resume_from: str | None = None) -> AsyncIterator[Item[str]]:
    """Orders: all of them, or those behind the one with this cursor."""
    if resume_from is not None and not resume_from.isdecimal():
        raise resume_error(f"unknown order {resume_from}")
    for number in range(int(resume_from or 0) + 1, len(ORDERS) + 1):
        yield Item(ORDERS[number - 1], cursor=str(number))
        if number in restarts:
            restarts.remove(number)
            raise CallError("UNAVAILABLE", "the server restarts")


@registry.subscription("prices.follow")
async def prices() -> AsyncIterator[float]:
    yield 4.5


async def main() -> None:
    async with Client(registry) as client:
        print([order async for order in client.subscribe("orders.follow", resume=True)])
        items = client.subscribe_envelopes("orders.follow", resume_from="3")
        async for envelope in items:
            print(envelope.data, "has the cursor", envelope.cursor)
        try:
            async for price in client.subscribe("prices.follow", resume=True):
                print(price)
        except CallError as error:
            print(error, is_resume_error(error))


if __name__ == "__main__":
    asyncio.run(main())
