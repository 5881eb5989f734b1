"""The operations that the other files of this folder deploy."""

from dataclasses import dataclass

from opwire import AccessControl, OperationRegistry

registry = OperationRegistry()


@dataclass
class Receipt:
    total: float
    currency: str = "EUR"


@registry.query("shop.price")
async def price(article: str) -> float:
    """Return the price of an article."""
    return {"tea": 4.5, "coffee": 6.0}.get(article, 1.0)


@registry.mutation("shop.order", access=AccessControl(required_scopes=("shop:write",)))
async def order(article: str, quantity: int = 1) -> Receipt:
    """Order some pieces of an article."""
    return Receipt(await price(article) * quantity)
