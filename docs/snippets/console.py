import asyncio
import secrets

import aiohttp
from opwire import Identity
from opwire.auth import StaticTokens
from opwire.console import serve_console
from opwire.observe.monitor import CallMonitor
from opwire.openapi.server import serve_http

from shop import registry

tokens = StaticTokens({secrets.token_urlsafe(): Identity(id="ada", scopes=("*",))})
monitor = CallMonitor(registry, name="shop")
console = serve_console(registry, authenticate=tokens, monitor=monitor)
app = serve_http(
    registry, authenticate=tokens, monitor=monitor, mounts={"/console": console}
)


async def main() -> None:
    async with app.listening() as address, aiohttp.ClientSession() as browser:
        link = f"{address}/console/#link={console.create_link()}"  # for one person
        async with browser.get(link) as page:
            print(page.status, page.content_type)


asyncio.run(main())
