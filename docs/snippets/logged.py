import asyncio
import logging
import sys

from opwire import Identity
from opwire.client import Client
from opwire.observe.logs import JSONFormatter
from opwire.openapi.server import serve_http

from shop import registry

handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(JSONFormatter())
access_log = logging.getLogger("opwire.access")
access_log.addHandler(handler)
access_log.setLevel(logging.INFO)


async def main() -> None:
    app = serve_http(registry, anonymous=Identity(id="ada"))
    async with app.listening() as address, Client(address) as client:
        await client.call("shop.order", {"lines": [{"article": "tea", "price": 4.5}]})


asyncio.run(main())
