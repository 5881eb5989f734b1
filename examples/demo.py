"""Operations of all three types, and the one envelope that each of them answers with. Run it: `make demo`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from opwire import CallError, Context, OperationRegistry, ResponseEnvelope, encode_envelope

registry = OperationRegistry()


@dataclass
class Line:
    """One line of an order."""

    article: str
    price: float
    quantity: int = 1


@dataclass
class Receipt:
    """What an order costs."""

    lines: int
    total: float
    currency: str = "EUR"


@registry.query("math.add")
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@registry.mutation("shop.order")
def order(lines: list[Line]) -> Receipt:
    """Order something. A plain `def` runs on a worker thread; the dicts of the input arrive as `Line`s."""
    return Receipt(lines=len(lines), total=sum(line.price * line.quantity for line in lines))


@registry.mutation("shop.order_twice")
async def order_twice(lines: list[Line], context: Context) -> dict[str, float]:
    """Call other operations: `context.env` carries identity and deadline on."""
    first = await context.env.shop.order(lines=lines)
    second = await context.env.shop.order(lines=lines)
    both = await context.env.math.add(a=int(first.data["total"]), b=int(second.data["total"]))
    return {"total": both.data}


@registry.subscription("clock.ticks")
async def ticks(count: int = 3) -> AsyncIterator[dict[str, int]]:
    """Tick, and yield each tick."""
    for number in range(count):
        yield {"tick": number}


@registry.query(
    "partner.profile",
    output_schema={
        "type": "object",
        "properties": {"name": {"type": "string"}, "plan": {"type": "string", "default": "free"}},
        "required": ["name", "plan"],
    },
)
async def profile() -> object:
    """Answer with something that does not match the declared schema: `fit` mends what it can, and says so."""
    return {"name": "Ada", "internal_id": 42}


def show(title: str, envelope: ResponseEnvelope[object]) -> None:
    """Print an envelope as it would travel."""
    print(f"{title:<18} {encode_envelope(envelope).decode()}")


async def main() -> None:
    """Call everything once."""
    logging.basicConfig(format="%(name)-18s %(message)s")
    lines = [{"article": "tea", "price": 4.5, "quantity": 2}, {"article": "cup", "price": 11.0}]
    show("math.add", await registry.execute("math.add", {"a": 1, "b": 2}))
    show("shop.order", await registry.execute("shop.order", {"lines": lines}))
    show("shop.order_twice", await registry.execute("shop.order_twice", {"lines": lines}))
    async for tick in registry.subscribe("clock.ticks", {"count": 2}):
        show("clock.ticks", tick)
    show("partner.profile", await registry.execute("partner.profile"))
    receipt = await registry.execute("shop.order", {"lines": lines}, output_type=Receipt)
    print(f"{'typed':<18} {receipt.data}")
    for operation_id, input in (("math.add", {"a": "one"}), ("math.ad", {})):
        try:
            await registry.execute(operation_id, input)
        except CallError as error:
            print(f"{operation_id:<18} {error}")


if __name__ == "__main__":
    asyncio.run(main())
