import asyncio
from typing import Any

from opwire import CallError, Context, Identity, OperationRegistry, Reshape

registry = OperationRegistry()


@registry.mutation("shop.order")
async def order(
    lines: list[str], customer: str, currency: str = "USD"
) -> dict[str, Any]:
    """Order articles for a customer."""
    return {
        "total": 4.5 * len(lines),
        "currency": currency,
        "customer": customer,
        "trace": "internal",
    }


@registry.mutation("shop.delete_order")
async def delete_order(id: int) -> bool:
    """Delete an order."""
    return True


@registry.query("stock.report")
async def report() -> list[str]:
    """Return the stock of every article."""
    return [f"article {number}: {number % 7} pieces" for number in range(1_000)]


support = registry.view(
    include=["shop", "type:query"],
    exclude=["*.delete*"],
    rename={"shop.order": "shop.buy", "stock": "warehouse"},
    reshape={
        "shop.order": Reshape(
            description="Order articles for the customer who asks.",
            rename={"lines": "articles"},
            fix={"currency": "EUR"},
            from_context={"customer": "identity.id"},
            keep=["total", "currency", "customer"],
        ),
        "stock.*": Reshape(max_chars=60),
    },
)


async def main() -> None:
    print([spec.id for spec in support.list()])
    ada = Context(identity=Identity(id="ada"))
    print((await support.execute("shop.buy", {"articles": ["tea"]}, ada)).data)
    try:
        await support.execute("shop.buy", {"articles": ["tea"], "customer": "bob"}, ada)
    except CallError as error:
        print(error)
    page = (await support.execute("warehouse.report", {}, ada)).data
    print(page["text"], page["shortened"], sep="\n")
    rest = (
        await support.execute("results.more", {**page["next"], "length": 40}, ada)
    ).data
    print(rest["text"])
    print(registry.view(include=["shop.ordr"]).problems)


asyncio.run(main())
