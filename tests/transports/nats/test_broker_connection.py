"""Messages on the subjects of a real server."""

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NoAnswer
from nats.micro.service import ServiceInfo as TheirInfo

from opwire.errors import CallError, ErrorCode
from opwire.protocol import Description
from opwire.protocol.description import Statistics
from opwire.transports.nats import connection
from opwire.transports.nats.connection import Info, NatsServers
from opwire.transports.nats.transport import NatsBrokerConnection, Subjects
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, NatsServer
from tests.transports.nats.ends import ANYONE, description, end, flushed, plain_client
from tests.transports.recording import Log

StartNats = Callable[..., NatsServer]

ODD_IDS = [
    "math.add",
    "github.repos/get-content",
    "a.b c\t*>",
    "a..b.",
    ".",
    "%",
    "a.\r\nPUB x 0\r\n",
    "a.üß😀",
    "a." + "x" * 10_000,
    "a." + "x" * 10_001,
    "a" + ".b" * 400,
    "A.B",
    "a.B",
]


# --- what arrives where -----------------------------------------------------------------------------------------------


async def test_requests_for_operations_with_any_ids_reach_their_servers(
    nats_server: NatsServer,
) -> None:
    async with end(nats_server.url, *ODD_IDS) as server, end(nats_server.url) as caller:
        for number, operation_id in enumerate(ODD_IDS):
            caller.connection.request(operation_id, f"t{number}", operation_id.encode())
        await server.log.until(lambda: len(server.log.arrivals) == len(ODD_IDS))
        sent = [(caller.address, f"t{number}", each.encode()) for number, each in enumerate(ODD_IDS)]
        assert server.log.arrivals == sent
        assert caller.log.failures == []


async def test_a_message_has_its_sender_and_token(nats_server: NatsServer) -> None:
    async with end(nats_server.url) as one, end(nats_server.url) as other:
        one.connection.send(other.address, "t0ken", b"first", control=False)
        one.connection.send(other.address, "", b"second", control=True)
        one.connection.broadcast("t0ken", b"third")
        one.connection.broadcast("", b"fourth")
        await other.log.until(lambda: len(other.log.rumours) == 2)
        assert other.log.arrivals == [(one.address, "t0ken", b"first"), (one.address, "", b"second")]
        assert other.log.rumours == [(one.address, "t0ken", b"third"), (one.address, "", b"fourth")]
        await one.log.until(lambda: len(one.log.rumours) == 2)  # all ends, this one included
        assert one.log.gone == []


async def test_a_broadcast_does_not_overtake_the_request_before_it(nats_server: NatsServer) -> None:
    order: list[bytes] = []
    async with end(nats_server.url, *(f"order.{number}" for number in range(20))) as server:
        log = server.log
        log.arrived = lambda sender, token, message: order.append(message)  # type: ignore[method-assign]
        log.overheard = lambda sender, token, message: order.append(message)  # type: ignore[method-assign]
        async with end(nats_server.url) as caller:
            for number in range(1000):
                caller.connection.request(f"order.{number % 20}", "t", b"request %d" % number)
                caller.connection.broadcast("t", b"abort %d" % number)
            await caller.barrier()
        await server.barrier()
    assert order == [word % number for number in range(1000) for word in (b"request %d", b"abort %d")]


