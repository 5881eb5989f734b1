"""A registry over streamable HTTP: admission, owners of sessions, and how they end."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from yarl import URL

from opwire import AccessControl, Identity, OperationRegistry
from opwire.asgi.listener import listening
from opwire.auth import Grant, StaticTokens, callback, tokens
from opwire.mcp.server import serve_mcp
from opwire.mcp.server.app import MCPApp
from tests.mcp.server.library import library
from tests.mcp.server.operations import shop
from tests.mcp.server.raw import HANDSHAKE, call, request
from tests.mcp.server.shop import ERAS, NEWEST, OLDER, PATIENCE, http_client, served, until

ANN, BOB = "ann" * 6, "bob" * 6
TOKENS = StaticTokens({ANN: Identity(id="ann", scopes=("admin",)), BOB: Identity(id="bob")})
GUEST = Identity(id="guest")


class Browser:
    """A plain HTTP client."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self.url = http, url

    def post(
        self, message: Any, *, token: str | None = None, era: str = OLDER, allow_redirects: bool = True, **headers: str
    ) -> Any:
        """Post a message; underscores of header names stand for hyphens."""
        accept = "application/json, text/event-stream"
        sent = {"Accept": accept, **_authorization(token), **_headers(headers)}
        if era == NEWEST:
            sent |= {"MCP-Protocol-Version": NEWEST, "Mcp-Method": message["method"]}
            if "name" in message["params"]:
                sent["Mcp-Name"] = message["params"]["name"]
        return self._http.post(self.url, json=message, headers=sent, allow_redirects=allow_redirects)

    def get(self, *, token: str | None = None, **headers: str) -> Any:
        """Open the stream of a session."""
        sent = {"Accept": "text/event-stream", **_authorization(token), **_headers(headers)}
        return self._http.get(self.url, headers=sent)

    def delete(self, **headers: str) -> Any:
        """End a session."""
        return self._http.delete(self.url, headers=_headers(headers))

    async def session(self, token: str | None = None) -> str:
        """The id of a new session."""
        async with self.post(HANDSHAKE[0], token=token) as response:
            assert response.status == 200, await response.text()
            return response.headers["mcp-session-id"]


