"""One connection to a server: which servers a client accepts, and which messages."""

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from opwire.errors import CallError, ErrorCode
from opwire.protocol import CallAborted, CallFailed, CallResponded
from opwire.transports.websocket import WebSocketTransport
from opwire_conformance.harness import item, soon
from tests.servers.brokers import HOST
from tests.transports.websocket.ends import End, Ends, until
from tests.transports.websocket.foreign import META, WELCOME, foreign, saying, silent


async def refusal(url: str, **options: Any) -> CallError:
    """The error that a start ends with."""
    transport = WebSocketTransport(url, **options)
    with pytest.raises(CallError) as failure:
        await soon("the start ends", transport.start(End(transport)))
    assert not transport.connected
    await transport.close()
    return failure.value


# --- connecting -------------------------------------------------------------------------------------------------------


async def test_a_server_that_cannot_be_reached_is_unavailable_and_no_secret_is_shown(ends: Ends) -> None:
    server, _ = await ends.server()
    url = server.url
    await server.close()
    error = await refusal(url.replace("//", "//ann:secret@") + "/path?token=secret")
    assert error.code is ErrorCode.UNAVAILABLE
    assert f"{url}/path" in error.message
    assert "secret" not in str(error)


async def test_a_server_that_says_nothing_is_unavailable_in_time() -> None:
    async with silent() as url:
        error = await refusal(url, connect_timeout=0.2)
    assert error.code is ErrorCode.UNAVAILABLE
    assert "0.2 s" in error.message


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ((WELCOME | {"version": 2},), "version 2"),
        (("nonsense",), "0.2 s"),
        (({"type": "session.done", "id": 0},), "0.2 s"),
    ],
)
async def test_a_server_that_speaks_otherwise_is_unavailable(messages: tuple[Any, ...], complaint: str) -> None:
    async with foreign(saying(*messages)) as url:
        error = await refusal(url, connect_timeout=0.2)
    assert error.code is ErrorCode.UNAVAILABLE
    assert complaint in error.message


@pytest.mark.parametrize("beat", [1, 2**63, 10**400], ids=["short", "long", "endless"])
async def test_a_server_may_ask_for_any_beat(ends: Ends, beat: int) -> None:
    async with foreign(saying(WELCOME | {"heartbeatMs": beat}, {"type": "session.left", "peer": "c2"})) as url:
        client = await ends.client(url)
        await until("the session goes on", lambda: client.losses == [("c2", "the peer left")])
        await client.transport.close()


async def test_a_websocket_server_of_another_kind_is_unavailable() -> None:
    async with foreign(saying(WELCOME), protocol=None) as url:
        error = await refusal(url)
    assert "opwire.v1" in error.message


async def test_a_web_server_is_unavailable_with_its_status() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope")
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        error = await refusal(f"ws://{HOST}:{server.sockets[0].getsockname()[1]}")
    assert error.code is ErrorCode.UNAVAILABLE
    assert "404" in error.message


@pytest.mark.parametrize("welcome", [False, True])
async def test_the_reason_of_a_server_that_closes_is_shown(welcome: bool) -> None:
    async def talk(connection: ServerConnection) -> None:
        await connection.recv()
        if welcome:
            connection.protocol.send_text(json.dumps(WELCOME).encode())
        connection.protocol.send_close(4403, "not you")
        connection.transport.write(b"".join(connection.protocol.data_to_send()))  # both in one piece
        await connection.wait_closed()

    async with foreign(talk) as url:
        error = await refusal(url)
    assert "4403" in error.message
    assert "not you" in error.message


async def test_a_host_that_cannot_be_one_is_unavailable() -> None:
    assert (await refusal(f"ws://{'x' * 70}.example")).code is ErrorCode.UNAVAILABLE


# --- talking ----------------------------------------------------------------------------------------------------------


