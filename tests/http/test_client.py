"""The HTTP client, against servers that behave well and badly."""

import asyncio
import gzip
import json
import ssl
import threading
import tracemalloc
import zlib
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.http.client import ClientOptions, HTTPClient, HTTPRequest, host_of
from opwire.openapi.client import from_openapi
from tests.openapi.client.echo import (
    EchoServer,
    Exchange,
    answer,
    chunk,
    gzip_bomb,
    json_answer,
    redirect,
    silence,
    stream_head,
)
from tests.servers.certificates import self_signed
from tests.servers.leaks import Leaks

SECRET = "hunter2"


def request(url: str, method: str = "GET", body: bytes | None = None, **options: Any) -> HTTPRequest:
    return HTTPRequest(method=method, url=url, headers=options.pop("headers", []), body=body, **options)


async def fetch(client: HTTPClient, sent: HTTPRequest) -> bytes:
    return await client.read(await client.open(sent))


async def failure(call: Awaitable[object]) -> CallError:
    """The error that a call ends in, which tells no secret and hides aiohttp's own."""
    with pytest.raises(CallError) as caught:
        await call
    assert SECRET not in f"{caught.value}{caught.value.details}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def secret(server: EchoServer, path: str) -> HTTPRequest:
    url = f"{server.url}{path}?key={SECRET}"
    return request(
        url, headers=[("X-Key", SECRET)], secret_headers=frozenset({"x-key"}), secret_query=frozenset({"key"})
    )


# --- what is sent ---------------------------------------------------------------------------------------------------


async def test_a_request_arrives_unchanged(server: EchoServer, client: HTTPClient) -> None:
    headers = [("X-A", "1"), ("X-A", "2"), ("Accept", "a/b"), ("X-Uni", "é")]
    await fetch(client, request(f"{server.url}/a%2Fb/%C3%A9?q=a%20b+c&q=%2F", "PUT", b"\x00body", headers=headers))
    [arrived] = server.arrived
    assert (arrived.method, arrived.path, arrived.query) == ("PUT", "/a%2Fb/%C3%A9", "q=a%20b+c&q=%2F")
    assert arrived.body == b"\x00body"
    assert (arrived.header("x-a"), arrived.header("accept")) == ("1, 2", "a/b")
    assert (arrived.header("x-uni") or "").encode("latin-1").decode() == "é"
    assert arrived.header("content-length") == "5"
    assert arrived.header("content-type") is None
    assert arrived.header("user-agent") == "opwire"


@pytest.mark.parametrize("method", ["POST", "PATCH", "QUERY"])
async def test_a_request_without_a_body_says_so(method: str, server: EchoServer, client: HTTPClient) -> None:
    await fetch(client, request(server.url, method))
    assert server.arrived[0].header("content-length") == "0"
    assert server.arrived[0].method == method


async def test_a_large_body_arrives_whole(server: EchoServer, client: HTTPClient) -> None:
    body = bytes(range(256)) * 12_000
    echo = json.loads(await fetch(client, request(server.url, "POST", body)))
    assert b64decode(echo["body"]) == body
    assert server.arrived[0].header("content-length") == str(len(body))


async def test_headers_of_the_user_go_with_every_request_that_does_not_set_them(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(headers={"X-Team": "a", "Accept": "x/y"}))
    await fetch(client, request(server.url, headers=[("accept", "a/b")]))
    assert server.arrived[0].header("x-team") == "a"
    assert server.arrived[0].header("accept") == "a/b"
    await client.close()


async def test_a_bare_request_has_its_own_headers_only_and_follows_no_redirect(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(headers={"X-Team": "a"}))
    server.on("/token", redirect(307, "/elsewhere"))
    response = await client.open(request(f"{server.url}/token", "POST", b"x"), bare=True)
    assert response.status == 307
    assert [each.header("x-team") for each in server.arrived] == [None]
    response.close()
    await client.close()


async def test_cookies_are_not_kept(server: EchoServer, client: HTTPClient) -> None:
    server.on("/login", answer(200, b"", {"Set-Cookie": "session=1; Path=/"}))
    await fetch(client, request(f"{server.url}/login"))
    await fetch(client, request(f"{server.url}/next"))
    assert server.arrived[1].header("cookie") is None


async def test_connections_are_used_again(server: EchoServer, client: HTTPClient) -> None:
    """Connections are reused and limited."""
    for _ in range(5):
        await fetch(client, request(server.url))
    assert server.accepted == 1


async def test_no_more_connections_than_allowed(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(max_connections=2))
    await asyncio.gather(*(fetch(client, request(server.url)) for _ in range(20)))
    assert server.accepted <= 2
    assert len(server.arrived) == 20
    await client.close()


