"""How tasks are claimed from Redis Streams: what the contract of journals cannot see."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import pytest

from opwire.durable import Claim
from opwire.durable.redis.journal import RedisJournal, StreamReceipt
from opwire.durable.redis.session import RedisSession
from opwire_conformance.harness import soon
from tests.durable.samples import outcome, task
from tests.servers.brokers import HOST, RedisServer
from tests.servers.faults import FaultProxy
from tests.servers.leaks import Leaks
from tests.transports.redis.ends import ask


@asynccontextmanager
async def journal(server: RedisServer, prefix: str | None = None) -> AsyncIterator[RedisJournal]:
    async with RedisJournal(server.url, prefix=prefix or token_hex(4)) as made:
        yield made


def clients(server: RedisServer) -> int:
    return len(ask(server, "CLIENT", "LIST").splitlines())


async def test_operations_take_turns(redis_server: RedisServer) -> None:
    async with journal(redis_server) as made:
        for number in range(4):
            for operation in ("shop.a", "shop.b"):
                await made.submit(task(f"{operation} {number}", operation))
        taken: list[str] = []
        for _ in range(4):
            (claim,) = await made.claim(["shop.a", "shop.b"], lease=9, wait=0)
            taken.append(claim.task.operation_id)
        assert sorted(taken) == ["shop.a", "shop.a", "shop.b", "shop.b"]


async def test_operations_share_the_room_of_a_claim(redis_server: RedisServer) -> None:
    async with journal(redis_server) as made:
        operations = ["shop.a", "shop.b"]
        assert await made.claim(operations, lease=9, wait=0, limit=4) == []  # creates the streams
        for number in range(4):
            for operation in operations:
                await made.submit(task(f"{operation} {number}", operation))
        claims = await made.claim(operations, lease=9, wait=0, limit=4)
        assert [claim.task.key for claim in claims] == ["shop.a 0", "shop.a 1", "shop.b 0", "shop.b 1"]


async def test_a_stream_that_was_deleted_is_created_again(redis_server: RedisServer) -> None:
    async with journal(redis_server) as made:
        for _ in range(2):
            assert await made.claim(["shop.order"], lease=9, wait=0, limit=2) == []
            ask(redis_server, "DEL", made.keys.stream("shop.order"))
        assert await made.claim(["shop.order"], lease=9, wait=0.01, limit=2) == []
        await made.submit(task())
        assert len(await made.claim(["shop.order"], lease=9, wait=1, limit=2)) == 1


async def test_what_came_too_many_at_once_is_given_back_and_not_counted(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journal(redis_server) as made:
        for operation in ("shop.a", "shop.b", "shop.c"):
            await made.submit(task(operation, operation))
        run = RedisSession.run

        async def find_nothing(*_: object, **__: object) -> list[Any]:
            return []  # as if all three were submitted between this and the blocking read

        monkeypatch.setattr(RedisSession, "run", find_nothing)
        operations = ["shop.a", "shop.b", "shop.c"]
        claiming = asyncio.create_task(made.claim(operations, lease=9, wait=1, limit=1))
        await asyncio.sleep(0)
        monkeypatch.setattr(RedisSession, "run", run)
        assert len(await claiming) == 1
        rest: list[Claim] = []
        async with asyncio.timeout(5):
            while len(rest) < 2:
                rest += await made.claim(operations, lease=0.3, wait=0.1, limit=9)
        assert [claim.attempt for claim in rest] == [1, 1]


async def test_claims_that_wait_have_connections_of_their_own_which_are_used_again(redis_server: RedisServer) -> None:
    async with journal(redis_server) as made:
        before = clients(redis_server)
        for _ in range(3):
            waits = [made.claim([f"shop.{each}"], lease=9, wait=0.1) for each in range(3)]
            assert await asyncio.gather(*waits) == [[], [], []]
        assert clients(redis_server) == before + 3
    assert clients(redis_server) <= before


async def test_a_waiting_claim_delays_no_other(redis_server: RedisServer) -> None:
    async with journal(redis_server) as made:
        waiting = asyncio.create_task(made.claim(["shop.order"], lease=9, wait=5))
        await asyncio.sleep(0.05)
        await soon("others are answered", made.info())
        await made.submit(task())
        assert len(await soon("the task is claimed", waiting)) == 1


async def test_what_a_cancelled_claim_was_given_comes_back_when_its_lease_is_over(redis_server: RedisServer) -> None:
    prefix = token_hex(4)
    async with Leaks(), FaultProxy(HOST, redis_server.port) as proxy, journal(redis_server, prefix) as other:
        async with RedisJournal(f"redis://{HOST}:{proxy.port}", prefix=prefix) as made:
            waiting = asyncio.create_task(made.claim(["shop.order"], lease=0.9, wait=5))
            while b" flags=b " not in ask(redis_server, "CLIENT", "LIST"):
                await asyncio.sleep(0.01)
            proxy.stall("down")
            await other.submit(task())
            assert [info.claimed for info in await other.info()] == [1]
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            proxy.flow()
        async with asyncio.timeout(60):
            while not (claims := await other.claim(["shop.order"], lease=9, wait=0.1)):
                pass
        assert (claims[0].task, claims[0].attempt) == (task(), 2)


async def test_a_long_wait_finds_what_is_released_and_lost_meanwhile(redis_server: RedisServer) -> None:
    prefix = token_hex(4)
    async with journal(redis_server, prefix) as made, journal(redis_server, prefix) as other:
        for key in ("released", "lost"):
            await made.submit(task(key))
        first, _ = await other.claim(["shop.order"], lease=0.3, wait=0, limit=2)
        await other.release(first, 0.3)

        async def find() -> set[str]:
            found: set[str] = set()
            while len(found) < 2:
                found |= {claim.task.key for claim in await made.claim(["shop.order"], lease=60, wait=60)}
            return found

        assert await soon("both are found", find()) == {"released", "lost"}


async def test_each_claim_that_waits_gets_a_task_of_a_batch_and_none_is_left(redis_server: RedisServer) -> None:
    async with journal(redis_server) as made:
        before = clients(redis_server)
        waiting = [asyncio.create_task(made.claim(["shop.order"], lease=9, wait=30, limit=9)) for _ in range(2)]
        async with asyncio.timeout(10):
            while ask(redis_server, "INFO", "clients").count(b"blocked_clients:2") == 0:
                await asyncio.sleep(0.01)
        assert clients(redis_server) == before + 2
        await asyncio.gather(*(made.submit(task(f"{number}")) for number in range(6)))
        claims = [await soon("it is given tasks", each) for each in waiting]
        assert all(claims)
        assert sorted(claim.task.key for each in claims for claim in each) == [f"{number}" for number in range(6)]


async def test_foreign_entries_of_a_stream_are_removed(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with journal(redis_server) as made:
        await made.submit(task())
        stream = made.keys.stream("shop.order")
        ask(redis_server, "XADD", stream, "*", "key", b"\xff", "what", "is this?")
        ask(redis_server, "XADD", stream, "*", "task", b"\xff")
        ask(redis_server, "XADD", stream, "*", "task", b'["k", "f", "soon"]\nrequest')
        claims = await made.claim(["shop.order"], lease=9, wait=0, limit=9)
        assert [claim.task for claim in claims] == [task()]
        assert ask(redis_server, "XLEN", stream) == 1
    assert caplog.text.count("removed an invalid task") == 3


async def test_an_end_that_closes_takes_its_name_off_the_streams(redis_server: RedisServer) -> None:
    async with journal(redis_server) as made:
        stream = made.keys.stream("shop.order")
        await made.submit(task())
        (claim,) = await made.claim(["shop.order"], lease=9, wait=0)
        await made.record(claim, outcome(claim))
        (consumer,) = ask(redis_server, "XINFO", "CONSUMERS", stream, "workers")
        assert consumer[1].decode() == StreamReceipt.of(claim).consumer
    assert ask(redis_server, "XINFO", "CONSUMERS", stream, "workers") == []


async def test_a_worker_that_waits_goes_on_after_everything_was_deleted(own_redis: Any) -> None:
    server = own_redis()
    async with journal(server) as made:
        assert await made.claim(["shop.order"], lease=9, wait=0.05) == []
        ask(server, "FLUSHALL")
        await made.submit(task())
        assert len(await made.claim(["shop.order"], lease=9, wait=1)) == 1
        ask(server, "FLUSHALL")
        assert await made.claim(["shop.order"], lease=9, wait=0.05) == []
        assert await made.info() != []
