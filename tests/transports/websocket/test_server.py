"""The listening end: admission, responses, and invalid input."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from opwire.auth import Grant
from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context
from opwire.protocol import Address, CallAborted, CallFailed, CallRequested, CallResponded
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from opwire.transports.websocket import server as server_module
from opwire_conformance.harness import item, soon
from tests.properties import examples
from tests.servers.brokers import HOST
from tests.servers.certificates import self_signed
from tests.transports.websocket.ends import End, Ends, until


async def http(url: str, request: bytes) -> bytes:
    """The response to a request that is not one of a WebSocket."""
    uri = parse_uri(url)
    reader, writer = await asyncio.open_connection(uri.host, uri.port)
    writer.write(request)
    answer = await soon("the server answers and closes", reader.read())
    writer.close()
    return answer


async def status(url: str, **options: Any) -> int:
    """The status that a handshake is refused with."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, **options)
    return refused.value.response.status_code


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_line", "code"), [("GET / HTTP/1.1", 426), ("GET /health HTTP/1.1", 426), ("PUT / HTTP/1.1", 405)]
)
async def test_a_request_that_is_not_an_upgrade_gets_an_error(ends: Ends, request_line: str, code: int) -> None:
    server, _ = await ends.server()
    answer = await http(server.url, f"{request_line}\r\nHost: {HOST}\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {code} ".encode())


@pytest.mark.parametrize("path", server_module.PROBES)
async def test_a_probe_of_an_orchestrator_is_answered_until_the_server_drains(ends: Ends, path: str) -> None:
    """A hub answers /healthz and /readyz over HTTP until it drains."""
    server, _ = await ends.server()
    probe = f"GET {path} HTTP/1.1\r\nHost: 10.0.0.7:8700\r\n\r\n".encode()
    assert (await http(server.url, probe)).startswith(b"HTTP/1.1 200 OK\r\n")
    server.go_away()
    with pytest.raises(ConnectionRefusedError):
        await http(server.url, probe)


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x00\xa5\x01\x00\n", b"\n", b"GET /" + b"x" * 20_000])
async def test_what_is_not_a_request_at_all_is_closed(ends: Ends, noise: bytes) -> None:
    """What is not a WebSocket handshake is rejected or closed."""
    server, _ = await ends.server()
    await http(server.url, noise)
    await ends.client(server.url)


async def test_a_page_of_a_foreign_origin_cannot_connect(ends: Ends) -> None:
    server, _ = await ends.server(origins=["https://console.example"])
    opwire = [Subprotocol("opwire.v1")]
    assert await status(server.url, subprotocols=opwire, origin=Origin("https://evil.example")) == 403
    await ends.plain(server.url, origin=Origin("https://console.example"))
    await ends.plain(server.url)


@pytest.mark.parametrize("offered", [None, [Subprotocol("graphql-transport-ws")]])
async def test_a_client_has_to_offer_our_protocol(ends: Ends, offered: list[Subprotocol] | None) -> None:
    """Both sides speak opwire.v1 or do not connect."""
    server, _ = await ends.server()
    assert await status(server.url, subprotocols=offered) == 400
    plain = await ends.plain(server.url, subprotocols=[Subprotocol("other"), Subprotocol("opwire.v1")])
    assert plain.connection.subprotocol == "opwire.v1"


async def test_one_connection_too_many_is_refused(ends: Ends) -> None:
    """The connections of a server are limited."""
    server, _ = await ends.server(max_connections=1)
    first = await ends.plain(server.url)
    second = await ends.plain(server.url, hello=False)
    await second.say("session.hello", version=1)
    refused = await second.hear()
    assert (refused["type"], refused["code"]) == ("session.refused", "RATE_LIMITED")
    assert (await second.closed())[0] == 4413
    await first.connection.close()
    await until("there is room again", lambda: not server.peers)
    await ends.plain(server.url)


async def test_an_announcement_beyond_the_limit_is_refused_and_the_client_stays(ends: Ends) -> None:
    server, _ = await ends.server(max_operations=10)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=[f"a.{number}" for number in range(11)])
    refused = await plain.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("session.refused", 1, "RATE_LIMITED")
    assert "10 operations" in refused["message"]
    assert await server.servers() == []
    await plain.say("session.announce", id=2, operations=["a.1"])
    assert await plain.hear() == {"type": "session.done", "id": 2}
    many = [format(number, "x") for number in range(100_000)]
    await plain.say("session.announce", id=3, operations=many, partial=True)
    assert len(json.dumps(await plain.hear())) < 500, "a list of all that are refused would have 14 MB"