async def test_a_request_that_can_be_repeated_survives_a_connection_that_was_closed(
    server: EchoServer, client: HTTPClient
) -> None:
    async def close(exchange: Exchange) -> None:
        exchange.close()

    await fetch(client, request(server.url))
    server.on("/gone", close, json_answer("back"))
    assert await fetch(client, request(f"{server.url}/gone")) == b'"back"'
    server.on("/post", close, json_answer("twice"))
    error = await failure(fetch(client, request(f"{server.url}/post", "POST", b"x")))
    assert error.code is ErrorCode.UNAVAILABLE


# --- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_an_answer_is_decompressed(
    encoding: str, compress: Callable[[bytes], bytes], server: EchoServer, client: HTTPClient
) -> None:
    server.on("/", answer(200, compress(b"text" * 1000), {"Content-Encoding": encoding}))
    assert await fetch(client, request(f"{server.url}/")) == b"text" * 1000


async def test_an_answer_in_chunks_is_read_whole(server: EchoServer, client: HTTPClient) -> None:
    pieces = b"".join(chunk(b"%d," % number) for number in range(1000)) + chunk(b"")
    server.on("/", stream_head("text/plain", **{"Transfer-Encoding": "chunked"}) + pieces)
    assert await fetch(client, request(f"{server.url}/")) == b"".join(b"%d," % number for number in range(1000))


async def test_a_large_answer_is_read_whole(server: EchoServer, client: HTTPClient) -> None:
    body = bytes(range(256)) * 20_000
    server.on("/", answer(200, body))
    assert await fetch(client, request(f"{server.url}/")) == body


@pytest.mark.parametrize("size", [1001, 100_000, 3_000_000])
async def test_an_answer_that_is_too_large_stops_at_the_limit(size: int, server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(max_response=1000))
    server.on("/", answer(200, bytes(size)))
    error = await failure(fetch(client, secret(server, "/")))
    assert error.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert "1,000 bytes" in error.message
    assert "max_response" in error.message
    if size > 1_000_000:  # one that has arrived does not close the connection
        await server.connections(0)
    await client.close()


async def test_an_answer_that_just_fits_is_read(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(max_response=1000))
    server.on("/", answer(200, bytes(1000)))
    assert len(await fetch(client, request(f"{server.url}/"))) == 1000
    await client.close()


