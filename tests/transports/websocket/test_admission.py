"""Admission to a server: a policy decides, takes its time, and may fail. Tests of the hub's policy are with the hub."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

import pytest
from msgspec import Raw

from opwire.auth import Grant
from opwire.errors import CallError, ErrorCode
from opwire.model.identity import Identity
from opwire.protocol import Address
from opwire.transports.websocket import WebSocketServer, WebSocketTransport, admission
from opwire_conformance.harness import soon
from tests.transports.websocket.ends import Ends, Plain, until


class Watched:
    """A policy that admits all, rejects some operations, and records its calls. It may be held up."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.failing: CallError | None = None
        self.told: list[tuple[str, list[str]]] = []
        self.asked = asyncio.Event()  # an identity
        self.deciding = asyncio.Event()  # what it may serve
        self.go = asyncio.Event()
        self.go.set()

    async def admit(self, token: str | None) -> Grant | None:
        self.asked.set()
        await self.go.wait()
        if token == "broken":
            raise ZeroDivisionError("not for others")
        return None if token is None else Grant(Identity(id=token))

    async def announced(
        self, peer: Address, grant: Grant | None, operation_ids: Collection[str], descriptions: Sequence[Raw] = ()
    ) -> Mapping[str, CallError]:
        self.told.append(("announced", list(operation_ids)))
        self.deciding.set()
        await self.go.wait()
        if self.failing is not None:
            raise self.failing
        refused = self.refused.intersection(operation_ids)
        return {each: CallError(ErrorCode.ACCESS_DENIED, f"not {each}") for each in refused}

    def accepted(self, peer: Address, operation_ids: Collection[str]) -> set[str]:
        return {each for each in operation_ids if each.endswith(".stream")}

    def withdrawn(self, peer: Address, operation_ids: Iterable[str]) -> None:
        self.told.append(("withdrawn", list(operation_ids)))

    def lost(self, peer: Address) -> None:
        self.told.append(("lost", []))

    def unserved(self, operation_id: str) -> None:
        if operation_id in self.refused:
            raise CallError(ErrorCode.UNAVAILABLE, "not yet")


async def guarded(ends: Ends, policy: Watched) -> WebSocketServer:
    server = WebSocketServer()
    server.admission = policy
    await ends.calls(server)
    return server


async def undecided(ends: Ends, operation_id: str) -> tuple[Watched, WebSocketServer, Plain]:
    """A client with a pending announcement of an operation."""
    policy = Watched()
    server = await guarded(ends, policy)
    plain = await ends.plain(server.url)
    policy.go.clear()
    await plain.say("session.announce", id=1, operations=[operation_id])
    await soon("the policy is asked", policy.deciding.wait())
    return policy, server, plain


async def answers(plain: Plain, count: int) -> dict[int, str]:
    """The responses to a number of requests, by their numbers."""
    heard = [await plain.hear() for _ in range(count)]
    assert [event["id"] for event in heard] == sorted(event["id"] for event in heard)
    return {event["id"]: event["type"].removeprefix("session.") for event in heard}


async def test_announcements_and_withdrawals_are_decided_in_order(ends: Ends) -> None:
    policy, _, plain = await undecided(ends, "a.1")
    await plain.say("session.announce", id=2, operations=["a.2"])
    await plain.say("session.announce", id=3, operations=["a.3"])
    await plain.say("session.withdraw", id=4, operations=["a.2"])
    await plain.say("session.announce", id=5, operations=["a.4"])
    await plain.say("session.who", id=9)
    assert await plain.hear() == {"type": "session.here", "id": 9, "peers": []}  # which does not wait
    policy.go.set()
    assert await answers(plain, 5) == dict.fromkeys(range(1, 6), "done")
    assert policy.told == [
        ("announced", ["a.1"]),
        ("announced", ["a.2"]),
        ("announced", ["a.3"]),
        ("withdrawn", ["a.2"]),
        ("announced", ["a.4"]),
    ]


async def test_one_that_is_refused_does_not_take_others_with_it(ends: Ends) -> None:
    policy = Watched("a.2")
    server = await guarded(ends, policy)
    plain = await ends.plain(server.url)
    policy.go.clear()
    for number in range(1, 5):
        await plain.say("session.announce", id=number, operations=[f"a.{number}"])
    await soon("it is decided", policy.deciding.wait())
    await plain.say("session.who", id=9)
    await plain.hear()
    policy.go.set()
    assert await answers(plain, 4) == {1: "done", 2: "refused", 3: "done", 4: "done"}
    caller = await ends.client(server.url)
    for served in ("a.1", "a.3", "a.4"):
        caller.ask(served, served)
    assert [(await plain.hear())["operationId"] for _ in range(3)] == ["a.1", "a.3", "a.4"]


