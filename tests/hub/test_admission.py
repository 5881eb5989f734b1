"""Admission to a hub: identities, calls and announcements."""

import asyncio
import json
import time
from typing import Any

import pytest

from opwire.auth import Grant, callback, tokens
from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import Hub, Spoke
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.model.operation import OperationType
from opwire.protocol.discovery import OPERATIONS
from opwire.registry import OperationRegistry
from opwire.transports.websocket import WebSocketServer, WebSocketTransport
from opwire_conformance.harness import soon
from tests.hub.meeting import AUTH, TOKENS, Meeting, Waiting, adding, answer, connected, ids, peers, whoami
from tests.transports.websocket.ends import Plain, until


class _OpenOrToken:
    async def authenticate(self, token: str | None) -> Grant:
        return Grant(Identity(id=token or "guest"), announces=("*",))


OPEN_OR_TOKEN = _OpenOrToken()


async def refusal(spoke: Spoke) -> CallError:
    with pytest.raises(CallError) as failure:
        await soon("it is refused", spoke.start())
    return failure.value


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "not-one-of-those-that-are-known"])
async def test_a_spoke_without_a_good_token_is_refused_at_once(meeting: Meeting, token: str | None) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    error = await refusal(Spoke(None, hub.url, token=token))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert "token" in error.message
    assert str(token) not in error.message
    plain = await meeting.plain(hub.url, token)
    assert (await plain.hear())["type"] == "session.refused"
    assert (await plain.closed())[0] == 4401


async def test_a_token_may_be_made_for_each_connection(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, whoami(), token=lambda: TOKENS["billing"])
    assert ids(hub.registry) == ["billing.whoami"]


async def test_a_connection_ends_with_its_token_and_the_same_token_does_not_open_another(meeting: Meeting) -> None:
    expires = time.time() + 0.4

    def look_up(_: str) -> Grant | None:
        return Grant(Identity(id="brief"), ("shop",), expires) if time.time() < expires else None

    hub = await meeting.hub(authenticate=callback(look_up), linger=0.1)
    plain = await meeting.welcome(hub.url, "any-token")
    assert (await plain.hear())["type"] == "session.goaway"
    assert (await plain.closed())[0] == 4401
    assert (await refusal(Spoke(None, hub.url, token="any-token"))).code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("now", [None, Grant(Identity(id="shop"))])
async def test_a_connection_ends_soon_after_its_token_was_revoked_or_grants_less(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, now: Grant | None
) -> None:
    monkeypatch.setattr(tokens, "RECHECK", 0.01)
    granted = Grant(Identity(id="shop"), ("shop",))
    found: Grant | None = granted
    hub = await meeting.hub(authenticate=callback(lambda _: found), linger=0.1)
    plain = await meeting.welcome(hub.url, "any-token")
    found = now
    assert (await plain.hear())["type"] == "session.goaway"
    assert (await plain.closed())[0] == 4401


async def test_a_hub_that_closes_does_not_wait_for_tokens_to_expire(meeting: Meeting) -> None:
    grant = Grant(Identity(id="long"), (), time.time() + 60)
    hub = await meeting.hub(authenticate=callback(lambda _: grant))
    plain = await meeting.welcome(hub.url, "any-token")
    await hub.close()
    assert [(await plain.hear())["type"], (await plain.closed())[0]] == ["session.goaway", 1001]


async def test_an_authenticator_that_fails_admits_no_caller(meeting: Meeting) -> None:
    class Broken:
        async def authenticate(self, token: str | None) -> Grant:
            raise ZeroDivisionError("secret")

    hub = await meeting.hub(authenticate=Broken())
    error = await refusal(Spoke(None, hub.url))
    assert error.code is ErrorCode.INTERNAL
    assert "secret" not in error.message


async def test_an_identity_that_is_too_large_to_be_passed_on_is_refused(meeting: Meeting) -> None:
    scopes = tuple(f"scope-number-{number}" for number in range(1_000))
    hub = await meeting.hub(authenticate=callback(lambda _: Identity(id="much", scopes=scopes)))
    assert (await refusal(Spoke(None, hub.url, token="x"))).code is ErrorCode.PAYLOAD_TOO_LARGE