async def test_connections_may_be_encrypted(ends: Ends, tmp_path: Path) -> None:
    """Connections can be encrypted, and certificates are checked."""
    certificate = self_signed(tmp_path)
    serving, calling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=certificate)
    serving.load_cert_chain(certificate)

    async def echo(input: Any, _: Context) -> Any:
        return input

    server = WebSocketServer(ssl=serving)
    await ends.calls(server, echo=echo)
    assert server.url.startswith("wss://")
    calls = await ends.calls(WebSocketTransport(server.url, ssl=calling))
    answer = await soon("the call is answered", calls.call("test.echo", "x" * 500_000))
    assert answer.data == "x" * 500_000
    with pytest.raises(CallError, match="certificate"):
        await WebSocketTransport(server.url).start(End(server))


async def test_an_address_that_is_taken_is_unavailable(ends: Ends) -> None:
    server, end = await ends.server()
    port = parse_uri(server.url).port
    with pytest.raises(CallError) as failure:
        await WebSocketServer(port=port).start(end)
    assert failure.value.code is ErrorCode.UNAVAILABLE
    assert str(port) in failure.value.message


async def test_a_server_can_be_started_again_at_the_same_address(ends: Ends) -> None:
    server, end = await ends.server("a.b")
    url = server.url
    await server.close()
    assert server.peers == []
    await server.start(end)
    assert server.url == url
    assert await server.servers() == []


def test_an_ipv6_address_is_written_with_brackets() -> None:
    assert WebSocketServer("::1", 8765).url == "ws://[::1]:8765"


# --- hello ------------------------------------------------------------------------------------------------------------


async def test_hello_is_answered_with_a_name_and_the_terms(ends: Ends) -> None:
    server, _ = await ends.server(max_message=50_000, heartbeat=7.5)
    plain = await ends.plain(server.url, hello=False)
    await plain.say("session.hello", version=1, maxMessage=1000, more="fields of later versions")
    welcome = await plain.hear()
    assert welcome == {
        "type": "session.welcome",
        "version": 1,
        "peer": server.peers[0],
        "maxMessage": 50_000,
        "heartbeatMs": 7500,
    }


@pytest.mark.parametrize(
    ("first", "code", "reason"),
    [
        ("not JSON", 4400, "session.hello"),
        ('{"type":"call.unknown"}', 4400, "session.hello"),
        ('{"type":"session.hello"}', 4400, "session.hello"),
        ('{"type":"session.hello","version":2}', 4400, "unknown version 2"),
        ('{"type":"session.who","id":1}', 4401, "session.hello comes first"),
        ('{"type":"call.requested","requestId":"r","operationId":"a.b"}', 4401, "session.hello comes first"),
    ],
)
async def test_any_other_first_message_closes_the_connection(ends: Ends, first: str, code: int, reason: str) -> None:
    server, end = await ends.server("a.b")
    plain = await ends.plain(server.url, hello=False)
    await plain.connection.send(first)
    closed = await plain.closed()
    assert closed[0] == code
    assert reason in closed[1]
    assert end.events == []
    assert end.losses == []


async def test_a_connection_without_hello_in_time_is_closed(ends: Ends) -> None:
    server, _ = await ends.server(hello_timeout=0.1)
    plain = await ends.plain(server.url, hello=False)
    silent = asyncio.create_task(http(server.url, b"GET / HTTP/1.1\r\n"))  # and goes no further
    assert (await plain.closed())[0] == 4408
    assert await silent == b""
    await until("the connections are gone", lambda: not server.connections)


async def test_a_connection_with_hello_in_time_stays(ends: Ends) -> None:
    server, _ = await ends.server(hello_timeout=0.1)
    plain = await ends.plain(server.url)
    late = await ends.plain(server.url, hello=False)
    assert (await late.closed())[0] == 4408  # so the time of the first connection is up, too
    await plain.say("session.who", id=1)
    assert await plain.hear() == {"type": "session.here", "id": 1, "peers": []}


