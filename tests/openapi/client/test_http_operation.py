"""One operation's way to its API, against a real server."""

import asyncio
import time
from typing import Any

import pytest

from opwire.auth.oauth.tokens import json_fetcher
from opwire.errors import CallError, ErrorCode
from opwire.http.client import ClientOptions, HTTPClient
from opwire.model.context import Context
from opwire.openapi.client.call import HTTPOperation
from opwire.openapi.client.plan import CallPlan, SecurityRequirement, SecurityScheme
from opwire.openapi.client.responses import head_of
from opwire.openapi.client.security import APICredentials
from tests.openapi.client.echo import EchoServer, answer, json_answer, silence
from tests.openapi.client.plans import KEY, plan_of


async def opened(exchange: HTTPOperation, context: Context | None = None) -> bytes:
    response, _ = await exchange.open(exchange.request({}), context or Context())
    return await exchange.client.read(response)


def http_operation(plan: CallPlan, client: HTTPClient, given: Any = None) -> HTTPOperation:
    return HTTPOperation(lambda: plan, client, APICredentials(given, json_fetcher(client)))


async def test_a_plan_is_asked_for_once_and_not_before_it_is_needed(server: EchoServer, client: HTTPClient) -> None:
    asked: list[CallPlan] = []

    def plan() -> CallPlan:
        asked.append(plan_of(server.url))
        return asked[-1]

    lazy = HTTPOperation(plan, client, APICredentials())
    assert asked == []
    await opened(lazy)
    await opened(lazy)
    assert len(asked) == 1


async def test_credentials_go_along(server: EchoServer, client: HTTPClient) -> None:
    await opened(http_operation(plan_of(server.url, security=((KEY,),)), client, {"key": "abc"}))
    assert server.arrived[0].header("x-key") == "abc"


async def test_an_http_error_is_raised_with_what_the_api_said(server: EchoServer, client: HTTPClient) -> None:
    server.on("/", json_answer({"message": "no such pet"}, 404, {"X-Id": "7"}))
    with pytest.raises(CallError, match="HTTP 404: Not Found") as caught:
        await opened(http_operation(plan_of(server.url), client))
    assert caught.value.details["body"] == {"message": "no such pet"}
    assert caught.value.details["headers"]["x-id"] == "7"


async def test_only_the_start_of_a_long_error_is_read(server: EchoServer, client: HTTPClient) -> None:
    server.on("/", answer(500, b"x" * 5_000_000, {"Content-Type": "text/plain"}))
    with pytest.raises(CallError) as caught:
        await opened(http_operation(plan_of(server.url), client))
    assert caught.value.details["body"] == "x" * 8192 + "…"
    await server.connections(0)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_tells_which_credentials_are_missing(
    status: int, server: EchoServer, client: HTTPClient
) -> None:
    server.on("/", answer(status))
    with pytest.raises(CallError) as caught:
        await opened(http_operation(plan_of(server.url, security=((KEY,),)), client))
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    assert "key" in caught.value.details["hint"]


async def test_a_token_that_is_rejected_is_requested_again_once(server: EchoServer, client: HTTPClient) -> None:
    scheme = SecurityScheme(name="login", kind="oauth2", token_url=f"{server.url}/token")
    tokens = [json_answer({"access_token": name, "token_type": "bearer", "expires_in": 3600}) for name in "abc"]
    server.on("/token", *tokens)
    server.on("/", answer(401), json_answer("welcome"), answer(401))
    plan = plan_of(server.url, security=((SecurityRequirement(scheme),),))
    used = http_operation(plan, client, {"login": {"client_id": "me", "client_secret": "hunter2"}})
    assert await opened(used) == b'"welcome"'
    with pytest.raises(CallError, match="HTTP 401: Unauthorized"):
        await opened(used)
    sent = [each.header("authorization") for each in server.arrived if each.path == "/"]
    assert sent == ["Bearer a", "Bearer b", "Bearer b", "Bearer c"]


async def test_an_answer_has_to_come_before_the_deadline(server: EchoServer, client: HTTPClient) -> None:
    server.on("/", silence)
    slow = http_operation(plan_of(server.url), client)
    context = Context(deadline=time.monotonic() + 0.05)
    with pytest.raises(CallError) as caught:
        await slow.call({}, context)
    assert caught.value.code is ErrorCode.TIMEOUT
    assert caught.value.message.startswith(
        f"127.0.0.1:{server.port} did not respond within 0"
    )  # 0.05 s, or 0 on a busy machine
    await server.connections(0)


async def test_without_a_deadline_the_limit_of_the_client_holds(server: EchoServer) -> None:
    server.on("/", silence)
    client = HTTPClient(ClientOptions(timeout=0.05))
    slow = http_operation(plan_of(server.url), client)
    with pytest.raises(CallError, match=r"did not respond within 0\.0"):
        await slow.call({}, Context())
    await client.close()


async def test_a_deadline_that_has_passed_sends_nothing(server: EchoServer, client: HTTPClient) -> None:
    late = http_operation(plan_of(server.url), client)
    context = Context(deadline=time.monotonic() - 1)
    with pytest.raises(CallError) as caught:
        await late.call({}, context)
    assert caught.value.code is ErrorCode.TIMEOUT
    assert server.arrived == []


async def test_a_client_without_a_limit_waits(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(timeout=None))
    patient = http_operation(plan_of(server.url), client)
    async with asyncio.timeout(5):
        assert await patient.call({}, Context())
    await client.close()


async def test_headers_that_are_not_utf_8_are_read_as_latin_1(server: EchoServer, client: HTTPClient) -> None:
    head = "HTTP/1.1 200 Gut gemacht\r\nX-Latin: é\r\nContent-Length: 0\r\n".encode("latin-1")
    server.on("/", head + "X-Utf: é\r\nX-Ascii: e\r\n\r\n".encode())
    operation = http_operation(plan_of(server.url), client)
    response, _ = await operation.open(operation.request({}), Context())
    read = head_of(response)
    assert (read.status, read.reason, read.content_type) == (200, "Gut gemacht", "")
    assert [value for name, value in read.headers if name.startswith("X-")] == ["é", "é", "e"]
    response.close()
