import asyncio
import os
import secrets

from opwire import Identity, OperationRegistry
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub, Spoke

from shop import registry

URL = os.environ.get("BROKER_URL", "nats://127.0.0.1:4222")  # or redis://127.0.0.1:6379
ORDER = {"lines": [{"article": "tea", "price": 4.5}]}


async def main() -> None:
    token, secret = secrets.token_urlsafe(), secrets.token_urlsafe()
    auth = StaticTokens(
        {token: Grant(Identity(id="team", scopes=("*",)), announces=("shop",))}
    )

    def hub() -> Hub:  # in programs of yours, on machines of their own
        return Hub(
            OperationRegistry(),
            "ws://127.0.0.1:0",
            authenticate=auth,
            cluster=URL,
            cluster_secret=secret,
        )

    async with (
        hub() as a,
        hub() as b,
        Spoke(registry, [a.url, b.url], token=token),  # at a
        Spoke(None, [b.url, a.url], token=token) as caller,  # at b
    ):
        print(await caller.call("shop.order", ORDER, timeout=5))
        await a.drain()  # the spoke moves to b
        print(await caller.call("shop.order", ORDER, timeout=5))


asyncio.run(main())