# --- a peer that knows nothing of opwire ------------------------------------------------------------------------------


async def test_a_plain_client_calls_an_operation_of_the_server_and_of_another_client(ends: Ends) -> None:
    """A client with hand-written JSON and no `peer` can call and serve."""

    async def echo(input: Any, _: Context) -> Any:
        return input

    server = WebSocketServer()
    await ends.calls(server, near=echo)
    await ends.calls(WebSocketTransport(server.url), far=echo)
    plain = await ends.plain(server.url)
    for name in ("near", "far"):
        await plain.say("call.requested", requestId=name, operationId=f"test.{name}", input={"a": [1, "é", None]})
        answer = await plain.hear()
        assert (answer["type"], answer["requestId"]) == ("call.responded", name)
        assert answer["output"]["data"] == {"a": [1, "é", None]}
    await plain.say("call.requested", requestId="3", operationId="test.absent")
    assert (await plain.hear())["code"] == "OPERATION_NOT_FOUND"


async def test_a_plain_client_serves_the_server_and_other_clients(ends: Ends) -> None:
    server = WebSocketServer()
    callers = [await ends.calls(server), await ends.calls(WebSocketTransport(server.url))]
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["plain.double"])
    assert await plain.hear() == {"type": "session.done", "id": 1}
    for caller in callers:
        call = asyncio.create_task(caller.call("plain.double", 21))
        request = await plain.hear()
        meta = {"source": "local", "operationId": "plain.double", "timestamp": 1}
        output = {"data": request["input"] * 2, "meta": meta}
        await plain.say("call.responded", requestId=request["requestId"], output=output)
        assert (await soon("the call is answered", call)).data == 42


async def test_a_plain_client_streams_and_follows_a_stream(ends: Ends) -> None:
    server, _ = await ends.server()
    calls = await ends.calls(WebSocketTransport(server.url))
    serving, following = await ends.plain(server.url), await ends.plain(server.url)
    await serving.say("session.announce", id=1, operations=["plain.count"])
    await serving.hear()
    meta = {"source": "local", "operationId": "plain.count", "timestamp": 1}

    async def produce() -> None:
        request = await serving.hear()
        for seq in (1, 2):
            output = {"data": seq, "meta": meta}
            await serving.say("call.responded", requestId=request["requestId"], output=output, seq=seq)
        await serving.say("call.completed", requestId=request["requestId"])

    producing = asyncio.create_task(produce())
    items = [each.data async for each in calls.subscribe("plain.count")]
    await producing
    assert items == [1, 2]
    await following.say("call.requested", requestId="1", operationId="plain.count", credits=8)
    await produce()
    arrived = [await following.hear() for _ in range(3)]
    assert [event["type"] for event in arrived] == ["call.responded", "call.responded", "call.completed"]


# --- what is malformed ------------------------------------------------------------------------------------------------


