"""A connection for durable calls, which comes back when its server does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from opwire.durable.redis import session as redis_session
from opwire.durable.redis.journal import PURGE_SCRIPT
from opwire.durable.redis.session import RedisSession
from opwire.errors import CallError, ErrorCode
from opwire.transports.redis.connection import command, parse_url
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, RedisServer
from tests.transports.redis.ends import ask

OwnRedis = Callable[..., RedisServer]
PING = command("PING")


@asynccontextmanager
async def session(url: str, **options: Any) -> AsyncIterator[RedisSession]:
    made = RedisSession(parse_url(url), **options)
    try:
        yield made
    finally:
        await made.close()


async def unavailable(asking: Any) -> str:
    with pytest.raises(CallError) as caught:
        await soon("the session refuses", asking)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    return caught.value.message


async def test_it_connects_when_it_is_first_used_and_only_once(redis_server: RedisServer) -> None:
    async with session(redis_server.url) as made:
        before = len(ask(redis_server, "CLIENT", "LIST").splitlines())
        await soon("all are answered", asyncio.gather(*(made.ask(PING) for _ in range(20))))
        assert len(ask(redis_server, "CLIENT", "LIST").splitlines()) == before + 1


async def test_it_connects_again_after_the_server_was_away(own_redis: OwnRedis) -> None:
    """A journal comes back when its server does."""
    server = own_redis()
    losses: list[CallError] = []
    async with session(server.url, lost=losses.append) as made:
        assert await made.ask(PING) == [b"PONG"]
        server.kill()
        message = await unavailable(made.ask(PING))
        assert f"{HOST}:{server.port}" in message
        await unavailable(made.ask(PING))
        server.start()
        assert await soon("it is back", made.ask(PING)) == [b"PONG"]
    assert [error.code for error in losses] == ["UNAVAILABLE"]


async def test_a_server_that_does_not_answer_is_lost_and_found_again(
    own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_session, "RESPONSE_TIMEOUT_SECONDS", 0.2)
    server = own_redis()
    losses: list[CallError] = []
    async with session(server.url, lost=losses.append) as made:
        await made.ask(PING)
        server.freeze()
        assert "does not answer" in await unavailable(made.ask(PING, patience=0.1))
        assert "does not answer" in await unavailable(made.ask(PING, patience=0.1))  # not even to a new connection
        server.thaw()
        for _ in range(3):
            assert await soon("it is back", made.ask(PING)) == [b"PONG"]
        assert len(losses) == 1


async def test_scripts_run_even_if_redis_has_forgotten_them(redis_server: RedisServer) -> None:
    async with session(redis_server.url) as made:
        assert await made.run(PURGE_SCRIPT, ["no such task", "no such set"], "k") == 0
        ask(redis_server, "SCRIPT", "FLUSH")
        assert await made.run(PURGE_SCRIPT, ["no such task", "no such set"], "k") == 0


async def test_what_is_published_is_passed_on(redis_server: RedisServer) -> None:
    told: asyncio.Queue[bytes] = asyncio.Queue()
    async with session(redis_server.url, channel=b"session:mine", pushed=told.put_nowait) as made:
        await made.ask(PING)
        ask(redis_server, "PUBLISH", "session:mine", b"news")
        assert await soon("the news arrive", told.get()) == b"news"


async def test_a_closed_session_refuses_and_can_be_closed_again(redis_server: RedisServer) -> None:
    async with session(redis_server.url) as made:
        await made.ask(PING)
        for _ in range(2):
            await made.close()
        assert "is closed" in await unavailable(made.ask(PING))


async def test_a_server_that_has_become_a_replica_is_left(own_redis: OwnRedis) -> None:
    server = own_redis()
    ask(server, "SET", "task", "f\ndone")
    for write in (
        lambda: made.ask(command("SET", "a", "b")),
        lambda: made.run(PURGE_SCRIPT, ["task", "dead", "requests"], "k"),
    ):
        async with session(server.url) as made:
            await made.ask(PING)
            ask(server, "REPLICAOF", HOST, 1)
            assert "READONLY" in await unavailable(write())
            assert "replica" in await unavailable(made.ask(PING))  # refused when it connects
            ask(server, "REPLICAOF", "NO", "ONE")
            assert await made.ask(PING) == [b"PONG"]


async def test_no_password_is_shown(own_redis: OwnRedis) -> None:
    server = own_redis(password="p4ss w/rd")
    async with session(server.url) as made:
        assert await made.ask(PING) == [b"PONG"]
    async with session(server.url.replace("p4ss", "wr0ng")) as made:
        message = await unavailable(made.ask(PING))
    assert "password" in message
    assert "wr0ng" not in message
