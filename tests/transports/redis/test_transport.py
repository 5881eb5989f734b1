"""Calls over a real Redis server: the contract, and what Redis and its clients are known for."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.protocol import LOCAL_IDENTITY, CallHandler, PendingRequestMap
from opwire.registry import OperationRegistry
from opwire.transports.redis import RedisTransport
from opwire_conformance import LIMIT_CONTRACT, TRANSPORT_CONTRACT, check_transport
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, RedisServer
from tests.servers.faults import FaultProxy
from tests.servers.leaks import Leaks
from tests.transports.redis.ends import ask, exhaust

Redis = Callable[..., RedisServer]
BEAT = 0.2


@pytest.mark.parametrize("promise", TRANSPORT_CONTRACT)
async def test_redis_keeps_the_promise(redis_server: RedisServer, promise: str) -> None:
    async with Leaks():
        await TRANSPORT_CONTRACT[promise](lambda: RedisTransport(redis_server.url))


@pytest.mark.parametrize("promise", LIMIT_CONTRACT)
async def test_redis_keeps_the_promise_about_its_limit(redis_server: RedisServer, promise: str) -> None:
    await LIMIT_CONTRACT[promise](lambda: RedisTransport(redis_server.url, max_message=200_000), 200_000)


async def test_a_unix_socket_and_a_user_keep_the_whole_contract(own_redis: Redis, tmp_path: Path) -> None:
    """Calls run over a Redis server, 6.2 or newer, under the whole contract."""
    path = tmp_path / "redis.sock"
    own_redis(password="p@ss/word", unixsocket=str(path))
    await check_transport(lambda: RedisTransport(f"unix://default:p%40ss%2Fword@{path}?db=3"))


class Counted:
    """Operations that count how often they run: `work.count` returns its input, `work.wait` waits until it may."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.runs: list[Any] = []
        self.may = asyncio.Event()
        self._news = asyncio.Event()
        self.registry.query("work.count")(self.count)
        self.registry.query("work.wait")(self.wait)
        self.registry.query("work.large")(self.large)

    async def count(self, number: int) -> int:
        self._note(number)
        return number

    async def wait(self, number: int, filling: str = "") -> int:
        self._note(number)
        await self.may.wait()
        return number

    async def large(self, number: int, size: int) -> str:
        self._note(number)
        return "x" * size

    def _note(self, number: int) -> None:
        self.runs.append(number)
        self._news.set()

    async def until(self, number: int) -> None:
        """Wait until this number has begun."""

        async def wait() -> None:
            while len(self.runs) < number:
                self._news.clear()
                await self._news.wait()

        await soon(f"{number} handlers have begun", wait())


@asynccontextmanager
async def serving(url: str, *, heartbeat: float = BEAT, **options: Any) -> AsyncIterator[Counted]:
    counted = Counted()
    async with (
        PendingRequestMap(RedisTransport(url, heartbeat=heartbeat, **options)) as end,
        CallHandler(counted.registry, end, anonymous=LOCAL_IDENTITY),
    ):
        yield counted


def calling(url: str, *, heartbeat: float = BEAT, **options: Any) -> PendingRequestMap:
    return PendingRequestMap(RedisTransport(url, heartbeat=heartbeat, **options))


async def outcomes(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The data or the error code of each."""
    ended = await soon("every call ends", asyncio.gather(*calls, return_exceptions=True))
    return [getattr(each, "code", None) or getattr(each, "data", each) for each in ended]


async def answered(calls: PendingRequestMap) -> None:
    """Wait until calls are answered again."""

    async def attempt() -> None:
        for _ in count():
            try:
                await calls.call("work.count", {"number": -1}, timeout=1)
            except CallError:
                await asyncio.sleep(0.02)
            else:
                return

    await soon("a call is answered", attempt())


def clients(server: RedisServer) -> int:
    """How many connections of ours a server has."""
    return ask(server, "CLIENT", "LIST").count(b"name=opwire")


# --- what the client libraries are known for --------------------------------------------------------------------------


async def test_a_thousand_calls_in_flight_need_one_connection(redis_server: RedisServer) -> None:
    async with serving(redis_server.url, heartbeat=10) as counted, calling(redis_server.url, heartbeat=10) as calls:
        running = asyncio.gather(*(calls.call("work.wait", {"number": number}) for number in range(1_000)))
        await counted.until(1_000)
        assert clients(redis_server) == 2
        counted.may.set()
        answers = await soon("all are answered", running)
        assert [answer.data for answer in answers] == list(range(1_000))
        assert sorted(counted.runs) == list(range(1_000))


async def test_a_request_with_a_lost_reply_runs_once_and_its_call_ends_once(own_redis: Redis) -> None:
    server = own_redis()
    async with (
        FaultProxy(HOST, server.port) as proxy,
        serving(server.url) as counted,
        calling(f"redis://{HOST}:{proxy.port}") as calls,
    ):
        proxy.drop_replies = True
        running = [asyncio.create_task(calls.call("work.count", {"number": number})) for number in range(20)]
        await counted.until(20)
        proxy.cut()
        proxy.flow()
        ended = await soon("they end", asyncio.gather(*running, return_exceptions=True))
        assert [getattr(each, "code", each) for each in ended] == [ErrorCode.UNAVAILABLE] * 20
        await answered(calls)
        assert sorted(number for number in counted.runs if number >= 0) == list(range(20))


async def test_a_frozen_redis_is_noticed_and_calls_go_on_when_it_thaws(own_redis: Redis) -> None:
    server = own_redis()
    async with serving(server.url) as counted, calling(server.url) as calls:
        waiting = asyncio.create_task(calls.call("work.wait", {"number": 1}))
        await counted.until(1)
        server.freeze()
        with pytest.raises(CallError) as caught:
            await soon("it is noticed", waiting)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        server.thaw()
        await answered(calls)
        assert counted.runs.count(1) == 1


# --- too much ---------------------------------------------------------------------------------------------------------


async def test_what_redis_does_not_take_waits_until_it_does_or_the_deadline_of_the_call(own_redis: Redis) -> None:
    server, filling = own_redis(), "x" * 900_000
    async with serving(server.url, heartbeat=5) as counted, calling(server.url, heartbeat=5) as calls:
        counted.may.set()
        server.freeze()
        running = [
            asyncio.create_task(calls.call("work.wait", {"number": number, "filling": filling})) for number in range(30)
        ]
        with pytest.raises(CallError) as late:
            await calls.call("work.wait", {"number": 30, "filling": filling}, timeout=0.5)
        assert late.value.code is ErrorCode.TIMEOUT
        assert not any(each.done() for each in running)
        server.thaw()
        await soon("all end", asyncio.gather(*running))
        assert sorted(number for number in counted.runs if 0 <= number < 30) == list(range(30))
        await answered(calls)


async def test_an_end_that_redis_disconnects_for_reading_too_slowly_reconnects(own_redis: Redis) -> None:
    """An end that Redis closes for reading too slowly comes back; each call has one outcome."""
    server = own_redis(client_output_buffer_limit="pubsub 2mb 1mb 1")
    async with (
        FaultProxy(HOST, server.port, buffer=131_072) as proxy,
        serving(server.url, heartbeat=5) as counted,
        calling(f"redis://{HOST}:{proxy.port}", heartbeat=5) as calls,
    ):
        proxy.stall("down")
        running = [  # small replies: Valkey 9 does not count those of 16 KiB and more, which it sends without a copy
            asyncio.create_task(calls.call("work.large", {"number": number, "size": 15_000})) for number in range(1_000)
        ]

        async def closed() -> None:
            while clients(server) == 2:
                await asyncio.sleep(0.01)

        await soon("Redis closes the connection", closed())
        proxy.flow()
        ended = await soon("all end", asyncio.gather(*running, return_exceptions=True))
        lost = [each for each in ended if isinstance(each, CallError)]
        assert lost
        assert {each.code for each in lost} == {ErrorCode.UNAVAILABLE}
        await answered(calls)
        assert max(counted.runs.count(number) for number in range(1_000)) == 1


async def test_calls_go_on_for_many_beats_while_redis_has_no_memory_left(own_redis: Redis) -> None:
    server = own_redis()
    async with serving(server.url, heartbeat=0.2) as counted, calling(server.url, heartbeat=0.2) as calls:
        exhaust(server)
        async with asyncio.TaskGroup() as group:
            group.create_task(calls.call("work.wait", {"number": 1}))
            await counted.until(1)
            began = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < began + 1.5:  # seven beats: the lease has run out twice
                await calls.call("work.count", {"number": 2}, timeout=5)
            counted.may.set()
        assert counted.runs.count(1) == 1


# --- what can be lost -------------------------------------------------------------------------------------------------


async def test_calls_in_flight_survive_that_redis_loses_its_data_and_new_ones_find_their_way(own_redis: Redis) -> None:
    server = own_redis()
    async with serving(server.url) as counted, calling(server.url) as calls:
        waiting = asyncio.create_task(calls.call("work.wait", {"number": 1}))
        await counted.until(1)
        ask(server, "FLUSHALL")
        ask(server, "SCRIPT", "FLUSH")
        await answered(calls)
        counted.may.set()
        answer = await soon("it is answered", waiting)
        assert answer.data == 1
        assert counted.runs.count(1) == 1


async def test_scripts_that_are_flushed_while_calls_run_fail_no_call(own_redis: Redis) -> None:
    server = own_redis()
    async with serving(server.url, heartbeat=10) as counted, calling(server.url, heartbeat=10) as calls:

        async def flush() -> None:
            for _ in range(20):
                ask(server, "SCRIPT", "FLUSH")
                await asyncio.sleep(0)

        numbers = range(500)
        calling_all = outcomes([calls.call("work.count", {"number": number}) for number in numbers])
        answers, _ = await asyncio.gather(calling_all, flush())
        assert answers == list(numbers)
        assert sorted(counted.runs) == list(numbers)


async def test_a_server_that_crashed_fails_no_call(own_redis: Redis) -> None:
    server = own_redis()
    async with serving(server.url) as counted, calling(server.url) as calls:
        for number in range(5):  # as kill -9 leaves them: listed, with a lease, without a process
            ask(server, "SET", f"opwire:end:crashed-{number}", "")
            ask(server, "LPUSH", "opwire:serving:work.count", f"opwire:end:crashed-{number}")
        assert await outcomes([calls.call("work.count", {"number": number}) for number in range(30)]) == list(range(30))
        assert len(counted.runs) == 30
        assert ask(server, "LLEN", "opwire:serving:work.count") == 1


async def test_calls_by_way_of_a_demoted_primary_fail_with_what_is_wrong_and_what_to_do(own_redis: Redis) -> None:
    server = own_redis()
    async with calling(server.url) as calls:
        ask(server, "REPLICAOF", "127.0.0.1", 1)

        async def refused() -> str:
            while True:
                try:
                    await calls.call("work.count", {"number": 1})
                except CallError as error:
                    if "primary" in error.message:
                        return error.message
                await asyncio.sleep(0.01)

        message = await soon("it is noticed", refused())
        assert "is a read-only replica, perhaps a demoted primary: connect to its primary" in message


async def test_prefixes_do_not_meet(redis_server: RedisServer) -> None:
    async with serving(redis_server.url, prefix="one"), calling(redis_server.url, prefix="other") as calls:
        assert await outcomes([calls.call("work.count", {"number": 1})]) == [ErrorCode.UNAVAILABLE]
        assert await calls.transport.servers(wait=0.05) == []


# --- the way in -------------------------------------------------------------------------------------------------------


async def test_a_wrong_password_is_unavailable_and_leaves_nothing_behind(own_redis: Redis) -> None:
    server = own_redis(password="right")
    async with Leaks():
        with pytest.raises(CallError, match="check the URL") as caught:
            await calling(f"redis://:wrong@{HOST}:{server.port}").start()
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert "wrong" not in str(caught.value)


def unauthenticated(protocol: int) -> ssl.SSLContext:
    """TLS without certificates, so that this test has no keys that run out: both sides have to want it."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aNULL:@SECLEVEL=0")
    return context


