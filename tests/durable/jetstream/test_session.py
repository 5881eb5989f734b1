"""A connection for questions to JetStream, which comes back when its server does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import pytest
from nats.aio.msg import Msg

from opwire.durable.jetstream import session as jetstream_session
from opwire.durable.jetstream.session import ApiResponse, JetStreamSession, SessionListener
from opwire.errors import CallError
from opwire.transports.nats import connection
from opwire.transports.nats.connection import Message, NatsServers, publish
from opwire_conformance.harness import soon
from tests.durable.jetstream.journals import unavailable, until
from tests.servers.brokers import HOST, NatsServer
from tests.servers.faults import FaultProxy
from tests.transports.nats.ends import ANYONE, flushed, plain_client

OwnNats = Callable[..., NatsServer]
INFO = "INFO"


class Log(SessionListener):
    """A listener that records its events."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[str, Message]] = []
        self.news: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self.refusals: list[tuple[str, CallError]] = []
        self.losses: list[CallError] = []
        self.prepared = 0

    def arrived(self, token: str, message: Message) -> None:
        self.arrivals.append((token, message))

    def heard(self, subject: str, payload: bytes) -> None:
        self.news.put_nowait((subject, payload))

    def refused(self, subject: str, error: CallError) -> None:
        self.refusals.append((subject, error))

    def lost(self, error: CallError) -> None:
        self.losses.append(error)

    async def prepare(self) -> None:
        self.prepared += 1


@asynccontextmanager
async def session(
    url: str, listener: SessionListener | None = None, domain: str | None = None
) -> AsyncIterator[JetStreamSession]:
    made = JetStreamSession(NatsServers(url), ANYONE, f"test.in.{token_hex(4)}.", domain)
    made.listeners.append(listener or Log())
    try:
        yield made
    finally:
        await made.close()


async def test_it_connects_when_it_is_first_used_and_only_once(jetstream_server: NatsServer) -> None:
    log = Log()
    async with FaultProxy(HOST, jetstream_server.port) as proxy, session(f"{HOST}:{proxy.port}", log) as made:
        await soon("all are answered", asyncio.gather(*(made.api(ApiResponse, INFO) for _ in range(20))))
        assert (proxy.accepted, log.prepared) == (1, 1)


async def test_it_connects_again_after_the_server_was_away(own_nats: OwnNats) -> None:
    server, log = own_nats(jetstream=True), Log()
    async with session(server.url, log) as made:
        await made.api(ApiResponse, INFO)
        server.kill()
        assert f"{HOST}:{server.port}" in await unavailable(made.api(ApiResponse, INFO))
        server.start()
        await soon("it is back", made.api(ApiResponse, INFO))
    assert log.prepared == 2
    assert [error.code for error in log.losses][:1] == ["UNAVAILABLE"]


async def test_what_was_asked_when_the_connection_broke_is_refused_at_once(jetstream_server: NatsServer) -> None:
    async with FaultProxy(HOST, jetstream_server.port) as proxy, session(f"{HOST}:{proxy.port}") as made:
        await made.connect()
        proxy.stall("down")
        asked = asyncio.create_task(made.api(ApiResponse, INFO))
        await asyncio.sleep(0.05)
        proxy.cut()
        assert "was lost" in await unavailable(asked)


async def test_a_server_that_does_not_answer_is_lost_and_found_again(
    own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 0.3)
    for limit, value in (("_BEAT_SECONDS", 0.1), ("RESPONSE_TIMEOUT_SECONDS", 60)):
        monkeypatch.setattr(jetstream_session, limit, value)
    server = own_nats(jetstream=True)
    async with session(server.url) as made:
        await made.api(ApiResponse, INFO)
        server.freeze()
        assert "does not answer" in await unavailable(made.api(ApiResponse, INFO))
        assert "does not answer" in await unavailable(made.api(ApiResponse, INFO))  # not even to a new connection
        server.thaw()
        await soon("it is back", made.api(ApiResponse, INFO))


