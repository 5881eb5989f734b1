"""Signing in to the console, and what attackers try with one request."""

from typing import Any

import aiohttp
import pytest

from opwire import CallError, Context, Identity
from opwire.console import session as sessions
from opwire.console.session import SessionStore, acting
from opwire.model.caller import find_caller_token
from tests.console.served import CLERK, OTHER, OWNER, PAGE, Page, Revocable, make_registry, page_of


def cookie_of(page: Page) -> str:
    (cookie,) = page.session.cookie_jar
    return f"{cookie.key}={cookie.value}"


async def test_a_token_opens_a_session_with_a_cookie_that_has_no_credential_and_that_scripts_cannot_read() -> None:
    async with page_of() as page:
        before = (await page.api("GET", "session")).json
        assert (before["identity"], before["login"], before["mayObserve"]) == (None, True, False)
        reply = await page.log_in()
        cookie = reply.headers["set-cookie"]
        assert OWNER not in cookie
        port = page.address.rpartition(":")[2]
        assert cookie.startswith(f"opwire_console_{port}=")
        assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= set(cookie.split("; "))
        after = (await page.api("GET", "session")).json
        assert after["identity"] == {"id": "owner", "scopes": ["*"]}
        assert (after["login"], after["mayObserve"], after["mayShowValues"], after["mayActAs"]) == (
            False,
            True,
            True,
            True,
        )


async def test_a_link_works_once() -> None:
    async with page_of() as page:
        link = {"link": page.console.create_link()}
        assert (await page.api("POST", "session", link)).json["identity"]["id"] == "local"
        replayed = await page.api("POST", "session", link)
        assert (replayed.status, replayed.problem["code"]) == (401, "UNAUTHENTICATED")
        assert (await page.api("GET", "session")).json["identity"]["id"] == "local"


async def test_a_link_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SessionStore(None)
    link = store.create_link(Identity(id="me"))
    now = sessions.time.time()
    monkeypatch.setattr(sessions.time, "time", lambda: now + sessions.LINK_LIFETIME + 1)
    with pytest.raises(CallError, match="works once"):
        await store.open(link=link)


@pytest.mark.parametrize("body", [{}, {"token": OWNER, "link": "x"}, {"token": 1}, {"token": "x" * 20_000}, []])
async def test_an_invalid_login_says_what_is_wrong(body: Any) -> None:
    async with page_of() as page:
        reply = await page.api("POST", "session", body)
        assert (reply.status, reply.problem["code"]) == (422, "VALIDATION_ERROR")


async def test_a_wrong_token_is_rejected_and_not_repeated() -> None:
    async with page_of() as page:
        reply = await page.api("POST", "session", {"token": "wrong-token-0123456789"})
        assert reply.status == 401
        assert b"wrong-token" not in reply.body
        assert "set-cookie" not in reply.headers


async def test_logging_out_ends_the_session_for_every_copy_of_the_cookie() -> None:
    async with page_of() as page:
        await page.log_in()
        cookie = cookie_of(page)
        reply = await page.api("DELETE", "session")
        assert reply.status == 204
        assert "Max-Age=0" in reply.headers["set-cookie"]
        async with aiohttp.ClientSession(headers={"cookie": cookie}) as thief:
            found = await Page(thief, page.address).api("GET", "session")
        assert found.json["identity"] is None


async def test_a_session_ends_with_the_token_that_opened_it() -> None:
    auth = Revocable()
    async with page_of(authenticate=auth) as page:
        await page.log_in()
        assert (await page.api("GET", "session")).json["identity"]["id"] == "me"
        auth.valid = False
        assert (await page.api("GET", "session")).json["identity"] is None
        auth.valid = True
        assert (await page.api("GET", "session")).json["identity"] is None


async def test_a_session_ends_after_its_lifetime_and_with_its_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = SessionStore(None), sessions.time.time()
    secret, session = await store.open(link=store.create_link(Identity(id="me")))
    headers = {b"host": b"localhost", b"cookie": f"opwire_console={secret}".encode()}
    found = await store.find(headers)
    assert found is not None
    assert (found.grant.expires, found.token) == (session.expires, None)
    monkeypatch.setattr(sessions.time, "time", lambda: now + sessions.LIFETIME + 1)
    assert await store.find(headers) is None


async def test_sessions_are_bounded_and_those_of_one_identity_do_not_push_out_others() -> None:
    store = SessionStore(None)

    async def cookie(name: str) -> dict[bytes, bytes]:
        secret, _ = await store.open(link=store.create_link(Identity(id=name)))
        return {b"host": b"localhost", b"cookie": f"opwire_console={secret}".encode()}

    victim = await cookie("victim")
    flood = [await cookie("flood") for _ in range(sessions.MAX_SESSIONS_OF_IDENTITY + 5)]
    alive = [headers for headers in flood if await store.find(headers)]
    assert alive == flood[5:]
    assert await store.find(victim)
    for number in range(sessions.MAX_SESSIONS + 10):
        await cookie(f"number {number}")
    assert not await store.find(victim)


async def test_of_many_links_the_oldest_are_dropped() -> None:
    store = SessionStore(None)
    first = store.create_link(Identity(id="me"))
    for _ in range(sessions.MAX_LINKS):
        store.create_link(Identity(id="me"))
    with pytest.raises(CallError):
        await store.open(link=first)


