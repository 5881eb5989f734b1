import asyncio

from opwire import OperationRegistry

registry = OperationRegistry()


class Warehouse:
    """Operations that share what the object holds."""

    def __init__(self, stock: dict[str, int]) -> None:
        self._stock = stock

    @registry.query("warehouse.stock")
    async def stock(self, article: str) -> int:
        """Return the pieces of an article."""
        return self._stock.get(article, 0)

    @registry.mutation("warehouse.take")
    async def take(self, article: str, pieces: int = 1) -> int:
        """Take pieces of an article."""
        self._stock[article] -= pieces
        return self._stock[article]


async def main() -> None:
    registry.register_object(Warehouse({"tea": 120}))
    registry.register_object(Warehouse({"tea": 7}), namespace="vienna")
    await registry.execute("warehouse.take", {"article": "tea", "pieces": 20})
    for place in ("warehouse", "vienna"):
        print(
            place, (await registry.execute(f"{place}.stock", {"article": "tea"})).data
        )


asyncio.run(main())
