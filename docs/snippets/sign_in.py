import asyncio
import tempfile

import aiohttp
from opwire import CallError, OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth.oauth import LoginPrompt, OAuthClient, TokenStore
from opwire.openapi.client import from_openapi

from calendar_api import app


async def show(prompt: LoginPrompt) -> None:
    """Stands for a person with a browser: yours would print or open prompt.url."""
    async with aiohttp.ClientSession() as browser, browser.get(prompt.url) as page:
        print("the browser says:", (await page.text()).split("<p>")[1].split("<")[0])


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            listening(app) as address,
            from_openapi(
                "calendar_api.yaml",
                base_url=address,
                credentials={"person": OAuthClient(client_id="cli", login=True)},
                token_store=TokenStore(folder),  # by default that of the user
            ) as api,
        ):
            registry = OperationRegistry()
            registry.follow(api)
            try:
                await registry.execute("calendar.events")
            except CallError as error:
                print(error)
                print(error.details["hint"])
            print("signed in:", await api.login(show))
            print((await registry.execute("calendar.events")).data)
            print("signed out:", await api.logout())


asyncio.run(main())
