"""Sign in with a browser or a device, against a real authorization server; and attacks on it."""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from msgspec.structs import replace

from opwire.auth.oauth.discovery import discover
from opwire.auth.oauth.login import LoginTokens, sign_in
from opwire.auth.oauth.store import LoginKey, StoredLogin, TokenStore
from opwire.auth.oauth.tokens import FetchJSON, OAuthClient
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.login import LoginOptions, LoginPrompt
from tests.auth.oauth.authorization_server import AuthorizationServer, browse, get, redirect_of

CLIENT = OAuthClient(client_id="cli", login=True)
KEY = LoginKey("https://api.example", "oauth", "cli")


async def signed_in(
    fetch: FetchJSON,
    server: AuthorizationServer,
    show: Any = browse,
    client: OAuthClient = CLIENT,
    **options: Any,
) -> StoredLogin:
    endpoints = await discover(fetch, server.url)
    given = LoginOptions(show=show, **{"timeout": 20.0, **options})
    return await sign_in(fetch, KEY, endpoints, client, given, scopes=("read", "write"))


async def test_a_person_signs_in_with_a_browser(server: AuthorizationServer, fetch: FetchJSON) -> None:
    """A person signs in with a browser: authorization code, PKCE with S256, one redirect to 127.0.0.1."""
    login = await signed_in(fetch, server)
    assert login.tokens.access_token in server.tokens
    assert login.tokens.refresh_token in server.refreshes
    asked = server.form("/authorize")
    assert (asked["scope"], asked["client_id"]) == ("read write", "cli")
    redirect = urlsplit(asked["redirect_uri"])
    assert (redirect.scheme, redirect.hostname, redirect.path) == ("http", "127.0.0.1", "/callback")
    assert server.form("/token")["redirect_uri"] == asked["redirect_uri"]
    with pytest.raises(OSError):  # the listener is closed
        await asyncio.open_connection("127.0.0.1", redirect.port)


async def test_every_login_has_its_own_state_and_verifier(server: AuthorizationServer, fetch: FetchJSON) -> None:
    for _ in range(2):
        await signed_in(fetch, server)
    asked = [fields for path, fields in server.requests if path == "/authorize"]
    for name in ("state", "code_challenge"):
        assert asked[0][name] != asked[1][name]
        assert all(len(fields[name]) >= 43 for fields in asked)


async def test_requests_that_are_not_the_redirect_are_answered_with_an_error_and_ignored(
    server: AuthorizationServer, fetch: FetchJSON
) -> None:
    """Only the exact redirect with the state of the login is accepted; everything else is ignored."""
    statuses: list[int] = []

    async def show(prompt: LoginPrompt) -> None:
        target = await redirect_of(prompt.url)
        parts = urlsplit(target)
        state = parse_qs(parts.query)["state"][0]
        base = f"http://{parts.netloc}"
        for url in (
            f"{base}/",
            f"{base}/callback/?{parts.query}",
            f"{base}/other?{parts.query}",
            f"{base}/callback?code=evil&state=wrong",
            f"{base}/callback?code=evil",
            f"{base}/callback?code=evil&code=x&state={state}",
            f"{base}/callback?code=evil&state={state}&state=",
            f"{base}/callback?{'x' * 20_000}",
        ):
            try:
                statuses.append(await get(url))
            except Exception:  # closed without an answer
                statuses.append(0)
        statuses.append(await get(target, Host="evil.example"))
        statuses.append(await get(target))

    login = await signed_in(fetch, server, show)
    assert statuses == [404, 404, 404, 400, 400, 400, 400, 0, 404, 200]
    assert login.tokens.access_token in server.tokens


async def test_the_first_redirect_counts_and_a_second_one_is_rejected(
    server: AuthorizationServer, fetch: FetchJSON
) -> None:
    async def show(prompt: LoginPrompt) -> None:
        target = await redirect_of(prompt.url)
        assert [await get(target), await get(target)] == [200, 400]

    await signed_in(fetch, server, show)
    assert server.count("/token") == 1


