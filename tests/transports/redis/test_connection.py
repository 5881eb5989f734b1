"""One connection to a Redis server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.transports.redis.connection import RedisConnection, command, parse_url
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, RedisServer

PING = command("PING")


@asynccontextmanager
async def connected(url: str, lost: Callable[[str], None] = lambda reason: None) -> AsyncIterator[RedisConnection]:
    connection = RedisConnection(parse_url(url), lambda channel, message: None, lost)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


async def test_replies_come_in_the_order_of_the_commands(redis_server: RedisServer) -> None:
    async with connected(redis_server.url) as connection:
        several = [connection.ask(command("ECHO", number), command("ECHO", -number)) for number in range(100)]
        answers = await soon("all are answered", asyncio.gather(*several))
        assert answers == [[f"{number}".encode(), f"{-number}".encode()] for number in range(100)]


async def test_asking_nothing_is_answered_at_once(redis_server: RedisServer) -> None:
    async with connected(redis_server.url) as connection:
        assert await connection.ask() == []


async def test_a_rejected_command_fails_its_callers_and_no_others(redis_server: RedisServer) -> None:
    async with connected(redis_server.url) as connection:
        before, refused, after = await asyncio.gather(
            connection.ask(PING),
            connection.ask(PING, command("NONSENSE"), PING),
            connection.ask(PING, PING),
            return_exceptions=True,
        )
        assert before == [b"PONG"]
        assert isinstance(refused, CallError)
        assert refused.code is ErrorCode.UNAVAILABLE
        assert after == [b"PONG", b"PONG"]


async def test_a_cancelled_lookup_affects_no_other(redis_server: RedisServer) -> None:
    async with connected(redis_server.url) as connection:
        task = asyncio.create_task(connection.ask(PING))
        await asyncio.sleep(0)  # now it has asked
        task.cancel()
        assert await soon("the next is answered", connection.ask(command("ECHO", "next"))) == [b"next"]


async def test_a_pending_request_fails_when_the_connection_is_lost(
    own_redis: Callable[..., RedisServer],
) -> None:
    server, reasons, replies = own_redis(), list[str](), list[Any]()
    async with connected(server.url, reasons.append) as connection:
        server.freeze()
        asking = asyncio.create_task(connection.ask(PING))
        await asyncio.sleep(0)
        connection.send(PING, replies.append)
        server.kill()
        with pytest.raises(CallError, match=f"the connection to Redis at {HOST}:{server.port} was lost") as caught:
            await soon("it fails", asking)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert len(reasons) == 1
        assert replies == []
        with pytest.raises(CallError, match="was lost"):
            await connection.ask(PING)
        with pytest.raises(CallError, match="gone"):
            connection.send(PING, replies.append)


async def test_closing_fails_pending_calls_and_is_not_a_loss(own_redis: Callable[..., RedisServer]) -> None:
    server, reasons = own_redis(), list[str]()
    connection = RedisConnection(parse_url(server.url), lambda *_: None, reasons.append)
    await connection.open()
    server.freeze()
    asking = asyncio.create_task(connection.ask(PING))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(CallError, match="closed"):
        await asking
    assert reasons == []


@pytest.mark.parametrize(
    "url", [f"redis://ann:secret@{HOST}:1", "unix://ann:secret@/nowhere/redis.sock", "redis://ann:secret@a..b"]
)
async def test_a_server_that_is_not_there_is_unavailable(url: str) -> None:
    connection = RedisConnection(parse_url(url), lambda *_: None, lambda reason: None)
    with pytest.raises(CallError, match="cannot be reached") as caught:
        await connection.open()
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "secret" not in str(caught.value)


async def test_a_server_that_speaks_something_else_is_left() -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(speak, HOST, 0) as other:
        port = other.sockets[0].getsockname()[1]
        async with connected(f"redis://{HOST}:{port}") as connection:
            with pytest.raises(CallError, match="check that the server at this port is Redis"):
                await soon("it is noticed", connection.ask(PING))


async def test_whether_something_was_heard_is_kept(redis_server: RedisServer) -> None:
    async with connected(redis_server.url) as connection:
        assert not connection.heard
        await connection.ask(PING)
        assert connection.heard


async def test_a_user_without_a_password_gives_its_name(redis_server: RedisServer) -> None:
    target = parse_url(redis_server.url.replace("redis://", "redis://stranger@"))
    connection = RedisConnection(target, lambda channel, message: None, lambda reason: None)
    await connection.open()
    try:
        with pytest.raises(CallError, match="rejected this user"):
            await connection.greet()
    finally:
        await connection.close()