def _authorization(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _headers(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def browsing(registry: OperationRegistry | None = None, **options: Any) -> AsyncGenerator[Browser]:
    async with served(serve_mcp(registry or shop()), **options) as url, aiohttp.ClientSession() as http:
        yield Browser(http, url)


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_a_token_decides_what_is_listed_and_what_can_be_called(era: str) -> None:
    async with served(serve_mcp(shop()), authenticate=TOKENS) as url:
        async with http_client(url, era, ANN) as ann:
            assert "admin_secret" in {tool.name for tool in (await ann.list_tools()).tools}
            assert not (await ann.call_tool("admin_secret")).is_error
        async with http_client(url, era, BOB) as bob:
            names = {tool.name for tool in (await bob.list_tools()).tools}
            assert "math_add" in names
            assert "admin_secret" not in names
            assert (await bob.call_tool("admin_secret")).is_error
        async with http_client(url, era) as nobody:
            assert {tool.name for tool in (await nobody.list_tools()).tools} == {"public_hello"}
            assert (await nobody.call_tool("math_add", {"a": 1, "b": 2})).is_error


async def test_a_bad_token_and_none_where_nothing_is_public_are_refused() -> None:
    registry = shop()
    async with browsing(registry, authenticate=TOKENS) as browser:
        async with browser.post(HANDSHAKE[0], token="wrong" * 5) as response:
            assert response.status == 401
            assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
            assert "wrong" not in await response.text()
        registry.unregister("public.hello")
        async with browser.post(HANDSHAKE[0]) as response:
            assert response.status == 401
            assert response.headers["www-authenticate"] == "Bearer"


async def test_a_surface_can_be_opened() -> None:
    async with browsing(anonymous=GUEST) as browser:
        assert await _adds(browser)


@pytest.mark.parametrize("era", ERAS)
async def test_pages_of_other_hosts_are_kept_out(era: str) -> None:
    """Requests for other hosts, and from pages of other origins, are refused by default."""
    message = HANDSHAKE[0] if era == OLDER else request("tools/list", era=NEWEST)
    async with browsing(anonymous=GUEST) as browser:
        async with browser.post(message, era=era, Host="evil.example") as response:
            assert response.status == 421
        async with browser.post(message, era=era, Origin="http://evil.example") as response:
            assert response.status == 403
        async with browser.post(message, era=era, Origin=browser.url.removesuffix("/mcp")) as response:
            assert response.status == 200


async def test_a_body_that_is_too_large_is_refused() -> None:
    large = call("math_add", {"a": "x" * 2_000})
    async with browsing(anonymous=GUEST, max_body=1_000) as browser, browser.post(large) as response:
        assert response.status == 413


async def test_elsewhere_there_is_nothing() -> None:
    async with browsing(anonymous=GUEST) as browser:
        browser.url += "/other"
        async with browser.post(HANDSHAKE[0]) as response:
            assert response.status == 404
            assert "/mcp" in await response.text()


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_a_session_is_usable_only_by_the_identity_that_opened_it() -> None:
    async with browsing(authenticate=TOKENS) as browser:
        session = await browser.session(ANN)
        for token, status in ((BOB, 404), (None, 404), (ANN, 200)):
            async with browser.post(request("ping"), token=token, Mcp_Session_Id=session) as response:
                assert response.status == status


async def test_a_session_that_is_in_use_does_not_give_way_and_an_idle_one_does() -> None:
    async with browsing(anonymous=GUEST, max_sessions=1) as browser:
        session = await browser.session()
        async with browser.get(Mcp_Session_Id=session) as stream:
            assert stream.status == 200
            async with browser.post(HANDSHAKE[0]) as response:
                assert response.status == 503
                assert "Too many open sessions" in await response.text()
        another = await _opened(browser)
        assert await _statuses(browser, session, another) == [404, 200]


async def test_a_session_ends_when_it_is_not_used() -> None:
    async with browsing(anonymous=GUEST, session_idle=0.05) as browser:
        session = await browser.session()
        async with asyncio.timeout(PATIENCE):
            while await _statuses(browser, session) != [404]:
                await asyncio.sleep(0.15)


async def test_one_identity_cannot_take_the_sessions_of_the_others() -> None:
    async with browsing(authenticate=TOKENS, max_sessions=4) as browser:
        of_bob = await browser.session(BOB)
        of_ann = [await _opened(browser, ANN) for _ in range(3)]
        assert await _statuses(browser, *of_ann, token=ANN) == [404, 200, 200]
        assert await _statuses(browser, of_bob, token=BOB) == [200]


async def test_without_room_the_identity_with_most_sessions_gives_way_and_the_last_used_stays() -> None:
    async with browsing(authenticate=TOKENS, max_sessions=3, max_sessions_per_identity=3) as browser:
        of_ann = [await _opened(browser, ANN) for _ in range(3)]
        assert await _statuses(browser, of_ann[0], token=ANN) == [200]
        of_bob = await _opened(browser, BOB)
        assert await _statuses(browser, *of_ann, token=ANN) == [200, 404, 200]
        assert await _statuses(browser, of_bob, token=BOB) == [200]


async def test_clients_without_an_identity_cannot_take_the_sessions_of_the_others() -> None:
    async with browsing(authenticate=TOKENS, max_sessions=1) as browser:
        of_ann = await browser.session(ANN)
        of_nobody = [await _opened(browser) for _ in range(3)]
        assert await _statuses(browser, *of_nobody) == [404, 404, 200]
        assert await _statuses(browser, of_ann, token=ANN) == [200]
        assert await _statuses(browser, of_nobody[-1], token=ANN) == [404]


async def test_calls_that_their_clients_left_are_bounded_over_all_sessions_of_an_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bodies and sessions are limited, those of clients without identity apart; idle ones end. So are the calls
    of all sessions of an identity, also after their clients have disconnected."""
    monkeypatch.setattr("opwire.mcp.server.app.MAX_OPEN", 2)
    registry = OperationRegistry()
    running: list[str] = []

    @registry.mutation("a.b")
    async def b(name: str) -> None:
        running.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(name)

    async with browsing(registry, authenticate=TOKENS) as browser:

        async def leave(session: str, name: str, token: str = ANN) -> None:
            message = call("a_b", {"name": name})
            calling = asyncio.create_task(browser.post(message, token=token, Mcp_Session_Id=session).__aenter__())
            await until(lambda: name in running)
            calling.cancel()
            await asyncio.wait((calling,))

        first, second = await browser.session(ANN), await browser.session(ANN)
        await leave(first, "one")
        await leave(second, "two")
        for message in (call("a_b", {"name": "three"}, id=3), call("a_b", {"name": "three"}, id=4)):
            async with browser.post(message, token=ANN, Mcp_Session_Id=second) as response:
                assert "too many requests" in (await response.json())["error"]["message"]
        assert await _statuses(browser, first, second, token=ANN) == [200, 200]
        await leave(await browser.session(BOB), "of bob", BOB)
        assert sorted(running) == ["of bob", "one", "two"]
        async with browser.post(request("ping", id=9), token=ANN, Mcp_Session_Id=second) as response:
            assert (await response.json())["result"] == {}
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        async with browser.post(cancelled, token=ANN, Mcp_Session_Id=first) as response:
            assert response.status == 202
        await until(lambda: "one" not in running)
        await leave(await browser.session(ANN), "three")


async def _opened(browser: Browser, token: str | None = None) -> str:
    """The id of a new session, as soon as there is room for it: a request that has just ended may still count."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with browser.post(HANDSHAKE[0], token=token) as response:
                await response.read()
                if response.status == 200:
                    return response.headers["mcp-session-id"]
                assert response.status == 503
            await asyncio.sleep(0.02)


async def _statuses(browser: Browser, *sessions: str, token: str | None = None) -> list[int]:
    found: list[int] = []
    for session in sessions:
        async with browser.post(request("ping"), token=token, Mcp_Session_Id=session) as response:
            await response.read()
            found.append(response.status)
    return found


async def test_there_is_one_path_and_other_spellings_are_redirected_or_not_found() -> None:
    async with browsing(anonymous=GUEST) as browser:
        place = browser.url.removesuffix("/mcp")
        for path, status in (("/mcp/", 308), ("/mcp//", 308), ("/%6Dcp", 404), ("//mcp", 404), ("/MCP", 404)):
            browser.url = URL(place + path, encoded=True)  # pyright: ignore[reportAttributeAccessIssue]
            async with browser.post(HANDSHAKE[0], allow_redirects=False) as response:
                assert response.status == status, path
                assert response.headers.get("location", "/mcp") == "/mcp"


async def test_a_link_or_an_image_on_a_page_of_another_site_opens_nothing() -> None:
    async with browsing(anonymous=GUEST) as browser, browser.get(Sec_Fetch_Site="cross-site") as response:
        assert response.status == 403


def is_kept(key: str) -> bool:
    """Whether a dict of this process has the key."""
    gc.collect()
    return any(type(each) is dict and key in each for each in gc.get_objects())


async def test_a_session_keeps_nothing_of_its_messages_that_the_server_does_not_need() -> None:
    message = b'{"jsonrpc":"2.0","id":1,"method":"%s","params":{%s}}'
    capabilities = b'"roots":{"ballast-a":[[]]},"elicitation":{"url":{"ballast-b":[[]]}},"other":{"ballast-c":[[]]}'
    opening = (
        b'"protocolVersion":"2025-11-25","clientInfo":{"name":"t","version":"1"},"capabilities":{%s}' % capabilities
    )
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with browsing(library(), anonymous=GUEST) as browser, aiohttp.ClientSession() as http:
        async with http.post(browser.url, data=message % (b"initialize", opening), headers=headers) as response:
            headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        wanted = b'"uri":"book://emma","ballast-d":{"ballast-e":[[]]}'
        async with http.post(browser.url, data=message % (b"resources/subscribe", wanted), headers=headers) as response:
            assert (await response.json())["result"] == {}
        wanted = b'"uri":"book://dune","_meta":{"ballast-f":"%s"}' % (b"x" * 5_000)
        async with http.post(browser.url, data=message % (b"resources/subscribe", wanted), headers=headers) as response:
            assert "_meta" in (await response.json())["error"]["message"]
        assert not [letter for letter in "abcdef" if is_kept(f"ballast-{letter}")]


@pytest.mark.parametrize(
    "message",
    [
        *(b"[" * 60_000, b"[%s]" % json.dumps(call("math_add")).encode(), b"\0", b"null", b'"\xff"'),
        b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % (b"9" * 5_000),
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"math_add","arguments":{"a":1,"a":2,"b":3}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"math_add","arguments":{"a":NaN,"b":3}}}',
    ],
)
async def test_what_is_not_a_message_is_a_bad_request_and_never_a_fault_of_the_server(message: bytes) -> None:
    async with browsing(anonymous=GUEST) as browser:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        headers["Mcp-Session-Id"] = await browser.session()
        async with aiohttp.ClientSession() as http, http.post(browser.url, data=message, headers=headers) as response:
            assert response.status == 400


