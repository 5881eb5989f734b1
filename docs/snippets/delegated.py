import asyncio
import secrets

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub, Spoke

# In a program of yours, the tokens come from its environment.
STOCK, SHOP, ALICE = (secrets.token_urlsafe() for _ in range(3))

stock, shop = OperationRegistry(), OperationRegistry()
spokes: dict[str, Spoke] = {}


@stock.mutation("stock.take")
async def take(item: str, context: Context) -> str:
    return f"{item} for {context.identity.id}" if context.identity else item


@shop.mutation("shop.order")
async def order(item: str, context: Context) -> list[str]:
    spoke, asked = spokes["shop"], {"item": item}
    # As the shop itself, then as the caller of shop.order.
    own = await spoke.call("stock.take", asked, context=context.detached())
    passed_on = await spoke.call("stock.take", asked, context=context)
    return [own, passed_on]


async def main(delegates: bool) -> None:
    tokens = {
        STOCK: Grant(Identity(id="stock"), announces=("stock",)),
        SHOP: Grant(Identity(id="shop"), announces=("shop",), delegates=delegates),
        ALICE: Identity(id="alice"),
    }
    async with (
        Hub(None, "ws://127.0.0.1:0", authenticate=StaticTokens(tokens)) as hub,
        Spoke(stock, hub.url, token=STOCK),
        Spoke(shop, hub.url, token=SHOP) as spokes["shop"],
        Spoke(None, hub.url, token=ALICE) as alice,
    ):
        try:
            print(await alice.call("shop.order", {"item": "tea"}))
        except CallError as error:
            print(error.code.value)


asyncio.run(main(delegates=True))
asyncio.run(main(delegates=False))