async def test_two_prefixes_do_not_meet(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b", prefix="one") as server, end(nats_server.url, prefix="one.two") as caller:
        caller.connection.request("a.b", "t0ken", b"")
        caller.connection.send(server.address, "t0ken", b"", control=False)
        caller.connection.broadcast("t0ken", b"")
        await caller.log.until(lambda: caller.log.failures and caller.log.gone and caller.log.rumours)
        await server.barrier()
        assert server.log.arrivals == server.log.rumours == []


# --- serving ----------------------------------------------------------------------------------------------------------


async def test_an_operation_is_never_without_responders_once_serve_has_returned(nats_server: NatsServer) -> None:
    """Over NATS, serving and withdrawing are done when they return."""
    async with end(nats_server.url) as server, end(nats_server.url) as caller:
        for number in range(300):
            await server.connection.serve([f"late.{number}"])
            caller.connection.request(f"late.{number}", f"{number}", b"")
            await caller.barrier()
        await server.log.until(lambda: len(server.log.arrivals) == 300)
        assert caller.log.failures == []


async def test_no_request_arrives_once_unserve_has_returned_and_none_is_lost_before(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b") as server, end(nats_server.url) as caller:
        for number in range(500):
            caller.connection.request("a.b", f"{number}", b"")
        await server.connection.unserve(["a.b", "never.served"])
        arrived = len(server.log.arrivals)
        await caller.barrier()
        await server.barrier()
        assert len(server.log.arrivals) == arrived
        assert arrived + len(caller.log.failures) == 500


async def test_serving_an_operation_twice_gives_no_second_turn(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b") as server, end(nats_server.url) as caller:
        await server.connection.serve(["a.b"])
        caller.connection.request("a.b", "t0ken", b"")
        await caller.barrier()
        await server.barrier()
        assert len(server.log.arrivals) == 1
        await server.connection.unserve(["a.b"])
        caller.connection.request("a.b", "t0ken", b"")
        await caller.log.until(lambda: caller.log.failures)


async def test_servers_of_an_operation_share_its_requests(nats_server: NatsServer) -> None:
    async with (
        end(nats_server.url, "a.b") as one,
        end(nats_server.url, "a.b") as two,
        end(nats_server.url, "a.b") as three,
        end(nats_server.url) as caller,
    ):
        for number in range(300):
            caller.connection.request("a.b", f"{number}", b"")
        await caller.barrier()
        for server in (one, two, three):
            await server.barrier()
        shares = [len(server.log.arrivals) for server in (one, two, three)]
        assert sum(shares) == 300
        assert min(shares) > 30


# --- without peers ----------------------------------------------------------------------------------------------------


async def test_a_request_without_a_server_comes_back(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b") as caller:
        caller.connection.request("a.c", "t0ken", b"")
        await caller.log.until(lambda: caller.log.failures)
        assert caller.log.failures == [("t0ken", "no server available")]
        assert caller.log.gone == caller.log.arrivals == []


async def test_a_message_for_an_end_that_is_gone_names_that_end(nats_server: NatsServer) -> None:
    async with end(nats_server.url) as one:
        async with end(nats_server.url) as other:
            one.connection.send(other.address, "t0ken", b"", control=False)
            await other.log.until(lambda: other.log.arrivals)
        one.connection.send(other.address, "t0ken", b"", control=False)
        await one.log.until(lambda: one.log.gone)
        assert one.log.gone == [other.address]
        assert one.log.failures == []


# --- plain clients of NATS --------------------------------------------------------------------------------------------


async def test_a_plain_client_asks_with_its_own_inbox_and_is_answered_there(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b") as server, plain_client(nats_server.url) as client:
        asking = asyncio.create_task(client.request("opwire.call.a.b", b"hello", timeout=5, headers={"a": "b"}))
        await server.log.until(lambda: server.log.arrivals)
        sender, token, message = server.log.arrivals[0]
        assert (token, message) == ("", b"hello")
        server.connection.send(sender, token, b"hi", control=False)
        assert (await asking).data == b"hi"


async def test_a_plain_client_that_is_gone_is_named_like_any_other(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b") as server:
        async with plain_client(nats_server.url) as client:
            await client.publish("opwire.call.a.b", b"", reply="_INBOX.some.where")
            await server.log.until(lambda: server.log.arrivals)
        sender, _, _ = server.log.arrivals[0]
        server.connection.send(sender, "", b"", control=False)
        await server.log.until(lambda: server.log.gone)
        assert server.log.gone == [sender]


async def test_a_plain_client_can_answer_with_the_token_and_cannot_be_told_anything(nats_server: NatsServer) -> None:
    async with end(nats_server.url) as caller, plain_client(nats_server.url) as client:

        async def respond(message: Any) -> None:
            await message.respond(b"hi")

        await client.subscribe("opwire.call.a.b", cb=respond)
        await flushed(client)
        caller.connection.request("a.b", "t0ken", b"hello")
        await caller.log.until(lambda: caller.log.arrivals)
        assert caller.log.arrivals == [("", "t0ken", b"hi")]
        with pytest.raises(CallError, match="gave no reply subject") as failure:
            caller.connection.send("", "t0ken", b"", control=True)
        assert failure.value.code is ErrorCode.UNAVAILABLE


NOT_INBOXES = ("$JS.API.STREAM.DELETE.orders", "payroll.pay", "opwire.call.a.b", "opwire.all", "opwire.in.*.t")


async def test_what_cannot_or_must_not_be_answered_is_ignored_and_counted(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b") as server, plain_client(nats_server.url) as client:
        for reply in ("", *NOT_INBOXES):
            await client.publish("opwire.call.a.b", b"", reply=reply)
            await client.publish("opwire.all", b"", reply=reply)
        for reply in NOT_INBOXES:  # to the inbox, too: answers would go out with our permissions
            await client.publish(f"opwire.in.{server.address}.-", b"", reply=reply)
        await client.publish(f"opwire.in.{server.address}.t0ken", b"", headers={"Status": "x"})
        await flushed(client)
        await server.barrier()
        assert server.connection.ignored == 2 * 6 + 5
        assert server.log.arrivals == [("", "t0ken", b"")]
        assert server.log.rumours == []


async def publish_headers(server: NatsServer, subject: str, head: bytes, payload: bytes = b"") -> None:
    """Publish any headers, which nats-py would not do."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    size = len(head)
    writer.write(b'CONNECT {"headers":true,"verbose":false}\r\nHPUB %b ' % subject.encode())
    writer.write(b"%d %d\r\n%b\r\nPING\r\n" % (size, size + len(payload), head + payload))
    await soon("the server has it", reader.readuntil(b"PONG\r\n"))
    writer.close()
    await writer.wait_closed()


async def test_statuses_other_than_no_responders_are_ignored_and_counted(nats_server: NatsServer) -> None:
    async with end(nats_server.url) as one:
        await publish_headers(nats_server, f"opwire.in.{one.address}.t", b"NATS/1.0 408 Timeout\r\n\r\n")
        await one.barrier()
        assert one.connection.ignored == 1
        assert one.log.arrivals == one.log.failures == []


async def test_a_forged_no_responders_status_names_no_peer(nats_server: NatsServer) -> None:
    async with end(nats_server.url) as one, end(nats_server.url) as other, end(nats_server.url) as thief:
        other.connection.send(thief.address, "t", b"", control=True)  # which shows the thief a receipt of `other`
        of_another = other.connection.receipts.make(thief.address)
        of_itself = one.connection.receipts.make(thief.address).replace(thief.address, other.address)
        for shown in (f"x-{other.address}", f"-{other.address}", f"x{of_another}", f"x{of_itself}", "-", "x-"):
            await publish_headers(nats_server, f"opwire.in.{one.address}.{shown}", b"NATS/1.0 503\r\n\r\n")
        await one.barrier()
        assert one.log.gone == one.log.failures == one.log.arrivals == []
        assert one.connection.ignored == 6


@pytest.mark.parametrize(
    "head", [b"x", b"NATS/1.0", b"HTTP/1.1 503\r\n\r\n", b"NATS/1.0 " + b"9" * 5000, b"\0\r\n\xff"]
)
async def test_invalid_headers_of_another_client_do_not_end_the_connection(
    nats_server: NatsServer, head: bytes
) -> None:
    async with end(nats_server.url, "a.b") as one, end(nats_server.url) as other:
        for subject in ("opwire.call.a.b", "opwire.all", f"opwire.in.{one.address}.t"):
            await publish_headers(nats_server, subject, head, b"payload")
        other.connection.request("a.b", "t0ken", b"hello")
        await one.log.until(lambda: (other.address, "t0ken", b"hello") in one.log.arrivals)
        assert one.log.ends == other.log.ends == []


# --- limits and permissions -------------------------------------------------------------------------------------------


async def test_a_message_that_the_server_would_not_let_through_is_refused_here_and_the_connection_lives(
    own_nats: StartNats,
) -> None:
    """A message above the server's max_payload fails its own call; the connection lives."""
    server = own_nats(max_payload=1000)
    async with end(server.url, "a.b") as one:
        assert one.connection.max_message == 1000
        one.connection.request("a.b", "fits", b"x" * 1000)
        for send in (
            lambda: one.connection.request("a.b", "t", b"x" * 1001),
            lambda: one.connection.send(one.address, "t", b"x" * 1001, control=True),
            lambda: one.connection.broadcast("t", b"x" * 1001),
        ):
            with pytest.raises(CallError) as failure:
                send()
            assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
            assert failure.value.details == {"bytes": 1001, "limit": 1000}
        await one.log.until(lambda: one.log.arrivals)
        assert one.log.ends == []


@pytest.mark.parametrize(("said", "believed"), [(-5, 1), (0, 1), (10**400, 64 * 2**20), (5_000, 5_000)])
def test_the_size_of_a_message_is_bounded_under_any_limit_of_the_server(said: int, believed: int) -> None:
    connection = NatsBrokerConnection(NatsServers("nats://a:1"), Subjects("opwire"), ANYONE)
    connection.on_info(Info(max_payload=said))
    assert connection.max_message == believed


ANN: dict[str, Any] = {"user": "ann", "password": "s3cret"}


def restricted(start: StartNats, **permissions: Any) -> str:
    """The URL of a server that lets ann do only so much."""
    server = start(authorization={"users": [ANN | {"permissions": permissions}]})
    return f"nats://ann:s3cret@{HOST}:{server.port}"


async def test_an_operation_that_may_not_be_asked_for_is_refused_at_once_and_the_connection_lives(
    own_nats: StartNats, caplog: pytest.LogCaptureFixture
) -> None:
    url = restricted(own_nats, publish={"deny": ["opwire.call.github.>"]})
    async with end(url, "a.b") as one:
        for _ in range(3):
            one.connection.request("github.repos/get", "t0ken", b"")
        one.connection.request("a.b", "t0ken", b"")
        await one.log.until(lambda: one.log.arrivals)
        complaint = 'Permissions Violation for Publish to "opwire.call.github.repos%2Fget"'
        assert one.log.refusals == 3 * [("github.repos/get", complaint)]
        assert one.log.ends == []
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [f"{one.connection.name} reports: {complaint}"]
    assert "s3cret" not in caplog.text


async def test_if_one_operation_may_not_be_served_none_of_the_announcement_is(own_nats: StartNats) -> None:
    url = restricted(own_nats, subscribe={"deny": ["opwire.call.secret.>"]})
    async with end(url, "a.before") as server:
        with pytest.raises(
            CallError, match=r'refused: Permissions Violation for Subscription to "opwire\.call\.secret'
        ):
            await server.connection.serve(["a.b", "secret.b", "a.c"])
        for token, operation_id in (("one", "a.b"), ("two", "a.c"), ("three", "a.before")):
            server.connection.request(operation_id, token, b"")
        await server.log.until(lambda: server.log.arrivals)
        assert server.log.failures == [("one", "no server available"), ("two", "no server available")]
        await server.connection.serve(["a.b", "a.c"])


async def test_complaints_about_something_else_do_not_fail_an_announcement(own_nats: StartNats) -> None:
    url = restricted(own_nats, publish={"deny": ["opwire.call.secret.>"]})
    async with end(url) as server:
        server.connection.request("secret.b", "t0ken", b"")
        await server.connection.serve(["a.b"])
        assert len(server.log.refusals) == 1


async def test_a_server_with_too_many_subscriptions_says_so(own_nats: StartNats) -> None:
    server = own_nats(max_subscriptions=10)
    async with end(server.url) as one:
        with pytest.raises(CallError, match="refused: maximum subscriptions exceeded"):
            await one.connection.serve([f"a.{number}" for number in range(20)])
        await one.connection.serve(["a.b"])


async def test_each_complaint_is_logged_once_and_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    connection = NatsBrokerConnection(NatsServers("nats://ann:s3cret@example"), Subjects("opwire"), ANYONE)
    for number in range(1000):
        connection.on_error(f"complaint {number % 300}")
    assert len(caplog.records) == 100
    assert caplog.records[0].getMessage() == "nats://example:4222 reports: complaint 0"


# --- the connection ---------------------------------------------------------------------------------------------------


async def test_an_end_that_is_not_connected_raises_unavailable() -> None:
    connection = NatsBrokerConnection(NatsServers("nats://example"), Subjects("opwire"), ANYONE)
    for send in (
        lambda: connection.request("a.b", "t", b""),
        lambda: connection.send("someone", "t", b"", control=True),
        lambda: connection.broadcast("t", b""),
    ):
        with pytest.raises(CallError, match="not connected to nats://example:4222") as failure:
            send()
        assert failure.value.code is ErrorCode.UNAVAILABLE
    for work in (connection.serve(["a.b"]), connection.unserve(["a.b"])):
        with pytest.raises(CallError):
            await work
    connection.beat(1.0)
    await connection.close()


async def test_nothing_is_kept_for_later_while_the_server_is_gone(own_nats: StartNats) -> None:
    server = own_nats()
    async with end(server.url, "a.b") as one:
        server.kill()
        await one.log.until(lambda: one.log.ends)
        with pytest.raises(CallError) as failure:
            one.connection.request("a.b", "t0ken", b"")
        assert failure.value.code is ErrorCode.UNAVAILABLE
        server.start()
        await one.connection.connect("another", one.log)
        await one.connection.serve(["a.b"])
        one.connection.request("a.b", "later", b"")
        await one.log.until(lambda: one.log.arrivals)
        assert [token for _, token, _ in one.log.arrivals] == ["later"]
        assert len(one.log.ends) == 1


async def test_the_first_server_that_accepts_is_used_and_otherwise_each_reason_is_given(
    own_nats: StartNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 0.5)
    good, closed, frozen = own_nats(), own_nats(user="ann", password="s3cret"), own_nats()
    gone = own_nats()
    gone.stop()
    frozen.freeze()
    urls = [f"nats://{HOST}:{server.port}" for server in (closed, gone, frozen)]
    for _ in range(3):
        async with end([*urls[:2], good.url], "a.b") as one:
            one.connection.request("a.b", "t0ken", b"")
            await one.log.until(lambda: one.log.arrivals)
    broker = NatsBrokerConnection(NatsServers(urls), Subjects("opwire"), ANYONE)
    with pytest.raises(CallError) as failure:
        await soon("all are tried", broker.connect("address", Log()))
    assert failure.value.code is ErrorCode.UNAVAILABLE
    for reason in (
        f"{urls[0]} refused: Authorization Violation",
        f"{urls[1]} cannot be reached",
        f"{urls[2]} does not answer within 0.5 s",
    ):
        assert reason in failure.value.message


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


async def test_the_other_servers_of_a_cluster_are_learned_and_used_when_the_first_shuts_down(
    own_nats: StartNats, caplog: pytest.LogCaptureFixture
) -> None:
    """A NATS server about to shut down is used until it ends, then another one."""
    caplog.set_level(logging.INFO, "opwire.transports.nats")
    port = free_port()
    first = own_nats(cluster={"name": "c", "host": HOST, "port": port})
    routes = [f"nats://{HOST}:{port}"]
    second = own_nats(cluster={"name": "c", "host": HOST, "port": free_port(), "routes": routes})
    async with end(first.url, "a.b") as one, end(second.url) as other:

        async def learned() -> None:
            while len(one.connection.servers.shuffled()) < 2:
                await asyncio.sleep(0.01)

        await soon("the first server tells of the second", learned())
        os.kill(first.pid, signal.SIGUSR2)  # "lame duck mode"

        async def warned() -> None:
            while "is about to shut down" not in caplog.text:
                await asyncio.sleep(0.01)

        await soon("the server says that it is about to shut down", warned())

        async def served(before: int) -> None:
            while len(one.log.arrivals) == before:  # the second server may hear of the subscription later
                other.connection.request("a.b", "t0ken", b"")
                await asyncio.sleep(0.1)

        await soon("a request arrives over both servers", served(0))
        first.kill()
        await one.log.until(lambda: one.log.ends)
        await one.connection.connect("again", one.log)
        await one.connection.serve(["a.b"])
        await soon("a request arrives over the second server", served(len(one.log.arrivals)))


async def test_what_a_server_says_of_itself_while_we_connect_is_not_forgotten() -> None:
    """No real server can be made to say it at this very moment, though all of them do now and then."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers":true}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b'INFO {"headers":true,"max_payload":77,"connect_urls":["elsewhere:4222"]}\r\nPONG\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await reader.read()
        writer.close()
        done.set()

    done = asyncio.Event()
    async with await asyncio.start_server(talk, HOST, 0) as server:
        async with end(f"nats://{HOST}:{server.sockets[0].getsockname()[1]}") as one:
            assert one.connection.max_message == 77
            assert "elsewhere" in {each.host for each in one.connection.servers.shuffled()}
        await soon("the server has seen us leave", done.wait())


# --- NATS' own tools --------------------------------------------------------------------------------------------------


def described() -> Description:
    return description({"a.b": Statistics()})


async def question(client: Client, subject: str) -> Any:
    return json.loads((await client.request(subject, b"", timeout=5)).data)


async def test_the_tools_of_nats_see_what_is_served(nats_server: NatsServer) -> None:
    async with end(nats_server.url, "a.b", describe=described), plain_client(nats_server.url) as client:
        for subject in ("$SRV.PING", "$SRV.PING.shop", "$SRV.PING.shop.7f"):
            assert (await question(client, subject))["id"] == "7f"
        info = TheirInfo.from_dict(await question(client, "$SRV.INFO.shop"))
        assert [endpoint.subject for endpoint in info.endpoints] == ["opwire.call.a.b"]
        assert (await question(client, "$SRV.STATS"))["type"] == "io.nats.micro.v1.stats_response"


async def test_an_end_describes_itself_once_to_be_found_and_once_for_each_question(nats_server: NatsServer) -> None:
    times: list[Description] = []

    def describe() -> Description:
        times.append(described())
        return times[-1]

    async with end(nats_server.url, "a.b", describe=describe) as one, plain_client(nats_server.url) as client:
        await one.connection.serve(["a.c"])
        assert len(times) == 1
        await question(client, "$SRV.STATS")
        assert len(times) == 2


async def test_nats_own_tools_hear_nothing_of_ends_that_serve_nothing_or_do_not_describe_themselves(
    nats_server: NatsServer,
) -> None:
    async with (
        end(nats_server.url, describe=described),
        end(nats_server.url, "a.b"),
        end(nats_server.url, "a.b", describe=lambda: None),
        plain_client(nats_server.url) as client,
    ):
        with pytest.raises(NoRespondersError):
            await question(client, "$SRV.PING")


async def test_a_question_without_a_place_for_the_answer_or_with_too_long_an_answer_does_no_harm(
    own_nats: StartNats,
) -> None:
    server = own_nats(max_payload=100)
    async with end(server.url, "a.b", describe=described) as one, plain_client(server.url) as client:
        await client.publish("$SRV.PING", b"")
        await client.publish("$SRV.PING", b"", reply="$SYS.x")
        await client.publish("$SRV.INFO", b"", reply="_INBOX.answers")
        await flushed(client)
        await one.barrier()
        assert one.connection.ignored == 2
        assert one.log.ends == []


async def test_queries_above_a_rate_are_ignored_so_that_a_flood_of_them_does_not_delay_calls(
    nats_server: NatsServer,
) -> None:
    times: list[Description] = []

    def describe() -> Description:
        times.append(described())
        return times[-1]

    async with end(nats_server.url, "a.b", describe=describe) as one, plain_client(nats_server.url) as client:
        await question(client, "$SRV.PING")
        for _ in range(1_000):
            await client.publish("$SRV.INFO", b"", reply="_INBOX.answers")
        await flushed(client)
        await one.barrier()
        assert len(times) + one.connection.ignored == 1_002
        assert one.connection.ignored >= 500

        async def answered() -> None:
            with suppress(NoAnswer):
                await client.request("$SRV.PING", b"", timeout=0.2)
                return
            await answered()

        await soon("there is room for another one", answered())
