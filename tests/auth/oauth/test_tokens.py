"""Tokens by the client credentials grant."""

import asyncio
from base64 import b64decode
from typing import Any
from urllib.parse import parse_qs

import pytest

from opwire.auth.oauth.tokens import OAuthClient, TokenCache, json_fetcher, token_request
from opwire.errors import CallError, ErrorCode
from opwire.http.client import ClientOptions, HTTPClient, HTTPRequest
from tests.openapi.client.echo import EchoServer, answer, json_answer, redirect, silence

CLIENT = OAuthClient(client_id="shop", client_secret="s3cret")
URL = "https://login.example/token"


class Endpoint:
    """Gives the tokens t1, t2, …, and holds each back until it is released, if requested."""

    def __init__(self, **fields: Any) -> None:
        self.fields = {"token_type": "Bearer", "expires_in": 3600, **fields}
        self.asked: list[HTTPRequest] = []
        self.go = asyncio.Event()
        self.go.set()
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()
        self.now = 1000.0

    async def fetch(self, request: HTTPRequest) -> Any:
        self.asked.append(request)
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return {"access_token": f"t{len(self.asked)}", **self.fields}

    def cache(self) -> TokenCache:
        return TokenCache(self.fetch, clock=lambda: self.now)


async def test_a_token_is_asked_for_once_and_kept() -> None:
    endpoint = Endpoint()
    cache = endpoint.cache()
    assert [await cache.get(CLIENT, URL, ()) for _ in range(3)] == ["t1"] * 3


async def test_each_endpoint_client_and_set_of_scopes_has_its_own_token() -> None:
    cache = Endpoint().cache()
    other = OAuthClient(client_id="other", client_secret="s3cret")
    wide = OAuthClient(client_id="shop", client_secret="s3cret", extra={"audience": "x"})
    asked = [(CLIENT, URL, ()), (CLIENT, URL, ("read",)), (CLIENT, URL + "2", ()), (other, URL, ()), (wide, URL, ())]
    tokens = [await cache.get(*each) for each in asked]
    assert tokens == ["t1", "t2", "t3", "t4", "t5"]
    assert [await cache.get(*each) for each in asked] == tokens


@pytest.mark.parametrize(
    ("life", "kept"), [(3600, 3540), ("3600", 3540), (100, 90), (0, 0), (None, 10**9), ("x", 10**9)]
)
async def test_a_token_is_renewed_shortly_before_it_expires(life: Any, kept: float) -> None:
    endpoint = Endpoint(expires_in=life)
    cache = endpoint.cache()
    await cache.get(CLIENT, URL, ())
    endpoint.now += kept - 0.001
    if kept:
        assert await cache.get(CLIENT, URL, ()) == "t1"
    endpoint.now += 0.002
    assert await cache.get(CLIENT, URL, ()) == ("t2" if kept < 10**9 else "t1")


async def test_calls_at_once_share_one_question() -> None:
    endpoint = Endpoint()
    cache = endpoint.cache()
    endpoint.go.clear()
    calls = [asyncio.ensure_future(cache.get(CLIENT, URL, ())) for _ in range(20)]
    await asyncio.wait_for(endpoint.started.wait(), 5)
    calls[0].cancel()  # one that gives up takes nothing from the others
    await asyncio.wait(calls[:1])
    endpoint.go.set()
    assert await asyncio.wait_for(asyncio.gather(*calls[1:]), 5) == ["t1"] * 19
    assert calls[0].cancelled()
    assert len(endpoint.asked) == 1


async def test_a_question_ends_when_its_caller_stops_waiting() -> None:
    endpoint = Endpoint()
    cache = endpoint.cache()
    endpoint.go.clear()
    calls = [asyncio.ensure_future(cache.get(CLIENT, URL, ())) for _ in range(2)]
    await asyncio.wait_for(endpoint.started.wait(), 5)
    for call in calls:
        call.cancel()
    await asyncio.wait_for(endpoint.stopped.wait(), 5)
    endpoint.go.set()
    assert await cache.get(CLIENT, URL, ()) == "t2"  # and is requested again


async def test_closing_ends_questions_with_an_error_for_their_callers() -> None:
    endpoint = Endpoint()
    cache = endpoint.cache()
    endpoint.go.clear()
    call = asyncio.ensure_future(cache.get(CLIENT, URL, ()))
    await asyncio.wait_for(endpoint.started.wait(), 5)
    await cache.close()
    with pytest.raises(CallError, match="closed during a token request") as caught:
        await asyncio.wait_for(call, 5)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert endpoint.stopped.is_set()


def test_calls_of_two_event_loops_do_not_wait_for_each_other() -> None:
    endpoint = Endpoint()
    cache = endpoint.cache()
    endpoint.go.clear()
    loop = asyncio.new_event_loop()
    call = loop.create_task(cache.get(CLIENT, URL, ()))
    loop.run_until_complete(asyncio.wait_for(endpoint.started.wait(), 5))
    endpoint.go.set()
    assert asyncio.run(cache.get(CLIENT, URL, ())) == "t2"
    assert loop.run_until_complete(call) == "t2"
    loop.close()


async def test_a_token_that_was_refused_is_requested_again_once() -> None:
    cache = Endpoint().cache()
    token = await cache.get(CLIENT, URL, ())
    cache.forget(token)
    assert await cache.get(CLIENT, URL, ()) == "t2"
    cache.forget(token)  # by a call that was slower
    assert await cache.get(CLIENT, URL, ()) == "t2"


async def test_tokens_of_many_clients_do_not_pile_up() -> None:
    cache = Endpoint().cache()
    for number in range(1100):
        await cache.get(OAuthClient(client_id=str(number), client_secret=""), URL, ())
    for number, token in ((1099, "t1100"), (100, "t101"), (99, "t1101")):  # the last 1,000 are kept
        assert await cache.get(OAuthClient(client_id=str(number), client_secret=""), URL, ()) == token