async def test_an_announcement_that_is_not_confirmed_is_unavailable(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwire.transports.websocket.client.PATIENCE", 0.1)
    async with foreign(saying(WELCOME)) as url:
        client = await ends.client(url)
        with pytest.raises(CallError) as failure:
            await client.transport.announce(["a.b"])
        assert failure.value.code is ErrorCode.UNAVAILABLE
        await client.transport.withdraw(["a.b"])  # says nothing: they are not announced again
        with pytest.raises(CallError):
            await client.transport.servers()
        await client.transport.close()


async def test_a_server_that_goes_before_it_confirms_is_unavailable_at_once(ends: Ends) -> None:
    async def talk(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(json.dumps(WELCOME))
        await connection.recv()  # the announcement

    async with foreign(talk) as url:
        client = await ends.client(url)
        with pytest.raises(CallError) as failure:
            await soon("the announcement fails", client.transport.announce(["a.b"]))
        assert failure.value.code is ErrorCode.UNAVAILABLE
        await client.transport.close()


async def test_a_malformed_answer_ends_its_own_call_alone(ends: Ends) -> None:
    server, _ = await ends.server()
    calls = await ends.calls(WebSocketTransport(server.url))
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    await plain.hear()
    first, second = [asyncio.create_task(calls.call("a.b")) for _ in range(2)]
    requests = [await plain.hear() for _ in range(2)]
    await plain.say("call.responded", requestId=requests[0]["requestId"], output={"data": 1, "meta": 2})
    await plain.say("call.responded", requestId=requests[1]["requestId"], output={"data": 1, "meta": META})
    with pytest.raises(CallError) as failure:
        await soon("the call ends", first)
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR
    assert (await soon("the call is answered", second)).data == 1


async def test_a_malformed_request_is_reported_to_its_caller(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url, "a.b")
    plain = await ends.plain(server.url)
    await plain.say("call.requested", requestId="1", operationId="a.b", timeoutMs="soon")
    error = await plain.hear()
    assert (error["requestId"], error["code"]) == ("1", "PROTOCOL_ERROR")
    assert client.events == []


async def test_a_relayed_request_of_too_many_objects_and_lists_is_rejected_by_its_server(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url, "a.b")
    plain = await ends.plain(server.url)
    lists = ",".join(["[]"] * 100_000)
    await plain.connection.send(f'{{"type":"call.requested","requestId":"1","operationId":"a.b","input":[{lists}]}}')
    error = await plain.hear()
    assert (error["requestId"], error["code"]) == ("1", "PAYLOAD_TOO_LARGE")
    assert client.events == []


async def test_nonsense_from_the_server_is_counted_and_ends_nothing(ends: Ends) -> None:
    nonsense = ["x", "{}", '{"type":"session.welcome"}', '{"type":"session.who","id":1}', WELCOME]
    unmatched = [{"type": "call.responded", "requestId": "r", "output": 1, "unmatched": True, "peer": "c9"}]
    last = {"type": "call.credit", "requestId": "last", "n": 1}
    async with foreign(saying(WELCOME, *nonsense, *unmatched, last)) as url:
        client = await ends.client(url)
        assert (await client.event()).request_id == "last"
        assert client.transport.dropped == {"malformed": len(nonsense) + len(unmatched)}  # pyright: ignore
        await client.transport.close()


async def test_nonsense_from_the_server_does_not_fill_the_log(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    last = {"type": "call.credit", "requestId": "last", "n": 1}
    async with foreign(saying(WELCOME, *["x"] * 1_000, last)) as url:
        client = await ends.client(url)
        assert (await client.event()).request_id == "last"
        assert 10 <= len([each for each in caplog.messages if each.startswith("invalid message")]) < 20
        await client.transport.close()


async def test_a_peer_that_a_server_says_has_left_is_lost(ends: Ends) -> None:
    left = {"type": "session.left", "peer": "c9", "reason": "it left"}
    async with foreign(saying(WELCOME, left)) as url:
        client = await ends.client(url)
        await client.until("the loss is told", lambda: bool(client.losses))
        assert client.losses == [("c9", "it left")]
        await client.transport.close()


async def test_an_answer_that_comes_before_the_request_is_not_taken_for_one(ends: Ends) -> None:
    """A stranger guesses the id of the next request."""
    server, _ = await ends.server()
    serving, stranger, caller = [await ends.client(server.url) for _ in range(3)]
    await serving.transport.announce(["a.b"])
    target = server.peers[2]
    for guess in (
        item("r", "forged"),
        CallFailed(request_id="r", code="INTERNAL", message=""),
        CallAborted(request_id="r"),
    ):
        stranger.transport.send(guess, target)
    caller.ask("a.b")  # leaves before the guesses have arrived
    await serving.count(1)
    serving.transport.send(item("r", "genuine"), serving.senders[0])
    answer = await caller.event()
    assert isinstance(answer, CallResponded)
    assert answer.output.data == "genuine"


async def test_the_limit_of_the_server_counts_where_it_is_lower(ends: Ends) -> None:
    server, end = await ends.server("a.b", max_message=2000)
    client = await ends.client(server.url)
    with pytest.raises(CallError) as failure:
        client.ask("a.b", input="x" * 2000)
    assert failure.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    client.ask("a.b", input="x" * 1800)
    await end.count(1)