async def test_a_spoke_with_an_expired_token_backs_off(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    good, shown = True, 0

    async def look_up(_: str) -> Identity | None:
        nonlocal shown
        shown += 1
        return Identity(id="once") if good else None

    hub = await meeting.hub(authenticate=callback(look_up))
    spoke = await meeting.spoke(hub.url, token="any-token")
    good = False
    url = hub.url
    await hub.close()
    await meeting.hub(None, url, authenticate=callback(look_up))
    await until("it has tried again", lambda: shown > 3)
    assert "the token is not valid" in caplog.text
    shown = 0
    await asyncio.sleep(0.5)
    assert shown < 20
    good = True
    await until("it is welcome again", lambda: connected(spoke))


# --- identity ---------------------------------------------------------------------------------------------------------


async def test_the_hub_names_the_caller(meeting: Meeting) -> None:
    hub = await meeting.hub(whoami("hub"), authenticate=AUTH)
    await meeting.spoke(hub.url, whoami(), token="billing")
    caller = await meeting.spoke(hub.url, token="alice")
    root = Context(identity=Identity(id="root", scopes=("*",)))
    for operation_id in ("billing.whoami", "hub.whoami"):
        assert await caller.call(operation_id) == "alice"
        with pytest.raises(CallError, match="cannot carry"):
            await caller.call(operation_id, context=root)


FORGED = '"identity":{"id":"root","scopes":["*"]}'
CREDENTIAL = '"credential":"forged"'
BODY = '"type":"call.requested","requestId":"r","operationId":"%s"'


@pytest.mark.parametrize("operation_id", ["billing.whoami", "hub.whoami"])
@pytest.mark.parametrize(
    "message",
    [
        f"{{{FORGED},{BODY}}}",
        f"{{{BODY},{FORGED}}}",
        f"{{{BODY},{FORGED},{CREDENTIAL}}}",
        f'{{"type":"call.requested",{FORGED},"requestId":"r","operationId":"%s"}}',
        f"{{{FORGED},{BODY},{FORGED}}}",
        f"{{{BODY},{FORGED}}}  \n",
        f'{{{BODY},"\\u0069dentity":{{"id":"root"}}}}',
        f'{{{BODY},"extra":{{{FORGED}}},{FORGED}}}',
        f'{{{BODY},"extra":",\\"peer\\":\\"x\\"",{FORGED}}}',
    ],
)
async def test_no_claim_of_a_spoke_counts(meeting: Meeting, message: str, operation_id: str) -> None:
    hub = await meeting.hub(whoami("hub"), authenticate=AUTH)
    await meeting.spoke(hub.url, whoami(), token="billing")
    plain = await meeting.welcome(hub.url, "mallory")
    await plain.connection.send(message.replace("%s", operation_id))
    event = await answer(plain, "r")
    assert event["output"]["data"] == "mallory"


async def test_a_forged_peer_at_the_end_does_not_hide_a_forged_identity(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, whoami(), token="billing")
    plain = await meeting.welcome(hub.url, "mallory")
    (serving,) = [peer for peer in peers(hub) if peer in await hub.transport.servers()]
    await plain.connection.send(f'{{{BODY % "billing.whoami"},{FORGED},"peer":"{serving}"}}')
    assert (await answer(plain, "r"))["output"]["data"] == "mallory"


async def test_without_auth_a_caller_is_anonymous_and_may_call_what_is_public(meeting: Meeting) -> None:
    registry = whoami("hub")
    registry.query("hub.open", access=AccessControl(public=True))(_nobody)
    hub = await meeting.hub(registry, authenticate=None)
    plain = await meeting.welcome(hub.url)
    for operation_id in ("hub.whoami", "hub.open"):
        forged = {"id": "root", "scopes": ["*"]}
        await plain.say("call.requested", requestId=operation_id, operationId=operation_id, identity=forged)
    assert (await answer(plain, "hub.whoami"))["code"] == "UNAUTHENTICATED"
    assert (await answer(plain, "hub.open"))["output"]["data"] is None


async def _nobody(context: Context) -> str | None:
    return context.identity and context.identity.id


async def test_calls_that_were_not_made_to_the_hub_are_not_forwarded_as_the_hub(meeting: Meeting) -> None:
    """A request that names the hub itself, for an operation that a spoke serves."""

    class Anonymous:
        async def authenticate(self, token: str | None) -> Grant | None:
            return None if token is None else Grant(Identity(id="serving"), ("open",))

    hub = await meeting.hub(authenticate=Anonymous())
    registry = OperationRegistry()
    registry.query("open.who", access=AccessControl(public=True))(_nobody)
    await meeting.spoke(hub.url, registry, token="any")
    plain = await meeting.welcome(hub.url)
    for peer in ({}, {"peer": "server"}):
        await plain.say("call.requested", requestId=f"r{peer}", operationId="open.who", **peer)
        assert (await answer(plain, f"r{peer}"))["output"]["data"] is None


async def test_a_server_that_delegates_calls_with_the_identity_of_its_caller(meeting: Meeting) -> None:
    """A call made for a live call that the hub routed to its sender is made as that call's caller."""
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, whoami(), token="billing")
    registry, spokes = OperationRegistry(), list[Spoke]()

    @registry.query("gateway.ask")
    async def ask(context: Context) -> list[Any]:
        (gateway,) = spokes
        contexts = (None, context.detached(), context, context.child())
        return [await gateway.call("billing.whoami", context=each) for each in contexts]

    @registry.query("gateway.nested")
    async def nested(context: Context) -> list[Any]:
        return (await context.env.gateway.ask()).data

    spokes.append(await meeting.spoke(hub.url, registry, token="gateway"))
    caller = await meeting.spoke(hub.url, token="alice")
    for operation_id in ("gateway.ask", "gateway.nested"):
        assert await caller.call(operation_id) == ["gateway", "gateway", "alice", "alice"]
    root = Context(identity=Identity(id="user"))
    assert (await hub.registry.execute("gateway.ask", None, root)).data == ["gateway", "gateway", "user", "user"]


