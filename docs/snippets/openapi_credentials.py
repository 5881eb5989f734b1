import asyncio
import os

from opwire import CallError, OperationRegistry
from opwire.asgi.listener import listening
from opwire.openapi.client import from_openapi

from invoices import app

os.environ["INVOICES_KEY"] = "open-sesame"  # stands for your own environment


async def main() -> None:
    async with listening(app) as address:
        key = {
            "key": os.environ["INVOICES_KEY"]
        }  # by the name of the document's security scheme
        async with from_openapi(
            "invoices.yaml", base_url=address, credentials=key, exclude=["DELETE *"]
        ) as api:
            registry = OperationRegistry()
            registry.follow(api)
            print((await registry.execute("invoices.list")).data)
            print(api.report)

        async with from_openapi("invoices.yaml", base_url=address) as api:
            registry = OperationRegistry()
            registry.follow(api)
            try:
                await registry.execute("invoices.list")
            except CallError as error:
                print(error)


asyncio.run(main())