async def test_a_code_of_another_login_gives_no_tokens(server: AuthorizationServer, fetch: FetchJSON) -> None:
    stolen: list[str] = []

    async def steal(prompt: LoginPrompt) -> None:
        stolen.append(parse_qs(urlsplit(await redirect_of(prompt.url)).query)["code"][0])
        raise RuntimeError("stolen")

    with pytest.raises(RuntimeError):
        await signed_in(fetch, server, steal)

    async def inject(prompt: LoginPrompt) -> None:
        parts = urlsplit(await redirect_of(prompt.url))
        fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
        await get(f"http://{parts.netloc}/callback?{urlencode(fields | {'code': stolen[0]})}")

    with pytest.raises(CallError, match="invalid_grant"):
        await signed_in(fetch, server, inject)
    assert not server.tokens


@pytest.mark.parametrize("issuer", ["https://evil.example", None, ""])
async def test_a_response_of_another_issuer_ends_the_login(
    server: AuthorizationServer, fetch: FetchJSON, issuer: str | None
) -> None:
    server.response_changes["iss"] = issuer
    with pytest.raises(CallError, match="not from the server that was asked") as caught:
        await signed_in(fetch, server)
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR
    assert not server.count("/token")


async def test_an_issuer_is_checked_where_the_server_does_not_announce_it(
    server: AuthorizationServer, fetch: FetchJSON
) -> None:
    server.metadata_changes["authorization_response_iss_parameter_supported"] = None
    server.response_changes["iss"] = None
    await signed_in(fetch, server)
    server.response_changes["iss"] = "https://evil.example"
    with pytest.raises(CallError, match="not from the server that was asked"):
        await signed_in(fetch, server)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"code": None, "error": "access_denied"}, "declined: access_denied"),
        ({"code": None, "error": "\x1b[31m" + "x" * 500}, "declined: invalid error"),
        ({"code": None}, "has no code"),
        ({"code": ""}, "has no code"),
    ],
)
async def test_a_refusal_ends_the_login(
    server: AuthorizationServer, fetch: FetchJSON, changes: dict[str, str | None], message: str
) -> None:
    server.response_changes |= changes
    with pytest.raises(CallError, match=message):
        await signed_in(fetch, server)


async def test_a_login_ends_in_time(server: AuthorizationServer, fetch: FetchJSON) -> None:
    with pytest.raises(CallError, match="not completed") as caught:
        await signed_in(fetch, server, lambda prompt: None, timeout=0.05)
    assert caught.value.code is ErrorCode.TIMEOUT


async def test_a_server_without_s256_is_not_used(server: AuthorizationServer, fetch: FetchJSON) -> None:
    server.metadata_changes["code_challenge_methods_supported"] = ["plain"]
    with pytest.raises(CallError, match="PKCE"):
        await signed_in(fetch, server)


@pytest.mark.parametrize(
    "uri", ["https://evil.example/callback", "http://192.0.2.1:0/callback", "http://127.0.0.1:0", "ftp://127.0.0.1/x"]
)
async def test_a_redirect_to_elsewhere_is_rejected(server: AuthorizationServer, fetch: FetchJSON, uri: str) -> None:
    with pytest.raises(UsageError, match="redirect_uri"):
        await signed_in(fetch, server, client=replace(CLIENT, redirect_uri=uri))


async def test_a_port_that_is_taken_is_named(server: AuthorizationServer, fetch: FetchJSON) -> None:
    port = urlsplit(server.url).port
    with pytest.raises(CallError, match=f"cannot listen on port {port}"):
        await signed_in(fetch, server, client=replace(CLIENT, redirect_uri=f"http://127.0.0.1:{port}/callback"))


async def test_the_address_of_a_browser_on_another_machine_can_be_pasted(
    server: AuthorizationServer, fetch: FetchJSON
) -> None:
    ended: list[str] = []

    async def show(prompt: LoginPrompt) -> None:
        ended.append(await redirect_of(prompt.url))

    async def paste() -> str:
        return f" {ended[0]}\n"

    login = await signed_in(fetch, server, show, paste=paste)
    assert login.tokens.access_token in server.tokens
    with pytest.raises(CallError, match="not the address"):  # that of an earlier login
        await signed_in(fetch, server, show, paste=paste)


