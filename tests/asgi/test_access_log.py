"""The access log and the tracebacks of every surface, over real connections."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from mcp import Client as MCPClient

from opwire import AccessControl, CallError, Client, Hub, Identity, OperationRegistry, mcp_envelope
from opwire.auth import StaticTokens
from opwire.mcp.server import serve_mcp
from opwire.openapi.server import serve_http
from opwire.protocol import CallHandler, PendingRequestMap
from opwire.transports.memory import MemoryBus, MemoryTransport
from tests.mcp.server.shop import connected, http_client, served
from tests.openapi.server.served import Client as HTTPClient
from tests.protocol.harness import until, within

TOKEN = "a-token-0123456789"
ALICE = Identity(id="alice")
Call = Callable[[str, Any], Awaitable[str]]


def shop(asleep: asyncio.Event | None = None) -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("shop.hello", access=AccessControl(public=True))
    async def hello(name: str = "you") -> str:
        return f"hello {name}"

    @registry.query("shop.boom")
    async def boom() -> None:
        raise RuntimeError("a fault of the handler")

    @registry.query("shop.tool")
    async def tool() -> Any:
        return mcp_envelope([], is_error=True, content=[{"type": "text", "text": "no such city"}])

    @registry.mutation("shop.close", access=AccessControl(required_scopes=("admin",)))
    async def close() -> None: ...

    @registry.query("shop.sleep")
    async def sleep() -> None:
        if asleep is not None:
            asleep.set()
        await asyncio.Event().wait()

    @registry.subscription("shop.ticks")
    async def ticks(fail: bool = False) -> AsyncGenerator[int]:
        yield 1
        yield 2
        if fail:
            raise CallError("UNAVAILABLE", "no more ticks")

    return registry


@asynccontextmanager
async def over_http() -> AsyncGenerator[Call]:
    app = serve_http(shop(), authenticate=StaticTokens({TOKEN: ALICE}))
    async with app.listening(drain_timeout=1) as address, aiohttp.ClientSession() as session:
        client = HTTPClient(session, address)

        async def call(operation_id: str, input: Any) -> str:
            path = f"/{operation_id.replace('.', '/')}"
            return (await client.post(path, input, x_api_key=TOKEN)).body.decode()

        yield call


@asynccontextmanager
async def over_mcp() -> AsyncGenerator[Call]:
    async with (
        served(serve_mcp(shop()), authenticate=StaticTokens({TOKEN: ALICE})) as url,
        http_client(url, token=TOKEN) as client,
    ):
        yield _calling_tools(client)


@asynccontextmanager
async def over_stdio() -> AsyncGenerator[Call]:
    async with connected(serve_mcp(shop(), stdio_identity=ALICE)) as client:
        yield _calling_tools(client)


def _calling_tools(client: MCPClient) -> Call:
    async def call(operation_id: str, input: Any) -> str:
        return str(await client.call_tool(operation_id.replace(".", "_"), input or {}))

    return call


@asynccontextmanager
async def over_a_hub() -> AsyncGenerator[Call]:
    async with (
        Hub(shop(), "ws://127.0.0.1:0", authenticate=StaticTokens({TOKEN: ALICE})) as hub,
        Client(hub.url, token=TOKEN) as client,
    ):
        yield _calling(client)


@asynccontextmanager
async def over_memory() -> AsyncGenerator[Call]:
    bus = MemoryBus()
    async with (
        PendingRequestMap(MemoryTransport(bus)) as server,
        CallHandler(shop(), server, anonymous=ALICE),
        PendingRequestMap(MemoryTransport(bus)) as calls,
        Client(calls) as client,
    ):
        yield _calling(client)


def _calling(client: Client) -> Call:
    async def call(operation_id: str, input: Any) -> str:
        try:
            return str(await client.call(operation_id, input))
        except CallError as error:
            return f"{error} {error.details}"

    return call


SURFACES = [("http", over_http), ("mcp", over_mcp), ("mcp", over_stdio), ("call", over_a_hub), ("call", over_memory)]
surfaces = pytest.mark.parametrize(
    ("surface", "serving"), SURFACES, ids=["http", "mcp over http", "mcp", "hub", "memory"]
)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of the lines so far."""
    return [vars(record)["access"] for record in caplog.records if record.name == "opwire.access"]