@pytest.mark.parametrize(
    "said",
    [
        *(None, [], {}, {"access_token": ""}, {"access_token": 7}, {"access_token": "x", "token_type": "mac"}),
        *({"access_token": "a\r\nX-Evil: 1"}, {"access_token": "a b"}, {"access_token": "x" * 70_000}),
    ],
)
async def test_an_answer_without_a_bearer_token_is_an_error(said: Any) -> None:
    async def fetch(_: HTTPRequest) -> Any:
        return said

    with pytest.raises(CallError, match="the token endpoint") as caught:
        await TokenCache(fetch).get(CLIENT, URL, ())
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


# --- the request ------------------------------------------------------------------------------------------------------


def test_the_secret_goes_into_the_authorization_or_into_the_form() -> None:
    client = OAuthClient(client_id="a:b", client_secret="c d", extra={"audience": "x y"})
    request = token_request(client, URL, {"grant_type": "client_credentials", "scope": "read write"})
    assert (request.method, request.url, request.secret_headers) == ("POST", URL, {"authorization"})
    assert b64decode(dict(request.headers)["Authorization"].removeprefix("Basic ")) == b"a%3Ab:c%20d"
    form = {"grant_type": ["client_credentials"], "scope": ["read write"], "audience": ["x y"]}
    assert parse_qs((request.body or b"").decode()) == form
    in_body = OAuthClient(client_id="a:b", client_secret="c d", auth="body")
    request = token_request(in_body, URL, {"grant_type": "client_credentials"})
    assert "Authorization" not in dict(request.headers)
    assert parse_qs((request.body or b"").decode()) == {
        "grant_type": ["client_credentials"],
        "client_id": ["a:b"],
        "client_secret": ["c d"],
    }


def test_no_repr_shows_a_secret() -> None:
    assert "s3cret" not in f"{CLIENT!r} {CLIENT} {token_request(CLIENT, URL, {})!r}"


async def test_a_real_endpoint_is_asked_and_its_refusal_told_without_the_secret() -> None:
    client = HTTPClient()
    cache = TokenCache(json_fetcher(client))
    async with EchoServer() as server:
        server.on("/token", json_answer({"access_token": "abc", "token_type": "bearer", "expires_in": 60}))
        server.on("/refused", json_answer({"error": "invalid_client", "secret": "s3cret"}, 401))
        assert await cache.get(CLIENT, f"{server.url}/token", ("read",)) == "abc"
        assert server.arrived[0].body == b"grant_type=client_credentials&scope=read"
        with pytest.raises(CallError, match="the token request failed: HTTP 401") as caught:
            await cache.get(CLIENT, f"{server.url}/refused", ())
        await client.close()
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    assert "s3cret" not in f"{caught.value} {caught.value.details}"


@pytest.mark.parametrize("life", [10**400, float("inf"), "9" * 50, "nan", [1], {}])
async def test_a_life_of_any_size_is_survived(life: Any) -> None:
    endpoint = Endpoint(expires_in=life)
    cache = endpoint.cache()
    assert [await cache.get(CLIENT, URL, ()) for _ in range(2)] == ["t1", "t1"]


# --- requests ---------------------------------------------------------------------------------------------------------


def secret_request(server: EchoServer) -> HTTPRequest:
    return HTTPRequest(method="POST", url=f"{server.url}/token", headers=[], body=b"client_secret=hunter2")


async def test_a_token_is_fetched_with_headers_of_its_own() -> None:
    client = HTTPClient(ClientOptions(headers={"X-Team": "a"}))
    async with EchoServer() as server:
        server.on("/token", json_answer({"access_token": "t"}))
        assert await json_fetcher(client)(secret_request(server)) == {"access_token": "t"}
        assert server.arrived[0].header("x-team") is None
        assert server.arrived[0].body == b"client_secret=hunter2"
        await client.close()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (json_answer({"error": "invalid_client", "error_description": "hunter2"}, 401), ErrorCode.EXECUTION_ERROR),
        (json_answer({"error": "hunter2 is wrong"}, 401), ErrorCode.EXECUTION_ERROR),
        (redirect(307, "http://127.0.0.1:1/"), ErrorCode.EXECUTION_ERROR),
        (answer(200, b"<html>", {"Content-Type": "text/html"}), ErrorCode.PROTOCOL_ERROR),
        (answer(200, b"[" * 100_000), ErrorCode.PROTOCOL_ERROR),
        (json_answer({"access_token": "x" * 2_000_000}), ErrorCode.PROTOCOL_ERROR),
    ],
)
async def test_what_is_not_a_token_is_an_error_that_names_the_host_and_follows_nothing(
    said: bytes, code: ErrorCode
) -> None:
    """Requests to authorization servers follow no redirect, end in time, and read 1 MiB at most."""
    client = HTTPClient()
    async with EchoServer() as server:
        server.on("/token", said)
        with pytest.raises(CallError) as caught:
            await json_fetcher(client)(secret_request(server))
        await client.close()
        assert len(server.arrived) == 1
    assert caught.value.code is code
    told = f"{caught.value.message} {caught.value.details}"
    assert f"127.0.0.1:{server.port}" in told
    assert "hunter2" not in told


async def test_a_token_endpoint_that_is_silent_is_given_up() -> None:
    client = HTTPClient(ClientOptions(timeout=0.05))
    async with EchoServer() as server:
        server.on("/token", silence)
        with pytest.raises(CallError, match=r"did not respond within 0\.0") as caught:
            await json_fetcher(client)(secret_request(server))
        assert caught.value.code is ErrorCode.TIMEOUT
        await client.close()
