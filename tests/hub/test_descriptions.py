"""How foreign peers describe what they announce: in the announcement, on request, briefly, or not at all."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from opwire.auth import Grant, StaticTokens
from opwire.hub import Hub, admission_policy
from opwire.model.identity import Identity
from opwire.model.operation import OperationType
from opwire.registry import OperationRegistry
from opwire.transports.websocket import admission
from tests.hub.meeting import Meeting, answer, ids
from tests.hub.test_admission import describe
from tests.transports.websocket.ends import Plain

SHOP = {"type": "object", "properties": {"article": {"type": "string"}}}
TRUSTED = StaticTokens(
    {
        "token-of-the-trusted": Grant(Identity(id="old"), announces=("old",), undescribed=True),
        "token-of-the-others": Grant(Identity(id="new"), announces=("new", "old")),
    }
)


async def announce(plain: Plain, *operations: str, **fields: Any) -> dict[str, Any]:
    """Announce operations, and return what comes first: a request for descriptions, or the end."""
    await plain.say("session.announce", id=1, operations=operations, **fields)
    return await plain.hear()


def nested(depth: int) -> Any:
    """A schema of this depth, as JSON."""
    return json.loads('{"items":' * depth + "true" + "}" * depth)


async def test_an_announcement_may_carry_all_descriptions(meeting: Meeting) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    first = await announce(
        plain, "shop.price", descriptions=[{"id": "shop.price", "type": "QUERY", "inputSchema": SHOP, "title": None}]
    )
    assert first == {"type": "session.done", "id": 1}
    spec = hub.registry.get_spec("shop.price")
    assert spec is not None
    assert (spec.type, spec.input_schema.json, spec.output_schema.json) == (OperationType.QUERY, SHOP, True)


async def test_what_an_announcement_does_not_describe_is_requested(meeting: Meeting) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    carried = [{"id": "a.one", "type": "query"}, {"id": "not.announced", "type": "query"}]
    question = await announce(plain, "a.one", "a.two", descriptions=carried)
    assert question["input"] == {"operations": ["a.two"]}
    await describe(plain, question, {"id": "a.two", "type": "mutation"})
    assert await plain.hear() == {"type": "session.done", "id": 1}
    assert ids(hub.registry) == ["a.one", "a.two"]


@pytest.mark.parametrize(
    "wrong", [{"type": "other"}, {"type": None}, {"inputSchema": 5}, {"inputSchema": nested(300)}, {"tags": "x"}]
)
async def test_a_carried_description_that_is_invalid_is_refused_alone(meeting: Meeting, wrong: dict[str, Any]) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    carried = [{"id": "a.bad", "type": "query", **wrong}, {"id": "a.good", "type": "query"}]
    done = await announce(plain, "a.bad", "a.good", partial=True, descriptions=carried)
    assert [(each["operation"], each["code"]) for each in done["refused"]] == [("a.bad", "VALIDATION_ERROR")]
    assert ids(hub.registry) == ["a.good"]


async def test_carried_descriptions_count_towards_the_limit_of_a_spoke(meeting: Meeting) -> None:
    hub = await meeting.hub(max_described=20_000)
    plain = await meeting.welcome(hub.url)
    names = [f"large.op{number}" for number in range(5)]
    carried = [{"id": each, "type": "query", "description": "x" * 8_000} for each in names]
    done = await announce(plain, *names, partial=True, descriptions=carried)
    assert [each["code"] for each in done["refused"]] == ["PAYLOAD_TOO_LARGE"] * 3
    assert len(hub.registry) == 2


async def test_carried_descriptions_that_wait_are_bounded_and_others_are_not_delayed(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_MAX_UNDECIDED_BYTES", 10_000)
    hub = await meeting.hub()
    plain, other = await meeting.welcome(hub.url), await meeting.welcome(hub.url)
    question = await announce(plain, "a.first")  # undecided until it is described
    for number in (2, 3):
        carried = [{"id": f"a.op{number}", "type": "query", "description": "x" * 6_000}]
        await plain.say("session.announce", id=number, operations=[f"a.op{number}"], descriptions=carried)
    refused = await plain.hear()
    assert (refused["type"], refused["id"], refused["code"]) == ("session.refused", 3, "RATE_LIMITED")
    carried = [{"id": "b.one", "type": "query", "description": "x" * 6_000}]
    assert await announce(other, "b.one", descriptions=carried) == {"type": "session.done", "id": 1}
    await describe(plain, question, {"id": "a.first", "type": "query"})
    assert [(await plain.hear())["id"] for _ in range(2)] == [1, 2]
    again = await announce(plain, "a.op3", descriptions=[{"id": "a.op3", "type": "query"}])
    assert again == {"type": "session.done", "id": 1}


async def test_an_announcement_describes_no_more_than_it_names(meeting: Meeting) -> None:
    hub = await meeting.hub()
    plain = await meeting.welcome(hub.url)
    refused = await announce(plain, "a.b", descriptions=[{"id": f"a.op{n}", "type": "query"} for n in range(2)])
    assert (refused["type"], refused["code"]) == ("session.refused", "VALIDATION_ERROR")


async def test_a_description_does_not_widen_what_a_token_may_announce(meeting: Meeting) -> None:
    hub = await meeting.hub(authenticate=TRUSTED)
    plain = await meeting.welcome(hub.url, "token-of-the-trusted")
    refused = await announce(plain, "shop.price", descriptions=[{"id": "shop.price", "type": "query"}])
    assert (refused["type"], refused["code"]) == ("session.refused", "ACCESS_DENIED")
    assert len(hub.registry) == 0


async def announce_without_describing(meeting: Meeting, hub: Hub, token: str, how: str) -> tuple[Plain, dict[str, Any]]:
    plain = await meeting.welcome(hub.url, token)
    question = await announce(plain, "old.sum")
    match how:
        case "error":
            failed = {"code": "OPERATION_NOT_FOUND", "message": "Operation not found: opwire.operations"}
            await plain.say("call.error", requestId=question["requestId"], **failed)
        case "denied":
            await plain.say("call.error", requestId=question["requestId"], code="ACCESS_DENIED", message="no")
        case "nothing":
            await plain.say("call.completed", requestId=question["requestId"])
        case _:
            pass  # silent
    while (ended := await plain.hear())["type"] in ("session.pending", "call.aborted"):
        pass
    return plain, ended


@pytest.mark.parametrize("how", ["error", "denied", "nothing", "silent"])
async def test_a_trusted_peer_may_serve_what_it_does_not_describe(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What a peer does not describe is served only if its grant says so, with unknown schemas."""
    monkeypatch.setattr(admission_policy, "_SECONDS_BETWEEN_DESCRIPTIONS", 0.1)
    served = await meeting.hub(authenticate=TRUSTED)
    plain, ended = await announce_without_describing(meeting, served, "token-of-the-trusted", how)
    assert ended == {"type": "session.done", "id": 1}
    spec = served.registry.get_spec("old.sum")
    assert spec is not None
    assert (spec.type, spec.input_schema.json, spec.output_schema.json) == (OperationType.MUTATION, True, True)
    caller = await meeting.welcome(served.url, "token-of-the-others")
    await caller.say("call.requested", requestId="r1", operationId="old.sum", input=[1, 2])
    request = await answer(plain, "r1")
    output = {"data": 3, "meta": {"source": "local", "operationId": "old.sum", "timestamp": 1}}
    await plain.say("call.responded", requestId="r1", output=output, peer=request["peer"])
    assert (await answer(caller, "r1"))["output"]["data"] == 3


