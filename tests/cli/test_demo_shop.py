"""The Python functions of the demo."""

from opwire import ResponseEnvelope, local_envelope
from opwire.cli.demo_story import Price, price, shop


def test_a_price_is_that_of_all_pieces() -> None:
    assert price("tea", 3) == Price("tea", 3, 13.5)


async def test_an_offer_is_made_of_the_three_sources() -> None:
    registry = shop()

    @registry.query("warehouse.stock")
    async def stock(article: str) -> dict[str, object]:
        return {"pieces": 2, "shelf": "A1"}

    @registry.query("rates.get")
    async def get(currency: str) -> ResponseEnvelope[object]:
        return local_envelope({"rate": 2.0}, "rates.get")

    envelope = await registry.execute("shop.offer", {"article": "cup", "pieces": 5, "currency": "USD"})
    assert envelope.data == {"article": "cup", "pieces": 2, "total": 110.0, "currency": "USD", "shelf": "A1"}
