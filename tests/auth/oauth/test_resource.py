"""Surfaces as OAuth resource servers: real tokens of a real authorization server, and forged ones."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp.shared.exceptions import MCPError
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.routing import Mount

from opwire import AccessControl, CallError, Context, ErrorCode, OperationRegistry
from opwire.auth import jwt as jwt_module
from opwire.auth.oauth import OAuthClient, OAuthTokens, TokenStore, resource
from opwire.errors import UsageError
from opwire.mcp.client import from_mcp
from opwire.mcp.server import serve_mcp
from opwire.openapi.server import serve_http
from tests.auth import issuers
from tests.auth.oauth.authorization_server import AuthorizationServer, browse, redirect_of

API = "https://tools.example/mcp"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
ROBOT = OAuthClient(client_id="robot", client_secret="s3cret")


@pytest.fixture
async def server() -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer() as server:
        server.keys = [issuers.published("ES256", "one")]
        yield server


def signed(server: AuthorizationServer, key: str = "one", algorithm: str = "ES256", **changes: Any) -> str:
    claims = {"iss": server.url, "aud": API, "scope": "tools", **changes}
    return issuers.token(algorithm, key, {"kid": key}, **claims)


def tokens(server: AuthorizationServer, at: str = API, **options: Any) -> OAuthTokens:
    return OAuthTokens(at, issuer=server.url, **options)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def registry() -> OperationRegistry:
    made = OperationRegistry()

    @made.query("who.am_i")
    async def am_i(context: Context) -> str:
        return context.identity.id if context.identity else ""

    @made.query("who.secret", access=AccessControl(required_scopes=("admin",)))
    async def secret() -> str:
        return "secret"

    made.resource("who://secret", id="who.file", access=AccessControl(required_scopes=("admin",)))(secret)
    made.prompt("who.ask", access=AccessControl(required_scopes=("admin",)))(secret)

    return made


@asynccontextmanager
async def serving(server: AuthorizationServer, **options: Any) -> AsyncIterator[str]:
    """The URL of an MCP server that tokens can be got for."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    surface = serve_mcp(registry())
    async with surface.asgi(authenticate=tokens(server, url, **options)).listening(port=port):
        server.sign = lambda claims: signed(server, **claims)
        yield url


