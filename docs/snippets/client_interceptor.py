import asyncio
from typing import Any

from opwire import Client, Context, Handler, OperationSpec, OperationType

from shop import registry

LINES = {"lines": [{"article": "tea", "price": 4.5, "quantity": 2}]}


def audit(spec: OperationSpec, handler: Handler) -> Handler:
    async def call(input: Any, context: Context) -> Any:
        print("calling", spec.id)
        return await handler(input, context)

    return handler if spec.type is OperationType.SUBSCRIPTION else call


async def main() -> None:
    async with Client(registry) as client:
        remove = client.use(audit)
        print(await client.call("shop.order", LINES))
        remove()


asyncio.run(main())