async def test_a_client_without_an_id_is_registered(server: AuthorizationServer, fetch: FetchJSON) -> None:
    login = await signed_in(fetch, server, client=OAuthClient(login=True))
    assert login.client_id in server.clients
    asked: Any = server.form("/register")
    assert asked["redirect_uris"] == [server.form("/authorize")["redirect_uri"]]
    assert asked["token_endpoint_auth_method"] == "none"
    server.metadata_changes["registration_endpoint"] = None
    with pytest.raises(CallError, match="set client_id"):
        await signed_in(fetch, server, client=OAuthClient(login=True))


async def test_no_secret_of_a_login_is_shown(
    server: AuthorizationServer, fetch: FetchJSON, store: TokenStore, caplog: pytest.LogCaptureFixture
) -> None:
    """No code, token or secret of a login is in a repr, a message or a log."""
    caplog.set_level(logging.DEBUG)
    login = await signed_in(fetch, server)
    await store.write(login)
    await LoginTokens(fetch, store, KEY).get()
    shown = f"{login!r} {login} {login.tokens!r} {store!r} {caplog.text}"
    tokens = (login.tokens.access_token, login.tokens.refresh_token or "", server.form("/token")["code_verifier"])
    assert not any(each in shown for each in tokens)


# --- device -----------------------------------------------------------------------------------------------------------


class Pauses(list[float]):
    """Records the pauses between two questions, and skips them."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


async def test_a_person_signs_in_on_another_device(server: AuthorizationServer, fetch: FetchJSON) -> None:
    """A person signs in with a code on another device; the server's pace, expiry and refusal are kept."""
    server.device_answers = ["authorization_pending", "slow_down", "503", "authorization_pending"]
    pauses, prompts = Pauses(), list[LoginPrompt]()
    login = await signed_in(fetch, server, prompts.append, device=True, sleep=pauses)
    assert login.tokens.access_token in server.tokens
    assert prompts == [LoginPrompt(url=f"{server.url}/enter", code="WDJB-MJHT")]
    assert pauses == [2, 2, 7, 14, 14]
    assert server.form("/device") == {"scope": "read write", "client_id": "cli"}


@pytest.mark.parametrize(
    ("answer", "message", "code"),
    [
        ("access_denied", "declined", ErrorCode.EXECUTION_ERROR),
        ("expired_token", "expired", ErrorCode.TIMEOUT),
        ("invalid_client", "invalid_client", ErrorCode.EXECUTION_ERROR),
    ],
)
async def test_the_end_of_a_device_login_is_reported(
    server: AuthorizationServer, fetch: FetchJSON, answer: str, message: str, code: ErrorCode
) -> None:
    server.device_answers = ["authorization_pending", answer]
    with pytest.raises(CallError, match=message) as caught:
        await signed_in(fetch, server, lambda prompt: None, device=True, sleep=Pauses())
    assert caught.value.code is code
    assert server.count("/token") == 2


@pytest.mark.parametrize(
    ("change", "pauses"), [({"interval": 0}, [1.0]), ({"interval": 10**400}, [60.0]), ({"interval": None}, [1.0])]
)
async def test_the_pace_of_a_device_login_is_bounded(
    server: AuthorizationServer, fetch: FetchJSON, change: dict[str, Any], pauses: list[float]
) -> None:
    slept = Pauses()

    async def changed(request: Any) -> Any:
        answer = await fetch(request)
        return {**answer, **change} if request.url.endswith("/device") else answer

    await signed_in(changed, server, lambda prompt: None, device=True, sleep=slept)
    assert slept == pauses


@pytest.mark.parametrize(
    "change",
    [{"verification_uri": "http://evil.example"}, {"verification_uri": "javascript:x"}, {"user_code": 7}],
)
async def test_an_invalid_device_authorization_is_rejected(
    server: AuthorizationServer, fetch: FetchJSON, change: dict[str, Any]
) -> None:
    async def changed(request: Any) -> Any:
        answer = await fetch(request)
        return {**answer, **change} if request.url.endswith("/device") else answer

    with pytest.raises(CallError, match="invalid device authorization"):
        await signed_in(changed, server, lambda prompt: None, device=True, sleep=Pauses())


# --- tokens of a login ------------------------------------------------------------------------------------------------


