"""A user with a browser, for servers that want OAuth: `from_mcp` takes the official SDK's provider as it is."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

REDIRECT = AnyUrl("http://localhost:3000/callback")


class Wallet(TokenStorage):
    """Keeps tokens in memory."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self._tokens: OAuthToken | None = None
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class Browser:
    """Opens the page that asks for consent, which the suite's server gives at once, and remembers where it leads."""

    def __init__(self) -> None:
        self._answer: dict[str, list[str]] = {}

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            page = await client.get(url, follow_redirects=False)
        self._answer = parse_qs(urlsplit(page.headers["location"]).query)

    async def answer(self) -> AuthorizationCodeResult:
        code, state, issuer = (self._answer.get(key, [None])[0] for key in ("code", "state", "iss"))
        assert code is not None
        return AuthorizationCodeResult(code=code, state=state, iss=issuer)


def oauth(url: str, registered: dict[str, Any]) -> OAuthClientProvider:
    """What goes into the options of an `HTTPServer` as `auth`. `registered`: what the server knows the client by."""
    client = None
    if "client_id" in registered:
        method = "client_secret_basic" if "client_secret" in registered else "none"
        client = OAuthClientInformationFull.model_validate(
            {**registered, "redirect_uris": [REDIRECT], "token_endpoint_auth_method": method}
        )
    browser = Browser()
    return OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="judge",
            redirect_uris=[REDIRECT],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        Wallet(client),
        browser.open,
        browser.answer,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )
