"""The primary that Sentinels or a cluster know: URLs, lookups, and the error without one."""

import asyncio
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opwire.durable.redis.session import RedisSession
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.transports.redis import servers
from opwire.transports.redis.connection import Target, command, parse_url
from opwire.transports.redis.servers import ClusterNodes, Election, Sentinels, parse_servers
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, RedisServer
from tests.transports.redis.ends import ask, end
from tests.transports.redis.service import NAME, RedisCluster, SentinelServer
from tests.transports.redis.test_transport import behind_tls, unauthenticated

SECRET = "s3cret"


# --- the URL ----------------------------------------------------------------------------------------------------------


def test_a_url_names_sentinels_the_service_and_both_credentials() -> None:
    url = f"rediss+sentinel://ann:{SECRET}@a,b:7000,[::1]:7001/my%20service/2?sentinel_user=bob&sentinel_password=%2B"
    made = parse_servers(url)
    assert isinstance(made, Sentinels)
    sentinel = {"tls": True, "user": "bob", "password": "+", "kind": "Sentinel"}
    assert made.servers == [
        Target("a", 26379, **sentinel),
        Target("b", 7000, **sentinel),
        Target("::1", 7001, **sentinel),
    ]
    assert made.primary_options == Target("localhost", 6379, tls=True, user="ann", password=SECRET, db=2)
    assert all(each.ssl is made.primary_options.ssl for each in made.servers)
    assert made.name == "the Redis service 'my service' of the Sentinels at a:26379, b:7000, [::1]:7001"
    assert SECRET not in repr([*made.servers, made.primary_options])


def test_a_url_names_servers_of_a_cluster() -> None:
    made = parse_servers(f"rediss+cluster://ann:{SECRET}@a,b:7000", prefix="shop")
    assert isinstance(made, ClusterNodes)
    login = {"tls": True, "user": "ann", "password": SECRET}
    assert made.servers == [Target("a", 6379, **login), Target("b", 7000, **login)]
    assert (made.name, made.key_prefix("shop")) == ("the Redis Cluster at a:6379, b:7000", "{shop}")
    for prefix in ("", "{shop}", "sh}op"):
        with pytest.raises(UsageError, match="has no braces"):
            parse_servers("redis+cluster://a", prefix=prefix)


def test_the_url_of_one_server_is_that_server() -> None:
    assert parse_servers("redis://cache/2") == parse_url("redis://cache/2")


@pytest.mark.parametrize(
    "url",
    [
        f"redis+sentinel://ann:{SECRET}@a",  # no service
        f"redis+sentinel://ann:{SECRET}@a/",
        f"redis+sentinel://ann:{SECRET}@/main",  # no Sentinel
        f"redis+sentinel://ann:{SECRET}@a,/main",
        f"redis+sentinel://ann:{SECRET}@a:port/main",
        f"redis+sentinel://ann:{SECRET}@a/main/one",
        f"redis+sentinel://ann:{SECRET}@a/main/1/2",
        f"redis+sentinel://ann:{SECRET}@a/main?sentinel={SECRET}",
        f"redis+sentinel://ann:{SECRET}@a/main?{SECRET}",
        f"redis+sentinel://ann:{SECRET}@a/main#{SECRET}",
        f"redis+cluster://ann:{SECRET}@a/1",  # a cluster has one database
        f"redis+cluster://ann:{SECRET}@a/?sentinel_user={SECRET}",
        f"redis+cluster://ann:{SECRET}@",
        f"unix+sentinel://ann:{SECRET}@a/main",
        f"redis+tower://ann:{SECRET}@a/main",
    ],
)
def test_an_invalid_url_is_rejected_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError, match=r"not the URL of a Redis server.*redis\+sentinel://") as caught:
        parse_servers(url)
    assert SECRET not in str(caught.value)


def test_a_tls_context_is_for_tls() -> None:
    with pytest.raises(UsageError, match="rediss://"):
        parse_servers("redis+sentinel://a/main", ssl.create_default_context())


# --- lookups ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sentinel(brokers_run_here: None) -> Iterator[Callable[..., SentinelServer]]:
    """Starts Sentinels. They need not agree, and there need not be a server at the port that they name."""
    made: list[SentinelServer] = []

    def start(port: int = 1, **options: Any) -> SentinelServer:
        made.append(SentinelServer(port, **options))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def url_of(*sentinels: RedisServer, login: str = "", service: str = NAME, options: str = "") -> str:
    hosts = ",".join(f"{HOST}:{each.port}" for each in sentinels)
    return f"redis+sentinel://{login}{hosts}/{service}{options}"


async def unavailable(url: str) -> str:
    with pytest.raises(CallError) as caught:
        await soon("the lookup fails", parse_servers(url).primary())
    assert caught.value.code is ErrorCode.UNAVAILABLE
    return caught.value.message


async def test_the_address_of_the_latest_election_is_used_even_if_most_sentinels_know_an_earlier_one(
    sentinel: Callable[..., SentinelServer],
) -> None:
    stale = [sentinel(9, epoch=3), sentinel(9, epoch=3)]
    informed = sentinel(7, epoch=4)
    assert (await parse_servers(url_of(*stale, informed)).primary()).port == 7
    assert (await parse_servers(url_of(*stale)).primary()).port == 9


async def test_sentinels_that_are_gone_or_silent_are_not_waited_for(sentinel: Callable[..., SentinelServer]) -> None:
    gone, silent, alive = sentinel(), sentinel(), sentinel(7)
    gone.kill()
    silent.freeze()
    assert (await soon("it is found", parse_servers(url_of(gone, silent, alive)).primary())).port == 7


async def test_each_sentinel_that_does_not_know_the_primary_is_named_with_the_reason(
    sentinel: Callable[..., SentinelServer], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "LOOKUP_TIMEOUT", 0.5)
    gone, silent, locked, other = sentinel(), sentinel(), sentinel(password=SECRET), sentinel()
    gone.kill()
    silent.freeze()
    message = await unavailable(url_of(gone, silent, locked, other, redis_server, service="elsewhere"))
    for reason in (
        f"Sentinel at {HOST}:{gone.port} cannot be reached",
        f"Sentinel at {HOST}:{silent.port} does not answer within 0.5 s",
        f"Sentinel at {HOST}:{locked.port} requires a password",
        f"Sentinel at {HOST}:{other.port} does not monitor 'elsewhere'",
        f"Sentinel at {HOST}:{redis_server.port} is not a Sentinel: connect to it with redis://",
    ):
        assert reason in message
    message = await unavailable(url_of(locked, options=f"?sentinel_password={SECRET}x"))
    assert "rejected this user and password" in message
    assert SECRET not in message


@pytest.mark.parametrize("address", [(0, b"", 1), (0, b"a" * 254, 1), (0, b"\xff", 1), (0, b"a", 0), (0, b"a", b"x")])
def test_an_address_from_a_server_is_checked(address: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ValueError):
        Election.of(*address)


