"""Handlers of HTTP operations, called through a registry as anyone would."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from opwire import OperationRegistry
from opwire.errors import CallError, ErrorCode
from opwire.http.client import ClientOptions, HTTPClient
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.operation import OperationSpec, OperationType
from opwire.openapi.client.call import HTTPOperation
from opwire.openapi.client.plan import CallPlan, RequestParameter
from opwire.openapi.client.security import APICredentials
from opwire.schema import Schema
from tests.openapi.client.echo import (
    EchoServer,
    Exchange,
    answer,
    events,
    json_answer,
    silence,
    stream_head,
)
from tests.openapi.client.plans import json_responses, plan_of, stream_plan
from tests.servers.leaks import Leaks

PET = Schema({"type": "object", "properties": {"name": {"type": "string"}, "age": {"default": 0}}})


def registry_of(plan: CallPlan, client: HTTPClient, *, reconnect: bool = False) -> OperationRegistry:
    """A registry with one operation, `api.call`."""
    kind = OperationType.QUERY if plan.stream is None else OperationType.SUBSCRIPTION
    spec = OperationSpec(namespace="api", name="call", type=kind)
    credentials = APICredentials()
    registry = OperationRegistry()
    if plan.stream is None:
        registry.register(spec, HTTPOperation(lambda: plan, client, credentials).call)
    else:
        registry.register(spec, HTTPOperation(lambda: plan, client, credentials, reconnect=reconnect).subscribe)
    return registry


async def called(plan: CallPlan, client: HTTPClient, input: Any = None) -> ResponseEnvelope[Any]:
    return await registry_of(plan, client).execute("api.call", input or {})


async def test_a_call_gives_an_envelope_of_what_the_api_answered(server: EchoServer, client: HTTPClient) -> None:
    limit = RequestParameter(name="limit", location="query", input_path=("limit",), style="form", explode=True)
    plan = plan_of(server.url, "/pets", parameters=(limit,), accept="application/json")
    envelope = await called(plan, client, {"limit": 5})
    assert envelope.data["method"] == "GET"
    assert (envelope.data["path"], envelope.data["query"]) == ("/pets", "limit=5")
    assert (envelope.meta.source, envelope.meta.status_code) == ("http", 200)  # pyright: ignore[reportAttributeAccessIssue]


async def test_data_is_fitted_to_the_schema_of_the_actual_status(server: EchoServer, client: HTTPClient) -> None:
    """The schema of an answer is that of its actual status and content type."""
    plan = plan_of(server.url, responses=json_responses({"200": PET, "201": Schema({"type": "object"})}))
    server.on("/", json_answer({"name": "Rex"}), json_answer({"name": "Rex"}, 201))
    assert (await called(plan, client)).data == {"name": "Rex", "age": 0}
    assert (await called(plan, client)).data == {"name": "Rex"}


@pytest.mark.parametrize("status", [401, 429])
async def test_what_an_api_thinks_of_us_is_not_what_we_think_of_our_caller(
    status: int, server: EchoServer, client: HTTPClient
) -> None:
    server.on("/", answer(status))
    with pytest.raises(CallError, match=f"HTTP {status}") as caught:
        await called(plan_of(server.url), client)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


async def test_a_slow_body_does_not_outlast_the_deadline(server: EchoServer, client: HTTPClient) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc")
        await exchange.left()

    server.on("/", half)
    registry = registry_of(plan_of(server.url), client)
    with pytest.raises(CallError) as caught:
        await registry.execute("api.call", {}, Context(deadline=time.monotonic() + 0.05))
    assert caught.value.code is ErrorCode.TIMEOUT
    await server.connections(0)


async def test_a_call_that_is_cancelled_leaves_nothing_behind(server: EchoServer) -> None:
    server.on("/", silence)
    async with Leaks():
        client = HTTPClient()
        task = asyncio.create_task(called(plan_of(server.url), client))
        await server.requests(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.connections(0)
        await client.close()


async def test_many_calls_at_once_get_their_own_answers(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(max_connections=8))
    number = RequestParameter(
        name="n", location="path", input_path=("n",), style="simple", explode=False, required=True
    )
    registry = registry_of(plan_of(server.url, "/{n}", parameters=(number,)), client)
    envelopes = await asyncio.gather(*(registry.execute("api.call", {"n": n}) for n in range(100)))
    assert [envelope.data["path"] for envelope in envelopes] == [f"/{n}" for n in range(100)]
    await client.close()


async def test_a_subscription_gives_an_envelope_an_event(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", events(b'data: {"name": "Rex"}\n\n', b'data: {"name": "Tom"}\n\n'))
    registry = registry_of(stream_plan(server.url, schema=PET), client)
    envelopes = [envelope async for envelope in registry.subscribe("api.call", {})]
    assert [envelope.data for envelope in envelopes] == [{"name": "Rex", "age": 0}, {"name": "Tom", "age": 0}]


async def test_a_consumer_that_leaves_closes_the_connection(server: EchoServer) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.send(stream_head() + b"data: 1\n\ndata: 2\n\n")
        await exchange.left()

    server.on("/stream", endless)
    async with Leaks():
        client = HTTPClient()
        stream: AsyncGenerator[Any] = registry_of(stream_plan(server.url), client).subscribe("api.call", {})
        async with aclosing(stream):
            assert (await anext(stream)).data == 1
        await server.connections(0)
        await client.close()


async def test_a_subscription_comes_back_where_that_was_asked_for(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", events(b"retry: 0\nid: 1\ndata: 1\n\n", ends=False), events(b"data: 2\n\ndata: [DONE]\n\n"))
    registry = registry_of(stream_plan(server.url), client, reconnect=True)
    assert [envelope.data async for envelope in registry.subscribe("api.call", {})] == [1, 2]
