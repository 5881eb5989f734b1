"""MCP servers that are called with the credentials of each caller: a session for each, bounded, closed when idle."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from opwire import OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth import callback
from opwire.auth.oauth import OAuthClient
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.mcp.client import HTTPServer, StdioServer, from_mcp
from opwire.mcp.client.session import CallerSessions, MCPSession
from opwire.mcp.server import serve_mcp
from opwire.model.access import AccessControl
from opwire.model.caller import caller_token, with_caller_token
from opwire.model.context import Context
from opwire.model.identity import Identity
from tests.auth.oauth.authorization_server import AuthorizationServer

CALLERS = {f"t-{n}": Identity(id=f"caller-{n}") for n in range(8)}
LISTING = {"Authorization": "Bearer t-listing"}


class Upstream:
    """An MCP server that knows its callers. `open` holds its slow calls."""

    def __init__(self) -> None:
        self.registry, self.open, self.waiting = OperationRegistry(), asyncio.Event(), 0

        @self.registry.query("who.am_i")
        async def am_i(context: Context) -> str:
            return context.identity.id if context.identity else "nobody"

        @self.registry.mutation("who.wait")
        async def wait(context: Context) -> str:
            self.waiting += 1
            await self.open.wait()
            return context.identity.id if context.identity else "nobody"

        @self.registry.query("who.public", access=AccessControl(public=True))
        async def public(context: Context) -> str:
            return context.identity.id if context.identity else "nobody"


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Upstream, str]]:
    upstream = Upstream()
    tokens = callback({**CALLERS, "t-listing": Identity(id="listing")}.get)
    async with listening(serve_mcp(upstream.registry).asgi(authenticate=tokens)) as address:
        yield upstream, f"{address}/mcp"
        upstream.open.set()


def as_caller(token: str) -> Context:
    return with_caller_token(Context(identity=CALLERS[token]), token)


async def test_callers_reach_an_mcp_server_each_with_its_own_token_session_and_cache(
    upstream: tuple[Upstream, str],
) -> None:
    """Neither a credential, a session, a cookie nor a cached response of one caller reaches another."""
    from opwire.policies.cache import ResponseCache  # a part that may be removed

    registry = OperationRegistry()
    registry.use(ResponseCache(ttl=1_000))
    server = HTTPServer(upstream[1], LISTING)
    async with from_mcp(server, namespace="up", auth=caller_token, trust_annotations=True) as source:
        registry.follow(source)

        async def ask(token: str) -> None:
            assert (await registry.execute("up.who_am_i", {}, as_caller(token))).data == CALLERS[token].id

        await asyncio.gather(*(ask(token) for _ in range(4) for token in CALLERS))
        for context in (None, Context(identity=CALLERS["t-1"])):  # never as the one that lists the tools
            with pytest.raises(CallError) as failure:
                await registry.execute("up.who_am_i", {}, context)
            assert failure.value.code is ErrorCode.UNAUTHENTICATED
        shown = await registry.preview("up.who_am_i", {}, as_caller("t-1"))
        assert b"t-1" not in (shown.body or b"")


async def test_the_token_of_a_caller_of_a_served_mcp_server_reaches_the_server_behind_it(
    upstream: tuple[Upstream, str],
) -> None:
    registry = OperationRegistry()
    async with from_mcp(HTTPServer(upstream[1], LISTING), namespace="up", auth=caller_token) as source:
        registry.follow(source)
        front = serve_mcp(registry).asgi(authenticate=callback(CALLERS.get))
        async with listening(front) as address:

            async def ask(token: str) -> Any:
                server = HTTPServer(f"{address}/mcp", {"Authorization": f"Bearer {token}"})
                async with from_mcp(server, namespace="front") as tools:
                    client = OperationRegistry()
                    client.follow(tools)
                    return (await client.execute("front.up_who_am_i")).data

            assert await asyncio.gather(*map(ask, CALLERS)) == [each.id for each in CALLERS.values()]


async def test_a_function_returns_the_token_or_the_headers_of_each_caller(upstream: tuple[Upstream, str]) -> None:
    async def lookup(context: Context) -> Any:
        match context.identity:
            case None:
                return None
            case Identity(id="caller-1"):
                return {"X-API-Key": "t-1"}
            case Identity(id="broken"):
                raise ValueError("t-secret")
            case Identity(id="wrong"):
                return 1
            case identity:
                return f"Bearer t-{identity.id.rpartition('-')[2]}"

    registry = OperationRegistry()
    async with from_mcp(HTTPServer(upstream[1], LISTING), namespace="up", auth=lookup) as source:
        registry.follow(source)

        async def ask(identity: Identity | None, id: str = "up.who_am_i") -> Any:
            return (await registry.execute(id, {}, Context(identity=identity))).data

        assert [await ask(each) for each in CALLERS.values()] == [each.id for each in CALLERS.values()]
        assert await ask(None, "up.who_public") == "nobody"
        for unusable in ("broken", "wrong"):
            with pytest.raises(CallError, match="credentials of a caller") as failure:
                await ask(Identity(id=unusable))
            assert "t-secret" not in str(failure.value)


async def test_the_token_of_each_caller_is_exchanged_for_one_of_the_mcp_server(sdk_address: str) -> None:
    client = OAuthClient(client_id="robot", client_secret="s3cret", exchange=True)
    async with AuthorizationServer() as issuer:
        issuer.mcp_server = f"{sdk_address}/mcp"
        issuer.subjects = {token: identity.id for token, identity in CALLERS.items()}
        registry = OperationRegistry()
        async with from_mcp(f"{issuer.url}/mcp", namespace="up", auth=client) as source:
            registry.follow(source)  # listed with a token of the client itself

            async def ask(token: str) -> None:
                found = await registry.execute("up.headers", {}, as_caller(token))
                assert found.data["x-name"] == CALLERS[token].id

            await asyncio.gather(*(ask(token) for _ in range(2) for token in CALLERS))
            asked = [form for path, form in issuer.requests if path == "/token" and "subject_token" in form]
            assert sorted(form["subject_token"] for form in asked) == sorted(CALLERS)
            assert {form["resource"] for form in asked} == {f"{issuer.url}/mcp"}
            with pytest.raises(CallError) as failure:
                await registry.execute("up.headers", {})
            assert failure.value.code is ErrorCode.UNAUTHENTICATED


async def test_a_token_of_the_mcp_server_is_requested_for_the_identity_of_each_caller(sdk_address: str) -> None:
    proven: list[str] = []

    async def prove(identity: Identity) -> str:
        proven.append(identity.id)
        return f"assertion-{identity.id}"

    client = OAuthClient(client_id="robot", client_secret="s3cret", exchange=True, subject=prove)
    async with AuthorizationServer() as issuer:
        issuer.mcp_server = f"{sdk_address}/mcp"
        issuer.subjects = {f"assertion-{each.id}": each.id for each in CALLERS.values()}
        registry = OperationRegistry()
        async with from_mcp(f"{issuer.url}/mcp", namespace="up", auth=client) as source:
            registry.follow(source)

            async def ask(identity: Identity) -> None:
                found = await registry.execute("up.headers", {}, Context(identity=identity))
                assert found.data["x-name"] == identity.id

            await asyncio.gather(*(ask(each) for _ in range(2) for each in CALLERS.values()))
    assert sorted(proven) == sorted(each.id for each in CALLERS.values())


def sessions(url: str, **options: Any) -> CallerSessions:
    server = HTTPServer(url, LISTING)
    return CallerSessions(server, caller_token, MCPSession(server), **options)


async def call(callers: CallerSessions, token: str, tool: str = "who_am_i") -> Any:
    session = await callers.of(as_caller(token))
    return (await session.request("tools/call", {"name": tool, "arguments": {}}))["structuredContent"]


async def test_sessions_of_callers_are_few_and_the_least_recently_used_idle_one_makes_room(
    upstream: tuple[Upstream, str],
) -> None:
    """Each caller has its own session with an MCP server; all are bounded, and closed if idle."""
    callers = sessions(upstream[1], max_sessions=2)
    try:
        busy = asyncio.create_task(call(callers, "t-0", "who_wait"))
        async with asyncio.timeout(30):
            while not upstream[0].waiting:
                await asyncio.sleep(0.01)
        for token in ("t-1", "t-2", "t-3"):
            assert await call(callers, token) == CALLERS[token].id
            assert callers.count == 2
        second = asyncio.create_task(call(callers, "t-3", "who_wait"))
        async with asyncio.timeout(30):
            while upstream[0].waiting < 2:
                await asyncio.sleep(0.01)
        with pytest.raises(CallError, match="2 other callers") as failure:
            await call(callers, "t-4")
        assert failure.value.code is ErrorCode.RATE_LIMITED
        upstream[0].open.set()
        assert await asyncio.gather(busy, second) == ["caller-0", "caller-3"]
        assert await call(callers, "t-4") == "caller-4"
    finally:
        await callers.close()
    assert callers.count == 0


async def test_an_idle_session_is_closed_and_a_busy_one_is_not(upstream: tuple[Upstream, str]) -> None:
    callers = sessions(upstream[1], idle_seconds=0.05)
    try:
        busy = asyncio.create_task(call(callers, "t-0", "who_wait"))
        assert await call(callers, "t-1") == "caller-1"
        async with asyncio.timeout(30):
            while callers.count > 1 or not upstream[0].waiting:
                await asyncio.sleep(0.01)
        upstream[0].open.set()
        assert await busy == "caller-0"
        async with asyncio.timeout(30):
            while callers.count:
                await asyncio.sleep(0.01)
        assert await call(callers, "t-1") == "caller-1"
    finally:
        await callers.close()


async def test_cookies_of_one_caller_are_not_sent_by_another() -> None:
    seen: dict[str, set[str]] = {}

    async def answer(request: web.Request) -> web.Response:
        token, message = request.headers["Authorization"], await request.json()
        seen.setdefault(token, set()).add(request.headers.get("Cookie", ""))
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
        answers = {"initialize": result, "tools/call": {"content": []}}
        if message.get("method") not in answers:
            return web.Response(status=202) if "id" not in message else web.Response(status=404)
        reply = web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]})
        reply.set_cookie("session", token.removeprefix("Bearer "))
        return reply

    app = web.Application()
    app.router.add_post("/mcp", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    callers = sessions(f"http://127.0.0.1:{runner.addresses[0][1]}/mcp")
    try:
        for token in [*CALLERS, *CALLERS]:
            await (await callers.of(as_caller(token))).request("tools/call", {"name": "x", "arguments": {}})
    finally:
        await callers.close()
        await runner.cleanup()
    assert {token: cookies - {""} for token, cookies in seen.items()} == {
        f"Bearer {token}": {f"session={token}"} for token in CALLERS
    }


def test_a_program_cannot_have_credentials_for_each_caller() -> None:
    with pytest.raises(UsageError, match="which all callers share"):
        from_mcp(StdioServer("server"), auth=caller_token)
