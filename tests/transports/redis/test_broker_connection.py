"""A Redis server as a connection, below the leases and calls that all brokers share."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.transports.redis.connection import parse_url
from opwire.transports.redis.transport import RedisBrokerConnection
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, RedisServer
from tests.servers.faults import FaultProxy
from tests.transports.recording import Log
from tests.transports.redis.ends import BEAT, End, ask, end, exhaust
from tests.transports.redis.service import SentinelServer

Redis = Callable[..., RedisServer]


async def until(what: str, condition: Callable[[], object]) -> None:
    """Wait until something is true of a server, by polling."""

    async def look() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await soon(what, look())


def listed(server: RedisServer, operation_id: str = "a.b") -> list[bytes]:
    return ask(server, "LRANGE", f"opwire:serving:{operation_id}", 0, -1)


# --- messages ---------------------------------------------------------------------------------------------------------


async def test_messages_arrive_with_their_sender_and_token(own_redis: Redis) -> None:
    url = own_redis().url
    async with end(url, "one") as one, end(url, "two", "a.b") as two:
        one.connection.request("a.b", "t1", b'{"a":\n1}')
        one.connection.send("two", "t2", b"", control=False)
        one.connection.broadcast("t3", b"all")
        await two.log.until(lambda: len(two.log.arrivals) == 2 and two.log.rumours)
        assert two.log.arrivals == [("one", "t1", b'{"a":\n1}'), ("one", "t2", b"")]
        await one.log.until(lambda: one.log.rumours)
        assert one.log.rumours == two.log.rumours == [("one", "t3", b"all")]


async def test_the_servers_of_an_operation_take_exact_turns(own_redis: Redis) -> None:
    url = own_redis().url
    async with (
        end(url, "caller") as caller,
        end(url, "0", "a.b") as a,
        end(url, "1", "a.b", "c.d") as b,
        end(url, "2", "a.b", "c.d") as c,
    ):
        for number in range(90):
            caller.connection.request("a.b", "", b"%d" % number)
            caller.connection.request("c.d", "", b"other")  # in between, and in turns of its own
        for each in (caller, a, b, c):
            await each.barrier()
        others = [Counter(each.log.messages)[b"other"] for each in (a, b, c)]
        assert [len(each.log.messages) for each in (a, b, c)] == [30, 75, 75]
        assert others == [0, 45, 45]


async def test_messages_with_one_key_go_to_one_server_until_it_leaves(own_redis: Redis) -> None:
    url, keys = own_redis().url, [*map(str, range(60)), "línea 🜚", "\ud800"]

    async def share(*servers: End) -> dict[str, str]:
        """Return the receivers of the message for each key, which was sent twice."""
        for token in ("first", "second"):
            for key in keys:
                caller.connection.request("a.b", token, json.dumps(key).encode(), key)
        for each in (caller, *servers):
            await each.barrier()
        got = [(json.loads(message), each.address) for each in servers for message in each.log.messages]
        for each in servers:
            each.log.arrivals.clear()
        assert len(got) == 2 * len(set(got)) == 2 * len(keys)
        return dict(got)

    async with end(url, "caller") as caller, end(url, "0", "a.b") as a, end(url, "1", "a.b") as b:
        async with end(url, "2", "a.b") as c:
            before = await share(a, b, c)
            assert set(before.values()) == {"0", "1", "2"}
        after = await share(a, b)
        assert set(after.values()) == {"0", "1"}
        assert all(after[key] == server for key, server in before.items() if server != "2")
        assert caller.log.failures == []


async def test_a_request_without_a_server_is_undelivered(own_redis: Redis) -> None:
    async with end(own_redis().url, "caller", "c.d") as caller:
        for number, operation_id in enumerate(("a.b", "", "c.d ", "línea 🜚", "\ud800", "a\nb")):
            caller.connection.request(operation_id, f"{number}", b"{}")
        await caller.log.until(lambda: len(caller.log.failures) == 6)
        assert caller.log.failures == [(f"{number}", "no server available") for number in range(6)]


async def test_an_end_is_unreachable_as_soon_as_it_has_closed(own_redis: Redis) -> None:
    url = own_redis().url
    async with end(url, "caller") as caller:
        async with end(url, "leaving") as leaving:
            caller.connection.send("leaving", "", b"{}", control=True)
            await caller.barrier()
            assert caller.log.gone == []
            connection: Any = leaving.connection._connection
            socket = connection.link._transport.get_extra_info("socket").dup()
        with socket:  # which keeps the connection open, as if Redis had not noticed yet that it is not
            caller.connection.send("leaving", "", b"{}", control=True)
            await caller.log.until(lambda: caller.log.gone)
            assert caller.log.gone == ["leaving"]


async def test_what_was_sent_before_closing_arrives(own_redis: Redis) -> None:
    url = own_redis().url
    async with end(url, "staying", "a.b") as staying:
        async with end(url, "leaving") as leaving:
            for number in range(5_000):
                leaving.connection.send("staying", "", b"%d" % number, control=True)
                leaving.connection.send("leaving", "", b"x" * 1_000, control=True)  # replies and messages are in flight
        await staying.barrier()
        assert staying.log.messages == [b"%d" % number for number in range(5_000)]


async def test_garbage_on_a_channel_is_ignored_and_counted(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        for garbage in (b"", b"hello", b"\xff\xfe \n{}", b"\n", b"x" * 1_000_000):
            assert ask(server, "PUBLISH", "opwire:end:one", garbage) == 1
            assert ask(server, "PUBLISH", "opwire:all:0", garbage) == 1
        await one.barrier()
        assert one.connection.ignored == 10
        assert one.log.arrivals == one.log.rumours == []


async def test_prefixes_and_databases_do_not_meet(own_redis: Redis) -> None:
    url = own_redis().url
    async with (
        end(url, "caller") as caller,
        end(url, "other", "a.b", prefix="other") as other,
        end(f"{url}/1", "database", "a.b") as database,
    ):
        caller.connection.request("a.b", "t", b"{}")
        caller.connection.send("other", "t", b"{}", control=False)
        caller.connection.broadcast("t", b"{}")
        await caller.log.until(lambda: caller.log.failures and caller.log.gone and caller.log.rumours)
        await other.barrier()
        await database.barrier()
        assert other.log.arrivals == other.log.rumours == database.log.arrivals == database.log.rumours == []


async def test_when_too_much_is_waiting_there_is_still_room_for_what_ends_or_steers_calls(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one") as one, end(server.url, "two") as two:
        server.freeze()

        def pour() -> None:
            for _ in range(1_000):
                one.connection.send("two", "", b"x" * 60_000, control=False)

        with pytest.raises(CallError, match="does not keep up") as caught:
            pour()
        assert caught.value.code is ErrorCode.RATE_LIMITED
        with pytest.raises(CallError, match="does not keep up"):
            one.connection.request("a.b", "t", b"x" * 60_000)
        one.connection.send("two", "", b"y" * 100_000, control=True)
        one.connection.broadcast("", b"z" * 100_000)
        one.connection.beat(BEAT)
        server.thaw()
        await two.log.until(lambda: two.log.rumours)
        assert two.log.messages[-1] == b"y" * 100_000
        assert one.log.failures == one.log.ends == []


async def test_large_messages_are_paced_so_that_redis_need_not_buffer_them(own_redis: Redis) -> None:
    """Large messages are paced: a broker disconnects an end for which it has buffered too much."""
    server, large = own_redis(), b"x" * 1_000_000
    async with end(server.url, "one") as one, end(server.url, "two") as two:

        def pour(count: int, message: bytes = large, *, control: bool = False) -> None:
            for _ in range(count):
                one.connection.send("two", "", message, control=control)

        def request() -> None:
            for number in range(100):
                one.connection.request("a.b", f"t{number}", large)

        for send_many in (lambda: pour(100), request):
            with pytest.raises(CallError, match="large messages") as caught:
                send_many()
            assert caught.value.code is ErrorCode.RATE_LIMITED
        pour(1, b"small")
        pour(1, large, control=True)
        await two.log.until(lambda: large in two.log.messages and b"small" in two.log.messages)


async def test_a_beat_that_finds_no_room_is_logged(own_redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        server.freeze()

        def pour(message: bytes) -> None:
            for _ in range(1_000):
                one.connection.send("two", "", message, control=True)

        for size in (100_000, 1_000, 1):
            with pytest.raises(CallError, match="does not keep up"):
                pour(b"x" * size)
        with caplog.at_level(logging.WARNING, "opwire.transports.redis"):
            one.connection.beat(BEAT)
        server.thaw()
        await one.log.until(lambda: one.log.gone)
    assert "was not renewed: the peer does not keep up" in caplog.text


async def test_an_end_without_a_connection_does_not_send(own_redis: Redis) -> None:
    async with end(own_redis().url, "one") as one:
        pass
    for send in (
        lambda: one.connection.request("a.b", "t", b"{}"),
        lambda: one.connection.send("two", "t", b"{}", control=True),
        lambda: one.connection.broadcast("t", b"{}"),
    ):
        with pytest.raises(CallError, match="not connected") as caught:
            send()
        assert caught.value.code is ErrorCode.UNAVAILABLE
    one.connection.beat(BEAT)
    await one.connection.close()


# --- serving ----------------------------------------------------------------------------------------------------------


async def test_a_peer_that_leaves_leaves_nothing_behind(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", *(f"many.{number}" for number in range(1_223))) as one:
        assert ask(server, "DBSIZE") == 1_224
        await one.connection.unserve([f"many.{number}" for number in range(1_000)])
        await one.connection.unserve([])
        assert ask(server, "DBSIZE") == 224
    assert ask(server, "DBSIZE") == 0


async def test_announcing_twice_gives_one_turn(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        await one.connection.serve(["a.b", "a.b"])
        await one.connection.serve([])
        assert listed(server) == [b"opwire:end:one"]


async def test_announcing_nothing_waits_for_what_was_announced_before(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one") as one:
        earlier = asyncio.create_task(one.connection.serve(["a.b"]))
        await asyncio.sleep(0)  # now it is on its way
        await one.connection.serve([])
        assert listed(server) == [b"opwire:end:one"]
        await earlier


async def test_a_lease_lives_as_long_as_its_holder_beats(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "beats", "a.b", beat=0.1) as one, end(server.url, "frozen", "c.d", beat=0.1) as frozen:

        def other_has_run_out() -> bool:
            one.connection.beat(0.1)
            return not ask(server, "EXISTS", "opwire:end:frozen")

        await until("the lease of the other runs out", other_has_run_out)
        one.connection.request("c.d", "1", b"{}")
        one.connection.request("a.b", "2", b"{}")
        await one.log.until(lambda: one.log.failures and one.log.arrivals)
        assert frozen.log.arrivals == []


async def test_one_that_was_silent_for_too_long_serves_again_with_its_next_beat(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "caller") as caller, end(server.url, "held up", "a.b", "c.d", beat=0.01) as served:
        await until("the lease runs out", lambda: not ask(server, "EXISTS", "opwire:end:held up"))
        caller.connection.request("a.b", "1", b"{}")
        caller.connection.request("c.d", "2", b"{}")
        await caller.log.until(lambda: len(caller.log.failures) == 2)
        served.connection.beat(0.01)
        await until("it is listed", lambda: listed(server, "a.b") and listed(server, "c.d"))


async def test_announcing_something_else_brings_back_what_was_lost_with_the_lease(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        ask(server, "FLUSHALL")
        await one.connection.serve(["c.d"])
        assert listed(server, "a.b") == listed(server, "c.d") == [b"opwire:end:one"]


async def test_what_redis_loses_comes_back_with_the_next_beat(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", *(f"many.{number}" for number in range(1_223))) as one:
        ask(server, "FLUSHALL")
        one.connection.beat(BEAT)
        await until("everything is back", lambda: ask(server, "DBSIZE") == 1_224)


async def test_a_list_that_redis_evicts_comes_back_though_the_lease_is_there(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b", "c.d") as one:
        ask(server, "DEL", "opwire:serving:a.b")
        ask(server, "DEL", "opwire:serving:c.d")
        for _ in range(2):  # a part of the lists at each beat
            one.connection.beat(1)
            await one.barrier()
        assert listed(server, "a.b") == listed(server, "c.d") == [b"opwire:end:one"]


async def test_what_was_withdrawn_does_not_come_back(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b", "c.d", "e.f") as one:
        one.connection.beat(BEAT)
        await one.connection.unserve(["c.d", "e.f"])
        for _ in range(4):
            one.connection.beat(BEAT)
            await one.barrier()
        ask(server, "FLUSHALL")
        one.connection.beat(BEAT)
        await one.barrier()
        assert (listed(server, "a.b"), listed(server, "c.d"), listed(server, "e.f")) == ([b"opwire:end:one"], [], [])


async def test_requests_pass_while_the_cache_of_scripts_is_flushed(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "caller") as caller, end(server.url, "server", "a.b") as served:
        for number in range(200):
            if number % 50 == 25:
                await caller.barrier()
                ask(server, "SCRIPT", "FLUSH")
            caller.connection.request("a.b", f"{number}", b"%d" % number)
        await served.log.until(lambda: len(served.log.messages) == 200)
        await served.barrier()
        assert served.log.messages == [b"%d" % number for number in range(200)]
        assert caller.log.failures == []


async def test_without_memory_calls_go_on_and_servers_come_and_stay(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "server", "a.b") as served:
        exhaust(server)
        async with end(server.url, "caller") as caller, end(server.url, "late", "c.d") as late:
            ask(server, "PEXPIRE", "opwire:end:server", 1_000)
            served.connection.beat(BEAT)
            await served.barrier()
            assert ask(server, "PTTL", "opwire:end:server") > 1_000
            caller.connection.request("a.b", "t", b"{}")
            caller.connection.request("c.d", "t", b"{}")
            await served.log.until(lambda: served.log.messages)
            await late.log.until(lambda: late.log.messages)


async def test_an_announcement_that_redis_refuses_fails_and_what_is_served_goes_on(own_redis: Redis) -> None:
    server = own_redis()
    ask(server, "SET", "opwire:serving:c.d", "")
    async with end(server.url, "server", "a.b") as served:
        with pytest.raises(CallError, match="WRONGTYPE") as caught:
            await served.connection.serve(["c.d"])
        assert caught.value.code is ErrorCode.UNAVAILABLE
        ask(server, "DEL", "opwire:serving:c.d")
        for _ in range(3):
            served.connection.beat(BEAT)
            await served.barrier()
        assert (listed(server, "a.b"), listed(server, "c.d")) == ([b"opwire:end:server"], [])
        await served.connection.serve(["c.d"])
        assert listed(server, "c.d") == [b"opwire:end:server"]


@pytest.mark.parametrize("loss", ["DEL opwire:serving:a.b", "FLUSHALL"])
async def test_a_lease_that_cannot_be_renewed_is_logged(
    own_redis: Redis, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    server = own_redis()
    async with end(server.url, "server", "a.b") as served:
        ask(server, *loss.split())
        ask(server, "SET", "opwire:serving:a.b", "")
        with caplog.at_level(logging.WARNING, "opwire.transports.redis"):
            served.connection.beat(BEAT)
            await served.barrier()
    assert "the lease was not renewed: Redis at" in caplog.text
    assert "WRONGTYPE" in caplog.text


async def test_an_operation_that_redis_does_not_take_back_is_logged(
    own_redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis()
    async with end(server.url, "server", "a.b", "c.d") as served:
        ask(server, "FLUSHALL")
        ask(server, "SET", "opwire:serving:c.d", "")
        with caplog.at_level(logging.WARNING, "opwire.transports.redis"):
            served.connection.beat(1)
            await served.barrier()
            await served.barrier()  # the first one was sent before the loss was known
        assert listed(server) == [b"opwire:end:server"]
    assert "operations are not served: Redis at" in caplog.text


# --- connections ------------------------------------------------------------------------------------------------------


async def test_one_connection_does_it_all(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        one.connection.request("a.b", "t", b"{}")
        await one.log.until(lambda: one.log.messages)
        clients = ask(server, "CLIENT", "LIST").decode().splitlines()
        assert sum("name=opwire" in each for each in clients) == 1


async def test_a_message_with_a_lost_reply_is_delivered_once(own_redis: Redis) -> None:
    """A message whose reply is lost is not sent again."""
    server = own_redis()
    async with FaultProxy(HOST, server.port) as proxy, end(server.url, "server", "a.b") as served:
        async with end(f"redis://{HOST}:{proxy.port}", "caller") as caller:
            proxy.drop_replies = True
            caller.connection.request("a.b", "t", b"asked")
            caller.connection.send("server", "t", b"told", control=False)
            await served.log.until(lambda: len(served.log.messages) == 2)
            proxy.cut()
            await caller.log.until(lambda: caller.log.ends)
            proxy.flow()
            await caller.connection.connect("again", caller.log)
            caller.connection.send("server", "t", b"last", control=False)
            await served.log.until(lambda: served.log.messages[-1] == b"last")
        assert served.log.messages == [b"asked", b"told", b"last"]
        assert caller.log.failures == []  # it is not known that they did not arrive


async def test_one_that_connects_again_is_not_asked_under_its_old_name(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "before", "a.b") as served:
        ask(server, "CLIENT", "KILL", "TYPE", "pubsub")
        await served.log.until(lambda: served.log.ends)
        # As if Redis had not noticed: the old name still has a reader.
        async with end(server.url, "before") as before, end(server.url, "caller") as caller:
            await served.connection.connect("after", served.log)
            await served.connection.serve(["a.b"])
            for number in range(4):
                caller.connection.request("a.b", f"{number}", b"{}")
            for each in (caller, before):
                await each.barrier()
            await served.log.until(lambda: len(served.log.messages) == 4)
            assert before.log.messages == []
            assert listed(server) == [b"opwire:end:after"]


async def test_a_server_that_does_not_answer_two_beats_is_given_up(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        for _ in range(10):
            one.connection.beat(BEAT)
            await one.barrier()
        server.freeze()
        for _ in range(3):
            assert one.log.ends == []
            one.connection.beat(BEAT)
        await one.log.until(lambda: one.log.ends)
        assert one.log.ends == ["it does not answer"]


@pytest.mark.parametrize("operations", [(), ("a.b",)])
async def test_a_server_that_becomes_a_replica_is_left_until_it_is_primary_again(
    own_redis: Redis, operations: tuple[str, ...]
) -> None:
    server = own_redis()
    async with end(server.url, "one", *operations) as one:
        ask(server, "REPLICAOF", HOST, 1)
        one.connection.beat(BEAT)
        await one.log.until(lambda: one.log.ends)
        assert one.log.ends == ["it has become a read-only replica"]
        with pytest.raises(CallError, match="connect to its primary"):
            await one.connection.connect("again", one.log)
        ask(server, "REPLICAOF", "NO", "ONE")
        await one.connection.connect("again", one.log)
        one.connection.send("again", "t", b"{}", control=False)
        await one.log.until(lambda: one.log.messages)


async def test_a_sentinel_is_called_one_and_the_way_to_its_primary_is_said() -> None:
    with SentinelServer(1) as server:
        for db in ("", "/2"):
            with pytest.raises(CallError, match=r"is a Sentinel.*redis\+sentinel://") as caught:
                async with end(server.url + db, "one"):
                    pass
            assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_the_beats_of_a_server_take_dead_ones_off_its_lists(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b", "c.d") as one:
        for key in ("a.b", "c.d"):
            ask(server, "LPUSH", f"opwire:serving:{key}", *(f"opwire:end:{number}" for number in range(70)))
        one.connection.beat(BEAT)
        await one.barrier()
        assert listed(server) == ask(server, "LRANGE", "opwire:serving:c.d", 0, -1) == [b"opwire:end:one"]


async def test_a_caller_learns_which_server_got_its_request_however_many_dead_ones_are_listed(
    own_redis: Redis,
) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one, end(server.url, "caller") as caller:
        ask(server, "LPUSH", "opwire:serving:a.b", *(f"opwire:end:{number}" for number in range(3_000)))
        caller.connection.request("a.b", "t1", b"{}")
        caller.connection.request("a.b", "t2", b"{}", "key")
        await caller.log.until(lambda: len(caller.log.routes) == 2)
        assert sorted(caller.log.routes) == [("t1", "one"), ("t2", "one")]
        await one.log.until(lambda: len(one.log.messages) == 2)
        ask(server, "DEL", "opwire:serving:a.b")
        ask(server, "RPUSH", "opwire:serving:a.b", *(f"opwire:end:{number}" for number in range(3_000)))
        caller.connection.request("a.b", "t3", b"{}")
        await caller.log.until(lambda: caller.log.failures)
        assert caller.log.failures == [("t3", "no server available")]


@pytest.mark.parametrize(
    ("login", "advice"),
    [
        ("", "put it into the URL"),
        (":wrong-secret@", "check the URL"),
        ("ann:wrong-secret@", "check the URL"),
        ("mute:secret@", "check its ACL"),
        ("deaf:secret@", "check its ACL"),
    ],
)
async def test_a_login_that_redis_rejects_is_reported_with_its_reason(
    own_redis: Redis, login: str, advice: str
) -> None:
    server = own_redis(password="secret")
    ask(server, "ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-script")
    ask(server, "ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels")
    with pytest.raises(CallError, match=advice) as caught:
        async with end(f"redis://{login}{HOST}:{server.port}", "one"):
            pass
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "secret" not in str(caught.value)


async def test_a_user_without_password_is_let_in(own_redis: Redis) -> None:
    server = own_redis(password="secret")
    ask(server, "ACL", "SETUSER", "ann", "on", "nopass", "~*", "&*", "+@all")
    async with end(f"redis://ann@{HOST}:{server.port}", "one") as one:
        await one.barrier()
        assert b"user=ann" in ask(server, "CLIENT", "LIST")


async def test_a_user_with_no_more_rights_than_needed_can_call_and_serve(own_redis: Redis) -> None:
    server = own_redis()
    commands = (
        "+hello +select +subscribe +unsubscribe +publish +ping +script|load +evalsha +eval +pexpire +set +del".split()
    )
    lists = "+llen +lindex +lrange +lpos +lrem +ltrim +rpush +exists".split()
    ask(server, "ACL", "SETUSER", "ann", "on", ">secret", "~opwire:*", "resetchannels", "&opwire:*", *commands, *lists)
    async with end(f"redis://ann:secret@{HOST}:{server.port}", "ann", "a.b") as ann:
        ask(server, "RPUSH", "opwire:serving:a.b", *(f"opwire:end:{number}" for number in range(9)))
        ann.connection.beat(BEAT)
        for _ in range(9):
            ann.connection.request("a.b", "t", b"{}", "key")
            ann.connection.request("a.b", "t", b"{}")
        await ann.log.until(lambda: len(ann.log.messages) == 18)
        assert listed(server) == [b"opwire:end:ann"]
        await ann.connection.unserve(["a.b"])
        ann.connection.beat(BEAT)
        ann.connection.request("a.b", "t", b"{}")
        await ann.log.until(lambda: ann.log.failures)
        assert ann.log.failures == [("t", "no server available")]


async def test_a_request_that_redis_refuses_fails_alone(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "caller") as caller, end(server.url, "server", "a.b"):
        ask(server, "SET", "opwire:serving:wrong.type", "")
        caller.connection.request("wrong.type", "t", b"{}")
        caller.connection.request("a.b", "u", b"{}")
        await caller.log.until(lambda: caller.log.failures)
        await caller.barrier()
        ((token, reason),) = caller.log.failures
        assert token == "t"
        assert "WRONGTYPE" in reason


async def test_a_message_that_redis_refuses_is_logged(own_redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    server = own_redis()
    ask(
        server,
        "ACL",
        "SETUSER",
        "ann",
        "on",
        ">secret",
        "~*",
        "+@all",
        "resetchannels",
        "&opwire:end:ann",
        "&opwire:all:0",
    )
    async with end(f"redis://ann:secret@{HOST}:{server.port}", "ann") as ann, end(server.url, "bob") as bob:
        with caplog.at_level(logging.WARNING, "opwire.transports.redis"):
            ann.connection.send("bob", "t", b"{}", control=False)
            await ann.barrier()
        assert "a message was not sent: Redis at" in caplog.text
        assert bob.log.messages == []


async def test_too_many_clients_are_refused_with_what_redis_says(own_redis: Redis) -> None:
    server = own_redis(maxclients="1")
    async with end(server.url, "one"):
        with pytest.raises(CallError, match="max number of clients") as caught:
            async with end(server.url, "two"):
                pass
        assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_goodbye_to_a_frozen_server_takes_no_longer_than_a_second_or_two(own_redis: Redis) -> None:
    server = own_redis()
    async with end(server.url, "one", "a.b") as one:
        server.freeze()
        await soon("it is closed", one.connection.close())
        assert one.log.ends == []


async def test_connecting_can_be_given_up(own_redis: Redis) -> None:
    server, log = own_redis(), Log()
    server.freeze()
    connection = RedisBrokerConnection(parse_url(server.url), prefix="opwire", heartbeat=BEAT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await connection.connect("one", log)
    server.thaw()
    await soon("it connects", connection.connect("one", log))
    await connection.close()
    assert log.ends == []
