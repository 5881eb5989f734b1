"""Subscriptions to streams of a real server: items, ends, losses, and coming back."""

import asyncio
import gzip
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, is_resume_error
from opwire.http.client import ClientOptions, HTTPClient
from opwire.model.context import Context
from opwire.openapi.client.call import MAX_ATTEMPTS, HTTPOperation, StreamSubscription
from opwire.openapi.client.plan import CallPlan
from opwire.openapi.client.security import APICredentials
from opwire.schema import Schema
from tests.openapi.client import echo
from tests.openapi.client.echo import EchoServer, answer, chunk, events, json_answer, silence, stream_head
from tests.openapi.client.plans import stream_plan
from tests.turns import counted_turns

FAST = b"retry: 0\n\n"  # so that tests need not wait


def subscribed(
    plan: CallPlan, client: HTTPClient, *, reconnect: bool = False, context: Context | None = None
) -> StreamSubscription:
    return StreamSubscription(
        HTTPOperation(lambda: plan, client, APICredentials()), {}, context or Context(), reconnect=reconnect
    )


async def all_items(subscription: StreamSubscription) -> list[Any]:
    data: list[Any] = []
    try:
        async with asyncio.timeout(5):
            while (items := await subscription.read()) is not None:
                assert items
                data += [item.value.data for item in items]
    finally:
        subscription.close()
    return data


async def failure(call: Awaitable[object]) -> CallError:
    with pytest.raises(CallError) as caught:
        await call
    return caught.value


def body(content_type: str, *pieces: bytes) -> bytes:
    head = stream_head(content_type, **{"Transfer-Encoding": "chunked"})
    return head + b"".join(map(chunk, pieces)) + chunk(b"")


# --- items ----------------------------------------------------------------------------------------------------------


async def test_each_event_is_an_item_with_what_the_answer_said(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", events(b'id: 1\nevent: add\ndata: {"n"', b": 1}\n\ndata: text\n", b"\n"))
    subscription = subscribed(stream_plan(server.url), client)
    items = [*(await subscription.read() or []), *(await subscription.read() or [])]
    assert await subscription.read() is None
    assert [item.value.data for item in items] == [{"n": 1}, "text"]
    meta = items[0].value.meta
    assert (meta.event_type, meta.last_event_id, meta.content_type) == ("add", "1", "text/event-stream")
    assert meta.headers["transfer-encoding"] == "chunked"
    assert server.arrived[0].header("accept") == "text/event-stream"


async def test_lines_are_items(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", body("application/x-ndjson", b'{"n":1}\n{"n"', b":2}\n\r\n3"))
    assert await all_items(subscribed(stream_plan(server.url, "ndjson"), client)) == [{"n": 1}, {"n": 2}, 3]


async def test_records_are_items(server: EchoServer, client: HTTPClient) -> None:
    """Each record of a JSON text sequence is an item."""
    server.on("/stream", body("application/json-seq", b'\x1e{"n":1}\n\x1e{"n"', b":2}\n"))
    assert await all_items(subscribed(stream_plan(server.url, "json-seq"), client)) == [{"n": 1}, {"n": 2}]


async def test_the_sentinel_ends_the_stream_though_the_api_keeps_it_open(
    server: EchoServer, client: HTTPClient
) -> None:
    async def keep_open(exchange: echo.Exchange) -> None:
        await exchange.send(stream_head() + b"data: 1\n\ndata: [DONE]\n\ndata: 2\n\n")
        await exchange.left()

    server.on("/stream", keep_open)
    assert await all_items(subscribed(stream_plan(server.url), client, reconnect=True)) == [1]
    await server.connections(0)


