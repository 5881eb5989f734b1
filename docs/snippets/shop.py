from collections.abc import AsyncIterator
from dataclasses import dataclass

from opwire import OperationRegistry

registry = OperationRegistry()


@dataclass
class Line:
    article: str
    price: float
    quantity: int = 1


@dataclass
class Receipt:
    total: float
    currency: str = "EUR"


@registry.mutation("shop.order")
async def order(lines: list[Line]) -> Receipt:
    """Order some articles."""
    return Receipt(total=sum(line.price * line.quantity for line in lines))


@registry.subscription("shop.visitors")
async def visitors(count: int = 3) -> AsyncIterator[str]:
    """Who comes in."""
    for number in range(1, count + 1):
        yield f"visitor {number}"
