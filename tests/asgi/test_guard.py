"""Admission of requests: judged by the responses of a real server."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import jwt
import msgspec
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from opwire import Identity
from opwire.asgi import bodies
from opwire.asgi.app import ListeningApp
from opwire.asgi.guard import MAX_CONCURRENT_RECHECKS, RequestGuard
from opwire.asgi.listener import listening
from opwire.asgi.request import ADMITTED, AdmittedRequest, App
from opwire.auth import Grant, JWTs, StaticTokens, allow_anonymous, callback
from opwire.errors import UsageError
from opwire.http.hosts import LOOPBACK, HostNames, without_port
from tests.openapi.server.served import Client, Reply
from tests.properties import examples

TOKEN, OLD, LONG = "a-token-0123456789", "an-old-token-0123456789", "x" * 20_000
on_one_loop = pytest.mark.asyncio(loop_scope="module")
UNTIL = 4_000_000_000.0
TOKENS = StaticTokens(
    {
        TOKEN: Grant(Identity(id="me", scopes=("read",)), expires=UNTIL),
        OLD: Grant(Identity(id="me"), expires=time.time() - 1),
    }
)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Return the identity and the size of a request."""
    request: AdmittedRequest = scope[ADMITTED]
    identity = request.identity
    seen = {"identity": identity and identity.id, "expires": request.expires, "size": len(request.body)}
    body = msgspec.json.encode(seen)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Gate:
    """An app that serves nothing until it is opened."""

    def __init__(self) -> None:
        self.reached, self._opened = asyncio.Event(), asyncio.Event()
        self.open = self._opened.set
        self._waiting: list[str | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        identity = scope[ADMITTED].identity
        self._waiting.append(identity and identity.id)
        self.reached.set()
        await self._opened.wait()
        await echo(scope, receive, send)

    async def holds(self, *identities: str | None) -> None:
        """Wait until the requests of these callers have arrived, and no others."""
        while Counter(self._waiting) != Counter(identities):
            await asyncio.sleep(0.01)


class Surface(ListeningApp):
    """An app with nothing to end."""

    def drain(self) -> None: ...


class House:
    """One server with many guards, each below a path of its own: to start one for each test would take long."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.address = ""
        self._session = session
        self._guards: list[App] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._guards[int(scope["path"].split("/")[1])](scope, receive, send)

    def behind(self, guard: App) -> Client:
        self._guards.append(guard)
        return Client(self._session, f"{self.address}/{len(self._guards) - 1}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncGenerator[House]:
    async with aiohttp.ClientSession() as session:
        found = House(session)
        async with listening(found, lifespan="off", drain_timeout=1) as found.address:
            yield found


def refused(reply: Reply, status: int, code: str) -> str:
    assert (reply.status, reply.problem["code"]) == (status, code)
    return reply.problem["detail"]


@on_one_loop
async def test_a_token_gives_its_identity_as_bearer_or_as_key(house: House) -> None:
    client = house.behind(RequestGuard(echo, authenticate=TOKENS))
    for headers in (
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": f"bearer  {TOKEN}"},
        {"x-api-key": TOKEN},
    ):
        reply = await client("GET", "/", headers=headers)
        assert reply.json == {"identity": "me", "expires": UNTIL, "size": 0}


@on_one_loop
async def test_an_invalid_token_is_rejected_and_a_missing_one_is_anonymous(house: House) -> None:
    client = house.behind(RequestGuard(echo, authenticate=TOKENS))
    assert (await client.get("/")).json["identity"] is None
    bad = (
        {"authorization": "Bearer another-token-0123456789"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer "},
        {"authorization": TOKEN},
        {"authorization": f"Bearer {TOKEN}", "x-api-key": TOKEN},
        {"x-api-key": "another"},
        {"x-api-key": LONG},
    )
    for headers in bad:
        reply = await client("GET", "/", headers=headers)
        refused(reply, 401, "UNAUTHENTICATED")
        assert reply.headers["www-authenticate"] == 'Bearer error="invalid_token"'


@on_one_loop
async def test_a_token_that_has_expired_is_refused(house: House) -> None:
    client = house.behind(RequestGuard(echo, authenticate=TOKENS, challenge='Bearer realm="shop"'))
    reply = await client.get("/", authorization=f"Bearer {OLD}")
    assert refused(reply, 401, "UNAUTHENTICATED") == "the token has expired"
    assert reply.headers["www-authenticate"] == 'Bearer realm="shop", error="invalid_token"'


@on_one_loop
async def test_tokens_are_neither_in_answers_nor_in_the_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = house.behind(RequestGuard(echo, authenticate=TOKENS))
    reply = await client.get("/", authorization="Bearer another-token-0123456789")
    assert b"another-token" not in reply.body
    assert "another-token" not in caplog.text


@on_one_loop
async def test_a_surface_may_admit_anonymous_callers(house: House) -> None:
    guest = Identity(id="guest")
    client = house.behind(RequestGuard(echo, anonymous=guest))
    assert (await client.get("/", authorization="Bearer whatever")).json["identity"] == "guest"
    client = house.behind(RequestGuard(echo, authenticate=allow_anonymous(guest)))
    assert (await client.get("/")).json["identity"] == "guest"
    client = house.behind(RequestGuard(echo, anonymous=guest, authenticate=TOKENS))
    assert (await client.get("/")).json["identity"] == "guest"
    assert (await client.get("/", x_api_key=TOKEN)).json["identity"] == "me"
    refused(await client.get("/", x_api_key="another"), 401, "UNAUTHENTICATED")


@on_one_loop
async def test_a_token_that_cannot_be_checked_at_the_moment_is_not_called_bad(house: House) -> None:
    def look_up(token: str) -> None:
        raise OSError("the database is away")

    client = house.behind(RequestGuard(echo, authenticate=callback(look_up)))
    refused(await client.get("/", x_api_key="a-token"), 503, "UNAVAILABLE")


@on_one_loop
async def test_by_default_a_server_answers_to_loopback_names_alone(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    for host in ("localhost", "localhost:1234", "127.0.0.1", "[::1]:8000", "LocalHost"):
        assert (await client.get("/", host=host)).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "127.0.0.2", "[::2]"):
        refused(await client.get("/", host=host), 421, "ACCESS_DENIED")


@on_one_loop
async def test_a_rejected_host_name_is_shown_with_the_options_that_accept_it(house: House) -> None:
    """The answer to a host name that is refused names the options that allow it."""
    client = house.behind(RequestGuard(echo))
    detail = (await client.get("/", host="shop.example:8000")).problem["detail"]
    assert "'shop.example:8000'" in detail
    assert all(option in detail for option in ("--allow-host of `opwire serve`", "opwire.toml", "hosts= of serve_http"))
    assert len((await client.get("/", host="x" * 9_000)).problem["detail"]) < 600


@on_one_loop
async def test_a_request_without_a_host_or_with_two_is_refused(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    assert b" 421 " in await client.raw(b"GET %s HTTP/1.0\r\n\r\n" % client.path)
    assert b" 400 " in await client.raw(
        b"GET %s HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n" % client.path
    )


@on_one_loop
async def test_white_space_around_the_value_of_a_header_is_not_part_of_it(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    head = b"GET %s HTTP/1.1\r\nHost:\t localhost \t\r\nConnection: close\r\n\r\n"
    assert b" 200 " in await client.raw(head % client.path)


@pytest.mark.parametrize(
    ("names", "host", "included"),
    [
        (["tools.example"], "tools.example", True),
        (["tools.example"], "tools.example:8443", True),
        (["Tools.Example"], "tools.example", True),
        (["tools.example"], "a.tools.example", False),
        (["tools.example:8000"], "tools.example:8000", True),
        (["tools.example:8000"], "tools.example", False),
        (["*.tools.example"], "a.tools.example:1", True),
        (["*.tools.example"], "a.b.tools.example", True),
        (["*.tools.example"], "tools.example", False),
        (["*.tools.example"], "eviltools.example", False),
        (["*.tools.example:8000"], "a.tools.example:8000", True),
        (["*.tools.example:8000"], "a.tools.example:8001", False),
        (["*"], "anything", True),
        (["*"], "", True),
        (["a.example"], "", False),
        ([], "localhost", False),
    ],
)
def test_hosts_are_named_with_and_without_port_and_below_a_name(names: list[str], host: str, included: bool) -> None:
    assert HostNames(names).include(host) is included


@given(st.text(alphabet="localhost127.0:[]*-", max_size=20))
@settings(max_examples=examples(200))
def test_nothing_that_merely_looks_like_a_loopback_name_is_one(host: str) -> None:
    assert HostNames(LOOPBACK).include(host) == (without_port(host) in LOOPBACK)


@on_one_loop
async def test_pages_of_other_hosts_may_not_call(house: House) -> None:
    client = house.behind(RequestGuard(echo, origins=["https://shop.example"]))
    host = house.address.removeprefix("http://")
    for origin in ("https://shop.example", "HTTPS://Shop.example", f"http://{host}"):
        assert (await client.get("/", origin=origin)).status == 200
    for origin in ("https://evil.example", "null", "http://localhost:1", "https://shop.example.evil.example", ""):
        refused(await client.get("/", origin=origin), 403, "ACCESS_DENIED")
    for origin in (f"//{host}", f"http://{host}/", f"http://user@{host}", "http://[", "http://[::1", "\xe9"):
        refused(await client.get("/", origin=origin), 403, "ACCESS_DENIED")


@on_one_loop
async def test_where_any_host_name_is_taken_a_page_of_the_same_name_proves_nothing(house: House) -> None:
    client = house.behind(RequestGuard(echo, hosts=["*"]))
    refused(await client.get("/", host="evil.example", origin="http://evil.example"), 403, "ACCESS_DENIED")
    client = house.behind(RequestGuard(echo, hosts=["*"], origins=["*"]))
    assert (await client.get("/", host="evil.example", origin="http://evil.example")).status == 200


@on_one_loop
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-purpose": "prefetch"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},  # another port of the same host, for example
        {"sec-fetch-site": "Cross-Site"},
        {"sec-fetch-site": "anything else"},
        {"sec-fetch-site": ""},
        {"sec-fetch-site": "none", "origin": "https://evil.example"},
        {"sec-fetch-site": "same-origin", "origin": "null"},
        {"referer": "https://evil.example/page"},
        {"referer": "https://evil.example"},
        {"referer": "http://localhost:1/page"},
        {"referer": "about:client"},
        {"referer": "//"},
    ],
)
async def test_nothing_that_a_page_of_another_site_makes_a_browser_send_comes_in(
    house: House, method: str, headers: dict[str, str]
) -> None:
    client = house.behind(RequestGuard(echo, anonymous=Identity(id="open"), origins=["https://shop.example"]))
    reply = await client(method, "/", headers=headers)
    assert reply.status == 403
    if method != "HEAD":
        refused(reply, 403, "ACCESS_DENIED")


@on_one_loop
async def test_the_address_bar_own_pages_pages_that_are_named_and_other_programs_come_in(house: House) -> None:
    client = house.behind(RequestGuard(echo, anonymous=Identity(id="open"), origins=["https://shop.example"]))
    for headers in (
        {},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "none", "referer": "https://evil.example/"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "cross-site", "origin": "https://shop.example"},
        {"sec-fetch-mode": "cors"},  # Node.js
        {"referer": f"{house.address}/page?x=1"},
        {"referer": "https://shop.example/page"},
    ):
        assert (await client("GET", "/", headers=headers)).status == 200, headers
    client = house.behind(RequestGuard(echo, anonymous=Identity(id="open"), origins=["*"]))
    assert (await client.get("/", sec_fetch_site="cross-site")).status == 200


@on_one_loop
async def test_where_any_host_name_is_taken_same_origin_counts_only_for_an_origin_that_is_named(house: House) -> None:
    client = house.behind(RequestGuard(echo, hosts=["*"], origins=["https://shop.example"]))
    refused(await client.get("/", host="evil.example", sec_fetch_site="same-origin"), 403, "ACCESS_DENIED")
    refused(await client.get("/", host="evil.example", referer="http://evil.example/"), 403, "ACCESS_DENIED")
    assert (await client.get("/", host="shop.example", sec_fetch_site="same-origin")).status == 200


@on_one_loop
async def test_two_words_about_the_site_are_refused(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    for twice in (b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site", b"Referer: a\r\nReferer: b"):
        request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\nConnection: close\r\n\r\n"
        assert b" 400 " in await client.raw(request % (client.path, twice))


@on_one_loop
async def test_bodies_and_headers_have_limits(house: House) -> None:
    client = house.behind(RequestGuard(echo, max_body=1_000, max_headers=2_000))
    assert (await client("POST", "/", data=b"x" * 1_000)).json["size"] == 1_000
    refused(await client("POST", "/", data=b"x" * 1_001), 413, "PAYLOAD_TOO_LARGE")
    refused(await client.get("/", x="y" * 2_000), 431, "PAYLOAD_TOO_LARGE")


@on_one_loop
async def test_a_body_has_a_limited_number_of_objects_and_lists(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    for item in (b"[]", b"{}"):
        body = b",".join([item] * 100_000)
        assert (await client("POST", "/", data=body + b" " * 300_000)).status == 200  # one more per 16 bytes
        rejected = await client("POST", "/", data=body)
        refused(rejected, 413, "PAYLOAD_TOO_LARGE")
        assert "more than 84,285 objects and lists, too many for its size: send it in parts" in rejected.json["detail"]
        assert (await client("POST", "/", data=b'"' + b'[{\\"' * 200_000 + b'"')).status == 200  # in a text
    assert (await client("POST", "/", data=b"[1,2]" * 100)).status == 200


@on_one_loop
async def test_a_large_body_has_no_number_of_more_than_a_thousand_digits(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    allowed, rejected = (b"[" + b",".join([b"9" * digits] * 100) + b"]" for digits in (1_000, 1_001))
    assert (await client("POST", "/", data=allowed)).status == 200
    reply = await client("POST", "/", data=rejected)
    refused(reply, 413, "PAYLOAD_TOO_LARGE")
    assert "a number of more than 1,000 digits" in reply.json["detail"]
    assert (await client("POST", "/", data=b"9" * 4_000)).status == 200  # in a small body
    assert (await client("POST", "/", data=b'["' + b"9" * 800_000 + b'"]')).status == 200  # in a text


@on_one_loop
async def test_a_body_of_unknown_length_is_counted_as_it_comes(house: House) -> None:
    async def parts(number: int) -> AsyncGenerator[bytes]:
        for _ in range(number):
            yield b"x" * 300
            await asyncio.sleep(0)

    client = house.behind(RequestGuard(echo, max_body=1_000))
    assert (await client("POST", "/", data=parts(3))).json["size"] == 900
    assert (await client("GET", "/", data=parts(3))).json["size"] == 900
    refused(await client("POST", "/", data=parts(4)), 413, "PAYLOAD_TOO_LARGE")


@on_one_loop
async def test_a_body_is_there_as_a_whole_even_if_it_is_empty(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    assert (await client("POST", "/")).json["size"] == 0
    assert (await client("DELETE", "/")).json["size"] == 0


@on_one_loop
async def test_a_body_that_does_not_arrive_is_not_waited_for_long(house: House) -> None:
    client = house.behind(RequestGuard(echo, body_timeout=0.05))
    answer = await client.raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabc" % client.path)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer.lower()


@on_one_loop
async def test_a_client_that_leaves_before_the_end_of_the_body_is_not_served(house: House) -> None:
    reached: list[str] = []
    gone = asyncio.Event()

    async def note(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    class Watched(RequestGuard):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            gone.set()

    client = house.behind(Watched(note))
    _, writer = await client.connect()
    writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabc" % client.path)
    await writer.drain()
    writer.close()
    await asyncio.wait_for(gone.wait(), 5)
    assert reached == []


@on_one_loop
async def test_the_number_of_requests_at_once_is_limited(house: House) -> None:
    gate = Gate()
    client = house.behind(RequestGuard(gate, max_requests=1))
    async with asyncio.timeout(5):
        first = asyncio.create_task(client.post("/"))
        await gate.reached.wait()
        reply = await client.get("/")
        refused(reply, 503, "UNAVAILABLE")
        assert reply.headers["retry-after"] == "1"
        gate.open()
        assert (await first).status == 200
        assert (await client.get("/")).status == 200


@on_one_loop
async def test_anonymous_callers_cannot_lock_out_the_others(house: House) -> None:
    gate = Gate()
    client = house.behind(RequestGuard(gate, authenticate=TOKENS, max_requests=2))
    async with asyncio.timeout(5):
        first = asyncio.create_task(client.post("/"))
        await gate.reached.wait()
        refused(await client.get("/"), 503, "UNAVAILABLE")
        known = asyncio.create_task(client.get("/", authorization=f"Bearer {TOKEN}"))
        gate.open()
        assert [(await first).status, (await known).status, (await client.get("/")).status] == [200, 200, 200]


@on_one_loop
async def test_one_identity_cannot_keep_the_others_out(house: House) -> None:
    gate, other = Gate(), "another-token-0123456789"
    tokens = StaticTokens({TOKEN: Identity(id="me"), other: Identity(id="you")})
    client = house.behind(RequestGuard(gate, authenticate=tokens, max_requests=3))
    async with asyncio.timeout(10):
        mine = [asyncio.create_task(client.get("/", x_api_key=TOKEN)) for _ in range(2)]
        await gate.holds("me", "me")
        refused(await client.get("/", x_api_key=TOKEN), 503, "UNAVAILABLE")
        yours = asyncio.create_task(client.get("/", x_api_key=other))
        await gate.holds("me", "me", "you")
        gate.open()
        assert {(await each).status for each in (*mine, yours)} == {200}
        again = await asyncio.gather(*(client.get("/", x_api_key=TOKEN) for _ in range(2)))
        assert [reply.status for reply in again] == [200, 200]


@on_one_loop
async def test_large_bodies_share_a_limit_of_which_callers_without_a_token_get_half(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_OPEN_BODY_BYTES", 0)  # then it is four times max_body
    gate, large = Gate(), b" " * 256 * 1024
    client = house.behind(RequestGuard(gate, authenticate=TOKENS, max_body=len(large)))

    def begin(body: bytes, **headers: str) -> asyncio.Task[Reply]:
        return asyncio.create_task(client("POST", "/", data=body, headers=headers))

    async with asyncio.timeout(20):
        open_requests = [begin(large) for _ in range(2)]
        await gate.holds(None, None)
        reply = await client("POST", "/", data=large)
        refused(reply, 503, "UNAVAILABLE")
        assert (reply.headers["retry-after"], reply.headers["connection"]) == ("1", "close")
        open_requests += [begin(large, authorization=f"Bearer {TOKEN}"), begin(b"0" * 1000)]
        await gate.holds(None, None, "me", None)
        gate.open()
        assert [(await each).json["size"] for each in open_requests] == [*[len(large)] * 3, 1000]
        again = await asyncio.gather(*(client("POST", "/", data=large) for _ in range(2)))
        assert [reply.json["size"] for reply in again] == [len(large)] * 2


@on_one_loop
async def test_a_body_is_dropped_with_its_request_although_the_connection_keeps_the_scope(house: House) -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await echo(scope, receive, send)

    client = house.behind(RequestGuard(app))
    assert (await client("POST", "/", data=b"0" * 1000)).json["size"] == 1000
    assert scopes[0][ADMITTED].body == b""


@on_one_loop
async def test_without_authentication_large_bodies_of_all_callers_share_the_whole_limit(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_OPEN_BODY_BYTES", 0)
    gate, large = Gate(), b" " * 256 * 1024
    client = house.behind(RequestGuard(gate, max_body=len(large)))
    async with asyncio.timeout(20):
        open_requests = [asyncio.create_task(client("POST", "/", data=large)) for _ in range(4)]
        await gate.holds(None, None, None, None)
        refused(await client("POST", "/", data=large), 503, "UNAVAILABLE")
        gate.open()
        assert [(await each).status for each in open_requests] == [200] * 4
        assert (await client("POST", "/", data=large)).status == 200


@on_one_loop
async def test_of_many_large_bodies_at_once_as_many_as_fit_get_through(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_OPEN_BODY_BYTES", 0)
    large = b"x" * 1024 * 1024

    async def slowly() -> AsyncGenerator[bytes]:
        for start in range(0, len(large), 64 * 1024):
            yield large[start : start + 64 * 1024]
            await asyncio.sleep(0.01)

    client = house.behind(RequestGuard(echo, max_body=len(large)))
    sized = {"content-length": str(len(large))}
    async with asyncio.timeout(20):
        asked = [client("POST", "/", data=slowly(), headers=sized if n % 2 else None) for n in range(12)]
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 2


@on_one_loop
async def test_large_bodies_that_were_announced_and_do_not_arrive_keep_no_others_out(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_OPEN_BODY_BYTES", 0)
    large, reads = b"x" * 1024 * 1024, asyncio.Semaphore(0)
    guard = RequestGuard(echo, max_body=len(large))

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        async def received() -> Any:
            reads.release()
            return await receive()

        await guard(scope, received, send)

    client = house.behind(counted)
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (client.path, len(large))
    async with asyncio.timeout(20):
        silent = [await client.connect() for _ in range(8)]
        for _, writer in silent:
            writer.write(head)
        for _ in silent:
            await reads.acquire()
        assert (await client("POST", "/", data=large)).json["size"] == len(large)
        for _, writer in silent:
            writer.close()
            await writer.wait_closed()


@on_one_loop
async def test_tokens_that_are_being_checked_cannot_keep_out_those_that_were_good_before(house: House) -> None:
    checking, answer = asyncio.Event(), asyncio.Event()

    async def look_up(token: str) -> Identity | None:
        if token == TOKEN:
            return Identity(id="me")
        checking.set()
        await answer.wait()
        return None

    client = house.behind(RequestGuard(echo, authenticate=callback(look_up), max_requests=4))
    async with asyncio.timeout(10):
        assert (await client.get("/", x_api_key=TOKEN)).status == 200
        bogus = asyncio.create_task(client.get("/", x_api_key="bogus-1"))
        await checking.wait()
        refused(await client.get("/", x_api_key="bogus-2"), 503, "UNAVAILABLE")
        assert (await client.get("/", x_api_key=TOKEN)).status == 200
        assert (await client.get("/")).json["identity"] is None
        answer.set()
        refused(await bogus, 401, "UNAUTHENTICATED")
        refused(await client.get("/", x_api_key="bogus-2"), 401, "UNAUTHENTICATED")


@on_one_loop
async def test_a_token_that_was_good_counts_as_new_again_once_it_is_refused(house: House) -> None:
    users = {TOKEN: Identity(id="me")}
    checking, answer = asyncio.Event(), asyncio.Event()

    async def look_up(token: str) -> Identity | None:
        if token != TOKEN:
            checking.set()
            await answer.wait()
        return users.get(token)

    client = house.behind(RequestGuard(echo, authenticate=callback(look_up), max_requests=4))
    async with asyncio.timeout(10):
        assert (await client.get("/", x_api_key=TOKEN)).status == 200
        users.clear()
        refused(await client.get("/", x_api_key=TOKEN), 401, "UNAUTHENTICATED")
        bogus = asyncio.create_task(client.get("/", x_api_key="bogus"))
        await checking.wait()
        refused(await client.get("/", x_api_key=TOKEN), 503, "UNAVAILABLE")  # one new token is checked at a time
        answer.set()
        refused(await bogus, 401, "UNAUTHENTICATED")


@pytest.mark.parametrize("option", ["max_body", "max_headers", "max_requests", "body_timeout"])
@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_limit_is_a_number_above_zero(option: str, wrong: Any) -> None:
    options: dict[str, Any] = {option: wrong}
    with pytest.raises(UsageError, match=option):
        RequestGuard(echo, **options)


@on_one_loop
async def test_a_body_with_two_lengths_is_refused_and_nothing_after_it_is_read(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    inner = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % client.path
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await client.raw(head % (client.path, len(inner) + 5) + b"0\r\n\r\n" + inner)  # until the server closes
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("host", [b"localhost", b"evil.example"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("length", [b"Content-Length: %d", b"Transfer-Encoding: chunked\r\nX-Length: %d"])
@on_one_loop
async def test_the_body_of_a_request_for_another_protocol_is_not_read_as_the_next_request(
    house: House, host: bytes, protocol: bytes, length: bytes
) -> None:
    client = house.behind(Surface(RequestGuard(echo)))
    inner = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % client.path
    head = b"POST %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n" % (client.path, host, protocol)
    reader, writer = await client.connect()
    try:
        writer.write(head + length % len(inner) + b"\r\n\r\n")
        status = await asyncio.wait_for(reader.readline(), 5)
        writer.write(inner)  # in a packet of its own, as a proxy sends it
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP/1.1 " not in await asyncio.wait_for(reader.read(), 5)  # until the server closes
    finally:
        writer.close()
    assert status.startswith(b"HTTP/1.1 400 " if host == b"localhost" else b"HTTP/1.1 421 ")


@on_one_loop
async def test_a_request_without_a_body_may_ask_for_another_protocol_and_is_the_last_of_its_connection(
    house: House,
) -> None:
    client = house.behind(Surface(RequestGuard(echo)))
    head = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" % client.path
    answer = await client.raw(head)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer.lower()


@on_one_loop
async def test_a_transfer_coding_before_chunked_is_refused(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    assert (await client.raw(head % client.path)).startswith(b"HTTP/1.1 400 ")


@on_one_loop
async def test_a_compressed_body_is_rejected_with_the_encoding_that_is_accepted(house: House) -> None:
    client = house.behind(RequestGuard(echo))
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Encoding: %s\r\n"
    head += b"Content-Length: 2\r\n\r\n{}"
    for coding in (b"gzip", b"BR", b"identity, gzip"):
        answer = await client.raw(head % (client.path, coding))
        assert answer.startswith(b"HTTP/1.1 415 "), answer
        assert b"accept-encoding: identity" in answer
        assert f"not as '{coding.decode().lower()}'".encode() in answer
    assert (await client.raw(head % (client.path, b"Identity"))).startswith(b"HTTP/1.1 200 ")


@on_one_loop
async def test_two_headers_of_a_name_that_decides_something_are_refused(house: House) -> None:
    client = house.behind(RequestGuard(echo, authenticate=TOKENS))
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\nConnection: close\r\n\r\n"
    for twice in (
        b"Authorization: Bearer x\r\nAuthorization: Bearer y",
        b"Mcp-Session-Id: a\r\nMcp-Session-Id: b",
        b"Content-Encoding: gzip\r\nContent-Encoding: identity",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
    ):
        assert b" 400 " in await client.raw(request % (client.path, twice))
    assert b" 200 " in await client.raw(request % (client.path, b"X-Other: 1\r\nX-Other: 2"))


@on_one_loop
async def test_a_request_with_a_length_that_is_not_a_number_is_rejected(house: House) -> None:
    answers: list[Any] = []

    async def send(message: Any) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "POST", "headers": [(b"host", b"localhost"), (b"content-length", b"-1")]}
    await RequestGuard(echo)(scope, _never, send)
    assert answers[0]["status"] == 400


@on_one_loop
async def test_the_start_of_the_server_passes_and_websockets_do_not(house: House) -> None:
    passed: list[str] = []
    answers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    async def send(message: Any) -> None:
        answers.append(message)

    guard = RequestGuard(app)
    await guard({"type": "lifespan"}, _never, send)
    await guard({"type": "websocket", "path": "/", "headers": []}, _never, send)
    assert passed == ["lifespan"]
    assert answers == [{"type": "websocket.close", "code": 1008}]


async def test_the_leeway_of_signed_tokens_counts_here_too() -> None:
    def signed(age: float) -> str:
        return jwt.encode({"sub": "me", "exp": time.time() - age}, 2 * TOKEN, "HS256")

    accept = JWTs(key=2 * TOKEN, algorithms=["HS256"], audience=None, issuer=None, leeway=60)
    guard = RequestGuard(echo, authenticate=accept)
    async with aiohttp.ClientSession() as session, listening(guard) as address:
        client = Client(session, address)
        statuses = [(await client.get("/", authorization=f"Bearer {signed(age)}")).status for age in (30, 90)]
    assert statuses == [200, 401]


async def test_few_streams_have_their_tokens_checked_at_the_same_time() -> None:
    checking = most = 0

    async def look_up(token: str) -> Identity:
        nonlocal checking, most
        checking += 1
        most = max(most, checking)
        for _ in range(10):
            await asyncio.sleep(0)
        checking -= 1
        return Identity(id="me")

    guard = RequestGuard(echo, authenticate=callback(look_up))
    request = AdmittedRequest("GET", [], {b"authorization": b"Bearer a-token"})
    assert await asyncio.gather(*(guard.regrant(request) for _ in range(20))) == 20 * [Grant(Identity(id="me"))]
    assert most == MAX_CONCURRENT_RECHECKS


@pytest.mark.parametrize("option", ["hosts", "origins"])
def test_a_name_alone_is_not_taken_for_a_list_of_letters(option: str) -> None:
    with pytest.raises(UsageError, match=rf"{option} is a list of names: write \['a.example'\]"):
        RequestGuard(echo, **{option: "a.example"})  # pyright: ignore[reportArgumentType]


async def _never() -> Any:
    raise AssertionError("nothing is to be received here")
