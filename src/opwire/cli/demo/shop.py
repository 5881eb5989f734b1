"""The first source: Python functions. One of them is made of operations of all three."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from opwire import Context, OperationRegistry

_PRICES = {"tea": 4.5, "cup": 11.0, "pot": 39.0}


@dataclass
class Price:
    """What a number of pieces costs, in euros."""

    article: str
    pieces: int
    total: float


@dataclass
class Offer:
    """A price in the customer's currency, and from which shelf it comes."""

    article: str
    pieces: int
    total: float
    currency: str
    shelf: str


Pieces = Annotated[int, Meta(ge=1)]


def shop() -> OperationRegistry:
    """A registry with the operations of the shop."""
    registry = OperationRegistry(namespace="shop")
    registry.query("shop.price", examples=[{"article": "tea", "pieces": 2}])(price)
    registry.query("shop.offer", examples=[{"article": "tea", "pieces": 2, "currency": "JPY"}])(offer)
    return registry


def price(article: str, pieces: Pieces = 1) -> Price:
    """The price of some pieces of an article. A plain `def` runs on a worker thread."""
    return Price(article, pieces, _PRICES[article] * pieces)


async def offer(article: str, pieces: Pieces, currency: str, context: Context) -> Offer:
    """An offer: the price (a function), the stock (an MCP tool) and the rate (an HTTP API), put together."""
    env: Any = context.env  # calls made through it carry identity and deadline on
    price = await env.shop.price(article=article, pieces=pieces)
    stock = await env.warehouse.stock(article=article)
    rate = await env.rates.get(currency=currency)
    return Offer(
        article=article,
        pieces=min(pieces, stock.data["pieces"]),
        total=round(price.data["total"] * rate.data["rate"], 2),
        currency=currency,
        shelf=stock.data["shelf"],
    )
