import asyncio

import aiohttp
from opwire import Identity
from opwire.openapi.server import serve_http

from shop import registry

ORDER = {"lines": [{"article": "tea", "price": 4.5, "quantity": 2}]}
WHOLE = {"Accept": "application/vnd.opwire.envelope+json"}


async def main() -> None:
    app = serve_http(registry, title="Shop", anonymous=Identity(id="guest"))
    async with app.listening() as address, aiohttp.ClientSession(address) as session:
        async with session.post("/shop/order", json=ORDER) as answer:
            print(answer.status, await answer.text())
        async with session.post("/shop/order", json=ORDER, headers=WHOLE) as answer:
            print(sorted((await answer.json(content_type=None)).keys()))
        async with session.post("/shop/order", json={}) as answer:
            problem = await answer.json(content_type=None)
            print(answer.status, answer.content_type, problem["detail"])
        async with session.get("/shop/visitors", params={"count": 1}) as answer:
            print(answer.content_type, (await answer.text()).split())
        async with session.get("/openapi.json") as answer:
            print(list((await answer.json())["paths"]))


asyncio.run(main())
