"""The promises of a hub: sessions, announcements, and the relay between peers.

Most need a token that may announce in the namespace `conformance`: the kit is then both the caller and the server.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from secrets import token_hex
from typing import Any

from opwire.errors import CallError, ErrorCode
from opwire_conformance.peers.server import NAMESPACE, Server, described_server, envelope_data
from opwire_conformance.peers.wires import (
    SETTLE,
    SUBPROTOCOL,
    Event,
    NotChecked,
    Problems,
    ServerLine,
    ServerRoute,
    WebSocketWire,
    expect,
    open_websocket,
    shown,
)

_FORGED: Event = {"id": "forged", "scopes": ["*"], "resources": {}}
_MAX_SENT = 4 * 1024 * 1024
_NOT_ALLOWED = f"the token may not announce {NAMESPACE}.*"


class HubUnderTest:
    """A hub: opens connections to it, which are closed after each check."""

    def __init__(self, url: str, token: str | None, problems: Problems) -> None:
        self._url = url
        self.token = token
        self._problems = problems
        self._stack = AsyncExitStack()

    async def close(self) -> None:
        """Close the connections of a check."""
        await self._stack.aclose()

    async def check_token(self) -> None:
        """Check that there is a hub, and that it accepts the token: otherwise nothing can be checked.

        Raises:
            CallError: UNAVAILABLE, UNAUTHENTICATED.
        """
        wire = await self.connect()
        with suppress(AssertionError):  # what else is wrong, the checks find
            await self.hello(wire)
            answer = await wire.take("session.welcome", type=("session.welcome", "session.refused"))
            if answer.get("code") == "UNAUTHENTICATED":
                raise CallError(ErrorCode.UNAUTHENTICATED, f"the hub refuses the token: {answer.get('message')}")
        await self.close()

    async def connect(self) -> WebSocketWire:
        """Open a connection that has not sent anything."""
        wire = await open_websocket(self._url, self._problems)
        self._stack.push_async_callback(wire.connection.close)
        reading = asyncio.create_task(wire.read())
        self._stack.push_async_callback(asyncio.wait, [reading])  # after its cancellation
        self._stack.callback(reading.cancel)
        return wire

    async def hello(self, wire: WebSocketWire, token: str | None = None, **fields: Any) -> None:
        """Send the hello, with the token of the run by default."""
        token = token or self.token
        await wire.send("session.hello", version=1, **({} if token is None else {"token": token}), **fields)

    async def wire(self, **fields: Any) -> WebSocketWire:
        """Open a session."""
        wire = await self.connect()
        await self.hello(wire, **fields)
        await self.welcome(wire)
        return wire

    async def welcome(self, wire: WebSocketWire) -> Event:
        """Wait until a session is open; return the welcome."""
        welcome = await wire.take("session.welcome", type=("session.welcome", "session.refused"))
        expect(welcome["type"] == "session.welcome", f"the peer was not admitted: {shown(welcome)}")
        wire.address = welcome["peer"]
        return welcome

    async def announce(self, wire: WebSocketWire, *operations: str, type: str = "query", **fields: Any) -> Event:
        """Announce operations, describe them on request, and return the outcome.

        Raises:
            NotChecked: the token may not announce them.
        """
        number = await wire.ask("session.announce", operations=list(operations), **fields)
        while True:
            event = await wire.take(
                "session.done", type=("session.done", "session.refused", "call.requested", "session.pending")
            )
            if event["type"] == "call.requested":
                await _describe(wire, event, operations, type)
                continue
            _check_allowed(event)
            if event["type"] != "session.pending" and event["id"] == number:
                return event

    async def server(self, *, type: str = "query") -> tuple[WebSocketWire, str]:
        """Open a session that serves a new operation."""
        wire, id = await self.wire(), f"{NAMESPACE}.kit-{token_hex(6)}"
        done = await self.announce(wire, id, type=type)
        expect(done["type"] == "session.done", f"an announcement was answered by {shown(done)}")
        return wire, id

    async def relayed(self, **fields: Any) -> tuple[WebSocketWire, WebSocketWire, Event]:
        """Make a call from one session to another; return both, and the request as it arrived."""
        server, id = await self.server()
        caller = await self.wire()
        await caller.send("call.requested", requestId="r1", operationId=id, input={"a": [1, "ü"]}, **fields)
        request = await server.take("the request", type="call.requested", requestId="r1")
        expect(request.get("peer") == caller.address, f"the request does not name its caller: {shown(request)}")
        return server, caller, request


def _check_allowed(answer: Event) -> None:
    if answer.get("code") in ("ACCESS_DENIED", "UNAUTHENTICATED"):
        raise NotChecked(_NOT_ALLOWED)


async def _describe(wire: WebSocketWire, request: Event, operations: tuple[str, ...], type: str) -> None:
    expect(request["operationId"] == "opwire.operations", f"before session.done: {shown(request)}")
    expect(request.get("identity") is None and request.get("peer") is None, f"not the hub's own: {shown(request)}")
    for seq, id in enumerate(operations, 1):
        await respond(wire, request, {"id": id, "type": type}, seq=seq)
    await wire.send("call.completed", requestId=request["requestId"], seq=len(operations))


async def respond(wire: WebSocketWire, request: Event, data: Any, **fields: Any) -> None:
    """Answer a request that came by a hub."""
    meta = {"source": "local", "operationId": request["operationId"], "timestamp": 1760000000000}
    to = {"peer": request["peer"]} if request.get("peer") else {}
    output = {"data": data, "meta": meta}
    await wire.send("call.responded", requestId=request["requestId"], output=output, **fields, **to)


async def _still_open(wire: WebSocketWire) -> None:
    await wire.take("session.here", type="session.here", id=await wire.ask("session.who"))


# --- sessions ---------------------------------------------------------------------------------------------------------


async def a_session_opens(hub: HubUnderTest) -> None:
    """Connect with the subprotocol, say hello, and be welcomed."""
    wire = await hub.connect()
    subprotocol = wire.connection.subprotocol
    expect(subprotocol == SUBPROTOCOL, f"the subprotocol is {subprotocol!r} instead of {SUBPROTOCOL!r}")
    await hub.hello(wire)
    welcome = await hub.welcome(wire)
    expect(welcome.get("version") == 1, f"the version is not 1: {shown(welcome)}")


async def hello_comes_first(hub: HubUnderTest) -> None:
    """Send a request before the hello."""
    wire = await hub.connect()
    await wire.send("call.requested", requestId="r1", operationId=f"{NAMESPACE}.echo", input={})
    await wire.closed(4401)


async def other_versions_are_refused(hub: HubUnderTest) -> None:
    """Say hello with version 2, and something that is not a hello."""
    wire = await hub.connect()
    await wire.send("session.hello", version=2)
    await wire.closed(4400)
    other = await hub.connect()
    await other.send_text("nonsense")
    await other.closed(4400)


async def hello_in_another_form(hub: HubUnderTest) -> None:
    """Say hello in fragments, in another order of fields, with unknown ones, null and 1.0."""
    wire = await hub.connect()
    token = {} if hub.token is None else {"token": hub.token}
    text = json.dumps({**token, "newer": [1], "maxMessage": None, "version": 1.0, "type": "session.hello"})
    third = len(text) // 3
    await wire.send_text([text[:third], text[third : 2 * third], text[2 * third :]])
    await hub.welcome(wire)


async def invalid_tokens_are_refused(hub: HubUnderTest) -> None:
    """Say hello with a random token."""
    wire = await hub.connect()
    await hub.hello(wire, token=f"invalid-{token_hex(16)}")
    answer = await wire.take("session.refused", type=("session.refused", "session.welcome"))
    if answer["type"] == "session.welcome":
        raise NotChecked("the hub admits any token")
    expect(answer["code"] == "UNAUTHENTICATED", f"it was answered by {shown(answer)}")
    await wire.closed(4401)


async def binary_messages_close(hub: HubUnderTest) -> None:
    """Send a binary message."""
    wire = await hub.wire()
    await wire.connection.send(b"{}")
    await wire.closed(1003)


async def too_large_messages_close(hub: HubUnderTest) -> None:
    """Send a message above the limit of the hub."""
    wire = await hub.connect()
    await hub.hello(wire)
    limit = (await wire.take("session.welcome", type="session.welcome"))["maxMessage"]
    if limit > _MAX_SENT:
        raise NotChecked(f"the limit is above {_MAX_SENT:,} bytes")
    try:
        await wire.send("call.requested", requestId="r1", operationId="a.b", input="x" * (limit + 10_000))
    except AssertionError:
        pass  # closed while it was being sent
    await wire.closed(1009)


async def pings_are_answered(hub: HubUnderTest) -> None:
    """Send a ping."""
    await (await hub.wire()).pong()


async def who_is_answered(hub: HubUnderTest) -> None:
    """Ask for all servers."""
    server, _ = await hub.server()
    here = await server.take("session.here", type="session.here", id=await server.ask("session.who"))
    expect(server.address in here["peers"], f"a peer that serves is not listed: {shown(here)}")


async def nonsense_is_ignored(hub: HubUnderTest) -> None:
    """Send what is not an event; the session stays open."""
    wire = await hub.wire()
    for text in ("nonsense", "[]", '{"type":"call.unknown"}', '{"type":"session.unknown","id":1}'):
        await wire.send_text(text)
    await wire.send("call.requested", requestId="bad", operationId=5)
    await wire.take("PROTOCOL_ERROR", type="call.error", requestId="bad", code="PROTOCOL_ERROR")
    await _still_open(wire)


# --- announcements ----------------------------------------------------------------------------------------------------


async def announcements_are_confirmed(hub: HubUnderTest) -> None:
    """Announce an operation, describe it on request, withdraw it."""
    wire, id = await hub.server()
    number = await wire.ask("session.withdraw", operations=[id])
    await wire.take("session.done", type="session.done", id=number)
    caller = await hub.wire()
    await caller.send("call.requested", requestId="r1", operationId=id, input={})
    failed = await caller.take("call.error", requestId="r1", type=("call.error", "call.responded"))
    codes = ("OPERATION_NOT_FOUND", "UNAVAILABLE")
    expect(failed.get("code") in codes, f"a withdrawn operation was answered by {shown(failed)}")


async def announcements_may_describe(hub: HubUnderTest) -> None:
    """Announce with descriptions: the hub does not ask for them."""
    wire, id = await hub.wire(), f"{NAMESPACE}.kit-{token_hex(6)}"
    number = await wire.ask("session.announce", operations=[id], descriptions=[{"id": id, "type": "QUERY"}])
    answer = await wire.take("session.done", type=("session.done", "session.refused", "call.requested"))
    _check_allowed(answer)
    expect(answer["type"] == "session.done" and answer["id"] == number, f"it was answered by {shown(answer)}")


async def empty_announcements_are_refused(hub: HubUnderTest) -> None:
    """Announce nothing."""
    wire = await hub.wire()
    number = await wire.ask("session.announce", operations=[])
    await wire.take("session.refused", type="session.refused", id=number)


async def undescribed_operations_are_refused(hub: HubUnderTest) -> None:
    """Announce two operations and describe one of them, once partially and once not."""
    wire = await hub.wire()
    ids = [f"{NAMESPACE}.kit-{token_hex(6)}" for _ in range(2)]
    for partial in (True, False):
        number = await wire.ask("session.announce", operations=ids, partial=partial)
        answers = ("session.done", "session.refused", "call.requested")
        while (event := await wire.take("session.done", type=answers))["type"] == "call.requested":
            await _describe(wire, event, (ids[0],), "query")
        _check_allowed(event)
        expect(event["id"] == number, f"it was answered by {shown(event)}")
        if event["type"] == "session.done" and not event.get("refused"):
            raise NotChecked("the hub lets this peer serve what it does not describe")
        if partial:
            refused: list[Event] = event.get("refused") or []
            if any(refusal["code"] == "ACCESS_DENIED" for refusal in refused):
                raise NotChecked(_NOT_ALLOWED)
            expect(
                [refusal["operation"] for refusal in refused] == [ids[1]],
                f"one of two was not described: {shown(event)}",
            )
        else:
            expect(event["type"] == "session.refused", f"one of two was not described: {shown(event)}")


async def goaway_withdraws(hub: HubUnderTest) -> None:
    """Send goaway; new requests fail, and calls in flight go on."""
    server, caller, request = await hub.relayed()
    await server.send("session.goaway", reason="conformance")
    await _still_open(server)
    await caller.send("call.requested", requestId="r2", operationId=request["operationId"], input={})
    await caller.take("call.error", type="call.error", requestId="r2")
    await respond(server, request, 1)
    await caller.take("the response", type="call.responded", requestId="r1")


# --- the relay --------------------------------------------------------------------------------------------------------


async def calls_are_relayed(hub: HubUnderTest) -> None:
    """Call from one session to another."""
    server, caller, request = await hub.relayed()
    expect(request.get("input") == {"a": [1, "ü"]}, f"the input arrived as {shown(request)}")
    await respond(server, request, {"b": 2})
    answer = await caller.take("the response", type="call.responded", requestId="r1")
    expect(envelope_data(answer) == {"b": 2}, f"the response arrived as {shown(answer)}")
    expect(answer.get("peer") == server.address, f"the response does not name its sender: {shown(answer)}")


async def identities_cannot_be_forged(hub: HubUnderTest) -> None:
    """State an identity and a peer in a request; the hub overwrites them."""
    _, _, request = await hub.relayed(identity=_FORGED, credential="forged")
    expect("identity" in request, f"the hub wrote no identity: {shown(request)}")
    expect(request["identity"] != _FORGED, "a caller stated an identity, and the hub passed it on")
    expect(request.get("credential") is None, "a caller stated a credential, and the hub passed it on")


async def same_ids_do_not_meet(hub: HubUnderTest) -> None:
    """Use the same request id from two callers."""
    server, id = await hub.server()
    callers = [await hub.wire(), await hub.wire()]
    for number, caller in enumerate(callers):
        await caller.send("call.requested", requestId="same", operationId=id, input=number)
    for _ in callers:
        request = await server.take("the requests of both callers", type="call.requested", requestId="same")
        await respond(server, request, request["input"])
    for number, caller in enumerate(callers):
        answer = await caller.take(f"the response of caller {number}", type="call.responded", requestId="same")
        expect(envelope_data(answer) == number, f"caller {number} got {shown(answer)}")


async def open_ids_are_not_repeated(hub: HubUnderTest) -> None:
    """Send a request twice while it is open; its server gets it once."""
    server, caller, request = await hub.relayed()
    await caller.send("call.requested", requestId="r1", operationId=request["operationId"], input={})
    await _still_open(caller)
    await asyncio.sleep(SETTLE)
    expect(not server.here(type="call.requested", requestId="r1"), "a duplicate of an open request was passed on")


async def strangers_cannot_answer(hub: HubUnderTest) -> None:
    """Answer a call that another peer has."""
    server, caller, request = await hub.relayed()
    stranger = await hub.wire()
    await respond(stranger, {**request, "peer": caller.address}, "forged")
    await _still_open(stranger)
    await respond(server, request, "right")
    answer = await caller.take("the response", type="call.responded", requestId="r1")
    if answer.get("unmatched"):
        answer = await caller.take("the response", type="call.responded", requestId="r1")
    expect(envelope_data(answer) == "right", "a peer answered a call that was not routed to it")


async def streams_are_relayed(hub: HubUnderTest) -> None:
    """Subscribe from one session to another; items, credit and the end are passed on."""
    server, id = await hub.server(type="subscription")
    caller = await hub.wire()
    await caller.send("call.requested", requestId="s1", operationId=id, input={}, credits=2, progress=True)
    request = await server.take("the request", type="call.requested", requestId="s1")
    expect(request.get("credits") == 2, f"the credits arrived as {shown(request)}")
    for seq in (1, 2):
        await respond(server, request, seq, seq=seq)
    for seq in (1, 2):
        item = await caller.take(f"item {seq}", type="call.responded", requestId="s1")
        expect(item.get("seq") == seq, f"item {seq} arrived as {shown(item)}")
    await caller.send("call.credit", requestId="s1", n=2, total=4, received=2)
    credit = await server.take("the credit", type="call.credit", requestId="s1")
    expect((credit.get("n"), credit.get("total")) == (2, 4), f"the credit arrived as {shown(credit)}")
    await server.send("call.progress", requestId="s1", progress=1, peer=caller.address)
    await caller.take("the progress", type="call.progress", requestId="s1")
    await server.send("call.completed", requestId="s1", seq=2, peer=caller.address)
    await caller.take("the end", type="call.completed", requestId="s1")


async def questions_are_relayed(hub: HubUnderTest) -> None:
    """Ask the caller of a call; only its answer is passed on."""
    server, caller, request = await hub.relayed(questions=True)
    expect(request.get("questions") is True, f"the request arrived as {shown(request)}")
    question_ids = {"requestId": "r1", "id": 1}
    params = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {"value": {"type": "boolean"}}}}
    await server.send("call.question", kind="elicit", params=params, peer=caller.address, **question_ids)
    question = await caller.take("the question", type="call.question", requestId="r1")
    expect(question.get("params") == params, f"the question arrived as {shown(question)}")
    stranger = await hub.wire()
    await stranger.send("call.answer", answer={"action": "decline"}, peer=server.address, **question_ids)
    await _still_open(stranger)
    await caller.send("call.answer", answer={"action": "cancel"}, **question_ids)
    answer = await server.take("the answer", type="call.answer", requestId="r1")
    expect(answer.get("answer") == {"action": "cancel"}, f"the answer arrived as {shown(answer)}")


async def aborts_are_relayed(hub: HubUnderTest) -> None:
    """Abort a call."""
    server, caller, _ = await hub.relayed()
    await caller.send("call.aborted", requestId="r1", reason="enough")
    aborted = await server.take("the abort", type="call.aborted", requestId="r1")
    expect(aborted.get("peer") == caller.address, f"the abort does not name its sender: {shown(aborted)}")


async def lost_servers_fail_their_calls(hub: HubUnderTest) -> None:
    """Cut the connection of a server that has a call."""
    server, caller, _ = await hub.relayed()
    server.connection.transport.abort()
    failed = await caller.take("call.error", type="call.error", requestId="r1")
    expect(failed["code"] == "UNAVAILABLE", f"the call failed by {shown(failed)}")


async def lost_callers_are_reported(hub: HubUnderTest) -> None:
    """Cut the connection of a caller."""
    server, caller, _ = await hub.relayed()
    caller.connection.transport.abort()
    left_event = await server.take("session.left", type=("session.left", "call.aborted"))
    expect(
        left_event.get("peer") == caller.address, f"the loss of {caller.address} was reported by {shown(left_event)}"
    )


async def unknown_peers_are_unavailable(hub: HubUnderTest) -> None:
    """Send a request to an address that does not exist."""
    wire = await hub.wire()
    await wire.send("call.requested", requestId="r1", operationId="opwire.about", peer=f"gone-{token_hex(4)}")
    failed = await wire.take("call.error", type=("call.error", "call.responded"), requestId="r1")
    expect(failed.get("code") == "UNAVAILABLE", f"it was answered by {shown(failed)}")


async def delegation_needs_a_request(hub: HubUnderTest) -> None:
    """Call on behalf of a request that this peer does not serve."""
    wire = await hub.wire()
    fields = {"requestId": "r1", "operationId": f"{NAMESPACE}.echo", "parentRequestId": token_hex(8)}
    await wire.send("call.requested", input={}, **fields)
    failed = await wire.take("call.error", type=("call.error", "call.responded"), requestId="r1")
    codes = ("ACCESS_DENIED", "UNAVAILABLE", "OPERATION_NOT_FOUND")  # the operation may be looked up first
    expect(failed.get("code") in codes, f"it was answered by {shown(failed)}")


async def hub_as_server(hub: HubUnderTest) -> Server:
    """Return the hub as a server of its own operations."""
    return await described_server(ServerLine(await hub.wire(), ServerRoute({"peer": "server"})))


HubCheck = Callable[[HubUnderTest], Awaitable[None]]

# Each promise, with the section of docs/reference/protocol.md that makes it.
HUB_CHECKS: Mapping[str, tuple[str, HubCheck]] = {
    "a session opens": ("Events of a session", a_session_opens),
    "hello comes first": ("Order", hello_comes_first),
    "other versions are refused": ("Limits and close codes", other_versions_are_refused),
    "fragments, null, 1.0 and unknown fields": ("WebSocket", hello_in_another_form),
    "invalid tokens are refused": ("Authentication", invalid_tokens_are_refused),
    "a binary message closes the connection": ("Limits and close codes", binary_messages_close),
    "a message above the limit closes it": ("Limits and close codes", too_large_messages_close),
    "pings are answered": ("Heartbeats", pings_are_answered),
    "invalid messages leave it open": ("Errors", nonsense_is_ignored),
    "announced, described, withdrawn": ("Announcing", announcements_are_confirmed),
    "an announcement may carry descriptions": ("Announcing", announcements_may_describe),
    "an empty announcement is refused": ("Announcing", empty_announcements_are_refused),
    "what is not described is refused": ("Announcing", undescribed_operations_are_refused),
    "all servers are listed": ("Events of a session", who_is_answered),
    "goaway withdraws, and ends no call": ("Events of a session", goaway_withdraws),
    "calls are relayed unchanged": ("peer and identity", calls_are_relayed),
    "identities cannot be forged": ("peer and identity", identities_cannot_be_forged),
    "only the server of a call answers it": ("peer and identity", strangers_cannot_answer),
    "an unknown peer is unavailable": ("peer and identity", unknown_peers_are_unavailable),
    "two callers may use the same id": ("Ids", same_ids_do_not_meet),
    "an open request is not repeated": ("Ids", open_ids_are_not_repeated),
    "items, credit and progress are relayed": ("Subscriptions and credits", streams_are_relayed),
    "questions and answers are relayed": ("Questions", questions_are_relayed),
    "an abort reaches the server": ("The end of a call", aborts_are_relayed),
    "a lost server fails its calls": ("Reconnecting", lost_servers_fail_their_calls),
    "a lost caller is reported": ("Events of a session", lost_callers_are_reported),
    "delegation needs a served request": ("Delegation", delegation_needs_a_request),
}