@pytest.mark.parametrize("how", ["error", "denied", "nothing", "silent"])
async def test_other_peers_may_not(meeting: Meeting, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(admission_policy, "_SECONDS_BETWEEN_DESCRIPTIONS", 0.1)
    served = await meeting.hub(authenticate=TRUSTED)
    _, ended = await announce_without_describing(meeting, served, "token-of-the-others", how)
    assert ended["type"] == "session.refused"
    assert len(served.registry) == 0


async def test_a_foreign_server_on_a_broker_describes_itself_briefly(broker: str, meeting: Meeting) -> None:
    registry = OperationRegistry()

    @registry.subscription("opwire.operations")
    async def operations() -> AsyncIterator[dict[str, Any]]:
        yield {"id": "shop.price", "type": "QUERY", "inputSchema": None}
        yield {"id": "shop.bad", "type": 7}
        yield {"id": "shop.order", "type": "Mutation"}

    async def about() -> dict[str, str]:
        return {"id": "foreign-1"}

    registry.query("opwire.about")(about)
    anyone = Identity(id="anyone")
    await meeting.spoke(broker, registry, anonymous=anyone, announces=lambda _: True)
    node = await meeting.node(broker)
    assert ids(node.registry) == ["shop.order", "shop.price"]
    spec = node.registry.get_spec("shop.price")
    assert spec is not None
    assert spec.type is OperationType.QUERY
