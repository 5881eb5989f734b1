"""A user with a browser, for servers that want OAuth: signs in before the first call, and again if it is denied."""

import tempfile
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx2

from opwire import CallError, OperationRegistry
from opwire.auth.oauth import LoginPrompt, OAuthClient, TokenStore
from opwire.mcp.client import from_mcp

LOGINS = 2


async def browse(prompt: LoginPrompt) -> None:
    """Open the page that asks for consent, which the suite's server gives at once, and follow it to the program."""
    async with httpx2.AsyncClient() as browser:
        page = await browser.get(prompt.url, follow_redirects=False)
        await browser.get(page.headers["location"])


async def issuer_of(url: str) -> str:
    """Where the client was registered: the user knows it, since a server must not decide where a secret is sent."""
    resource = urlsplit(url)
    async with httpx2.AsyncClient() as browser:
        place = f"{resource.scheme}://{resource.netloc}/.well-known/oauth-protected-resource{resource.path}"
        return (await browser.get(place)).json()["authorization_servers"][0]


async def use(
    url: str, scenario: str, registered: dict[str, Any], do: Callable[[OperationRegistry], Awaitable[None]]
) -> None:
    """Sign in to the suite's server, and do what the scenario is about. `registered`: what it knows the client by."""
    known: dict[str, Any] = {name: registered[name] for name in ("client_id", "client_secret") if name in registered}
    if scenario == "auth/basic-cimd":
        known = {"client_id": "https://conformance-test.local/client-metadata.json"}
    if "client_secret" in known:
        known["issuer"] = await issuer_of(url)
    with tempfile.TemporaryDirectory() as folder:
        client, store = OAuthClient(login=True, **known), TokenStore(folder)
        for attempt in range(LOGINS):
            source = from_mcp(url, namespace="suite", auth=client, token_store=store)  # a closed one stays closed
            await source.login(browse, timeout=30)
            registry = OperationRegistry()
            try:
                async with source:
                    registry.follow(source)
                    await do(registry)
                return
            except CallError:
                if attempt == LOGINS - 1:
                    raise
