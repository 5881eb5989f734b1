"""APIs that are called on behalf of callers with calls that arrive over a hub, over a broker, or from a journal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex

import pytest

from opwire.auth import Authority, Grant, SignedRequests, Signer, SigningKey, StaticTokens, Verifier
from opwire.auth.oauth import OAuthClient
from opwire.durable import DurableCalls, DurableWorker, MemoryJournal
from opwire.errors import CallError, ErrorCode
from opwire.hub import Spoke
from opwire.model.caller import caller_token
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.openapi.client import from_openapi
from opwire.registry import OperationRegistry
from tests.auth.oauth.authorization_server import AuthorizationServer
from tests.hub.meeting import Meeting
from tests.openapi.client.documents import document

CALLERS = [Identity(id=f"caller-{n}") for n in range(5)]
TOKENS = {f"token-of-{each.id}": each for each in CALLERS}


async def _prove(identity: Identity) -> str:
    await asyncio.sleep(0)
    return f"assertion-{identity.id}"


def _look_up(context: Context) -> str:
    assert context.identity is not None
    return f"key-{context.identity.id}"


@asynccontextmanager
async def api() -> AsyncIterator[tuple[AuthorizationServer, OperationRegistry]]:
    """An API, and operations that call it with a token for the caller's identity, a key, or the caller's token."""
    registry = OperationRegistry()
    get = {"operationId": "me", "security": [{"caller": []}], "responses": {"200": {"description": ""}}}
    exchange = OAuthClient(client_id="robot", client_secret="s3cret", exchange=True, subject=_prove)
    async with AuthorizationServer() as issuer, AsyncExitStack() as stack:
        issuer.subjects = {f"assertion-{each.id}": each.id for each in CALLERS}
        issuer.tokens = {f"key-{each.id}": 0 for each in CALLERS}
        issuer.names = {f"key-{each.id}": each.id for each in CALLERS}
        flows = {"clientCredentials": {"tokenUrl": f"{issuer.url}/token", "scopes": {}}}
        schemes = {"caller": {"type": "oauth2", "flows": flows}}
        root = document({"/me": {"get": get}}, servers=[{"url": issuer.url}], components={"securitySchemes": schemes})
        for name, credential in {"exchanged": exchange, "keys": _look_up, "passed": caller_token}.items():
            source = from_openapi(root, namespace=name, credentials={"caller": credential})
            registry.follow(await stack.enter_async_context(source))
        yield issuer, registry


async def check(issuer: AuthorizationServer, spokes: dict[str, Spoke]) -> None:
    """Call as all callers at once, several times."""

    async def ask(id: str, spoke: Spoke) -> None:
        for operation in ("exchanged.me", "keys.me"):
            assert (await spoke.call(operation))["name"] == id
        with pytest.raises(CallError, match="do not carry tokens") as failure:
            await spoke.call("passed.me")
        assert failure.value.code is ErrorCode.UNAUTHENTICATED

    await asyncio.gather(*(ask(id, spoke) for _ in range(3) for id, spoke in spokes.items()))
    assert issuer.count("/token") == len(spokes)
    assert not any("token-of-" in str(request) for request in issuer.requests)


async def test_callers_over_a_hub_reach_an_api_each_as_itself(meeting: Meeting) -> None:
    server = Grant(Identity(id="server"), announces=("*",))
    async with api() as (issuer, registry):
        hub = await meeting.hub(authenticate=StaticTokens({**TOKENS, "token-of-the-server": server}))
        await meeting.spoke(hub.url, registry, token="token-of-the-server")
        spokes = {each.id: await meeting.spoke(hub.url, token=token) for token, each in TOKENS.items()}
        await check(issuer, spokes)


async def test_callers_over_a_broker_reach_an_api_each_as_itself(broker: str, meeting: Meeting) -> None:
    authority, prefix = Authority.generate(), token_hex(4)
    async with api() as (issuer, registry):
        verifier = SignedRequests(verifier=Verifier(authority.public_pem))
        await meeting.spoke(broker, registry, prefix=prefix, signed=verifier)
        spokes: dict[str, Spoke] = {}
        for each in CALLERS:
            key = SigningKey.generate()
            certificate = authority.issue(Grant(each), key.public_pem, lifetime=1_000)
            signed = SignedRequests(signer=Signer(certificate, key))
            spokes[each.id] = await meeting.spoke(broker, prefix=prefix, signed=signed)
        await check(issuer, spokes)


async def test_a_durable_call_reaches_an_api_as_its_caller() -> None:
    async with api() as (_, registry), MemoryJournal() as journal:
        registry.mutation("shop.me")(_ask)
        registry.mutation("shop.passed")(_pass)
        async with DurableWorker(registry, journal, anonymous=CALLERS[1]):
            calls = DurableCalls(journal)
            assert (await calls.call("shop.me", {}, key="1")).data == "caller-1"
            with pytest.raises(CallError, match="do not carry tokens"):
                await calls.call("shop.passed", {}, key="2")


async def _ask(context: Context) -> str:
    return (await context.env.exchanged.me()).data["name"]


async def _pass(context: Context) -> str:
    return (await context.env.passed.me()).data["name"]
