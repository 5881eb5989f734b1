"""One connection to a real server: how it is opened, what it waits for, how it ends."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.transports.nats.connection import (
    PING,
    PONG,
    Info,
    Message,
    NatsConnection,
    NatsCredentials,
    NatsServers,
    Security,
    ServerAddress,
    open_any,
    parse_server,
    publish,
    subscribe,
)
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, NatsServer
from tests.servers.faults import FaultProxy
from tests.transports.nats.ends import ANYONE
from tests.transports.nats.keys import USER, Certificate, Nkey, Realm
from tests.transports.recording import Recorder

StartNats = Callable[..., NatsServer]


class Log(Recorder):
    """An owner of a connection that records its callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []
        self.infos: list[Info] = []
        self.complaints: list[str] = []
        self.reasons: list[str] = []

    def on_message(self, message: Message) -> None:
        self.record(self.messages, message)

    def on_info(self, info: Info) -> None:
        self.record(self.infos, info)

    def on_error(self, text: str) -> None:
        self.record(self.complaints, text)

    def on_lost(self, reason: str) -> None:
        self.record(self.reasons, reason)


@asynccontextmanager
async def opened(
    server: ServerAddress | str, security: Security = ANYONE, subscriptions: bytes = b""
) -> AsyncIterator[tuple[NatsConnection, Log]]:
    log = Log()
    connection = NatsConnection(parse_server(server) if isinstance(server, str) else server, log)
    await soon("it opens or fails", connection.open(security, subscriptions))
    try:
        yield connection, log
    finally:
        await connection.close()


async def refusal(server: ServerAddress | str, security: Security = ANYONE, subscriptions: bytes = b"") -> str:
    """Why a connection could not be opened."""
    with pytest.raises(CallError) as failure:
        async with opened(server, security, subscriptions):
            pass
    assert failure.value.code is ErrorCode.UNAVAILABLE
    return failure.value.message


# --- credentials ------------------------------------------------------------------------------------------------------


async def test_user_and_password_come_from_the_url_or_are_given(own_nats: StartNats) -> None:
    server = own_nats(user="ann", password="s3cret")
    async with opened(server.url):
        pass
    async with opened(f"nats://{HOST}:{server.port}", Security(NatsCredentials("ann", "s3cret"))):
        pass


async def test_a_token_comes_from_the_url_or_is_given(own_nats: StartNats) -> None:
    server = own_nats(token="t0ken")
    async with opened(server.url):
        pass
    async with opened(f"nats://{HOST}:{server.port}", Security(NatsCredentials(token="t0ken"))):
        pass


async def test_an_nkey_proves_an_identity(own_nats: StartNats, tmp_path: Path) -> None:
    known, unknown = Nkey(USER), Nkey(USER)
    server = own_nats(authorization={"users": [{"nkey": known.public}]})
    file = tmp_path / "user.nk"
    for key in (unknown, known):
        file.write_text(key.seed)
        security = Security(NatsCredentials(file=file))
        if key is known:
            async with opened(server.url, security) as (connection, _):
                assert await connection.barrier() == []
        else:
            assert "Authorization Violation" in await refusal(server.url, security)


async def test_a_creds_file_proves_an_identity(own_nats: StartNats, tmp_path: Path) -> None:
    realm, other = Realm(), Realm()
    server = own_nats(**realm.settings)
    file = tmp_path / "user.creds"
    file.write_text(realm.creds)
    async with opened(server.url, Security(NatsCredentials(file=file))) as (connection, _):
        assert await connection.barrier() == []
    file.write_text(other.creds)
    assert "Authorization Violation" in await refusal(server.url, Security(NatsCredentials(file=file)))


