"""The scripts that run inside Redis."""

from collections.abc import Callable, Iterator

import pytest

from opwire.transports.redis.transport import ENTER, PRUNE, ROUTE
from tests.servers.brokers import RedisServer
from tests.transports.redis.ends import ask, end, exhaust

LIST = "opwire:serving:a.b"


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """The server that all share, with nothing in it."""
    ask(redis_server, "FLUSHALL")
    yield redis_server
    ask(redis_server, "FLUSHALL")


def route(server: RedisServer, turn: int = 0, *sticky_key: str) -> int | bytes:
    return ask(server, "EVAL", ROUTE.text, 1, LIST, turn, "caller token\n{}", "opwire:end:", *sticky_key)


def prune(server: RedisServer, *lists: str, entries: int = 200) -> int:
    return ask(server, "EVAL", PRUNE.text, len(lists), *lists, "opwire:end:", entries)


def enter(server: RedisServer, end: str, *lists: str) -> int:
    return ask(server, "EVAL", ENTER.text, 1 + len(lists), end, *lists, 5_000, 60_000)


def listed(server: RedisServer, key: str = LIST) -> list[bytes]:
    return ask(server, "LRANGE", key, 0, -1)


def test_redis_knows_the_script_by_the_name_that_we_call_it(server: RedisServer) -> None:
    assert ask(server, "SCRIPT", "LOAD", ROUTE.text) == ROUTE.digest


def test_no_end_gets_a_message_without_servers(server: RedisServer) -> None:
    assert route(server) == 0


async def test_the_servers_of_an_operation_take_turns(server: RedisServer) -> None:
    async with end(server.url, "one", "a.b") as one, end(server.url, "two", "a.b") as two:
        for turn in range(6):
            assert route(server, turn) == (b"opwire:end:two" if turn % 2 else b"opwire:end:one")
        await one.barrier()
        await two.barrier()
        assert (len(one.log.messages), len(two.log.messages)) == (3, 3)


async def test_an_entry_without_lease_or_reader_is_passed_over_and_removed(server: RedisServer) -> None:
    async with end(server.url, "reads") as reads, end(server.url, "serves", "a.b") as serves:
        ask(server, "SET", "opwire:end:crashed", "")
        ask(server, "RPUSH", LIST, "opwire:end:crashed", "opwire:end:reads", "opwire:end:long gone")
        for turn in range(4):
            assert route(server, turn) == b"opwire:end:serves"
        await serves.barrier()
        await reads.barrier()
        assert len(serves.log.messages) == 4
        assert reads.log.messages == []  # it reads, but its lease has run out: it may be frozen
        assert listed(server) == [b"opwire:end:serves"]


def test_a_list_with_nothing_but_dead_servers_is_empty_afterwards(server: RedisServer) -> None:
    ask(server, "RPUSH", LIST, *(f"opwire:end:{number}" for number in range(50)))
    assert route(server, 7) == 0
    assert ask(server, "EXISTS", LIST) == 0


@pytest.mark.parametrize("sticky_key", [(), ("ann",)])
async def test_a_long_list_of_dead_servers_is_worked_off_in_steps(
    server: RedisServer, sticky_key: tuple[str, ...]
) -> None:
    ask(server, "RPUSH", LIST, *(f"opwire:end:{number}" for number in range(2_500)))
    async with end(server.url, "serves", "a.b"):
        assert [route(server, 3, *sticky_key) for _ in range(2)] == [-1, -1]
        assert len(listed(server)) == 501
        assert route(server, 3, *sticky_key) == b"opwire:end:serves"
        assert route(server, 3, *sticky_key) == b"opwire:end:serves"
        assert len(listed(server)) <= 501


async def test_a_long_list_keeps_those_that_live(server: RedisServer) -> None:
    async with end(server.url, "one", "a.b"), end(server.url, "two", "a.b"):
        ask(server, "LPUSH", LIST, *(f"opwire:end:{number}" for number in range(40)))
        names = {route(server, turn) for turn in range(100)}
        assert names == {b"opwire:end:one", b"opwire:end:two"}
        assert sorted(listed(server)) == [b"opwire:end:one", b"opwire:end:two"]


async def test_an_entry_that_is_not_an_end_gets_nothing(server: RedisServer) -> None:
    """A peer with write access to the prefix alone cannot make others publish elsewhere."""
    async with end(server.url, "victim", prefix="payroll") as victim:
        ask(server, "SET", "payroll:end:victim", "")
        ask(server, "RPUSH", LIST, "payroll:end:victim", "", "x" * 100_000)
        assert route(server) == 0
        assert route(server, 0, "ann") == 0
        await victim.barrier()
        assert victim.log.messages == []
        assert listed(server) == []


def test_pruning_removes_dead_servers_and_looks_at_a_limited_number_of_entries(server: RedisServer) -> None:
    other = "opwire:serving:c.d"
    for name in ("one", "two"):
        enter(server, f"opwire:end:{name}", LIST, other)
    ask(server, "LPUSH", LIST, *(f"opwire:end:{number}" for number in range(10)))
    ask(server, "RPUSH", other, "opwire:end:gone", "not an end")
    assert prune(server, LIST, other) == 12
    assert listed(server) == listed(server, other) == [b"opwire:end:one", b"opwire:end:two"]
    assert ask(server, "PTTL", LIST) > 50_000
    ask(server, "RPUSH", LIST, *(f"opwire:end:{number}" for number in range(1_000)))
    removed = [prune(server, LIST, entries=100) for _ in range(11)]
    assert (sum(removed), max(removed)) == (1_000, 100)
    assert sorted(listed(server)) == [b"opwire:end:one", b"opwire:end:two"]


def test_without_memory_pruning_loses_no_server(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    enter(server, "opwire:end:one", LIST)
    ask(server, "RPUSH", LIST, "opwire:end:gone")
    exhaust(server)
    assert prune(server, LIST) == 0
    assert listed(server) == [b"opwire:end:one", b"opwire:end:gone"]


def test_entering_again_gives_no_second_turn(server: RedisServer) -> None:
    assert enter(server, "opwire:end:one", LIST) == 1
    assert enter(server, "opwire:end:one", LIST, "opwire:serving:c.d") == 0
    assert listed(server) == listed(server, "opwire:serving:c.d") == [b"opwire:end:one"]


def test_leases_and_lists_run_out_unless_they_are_renewed(server: RedisServer) -> None:
    enter(server, "opwire:end:one", LIST)
    assert 4_000 < ask(server, "PTTL", "opwire:end:one") <= 5_000
    assert 59_000 < ask(server, "PTTL", LIST) <= 60_000
    ask(server, "PEXPIRE", "opwire:end:one", 100)
    ask(server, "PEXPIRE", LIST, 100)
    enter(server, "opwire:end:one", LIST)
    assert ask(server, "PTTL", "opwire:end:one") > 4_000
    assert ask(server, "PTTL", LIST) > 59_000


async def test_without_memory_requests_pass_and_leases_are_renewed(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        exhaust(server)
        assert route(server) == b"opwire:end:one"
        assert enter(server, "opwire:end:one", LIST) == 0
        assert ask(server, "PTTL", "opwire:end:one") > 4_000
        await one.barrier()
        assert len(one.log.messages) == 1