async def test_a_gzip_bomb_stops_at_the_limit_and_in_little_memory(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(max_response=2 * 1024 * 1024))
    server.on("/", gzip_bomb(megabytes=100))
    tracemalloc.start()
    error = await failure(fetch(client, request(f"{server.url}/")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert peak < 10 * 1024 * 1024
    await client.close()


async def test_the_start_of_a_body_is_read_and_the_rest_is_not(server: EchoServer, client: HTTPClient) -> None:
    server.on("/long", answer(500, b"x" * 3_000_000))
    server.on("/short", answer(500, b"x" * 10))
    response = await client.open(request(f"{server.url}/long"))
    assert await client.read_start(response, 100) == (b"x" * 100, False)
    await server.connections(0)
    response = await client.open(request(f"{server.url}/short"))
    assert await client.read_start(response, 100) == (b"x" * 10, True)


async def test_the_start_of_a_body_that_breaks_off_is_what_came(server: EchoServer, client: HTTPClient) -> None:
    server.on("/", _closing(b"HTTP/1.1 500 No\r\nContent-Length: 50\r\n\r\nabc"))
    response = await client.open(request(f"{server.url}/"))
    body, is_whole = await client.read_start(response, 100)
    assert b"abc".startswith(body)
    assert not is_whole


# --- failures -------------------------------------------------------------------------------------------------------


def _closing(data: bytes) -> Callable[[Exchange], Awaitable[None]]:
    async def script(exchange: Exchange) -> None:
        await exchange.send(data)
        exchange.close()

    return script


OK = b"HTTP/1.1 200 OK\r\n"
BROKEN: dict[str, tuple[bytes, ErrorCode]] = {
    "nothing": (b"", ErrorCode.UNAVAILABLE),
    "half a head": (OK + b"X-A: 1\r\n", ErrorCode.UNAVAILABLE),
    "too short": (OK + b"Content-Length: 50\r\n\r\nabc", ErrorCode.UNAVAILABLE),
    "half a chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc", ErrorCode.UNAVAILABLE),
    "no HTTP": (b"hello there\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "no chunk size": (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", ErrorCode.PROTOCOL_ERROR),
    "a huge header": (OK + b"X: " + b"a" * 100_000 + b"\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "many headers": (OK + b"X: a\r\n" * 1000 + b"\r\n", ErrorCode.PROTOCOL_ERROR),
    "no gzip": (OK + b"Content-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc", ErrorCode.PROTOCOL_ERROR),
    "two lengths": (OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_answer_is_a_call_error(broken: str, server: EchoServer, client: HTTPClient) -> None:
    """Broken HTTP is a CallError without secrets."""
    data, code = BROKEN[broken]
    server.on("/", _closing(data))
    error = await failure(fetch(client, secret(server, "/")))
    assert error.code is code
    assert f"127.0.0.1:{server.port}" in error.message


async def test_a_connection_that_is_reset_is_unavailable(server: EchoServer, client: HTTPClient) -> None:
    async def reset(exchange: Exchange) -> None:
        exchange.reset()

    server.on("/", reset)
    error = await failure(fetch(client, secret(server, "/")))
    assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1/", "127.0.0.1:1 cannot be reached: Connection refused; check the port"),
        (
            "http://no-such-host.invalid/",
            "no-such-host.invalid cannot be reached: the host name cannot be resolved; check its spelling",
        ),
    ],
)
async def test_a_server_that_cannot_be_reached_is_unavailable(url: str, says: str, client: HTTPClient) -> None:
    """Refused, unknown and untrusted hosts are UNAVAILABLE."""
    error = await failure(client.open(request(f"{url}?key={SECRET}")))
    assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)
    assert error.message.startswith(says)


@pytest.mark.parametrize(
    "url", ["ftp://a.example/", "http:///x", "http://a..b/", "http://a.example:99999/", "http://[::1/", "nonsense"]
)
async def test_an_invalid_address_is_an_error(url: str, client: HTTPClient) -> None:
    error = await failure(client.open(request(f"{url}?key={SECRET}")))
    assert error.code is ErrorCode.VALIDATION_ERROR


async def test_a_header_that_would_be_two_is_not_sent(server: EchoServer, client: HTTPClient) -> None:
    error = await failure(client.open(request(server.url, headers=[("X-A", f"{SECRET}\r\nX-B: 1")])))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert server.arrived == []


async def test_a_certificate_of_an_unknown_authority_is_not_accepted(tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(self_signed(tmp_path))
    async with EchoServer(tls=tls) as server:
        strict = HTTPClient()
        error = await failure(strict.open(request(server.url)))
        assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, False)
        assert "certificate" in error.message
        trusting = HTTPClient(ClientOptions(ssl=ssl.create_default_context(cafile=str(tmp_path / "localhost.pem"))))
        assert await fetch(trusting, request(server.url))
        await strict.close()
        await trusting.close()


async def test_tls_with_a_server_that_speaks_none_is_unavailable(client: HTTPClient) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(400))
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        error = await failure(client.open(request(f"https://127.0.0.1:{port}/")))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "TLS" in error.message


async def test_a_server_that_accepts_no_connection_in_time_is_unavailable(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(connect_timeout=0.05))
    error = await failure(client.open(request(f"{server.url.replace('http', 'https')}/?key={SECRET}")))
    assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)
    assert "in time" in error.message
    await client.close()


# --- redirects ------------------------------------------------------------------------------------------------------


async def test_credentials_stay_with_the_server_that_they_are_for(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(headers={"X-Team": SECRET}))
    async with EchoServer() as other:
        server.on("/away", redirect(307, f"{other.url}/there"))
        server.on("/within", redirect(307, "/here"))
        await fetch(client, secret(server, "/within"))
        assert server.arrived[-1].header("x-key") == SECRET
        assert server.arrived[-1].header("x-team") == SECRET
        await fetch(client, secret(server, "/away"))
        [arrived] = other.arrived
        assert SECRET not in str(arrived)
    await client.close()


async def test_a_body_follows_a_redirect_that_keeps_it(server: EchoServer, client: HTTPClient) -> None:
    server.on("/a", redirect(308, "/b"))
    server.on("/b", redirect(303, "/c"))
    await fetch(client, request(f"{server.url}/a", "POST", b"body"))
    assert [(each.method, each.path, each.body) for each in server.arrived] == [
        ("POST", "/a", b"body"),
        ("POST", "/b", b"body"),
        ("GET", "/c", b""),
    ]


async def test_redirects_end(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(max_redirects=3))
    server.on("/", redirect(302, "/"))
    error = await failure(client.open(secret(server, "/")))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "3 redirects" in error.message
    assert len(server.arrived) == 4
    await client.close()


