"""APIs in which a person signs in: from_openapi against a real authorization server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.auth.oauth import OAuthClient, TokenStore
from opwire.errors import CallError, UsageError
from opwire.openapi.client import from_openapi
from tests.auth.oauth.authorization_server import AuthorizationServer, browse
from tests.openapi.client.documents import document
from tests.openapi.client.echo import EchoServer, redirect

CLIENT = OAuthClient(client_id="cli", login=True)


@pytest.fixture
async def identity() -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer() as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "logins")


def root(api: str, scheme: dict[str, Any]) -> dict[str, Any]:
    def get(name: str, *scopes: str) -> dict[str, Any]:
        return {"operationId": name, "security": [{"oauth": scopes}], "responses": {"200": {"description": ""}}}

    paths = {"/me": {"get": get("me", "read")}, "/all": {"get": get("all", "read", "admin")}}
    return document(paths, servers=[{"url": api}], components={"securitySchemes": {"oauth": scheme}})


def code_flow(identity: AuthorizationServer, **changes: str) -> dict[str, Any]:
    flow = {"authorizationUrl": f"{identity.url}/authorize", "tokenUrl": f"{identity.url}/token", "scopes": {}}
    return {"type": "oauth2", "flows": {"authorizationCode": flow | changes}}


def source(identity: AuthorizationServer, store: TokenStore, client: Any = CLIENT, **options: Any) -> Any:
    given = {"scheme": code_flow(identity), "api": identity.url} | options
    return from_openapi(
        root(given.pop("api"), given.pop("scheme")),
        namespace="api",
        credentials={"oauth": client},
        token_store=store,
        **given,
    )


async def called(api: Any, name: str = "me") -> Any:
    registry = OperationRegistry()
    registry.register_all(api)
    return (await registry.execute(f"api.{name}")).data


async def test_a_person_signs_in_once_and_calls_are_made_with_the_login(
    identity: AuthorizationServer, store: TokenStore
) -> None:
    async with source(identity, store) as api:
        with pytest.raises(CallError) as caught:
            await called(api)
        assert "opwire login" in caught.value.details["hint"]
        assert await api.login(browse) == ("oauth",)
        assert await called(api) == {"login": 1}
    assert identity.form("/authorize")["scope"] == "read admin"
    async with source(identity, store) as api:  # another process
        assert await called(api) == {"login": 1}
        assert await api.logout() == ("oauth",)
        with pytest.raises(CallError, match="HTTP 401"):
            await called(api)
        assert await api.logout() == ()


async def test_a_token_that_the_api_rejects_is_refreshed(identity: AuthorizationServer, store: TokenStore) -> None:
    async with source(identity, store) as api:
        await api.login(browse)
        identity.tokens.clear()
        assert await called(api) == {"login": 1}
    assert identity.count("/token") == 2


@pytest.mark.parametrize("kind", ["openIdConnect", "metadata", "issuer", "swagger", "fields"])
async def test_the_endpoints_come_from_the_document_its_metadata_or_the_client(
    identity: AuthorizationServer, store: TokenStore, kind: str
) -> None:
    openid = f"{identity.url}/.well-known/openid-configuration"
    swagger = {"type": "oauth2", "flow": "accessCode", "authorizationUrl": f"{identity.url}/authorize"}
    schemes: dict[str, dict[str, Any]] = {
        "openIdConnect": {"type": "openIdConnect", "openIdConnectUrl": openid},
        "metadata": {
            "type": "oauth2",
            "flows": {},
            "oauth2MetadataUrl": f"{identity.url}/.well-known/oauth-authorization-server",
        },
        "issuer": {"type": "http", "scheme": "bearer"},
        "swagger": {**swagger, "tokenUrl": f"{identity.url}/token"},
        "fields": {"type": "oauth2", "flows": {}},
    }
    clients: dict[str, Any] = {
        "issuer": {"client_id": "cli", "login": True, "issuer": identity.url},
        "fields": {
            "client_id": "cli",
            "login": True,
            "authorization_url": f"{identity.url}/authorize",
            "token_url": f"{identity.url}/token",
        },
    }
    async with source(identity, store, clients.get(kind, CLIENT), scheme=schemes[kind]) as api:
        await api.login(browse)
        assert await called(api) == {"login": 1}


async def test_a_robot_finds_the_token_endpoint_in_the_metadata(
    identity: AuthorizationServer, store: TokenStore
) -> None:
    scheme = {"type": "openIdConnect", "openIdConnectUrl": f"{identity.url}/.well-known/openid-configuration"}
    robot = OAuthClient(client_id="robot", client_secret="s3cret")
    async with source(identity, store, robot, scheme=scheme) as api:
        assert await called(api) == {"login": 1}
        assert await called(api) == {"login": 1}
        with pytest.raises(UsageError, match="no OAuth client with `login`"):
            await api.login(browse)


async def test_a_device_is_used_by_the_flow_of_openapi_3_2(identity: AuthorizationServer, store: TokenStore) -> None:
    flow = {"deviceAuthorizationUrl": f"{identity.url}/device", "tokenUrl": f"{identity.url}/token", "scopes": {}}
    scheme = {"type": "oauth2", "flows": {"deviceAuthorization": flow}}
    async with source(identity, store, scheme=scheme) as api:
        with pytest.raises(CallError, match=r"authorization endpoint .* unknown"):
            await api.login(browse)
        with pytest.raises(CallError, match="not completed"):  # the first poll is after 2 s
            await api.login(lambda prompt: None, device=True, timeout=0.1)
    assert identity.count("/device") == 1


async def test_the_token_of_a_login_stays_at_its_api(identity: AuthorizationServer, store: TokenStore) -> None:
    async with source(identity, store) as api:
        await api.login(browse)
    async with EchoServer() as other:
        # The same document and client for another API, and an API that redirects there.
        async with source(identity, store, api=other.url) as api:
            echo = await called(api)
        assert not any(name == "Authorization" for name, _ in echo["headers"])
        async with EchoServer() as moved:
            moved.on("/me", redirect(307, f"{other.url}/me"))
            async with source(identity, store, api=moved.url) as api:
                await api.login(browse)
                echo = await called(api)
            assert moved.arrived[-1].header("authorization") is not None
            assert not any(name == "Authorization" for name, _ in echo["headers"])


async def test_a_refresh_token_goes_where_it_came_from_even_if_the_document_changes(
    identity: AuthorizationServer, store: TokenStore
) -> None:
    async with source(identity, store) as api:
        await api.login(browse)
    identity.tokens.clear()
    async with EchoServer() as evil:
        changed = code_flow(identity, tokenUrl=f"{evil.url}/token", refreshUrl=f"{evil.url}/token")
        async with source(identity, store, scheme=changed) as api:
            assert await called(api) == {"login": 1}
        assert not evil.arrived


async def test_with_a_base_url_the_document_does_not_choose_where_to_sign_in(
    identity: AuthorizationServer, store: TokenStore
) -> None:
    async with EchoServer() as mine:
        async with source(identity, store, base_url=mine.url) as api:
            with pytest.raises(CallError, match="another origin than base_url; set the client's authorization_url"):
                await api.login(browse)
        given = OAuthClient(client_id="cli", login=True, issuer=identity.url)
        async with source(identity, store, given, base_url=mine.url) as api:
            await api.login(browse)
            echo = await called(api)
        assert any(name == "Authorization" for name, _ in echo["headers"])


@pytest.mark.parametrize("name", ["authorizationUrl", "tokenUrl", "refreshUrl"])
async def test_an_endpoint_of_the_document_that_is_not_https_is_not_used(
    identity: AuthorizationServer, store: TokenStore, name: str
) -> None:
    scheme = code_flow(identity, **{name: "http://login.example/x"})
    async with source(identity, store, scheme=scheme) as api:
        with pytest.raises(CallError, match="not an https URL"):
            await api.login(browse)


async def test_an_api_without_https_gets_no_login(identity: AuthorizationServer, store: TokenStore) -> None:
    async with source(identity, store, api="http://api.example") as api:
        with pytest.raises(CallError, match="the API is not https"):
            await api.login(browse)
    assert not identity.requests


async def test_a_preview_neither_refreshes_nor_shows_a_login(identity: AuthorizationServer, store: TokenStore) -> None:
    async with source(identity, store) as api:
        registry = OperationRegistry()
        registry.register_all(api)
        shown = await registry.preview("api.me")
        assert ("Authorization", "Bearer ***") in shown.headers
        assert not identity.requests


@pytest.mark.parametrize(
    "client", [{"login": True, "client": "x"}, {"client_id": "x"}, {"client_id": 7, "login": True}]
)
async def test_an_invalid_client_is_an_error_without_its_values(
    identity: AuthorizationServer, store: TokenStore, client: dict[str, Any]
) -> None:
    async with source(identity, store, client) as api:
        with pytest.raises(CallError, match="'oauth' cannot be used"):
            await called(api)