async def test_an_unknown_cookie_and_two_cookies_are_not_a_session() -> None:
    async with page_of() as page:
        await page.log_in()
        name, _, secret = cookie_of(page).partition("=")
        for cookie in (f"{name}={secret}x", f"{name}={secret}; {name}={secret}", f"opwire_console={secret}", "=;;"):
            async with aiohttp.ClientSession(headers={"cookie": cookie}) as thief:
                found = await Page(thief, page.address).api("GET", "session")
            assert found.json["identity"] is None, cookie


async def test_the_cookie_of_the_console_does_not_open_the_http_api() -> None:
    async with page_of() as page:
        await page.log_in()
        reply = await page("POST", "/shop/me", headers={"cookie": cookie_of(page)}, json={})
        assert reply.status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-opwire-console": "0"},
        {**PAGE, "origin": "https://evil.example"},
        {**PAGE, "origin": "null"},
        {**PAGE, "sec-fetch-site": "cross-site"},
        {**PAGE, "sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("origins", [(), ("https://evil.example",), ("*",)])
async def test_a_page_of_another_origin_cannot_call_even_if_the_http_api_allows_it(
    headers: dict[str, str], origins: tuple[str, ...]
) -> None:
    """Pages of other origins and host names cannot use the console."""
    async with page_of(origins=origins) as page:
        await page.log_in()
        body = {"operationId": "shop.order", "input": {"lines": []}}
        reply = await page("POST", "/console/api/call", headers=headers, json=body)
        assert (reply.status, reply.problem["code"]) == (403, "ACCESS_DENIED")


async def test_another_origin_cannot_read_the_operations_or_the_events() -> None:
    async with page_of(origins=("https://evil.example",)) as page:
        await page.log_in()
        for path in ("operations", "session", "system", "events"):
            reply = await page.api("GET", path, origin="https://evil.example")
            assert (reply.status, reply.problem["code"]) == (403, "ACCESS_DENIED"), path


async def test_a_form_cannot_log_a_person_in() -> None:
    async with page_of() as page:
        form = await page("POST", "/console/api/session", headers=PAGE, data={"token": OWNER})
        assert form.status == 415


@pytest.mark.parametrize("path", ["/console/", "/console/api/session", "/console/api/operations"])
async def test_a_foreign_host_name_gets_nothing(path: str) -> None:
    async with page_of() as page:
        await page.log_in()
        reply = await page("GET", path, headers={"host": "rebound.evil.example"})
        assert reply.status == 421


async def test_acting_as_another_identity_never_adds_a_scope() -> None:
    async with page_of() as page:
        await page.log_in(CLERK)
        other = {"id": "alice", "scopes": ["shop:write"]}
        assert await page.result("shop.me", actAs=other) == other
        for scopes in (["shop:admin"], ["*"], ["shop:write", "opwire:observe"]):
            act_as = {"id": "alice", "scopes": scopes}
            denied = await page.api("POST", "call", {"operationId": "shop.close", "actAs": act_as})
            assert (denied.status, denied.problem["code"]) == (403, "ACCESS_DENIED")
        without = await page.api("POST", "call", {"operationId": "shop.order", "actAs": {"id": "alice"}})
        assert (without.status, without.problem["code"]) == (403, "ACCESS_DENIED")


async def test_acting_as_another_identity_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with page_of() as page:
        await page.log_in(OWNER)
        other = {"id": "alice\nowner calls shop.close as root", "scopes": []}
        assert await page.result("shop.me", actAs=other) == other
    lines = [each for each in caplog.messages if "owner calls shop.close as root" in each]
    assert lines
    assert all(each.isprintable() for each in lines)


async def test_acting_as_another_identity_needs_a_scope_and_with_all_scopes_may_have_any() -> None:
    async with page_of() as page:
        other = {"id": "alice", "scopes": ["shop:admin"]}
        body = {"operationId": "shop.me", "input": {}, "actAs": other}
        assert (await page.api("POST", "call", body)).status == 403
        await page.log_in(OTHER)
        assert (await page.api("POST", "call", body)).status == 403
        await page.log_in(OWNER)
        assert await page.result("shop.me", actAs=other) == other


def test_an_acting_identity_has_no_resources_of_its_own() -> None:
    mine = Identity(id="me", scopes=("a", "opwire:act-as"), resources={"repo": ("write",)})
    assert acting(mine, Identity(id="you", scopes=("a",))).resources == {}


async def test_calls_have_the_token_of_the_session_unless_they_are_made_as_another_identity() -> None:
    registry = make_registry()

    @registry.query("shop.token")
    async def token(context: Context) -> str | None:
        return find_caller_token(context)

    async with page_of(registry) as page:
        await page.log_in(CLERK)
        assert await page.result("shop.token") == CLERK
        assert await page.result("shop.token", actAs={"id": "alice"}) is None
        await page.api("POST", "session", {"link": page.console.create_link()})
        assert await page.result("shop.token") is None


async def test_a_page_with_a_lost_session_gets_an_error_instead_of_fewer_calls() -> None:
    async with page_of() as page:
        await page.log_in()
        page.console._sessions._sessions.clear()  # as after a restart
        for path in ("operations", "events", "search?q=x"):
            reply = await page.api("GET", path)
            assert (reply.status, reply.problem["code"]) == (401, "UNAUTHENTICATED")
        told = await page.api("GET", "session")
        assert (told.json["login"], "Max-Age=0" in told.headers["set-cookie"]) == (True, True)
        assert (await page.api("GET", "operations")).status == 200  # what is public