@surfaces
async def test_every_call_is_one_line(
    surface: str, serving: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Every call on every surface is one line of the access log: identity, operation, outcome, duration and
    bytes; nothing is measured while it is disabled."""
    async with serving() as call:
        assert "hello" in await within(call("shop.hello", {"name": "me"}))
        assert lines(caplog) == []  # disabled by default
        with caplog.at_level(logging.INFO, "opwire.access"):
            for operation_id, input in (
                ("shop.hello", {"name": "me"}),
                ("shop.hello", {"name": 1}),
                ("shop.boom", None),
                ("shop.tool", None),
                ("shop.close", None),
            ):
                await within(call(operation_id, input))
    found = lines(caplog)
    assert [(each["operation"], each["outcome"]) for each in found] == [
        ("shop.hello", "OK"),
        ("shop.hello", "VALIDATION_ERROR"),
        ("shop.boom", "EXECUTION_ERROR"),
        ("shop.tool", "TOOL_ERROR"),
        ("shop.close", "ACCESS_DENIED"),
    ]
    assert {(each["surface"], each["identity"]) for each in found} == {(surface, "alice")}
    assert all(0 < each["duration_ms"] < 60_000 and each["request_id"] for each in found)
    assert found[0]["bytes"] >= len('"hello me"')
    assert caplog.messages[0].startswith(f"{surface} shop.hello alice OK ")


@surfaces
async def test_the_traceback_of_a_handler_is_in_the_log_under_the_error_id_that_the_caller_gets(
    surface: str, serving: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "opwire.access"):
        async with serving() as call:
            reply = await within(call("shop.boom", None))
    assert "a fault of the handler" not in reply
    (record,) = [record for record in caplog.records if record.exc_info]
    error_id = record.getMessage().removeprefix("shop.boom failed, error id ")
    assert error_id in reply
    assert record.exc_info is not None
    assert repr(record.exc_info[1]) == "RuntimeError('a fault of the handler')"
    (entry,) = lines(caplog)
    assert (entry["surface"], entry["error_id"]) == (surface, error_id)


async def test_requests_without_an_operation_and_rejected_ones_have_their_path_and_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = serve_http(shop(), authenticate=StaticTokens({TOKEN: ALICE}))
    mcp = serve_mcp(shop(), exclude=["shop.hello"]).asgi(authenticate=StaticTokens({TOKEN: ALICE}))
    async with (
        app.listening(drain_timeout=1) as address,
        mcp.listening() as other,
        aiohttp.ClientSession() as session,
    ):
        client = HTTPClient(session, address)
        with caplog.at_level(logging.INFO, "opwire.access"):
            await client.get("/healthz")
            size = len((await client.get("/openapi.json", x_api_key=TOKEN)).body)
            await client.get("/shop/boom", x_api_key="another-token")
            await client.get("/openapi.json", host="evil.example")
            await client.get("/no/such")
            await client("PUT", "/shop/hello")
            await HTTPClient(session, other).post("/mcp", {})
    found = [
        (each["surface"], each["operation"], each.get("path"), each["identity"], each["outcome"], each["status"])
        for each in lines(caplog)
    ]
    assert found == [
        ("http", None, "/openapi.json", "alice", "OK", 200),
        ("http", None, "/shop/boom", None, "UNAUTHENTICATED", 401),
        ("http", None, "/openapi.json", None, "ACCESS_DENIED", 421),
        ("http", None, "/no/such", None, "OPERATION_NOT_FOUND", 404),
        ("http", "shop.hello", None, None, "PROTOCOL_ERROR", 405),
        ("mcp", None, "/mcp", None, "UNAUTHENTICATED", 401),
    ]
    assert lines(caplog)[0]["bytes"] == size
    assert "another-token" not in caplog.text


async def test_a_stream_is_one_line_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "opwire.access")
    app = serve_http(shop(), anonymous=ALICE)
    async with app.listening(drain_timeout=1) as address, aiohttp.ClientSession() as session:
        client = HTTPClient(session, address)
        ok, failed = await client.post("/shop/ticks", {}), await client.post("/shop/ticks", {"fail": True})
    async with connected(serve_mcp(shop(), stdio_identity=ALICE)) as tools:
        await tools.call_tool("shop_ticks", {})
        await tools.call_tool("shop_ticks", {"fail": True})
    bus = MemoryBus()
    async with (
        PendingRequestMap(MemoryTransport(bus)) as server,
        CallHandler(shop(), server, anonymous=ALICE),
        PendingRequestMap(MemoryTransport(bus)) as calls,
    ):
        assert [item.data async for item in calls.subscribe("shop.ticks")] == [1, 2]
        with pytest.raises(CallError):
            assert [item async for item in calls.subscribe("shop.ticks", {"fail": True})]
    found = lines(caplog)
    outcomes = [(each["surface"], each["outcome"]) for each in found]
    assert outcomes == [(name, end) for name in ("http", "mcp", "call") for end in ("OK", "UNAVAILABLE")]
    assert [each["bytes"] for each in found[:2]] == [len(ok.body), len(failed.body)]
    assert all(each["bytes"] > 0 for each in found)


async def test_a_call_that_a_stopping_server_does_not_wait_for_is_logged_as_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "opwire.access")
    asleep = asyncio.Event()
    app = serve_http(shop(asleep), anonymous=ALICE)
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        async with app.listening(drain_timeout=0) as address:
            request = asyncio.create_task(session.get(f"{address}/shop/sleep"))
            await asleep.wait()
        assert (await request).status == 503
    assert [(each["operation"], each["outcome"]) for each in lines(caplog)] == [("shop.sleep", "CANCELLED")]
    assert "Exception in ASGI application" not in caplog.text


async def test_a_call_that_its_caller_abandons_or_that_times_out_is_logged_as_such(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "opwire.access")
    asleep = asyncio.Event()
    app = serve_http(shop(asleep), anonymous=ALICE)
    async with app.listening(drain_timeout=1) as address, aiohttp.ClientSession() as session:
        gone = asyncio.create_task(HTTPClient(session, address).post("/shop/sleep"))
        await within(asleep.wait())
        gone.cancel()
        await until(lambda: len(lines(caplog)) == 1)
    async with connected(serve_mcp(shop(), stdio_identity=ALICE, timeout=0.05)) as tools:
        await tools.call_tool("shop_sleep", {})
    bus, registry = MemoryBus(), shop()

    @registry.query("shop.nap", timeout=0.05)  # which passes before that of the caller
    async def nap() -> None:
        await asyncio.sleep(60)

    async with (
        PendingRequestMap(MemoryTransport(bus)) as server,
        CallHandler(registry, server, anonymous=ALICE, max_calls=1),
        PendingRequestMap(MemoryTransport(bus)) as calls,
    ):
        with pytest.raises(CallError):
            await calls.call("shop.nap")
        await until(lambda: len(lines(caplog)) == 3)
        gone = asyncio.create_task(calls.call("shop.sleep"))
        await until(lambda: server.open_calls == 1)
        with pytest.raises(CallError):
            await calls.call("shop.hello")
        gone.cancel()
        await until(lambda: len(lines(caplog)) == 5)
    outcomes = [each["outcome"] for each in lines(caplog)]
    assert outcomes == ["CANCELLED", "TIMEOUT", "TIMEOUT", "RATE_LIMITED", "CANCELLED"]


async def test_an_unknown_operation_is_logged_with_a_part_of_what_was_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "opwire.access")
    bus = MemoryBus()
    async with (
        PendingRequestMap(MemoryTransport(bus)) as server,
        CallHandler(shop(), server, anonymous=ALICE),
        PendingRequestMap(MemoryTransport(bus)) as calls,
    ):
        with pytest.raises(CallError):
            await calls.call("no.such\x1b[2J\n" + "x" * 10_000)
    async with connected(serve_mcp(shop(), stdio_identity=ALICE)) as tools:
        with pytest.raises(Exception, match="Unknown tool"):
            await tools.call_tool("no_such", {})
    first, second = lines(caplog)
    assert first["operation"].startswith("no.such\\x1b[2J\\nxxx")
    assert len(first["operation"]) < 220
    assert (second["operation"], second["outcome"]) == ("no_such", "OPERATION_NOT_FOUND")