async def test_a_wrong_password_is_refused_with_a_message_that_says_what_to_do_and_shows_no_secret(
    own_nats: StartNats, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    server = own_nats(user="ann", password="s3cret")
    for url in (f"nats://ann:wr0ng@{HOST}:{server.port}", f"nats://wr0ng@{HOST}:{server.port}"):
        message = await refusal(url)
        assert message == (
            f"nats://{HOST}:{server.port} refused: Authorization Violation "
            "(give the user and password, the token or the credentials that it expects)"
        )
    assert "wr0ng" not in caplog.text


async def test_an_end_that_may_not_have_an_inbox_is_refused(own_nats: StartNats) -> None:
    users = [{"user": "ann", "password": "s3cret", "permissions": {"subscribe": ["other.>"]}}]
    server = own_nats(authorization={"users": users})
    message = await refusal(f"nats://ann:s3cret@{HOST}:{server.port}", ANYONE, subscribe("opwire.in.x.*", "in"))
    assert 'Permissions Violation for Subscription to "opwire.in.x.*"' in message
    assert "allow it in the permissions of this user" in message


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_tls_is_used_where_the_server_demands_it_or_the_url_asks_for_it(
    own_nats: StartNats, tmp_path: Path
) -> None:
    """TLS is used where either side wants it, is checked, and is never given up for plain text."""
    certificate = Certificate(tmp_path)
    server = own_nats(tls=certificate.settings)
    trusting = Security(NatsCredentials(), certificate.trust)
    for scheme in ("nats", "tls"):
        async with opened(f"{scheme}://{HOST}:{server.port}", trusting, subscribe("a", 1)) as (connection, log):
            connection.link.write(publish("a", "", b"x" * 100_000))
            await log.until(lambda: log.messages)
            assert log.messages[0].payload == b"x" * 100_000


async def test_tls_comes_first_where_the_server_is_set_so(own_nats: StartNats, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    server = own_nats(tls=certificate.settings | {"handshake_first": "auto"})
    async with opened(f"tls://{HOST}:{server.port}", Security(NatsCredentials(), certificate.trust, True)) as (
        connection,
        _,
    ):
        assert await connection.barrier() == []


async def test_a_certificate_of_an_unknown_authority_is_rejected(own_nats: StartNats, tmp_path: Path) -> None:
    server = own_nats(tls=Certificate(tmp_path).settings)
    for security in (ANYONE, Security(NatsCredentials(), ssl.create_default_context())):
        assert "its certificate is not trusted: " in await refusal(f"nats://ann:s3cret@{HOST}:{server.port}", security)


async def test_a_server_without_tls_gets_nothing_from_an_end_that_asks_for_it(nats_server: NatsServer) -> None:
    async with FaultProxy(HOST, nats_server.port) as proxy:
        assert "does not offer TLS" in await refusal(f"tls://ann:s3cret@{HOST}:{proxy.port}")
        assert "does not offer TLS" in await refusal(
            f"nats://ann:s3cret@{HOST}:{proxy.port}", Security(NatsCredentials(), ssl.create_default_context())
        )
        assert proxy.passed["up"] == 0


async def test_the_name_in_a_certificate_may_be_that_of_another_server_of_the_cluster(
    own_nats: StartNats, tmp_path: Path
) -> None:
    certificate = Certificate(tmp_path)
    server = own_nats(tls=certificate.settings)
    trusting = Security(NatsCredentials(), certificate.trust)
    assert "its certificate is not trusted: " in await refusal(ServerAddress("localhost", server.port), trusting)
    async with opened(ServerAddress("localhost", server.port, tls_name=HOST), trusting):
        pass


# --- other servers ----------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_named(own_nats: StartNats) -> None:
    """A NATS server that is absent, full, too old or something else is named, with the reason."""
    server = own_nats()
    server.stop()
    assert f"nats://{HOST}:{server.port} cannot be reached: " in await refusal(server.url)


@asynccontextmanager
async def greeting(text: bytes, *, then_close: bool = False) -> AsyncIterator[str]:
    """A server that says something, and is not a NATS server of today."""

    done = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        if not then_close:
            await reader.read()
        writer.close()
        done.set()

    server = await asyncio.start_server(greet, HOST, 0)
    async with server:
        yield f"nats://{HOST}:{server.sockets[0].getsockname()[1]}"
        await soon("the server has seen its client leave", done.wait())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"220 smtp.example ESMTP\r\n", "invalid NATS protocol data: unknown command '220'"),
        (b"INFO what?\r\n", "INFO cannot be parsed"),
        (b'INFO {"headers":true}\r\nPONG\r\nWHAT?\r\n', "unknown command 'WHAT?'"),
        (b'INFO {"version":"2.1.9","max_payload":1048576}\r\n', "opwire needs nats-server 2.2 or newer"),
    ],
)
async def test_a_server_that_is_not_one_of_nats_is_given_up(text: bytes, complaint: str) -> None:
    async with greeting(text) as url:
        assert complaint in await refusal(url)


