import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from opwire import Context, Depends, Identity, OperationRegistry

registry = OperationRegistry()


async def connect(context: Context) -> AsyncIterator[dict[str, list[str]]]:
    """Open the database of the caller's tenant, and close it after the call."""
    assert context.identity is not None
    print(f"open the database of {context.identity.id}")
    try:
        yield {"bob": ["tea", "cake", "milk"]}
    finally:
        print("close it")


@registry.query("shop.orders")
async def orders(
    customer: Annotated[str, "The name of the customer"],
    database: Annotated[dict[str, list[str]], Depends(connect)],
    limit: int = 10,
) -> list[str]:
    """List the orders of a customer.

    Args:
        limit: The number of orders at most.
    """
    return database[customer][:limit]


async def main() -> None:
    (spec,) = registry.list()
    schema: Any = spec.input_schema.json
    for name, each in schema["properties"].items():
        print(f"{name}: {each['description']}")
    context = Context(identity=Identity(id="ada"))
    found = await registry.execute(
        "shop.orders", {"customer": "bob", "limit": 2}, context
    )
    print(found.data)


asyncio.run(main())