async def test_a_redirect_is_an_answer_where_none_are_followed_or_it_leads_nowhere(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(follow_redirects=False))
    server.on("/", redirect(302, "/x"))
    server.on("/nowhere", answer(302))
    assert (await client.open(request(f"{server.url}/"))).status == 302
    following = HTTPClient()
    assert (await following.open(request(f"{server.url}/nowhere"))).status == 302
    await client.close()
    await following.close()


# --- closing --------------------------------------------------------------------------------------------------------


async def test_closing_ends_the_calls_that_are_under_way(server: EchoServer) -> None:
    async with Leaks():
        client = HTTPClient(ClientOptions(max_connections=1))
        server.on("/", silence)
        reading = asyncio.create_task(failure(fetch(client, request(f"{server.url}/"))))
        await server.requests(1)
        waiting = asyncio.create_task(failure(fetch(client, request(f"{server.url}/"))))
        await asyncio.sleep(0)
        await client.close()
        for error in (await reading, await waiting, await failure(client.open(request(server.url)))):
            assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, False)
            assert "closed" in error.message


@pytest.mark.parametrize("framing", ["Content-Length: 50", "Transfer-Encoding: chunked", "Connection: close"])
async def test_closing_ends_a_body_that_is_being_read(framing: str, server: EchoServer) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.send(OK + framing.encode() + b"\r\n\r\n3\r\n")
        await exchange.left()

    server.on("/", half)
    client = HTTPClient()
    response = await client.open(request(f"{server.url}/"))
    reading = asyncio.create_task(failure(client.read(response)))
    await asyncio.sleep(0.01)  # it waits for more in the meantime
    await client.close()
    async with asyncio.timeout(5):
        assert "closed" in (await reading).message


@pytest.mark.parametrize("path", ["/silent", "/half"])
async def test_a_caller_that_gives_up_closes_its_connection(path: str, server: EchoServer, client: HTTPClient) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.send(OK + b"Content-Length: 50\r\n\r\nabc")
        await exchange.left()

    server.on("/silent", silence)
    server.on("/half", half)
    task = asyncio.create_task(fetch(client, request(f"{server.url}{path}")))
    await server.requests(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.connections(0)


async def test_closing_twice_or_before_the_first_request_does_no_harm() -> None:
    client = HTTPClient()
    await client.close()
    await client.close()


def test_a_client_can_be_used_in_one_event_loop_after_another() -> None:
    client = HTTPClient()

    async def once(last: bool) -> bytes:
        async with EchoServer() as server:
            try:
                return await fetch(client, request(f"{server.url}/here"))
            finally:
                if last:
                    await client.close()

    for last in (False, True):
        assert b'"/here"' in asyncio.run(once(last))


async def test_a_client_can_be_used_in_the_event_loops_of_several_threads() -> None:
    client, begun = HTTPClient(), threading.Semaphore(0)

    async def fetch_some(url: str) -> list[bytes]:
        return [await fetch(client, request(f"{url}/{number}")) for number in range(20)]

    async def wait_for_nothing(url: str) -> ErrorCode:
        response = await client.open(request(f"{url}/silent"))
        begun.release()
        return (await failure(client.read(response))).code

    async def headers_and_silence(exchange: Exchange) -> None:
        await exchange.send(stream_head("text/plain"))
        await exchange.left()

    async with EchoServer() as server, asyncio.timeout(60):
        found = await asyncio.gather(*(asyncio.to_thread(asyncio.run, fetch_some(server.url)) for _ in range(4)))
        for bodies in found:
            assert all(f'"/{number}"'.encode() in body for number, body in enumerate(bodies))
        server.on("/silent", headers_and_silence)
        reading = asyncio.create_task(asyncio.to_thread(asyncio.run, wait_for_nothing(server.url)))
        assert await asyncio.to_thread(begun.acquire, timeout=20)
        await client.close()  # in this loop, which has no session
        assert await reading is ErrorCode.UNAVAILABLE


def test_options_show_no_secrets() -> None:
    options = ClientOptions(headers={"Authorization": SECRET}, proxy=f"http://u:{SECRET}@proxy.example")
    assert SECRET not in repr(options)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://a.example/x", "a.example"),
        ("http://[::1]:80/", "[::1]"),
        ("http://[", "the server"),
        ("", "the server"),
    ],
)
def test_an_address_is_shown_as_its_host(url: str, host: str) -> None:
    assert host_of(url) == host


async def test_requests_go_through_a_proxy(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(proxy=server.url))
    await fetch(client, request("http://api.example/pets?a=1"))
    assert server.arrived[0].path == "http://api.example/pets"
    await client.close()