async def test_a_client_of_the_newest_revision_that_leaves_cancels_its_call() -> None:
    registry = OperationRegistry()
    steps: list[str] = []

    @registry.mutation("a.b")
    async def b() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")

    async with browsing(registry, anonymous=GUEST) as browser:
        calling = asyncio.create_task(browser.post(call("a_b", era=NEWEST), era=NEWEST).__aenter__())
        await until(lambda: steps == ["begun"])
        calling.cancel()
        await until(lambda: steps == ["begun", "cancelled"])


async def test_a_session_that_ends_cancels_its_calls() -> None:
    registry = OperationRegistry()
    steps: list[str] = []

    @registry.mutation("a.b")
    async def b() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")

    async with browsing(registry, anonymous=GUEST) as browser:
        session = await browser.session()

        async def post() -> None:
            async with browser.post(call("a_b"), Mcp_Session_Id=session):
                pass

        calling = asyncio.create_task(post())
        await until(lambda: steps == ["begun"])
        async with browser.delete(Mcp_Session_Id=session) as response:
            assert response.status == 200
        await until(lambda: steps == ["begun", "cancelled"])
        await asyncio.wait_for(calling, PATIENCE)


@pytest.mark.parametrize("era", ERAS)
async def test_changes_are_sent_over_http(era: str) -> None:
    registry = shop()
    async with browsing(registry, anonymous=GUEST) as browser, _listening(browser, era) as stream:
        registry.query("new.one")(_nothing)
        async with asyncio.timeout(PATIENCE):
            while b"notifications/tools/list_changed" not in await stream.content.readline():
                pass


