"""The door of a server: a gate decides, takes its time, and may fail. The gate of a hub has its tests with the hub."""

import asyncio
from collections.abc import Iterable

import pytest

from opwire.auth import Grant
from opwire.call import Address
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity
from opwire.testing.scene import soon
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from tests.requirements import requirement
from tests.transports.websocket.ends import Ends, Plain, until


class Watched:
    """A gate that lets everybody in, refuses some operations, and keeps what it was told. It may be held up."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.told: list[tuple[str, list[str]]] = []
        self.asked = asyncio.Event()  # who somebody is
        self.deciding = asyncio.Event()  # what it may serve
        self.go = asyncio.Event()
        self.go.set()

    async def admit(self, token: str | None) -> Grant | None:
        self.asked.set()
        await self.go.wait()
        if token == "broken":
            raise ZeroDivisionError("not for others")
        return None if token is None else Grant(Identity(id=token))

    async def announced(self, peer: Address, grant: Grant | None, operation_ids: list[str]) -> None:
        self.told.append(("announced", operation_ids))
        self.deciding.set()
        await self.go.wait()
        if self.refused.intersection(operation_ids):
            raise CallError(ErrorCode.ACCESS_DENIED, "not that")

    def withdrawn(self, peer: Address, operation_ids: Iterable[str]) -> None:
        self.told.append(("withdrawn", list(operation_ids)))

    def lost(self, peer: Address) -> None:
        self.told.append(("lost", []))

    def unserved(self, operation_id: str) -> None:
        if operation_id in self.refused:
            raise CallError(ErrorCode.UNAVAILABLE, "not yet")


async def guarded(ends: Ends, gate: Watched) -> WebSocketServer:
    server = WebSocketServer()
    server.gate = gate
    await ends.calls(server)
    return server


async def answers(plain: Plain, count: int) -> dict[int, str]:
    """What was said to so many questions, by their numbers."""
    heard = [await plain.hear() for _ in range(count)]
    assert [event["id"] for event in heard] == sorted(event["id"] for event in heard)
    return {event["id"]: event["type"].removeprefix("session.") for event in heard}


@requirement("transport.websocket.gate")
async def test_announcements_and_withdrawals_are_decided_in_order(ends: Ends) -> None:
    gate = Watched()
    server = await guarded(ends, gate)
    plain = await ends.plain(server.url)
    gate.go.clear()
    await plain.say("session.announce", id=1, operations=["a.1"])
    await soon("it is decided", gate.deciding.wait())
    await plain.say("session.announce", id=2, operations=["a.2"])
    await plain.say("session.announce", id=3, operations=["a.3"])
    await plain.say("session.withdraw", id=4, operations=["a.2"])
    await plain.say("session.announce", id=5, operations=["a.4"])
    await plain.say("session.who", id=9)
    assert await plain.hear() == {"type": "session.here", "id": 9, "peers": []}  # which waits for nobody
    gate.go.set()
    assert await answers(plain, 5) == dict.fromkeys(range(1, 6), "done")
    assert gate.told == [
        ("announced", ["a.1"]),
        ("announced", ["a.2", "a.3"]),  # together: the gate is asked once
        ("withdrawn", ["a.2"]),
        ("announced", ["a.4"]),
    ]


@requirement("transport.websocket.gate")
async def test_one_that_is_refused_does_not_take_others_with_it(ends: Ends) -> None:
    gate = Watched("a.2")
    server = await guarded(ends, gate)
    plain = await ends.plain(server.url)
    gate.go.clear()
    for number in range(1, 5):
        await plain.say("session.announce", id=number, operations=[f"a.{number}"])
    await soon("it is decided", gate.deciding.wait())
    await plain.say("session.who", id=9)
    await plain.hear()
    gate.go.set()
    assert await answers(plain, 4) == {1: "done", 2: "refused", 3: "done", 4: "done"}
    caller = await ends.client(server.url)
    for served in ("a.1", "a.3", "a.4"):
        caller.ask(served, served)
    assert [(await plain.hear())["operationId"] for _ in range(3)] == ["a.1", "a.3", "a.4"]


@requirement("transport.websocket.gate")
async def test_what_is_refused_is_raised_and_forgotten(ends: Ends) -> None:
    server = await guarded(ends, Watched("a.2"))
    client = await ends.client(server.url, "a.1")
    with pytest.raises(CallError, match="not that") as failure:
        await client.transport.announce(["a.2"])
    assert failure.value.code is ErrorCode.ACCESS_DENIED
    await client.transport.announce(["a.3"])
    assert isinstance(client.transport, WebSocketTransport)
    assert client.transport.connected


@requirement("hub.just-started")
async def test_a_gate_may_know_why_nobody_serves_an_operation(ends: Ends) -> None:
    server = await guarded(ends, Watched("a.2"))
    plain = await ends.plain(server.url)
    await plain.say("call.requested", requestId="1", operationId="a.2")
    told = await plain.hear()
    assert (told["code"], told["message"]) == ("UNAVAILABLE", "not yet")
    await plain.say("call.requested", requestId="2", operationId="a.1")
    assert (await plain.hear())["message"] == "nothing is served here"  # which is what the server itself says


@requirement("transport.websocket.gate")
async def test_a_gate_that_fails_is_not_shown(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    server = await guarded(ends, Watched())
    with pytest.raises(CallError) as failure:
        await ends.client(server.url, token="broken")
    assert failure.value.code is ErrorCode.INTERNAL
    assert "not for others" not in failure.value.message
    assert "ZeroDivisionError" in caplog.text


@requirement("transport.websocket.gate")
async def test_one_that_leaves_before_it_is_welcome_was_never_there(ends: Ends) -> None:
    gate = Watched()
    server = await guarded(ends, gate)
    gate.go.clear()
    plain = await ends.plain(server.url, hello=False)
    await plain.say("session.hello", version=1)
    await soon("it is decided", gate.asked.wait())
    plain.connection.transport.abort()
    other = await ends.plain(server.url, hello=False)
    gate.go.set()
    await other.say("session.hello", version=1)
    await other.hear()
    assert len(server.peers) == 1
    assert gate.told == []


@requirement("transport.websocket.gate")
async def test_one_that_leaves_while_its_announcement_is_decided_serves_nothing(ends: Ends) -> None:
    gate = Watched()
    server = await guarded(ends, gate)
    plain = await ends.plain(server.url)
    gate.go.clear()
    await plain.say("session.announce", id=1, operations=["a.b"])
    await soon("it is decided", gate.deciding.wait())
    plain.connection.transport.abort()
    await until("the loss is noticed", lambda: not server.peers)
    gate.go.set()
    await until("the gate is told of it after its decision", lambda: gate.told.count(("lost", [])) == 2)
    assert await server.servers() == []


@requirement("transport.websocket.gate")
async def test_one_that_is_about_to_leave_withdraws_everything(ends: Ends) -> None:
    gate = Watched()
    server = await guarded(ends, gate)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.1", "a.2"])
    await plain.hear()
    await plain.say("session.goaway")
    await until("that is told", lambda: ("withdrawn", ["a.1", "a.2"]) in gate.told)
    assert await server.servers() == []


@requirement("transport.websocket.gate")
async def test_a_server_closes_while_its_gate_decides(ends: Ends) -> None:
    gate = Watched()
    server = await guarded(ends, gate)
    plain = await ends.plain(server.url)
    gate.go.clear()
    await plain.say("session.announce", id=1, operations=["a.b"])
    await soon("it is decided", gate.deciding.wait())
    await soon("it closes", server.close())


async def test_without_a_gate_everybody_announces_what_it_likes(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url, "any.thing")
    await client.transport.announce(["other.thing"])
    assert await server.servers() == await client.transport.servers() == server.peers