async def test_an_http_error_is_raised_before_the_first_item(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", json_answer({"error": "no"}, 503, {"Retry-After": "9"}))
    error = await failure(subscribed(stream_plan(server.url), client, reconnect=True).read())
    assert (error.message, error.retry_after) == ("HTTP 503: Service Unavailable: no", 9)
    assert len(server.arrived) == 1


async def test_an_error_in_the_stream_is_raised_after_the_items_before_it(
    server: EchoServer, client: HTTPClient
) -> None:
    server.on("/stream", events(b'data: 1\n\nevent: error\ndata: {"status": 500, "title": "Broken"}\n\n'))
    subscription = subscribed(stream_plan(server.url), client, reconnect=True)
    assert [item.value.data for item in await subscription.read() or []] == [1]
    assert (await failure(subscription.read())).message == "HTTP 500: Broken"
    subscription.close()


async def test_json_instead_of_a_stream_is_the_only_item(
    server: EchoServer, client: HTTPClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("/stream", json_answer({"whole": True}))
    with caplog.at_level(logging.WARNING):
        assert await all_items(subscribed(stream_plan(server.url), client, reconnect=True)) == [{"whole": True}]
    assert "only item" in caplog.text


async def test_anything_else_instead_of_a_stream_is_an_error(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", answer(200, b"<html>", {"Content-Type": "text/html"}))
    error = await failure(subscribed(stream_plan(server.url), client).read())
    assert error.code is ErrorCode.PROTOCOL_ERROR
    assert "text/html" in error.message


async def test_no_content_is_an_empty_stream(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", answer(204))
    assert await all_items(subscribed(stream_plan(server.url), client, reconnect=True)) == []


async def test_an_item_that_is_too_large_ends_the_stream(server: EchoServer) -> None:
    client = HTTPClient(ClientOptions(max_item=1000))
    server.on("/stream", events(b"data: " + b"x" * 2000 + b"\n\n"))
    subscription = subscribed(stream_plan(server.url), client, reconnect=True)
    assert (await failure(subscription.read())).code is ErrorCode.PAYLOAD_TOO_LARGE
    subscription.close()
    await client.close()


# --- ends and losses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sse", "ndjson"])
async def test_a_stream_that_breaks_off_is_unavailable(kind: Any, server: EchoServer, client: HTTPClient) -> None:
    async def break_off(exchange: echo.Exchange) -> None:
        plan = stream_plan(server.url, kind)
        await exchange.send(stream_head(plan.accept, **{"Transfer-Encoding": "chunked"}) + chunk(b"data: 1\n\n1\n"))
        exchange.close()

    server.on("/stream", break_off)
    # Lines cannot be resumed, and an event stream is not unless that was asked for.
    subscription = subscribed(stream_plan(server.url, kind), client, reconnect=kind == "ndjson")
    error = await failure(all_items(subscription))
    assert (error.code, error.retryable) == (ErrorCode.UNAVAILABLE, True)
    assert len(server.arrived) == 1


async def test_closing_closes_the_connection_at_once(server: EchoServer, client: HTTPClient) -> None:
    async def endless(exchange: echo.Exchange) -> None:
        await exchange.send(stream_head() + b"data: 1\n\n")
        await exchange.left()

    server.on("/stream", endless)
    subscription = subscribed(stream_plan(server.url), client)
    assert await subscription.read()
    assert server.open == 1
    subscription.close()
    await server.connections(0)


async def test_closing_the_client_ends_the_stream_at_once(server: EchoServer) -> None:
    async def endless(exchange: echo.Exchange) -> None:
        await exchange.send(stream_head() + b"data: 1\n\n")
        await exchange.left()

    server.on("/stream", endless)
    client = HTTPClient()
    subscription = subscribed(stream_plan(server.url), client, reconnect=True)
    assert await subscription.read()
    waiting = asyncio.create_task(failure(subscription.read()))
    await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(1):
        assert "closed" in (await waiting).message
    subscription.close()


async def test_the_api_is_read_only_as_fast_as_items_are_taken(server: EchoServer, client: HTTPClient) -> None:
    sent = 0

    async def flood(exchange: echo.Exchange) -> None:
        nonlocal sent
        await exchange.send(stream_head("application/x-ndjson"))
        line = json.dumps("x" * 100_000).encode() + b"\n"
        while True:
            await exchange.send(line)
            sent += len(line)

    server.on("/stream", flood)
    subscription = subscribed(stream_plan(server.url, "ndjson"), client)
    assert await subscription.read()
    last = -1
    async with asyncio.timeout(5):
        while sent != last:  # until the buffers between here and there are full
            last = sent
            await asyncio.sleep(0.1)
    assert sent < 30_000_000
    subscription.close()


async def test_the_deadline_holds_for_the_whole_stream(server: EchoServer, client: HTTPClient) -> None:
    """The deadline holds for the whole call or stream; the message names the host."""

    async def endless(exchange: echo.Exchange) -> None:
        await exchange.send(stream_head() + b"data: 1\n\n")
        await exchange.left()

    server.on("/stream", endless)
    context = Context(deadline=time.monotonic() + 1.0)
    subscription = subscribed(stream_plan(server.url), client, reconnect=True, context=context)
    assert await subscription.read()
    error = await failure(subscription.read())
    assert error.code is ErrorCode.TIMEOUT
    assert f"127.0.0.1:{server.port}" in error.message
    subscription.close()


async def test_without_a_deadline_only_the_beginning_of_a_stream_has_a_limit(server: EchoServer) -> None:
    go_on = asyncio.Event()

    async def slow(exchange: echo.Exchange) -> None:
        await exchange.send(stream_head())
        await go_on.wait()
        await exchange.send(b"data: 1\n\n")
        exchange.close()

    server.on("/stream", silence)
    client = HTTPClient(ClientOptions(timeout=0.1))
    error = await failure(subscribed(stream_plan(server.url), client).read())
    assert error.code is ErrorCode.TIMEOUT
    server.on("/stream", slow)
    asyncio.get_running_loop().call_later(0.2, go_on.set)
    assert await all_items(subscribed(stream_plan(server.url), client)) == [1]
    await client.close()


# --- coming back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "broken off"])
async def test_a_lost_stream_is_resumed_after_the_last_event(
    ends: bool, server: EchoServer, client: HTTPClient
) -> None:
    server.on(
        "/stream",
        events(FAST + b"id: 1\ndata: 1\n\n", ends=ends),
        events(b"data: 2\n\nid: 3\ndata: 3\n\nid: 4\ndata: unfinished", ends=ends),
        answer(204),
    )
    assert await all_items(subscribed(stream_plan(server.url), client, reconnect=True)) == [1, 2, 3]
    assert [each.header("last-event-id") for each in server.arrived] == [None, "1", "3"]


async def test_a_stream_begins_after_the_event_that_its_caller_has(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", events(FAST + b"data: 8\n\n"), events(b"id: 9\ndata: 9\n\ndata: [DONE]\n\n"))
    resumed = subscribed(stream_plan(server.url), client, reconnect=True, context=Context(resume_from="7"))
    assert await all_items(resumed) == [8, 9]
    assert [each.header("last-event-id") for each in server.arrived] == ["7", "7"]


async def test_a_stream_without_ids_cannot_be_resumed(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", body("application/x-ndjson", b"1\n"))
    resumed = subscribed(stream_plan(server.url), client, context=Context(resume_from="7"))
    assert is_resume_error(await failure(all_items(resumed)))


async def test_a_server_that_is_away_for_a_moment_is_asked_again(server: EchoServer, client: HTTPClient) -> None:
    async def reset(exchange: echo.Exchange) -> None:
        exchange.reset()

    server.on(
        "/stream", events(FAST + b"data: 1\n\n"), answer(503), reset, reset, events(b"data: 2\n\ndata: [DONE]\n\n")
    )
    assert await all_items(subscribed(stream_plan(server.url), client, reconnect=True)) == [1, 2]


async def test_an_error_that_stays_ends_the_stream(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", events(FAST + b"data: 1\n\n"), answer(404))
    error = await failure(all_items(subscribed(stream_plan(server.url), client, reconnect=True)))
    assert error.message == "HTTP 404: Not Found"


async def test_a_server_that_stays_away_is_given_up(
    server: EchoServer, client: HTTPClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwire.openapi.client.call._MAX_RECONNECT_SECONDS", 0.01)
    server.on("/stream", events(FAST + b"data: 1\n\n"), events())
    error = await failure(all_items(subscribed(stream_plan(server.url), client, reconnect=True)))
    assert error.code is ErrorCode.UNAVAILABLE
    assert len(server.arrived) == 1 + MAX_ATTEMPTS


async def test_what_cannot_be_repeated_without_harm_is_not(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", events(FAST + b"data: 1\n\n"))
    assert await all_items(subscribed(stream_plan(server.url, method="POST"), client, reconnect=True)) == [1]
    server.on("/stream", events(FAST + b"data: 1\n\n", ends=False))
    error = await failure(all_items(subscribed(stream_plan(server.url, method="POST"), client, reconnect=True)))
    assert error.code is ErrorCode.UNAVAILABLE
    assert len(server.arrived) == 2


@pytest.mark.parametrize(
    ("said", "low", "high"), [(None, 3.0, 3.75), (b"retry: 500\n\n", 0.5, 0.625), (b"retry: 9999999\n\n", 60, 75)]
)
async def test_the_pause_is_what_the_api_asks_for_within_bounds(
    said: bytes | None, low: float, high: float, server: EchoServer, client: HTTPClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def count(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("opwire.openapi.client.call.asyncio.sleep", count)
    server.on("/stream", events((said or b"") + b"data: 1\n\n"), answer(204))
    assert await all_items(subscribed(stream_plan(server.url), client, reconnect=True)) == [1]
    assert low <= pauses[0] <= high


async def test_a_pause_does_not_outlast_the_deadline(server: EchoServer, client: HTTPClient) -> None:
    server.on("/stream", events(b"retry: 30000\n\ndata: 1\n\n"))
    context = Context(deadline=time.monotonic() + 0.1)
    error = await failure(all_items(subscribed(stream_plan(server.url), client, reconnect=True, context=context)))
    assert error.code is ErrorCode.TIMEOUT


async def test_an_id_that_cannot_be_a_header_is_left_out_when_coming_back(
    server: EchoServer, client: HTTPClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("/stream", events(FAST + b"id: a\x01b\ndata: 1\n\n"), events(b"id: 7\ndata: 2\n\n"), answer(204))
    assert await all_items(subscribed(stream_plan(server.url), client, reconnect=True)) == [1, 2]
    assert [arrived.header("last-event-id") for arrived in server.arrived] == [None, None, "7"]
    assert "is not a valid header" in caplog.text


@pytest.mark.parametrize("content", [b"\n" * 4_000_000, b":\n" * 1_000_000, b"data: 1\n\n" * 20_000])
async def test_the_event_loop_runs_while_a_small_stream_is_unpacked(
    content: bytes, server: EchoServer, client: HTTPClient
) -> None:
    packed = gzip.compress(content + b"data: [DONE]\n\n")
    server.on("/stream", stream_head(**{"Content-Encoding": "gzip", "Content-Length": str(len(packed))}) + packed)
    subscription = subscribed(stream_plan(server.url), client)
    async with counted_turns() as turns:
        while await subscription.read() is not None:
            pass
    subscription.close()
    assert turns.count >= len(content) / (32 * 1024)


async def test_events_that_are_not_json_do_not_flood_the_log(
    server: EchoServer, client: HTTPClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.on("/stream", events(b"data: x\n\n" * 5_000 + b"data: 1\n\n"))
    assert await all_items(subscribed(stream_plan(server.url, schema=Schema({"type": "integer"})), client)) == [1]
    assert 0 < len(caplog.records) < 200