async def test_a_server_that_hangs_up_is_given_up() -> None:
    for text in (b"", b'INFO {"headers":true}\r\n'):
        async with greeting(text, then_close=True) as url:
            assert "cannot be used: the peer closed the connection" in await refusal(url)


async def test_a_server_that_is_full_says_so(own_nats: StartNats) -> None:
    server = own_nats(max_connections=2)

    async def one_too_many() -> None:
        async with opened(server.url), opened(server.url), opened(server.url):
            pass

    with pytest.raises(CallError) as failure:
        await one_too_many()
    assert "maximum connections exceeded (raise its `max_connections`)" in failure.value.message


# --- order and life ---------------------------------------------------------------------------------------------------


async def test_a_host_that_cannot_be_looked_up_keeps_us_from_no_other(nats_server: NatsServer) -> None:
    servers = NatsServers(nats_server.url)
    servers.discover(ServerAddress("a", 1), ["\0:1", "a..b:1", "\ud800:1", "x" * 64 + ".y:1"])
    for _ in range(10):  # they are tried in random order
        connection = await soon("it connects", open_any(servers, Log(), ANYONE, b""))
        await connection.close()


async def test_the_barrier_says_that_all_before_it_was_done(nats_server: NatsServer) -> None:
    async with opened(nats_server.url) as (one, log), opened(nats_server.url) as (other, _):
        for number in range(300):
            subject = f"barrier.{number}"
            one.link.write(subscribe(subject, number))
            await one.barrier()
            other.link.write(publish(subject, "", b"at once"))
            await other.barrier()
        await log.until(lambda: len(log.messages) == 300)


async def test_the_answer_to_a_beat_is_not_taken_for_that_to_a_barrier() -> None:
    """A server that answers so slowly cannot be had for real."""
    answer = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers":true}\r\n')
        await reader.readuntil(PING)
        writer.write(PONG)
        await reader.readuntil(PING)  # of the beat
        await reader.readuntil(PING)  # of the barrier
        writer.write(PONG + b"MSG a 1 0\r\n\r\n")
        await answer.wait()
        writer.write(PONG)
        await reader.readuntil(PING)  # of the end
        writer.write(PONG)
        await reader.read()
        writer.close()
        answer.clear()

    async with await asyncio.start_server(talk, HOST, 0) as server:
        async with opened(ServerAddress(HOST, server.sockets[0].getsockname()[1])) as (connection, log):
            connection.beat()
            barrier = asyncio.create_task(connection.barrier())
            await log.until(lambda: log.messages)
            assert not barrier.done()
            answer.set()
            assert await soon("its own answer comes", barrier) == []

        async def seen() -> None:
            while answer.is_set():
                await asyncio.sleep(0.01)

        await soon("the server has seen us leave", seen())


async def test_the_barrier_tells_what_the_server_did_not_do(own_nats: StartNats) -> None:
    users = [{"user": "ann", "password": "s3cret", "permissions": {"subscribe": {"deny": ["secret"]}}}]
    server = own_nats(authorization={"users": users})
    async with opened(f"nats://ann:s3cret@{HOST}:{server.port}") as (connection, log):
        connection.link.write(subscribe("secret", 1) + subscribe("open", 2))
        assert await connection.barrier() == ['Permissions Violation for Subscription to "secret"']
        assert await connection.barrier() == []
        assert log.reasons == []