@asynccontextmanager
async def behind_tls(server: RedisServer) -> AsyncIterator[int]:
    """A port where a Redis server is reached by TLS, as behind stunnel."""
    copying: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside, outside = await asyncio.open_connection(HOST, server.port)
        for each in (copy(reader, outside), copy(inside, writer)):
            copying.add(asyncio.create_task(each))

    async with await asyncio.start_server(serve, HOST, 0, ssl=unauthenticated(ssl.PROTOCOL_TLS_SERVER)) as listener:
        yield listener.sockets[0].getsockname()[1]
    if copying:
        await asyncio.wait(copying, timeout=5)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # either side may reset its connection instead of closing it
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_calls_pass_through_tls(redis_server: RedisServer) -> None:
    async with behind_tls(redis_server) as port:
        context = unauthenticated(ssl.PROTOCOL_TLS_CLIENT)
        async with serving(redis_server.url), calling(f"rediss://{HOST}:{port}", ssl=context) as calls:
            assert await outcomes([calls.call("work.count", {"number": 1})]) == [1]


async def test_a_server_without_proof_of_its_identity_is_rejected(redis_server: RedisServer) -> None:
    async with behind_tls(redis_server) as port:
        with pytest.raises(CallError, match="cannot be reached") as caught:
            await calling(f"rediss://{HOST}:{port}").start()
        assert caught.value.code is ErrorCode.UNAVAILABLE


def test_a_tls_context_for_a_url_without_tls_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="rediss://"):
        RedisTransport("redis://localhost", ssl=ssl.create_default_context())