# --- the end ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _listening(browser: Browser, era: str, token: str | None = None) -> AsyncGenerator[aiohttp.ClientResponse]:
    """A stream on which a client listens for changes."""
    if era == NEWEST:
        wanted = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, era=NEWEST)
        async with browser.post(wanted, era=NEWEST, token=token) as stream:
            assert stream.status == 200
            yield stream
        return
    session = await browser.session(token)
    async with browser.post(HANDSHAKE[1], token=token, Mcp_Session_Id=session) as response:
        assert response.status == 202
    async with browser.get(token=token, Mcp_Session_Id=session) as stream:
        assert stream.status == 200
        yield stream


@pytest.mark.parametrize("era", ERAS)
async def test_streams_do_not_hold_up_the_end(era: str) -> None:
    app = serve_mcp(shop()).asgi(anonymous=GUEST)
    async with aiohttp.ClientSession() as http:
        began = time.monotonic()
        async with listening(app, on_drain=app.drain) as address:
            stream = _listening(Browser(http, f"{address}/mcp"), era)
            response = await stream.__aenter__()
        assert time.monotonic() - began < PATIENCE
        assert (b"resultType" in await response.read()) is (era == NEWEST)  # which learns that the stream has ended


async def test_a_call_that_runs_is_answered_before_the_end() -> None:
    registry = OperationRegistry()
    begun, go_on = asyncio.Event(), asyncio.Event()

    @registry.mutation("a.b")
    async def b() -> int:
        begun.set()
        await go_on.wait()
        return 5

    app = serve_mcp(registry).asgi(anonymous=GUEST)
    async with aiohttp.ClientSession() as http:
        async with listening(app, on_drain=lambda: (app.drain(), go_on.set())) as address:
            browser = Browser(http, f"{address}/mcp")
            calling = asyncio.create_task(browser.post(call("a_b", era=NEWEST), era=NEWEST).__aenter__())
            await begun.wait()
        assert (await (await calling).json())["result"]["structuredContent"] == 5


