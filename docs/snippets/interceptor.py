import asyncio
from typing import Any

from opwire import Context, Handler, OperationSpec, OperationType, ResponseEnvelope
from opwire.client import Client

from shop import registry

LINES = {"lines": [{"article": "tea", "price": 4.5, "quantity": 2}]}


def audit(spec: OperationSpec, handler: Handler) -> Handler:
    async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
        print("calling", spec.id)
        envelope = await handler(input, context)
        print("returned", envelope.data)
        return envelope

    return handler if spec.type is OperationType.SUBSCRIPTION else call


async def main() -> None:
    async with Client(registry) as client:
        remove = client.use(audit)
        await client.call("shop.order", LINES)
        remove()


asyncio.run(main())
