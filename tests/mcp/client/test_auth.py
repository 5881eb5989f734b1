"""MCP servers that want OAuth: from_mcp against a real authorization server, with the SDK's server behind it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from opwire import OperationRegistry
from opwire.auth.oauth import OAuthClient, TokenStore
from opwire.errors import CallError, UsageError
from opwire.mcp.client import StdioServer, from_mcp
from opwire.mcp.client.auth import MCPAuth
from opwire.model.login import LoginOptions
from tests.auth.oauth.authorization_server import AuthorizationServer, browse

LOGIN = OAuthClient(login=True)


async def authorize(auth: MCPAuth, url: str) -> None:
    """Get a token, as a client or a person does."""
    if auth.is_login:
        await auth.sign_in(LoginOptions(show=browse))
    else:
        await auth.token(url)


@pytest.fixture
async def identity(sdk_address: str) -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer() as server:
        server.mcp_server = f"{sdk_address}/mcp"
        yield server


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "logins")


def source(identity: AuthorizationServer, store: TokenStore, auth: Any = LOGIN) -> Any:
    return from_mcp(f"{identity.url}/mcp", namespace="sdk", auth=auth, token_store=store)


async def tools(mcp: Any) -> int:
    registry = OperationRegistry()
    async with mcp:
        registry.follow(mcp)
        return len(registry)


async def test_a_person_signs_in_to_an_mcp_server(identity: AuthorizationServer, store: TokenStore) -> None:
    with pytest.raises(CallError, match="opwire login"):
        await tools(source(identity, store))
    mcp = source(identity, store)
    assert len(await mcp.login(browse)) == 1
    assert await tools(mcp) > 3
    assert await tools(source(identity, store)) > 3  # in another process
    asked = identity.form("/authorize")
    assert asked["resource"] == identity.form("/token")["resource"] == f"{identity.url}/mcp"
    assert asked["client_id"].startswith("registered-")
    assert asked["scope"] == "tools"
    assert len(await mcp.logout()) == 1
    with pytest.raises(CallError, match="HTTP 401"):
        await tools(source(identity, store))
    assert await source(identity, store).logout() == ()


async def test_scopes_that_a_server_demands_later_are_asked_for_by_the_next_login(
    identity: AuthorizationServer, store: TokenStore
) -> None:
    mcp = source(identity, store)
    await mcp.login(browse)
    identity.demanded_scope = "tools files:write"
    with pytest.raises(CallError, match="HTTP 403"):
        await tools(mcp)
    identity.demanded_scope = ""
    await source(identity, store).login(browse)  # in another process
    assert identity.form("/authorize")["scope"] == "tools files:write"
    await source(identity, store).login(browse)
    assert identity.form("/authorize")["scope"] == "tools"
    fixed = source(identity, store, OAuthClient(login=True, scopes=("mine",)))
    await fixed.login(browse)
    assert identity.form("/authorize")["scope"] == "mine"


async def test_a_token_that_the_server_rejects_is_refreshed(identity: AuthorizationServer, store: TokenStore) -> None:
    mcp = source(identity, store)
    await mcp.login(browse)
    identity.tokens.clear()
    assert await tools(mcp) > 3
    assert identity.count("/token") == 2
    assert identity.form("/token")["resource"] == f"{identity.url}/mcp"


async def test_a_robot_uses_its_own_credentials(identity: AuthorizationServer, store: TokenStore) -> None:
    mcp = source(identity, store, {"client_id": "robot", "client_secret": "s3cret"})
    assert await tools(mcp) > 3
    form = identity.form("/token")
    assert (form["grant_type"], form["resource"]) == ("client_credentials", f"{identity.url}/mcp")
    with pytest.raises(UsageError, match="`login`"):
        await mcp.login(browse)
    with pytest.raises(CallError, match="invalid_client"):
        await tools(source(identity, store, {"client_id": "robot", "client_secret": "wrong"}))


@pytest.mark.parametrize(
    ("metadata", "resource", "message"),
    [
        ({"issuer": "https://evil.example"}, {}, "another issuer"),
        ({"token_endpoint": "http://evil.example/token"}, {}, "not an https URL"),
        ({"code_challenge_methods_supported": None}, {}, "PKCE"),
        ({}, {"resource": "https://evil.example/mcp"}, "another resource"),
        ({}, {"authorization_servers": ["http://evil.example"]}, "not an https URL"),
    ],
)
async def test_metadata_that_would_lead_a_login_elsewhere_is_rejected(
    identity: AuthorizationServer,
    store: TokenStore,
    metadata: dict[str, Any],
    resource: dict[str, Any],
    message: str,
) -> None:
    identity.metadata_changes, identity.resource_changes = metadata, resource
    with pytest.raises(CallError, match=message):
        await source(identity, store).login(browse)
    assert not identity.count("/authorize")


@pytest.mark.parametrize("options", [{}, {"exchange": True}, {"login": True}])
@pytest.mark.parametrize("metadata", ["issuer", "token_endpoint"])
async def test_a_server_does_not_decide_where_a_secret_is_sent(
    identity: AuthorizationServer, store: TokenStore, options: dict[str, Any], metadata: str
) -> None:
    client = OAuthClient(client_id="robot", client_secret="s3cret", **options)
    async with AuthorizationServer() as thief:
        if metadata == "issuer":
            identity.resource_changes = {"authorization_servers": [thief.url]}
        else:
            identity.metadata_changes = {"token_endpoint": f"{thief.url}/token"}
        auth = MCPAuth(f"{identity.url}/mcp", client, store)
        with pytest.raises(CallError, match="set issuer of the OAuth client"):
            await authorize(auth, f"{identity.url}/mcp")
        await auth.close()
        assert not thief.count("/token")
        if metadata == "issuer" and not client.exchange:  # the one that it names, if that is wanted
            trusting = MCPAuth(f"{identity.url}/mcp", replace(client, issuer=thief.url), store)
            await authorize(trusting, f"{identity.url}/mcp")
            await trusting.close()
            assert thief.count("/token") == 1


async def test_a_token_goes_to_the_origin_of_its_server_alone(identity: AuthorizationServer, store: TokenStore) -> None:
    mcp = source(identity, store)
    await mcp.login(browse)
    auth = MCPAuth(f"{identity.url}/mcp", LOGIN, store)
    assert await auth.token(f"{identity.url}/mcp/messages")
    for url in ("https://evil.example/mcp", f"{identity.url.replace('127.0.0.1', 'localhost')}/mcp"):
        assert await auth.token(url) is None
    await auth.close()
    await mcp.close()


async def test_a_client_that_is_invalid_or_has_no_server_is_rejected(
    identity: AuthorizationServer, store: TokenStore
) -> None:
    with pytest.raises(UsageError, match="auth: expected"):
        source(identity, store, {"client_id": "robot"})
    with pytest.raises(UsageError, match="no server behind a URL"):
        await from_mcp(StdioServer("true"), auth=LOGIN, token_store=store).login(browse)
