"""Endpoints from metadata, and what is wrong with some."""

import asyncio
from typing import Any

import pytest

from opwire.auth.oauth.discovery import AuthorizationServer as Endpoints
from opwire.auth.oauth.discovery import discover, discover_openid, discover_resource, register
from opwire.auth.oauth.store import resource_of
from opwire.auth.oauth.tokens import FetchJSON, OAuthClient, is_secure, json_fetcher
from opwire.errors import CallError, ErrorCode
from opwire.http.client import ClientOptions, HTTPClient, HTTPRequest
from tests.auth.oauth.authorization_server import AuthorizationServer
from tests.openapi.client.echo import EchoServer, answer, json_answer, redirect, silence


class Published:
    """Documents by URL; everything else is 404."""

    def __init__(self, **documents: Any) -> None:
        self.documents: dict[str, Any] = documents
        self.asked: list[str] = []

    async def __call__(self, request: HTTPRequest) -> Any:
        self.asked.append(request.url)
        found = self.documents.get(request.url, 404)
        if isinstance(found, int):
            raise CallError(ErrorCode.EXECUTION_ERROR, f"HTTP {found}", {"status": found, "error": ""})
        return found


def metadata(issuer: str, **fields: Any) -> dict[str, Any]:
    return {"issuer": issuer, "token_endpoint": "https://login.example/token", **fields}


async def test_the_endpoints_of_an_issuer_come_from_its_metadata(server: AuthorizationServer, fetch: FetchJSON) -> None:
    found = await discover(fetch, server.url)
    assert (found.issuer, found.token_url) == (server.url, f"{server.url}/token")
    assert (found.sends_issuer, found.challenge_methods) == (True, ("S256",))
    assert await discover_openid(fetch, f"{server.url}/.well-known/openid-configuration") == found


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example/.well-known/oauth-authorization-server/tenant",
        "https://login.example/.well-known/openid-configuration/tenant",
        "https://login.example/tenant/.well-known/openid-configuration",
    ],
)
async def test_an_issuer_with_a_path_is_found_at_each_well_known_place(url: str) -> None:
    published = Published(**{url: metadata("https://login.example/tenant")})
    assert (await discover(published, "https://login.example/tenant")).token_url == "https://login.example/token"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (metadata("https://evil.example"), "another issuer, evil.example"),
        (metadata("https://login.example/tenant"), "another issuer"),
        (metadata("http://login.example"), "another issuer"),
        (
            metadata("https://login.example", token_endpoint="http://login.example/token"),
            "token endpoint .* not an https",
        ),
        (metadata("https://login.example", authorization_endpoint="http://x.example/"), "authorization endpoint"),
        (metadata("https://login.example", registration_endpoint="http://127.0.0.1:9200/"), "registration endpoint"),
        (metadata("https://login.example", authorization_endpoint="javascript:alert(1)"), "authorization endpoint"),
        (metadata("https://login.example", registration_endpoint="file:///etc/passwd"), "registration endpoint"),
        ([], "another issuer"),
        (503, "HTTP 503"),
        (404, "publishes no metadata"),
    ],
)
async def test_metadata_of_another_issuer_or_without_https_is_rejected(document: Any, message: str) -> None:
    published = Published(**{"https://login.example/.well-known/oauth-authorization-server": document})
    with pytest.raises(CallError, match=message):
        await discover(published, "https://login.example")


@pytest.mark.parametrize("url", ["http://login.example/x", "http://127.0.0.1:9200/x", "file:///x", "https://", "x"])
async def test_optional_endpoints_are_missing_if_they_are_not_https_or_of_this_machine(url: str) -> None:
    names = ("revocation_endpoint", "jwks_uri", "introspection_endpoint")
    document = metadata("https://login.example", **dict.fromkeys(names, url))
    published = Published(**{"https://login.example/.well-known/oauth-authorization-server": document})
    found = await discover(published, "https://login.example")
    assert (found.revocation_url, found.jwks_url, found.introspection_url) == ("", "", "")
    document |= dict.fromkeys(names, "https://login.example/x")
    found = await discover(published, "https://login.example")
    assert {found.revocation_url, found.jwks_url, found.introspection_url} == {"https://login.example/x"}


@pytest.mark.parametrize("issuer", ["http://login.example", "login.example", "file:///x", "https://", "https://[x"])
async def test_an_issuer_is_https(issuer: str) -> None:
    published = Published()
    with pytest.raises(CallError, match="not an https URL"):
        await discover(published, issuer)
    assert not published.asked


async def test_openid_metadata_is_that_of_its_address() -> None:
    address = "https://login.example/tenant/.well-known/openid-configuration"
    other = "https://login.example/odd"
    published = Published(
        **{address: metadata("https://login.example/tenant"), other: metadata("https://login.example/any")}
    )
    assert (await discover_openid(published, address)).issuer == "https://login.example/tenant"
    assert (await discover_openid(published, other)).issuer == "https://login.example/any"
    published.documents[address] = published.documents[other] = metadata("https://evil.example")
    for url in (address, other):
        with pytest.raises(CallError, match="another issuer"):
            await discover_openid(published, url)
    with pytest.raises(CallError, match="not https"):
        await discover_openid(published, "http://login.example/.well-known/openid-configuration")