@pytest.mark.parametrize("era", ERAS)
async def test_a_stream_ends_with_the_token_that_opened_it(era: str) -> None:
    granted: list[Grant] = []

    def grant(_: str) -> Grant:
        granted.append(Grant(GUEST, expires=time.time() + 0.5))
        return granted[-1]

    async with browsing(authenticate=callback(grant)) as browser, _listening(browser, era, token=ANN) as stream:
        async with asyncio.timeout(PATIENCE):
            await stream.read()
        assert time.time() >= (granted[-1].expires or 0) - 0.01


@pytest.mark.parametrize("era", ERAS)
async def test_a_stream_ends_soon_after_its_token_was_revoked(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "RECHECK", 0.01)
    granted = {ANN: GUEST}
    async with browsing(authenticate=callback(granted.get)) as browser, _listening(browser, era, ANN) as stream:
        granted.clear()
        async with asyncio.timeout(PATIENCE):
            await stream.read()


# --- inside other apps ------------------------------------------------------------------------------------------------


async def _adds(browser: Browser) -> bool:
    async with browser.post(call("math_add", {"a": 1, "b": 2}, era=NEWEST), era=NEWEST) as response:
        assert response.status == 200
        return (await response.json())["result"]["structuredContent"] == 3


async def test_it_runs_inside_another_app_from_its_first_request() -> None:
    app = serve_mcp(shop()).asgi(anonymous=GUEST, path="/")
    outer = Starlette(routes=[Mount("/tools", app)])
    async with listening(outer) as address, aiohttp.ClientSession() as http:
        assert await _adds(Browser(http, f"{address}/tools/"))
        await app.close()
        await app.close()


async def test_it_runs_at_a_path_that_has_to_be_encoded() -> None:
    outer = Starlette(routes=[Mount("/é", serve_mcp(shop()).asgi(anonymous=GUEST))])
    async with listening(outer) as address, aiohttp.ClientSession() as http:
        assert await _adds(Browser(http, f"{address}/%C3%A9/mcp"))


async def test_it_runs_within_the_lifespan_of_another_app() -> None:
    """The MCP server can be mounted into another ASGI app, with or without its lifespan."""
    app = serve_mcp(shop()).asgi(anonymous=GUEST)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with app.running():
            yield

    outer = Starlette(routes=[Mount("/", app)], lifespan=lifespan)
    for _ in range(2):  # and again
        async with listening(outer) as address, aiohttp.ClientSession() as http:
            assert await _adds(Browser(http, f"{address}/mcp"))
        assert _tasks_of(app) == 0


async def test_many_first_requests_at_once_start_one_server() -> None:
    app = serve_mcp(shop()).asgi(anonymous=GUEST)
    async with listening(Starlette(routes=[Mount("/", app)])) as address, aiohttp.ClientSession() as http:
        browser = Browser(http, f"{address}/mcp")
        assert all(await asyncio.gather(*(_adds(browser) for _ in range(5))))
        await app.close()


def _tasks_of(app: MCPApp) -> int:
    return sum("_Sessions" in repr(task.get_coro()) for task in asyncio.all_tasks())


def _nothing() -> None:
    pass


async def test_the_large_inputs_of_calls_that_go_on_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opwire.mcp.server.sessions.MAX_INPUTS", 200_000)
    registry, began, may_end = OperationRegistry(), asyncio.Event(), asyncio.Event()

    @registry.query("a.hold", access=AccessControl(public=True))
    async def hold(text: str) -> int:
        began.set()
        await may_end.wait()
        return len(text)

    async with browsing(registry) as browser:
        session = await browser.session()

        async def ask(id: int, length: int) -> Any:
            message = call("a_hold", {"text": "x" * length}, id=id)
            async with browser.post(message, Mcp_Session_Id=session) as response:
                return await response.json()

        first = asyncio.create_task(ask(1, 80_000))
        await asyncio.wait_for(began.wait(), PATIENCE)
        refused = await ask(2, 90_000)
        assert "large inputs" in refused["error"]["message"]
        small = asyncio.create_task(ask(3, 1_000))
        may_end.set()
        assert "result" in await first
        assert "result" in await small
        assert "result" in await ask(4, 90_000)
