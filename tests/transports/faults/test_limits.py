"""Messages that are too large for the engine or nested too deeply, and a Redis server without memory."""

import json
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from opwire import CallError, ErrorCode, OperationRegistry, ResponseEnvelope
from opwire.protocol import CallEvent, CallHandler, PendingRequestMap
from opwire.protocol.events import encode_event
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, RedisServer, Server
from tests.servers.worker import PUBLIC
from tests.transports.engines import ENGINES, Engine
from tests.transports.faults.actor import operations
from tests.transports.faults.harness import staged
from tests.transports.faults.load import Load

KIB, MIB = 1024, 1024 * 1024

SMALL: list[Any] = [
    pytest.param("nats", {"max_payload": 64 * KIB}, 64 * KIB, id="nats"),
    pytest.param("redis", {"proto_max_bulk_len": "1mb"}, MIB, id="redis-bulk"),
    pytest.param("redis", {"client_query_buffer_limit": "1mb"}, MIB, id="redis-query-buffer"),
    pytest.param("websocket", {"max_message": 64 * KIB}, 64 * KIB, id="websocket"),
]


@pytest.mark.parametrize(("name", "settings", "limit"), SMALL)
async def test_a_message_above_the_limit_of_the_engine_fails_its_own_call_alone(
    name: str, settings: dict[str, Any], limit: int
) -> None:
    engine = ENGINES[name]
    with engine.start(**settings) as server:
        async with (
            staged(engine, server, max_message=4 * MIB, heartbeat=10.0) as stage,
            Load(stage.calls, callers=8) as load,
        ):
            await load.until(answers=20)
            for size in (limit // 2, limit, 2 * limit, 3 * limit):
                await one_of_this_size(stage.calls, size, fits=size < limit)
            await load.until(answers=20, streams=1)
        load.check(stage.notes.lines)
        assert not load.failed
        assert all(end is None for _, end in load.streams)
        assert [proxy.accepted for proxy in stage.proxies.values()] == [1, 1], "a connection was lost"


async def one_of_this_size(calls: PendingRequestMap, size: int, *, fits: bool) -> None:
    ballast = "x" * size
    if fits:
        answer = await soon("a large call is answered", calls.call("fault.run", {"ballast": ballast}))
        assert answer.data[2] == ballast
        return
    for input in ({"ballast": ballast}, {"grow": size}):  # too large on the way there, and on the way back
        with pytest.raises(CallError) as caught:
            await soon("a call that is too large fails", calls.call("fault.run", input))
        assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def encode_foreign(order: tuple[str, ...], event: CallEvent, **options: Any) -> bytes:
    """Encode as an end in another language may: members in another order, and "deep" as 5,000 nested lists."""
    members = json.loads(encode_event(event, **options))
    members = dict(sorted(members.items(), key=lambda each: order.index(each[0]) if each[0] in order else len(order)))
    return json.dumps(members).replace('"deep"', "[" * 5_000 + "]" * 5_000).encode()


def deep_operations() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.query("deep.echo", access=PUBLIC)
    async def echo(value: str) -> str:
        return value.lower()

    @registry.query("deep.error", access=PUBLIC)
    async def error() -> None:
        raise CallError(ErrorCode.EXECUTION_ERROR, "it failed", {"why": "deep"})

    @registry.subscription("deep.items", access=PUBLIC)
    async def items() -> AsyncIterator[str]:
        yield "shallow"
        yield "deep"

    return registry


@pytest.mark.parametrize("order", [("type", "requestId"), ("output", "input", "details"), ("seq", "output")], ids=str)
async def test_what_no_decoder_can_read_fails_its_call_at_once(
    engine: Engine, server: Server, order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("broker", "websocket.client"):
        monkeypatch.setattr(f"opwire.transports.{module}.encode_event", partial(encode_foreign, order))
    async with (
        PendingRequestMap(engine.connect(server.url, heartbeat=10.0)) as serving,
        CallHandler(deep_operations(), serving),
        PendingRequestMap(engine.connect(server.url, heartbeat=10.0)) as calls,
    ):

        async def last_item() -> ResponseEnvelope[Any]:
            return [item async for item in calls.subscribe("deep.items")][-1]

        request, response = {"value": "deep"}, {"value": "DEEP"}
        for call in (calls.call("deep.echo", request), calls.call("deep.echo", response), last_item()):
            with pytest.raises(CallError, match="nested deeper than 200") as caught:
                await soon("it fails long before its deadline", call)
            assert caught.value.code is ErrorCode.PROTOCOL_ERROR
        with pytest.raises(CallError) as caught:
            await soon("so does an error with deep details", calls.call("deep.error"))
        assert (await calls.call("deep.echo", {"value": "shallow"})).data == "shallow"
        assert calls.open_calls == 0


async def test_calls_go_on_while_redis_has_no_memory_left(own_redis: Callable[..., RedisServer]) -> None:
    server, engine = own_redis(policy="noeviction"), ENGINES["redis"]
    async with staged(engine, server, heartbeat=10.0) as stage, Load(stage.calls) as load:
        await load.until(answers=200)
        redis(server, "SET", "ballast", "x" * 4 * MIB)
        redis(server, "CONFIG", "SET", "maxmemory", "3mb")
        assert redis(server, "SET", "more", "x").startswith("-OOM")
        await load.until(answers=200, streams=1)
        assert not load.failed
        async with (
            PendingRequestMap(engine.connect(server.url)) as newcomer,
            CallHandler(operations(stage.notes.add), newcomer) as handler,
        ):
            stage.proxies["server"].cut()  # a peer that comes back is admitted, and so is a new one
            await load.wait("another connection", lambda: stage.proxies["server"].accepted == 2)
            await load.until_none_fails()
            assert await handler.drain()
        redis(server, "DEL", "ballast")
        await load.until(answers=200, streams=1)
    load.check(stage.notes.lines)


def redis(server: RedisServer, *command: str) -> str:
    """What Redis answers to a command."""
    with socket.create_connection((HOST, server.port), timeout=5) as connection:
        parts = "".join(f"${len(part)}\r\n{part}\r\n" for part in command)
        connection.sendall(f"*{len(command)}\r\n{parts}".encode())
        return connection.recv(1000).decode()
