import asyncio
import secrets

from opwire import Identity, OperationRegistry
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub, Spoke

from shop import registry

ORDER = {"lines": [{"article": "tea", "price": 4.5}]}


async def main() -> None:
    token = secrets.token_urlsafe()  # in a program of yours, from its environment
    auth = StaticTokens(
        {token: Grant(Identity(id="team", scopes=("*",)), announces=("shop",))}
    )
    async with (
        Hub(OperationRegistry(), "ws://127.0.0.1:0", authenticate=auth) as hub,
        Spoke(registry, hub.url, token=token),
        Spoke(None, hub.url, token=token) as caller,
    ):
        print(await caller.call("shop.order", ORDER, timeout=5))
        envelope = await hub.registry.execute("shop.order", ORDER)  # the hub has it too
        print(envelope.data)


asyncio.run(main())
