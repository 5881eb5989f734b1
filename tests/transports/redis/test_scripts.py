"""The scripts that run inside Redis."""

from collections.abc import Callable, Iterator

import pytest

from opwire.transports.redis.scripts import ENTER, ROUTE, ROUTE_SHA
from tests.requirements import requirement
from tests.servers.brokers import RedisServer
from tests.transports.redis.ends import ask, end, exhaust

LIST = "opwire:serving:a.b"


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """The server that all share, with nothing in it."""
    ask(redis_server, "FLUSHALL")
    yield redis_server
    ask(redis_server, "FLUSHALL")


def route(server: RedisServer, turn: int = 0) -> int:
    return ask(server, "EVAL", ROUTE, 1, LIST, turn, "caller token\n{}")


def enter(server: RedisServer, end: str, *lists: str) -> int:
    return ask(server, "EVAL", ENTER, 1 + len(lists), end, *lists, 5_000, 60_000)


def listed(server: RedisServer, key: str = LIST) -> list[bytes]:
    return ask(server, "LRANGE", key, 0, -1)


def test_redis_knows_the_script_by_the_name_that_we_call_it(server: RedisServer) -> None:
    assert ask(server, "SCRIPT", "LOAD", ROUTE) == ROUTE_SHA


def test_nobody_gets_a_message_where_nobody_serves(server: RedisServer) -> None:
    assert route(server) == 0


async def test_the_servers_of_an_operation_take_turns(server: RedisServer) -> None:
    async with end(server.url, "one", "a.b") as one, end(server.url, "two", "a.b") as two:
        for turn in range(6):
            assert route(server, turn) == 1
        await one.barrier()
        await two.barrier()
        assert (len(one.log.messages), len(two.log.messages)) == (3, 3)


@requirement("transport.redis.dead-servers")
async def test_an_entry_without_lease_or_reader_is_passed_over_and_removed(server: RedisServer) -> None:
    async with end(server.url, "reads") as reads, end(server.url, "serves", "a.b") as serves:
        ask(server, "SET", "opwire:end:crashed", "")
        ask(server, "RPUSH", LIST, "opwire:end:crashed", "opwire:end:reads", "opwire:end:long gone")
        for turn in range(4):
            assert route(server, turn) == 1
        await serves.barrier()
        await reads.barrier()
        assert len(serves.log.messages) == 4
        assert reads.log.messages == []  # it reads, but its lease has run out: it may be frozen
        assert listed(server) == [b"opwire:end:serves"]


@requirement("transport.redis.dead-servers")
def test_a_list_with_nothing_but_dead_servers_is_empty_afterwards(server: RedisServer) -> None:
    ask(server, "RPUSH", LIST, *(f"opwire:end:{number}" for number in range(50)))
    assert route(server, 7) == 0
    assert ask(server, "EXISTS", LIST) == 0


def test_entering_again_gives_no_second_turn(server: RedisServer) -> None:
    assert enter(server, "opwire:end:one", LIST) == 1
    assert enter(server, "opwire:end:one", LIST, "opwire:serving:c.d") == 0
    assert listed(server) == listed(server, "opwire:serving:c.d") == [b"opwire:end:one"]


@requirement("transport.redis.leases")
def test_leases_and_lists_run_out_unless_they_are_renewed(server: RedisServer) -> None:
    enter(server, "opwire:end:one", LIST)
    assert 4_000 < ask(server, "PTTL", "opwire:end:one") <= 5_000
    assert 59_000 < ask(server, "PTTL", LIST) <= 60_000
    ask(server, "PEXPIRE", "opwire:end:one", 100)
    ask(server, "PEXPIRE", LIST, 100)
    enter(server, "opwire:end:one", LIST)
    assert ask(server, "PTTL", "opwire:end:one") > 4_000
    assert ask(server, "PTTL", LIST) > 59_000


@requirement("transport.redis.no-memory")
async def test_without_memory_requests_pass_and_leases_are_renewed(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        exhaust(server)
        assert route(server) == 1
        assert enter(server, "opwire:end:one", LIST) == 0
        assert ask(server, "PTTL", "opwire:end:one") > 4_000
        await one.barrier()
        assert len(one.log.messages) == 1