async def test_a_token_is_refreshed_once_however_many_calls_and_processes_need_it(
    server: AuthorizationServer, fetch: FetchJSON, store: TokenStore
) -> None:
    server.lifetime = 0
    await store.write(await signed_in(fetch, server))
    server.lifetime = 3600
    processes = [LoginTokens(fetch, store, KEY) for _ in range(4)]  # each has its own memory, as a process has
    found = await asyncio.gather(*(each.get() for each in processes for _ in range(10)))
    assert len(set(found)) == 1
    assert found[0] in server.tokens
    assert server.count("/token") == 2
    stored = await store.read(KEY)
    assert stored is not None
    assert stored.tokens.refresh_token in server.refreshes


async def test_a_rejected_token_is_refreshed_once(
    server: AuthorizationServer, fetch: FetchJSON, store: TokenStore
) -> None:
    await store.write(await signed_in(fetch, server))
    tokens = LoginTokens(fetch, store, KEY)
    first = await tokens.get()
    assert first is not None
    assert not tokens.reject("another")
    assert await tokens.get() == first
    assert tokens.reject(first)
    second = await tokens.get()
    assert second != first
    assert not tokens.reject(first)  # by a call that was slower
    assert await tokens.get() == second
    assert server.count("/token") == 2


async def test_a_rotated_refresh_token_is_stored_although_its_caller_has_left(
    server: AuthorizationServer, fetch: FetchJSON, store: TokenStore
) -> None:
    server.lifetime = 0
    await store.write(await signed_in(fetch, server))
    server.lifetime = 3600
    asked, go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        asked.set()
        await go.wait()

    server.on_token = hold
    tokens = LoginTokens(fetch, store, KEY)
    call = asyncio.ensure_future(tokens.get())
    await asyncio.wait_for(asked.wait(), 5)
    call.cancel()
    await asyncio.wait([call])
    go.set()
    await tokens.close()
    stored = await store.read(KEY)
    assert stored is not None
    assert stored.tokens.refresh_token in server.refreshes
    assert await tokens.get() == stored.tokens.access_token
    assert server.count("/token") == 2


async def test_a_revoked_login_is_forgotten_and_a_busy_server_is_not(
    server: AuthorizationServer, fetch: FetchJSON, store: TokenStore
) -> None:
    server.lifetime = 0
    await store.write(await signed_in(fetch, server))

    async def busy(request: Any) -> Any:
        raise CallError(ErrorCode.UNAVAILABLE, "the server is away")

    with pytest.raises(CallError, match="the server is away"):
        await LoginTokens(busy, store, KEY).get()
    assert await store.read(KEY) is not None
    server.refreshes.clear()
    assert await LoginTokens(fetch, store, KEY).get() is None
    assert await store.read(KEY) is None


async def test_a_login_without_a_refresh_token_is_used_until_it_expires(
    server: AuthorizationServer, fetch: FetchJSON, store: TokenStore
) -> None:
    login = await signed_in(fetch, server)
    own = replace(login.tokens, refresh_token=None, refresh_at=0.0)
    await store.write(replace(login, tokens=own))
    tokens = LoginTokens(fetch, store, KEY)
    assert await tokens.get() == own.access_token
    assert tokens.reject(own.access_token)
    assert await tokens.get() is None
    await store.write(replace(login, tokens=replace(own, expires_at=0.0)))
    assert await LoginTokens(fetch, store, KEY).get() is None


async def test_signing_out_deletes_and_revokes_the_login(
    server: AuthorizationServer, fetch: FetchJSON, store: TokenStore
) -> None:
    login = await signed_in(fetch, server)
    await store.write(login)
    tokens = LoginTokens(fetch, store, KEY)
    assert await tokens.get()
    assert await tokens.sign_out()
    assert server.revoked == [login.tokens.refresh_token]
    assert await tokens.get() is None
    assert not await tokens.sign_out()


def test_a_login_works_in_one_event_loop_after_another(store: TokenStore) -> None:
    async def run(tokens: LoginTokens) -> str | None:
        return await tokens.get()

    async def fetch(request: Any) -> Any:
        raise AssertionError

    tokens = LoginTokens(fetch, store, KEY)
    assert asyncio.run(run(tokens)) is None
    assert asyncio.run(run(tokens)) is None