async def test_waiting_at_the_barrier_ends_with_the_connection(own_nats: StartNats) -> None:
    server = own_nats()
    async with opened(server.url) as (connection, log):
        server.freeze()
        waiting = asyncio.create_task(connection.barrier())
        given_up = asyncio.create_task(connection.barrier())
        await asyncio.sleep(0)
        given_up.cancel()
        server.kill()
        with pytest.raises(CallError, match="is gone") as failure:
            await soon("the wait ends", waiting)
        assert failure.value.code is ErrorCode.UNAVAILABLE
        assert len(log.reasons) == 1
        with pytest.raises(CallError) as failure:
            await connection.barrier()
        assert failure.value.code is ErrorCode.UNAVAILABLE
        connection.beat()  # does nothing any more


async def test_a_server_that_was_silent_for_two_beats_is_given_up_at_the_third(own_nats: StartNats) -> None:
    server = own_nats()
    async with opened(server.url) as (connection, log):
        for _ in range(5):
            connection.beat()
            await connection.barrier()  # every sign of life counts, not only the answer to the beat
        server.freeze()
        for _ in range(2):
            connection.beat()
            assert connection.link.open
        connection.beat()
        await log.until(lambda: log.reasons)
        assert log.reasons == [f"nats://{HOST}:{server.port} does not answer"]


async def test_the_servers_own_pings_are_answered(own_nats: StartNats) -> None:
    server = own_nats(ping_interval="400ms", ping_max=2)
    async with FaultProxy(HOST, server.port) as proxy, opened(f"nats://{HOST}:{proxy.port}") as (connection, log):
        answered = proxy.passed["up"] + 4 * len(b"PONG\r\n")  # without an answer, the third would be the last

        async def pongs() -> None:
            while proxy.passed["up"] < answered and not log.reasons:
                await asyncio.sleep(0.01)

        await soon("four pings are answered", pongs())
        assert await connection.barrier() == []
        assert log.reasons == []


async def test_the_last_word_of_the_server_is_the_reason_for_the_end(own_nats: StartNats) -> None:
    server = own_nats(max_payload=100)
    async with opened(server.url) as (connection, log):
        connection.link.write(publish("a", "", b"x" * 101))
        await log.until(lambda: log.reasons)
        assert log.reasons[0].endswith("Maximum Payload Violation")
        assert log.complaints == ["Maximum Payload Violation"]


async def test_an_old_complaint_is_not_the_reason_for_the_end(own_nats: StartNats) -> None:
    users = [{"user": "ann", "password": "s3cret", "permissions": {"publish": {"deny": ["a"]}}}]
    server = own_nats(authorization={"users": users})
    async with opened(f"nats://ann:s3cret@{HOST}:{server.port}") as (connection, log):
        connection.link.write(publish("a", "", b""))
        assert await connection.barrier() == ['Permissions Violation for Publish to "a"']
        await connection.barrier()
        server.kill()
        await log.until(lambda: log.reasons)
        assert "Violation" not in log.reasons[0]


async def test_what_was_written_before_closing_arrives(nats_server: NatsServer) -> None:
    async with opened(nats_server.url, ANYONE, subscribe("closing", 1)) as (_, log):
        leaving_log = Log()
        leaving = NatsConnection(parse_server(nats_server.url), leaving_log)
        await leaving.open(ANYONE, b"")
        for _ in range(1000):
            leaving.link.write(publish("closing", "", b"x" * 1000))
        await leaving.close()
        await log.until(lambda: len(log.messages) == 1000)
        assert leaving_log.reasons == []
        await leaving.close()


async def test_closing_does_not_wait_long_for_a_frozen_server(own_nats: StartNats) -> None:
    server = own_nats()
    async with opened(server.url) as (connection, log):
        server.freeze()
        async with asyncio.timeout(3):
            await connection.close()
        assert log.reasons == []