async def test_an_invalid_message_writes_one_line_to_the_log_without_control_characters(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = await ends.server("a.b")
    plain = await ends.plain(server.url)
    await plain.say("\nan admin has logged in\x1b[2J\u202e", requestId="r")
    assert (await plain.hear())["type"] == "call.error"
    [line] = [each for each in caplog.messages if "an admin has logged in" in each]
    assert line.isprintable()


@pytest.mark.parametrize(
    ("message", "request_id"),
    [
        ("nothing", None),
        ("[1]", None),
        ('{"type":"call.unknown","requestId":"r"}', "r"),
        ('{"type":"call.requested","requestId":"r"}', "r"),
        ('{"type":"call.requested","requestId":"r","operationId":"a.b","timeoutMs":"soon"}', "r"),
        ('{"type":"call.requested","requestId":"r","operationId":"a.b","input":' + "[" * 300 + "]" * 300 + "}", "r"),
        ('{"type":"call.credit","requestId":"r","x":' + "[" * 100_000 + "]" * 100_000 + "}", "r"),
        ('{"type":"call.requested","requestId":"r","input":' + "[" * 5_000 + "]" * 5_000 + "}", "r"),
        ('{"requestId":"r","type":"call.requested","input":' + "[" * 5_000 + "]" * 5_000 + "}", "r"),
        ('{"requestId":"r","type":"call.requested","input":' + "[" * 20_000, "r"),
        ('{"x":[],"requestId":"r","type":"call.requested","input":' + "[" * 20_000, None),
        ('{"type":"session.announce","id":-1,"operations":[]}', None),
        ('{"type":"session.hello","version":1}', None),
        ('{"type":"session.unknown","id":1}', None),
        ('{"type":"' + "x" * 50_000 + '","requestId":"r"}', "r"),
        ('{"type":"call.requested","operationId":"a.b","requestId":"' + "x" * 1001 + '"}', None),
    ],
)
async def test_a_message_that_cannot_be_read_ends_its_own_call_alone(
    ends: Ends, message: str, request_id: str | None
) -> None:
    server, end = await ends.server("a.b")
    plain = await ends.plain(server.url)
    await plain.connection.send(message)
    if request_id is not None:
        error = await plain.hear()
        assert (error["type"], error["requestId"]) == ("call.error", request_id)
        assert error["code"] == ("PAYLOAD_TOO_LARGE" if len(message) > 200_000 else "PROTOCOL_ERROR")
        assert len(error["message"]) < 300
    await plain.say("call.requested", requestId="next", operationId="a.b")
    event = await end.event()
    assert event.request_id == "next"
    assert server.dropped["malformed"] == 1


async def test_a_request_of_too_many_objects_and_lists_fails_alone(ends: Ends) -> None:
    server, end = await ends.server("a.b")
    plain = await ends.plain(server.url)
    lists = ",".join(["[]"] * 100_000)
    await plain.connection.send(f'{{"type":"call.requested","requestId":"r","operationId":"a.b","input":[{lists}]}}')
    error = await plain.hear()
    assert (error["type"], error["requestId"], error["code"]) == ("call.error", "r", "PAYLOAD_TOO_LARGE")
    await plain.say("call.requested", requestId="next", operationId="a.b")
    assert (await end.event()).request_id == "next"


async def test_a_response_of_too_many_objects_and_lists_fails_the_call_of_the_server(ends: Ends) -> None:
    server = WebSocketServer()
    calls = await ends.calls(server)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    await plain.hear()
    call = asyncio.create_task(calls.call("a.b"))
    request = await plain.hear()
    envelope = {"data": [[]] * 100_000, "meta": {"source": "local", "operationId": "a.b", "timestamp": 1}}
    response = {"type": "call.responded", "requestId": request["requestId"], "output": envelope}
    await plain.connection.send(json.dumps(response, separators=(",", ":")))
    with pytest.raises(CallError) as failure:
        await soon("the call ends", call)
    assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE


async def test_a_malformed_answer_ends_the_call_of_the_server(ends: Ends) -> None:
    server = WebSocketServer()
    calls = await ends.calls(server)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    await plain.hear()
    call = asyncio.create_task(calls.call("a.b"))
    request = await plain.hear()
    await plain.say("call.responded", requestId=request["requestId"], output="no envelope")
    with pytest.raises(CallError) as failure:
        await soon("the call ends", call)
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("nonsense", ["nonsense", '{"type":"call.responded","requestId":"r","output":' + "[" * 5_000])
async def test_a_connection_that_sends_nothing_but_nonsense_is_closed(
    ends: Ends, nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = await ends.server()
    plain, other = await ends.plain(server.url), await ends.plain(server.url)
    with suppress(ConnectionClosed):
        for _ in range(101):
            await plain.connection.send(nonsense)
        while True:
            await plain.hear()
    code, _ = await plain.closed()
    assert code == 4400
    assert not [record for record in caplog.records if record.exc_info]
    await other.say("session.who", id=1)
    assert (await other.hear())["type"] == "session.here"


async def test_what_breaks_the_rules_of_frames_ends_its_own_connection_alone(ends: Ends) -> None:
    server, end = await ends.server(max_message=1000)
    other = await ends.plain(server.url)
    for data in (
        Frame(Opcode.BINARY, b"{}").serialize(mask=True),
        Frame(Opcode.TEXT, b"\xff").serialize(mask=True),
        Frame(Opcode.TEXT, b"{}").serialize(mask=False),
        Frame(Opcode.TEXT, b" " * 20_000).serialize(mask=True),
    ):
        raw = await ends.raw(server.url)
        raw.write(data)
        await raw.end()
    await until("the connections are gone", lambda: len(server.peers) == 1)
    await other.say("session.who", id=1)
    assert (await other.hear())["type"] == "session.here"
    assert len(end.losses) == 4


frames = st.builds(
    lambda opcode, data, fin, rsv: (
        Frame(opcode, data, fin).serialize(mask=True)[:1].replace(b"\x81", rsv)
        + Frame(opcode, data, fin).serialize(mask=True)[1:]
    ),
    st.sampled_from([Opcode.TEXT, Opcode.TEXT, Opcode.CONT, Opcode.BINARY]),
    st.binary(max_size=60)
    | st.builds(
        lambda kind, fields: json.dumps({"type": kind, **fields}).encode(),
        st.sampled_from(
            [f"call.{name}" for name in ("requested", "responded", "completed", "error", "aborted", "credit", "x")]
            + [f"session.{name}" for name in ("hello", "announce", "withdraw", "who", "goaway", "left", "welcome")]
        ),
        st.dictionaries(
            st.sampled_from(["requestId", "operationId", "peer", "id", "operations", "n", "seq", "output", "credits"]),
            st.none() | st.integers() | st.sampled_from(["r", "a.b", "server"]) | st.lists(st.text(max_size=3)),
        ),
    ),
    st.booleans(),
    st.sampled_from([b"\x81", b"\x81", b"\xc1", b"\x83"]),
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.lists(frames | st.binary(max_size=30), min_size=1, max_size=12))
def test_other_connections_are_served_after_any_input_of_one(data: list[bytes]) -> None:
    async def attack() -> None:
        async with Ends() as ends:
            server, _ = await ends.server("a.b")
            steady = await ends.plain(server.url)
            raw = await ends.raw(server.url)
            for chunk in data:
                raw.write(chunk)
            await steady.say("call.requested", requestId="1", operationId="a.b")
            raw.writer.close()
            await until("the attacker is gone", lambda: len(server.peers) == 1)
            await steady.say("session.who", id=1)
            assert (await steady.hear())["type"] == "session.here"
            assert len(server.routes) == 1  # the call of the steady one

    asyncio.run(attack())


# --- calls of the server itself ---------------------------------------------------------------------------------------


async def test_the_server_knows_the_sender_and_the_receiver_of_a_request(ends: Ends) -> None:
    server, end = await ends.server("near.op")
    client = await ends.client(server.url, "far.op")
    assert end.ask("far.op") == server.peers[0]
    await client.count(1)
    assert client.senders == ["server"]
    client.ask("near.op")
    await end.count(1)
    assert end.senders == server.peers


async def test_the_server_sends_no_discovery_without_servers(ends: Ends) -> None:
    _, end = await ends.server()
    with pytest.raises(CallError) as failure:
        end.ask("a.b")
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_client_learns_at_once_that_its_operation_has_no_server(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url)
    client.ask("a.b")
    error = await client.event()
    assert (error.code, error.not_started) == ("UNAVAILABLE", True)
    assert "a.b" in error.message


async def test_the_server_can_call_itself_through_the_wire_format(ends: Ends) -> None:
    _, end = await ends.server("a.b")
    sent = {"data": [1, 2]}
    assert end.ask("a.b", input=sent) == "server"
    event = end.events[0]
    assert isinstance(event, CallRequested)
    assert event.input == sent
    assert event.input is not sent


async def test_a_call_of_the_server_counts_until_it_ends(ends: Ends) -> None:
    async def wait(input: Any, context: Context) -> None:
        await asyncio.Event().wait()

    async def numbers(input: Any, context: Context) -> AsyncIterator[int]:
        for number in range(input):
            yield number

    server = WebSocketServer(max_calls=1)
    await ends.calls(server, wait=wait, numbers=numbers)
    plain, ids = await ends.plain(server.url), count(1)

    async def ends_with(type: str, **request: Any) -> None:
        await plain.say("call.requested", requestId=str(next(ids)), **request)
        while (event := await plain.hear())["type"] == "call.responded" and "seq" in event:
            pass
        assert event["type"] == type

    await ends_with("call.responded", operationId="opwire.about")
    await ends_with("call.completed", operationId="test.numbers", input=5, credits=10)
    await ends_with("call.error", operationId="test.unknown")
    await ends_with("call.error", operationId="test.wait", timeoutMs=1)
    await ends_with("call.error", operationId="test.wait", credits="many")  # which cannot be read
    await plain.say("call.requested", requestId="open", operationId="test.wait")
    await plain.say("call.requested", requestId="more", operationId="opwire.about")
    refused = await plain.hear()
    assert (refused["requestId"], refused["code"]) == ("more", "RATE_LIMITED")
    await plain.say("call.aborted", requestId="open")
    await ends_with("call.responded", operationId="opwire.about")


async def test_the_server_does_not_answer_what_is_routed_to_others(ends: Ends) -> None:
    server, end = await ends.server()
    serving = await ends.client(server.url, "a.b")
    caller = await ends.client(server.url)
    caller.ask("a.b")
    await serving.count(1)
    with pytest.raises(CallError) as failure:
        end.transport.send(item("r", "forged"), serving.senders[0])
    assert failure.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("to", [None, "nobody"])
async def test_a_message_for_an_unknown_address_is_unavailable(ends: Ends, to: str | None) -> None:
    _, end = await ends.server()
    with pytest.raises(CallError) as failure:
        end.transport.send(CallAborted(request_id="r"), to)
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_the_limit_of_a_peer_counts_where_it_is_lower(ends: Ends) -> None:
    server, end = await ends.server()
    client = await ends.client(server.url, "a.b", max_message=2000)
    with pytest.raises(CallError) as failure:
        end.ask("a.b", input="x" * 2000)
    assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    end.ask("a.b", input="x" * 1800)
    await client.count(1)


# --- loss and leave ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["FIN", "RST", "goodbye"])
async def test_the_server_learns_at_once_that_a_client_is_gone(ends: Ends, way: str) -> None:
    server, end = await ends.server()
    raw = await ends.raw(server.url)
    (address,) = server.peers
    match way:
        case "FIN":
            raw.writer.close()
        case "RST":
            raw.writer.transport.abort()
        case _:
            raw.core.send_close(1000)
            raw.write(b"".join(raw.core.data_to_send()))
    await end.until("the loss is told", lambda: bool(end.losses))
    assert [peer for peer, _ in end.losses] == [address]
    assert server.peers == []
    with pytest.raises(CallError):
        end.transport.send(CallAborted(request_id="r"), address)


async def test_a_client_that_goes_away_gets_no_more_requests(ends: Ends) -> None:
    server, end = await ends.server()
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    await plain.hear()
    end.ask("a.b")
    request = await plain.hear()
    await plain.say("session.goaway", reason="maintenance")
    await until("it has withdrawn", lambda: server.routes.servers() == [])
    meta = {"source": "local", "operationId": "a.b", "timestamp": 1}
    await plain.say("call.responded", requestId=request["requestId"], output={"data": 1, "meta": meta})
    assert isinstance(await end.event(), CallResponded)


async def test_a_server_that_closes_says_so(ends: Ends) -> None:
    server, _ = await ends.server()
    plain = await ends.plain(server.url)
    closing = asyncio.create_task(server.close())
    assert (await plain.hear())["type"] == "session.goaway"
    assert (await plain.closed())[0] == 1001
    await closing


async def test_a_server_closes_in_time_although_a_client_does_not_answer(ends: Ends) -> None:
    server, _ = await ends.server()
    raw = await ends.raw(server.url)
    await soon("the server closes", server.close())
    await raw.end()


async def test_peers_that_share_a_call_with_the_server_are_notified(ends: Ends) -> None:
    stopped = asyncio.Event()

    async def wait(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    server = WebSocketServer()
    calls = await ends.calls(server, near=wait)
    raw = await ends.raw(server.url)
    raw.say("session.announce", id=1, operations=["far.op"])
    await raw.hear()
    raw.say("call.requested", requestId="1", operationId="test.near")
    call = asyncio.create_task(calls.call("far.op"))
    await raw.hear()
    raw.writer.transport.abort()
    with pytest.raises(CallError) as failure:
        await soon("the call ends", call)
    assert failure.value.code is ErrorCode.UNAVAILABLE
    await soon("the handler is stopped", stopped.wait())


async def test_a_request_can_be_directed_at_one_peer(ends: Ends) -> None:
    server, end = await ends.server("a.b")
    serving = [end, *[await ends.client(server.url, "a.b") for _ in range(2)]]
    caller = await ends.client(server.url)
    found = await caller.transport.servers()
    assert found == await server.servers() == ["server", *server.peers[:2]]
    for to, receiver in zip(found, serving, strict=True):
        caller.transport.send(CallRequested(request_id="r", operation_id="a.b"), to)
        await receiver.count(1)
        receiver.transport.send(CallFailed(request_id="r", code="INTERNAL", message="no"), receiver.senders[0])
    await caller.count(3)
    assert sorted(caller.senders) == sorted(found)


async def test_a_request_to_a_peer_that_is_gone_is_answered_in_its_name(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url)
    client.transport.send(CallRequested(request_id="r", operation_id="a.b"), 'gone "for" ever')
    error = await client.event()
    assert (error.code, error.not_started) == ("UNAVAILABLE", True)
    assert client.senders == ['gone "for" ever']


# --- the server's own calls -------------------------------------------------------------------------------------------


async def test_a_request_of_the_server_that_cannot_be_sent_leaves_nothing_behind(ends: Ends) -> None:
    server, _ = await ends.server(max_backlog=100_000)
    await ends.raw(server.url)  # which does not read

    async def flood() -> None:
        for number in range(1_000):
            server.send(CallRequested(request_id=str(number), operation_id="a.b", input="x" * 50_000), server.peers[0])
            server.send(CallAborted(request_id=str(number)), server.peers[0])
            await asyncio.sleep(0)

    with pytest.raises(CallError) as failure:
        await flood()
    assert failure.value.code is ErrorCode.RATE_LIMITED
    assert await server.idle(0)


async def test_a_server_is_idle_when_no_call_is_left(ends: Ends) -> None:
    server, _ = await ends.server()
    serving = await ends.client(server.url, "a.b")
    caller = await ends.client(server.url)
    caller.ask("a.b")
    await serving.count(1)
    assert not await server.idle(0.01)
    serving.transport.send(item("r", "done"), serving.senders[0])
    assert await server.idle(5)


# --- room -------------------------------------------------------------------------------------------------------------


async def test_connections_that_say_nothing_make_room_for_others(ends: Ends) -> None:
    server, _ = await ends.server(max_connections=5, max_pending=10)
    uri = parse_uri(server.url)
    silent = [await asyncio.open_connection(uri.host, uri.port) for _ in range(40)]
    await until("the oldest are dropped", lambda: len(server.connections) == 10)
    await ends.client(server.url)
    assert len(server.peers) == 1
    for _, writer in silent:
        writer.close()


class Anonymous:
    """A policy that lets every peer in without a grant."""

    async def admit(self, token: str | None) -> None:
        return None

    async def announced(
        self, peer: Address, grant: Grant | None, operation_ids: Collection[str], descriptions: Sequence[Raw] = ()
    ) -> dict[str, CallError]:
        return {each: CallError(ErrorCode.ACCESS_DENIED, "not here") for each in operation_ids}

    def accepted(self, peer: Address, operation_ids: Collection[str]) -> set[str]:
        return set()

    def withdrawn(self, peer: Address, operation_ids: Collection[str]) -> None: ...
    def lost(self, peer: Address) -> None: ...
    def unserved(self, operation_id: str) -> None: ...


async def test_anonymous_peers_that_do_not_read_hold_so_much_altogether(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MAX_ANONYMOUS_BACKLOG", 200_000)
    monkeypatch.setattr(server_module, "_MAX_FULL_ANONYMOUS_BACKLOGS", 5)
    server = WebSocketServer(heartbeat=60)
    server.admission = Anonymous()

    async def large(*_: Any) -> str:
        return "x" * 90_000

    await ends.calls(server, large=large)
    reading = await ends.calls(WebSocketTransport(server.url))
    for _ in range(20):
        raw = await ends.raw(server.url)
        for number in range(60):
            raw.say("call.requested", requestId=f"{number}", operationId="test.large")
        await soon("one that reads is answered", reading.call("test.large"))
    await until("the worst are dropped", lambda: len(server.peers) < 21)
    links = [peer.connection.link for peer in server.connections]
    assert 0 < sum(link.backlog for link in links if link.paused) <= 1_000_000
    assert (await soon("one that reads is answered", reading.call("test.large"))).data == "x" * 90_000
