import asyncio
import secrets

from opwire import AccessControl, CallError, Context, Identity, OperationRegistry
from opwire.auth import StaticTokens
from opwire.client import Client
from opwire.openapi.server import serve_http

registry = OperationRegistry()


@registry.query("shop.hours", access=AccessControl(public=True))
async def hours() -> str:
    return "9 to 5"


@registry.query("shop.whoami")
async def whoami(context: Context) -> str:
    assert context.identity is not None
    return context.identity.id


@registry.mutation("shop.refund", access=AccessControl(required_scopes=("shop:write",)))
async def refund(order: int) -> bool:
    return True


async def main() -> None:
    # In a program of yours, the tokens come from its environment.
    ada, bob = secrets.token_urlsafe(), secrets.token_urlsafe()
    tokens = StaticTokens(
        {ada: Identity(id="ada", scopes=("shop:write",)), bob: Identity(id="bob")}
    )
    async with serve_http(registry, authenticate=tokens).listening() as address:
        for name, token in (
            ("ada", ada),
            ("bob", bob),
            ("without a token", None),
            ("mallory", "made-up-and-long-enough"),
        ):
            print(name)
            async with Client(address, token=token) as client:
                await show(client, "shop.hours")
                await show(client, "shop.whoami")
                await show(client, "shop.refund", {"order": 17})


async def show(client: Client, operation_id: str, input: object = None) -> None:
    try:
        print("  ", operation_id, await client.call(operation_id, input))
    except CallError as error:
        print("  ", error)


asyncio.run(main())