@asynccontextmanager
async def serving_http(accept: OAuthTokens, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the HTTP surface."""
    app = serve_http(registry(), authenticate=accept, **options)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_for_this_server_is_accepted_with_the_keys_that_the_issuer_publishes(
    server: AuthorizationServer,
) -> None:
    """A surface accepts tokens that an authorization server issued for it, and no others."""
    grant = await tokens(server).authenticate(signed(server, scope="tools files:read"))
    assert (grant.identity.id, grant.identity.scopes) == ("ann", ("tools", "files:read"))
    assert grant.expires is not None
    assert await tokens(server).authenticate(signed(server, aud=["other", f"{API}/"])) is not None


def _unsigned(server: AuthorizationServer) -> str:
    return issuers.forged({"alg": "none", "kid": "one"}, issuers.claims(iss=server.url, aud=API))


def _confused(server: AuthorizationServer) -> str:
    """Signed with the public key as a shared secret."""
    pem = issuers.verification_key("ES256", "one").encode()
    return issuers.forged({"alg": "HS256", "kid": "one"}, issuers.claims(iss=server.url, aud=API), pem)


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda server: signed(server, aud="https://other.example/mcp"), id="another audience"),
        pytest.param(lambda server: signed(server, aud="https://tools.example"), id="audience above the resource"),
        pytest.param(lambda server: signed(server, aud=None), id="without an audience"),
        pytest.param(lambda server: signed(server, iss="https://evil.example"), id="another issuer"),
        pytest.param(lambda server: signed(server, iss=None), id="without an issuer"),
        pytest.param(lambda server: signed(server, exp=int(time.time()) - 60), id="expired"),
        pytest.param(lambda server: signed(server, exp=None), id="without an end"),
        pytest.param(lambda server: signed(server, nbf=int(time.time()) + 60), id="not valid yet"),
        pytest.param(lambda server: signed(server, "two"), id="unknown key"),
        pytest.param(
            lambda server: issuers.token("ES256", "two", {"kid": "one"}, iss=server.url, aud=API), id="key of another"
        ),
        pytest.param(lambda server: signed(server, cnf={"jkt": "x"}), id="bound to a key"),
        pytest.param(_unsigned, id="alg none"),
        pytest.param(_confused, id="key confusion"),
        pytest.param(lambda _: "opaque", id="opaque"),
        pytest.param(lambda _: "a.b.c", id="not a JWT"),
        pytest.param(lambda _: "x" * 20_000, id="too long"),
    ],
)
async def test_any_other_token_is_rejected_without_a_reason(
    server: AuthorizationServer, forge: Callable[[AuthorizationServer], str]
) -> None:
    with pytest.raises(CallError, match=r"^UNAUTHENTICATED: the token (is not valid|has expired)$"):
        await tokens(server).authenticate(forge(server))


async def test_a_header_cannot_say_where_its_key_is(server: AuthorizationServer) -> None:
    header = {"kid": "evil", "jku": f"{server.url}/evil", "jwk": issuers.published("ES256", "evil")}
    token = issuers.token("ES256", "evil", header, iss=server.url, aud=API)
    with pytest.raises(CallError, match="not valid"):
        await tokens(server).authenticate(token)
    assert server.count("/evil") == 0


async def test_keys_are_fetched_once_however_many_unknown_ones_are_named(server: AuthorizationServer) -> None:
    accept = tokens(server)
    for n in range(50):
        with pytest.raises(CallError, match="not valid"):
            await accept.authenticate(signed(server, f"unknown-{n % 3}"))
    await accept.authenticate(signed(server))
    assert server.count("/jwks") == 1


async def test_a_new_key_of_the_issuer_is_found(server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt_module, "MIN_INTERVAL", 0.0)
    accept = tokens(server)
    await accept.authenticate(signed(server))
    server.keys = [issuers.published("ES256", "two")]
    await accept.authenticate(signed(server, "two"))
    with pytest.raises(CallError, match="not valid"):
        await accept.authenticate(signed(server))


@pytest.mark.parametrize(
    "changes",
    [{"issuer": "https://evil.example"}, {"jwks_uri": None}, {"jwks_uri": "http://keys.example/"}, {"jwks_uri": "///"}],
)
async def test_untrusted_metadata_is_not_a_source_of_keys(
    server: AuthorizationServer, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    server.metadata_changes = changes
    with pytest.raises(CallError) as failed:
        await tokens(server).authenticate(signed(server))
    assert failed.value.code is ErrorCode.UNAVAILABLE
    assert f"the issuer {server.url}: " in caplog.text


async def test_of_a_huge_key_set_only_the_first_keys_are_parsed(
    server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_module, "MAX_KEYS", 3)
    server.keys = [{"kty": "EC"}, {"kty": "EC"}, *server.keys, issuers.published("ES256", "two")]
    accept = tokens(server)
    await accept.authenticate(signed(server))
    with pytest.raises(CallError, match="not valid"):
        await accept.authenticate(signed(server, "two"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"resource": "http://tools.example/mcp"}, "resource is an https URL"),
        ({"resource": "https://tools.example/#a"}, "resource is an https URL"),
        ({"issuer": "id.example"}, "issuer is an https URL"),
        ({"scopes": "tools"}, "scopes is a list of scopes"),
        ({"algorithms": ["HS256"]}, "published keys are not secret"),
    ],
)
def test_invalid_options_are_rejected(given: dict[str, Any], problem: str) -> None:
    options: dict[str, Any] = {"resource": API, "issuer": "https://id.example", **given}
    with pytest.raises(UsageError, match=problem):
        OAuthTokens(options.pop("resource"), **options)


# --- opaque tokens ----------------------------------------------------------------------------------------------------


async def test_an_opaque_token_is_introspected_and_the_result_is_cached(server: AuthorizationServer) -> None:
    accept = tokens(server, client=ROBOT)
    server.introspections["opaque"] = {"active": True, "sub": "ann", "aud": [API], "scope": "tools"}
    for _ in range(3):
        assert (await accept.authenticate("opaque")).identity.scopes == ("tools",)
    assert server.count("/introspect") == 1
    assert (await accept.authenticate(signed(server))).identity.id == "ann"
    assert server.count("/introspect") == 1


async def test_a_revoked_token_is_valid_no_longer_than_the_cache(
    server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "INTROSPECTED_AGE", 0.0)
    accept = tokens(server, client=ROBOT)
    server.introspections["opaque"] = {"active": True, "sub": "ann", "aud": API}
    await accept.authenticate("opaque")
    del server.introspections["opaque"]
    for _ in range(2):
        with pytest.raises(CallError, match="not valid"):
            await accept.authenticate("opaque")


async def test_a_token_is_not_cached_beyond_its_expiry(
    server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(resource, "time", SimpleNamespace(time=lambda: now, monotonic=lambda: now))
    accept = tokens(server, client=ROBOT, leeway=2)
    server.introspections["opaque"] = {"active": True, "sub": "ann", "aud": API, "exp": now + 10}
    assert (await accept.authenticate("opaque")).expires == now + 12
    now += 11
    await accept.authenticate("opaque")
    assert server.count("/introspect") == 1
    now += 1
    with pytest.raises(CallError, match="not valid"):
        await accept.authenticate("opaque")


async def test_many_requests_with_one_token_introspect_it_once_when_the_cache_is_old(
    server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = tokens(server, client=ROBOT)
    server.introspections["opaque"] = {"active": True, "sub": "ann", "aud": API}
    monkeypatch.setattr(resource, "INTROSPECTED_AGE", 0.0)
    await accept.authenticate("opaque")
    monkeypatch.undo()
    await asyncio.gather(*(accept.authenticate("opaque") for _ in range(50)))
    assert server.count("/introspect") == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"active": False},
        {"active": "true"},
        {"aud": "https://other.example/mcp"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"exp": "tomorrow"},
        {"sub": None},
        {"cnf": {}},
    ],
)
async def test_an_introspection_that_does_not_grant_access_here_is_a_rejection(
    server: AuthorizationServer, changes: dict[str, Any]
) -> None:
    server.introspections["opaque"] = {"active": True, "sub": "ann", "aud": API, **changes}
    with pytest.raises(CallError, match="UNAUTHENTICATED: the token is not valid"):
        await tokens(server, client=ROBOT).authenticate("opaque")


async def test_an_issuer_that_rejects_this_server_is_not_the_fault_of_the_token(
    server: AuthorizationServer, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = OAuthClient(client_id="robot", client_secret="wrong")
    with pytest.raises(CallError, match=r"^UNAVAILABLE: the token cannot be checked at the moment$"):
        await tokens(server, client=wrong).authenticate("opaque")
    assert "invalid_client" in caplog.text
    assert "wrong" not in caplog.text


# --- surfaces ---------------------------------------------------------------------------------------------------------


async def test_a_request_without_a_token_learns_where_the_metadata_is(server: AuthorizationServer) -> None:
    """A surface publishes where clients get tokens, also if mounted, and a 401 says so."""
    async with serving(server, required_scopes=["tools"], scopes=["files"]) as url, httpx2.AsyncClient() as client:
        refused = await client.post(url, json={})
        metadata_url = f"{url.removesuffix('/mcp')}{WELL_KNOWN}/mcp"
        assert refused.status_code == 401
        challenge = f'Bearer resource_metadata="{metadata_url}", scope="tools"'
        assert refused.headers["www-authenticate"] == challenge
        invalid = await client.post(url, json={}, headers=bearer("a.b.c"))
        assert invalid.headers["www-authenticate"] == f'{challenge}, error="invalid_token"'
        found = await client.get(metadata_url, headers={"Origin": "https://inspector.example"})
        assert found.headers["access-control-allow-origin"] == "*"
        assert found.json() == {
            "resource": url,
            "authorization_servers": [server.url],
            "scopes_supported": ["tools", "files"],
            "bearer_methods_supported": ["header"],
        }
        assert (await client.get(metadata_url.removesuffix("/mcp"))).json() == found.json()
        assert (await client.head(metadata_url)).headers["content-length"] == str(len(found.content))
        assert (await client.options(metadata_url)).status_code == 204
        assert (await client.post(metadata_url)).status_code == 405
        assert (await client.get(f"{metadata_url}/other")).status_code == 404


async def test_an_app_that_is_mounted_publishes_the_metadata_below_its_path(server: AuthorizationServer) -> None:
    accept = tokens(server, "http://127.0.0.1/tools/mcp")
    app = serve_mcp(registry()).asgi(authenticate=accept)
    whole = Starlette(routes=[Mount("/tools", app), Mount(WELL_KNOWN, app)])
    transport = httpx2.ASGITransport(whole)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        refused = await client.post("/tools/mcp", json={})
        named = f"http://127.0.0.1/tools{WELL_KNOWN}"
        assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{named}"'
        for path in (named, f"{WELL_KNOWN}/tools/mcp"):
            assert (await client.get(path)).json()["resource"] == "http://127.0.0.1/tools/mcp"


async def test_a_path_cannot_inject_into_the_challenge(server: AuthorizationServer) -> None:
    app = serve_mcp(registry()).asgi(authenticate=tokens(server))
    transport = httpx2.ASGITransport(Starlette(routes=[Mount("/{tenant}", app)]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        refused = await client.post("/a%22,x=%22%0d%0ab/mcp", json={}, headers=bearer("a.b.c"))
        assert refused.headers["www-authenticate"].count('"') == 4  # of the URL and of the error
        assert "\n" not in refused.headers["www-authenticate"]


async def test_a_token_in_the_query_is_not_read(server: AuthorizationServer) -> None:
    async with serving_http(tokens(server)) as client:
        refused = await client.get(f"/who/am_i?access_token={signed(server)}")
        assert refused.status_code == 401
        assert "resource_metadata=" in refused.headers["www-authenticate"]


async def test_missing_scopes_are_named_in_a_403(server: AuthorizationServer) -> None:
    place = f'Bearer resource_metadata="https://tools.example{WELL_KNOWN}/mcp"'
    async with serving_http(tokens(server, required_scopes=["tools"])) as client:
        assert (await client.get("/who/am_i", headers=bearer(signed(server)))).json() == "ann"
        poor = await client.get("/who/am_i", headers=bearer(signed(server, scope="other")))
        assert poor.status_code == 403
        assert poor.headers["www-authenticate"] == f'{place}, error="insufficient_scope", scope="tools"'
        denied = await client.get("/who/secret", headers=bearer(signed(server)))
        assert denied.status_code == 403
        assert denied.headers["www-authenticate"] == f'{place}, error="insufficient_scope", scope="admin"'
        assert denied.json()["details"] == {"requiredScopes": ["admin"]}


@pytest.mark.parametrize(
    "call", [("call_tool", "who_secret"), ("read_resource", "who://secret"), ("get_prompt", "who_ask")]
)
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_call_that_needs_more_scopes_is_a_403_so_that_the_client_can_get_them(
    server: AuthorizationServer, era: str, call: tuple[str, str]
) -> None:
    statuses: list[tuple[int, str]] = []

    async def note(response: httpx2.Response) -> None:
        statuses.append((response.status_code, response.headers.get("www-authenticate", "")))

    async with serving(server) as url:
        hooks: Any = {"response": [note]}
        async with httpx2.AsyncClient(headers=bearer(signed(server, aud=url)), event_hooks=hooks) as http:
            with suppress(MCPError, ExceptionGroup):
                async with Client(streamable_http_client(url, http_client=http), mode=era) as client:
                    await getattr(client, call[0])(call[1])
        challenges = [challenge for status, challenge in statuses if status == 403]
        assert len(challenges) == 1
        assert challenges[0].endswith('error="insufficient_scope", scope="admin"')


# --- clients ----------------------------------------------------------------------------------------------------------


class MemoryStorage:
    """Where the SDK's client keeps its tokens."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def sdk_auth(url: str) -> OAuthClientProvider:
    answers: list[AuthorizationCodeResult] = []

    async def redirect(to: str) -> None:
        query = parse_qs(urlsplit(await redirect_of(to)).query)
        answers.append(AuthorizationCodeResult(code=query["code"][0], state=query["state"][0], iss=query["iss"][0]))

    async def answer() -> AuthorizationCodeResult:
        return answers.pop()

    metadata = OAuthClientMetadata.model_validate(
        {"redirect_uris": ["http://127.0.0.1:1/callback"], "client_name": "t", "token_endpoint_auth_method": "none"}
    )
    return OAuthClientProvider(url, metadata, MemoryStorage(), redirect, answer)


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_the_client_of_the_sdk_signs_in_and_calls(server: AuthorizationServer, era: str) -> None:
    async with serving(server, required_scopes=["tools"]) as url:
        async with (
            create_mcp_http_client(auth=sdk_auth(url)) as http,
            Client(streamable_http_client(url, http_client=http), mode=era) as client,
        ):
            result = await client.call_tool("who_am_i")
        assert [block.text for block in result.content if block.type == "text"] == ["ada"]
        asked = server.form("/authorize")
        assert (asked["resource"], asked["scope"]) == (url, "tools")


async def test_the_client_of_the_sdk_gets_the_scope_of_a_tool_that_denies_it(server: AuthorizationServer) -> None:
    async with serving(server, required_scopes=["tools"]) as url:
        async with (
            create_mcp_http_client(auth=sdk_auth(url)) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy") as client,
        ):
            result = await client.call_tool("who_secret")
        assert [block.text for block in result.content if block.type == "text"] == ["secret"]
        assert set(server.form("/authorize")["scope"].split()) >= {"admin"}


async def test_from_mcp_signs_in_and_calls(server: AuthorizationServer, store: TokenStore) -> None:
    async with serving(server, required_scopes=["tools"]) as url:
        source = from_mcp(url, namespace="tools", auth=OAuthClient(login=True), token_store=store)
        await source.login(browse)
        client = OperationRegistry()
        async with source:
            client.follow(source)
            assert (await client.execute("tools.who_am_i")).data == "ada"
        asked = server.form("/authorize")
        assert (asked["resource"], asked["scope"]) == (url, "tools")
        robot = from_mcp(url, namespace="tools", auth=replace(ROBOT, issuer=server.url))
        async with robot:
            client = OperationRegistry()
            client.follow(robot)
            assert (await client.execute("tools.who_am_i")).data == "ada"