async def test_a_server_that_answers_anything_else_is_named() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"%1\r\n+mode\r\n+sentinel\r\n", b":7\r\n", b":7\r\n"):
            await reader.read(1000)
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(talk, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "returned an invalid address" in await unavailable(f"redis+sentinel://{HOST}:{port}/main")


async def test_the_server_of_each_prefix_is_found_in_a_cluster_and_its_other_servers_are_remembered(
    brokers_run_here: None,
) -> None:
    with RedisCluster() as cluster:
        used: set[int] = set()
        for prefix in ("opwire", "a", "b", "c", "d"):
            async with end(cluster.url, "one", "a.b", prefix=prefix) as one:
                one.connection.request("a.b", "t0ken", b"{}")
                await one.log.until(lambda one=one: one.log.messages)
                target = await parse_servers(cluster.url, prefix=prefix).primary()
                used.add(target.port)
        assert used == {each.port for each in cluster.servers[:3]}
        with pytest.raises(CallError, match=r"does not have these keys: connect with redis\+cluster://"):
            async with end(f"redis://{HOST}:{cluster.servers[0].port}", "one", "a.b", prefix="{a}"):
                pass
        known = parse_servers(cluster.url, prefix="a")
        before = await known.primary()
        assert before.port == cluster.servers[2].port  # which is not in the URL
        for each in cluster.servers[:2]:
            each.kill()
        assert await known.primary() == before


async def test_a_server_without_a_cluster_is_named(redis_server: RedisServer) -> None:
    message = await unavailable(f"redis+cluster://{HOST}:{redis_server.port}")
    assert message == f"Redis at {HOST}:{redis_server.port} is not part of a cluster: connect to it with redis://"


# --- connections ------------------------------------------------------------------------------------------------------


async def test_passwords_of_servers_and_sentinels_are_different(
    sentinel: Callable[..., SentinelServer], own_redis: Callable[..., RedisServer]
) -> None:
    primary = own_redis(password="of the server")
    watching = sentinel(primary.port, password=SECRET, auth="of the server")
    url = url_of(watching, login=":of%20the%20server@", options=f"?sentinel_password={SECRET}")
    async with end(url, "one", "a.b") as one:
        one.connection.request("a.b", "t0ken", b"{}")
        await one.log.until(lambda: one.log.messages)


async def test_a_server_that_is_not_the_primary_yet_is_refused(
    sentinel: Callable[..., SentinelServer], own_redis: Callable[..., RedisServer]
) -> None:
    replica = own_redis(replicaof=f"{HOST} 1")
    session = RedisSession(parse_servers(url_of(sentinel(replica.port))))
    with pytest.raises(CallError, match="is a read-only replica"):
        await session.ask(command("PING"))
    await session.close()


async def test_sentinels_and_servers_are_reached_by_tls(
    sentinel: Callable[..., SentinelServer], redis_server: RedisServer
) -> None:
    async with behind_tls(redis_server) as port, behind_tls(sentinel(port)) as sentinel_port:
        url = f"rediss+sentinel://{HOST}:{sentinel_port}/{NAME}"
        assert "cannot be reached" in await unavailable(url)  # they have no certificates
        session = RedisSession(parse_servers(url, unauthenticated(ssl.PROTOCOL_TLS_CLIENT)))
        assert await session.ask(command("PING")) == [b"PONG"]
        await session.close()


async def test_a_connection_ends_when_a_sentinel_announces_another_primary(
    sentinel: Callable[..., SentinelServer], own_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the Sentinel that was asked for announcements dies meanwhile."""
    monkeypatch.setattr(servers, "_FIRST_PAUSE", 0.01)
    old, new = own_redis(), own_redis()
    first, second = sentinel(old.port), sentinel(old.port)
    async with end(url_of(first, second), "one") as one:
        await soon("announcements are expected", until(lambda: subscribers(first) + subscribers(second) == 1))
        dying, left = (first, second) if subscribers(first) else (second, first)
        dying.kill()
        await soon("announcements are expected again", until(lambda: subscribers(left) == 1))
        announce(left, new.port, epoch=7)
        await one.log.until(lambda: one.log.ends)
        assert one.log.ends == ["another server has become the primary"]
        await one.connection.connect("again", one.log)
        assert b"name=opwire" in ask(new, "CLIENT", "LIST")


def announce(sentinel: SentinelServer, port: int, *, epoch: int) -> None:
    """Tell a Sentinel of an election, as another Sentinel would."""
    said = f"{HOST},1,{'a' * 40},{epoch},{NAME},{HOST},{port},{epoch}"
    ask(sentinel, "PUBLISH", "__sentinel__:hello", said)


def subscribers(sentinel: SentinelServer) -> int:
    try:
        return ask(sentinel, "CLIENT", "LIST").count(b" sub=1 ")
    except ConnectionError:
        return 0


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
