"""Subscriptions as server-sent events, over a real connection."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from opwire import CallError, Identity, OperationRegistry, decode_envelope
from opwire.auth import Grant, callback, tokens
from opwire.openapi.server import responses, serve_http
from tests.openapi.server.served import Client, client_of, served

on_one_loop = pytest.mark.asyncio(loop_scope="module")
Event = dict[str, str]


def parsed(stream: bytes) -> list[Event]:
    """The events of a stream; those without data are left out, as a browser does."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines() if ": " in line) for block in blocks_of(stream)]
    return [block for block in blocks if "data" in block]


def blocks_of(stream: bytes) -> list[str]:
    return [block for block in stream.decode().split("\n\n") if block]


@asynccontextmanager
async def opened(client: Client, path: str, **headers: str) -> AsyncGenerator[aiohttp.ClientResponse]:
    async with asyncio.timeout(5), client.session.get(client.address + path, headers=headers) as reply:
        assert reply.status == 200
        yield reply


async def read_until(reply: aiohttp.ClientResponse, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        part = await reply.content.readany()
        assert part, f"the stream ended before {text!r}: {seen!r}"
        seen += part
    return seen


class Tap:
    """A subscription with items that a test sends."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[Any] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.registry = OperationRegistry()

        @self.registry.subscription("tap.items")
        async def items() -> AsyncIterator[Any]:
            self.opened.set()
            try:
                while True:
                    item = await self.items.get()
                    if isinstance(item, Exception):
                        raise item
                    yield item
            finally:
                self.closed.set()


@on_one_loop
async def test_each_item_is_an_event_with_an_id(client: Client) -> None:
    for reply in (await client.get("/clock/ticks?count=2"), await client.post("/clock/ticks", {"count": 2})):
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.headers["cache-control"] == "no-store"
        assert blocks_of(reply.body) == ["retry: 3000", "id: 1\ndata: 0", "id: 2\ndata: 1"]


@on_one_loop
async def test_a_stream_without_items_is_there_and_ends(client: Client) -> None:
    reply = await client.get("/clock/ticks?count=0")
    assert (reply.status, blocks_of(reply.body)) == (200, ["retry: 3000"])


@on_one_loop
async def test_an_operation_that_takes_the_last_event_goes_on_behind_it(client: Client) -> None:
    for reply in (
        await client.get("/clock/ticks?count=4", last_event_id="2"),
        await client.post("/clock/ticks", {"count": 4}, last_event_id="2"),
    ):
        assert parsed(reply.body) == [{"id": "3", "data": "2"}, {"id": "4", "data": "3"}]
        assert reply.headers["x-resumed"] == "true"
    assert "x-resumed" not in (await client.get("/clock/ticks")).headers


@on_one_loop
async def test_other_operations_have_no_ids_and_do_not_begin_again(client: Client) -> None:
    assert parsed((await client.get("/clock/plain")).body) == [{"data": "1"}]
    reply = await client.get("/clock/plain", last_event_id="1")
    assert reply.status == 422
    problem = msgspec.json.decode(reply.body)
    assert (problem["code"], problem["details"]) == ("VALIDATION_ERROR", {"reason": "RESUME"})
    assert "clock.plain cannot be resumed" in problem["detail"]
    assert (await client.get("/clock/ticks", last_event_id="x" * 4097)).status == 422


@on_one_loop
async def test_items_that_came_over_http_keep_their_id_and_type(client: Client) -> None:
    reply = await client.post("/clock/feed")
    assert parsed(reply.body)[:2] == [
        {"id": "far-0", "event": "up date", "data": '{"n":0}'},
        {"id": "far-1", "event": "up date", "data": '{"n":1}'},
    ]


@on_one_loop
async def test_an_error_after_the_start_is_an_event_that_holds_the_problem(client: Client) -> None:
    reply = await client.post("/clock/feed", {}, x_request_id="r1")
    assert reply.status == 200
    last = parsed(reply.body)[-1]
    assert last["event"] == "error"
    problem = msgspec.json.decode(last["data"])
    assert (problem["code"], problem["detail"], problem["retryable"]) == ("UNAVAILABLE", "the far end is gone", True)
    assert problem["instance"] == "urn:opwire:request:r1"


@on_one_loop
async def test_an_error_before_the_first_item_is_a_response_of_its_own(client: Client) -> None:
    assert (await client.post("/clock/ticks", {"count": "many"})).problem["code"] == "VALIDATION_ERROR"
    assert (await client.get("/clock/ticks?x=1")).status == 422


@on_one_loop
async def test_items_come_as_envelopes_where_they_are_asked_for(client: Client) -> None:
    reply = await client.get("/clock/ticks?count=1", accept="text/event-stream, application/vnd.opwire.envelope+json")
    envelope = decode_envelope(parsed(reply.body)[0]["data"])
    assert (envelope.data, envelope.meta.source) == (0, "local")


async def test_a_quiet_stream_begins_soon_and_is_kept_open_with_comments() -> None:
    tap = Tap()
    async with served(tap.registry, heartbeat=0.03) as client, opened(client, "/tap/items") as reply:
        await read_until(reply, b":\n\n:\n\n")
        tap.items.put_nowait("now")
        assert parsed(await read_until(reply, b"now")) == [{"data": '"now"'}]
        await read_until(reply, b":\n\n")


async def test_when_the_client_leaves_the_generator_is_closed() -> None:
    tap = Tap()
    async with served(tap.registry) as client, asyncio.timeout(5):
        async with opened_when_it_runs(client, tap):
            pass
        await tap.closed.wait()


@asynccontextmanager
async def opened_when_it_runs(client: Client, tap: Tap, **headers: str) -> AsyncGenerator[aiohttp.ClientResponse]:
    tap.items.put_nowait("first")
    async with opened(client, "/tap/items", **headers) as reply:
        await read_until(reply, b"first")
        yield reply


async def test_a_server_that_goes_away_tells_its_streams_and_takes_no_new_ones() -> None:
    tap = Tap()
    app = serve_http(tap.registry, anonymous=Identity(id="me"))
    async with client_of(app) as client, opened_when_it_runs(client, tap) as reply:
        app.drain()
        event = parsed(await reply.content.read())[-1]
        assert event["event"] == "error"
        assert msgspec.json.decode(event["data"])["code"] == "UNAVAILABLE"
        await tap.closed.wait()
        late = await client.get("/tap/items")
        assert (late.status, late.headers["retry-after"]) == (503, "1")


async def test_a_stream_ends_when_its_token_expires() -> None:
    tap = Tap()
    soon = callback(lambda token: Grant(Identity(id=token), expires=time.time() + 0.5))  # from when it comes in
    app = serve_http(tap.registry, authenticate=soon)
    headers = {"authorization": "Bearer a-token"}
    async with client_of(app) as client, opened_when_it_runs(client, tap, **headers) as reply:
        event = parsed(await reply.content.read())[-1]
        problem = msgspec.json.decode(event["data"])
        assert (event["event"], problem["code"], problem["detail"]) == (
            "error",
            "UNAUTHENTICATED",
            "the token has expired",
        )
        await tap.closed.wait()


@pytest.mark.parametrize("now", [None, Identity(id="you", scopes=("read",)), Identity(id="me")])
async def test_a_stream_ends_soon_after_its_token_was_revoked_or_grants_less(
    monkeypatch: pytest.MonkeyPatch, now: Identity | None
) -> None:
    monkeypatch.setattr(tokens, "RECHECK", 0.01)
    tap, granted = Tap(), {"a-token": Identity(id="me", scopes=("read",))}
    app = serve_http(tap.registry, authenticate=callback(granted.get))
    headers = {"authorization": "Bearer a-token"}
    async with client_of(app) as client, opened_when_it_runs(client, tap, **headers) as reply:
        if now is None:
            granted.clear()
        else:
            granted["a-token"] = now
        event = parsed(await reply.content.read())[-1]
        assert (event["event"], msgspec.json.decode(event["data"])["code"]) == ("error", "UNAUTHENTICATED")
        await tap.closed.wait()


async def test_a_stream_goes_on_while_its_token_cannot_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "RECHECK", 0.01)
    tap, checked = Tap(), 0

    async def look_up(token: str) -> Identity | None:
        nonlocal checked
        checked += 1
        if 1 < checked < 5:
            raise OSError("the database is down")
        return Identity(id="me") if checked < 8 else None

    app = serve_http(tap.registry, authenticate=callback(look_up))
    headers = {"authorization": "Bearer a-token"}
    async with client_of(app) as client, opened_when_it_runs(client, tap, **headers) as reply:
        await reply.content.read()
    assert checked == 8


async def test_a_client_that_does_not_read_slows_its_own_stream_and_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses, "STALLED_CLIENT_TIMEOUT", 0.2)
    produced = 0
    closed = asyncio.Event()
    registry = OperationRegistry()

    @registry.subscription("tap.flood")
    async def flood() -> AsyncIterator[str]:
        nonlocal produced
        try:
            while True:
                produced += 1
                yield "x" * 100_000
        finally:
            closed.set()

    async with served(registry) as client, asyncio.timeout(10):
        _, writer = await client.connect()
        writer.write(b"GET /tap/flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await closed.wait()
        writer.transport.abort()
    assert produced < 1_000  # it waited for the client: what a connection buffers is a few megabytes


async def test_a_late_failure_of_a_handler_is_reported_too() -> None:
    tap = Tap()
    async with served(tap.registry) as client, opened_when_it_runs(client, tap) as reply:
        tap.items.put_nowait(CallError("EXECUTION_ERROR", "broken"))
        assert parsed(await reply.content.read())[-1]["event"] == "error"


@on_one_loop
async def test_a_producer_that_never_waits_is_stopped_too_when_its_client_leaves() -> None:
    registry, closed, made = OperationRegistry(), asyncio.Event(), 0

    @registry.subscription("flood.items")
    async def items() -> AsyncIterator[int]:
        nonlocal made
        try:
            for number in range(10_000_000):
                made = number
                yield number
        finally:
            closed.set()

    async with served(registry) as client, opened(client, "/flood/items") as reply:
        await read_until(reply, b"data: 1\n")
        reply.close()
        async with asyncio.timeout(5):
            await closed.wait()
    assert made < 50_000  # it made 138,000 before any other task had a turn
