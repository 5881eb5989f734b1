import asyncio

from opwire import CallError, HTTPResponseMeta
from opwire.asgi.listener import listening
from opwire.openapi.client import from_openapi

from rates import app
from shop import registry


async def main() -> None:
    async with (
        listening(app) as address,  # the API, on a free port of this machine
        from_openapi("rates.yaml", base_url=address) as rates,
    ):
        registry.follow(rates)
        envelope = await registry.execute("rates.get", {"currency": "USD"})
        print(envelope.data, envelope.meta.source)
        if isinstance(envelope.meta, HTTPResponseMeta):
            print(envelope.meta.status_code, envelope.meta.headers["content-type"])
        try:
            await registry.execute("rates.get", {"currency": "gold"})
        except CallError as error:
            print(error, error.details["body"])


asyncio.run(main())
