import asyncio
import secrets

from opwire import Context, Identity, OperationRegistry
from opwire.auth import StaticTokens
from opwire.client import Client
from opwire.model.caller import caller_token
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http

ada, bob = secrets.token_urlsafe(), secrets.token_urlsafe()
TOKENS = StaticTokens({ada: Identity(id="ada"), bob: Identity(id="bob")})

billing = OperationRegistry()  # stands for an API that accepts the same tokens


@billing.query("billing.invoices")
async def invoices(context: Context) -> list[str]:
    assert context.identity is not None
    return [f"an invoice of {context.identity.id}"]


DOCUMENT = """
openapi: 3.1.0
info: { title: billing, version: "1.0" }
security: [{ person: [] }]
components: { securitySchemes: { person: { type: http, scheme: bearer } } }
paths:
  /billing/invoices:
    get: { operationId: invoices, responses: { "200": { description: All. } } }
"""


async def main() -> None:
    api = serve_http(billing, authenticate=TOKENS)
    async with (
        api.listening() as upstream,
        from_openapi(
            DOCUMENT,
            base_url=upstream,
            credentials={"person": caller_token},  # or a function of yours
        ) as source,
    ):
        registry = OperationRegistry()
        registry.follow(source)
        async with serve_http(registry, authenticate=TOKENS).listening() as address:
            for token in (ada, bob):
                async with Client(address, token=token) as client:
                    print(await client.call("billing.invoices"))


asyncio.run(main())