async def test_a_proxy_that_is_not_there_is_said_to_be_the_cause() -> None:
    client = HTTPClient(ClientOptions(proxy=f"http://user:{SECRET}@127.0.0.1:1"))
    error = await failure(client.open(request("http://api.example/")))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "api.example cannot be reached through the proxy" in error.message
    await client.close()


async def test_the_environment_names_proxies_only_where_it_is_trusted(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Proxies are used as given, the environment's only if trusted, never ~/.netrc."""
    (tmp_path / "netrc").write_text(f"machine api.example login me password {SECRET}")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    trusting, wary = HTTPClient(ClientOptions(trust_env=True)), HTTPClient()
    await fetch(trusting, request("http://api.example/pets"))
    await fetch(trusting, request(f"{server.url}/direct"))
    await fetch(wary, request(f"{server.url}/direct"))
    assert [each.path for each in server.arrived] == ["http://api.example/pets", "/direct", "/direct"]
    assert server.arrived[0].header("authorization") is None
    await trusting.close()
    await wary.close()


@pytest.mark.parametrize("option", ["timeout", "connect_timeout", "max_response", "max_item", "max_redirects"])
@pytest.mark.parametrize("wrong", [-1, float("nan"), "3", True])
def test_options_that_mean_nothing_are_refused(option: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"{option} must be a"):
        from_openapi({}, **{option: wrong})


async def test_a_response_that_was_not_requested_ends_its_connection_and_is_not_that_of_the_next_request(
    server: EchoServer, client: HTTPClient
) -> None:
    """Data that a server sends after its response end the connection, and are no other response."""
    is_read = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer(200, b"first"))
        await is_read.wait()
        await exchange.send(answer(200, b"not requested"))
        await exchange.left()

    server.on("/", script, answer(200, b"second"))
    async with asyncio.timeout(5):
        assert await fetch(client, request(f"{server.url}/")) == b"first"
        is_read.set()
        await server.connections(0)
        assert await fetch(client, request(f"{server.url}/")) == b"second"
    assert server.accepted == 2


async def test_what_precedes_a_response_and_a_body_in_pieces_is_part_of_it(
    server: EchoServer, client: HTTPClient
) -> None:
    async def script(exchange: Exchange) -> None:
        for piece in (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"o", b"k"):
            await exchange.send(piece)
            await asyncio.sleep(0.01)

    server.on("/", script)
    async with asyncio.timeout(5):
        assert [await fetch(client, request(f"{server.url}/")) for _ in range(2)] == [b"ok", b"ok"]
    assert server.accepted == 1


async def test_headers_are_bounded_all_together(server: EchoServer, client: HTTPClient) -> None:
    lines = "".join(f"X-{number}: {'x' * 60_000}\r\n" for number in range(5))
    server.on("/large", f"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{lines}\r\n".encode())
    with pytest.raises(CallError, match="262,144 bytes of headers") as caught:
        await client.open(request(f"{server.url}/large"))
    assert caught.value.code is ErrorCode.PROTOCOL_ERROR
    await server.connections(0)


async def test_headers_that_arrive_in_pieces_are_bounded_before_they_end(
    server: EchoServer, client: HTTPClient
) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 103 Early Hints\r\n")
        for _ in range(100):
            await exchange.send(b"X: " + b"x" * 10_000 + b"\r\n")

    server.on("/endless", endless)
    lines = "".join(f"X-{number}: {'x' * 50_000}\r\n" for number in range(5))
    server.on("/large", f"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n{lines}\r\n{'x' * 60_000}".encode())
    async with asyncio.timeout(5):
        failed = await failure(client.open(request(f"{server.url}/endless")))
        await server.connections(0)
        assert await fetch(client, request(f"{server.url}/large")) == b"x" * 60_000
    assert (failed.code, "262,144 bytes of headers" in failed.message) == (ErrorCode.PROTOCOL_ERROR, True)


async def test_interim_responses_before_a_response_are_bounded_as_its_headers_are(
    server: EchoServer, client: HTTPClient
) -> None:
    interim = b"HTTP/1.1 100 \r\n\r\n"
    server.on("/some", interim * 1_000 + answer(200, b"x" * 100_000))
    server.on("/many", interim * 50_000 + answer(200, b"never read"))
    async with asyncio.timeout(5):
        for _ in range(2):  # they are counted for each request
            assert await fetch(client, request(f"{server.url}/some")) == b"x" * 100_000
        failed = await failure(client.open(request(f"{server.url}/many")))
        await server.connections(0)
    assert (failed.code, "262,144 bytes of headers" in failed.message) == (ErrorCode.PROTOCOL_ERROR, True)
    assert server.accepted == 1