async def test_a_request_that_is_lost_with_the_leader_is_sent_again_unless_it_may_not_be(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of a JetStream leader that dies is asked again, not waited for."""
    monkeypatch.setattr(jetstream_session, "_REPEAT_SECONDS", 0.05)
    heard = 0

    async def answer_the_second(message: Msg) -> None:
        nonlocal heard
        heard += 1
        if heard == 2:
            await message.respond(b"{}")

    async with plain_client(nats_server.url) as leader, session(nats_server.url, domain="slow") as made:
        await leader.subscribe("$JS.slow.>", cb=answer_the_second)
        await flushed(leader)
        await soon("it is answered", made.api(ApiResponse, INFO))
        heard = 0
        monkeypatch.setattr(jetstream_session, "RESPONSE_TIMEOUT_SECONDS", 0.5)
        assert "does not answer" in await unavailable(made.api(ApiResponse, INFO, once=True))
        assert heard == 1


async def test_a_request_that_jetstream_does_not_answer_affects_no_other(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_session, "RESPONSE_TIMEOUT_SECONDS", 0.2)
    log = Log()
    async with plain_client(nats_server.url) as lazy, session(nats_server.url, log, "lazy") as made:
        await lazy.subscribe("$JS.lazy.>")
        await flushed(lazy)
        assert "has a leader" in await unavailable(made.api(ApiResponse, INFO))
        await made.connect()
    assert log.prepared == 1


async def test_what_jetstream_refuses_is_repeated_with_advice(jetstream_server: NatsServer) -> None:
    async with session(jetstream_server.url) as made:
        message = await unavailable(made.api(ApiResponse, "STREAM.CREATE.x", {"name": "x", "num_replicas": 3}))
        assert "non-clustered" in message
        assert "is for clusters" in message
        missing = await made.api(ApiResponse, "STREAM.INFO.nowhere", unless=[10059])
        assert missing.error is not None


async def test_a_missing_stream_has_the_connection_prepared_again(jetstream_server: NatsServer) -> None:
    log = Log()
    async with session(jetstream_server.url, log) as made:
        await unavailable(made.api(ApiResponse, "STREAM.INFO.nowhere"))
        await unavailable(made.store("no.stream.here", b""))
        await made.connect()
    assert log.prepared == 3


async def test_a_connection_that_cannot_be_prepared_is_closed(jetstream_server: NatsServer) -> None:
    class Failing(SessionListener):
        async def prepare(self) -> None:
            raise CallError("UNAVAILABLE", "not prepared")

    async with FaultProxy(HOST, jetstream_server.port) as proxy:
        async with session(f"{HOST}:{proxy.port}", Failing()) as made:
            for _ in range(2):
                assert await unavailable(made.connect()) == "not prepared"

            async def closed() -> bool:
                return proxy.connections == 0

            await until(closed)
        assert proxy.accepted == 2


async def test_an_answer_that_cannot_be_read_is_reported(nats_server: NatsServer) -> None:
    async with plain_client(nats_server.url) as odd, session(nats_server.url, domain="odd") as made:

        async def answer(question: Any) -> None:
            await question.respond(b"what?")

        await odd.subscribe("$JS.odd.>", cb=answer)
        await flushed(odd)
        assert "invalid response" in await unavailable(made.api(ApiResponse, INFO))


async def test_what_is_too_large_is_refused_and_the_connection_lives(own_nats: OwnNats) -> None:
    server = own_nats(jetstream=True, max_payload=5000)
    async with session(server.url) as made:
        await made.connect()
        head = b"NATS/1.0\r\na: 1\r\n\r\n"
        with pytest.raises(CallError, match="PAYLOAD_TOO_LARGE"):
            made.send("x", b"x" * (5001 - len(head)), headers=head)
        made.send("x", b"x" * (5000 - len(head)), headers=head)
        await made.api(ApiResponse, INFO)


async def test_what_is_listened_to_is_heard_until_it_is_forgotten(nats_server: NatsServer) -> None:
    log = Log()
    async with plain_client(nats_server.url) as teller, session(nats_server.url, log) as made:
        await made.connect()
        made.listen("test.news")
        await unavailable(made.api(ApiResponse, INFO))  # the server has done what was sent before
        await teller.publish("test.news", b"1")
        assert await soon("it is heard", log.news.get()) == ("test.news", b"1")
        made.forget("test.news")
        await unavailable(made.api(ApiResponse, INFO))
        await teller.publish("test.news", b"2")
        await flushed(teller)
        await unavailable(made.api(ApiResponse, INFO))
        assert log.news.empty()


async def test_a_closed_session_refuses_and_can_be_closed_again(jetstream_server: NatsServer) -> None:
    async with session(jetstream_server.url) as made:
        await made.api(ApiResponse, INFO)
        for _ in range(2):
            await made.close()
        assert "is closed" in await unavailable(made.api(ApiResponse, INFO))
        made.forget("test.news")
        for use in (lambda: made.send("x", b""), lambda: made.listen("x")):
            with pytest.raises(CallError, match="UNAVAILABLE"):
                use()


async def test_protocol_errors_reach_the_peer_that_caused_them(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    async with session(nats_server.url, log) as made:
        made.on_error("Maximum Fun Exceeded")
        made.on_error('Permissions Violation for Publish to "$JS.API.X"')
    assert [subject for subject, _ in log.refusals] == ["$JS.API.X"]
    assert "Maximum Fun" in caplog.text


def test_headers_have_a_size_of_their_own() -> None:
    assert publish("a.b", "c", b"fg", b"NATS/1.0\r\nd: e\r\n\r\n") == (
        b"HPUB a.b c 18 20\r\nNATS/1.0\r\nd: e\r\n\r\nfg\r\n"
    )