@pytest.mark.parametrize("own_connection", [True, False])
async def test_a_server_that_does_not_delegate_is_rejected_and_acts_as_no_other_identity(
    meeting: Meeting, own_connection: bool
) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, whoami(), token="billing")
    registry, spokes = OperationRegistry(), list[Spoke]()

    @registry.query("shop.ask")
    async def ask(context: Context) -> Any:
        (shop,) = spokes
        return await shop.call("billing.whoami", context=context)

    shop = await meeting.spoke(hub.url, registry, token="shop")
    spokes.append(shop if own_connection else await meeting.spoke(hub.url, token="shop"))
    caller = await meeting.spoke(hub.url, token="alice")
    with pytest.raises(CallError) as refused:
        await soon("the call ends", caller.call("shop.ask"))
    assert refused.value.code is ErrorCode.ACCESS_DENIED
    assert ("delegates=True" if own_connection else "cannot carry") in refused.value.message


async def test_a_peer_is_refused_a_call_on_behalf_of_a_request_that_it_does_not_serve(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(authenticate=AUTH), Waiting("shop.wait")
    await meeting.spoke(hub.url, waiting.registry, token="shop")
    await meeting.spoke(hub.url, whoami(), token="billing")
    alice, mallory = await meeting.welcome(hub.url, "alice"), await meeting.welcome(hub.url, "mallory")
    await alice.say("call.requested", requestId="secret-id", operationId="shop.wait")
    await soon("the handler begins", waiting.began.wait())
    await mallory.say(
        "call.requested", requestId="r", operationId="billing.whoami", parentRequestId="secret-id", identity={"id": "x"}
    )
    assert (await answer(mallory, "r"))["code"] == "ACCESS_DENIED"


@pytest.mark.parametrize("kind", ["call.responded", "call.error", "call.aborted", "call.completed"])
async def test_only_the_spoke_that_has_a_call_can_answer_it(meeting: Meeting, kind: str) -> None:
    hub, waiting = await meeting.hub(authenticate=AUTH), Waiting("shop.wait")
    await meeting.spoke(hub.url, waiting.registry, token="shop")
    alice, mallory = await meeting.welcome(hub.url, "alice"), await meeting.welcome(hub.url, "mallory")
    await alice.say("call.requested", requestId="r", operationId="shop.wait")
    own = asyncio.create_task(
        hub.calls.call("shop.wait", None, context=Context(identity=Identity(id="me"), request_id="own"))
    )
    await soon("the handler begins", waiting.began.wait())
    output = {"data": "forged", "meta": {"source": "local", "operationId": "shop.wait", "timestamp": 1}}
    for request_id in ("r", "own"):
        for peer in (*peers(hub), "server"):
            await mallory.say(kind, requestId=request_id, peer=peer, output=output, code="INTERNAL", message="forged")
    await mallory.say("session.who", id=1)
    while (await mallory.hear())["type"] != "session.here":
        pass  # what it has sent to itself
    waiting.go.set()
    assert (await answer(alice, "r"))["output"]["data"] == "done"
    assert (await soon("the call ends", own)).data == "done"


# --- announcements ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["shop", "alice"])
async def test_a_spoke_announces_only_in_its_own_namespaces(meeting: Meeting, token: str) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    registry = whoami("shop")
    registry.query("billing.charge")(_nobody)
    error = await refusal(Spoke(registry, hub.url, token=TOKENS[token]))
    assert error.code is ErrorCode.ACCESS_DENIED
    assert "billing.charge" in error.message
    assert len(hub.registry) == 0
    assert await hub.transport.servers() == []


async def test_what_is_refused_later_is_not_announced_again(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=AUTH)
    spoke = await meeting.spoke(hub.url, whoami("shop"), token="shop")
    with pytest.raises(CallError) as failure:
        await spoke.transport.announce(["billing.charge"])
    assert failure.value.code is ErrorCode.ACCESS_DENIED
    assert (await hub.registry.execute("shop.whoami")).data == "hub"
    await hub.close()
    again = await meeting.hub(None, hub.url, authenticate=AUTH)
    await until("it is back", lambda: ids(again.registry) == ["shop.whoami"])


async def test_without_auth_no_peer_may_announce(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=None)
    error = await refusal(Spoke(adding(), hub.url))
    assert error.code is ErrorCode.ACCESS_DENIED


async def test_spokes_that_disagree_about_a_schema_cannot_both_serve(meeting: Meeting) -> None:
    hub = await meeting.hub()
    first = await meeting.spoke(hub.url, adding())
    other = OperationRegistry()

    @other.query("math.add")
    async def add(a: int, b: float) -> int:
        return a

    error = await refusal(Spoke(other, hub.url))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "math.add is served by another peer with another input schema" in error.message
    await first.drain()
    await meeting.spoke(hub.url, other)
    assert ids(hub.registry) == ["math.add"]


async def test_an_operation_of_the_hub_cannot_be_taken_over(meeting: Meeting) -> None:
    hub = await meeting.hub(adding())
    error = await refusal(Spoke(adding(), hub.url))
    assert error.code is ErrorCode.VALIDATION_ERROR
    assert "the hub itself" in error.message


@pytest.mark.parametrize("name", ["about", "operations", "new"])
async def test_operations_of_opwire_itself_cannot_be_announced(meeting: Meeting, name: str) -> None:
    hub = await meeting.hub()
    raw = await meeting.welcome(hub.url)
    described = {"id": f"opwire.{name}", "type": "query"}
    await raw.say("session.announce", id=1, operations=[f"opwire.{name}"], descriptions=[described])
    refused = await raw.hear()
    assert (refused["type"], refused["code"]) == ("session.refused", "VALIDATION_ERROR")
    assert ids(hub.registry) == []


async def test_what_is_not_described_is_not_announced(meeting: Meeting) -> None:
    hub = await meeting.hub()
    spoke = await meeting.spoke(hub.url, adding())
    with pytest.raises(CallError) as failure:
        await spoke.transport.announce([f"ghost.op{number}" for number in range(7)])
    assert failure.value.code is ErrorCode.VALIDATION_ERROR
    assert "ghost.op4 and 2 more" in failure.value.message


async def test_a_peer_that_leaves_while_it_is_asked_leaves_nothing_behind(meeting: Meeting) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    question = await plain.hear()
    assert question["operationId"] == OPERATIONS
    assert question["input"] == {"operations": ["a.b"]}
    assert "identity" not in question
    plain.connection.transport.abort()
    await until("it is gone", lambda: not peers(hub))
    assert len(hub.registry) == 0


def described(id: str, **fields: Any) -> dict[str, Any]:
    """What a peer made by hand says of an operation."""
    about = {"id": id, "type": "query", "title": "", "description": "", "tags": [], "version": "", "access": None}
    schemas = {"inputSchema": {}, "outputSchema": {}}
    return {**about, **schemas, "statistics": {"calls": 0, "errors": 0, "seconds": 0.0}, **fields}


async def describe(plain: Plain, question: dict[str, Any], *items: dict[str, Any]) -> None:
    """Answer the hub's question."""
    meta = {"source": "local", "operationId": OPERATIONS, "timestamp": 1}
    for seq, data in enumerate(items, 1):
        output = {"data": data, "meta": meta}
        await plain.say("call.responded", requestId=question["requestId"], seq=seq, output=output)
    await plain.say("call.completed", requestId=question["requestId"], seq=len(items))


async def test_a_description_needs_an_id_and_a_type_in_either_case(meeting: Meeting) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    await plain.say("session.announce", id=1, operations=["a.b", "a.c"], partial=True)
    await describe(plain, await plain.hear(), {"id": "a.b", "type": "SUBSCRIPTION"}, {"id": "a.c", "type": 7})
    done = await plain.hear()
    assert [each["operation"] for each in done["refused"]] == ["a.c"]
    spec = hub.registry.get_spec("a.b")
    assert spec is not None
    assert (spec.type, spec.input_schema.json) == (OperationType.SUBSCRIPTION, True)


@pytest.mark.parametrize("auth", [None, AUTH], ids=["without auth", "with auth"])
async def test_a_peer_that_announces_nothing_gets_no_request_of_the_hub(meeting: Meeting, auth: Any) -> None:
    hub = await meeting.hub(authenticate=auth)
    plain = await meeting.welcome(hub.url, None if auth is None else "alice")
    await plain.say("session.announce", id=1, operations=[])
    refused = await plain.hear()
    assert (refused["type"], refused["code"]) == ("session.refused", "VALIDATION_ERROR")


async def test_the_requests_of_the_hub_carry_no_authority_that_a_spoke_can_act_with(meeting: Meeting) -> None:
    own = OperationRegistry()

    @own.query("hub.secret", access=AccessControl(required_scopes=("root",)))
    async def secret() -> str:
        return "secret"

    own.query("hub.open", access=AccessControl(public=True))(_nobody)
    hub = await meeting.hub(own, authenticate=AUTH)
    plain = await meeting.welcome(hub.url, "mallory")
    await plain.say("session.announce", id=1, operations=["mallory.op"])
    question = await plain.hear()
    assert "identity" not in question
    await describe(plain, question, described("mallory.op"))
    assert (await plain.hear())["type"] == "session.done"
    call = asyncio.create_task(hub.registry.execute("mallory.op"))  # of the hub's own program, which is trusted
    request = await plain.hear()
    assert request["identity"]["id"] == "hub"
    for parent in (question["requestId"], request["requestId"]):
        for operation_id in ("hub.secret", "hub.open"):
            await plain.say(
                "call.requested", requestId=parent + operation_id, operationId=operation_id, parentRequestId=parent
            )
        assert (await answer(plain, parent + "hub.secret"))["code"] in ("ACCESS_DENIED", "UNAUTHENTICATED")
        assert (await answer(plain, parent + "hub.open"))["code"] == "ACCESS_DENIED"
    call.cancel()


async def test_a_spoke_shows_its_hub_what_others_may_not_see(meeting: Meeting) -> None:
    registry = OperationRegistry()
    registry.query("shop.admin", access=AccessControl(required_scopes=("root",)))(_nobody)
    hub = await meeting.hub(authenticate=AUTH)
    await meeting.spoke(hub.url, registry, token="shop")
    assert ids(hub.registry) == ["shop.admin"]
    alice = await meeting.spoke(hub.url, token="alice")
    assert [found.operations for found in await alice.discover()] == [[]]


async def test_one_operation_that_is_refused_does_not_keep_the_others_away(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    hub = await meeting.hub()
    await meeting.spoke(hub.url, adding())
    registry = OperationRegistry()
    await meeting.spoke(hub.url, registry)
    registry.query("math.add")(_nobody)  # with another schema
    for number in range(100):
        registry.query(f"many.op{number}")(_nobody)
    await until("the others are shown", lambda: len(hub.registry) == 101)
    await until("it is told", lambda: "math.add is served by another peer with another input schema" in caplog.text)
    assert await hub.registry.execute("math.add", {"a": 1, "b": 2})


async def test_what_the_hub_knows_is_not_described_again(meeting: Meeting) -> None:
    hub = await meeting.hub()
    first = await meeting.welcome(hub.url)
    await first.say("session.announce", id=1, operations=["a.b"])
    await describe(first, await first.hear(), described("a.b"))
    assert (await first.hear())["type"] == "session.done"
    second = await meeting.welcome(hub.url)
    await second.say("session.announce", id=1, operations=["a.b", "a.c", "a.ghost"], partial=True)
    question = await second.hear()
    assert question["input"]["operations"] == ["a.b", "a.c", "a.ghost"]
    assert list(question["input"]["known"]) == ["a.b"]
    await describe(second, question, described("a.c"), {"unchanged": ["a.b", "a.ghost"]})
    done = await second.hear()
    assert [each["operation"] for each in done["refused"]] == ["a.ghost"]
    first.connection.transport.abort()
    await until("the first is gone", lambda: len(peers(hub)) == 1)
    call = asyncio.create_task(hub.registry.execute("a.b"))
    assert (await second.hear())["operationId"] == "a.b"
    call.cancel()


async def test_a_spoke_that_comes_back_describes_only_what_has_changed(meeting: Meeting) -> None:
    hub, registry = await meeting.hub(), whoami("shop")
    registry.query("shop.other")(_nobody)
    await meeting.spoke(hub.url, registry)
    again = whoami("shop")
    again.query("shop.other", description="It has more to say.")(_nobody)
    sent: list[Any] = []
    spoke = Spoke(again, hub.url)
    spoke.calls.observe(sent.append)
    async with spoke:
        data = [event.output.data for event in sent if event.__class__.__name__ == "CallResponded"]
    assert [each.get("id") for each in data] == ["shop.other", None]
    assert data[1] == {"unchanged": ["shop.whoami"]}


async def test_an_operation_that_its_only_spoke_replaces_is_shown_in_its_new_form(meeting: Meeting) -> None:
    hub, registry = await meeting.hub(), adding()
    await meeting.spoke(hub.url, registry)

    @registry.query("math.add", replace=True)
    async def add(a: float, b: float) -> float:
        return a + b

    def kind() -> Any:
        spec = hub.registry.get_spec("math.add")
        json: Any = None if spec is None else spec.input_schema.json
        return json and json["properties"]["a"]["type"]

    await until("the new one is shown", lambda: kind() == "number")
    assert (await hub.registry.execute("math.add", {"a": 1.5, "b": 2})).data == 3.5


async def test_the_descriptions_of_a_spoke_are_limited_in_bytes(meeting: Meeting) -> None:
    hub, registry = await meeting.hub(max_described=20_000), OperationRegistry()
    for number in range(5):
        registry.query(f"large.op{number}", description="x" * 8_000)(_nobody)
    error = await refusal(Spoke(registry, hub.url))
    assert error.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert len(hub.registry) == 0


async def test_a_description_that_does_not_fit_into_a_message_is_refused_alone(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    hub, registry = await meeting.hub(), OperationRegistry()
    await meeting.spoke(hub.url, registry)
    for number in range(6):
        registry.query(f"large.op{number}", description="x" * (2_000_000 if number == 4 else 1))(_nobody)
    await until("the others are shown", lambda: len(hub.registry) == 5)
    await until("it is told", lambda: "large.op4" in caplog.text)


async def test_a_peer_that_describes_more_than_it_was_asked_for_is_refused(meeting: Meeting) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    await plain.say("session.announce", id=1, operations=["a.b"])
    question = await plain.hear()
    await describe(plain, question, *(described(f"other.op{number}") for number in range(1_100)))
    while (told := await plain.hear())["type"] != "session.refused":
        assert told["type"] in ("call.credit", "call.aborted", "session.pending")
    assert told["code"] == "UNAVAILABLE"
    assert len(hub.registry) == 0


@pytest.mark.parametrize("wrong", [{"type": "other"}, {"inputSchema": 5}, {"tags": "x"}])
async def test_a_description_that_cannot_be_read_is_refused_alone(meeting: Meeting, wrong: dict[str, Any]) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    await plain.say("session.announce", id=1, operations=["a.good", "a.bad"], partial=True)
    await describe(plain, await plain.hear(), described("a.bad", **wrong), described("a.good"))
    done = await plain.hear()
    assert [each["operation"] for each in done["refused"]] == ["a.bad"]
    assert ids(hub.registry) == ["a.good"]


# --- limits -----------------------------------------------------------------------------------------------------------


async def test_a_connection_calls_so_often_and_no_more(meeting: Meeting) -> None:
    hub = await meeting.hub(adding(), rate=0.01, burst=3)
    spoke = await meeting.spoke(hub.url)
    other = await meeting.spoke(hub.url)
    for _ in range(3):
        await spoke.call("math.add", {"a": 1, "b": 2})
    with pytest.raises(CallError) as failure:
        await spoke.call("math.add", {"a": 1, "b": 2})
    assert failure.value.code is ErrorCode.RATE_LIMITED
    assert failure.value.retry_after is not None
    assert await other.call("math.add", {"a": 1, "b": 2}) == 3


async def test_the_open_calls_and_operations_of_a_connection_are_limited(meeting: Meeting) -> None:
    hub, waiting = await meeting.hub(max_calls=2, max_operations=3), Waiting()
    await meeting.spoke(hub.url, waiting.registry)
    plain = await meeting.welcome(hub.url)
    for number in range(3):
        await plain.say("call.requested", requestId=str(number), operationId="slow.wait")
    assert (await answer(plain, "2"))["code"] == "RATE_LIMITED"
    await plain.say("call.requested", requestId="about", operationId="opwire.about")  # of the hub itself
    assert (await answer(plain, "about"))["code"] == "RATE_LIMITED"
    await plain.say("session.announce", id=1, operations=[f"a.{number}" for number in range(4)])
    refused = await plain.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("session.refused", 1, "RATE_LIMITED")
    for number in range(4):  # which the gate has not decided yet
        await plain.say("session.announce", id=10 + number, operations=[f"b.{number}"], partial=True)
    refused = await plain.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("session.refused", 13, "RATE_LIMITED")


async def test_a_spoke_that_adds_too_many_operations_still_serves_the_earlier_ones(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    hub = await meeting.hub(max_operations=4)
    registry = adding()
    spoke = await meeting.spoke(hub.url, registry)
    for number in range(9):
        registry.query(f"more.number_{number}")(lambda: 1)
    await until("the refusal is logged", lambda: "at most 4 operations" in caplog.text)
    assert await spoke.call("math.add", {"a": 1, "b": 2}) == 3
    assert isinstance(spoke.transport, WebSocketTransport)
    assert spoke.transport.connected


@pytest.mark.parametrize(
    "option",
    [
        {"rate": 0},
        {"heartbeat": 0},
        {"heartbeat": float("nan")},
        {"max_connections": -1},
        {"max_calls": "many"},
        {"max_pending": True},
        {"hello_timeout": float("inf")},
        {"linger": -1},
        {"max_described": 0},
        {"balance": "random"},
    ],
)
def test_an_option_that_cannot_work_is_refused_where_it_is_given(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        Hub(**option)


async def test_a_connection_that_sends_only_hello_is_kept_and_one_that_sends_nothing_is_not(meeting: Meeting) -> None:
    async def slow(_: str) -> Identity | None:
        await asyncio.sleep(60)
        return None

    hub = await meeting.hub(authenticate=callback(slow), hello_timeout=0.1)
    plain = await meeting.plain(hub.url, "any")
    assert (await plain.closed())[0] == 4408


async def test_made_up_tokens_do_not_delay_one_that_was_good_before(meeting: Meeting) -> None:
    release = asyncio.Event()

    async def look_up(token: str) -> Identity | None:
        if token != "good":
            await release.wait()
            return None
        return Identity(id="good")

    hub = await meeting.hub(authenticate=callback(look_up))
    async with Spoke(None, hub.url, token="good"):
        pass
    bogus = [await meeting.plain(hub.url, f"bogus-{number}") for number in range(80)]
    async with Spoke(None, hub.url, token="good") as spoke:
        assert connected(spoke)
    release.set()
    assert (await bogus[0].hear())["type"] == "session.refused"


async def test_of_the_tokens_that_wait_to_be_checked_the_latest_goes_first(meeting: Meeting) -> None:
    checked: list[str] = []
    release = asyncio.Event()

    class LookUp:
        async def authenticate(self, token: str | None) -> Grant:
            checked.append(token or "")
            if token != "new":
                await release.wait()
            return Grant(Identity(id=token or ""))

    hub = await meeting.hub(authenticate=LookUp())
    for number in range(70):
        await meeting.plain(hub.url, f"{number}")
    await until("as many are checked as may be", lambda: len(checked) == 64)
    gone = await meeting.plain(hub.url, "gone")
    gone.connection.transport.abort()
    await meeting.plain(hub.url, "new")
    await until("they wait", lambda: _waiting(hub) == 7)
    release.set()
    await until("all are checked", lambda: len(checked) == 71)
    assert checked[64] == "new"
    assert "gone" not in checked


def _waiting(hub: Hub) -> int:
    assert isinstance(hub.transport, WebSocketServer)
    return sum(peer.turn is not None and not peer.turn.done() for peer in hub.transport.connections)


async def test_one_with_a_token_takes_the_place_of_one_without(meeting: Meeting) -> None:
    """Without room, a connection of the identity with the most makes place, first one without a token."""

    class Mixed:
        async def authenticate(self, token: str | None) -> Grant | None:
            return None if token is None else Grant(Identity(id=token))

    hub = await meeting.hub(authenticate=Mixed(), max_connections=3)
    strangers = [await meeting.welcome(hub.url) for _ in range(3)]
    refused = await meeting.plain(hub.url)
    assert (await refused.hear())["code"] == "RATE_LIMITED"
    await meeting.welcome(hub.url, "ann")
    assert (await strangers[0].closed())[0] == 4413
    await meeting.welcome(hub.url, "ann")
    await meeting.welcome(hub.url, "ann")
    assert (await (await meeting.plain(hub.url, "ann")).hear())["code"] == "RATE_LIMITED"
    await meeting.welcome(hub.url, "bob")  # in the place of one of ann's
    assert len(peers(hub)) == 3
    assert (await (await meeting.plain(hub.url, "ann")).hear())["code"] == "RATE_LIMITED"


async def test_one_that_serves_or_calls_keeps_its_place_before_one_that_is_idle(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=OPEN_OR_TOKEN, max_connections=2)
    serving = await meeting.spoke(hub.url, adding())
    idle = await meeting.welcome(hub.url)
    await meeting.welcome(hub.url, "ann")
    assert (await idle.closed())[0] == 4413
    assert connected(serving)


async def test_nothing_is_heard_before_the_welcome(meeting: Meeting) -> None:
    async def slow(_: str) -> Identity | None:
        await asyncio.sleep(60)
        return None

    hub = await meeting.hub(whoami("hub"), authenticate=callback(slow))
    for early in ({"type": "session.hello", "version": 1}, {"type": "session.who", "id": 1}):
        plain: Plain = await meeting.plain(hub.url, "any")
        await plain.connection.send(json.dumps(early))
        assert (await plain.closed())[0] == 4401
