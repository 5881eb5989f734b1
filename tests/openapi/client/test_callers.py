"""HTTP APIs that are called with the credentials of each caller: served, concurrently, with a cache in between."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from opwire import OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth import callback
from opwire.auth.oauth import OAuthClient
from opwire.auth.oauth.tokens import TokenCache, subject_of
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.caller import caller_token, with_caller_token
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.openapi.client import from_openapi
from opwire.openapi.server import serve_http
from tests.auth.oauth.authorization_server import AuthorizationServer
from tests.openapi.client.documents import document

CALLERS = {f"t-{n}": Identity(id=f"caller-{n}") for n in range(12)}
EXCHANGE = OAuthClient(client_id="robot", client_secret="s3cret", exchange=True)


class WhoAmI:
    """An API that returns the token of each request, as something that may be cached."""

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()

    async def respond(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "")
        self.tokens[token] += 1
        await asyncio.sleep(0)
        response = web.json_response({"token": token}, headers={"Cache-Control": "max-age=1000"})
        response.set_cookie("session", token.removeprefix("Bearer "))
        assert "Cookie" not in request.headers
        return response


@pytest.fixture
async def api() -> AsyncIterator[tuple[WhoAmI, str]]:
    app, who = web.Application(), WhoAmI()
    app.router.add_get("/me", who.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield who, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def issuer() -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer() as server:
        server.subjects = {token: identity.id for token, identity in CALLERS.items()}
        yield server


def source(api: str, credential: Any, scheme: dict[str, Any] | None = None) -> Any:
    get = {"operationId": "me", "security": [{"caller": []}], "responses": {"200": {"description": ""}}}
    schemes = {"caller": scheme or {"type": "http", "scheme": "bearer"}}
    root = document({"/me": {"get": get}}, servers=[{"url": api}], components={"securitySchemes": schemes})
    return from_openapi(root, namespace="api", credentials={"caller": credential})


def as_caller(token: str, identity: Identity | None = None) -> Context:
    return with_caller_token(Context(identity=identity or CALLERS[token]), token)


async def test_callers_of_a_server_reach_an_api_each_with_its_own_token_and_its_own_cache(
    api: tuple[WhoAmI, str],
) -> None:
    who, url = api
    from opwire.policies.cache import ResponseCache  # a part that may be removed

    registry = OperationRegistry()
    registry.use(ResponseCache(ttl=1_000))
    # Two tokens of one identity are two callers for the API.
    tokens = CALLERS | {"t-again": CALLERS["t-1"]}
    async with source(url, caller_token) as operations:
        registry.follow(operations)
        app = serve_http(registry, authenticate=callback(tokens.get))
        async with listening(app) as address, aiohttp.ClientSession() as session:

            async def ask(token: str) -> None:
                headers = {"Authorization": f"Bearer {token}"}
                async with session.post(f"{address}/api/me", json={}, headers=headers) as response:
                    assert await response.json() == {"token": f"Bearer {token}"}

            for _ in range(3):
                await asyncio.gather(*(ask(token) for token in tokens))
            assert who.tokens == Counter(f"Bearer {token}" for token in tokens)  # the rest came from the cache
            async with session.post(f"{address}/api/me", json={}) as response:
                assert response.status == 401


async def test_a_caller_without_a_token_does_not_reach_the_api(api: tuple[WhoAmI, str]) -> None:
    who, url = api
    registry = OperationRegistry()
    async with source(url, caller_token) as operations:
        registry.follow(operations)
        for context in (None, Context(identity=CALLERS["t-1"]), as_caller("t-1").detached()):
            with pytest.raises(CallError) as failure:
                await registry.execute("api.me", {}, context)
            assert failure.value.code is ErrorCode.UNAUTHENTICATED
        shown = await registry.preview("api.me", {}, as_caller("t-1"))
        assert "t-1" not in str(shown.headers)
    assert not who.tokens


async def test_the_token_of_each_caller_is_exchanged_once_for_a_token_of_the_api(issuer: AuthorizationServer) -> None:
    """The token of a caller is exchanged for one of the source (RFC 8693), once until it expires."""
    flow = {"clientCredentials": {"tokenUrl": f"{issuer.url}/token", "scopes": {}}}
    registry = OperationRegistry()
    async with source(issuer.url, EXCHANGE, {"type": "oauth2", "flows": flow}) as operations:
        registry.follow(operations)

        async def ask(token: str) -> None:
            assert (await registry.execute("api.me", {}, as_caller(token))).data["name"] == CALLERS[token].id

        await asyncio.gather(*(ask(token) for _ in range(4) for token in CALLERS))
        assert issuer.count("/token") == len(CALLERS)
        sent = {headers.get("Authorization") for headers in issuer.api_headers}
        assert sent.isdisjoint(f"Bearer {token}" for token in CALLERS)
        issuer.tokens.clear()  # all of them are revoked, and exchanged again
        await asyncio.gather(*map(ask, CALLERS))
        assert issuer.count("/token") == 2 * len(CALLERS)
        with pytest.raises(CallError, match="invalid_request") as failure:
            await registry.execute("api.me", {}, as_caller("t-unknown", Identity(id="eve")))
        assert "t-unknown" not in str(failure.value)
        with pytest.raises(CallError) as failure:
            await registry.execute("api.me")
        assert failure.value.code is ErrorCode.UNAUTHENTICATED


async def test_an_exchanged_token_without_a_lifetime_is_kept_for_a_minute_only() -> None:
    now, requests = 1_000.0, 0

    async def fetch(_: Any) -> Any:
        nonlocal requests
        requests += 1
        return {"access_token": f"exchanged-{requests}", "token_type": "Bearer"}

    cache, subject = TokenCache(fetch, clock=lambda: now), subject_of(EXCHANGE, as_caller("t-1"))
    for _ in range(2):
        assert await cache.get(EXCHANGE, "https://x.example/token", (), subject=subject) == "exchanged-1"
    now += 61
    assert await cache.get(EXCHANGE, "https://x.example/token", (), subject=subject) == "exchanged-2"


@pytest.mark.parametrize("proof", [None, 1, ValueError("t-secret"), CallError(ErrorCode.ACCESS_DENIED, "not you")])
async def test_a_caller_that_cannot_be_proven_does_not_reach_the_api(issuer: AuthorizationServer, proof: Any) -> None:
    def prove(_: Identity) -> Any:
        if isinstance(proof, Exception):
            raise proof
        return proof

    client = OAuthClient(client_id="robot", client_secret="s3cret", exchange=True, subject=prove)
    flow = {"clientCredentials": {"tokenUrl": f"{issuer.url}/token", "scopes": {}}}
    registry = OperationRegistry()
    async with source(issuer.url, client, {"type": "oauth2", "flows": flow}) as operations:
        registry.follow(operations)
        with pytest.raises(CallError, match="not you" if isinstance(proof, CallError) else "`subject`") as failure:
            await registry.execute("api.me", {}, as_caller("t-1"))
        assert "t-secret" not in str(failure.value)
        with pytest.raises(CallError, match="anonymous") as failure:
            await registry.execute("api.me")
        assert failure.value.code is ErrorCode.UNAUTHENTICATED
    assert not issuer.requests
    assert not issuer.api_headers


def test_a_function_that_proves_callers_needs_an_exchange() -> None:
    for exchange, subject in ((False, str), (True, "keys.py:assertion_of")):
        with pytest.raises(UsageError, match="subject is a function"):
            OAuthClient(client_id="robot", client_secret="s3cret", exchange=exchange, subject=subject)


async def test_a_function_looks_the_credential_of_each_caller_up(api: tuple[WhoAmI, str]) -> None:
    async def lookup(context: Context) -> str | None:
        await asyncio.sleep(0)
        return None if context.identity is None else f"key-of-{context.identity.id}"

    from opwire.policies.cache import ResponseCache  # a part that may be removed

    registry = OperationRegistry()
    registry.use(ResponseCache())
    async with source(api[1], lookup) as operations:
        registry.follow(operations)

        async def ask(identity: Identity) -> None:
            found = await registry.execute("api.me", {}, Context(identity=identity))
            assert found.data == {"token": f"Bearer key-of-{identity.id}"}

        await asyncio.gather(*(ask(each) for _ in range(3) for each in CALLERS.values()))