@pytest.mark.parametrize(
    ("url", "secure"),
    [
        ("https://x.example/a", True),
        ("http://127.0.0.1:8080/a", True),
        ("http://localhost/a", True),
        ("http://[::1]:80/a", True),
        ("http://127.0.0.1.evil.example/a", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1@evil.example/", False),
        ("HTTPS://X.example", True),
        ("ftp://localhost", False),
        ("", False),
    ],
)
def test_http_is_secure_on_this_machine_alone(url: str, secure: bool) -> None:
    assert is_secure(url) is secure


# --- protected resources ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names_metadata", [True, False])
async def test_a_server_says_how_it_is_protected(names_metadata: bool) -> None:
    client = HTTPClient()
    async with EchoServer() as server:
        place = "/meta" if names_metadata else "/.well-known/oauth-protected-resource/mcp"
        challenge = (
            f'Bearer error="x", resource_metadata="{server.url}/meta", scope="a b"' if names_metadata else "Bearer"
        )
        server.on("/mcp", answer(401, headers={"WWW-Authenticate": challenge}))
        document = {"resource": f"{server.url}/mcp", "authorization_servers": ["https://login.example"]}
        server.on(place, json_answer({**document, "scopes_supported": ["c"]}))
        found = await discover_resource(client, json_fetcher(client), f"{server.url}/mcp?secret=1")
        assert (found.resource, found.issuer) == (f"{server.url}/mcp", "https://login.example")
        assert found.scopes == (("a", "b") if names_metadata else ("c",))
        await client.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource": "https://evil.example/mcp"}, "describes another resource, at evil.example"),
        ({"resource": "{url}/mcp/other"}, "describes another resource"),
        ({"resource": "{url}/mc"}, "describes another resource"),
        ({"resource": 7}, "describes another resource"),
        ({"authorization_servers": []}, "names no authorization server"),
        ({"authorization_servers": [7]}, "names no authorization server"),
    ],
)
async def test_metadata_of_another_resource_is_rejected(changes: dict[str, Any], message: str) -> None:
    client = HTTPClient()
    async with EchoServer() as server:
        server.on("/mcp", answer(401))
        document = {"resource": f"{server.url}/mcp", "authorization_servers": ["https://login.example"]}
        changed = {
            name: value.format(url=server.url) if isinstance(value, str) else value for name, value in changes.items()
        }
        server.on("/.well-known/oauth-protected-resource/mcp", json_answer({**document, **changed}))
        with pytest.raises(CallError, match=message):
            await discover_resource(client, json_fetcher(client), f"{server.url}/mcp")
        await client.close()


async def test_metadata_at_another_origin_is_not_fetched_and_redirects_are_not_followed() -> None:
    client = HTTPClient()
    async with EchoServer() as other, EchoServer() as server:
        challenge = f'Bearer resource_metadata="{other.url}/meta"'
        server.on("/mcp", answer(401, headers={"WWW-Authenticate": challenge}))
        for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
            server.on(path, redirect(302, f"{other.url}/meta"))
        found = await discover_resource(client, json_fetcher(client), f"{server.url}/mcp")
        assert (found.resource, found.issuer) == (f"{server.url}/mcp", server.url)
        assert not other.arrived
        await client.close()


async def test_a_server_that_does_not_respond_is_given_up() -> None:
    client = HTTPClient(ClientOptions(timeout=0.1))
    async with EchoServer() as server, asyncio.timeout(5):
        server.on("/mcp", silence)
        with pytest.raises(CallError, match=r"did not respond within 0\.1 s") as caught:
            await discover_resource(client, json_fetcher(client), f"{server.url}/mcp")
        assert caught.value.code is ErrorCode.TIMEOUT
        await client.close()


async def test_a_server_without_https_gets_no_login(fetch: FetchJSON) -> None:
    client = HTTPClient()
    with pytest.raises(CallError, match="not https"):
        await discover_resource(client, fetch, "http://mcp.example/mcp")
    await client.close()


def test_a_resource_is_the_address_without_secrets() -> None:
    assert resource_of("HTTPS://user:pass@MCP.example:8443/Mcp/?key=1#x") == "https://mcp.example:8443/Mcp"


# --- registration -----------------------------------------------------------------------------------------------------


async def test_a_registered_client_may_get_a_secret_and_a_way_to_send_it() -> None:
    """A client without an id is registered where the server allows it."""
    url = "https://login.example/register"
    endpoints = Endpoints(registration_url=url, token_auth_methods=("client_secret_post",))
    given = {"client_id": "x", "client_secret": "y", "token_endpoint_auth_method": "client_secret_post"}
    client = await register(Published(**{url: given}), endpoints, OAuthClient(login=True), "http://127.0.0.1:1/c", ())
    assert (client.client_id, client.client_secret, client.auth) == ("x", "y", "body")


@pytest.mark.parametrize(
    ("said", "message"), [({}, "no client_id"), ({"client_id": 7}, "no client_id"), (403, "failed")]
)
async def test_a_registration_that_gives_no_client_is_an_error(said: Any, message: str) -> None:
    url = "https://login.example/register"
    with pytest.raises(CallError, match=message):
        await register(
            Published(**{url: said}),
            Endpoints(registration_url=url),
            OAuthClient(login=True),
            "http://127.0.0.1:1/c",
            (),
        )
