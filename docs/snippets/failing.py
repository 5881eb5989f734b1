import asyncio

from opwire import CallError

from shop import registry


@registry.query("shop.count")
async def count() -> int:
    raise CallError("UNAVAILABLE", "we are counting: ask later", retry_after=60)


async def main() -> None:
    wrong = {"lines": [{"article": "tea", "price": "cheap"}, {"price": 1}]}
    for operation_id, input in (
        ("shop.order", wrong),
        ("shop.ordr", {}),
        ("shop.count", {}),
    ):
        try:
            await registry.execute(operation_id, input)
        except CallError as error:
            print(error)


asyncio.run(main())
