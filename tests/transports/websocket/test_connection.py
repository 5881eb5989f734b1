"""Signs of life, and the end of connections. Real sockets, of a server and of what connects to it."""

import asyncio
import time
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from opwire.protocol import CallRequested
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from opwire_conformance.harness import item, soon
from tests.servers.brokers import HOST
from tests.servers.faults import FaultProxy
from tests.transports.websocket.ends import BEAT, Ends, Raw, until


async def beats(raw: Raw, number: int) -> None:
    """Wait for this number of pings of the server, and answer each."""
    while number > 0:
        for frame in await raw.hear():
            if frame.opcode is Opcode.PING:
                number -= 1
        for data in raw.core.data_to_send():
            raw.write(data)


async def test_a_client_that_is_silent_is_given_up(ends: Ends) -> None:
    server, end = await ends.server(heartbeat=BEAT)
    raw = await ends.raw(server.url)
    began = time.monotonic()
    await end.until("the loss is told", lambda: bool(end.losses))
    assert time.monotonic() - began > 2 * BEAT * 0.9
    assert "0.4 s" in end.losses[0][1]
    await raw.end()


async def test_a_server_that_is_silent_is_given_up(ends: Ends) -> None:
    server, _ = await ends.server(heartbeat=BEAT)
    async with FaultProxy(HOST, int(server.url.rpartition(":")[2])) as proxy:
        client = await ends.client(f"ws://{HOST}:{proxy.port}")
        proxy.stall()
        await client.until("the loss is told", lambda: bool(client.losses))
        proxy.flow()
        await until("it is back", lambda: client.transport.connected)  # pyright: ignore
        await client.transport.close()


async def test_a_client_may_want_to_hear_more_often_than_the_server(ends: Ends) -> None:
    server, _ = await ends.server(heartbeat=60)
    async with FaultProxy(HOST, int(server.url.rpartition(":")[2])) as proxy:
        client = await ends.client(f"ws://{HOST}:{proxy.port}", heartbeat=BEAT)
        proxy.stall("down")
        await client.until("the loss is told", lambda: bool(client.losses))
        await client.transport.close()


async def test_a_peer_that_answers_pings_is_alive_without_messages(ends: Ends) -> None:
    server, end = await ends.server(heartbeat=BEAT / 2)
    raw = await ends.raw(server.url)
    await beats(raw, 6)
    assert len(server.peers) == 1
    assert end.losses == []


async def test_a_peer_that_sends_anything_is_alive_without_answering_pings(ends: Ends) -> None:
    server, end = await ends.server(heartbeat=BEAT)
    raw, other = await ends.raw(server.url), await ends.raw(server.url)

    async def drip() -> None:
        for byte in Frame(Opcode.TEXT, b" " * 200).serialize(mask=True):
            raw.write(bytes([byte]))
            await asyncio.sleep(BEAT / 10)

    dripping = asyncio.create_task(drip())
    await beats(other, 5)
    assert end.losses == []
    dripping.cancel()


async def test_a_process_that_was_held_up_does_not_take_others_for_dead(ends: Ends) -> None:
    server, end = await ends.server("a.b", heartbeat=BEAT / 2)
    client = await ends.client(server.url)
    time.sleep(3 * BEAT)
    client.ask("a.b")
    await end.count(1)
    assert (end.losses, client.losses) == ([], [])


async def test_messages_without_a_receiver_do_not_end_a_connection(ends: Ends) -> None:
    """A hundred items of 1 kB wait for a consumer that does something else for a while."""
    # Messages that an application does not take kill no connection.

    async def flood(*_: Any) -> Any:
        for number in range(100):
            yield f"{number}" + "x" * 1000

    server = WebSocketServer(heartbeat=BEAT / 2)
    await ends.calls(server, flood=flood)
    transport = WebSocketTransport(server.url)
    calls = await ends.calls(transport)
    items = calls.subscribe("test.flood", overflow="block")
    first = await anext(items)
    await beats(await ends.raw(server.url), 6)
    assert transport.connected
    rest = [each.data async for each in items]
    assert [first.data, *rest] == [f"{number}" + "x" * 1000 for number in range(100)]


async def test_a_message_is_handed_on_while_its_receiver_waits_for_another(ends: Ends) -> None:
    """The reader never waits for a handler: a hundred of them hang, and the next call is answered."""

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    async def echo(input: Any, _: Any) -> Any:
        return input

    server = WebSocketServer(heartbeat=BEAT / 2)
    await ends.calls(server, hang=hang, echo=echo)
    calls = await ends.calls(WebSocketTransport(server.url))
    hanging = [asyncio.create_task(calls.call("test.hang", "x" * 1000)) for _ in range(100)]
    await beats(await ends.raw(server.url), 6)
    assert (await soon("the call is answered", calls.call("test.echo", 1))).data == 1
    for task in hanging:
        task.cancel()
    await asyncio.wait(hanging)


async def test_pings_of_a_peer_that_reads_nothing_do_not_pile_up(ends: Ends) -> None:
    """A peer that does not read costs bounded memory and delays no other."""
    server, _ = await ends.server(max_backlog=100_000)
    raw, other = await ends.raw(server.url), await ends.plain(server.url)
    (connection,) = [peer.connection for peer in server.connections if peer.address == server.peers[0]]
    pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 1000
    assert connection.link._transport is not None
    connection.link._transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, 10_000)
    raw.writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 10_000)
    for _ in range(30):  # 4 MB, more than what is left of the operating system's buffers holds
        raw.write(pings)
        await soon("the pings are read", raw.writer.drain())
        assert connection.link.backlog < 250_000
    await until("the buffers are full", lambda: connection.link.backlog > 50_000)
    for _ in range(10):
        raw.write(pings)
        await soon("the pings are read", raw.writer.drain())
        assert connection.link.backlog < 250_000
    await other.say("session.who", id=1)
    assert (await other.hear())["type"] == "session.here"


@pytest.mark.parametrize("size", [1, 100_000])
async def test_pings_are_answered_with_what_they_carry(ends: Ends, size: int) -> None:
    server, end = await ends.server()
    raw = await ends.raw(server.url)
    end.transport.send(CallRequested(request_id="r", operation_id="a.b", input="x" * size), server.peers[0])
    raw.write(Frame(Opcode.PING, b"hello?").serialize(mask=True))
    pongs: list[Frame] = []
    while not pongs:
        pongs = [frame for frame in await raw.hear() if frame.opcode is Opcode.PONG]
    assert [bytes(pong.data) for pong in pongs] == [b"hello?"]


async def test_messages_arrive_however_the_network_cuts_them(ends: Ends) -> None:
    server, end = await ends.server("a.b")
    async with FaultProxy(HOST, int(server.url.rpartition(":")[2])) as proxy:
        proxy.halve()
        client = await ends.client(f"ws://{HOST}:{proxy.port}")
        for number in range(20):
            client.ask("a.b", f"{number}", "x" * 997 * number)
        await end.count(20)
        for number, event in enumerate(end.events):
            assert isinstance(event, CallRequested)
            assert event.input == "x" * 997 * number
            end.transport.send(item(event.request_id, event.input), end.senders[0])
        await client.count(20)
        await client.transport.close()