async def test_an_announcement_is_taken_whole_or_not_at_all_unless_it_is_partial(ends: Ends) -> None:
    policy = Watched("a.2")
    server = await guarded(ends, policy)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.1", "a.2"])
    refused = await plain.hear()
    assert (refused["type"], refused["code"]) == ("session.refused", "ACCESS_DENIED")
    assert "a.2" in refused["message"]
    assert await server.servers() == []
    await plain.say("session.announce", id=2, operations=["a.1", "a.2"], partial=True)
    done = await plain.hear()
    assert (done["type"], done["refused"]) == (
        "session.done",
        [{"operation": "a.2", "code": "ACCESS_DENIED", "message": "not a.2"}],
    )
    assert server.routes.operations(server.peers[0]) == ["a.1"]


async def test_an_announcement_of_nothing_is_invalid(ends: Ends) -> None:
    policy = Watched()
    server = await guarded(ends, policy)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=[])
    refused = await plain.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("session.refused", 1, "VALIDATION_ERROR")
    assert policy.told == []


async def test_a_client_waits_as_long_as_its_announcement_is_being_decided(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_SECONDS_BETWEEN_NOTICES", 0.01)
    monkeypatch.setattr("opwire.transports.websocket.client.PATIENCE", 0.3)
    policy = Watched()
    server = await guarded(ends, policy)
    client = await ends.client(server.url)
    policy.go.clear()
    announcing = asyncio.create_task(client.transport.announce(["a.1"]))
    await soon("it is decided", policy.deciding.wait())
    await asyncio.sleep(1)
    assert not announcing.done(), "each notice extends its timeout"
    policy.go.set()
    await soon("it is served", announcing)


async def test_a_client_begins_again_if_its_announcement_is_not_confirmed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opwire.transports.websocket.client.PATIENCE", 0.05)
    policy = Watched()
    server = await guarded(ends, policy)
    client = await ends.client(server.url)
    policy.go.clear()
    with pytest.raises(CallError) as failure:
        await client.transport.announce(["a.1"])
    assert failure.value.code is ErrorCode.UNAVAILABLE
    policy.go.set()
    await until("it is announced again", lambda: server.routes.servers() != [])


async def test_an_operation_that_is_being_announced_is_unavailable_and_not_unknown(ends: Ends) -> None:
    policy = Watched()
    server = await guarded(ends, policy)
    plain, caller = await ends.plain(server.url), await ends.plain(server.url)
    policy.go.clear()
    await plain.say("session.announce", id=1, operations=["a.1"])
    await plain.say("session.announce", id=2, operations=["a.2"])
    await plain.say("session.who", id=9)
    await plain.hear()
    for operation_id in ("a.1", "a.2"):
        await caller.say("call.requested", requestId=operation_id, operationId=operation_id)
        told = await caller.hear()
        assert (told["code"], told["retryable"]) == ("UNAVAILABLE", True)
        assert "being announced" in told["message"]
    plain.connection.transport.abort()
    await until("it has left", lambda: len(server.peers) == 1)
    await caller.say("call.requested", requestId="later", operationId="a.1")
    assert "being announced" not in (await caller.hear())["message"]


async def test_a_subscription_passes_whole_between_peers_that_know_neither_credits_nor_numbers(ends: Ends) -> None:
    server = await guarded(ends, Watched())
    plain, caller = await ends.plain(server.url), await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.stream", "a.query"])
    await plain.hear()
    for operation_id in ("a.stream", "a.query"):
        await caller.say("call.requested", requestId=operation_id, operationId=operation_id)
        await plain.hear()
    for number in range(3):
        await plain.say("call.responded", requestId="a.stream", output=number)
    await plain.say("call.responded", requestId="a.query", output="answer")
    await plain.say("call.completed", requestId="a.stream")
    heard = [await caller.hear() for _ in range(5)]
    assert [event.get("output") for event in heard] == [0, 1, 2, "answer", None]
    assert heard[-1]["type"] == "call.completed"
    assert len(server.routes) == 0


async def test_what_is_refused_is_raised_and_forgotten_and_the_others_are_served(ends: Ends) -> None:
    server = await guarded(ends, Watched("a.2"))
    client = await ends.client(server.url, "a.1")
    with pytest.raises(CallError, match=r"not a\.2") as failure:
        await client.transport.announce(["a.2", "a.3"])
    assert failure.value.code is ErrorCode.ACCESS_DENIED
    assert failure.value.details == {"operations": ["a.2"]}
    assert isinstance(client.transport, WebSocketTransport)
    assert client.transport.connected
    assert server.routes.operations(server.peers[0]) == ["a.1", "a.3"]


async def test_thousands_of_operations_are_announced_in_messages_that_fit(ends: Ends) -> None:
    policy = Watched("n.700")
    server = await guarded(ends, policy)
    client = await ends.client(server.url)
    with pytest.raises(CallError):
        await client.transport.announce([f"n.{number}" for number in range(1_200)])
    assert [len(operations) for _, operations in policy.told[:3]] == [500, 500, 200]
    assert len(server.routes.operations(server.peers[0])) == 1_199


async def test_an_operation_that_is_refused_after_a_loss_does_not_keep_the_others_away(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Watched()
    server = await guarded(ends, policy)
    await ends.client(server.url, "a.1", "a.2")
    policy.refused.add("a.2")
    (peer,) = server.connections
    peer.connection.link.abort("for a test")
    await until("it is back", lambda: bool(server.peers) and server.peers != [peer.address])
    await until("it serves", lambda: bool(server.routes.servers()))
    assert server.routes.operations(server.peers[0]) == ["a.1"]
    await until("it is logged", lambda: "not a.2" in caplog.text)


async def test_a_gate_may_know_why_an_operation_has_no_server(ends: Ends) -> None:
    server = await guarded(ends, Watched("a.2"))
    plain = await ends.plain(server.url)
    await plain.say("call.requested", requestId="1", operationId="a.2")
    told = await plain.hear()
    assert (told["code"], told["message"]) == ("UNAVAILABLE", "not yet")
    await plain.say("call.requested", requestId="2", operationId="a.1")
    assert (await plain.hear())["message"] == "nothing is served here"  # which is what the server itself says


async def test_a_gate_that_fails_is_not_shown(ends: Ends, caplog: pytest.LogCaptureFixture) -> None:
    server = await guarded(ends, Watched())
    with pytest.raises(CallError) as failure:
        await ends.client(server.url, token="broken")
    assert failure.value.code is ErrorCode.INTERNAL
    assert "not for others" not in failure.value.message
    assert "ZeroDivisionError" in caplog.text


async def test_one_that_leaves_before_it_is_welcome_was_never_there(ends: Ends) -> None:
    policy = Watched()
    server = await guarded(ends, policy)
    policy.go.clear()
    plain = await ends.plain(server.url, hello=False)
    await plain.say("session.hello", version=1)
    await soon("it is decided", policy.asked.wait())
    plain.connection.transport.abort()
    other = await ends.plain(server.url, hello=False)
    policy.go.set()
    await other.say("session.hello", version=1)
    await other.hear()
    assert len(server.peers) == 1
    assert policy.told == []


async def test_one_that_leaves_while_its_announcement_is_decided_serves_nothing(ends: Ends) -> None:
    policy, server, plain = await undecided(ends, "a.b")
    plain.connection.transport.abort()
    await until("the loss is noticed", lambda: not server.peers)
    policy.go.set()
    await until("the policy is told of it after its decision", lambda: policy.told.count(("lost", [])) == 2)
    assert await server.servers() == []


async def test_one_that_is_about_to_leave_withdraws_everything(ends: Ends) -> None:
    policy = Watched()
    server = await guarded(ends, policy)
    plain = await ends.plain(server.url)
    await plain.say("session.announce", id=1, operations=["a.1", "a.2"])
    await plain.hear()
    await plain.say("session.goaway")
    await until("that is told", lambda: ("withdrawn", ["a.1", "a.2"]) in policy.told)
    assert await server.servers() == []


async def test_a_server_closes_while_its_gate_decides(ends: Ends) -> None:
    _, server, _ = await undecided(ends, "a.b")
    await soon("it closes", server.close())


async def test_without_a_gate_every_peer_may_announce_anything(ends: Ends) -> None:
    server, _ = await ends.server()
    client = await ends.client(server.url, "any.thing")
    await client.transport.announce(["other.thing"])
    assert await server.servers() == await client.transport.servers() == server.peers
