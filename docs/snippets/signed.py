import asyncio
import os

from opwire import CallError, Context, Identity, OperationRegistry
from opwire.auth import Authority, Grant, SignedRequests, Signer, SigningKey, Verifier
from opwire.hub import Spoke

URL = os.environ.get("BROKER_URL", "redis://127.0.0.1:6379")
registry = OperationRegistry()


@registry.query("who.am_i")
async def am_i(context: Context) -> str:
    assert context.identity is not None
    return context.identity.id


async def main() -> None:
    authority = Authority.generate()  # kept where certificates are issued
    key = SigningKey.generate()  # made by the caller, and never leaves it
    certificate = authority.issue(
        Grant(Identity(id="ada")), key.public_pem, lifetime=86_400
    )

    serves = SignedRequests(verifier=Verifier(authority.public_pem))
    calls = SignedRequests(signer=Signer(certificate, key))
    async with (
        Spoke(registry, URL, signed=serves),
        Spoke(None, URL, signed=calls) as ada,
        Spoke(None, URL) as mallory,
    ):
        print(await ada.call("who.am_i"))
        try:
            await mallory.call("who.am_i")
        except CallError as error:
            print(error)


asyncio.run(main())
