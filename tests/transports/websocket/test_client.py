"""The end that connects: how it leaves, and how it comes back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.model.context import Context
from opwire.protocol import CallCredit, CallRequested
from opwire.transports.websocket import WebSocketServer, WebSocketTransport, client
from opwire_conformance.harness import item, soon
from tests.servers.brokers import HOST
from tests.servers.faults import FaultProxy
from tests.transports.reconnecting import reconnect_quickly
from tests.transports.websocket.ends import End, Ends, until
from tests.transports.websocket.foreign import WELCOME, foreign, silent


@pytest.mark.parametrize(
    "url", ["http://ann:secret@example", "ws://", "ws://h:port", "ws://secret@h", "ws://h/#secret", "ws://["]
)
def test_what_is_not_an_address_is_refused_where_it_is_given(url: str) -> None:
    with pytest.raises(UsageError, match="ws://host:port") as failure:
        WebSocketTransport(url)
    assert "secret" not in str(failure.value)


async def test_a_start_that_is_cancelled_leaves_nothing_behind(ends: Ends) -> None:
    async with silent() as url:
        transport = WebSocketTransport(url)
        starting = asyncio.create_task(transport.start(End(transport)))
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not transport.connected


# --- losing and coming back -------------------------------------------------------------------------------------------


@asynccontextmanager
async def behind_a_proxy(ends: Ends, *operations: str, **options: Any) -> AsyncIterator[tuple[End, End, FaultProxy]]:
    """A server, and a client that reaches it through a proxy."""
    server, end = await ends.server()
    async with FaultProxy(HOST, int(server.url.rpartition(":")[2])) as proxy:
        client = await ends.client(f"ws://{HOST}:{proxy.port}", *operations, **options)
        try:
            yield end, client, proxy
        finally:
            await client.transport.close()


@pytest.mark.parametrize("way", ["cut", "close_all"])
async def test_after_a_loss_it_comes_back_and_serves_again(ends: Ends, way: str) -> None:
    async with behind_a_proxy(ends, "a.b", "a.c") as (server, client, proxy):
        await client.transport.withdraw(["a.c"])
        getattr(proxy, way)()
        await client.until("the loss is told", lambda: bool(client.losses))
        assert [peer for peer, _ in client.losses] == [None]
        await until("it is back", lambda: client.transport.connected)  # pyright: ignore
        server.ask("a.b")  # what it served is announced before it counts as connected
        assert isinstance(await client.event(), CallRequested)
        with pytest.raises(CallError):
            server.ask("a.c")


async def test_without_a_connection_every_method_that_sends_is_unavailable(ends: Ends) -> None:
    async with behind_a_proxy(ends, "a.b") as (server, client, proxy):
        client.ask("a.b", "one")
        await client.count(1)
        proxy.refuse()
        proxy.cut()
        await client.until("the loss is told", lambda: bool(client.losses))
        await server.until("the loss is told", lambda: bool(server.losses))
        acts = (
            lambda: client.ask("a.b"),
            lambda: client.transport.send(item("one", 1), "server"),
            lambda: client.transport.send(CallRequested(request_id="r", operation_id="a.b"), "server"),
        )
        for act in acts:
            with pytest.raises(CallError) as failure:
                act()
            assert failure.value.code is ErrorCode.UNAVAILABLE
        with pytest.raises(CallError):
            await client.transport.announce(["a.later"])
        await client.transport.withdraw(["a.b"])
        proxy.accept()
        await until("it is back", lambda: client.transport.connected)  # pyright: ignore
        server.ask("a.later")  # what was announced meanwhile is served, and what was withdrawn is not
        assert (await client.event(1)).operation_id == "a.later"
        with pytest.raises(CallError):
            server.ask("a.b")


async def test_calls_over_a_lost_connection_end_at_once_on_both_sides(ends: Ends) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    server = WebSocketServer()
    await ends.calls(server, wait=wait)
    async with FaultProxy(HOST, int(server.url.rpartition(":")[2])) as proxy:
        calls = await ends.calls(WebSocketTransport(f"ws://{HOST}:{proxy.port}"))
        call = asyncio.create_task(calls.call("test.wait"))
        await soon("the handler begins", began.wait())
        proxy.cut()
        with pytest.raises(CallError) as failure:
            await soon("the call ends", call)
        assert failure.value.code is ErrorCode.UNAVAILABLE
        await soon("the handler is stopped", stopped.wait())
        await calls.close()


async def test_it_comes_back_to_a_server_that_was_away(ends: Ends) -> None:
    server, end = await ends.server()
    client = await ends.client(server.url, "a.b")
    for _ in range(3):
        await server.close()
        await until("it is away", lambda: not client.transport.connected)  # pyright: ignore
        await server.start(end)
        await until("it is back", lambda: client.transport.connected)  # pyright: ignore
        assert await server.servers() == server.peers


async def test_a_server_that_drops_everyone_is_not_stormed(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def back_off(attempt: int, **_: float) -> float:
        attempts.append(attempt)
        return 0.01

    async def talk(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(json.dumps(WELCOME))
        await asyncio.sleep(0.05)

    monkeypatch.setattr(client, "back_off", back_off)
    async with foreign(talk) as url:
        dropped = await ends.client(url)
        await until("it tries again and again", lambda: len(attempts) == 6)
        await dropped.transport.close()
    assert attempts == [1, 2, 3, 4, 5, 6]


async def test_it_can_be_closed_while_it_is_away(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url)
    await server.close()
    await client.until("the loss is told", lambda: bool(client.losses))
    await soon("it closes", client.transport.close())
    with pytest.raises(CallError, match="closed"):
        client.ask("a.b")


async def test_a_server_that_goes_away_gets_no_new_requests_and_finishes_the_old_ones(ends: Ends) -> None:
    release = asyncio.Event()

    async def slow(*_: Any) -> str:
        await release.wait()
        return "finished"

    async def instant(*_: Any) -> str:
        return "answered"

    server = WebSocketServer()
    await ends.calls(server, slow=slow, instant=instant)
    transport = WebSocketTransport(server.url)
    calls = await ends.calls(transport)
    in_hand = asyncio.create_task(calls.call("test.slow"))
    await calls.call("test.instant")
    server.go_away()

    async def call_until_it_is_told() -> None:
        while True:
            await calls.call("test.instant")

    with pytest.raises(CallError, match="about to leave") as failure:
        await soon("it is told", call_until_it_is_told())
    assert failure.value.code is ErrorCode.UNAVAILABLE
    release.set()
    assert (await soon("the call in hand ends", in_hand)).data == "finished"


async def test_what_waits_to_be_sent_is_sent_before_it_closes(ends: Ends) -> None:
    server, end = await ends.server("a.b")
    client = await ends.client(server.url)
    client.ask("a.b", input="x" * 900_000)
    client.transport.send(CallCredit(request_id="r", n=1), "server")
    await client.transport.close()
    await end.count(2)


async def test_when_it_has_closed_the_server_routes_nothing_to_it(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url, "a.b")
    await client.transport.close()
    assert server.peers == []
    assert await server.servers() == []


async def test_many_clients_come_and_go_while_calls_are_made(ends: Ends) -> None:
    """A WebSocket server and its clients are ends of one medium; the server relays."""

    async def echo(input: Any, _: Context) -> Any:
        return input

    server = WebSocketServer()
    await ends.calls(server, echo=echo)

    async def visit(number: int) -> None:
        async with Ends() as own:
            calls = await own.calls(WebSocketTransport(server.url), **{f"op{number}": echo})
            answers = await asyncio.gather(*(calls.call("test.echo", each) for each in range(20)))
            assert [answer.data for answer in answers] == list(range(20))

    await soon("all have been there", asyncio.gather(*(visit(number) for number in range(20))))
    assert server.peers == []
    assert len(server.routes) == 0


async def test_a_token_function_that_raises_does_not_end_the_attempts(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reconnect_quickly(monkeypatch)
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        if asked in (2, 3):
            raise RuntimeError("sealed-secret")
        return "x" * 20

    server, _ = await ends.server()
    client = await ends.client(server.url, "a.b", token=token)
    (peer,) = server.connections
    peer.connection.link.abort("for a test")
    assert isinstance(client.transport, WebSocketTransport)
    transport = client.transport
    await until("it has asked again", lambda: asked > 3 and transport.connected)
    assert "raised RuntimeError" in caplog.text
    assert "sealed-secret" not in caplog.text
    with pytest.raises(CallError, match="raised ZeroDivisionError") as failure:
        await ends.client(server.url, token=lambda: str(1 / 0))
    assert failure.value.code is ErrorCode.UNAVAILABLE


async def test_a_fault_while_connecting_does_not_end_the_attempts(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reconnect_quickly(monkeypatch)
    server, _ = await ends.server()
    client_end = await ends.client(server.url, "a.b")
    transport = client_end.transport
    assert isinstance(transport, WebSocketTransport)
    new_session, sessions = client.ClientSession, 0

    def session(*args: Any, **options: Any) -> Any:
        nonlocal sessions
        sessions += 1
        if sessions == 1:
            raise KeyError("a bug")
        return new_session(*args, **options)

    monkeypatch.setattr(client, "ClientSession", session)
    (peer,) = server.connections
    peer.connection.link.abort("for a test")
    await until("it is back", lambda: sessions > 1 and transport.connected)
    assert "KeyError" in caplog.text
