"""Several hubs as one, over real brokers: calls cross between hubs with all that belongs to them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from secrets import token_hex
from typing import Any, Self

import pytest
from msgspec.structs import replace

from opwire.errors import CallError, ErrorCode, UsageError
from opwire.hub import Hub, Spoke, cluster
from opwire.hub.cluster import ClusterSecret, cluster_transport
from opwire.model.context import Context, Progress
from opwire.model.envelope import local_envelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec
from opwire.model.questions import Question
from opwire.observe.monitor import Statistics
from opwire.protocol import PendingRequestMap
from opwire.protocol.description import OperationInfo
from opwire.protocol.events import CallAborted, CallEvent, CallFailed, CallRequested, CallResponded
from opwire.registry import OperationRegistry
from opwire.schema import Schema
from opwire.transports.broker import BrokerTransport
from opwire_conformance.harness import soon
from tests.hub.meeting import AUTH, BEAT, Meeting, Waiting, adding, connected, ids, peers, whoami
from tests.transports.websocket.ends import until


class Hubs:
    """Makes hubs of one cluster."""

    def __init__(self, meeting: Meeting, broker: str) -> None:
        self._meeting = meeting
        self._broker = broker
        self._prefix = f"hubs-{token_hex(4)}"

    def link(self, secret: str | None = None) -> BrokerTransport:
        """One end of their broker."""
        return cluster_transport(self._broker, secret=secret, prefix=self._prefix, heartbeat=BEAT)

    async def hub(self, registry: OperationRegistry | None = None, secret: str | None = None, **options: Any) -> Hub:
        """A hub; `secret` is that of its cluster."""
        options = {"linger": 0, "cluster_open": secret is None, **options}
        return await self._meeting.hub(registry, cluster=self.link(secret), **options)


@pytest.fixture
def hubs(broker: str, meeting: Meeting) -> Hubs:
    return Hubs(meeting, broker)


async def test_a_caller_reaches_a_spoke_of_another_hub(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(), await hubs.hub()
    await meeting.spoke(a.url, adding())
    caller = await meeting.spoke(b.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3  # at once: b asks before it counts as unknown
    assert (await b.registry.execute("math.add", {"a": 2, "b": 2})).data == 4
    assert ids(b.registry) == ["math.add"]


async def test_hubs_that_have_just_started_ask_each_other_before_spokes_count_as_late(
    hubs: Hubs, meeting: Meeting
) -> None:
    a, b = await hubs.hub(linger=30), await hubs.hub(linger=30)
    await meeting.spoke(a.url, adding())
    caller = await meeting.spoke(b.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
    with pytest.raises(CallError, match="the hub has just started") as raised:
        await caller.call("math.sub")
    assert raised.value.code is ErrorCode.UNAVAILABLE


async def test_a_new_hub_knows_the_operations_of_the_others_when_it_starts(hubs: Hubs, meeting: Meeting) -> None:
    a = await hubs.hub(adding("own"))
    await meeting.spoke(a.url, adding())
    b = await hubs.hub()
    assert ids(b.registry) == ["math.add", "own.add"]
    caller = await meeting.spoke(b.url)
    assert await caller.call("own.add", {"a": 1, "b": 2}) == 3


async def test_an_operation_that_is_withdrawn_is_unknown_at_every_hub(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(), await hubs.hub()
    registry = adding()
    spoke = await meeting.spoke(a.url, registry)
    caller = await meeting.spoke(b.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
    await spoke.close()
    await until("it is unknown", lambda: ids(b.registry) == [])
    with pytest.raises(CallError, match=r"Operation not found: math\.add") as raised:
        await caller.call("math.add", {"a": 1, "b": 2})
    assert raised.value.code is ErrorCode.OPERATION_NOT_FOUND


async def test_the_identity_of_a_caller_crosses_and_access_is_checked_where_it_is_served(
    hubs: Hubs, meeting: Meeting
) -> None:
    a, b = await hubs.hub(authenticate=AUTH), await hubs.hub(authenticate=AUTH)
    await meeting.spoke(a.url, whoami(), token="billing")
    alice = await meeting.spoke(b.url, token="alice")
    assert await alice.call("billing.whoami") == "alice"
    assert (await b.registry.execute("billing.whoami")).data == "hub"


async def test_delegation_needs_a_grant_at_the_hub_of_the_server(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(authenticate=AUTH), await hubs.hub(authenticate=AUTH)
    await meeting.spoke(b.url, whoami(), token="billing")

    def nesting(namespace: str) -> OperationRegistry:
        registry = OperationRegistry()

        @registry.query(f"{namespace}.ask")
        async def ask(context: Context) -> str | None:
            spoke = servers[namespace]
            return (await spoke.calls.call("billing.whoami", context=context)).data

        return registry

    servers = {each: await meeting.spoke(a.url, nesting(each), token=each) for each in ("gateway", "mallory")}
    alice = await meeting.spoke(b.url, token="alice")
    assert await alice.call("gateway.ask") == "alice"
    with pytest.raises(CallError, match="does not delegate"):
        await alice.call("mallory.ask")
    with pytest.raises(CallError, match="cannot be passed on"):
        await b.registry.execute("gateway.ask")  # the authority of a hub's own program


SECRET = "the secret of these hubs"


async def test_with_a_secret_only_hubs_that_know_it_are_believed(
    hubs: Hubs, meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await hubs.hub(secret=SECRET), await hubs.hub(secret=SECRET)
    stranger = await hubs.hub(adding("evil"), secret="another secret of others")
    await meeting.spoke(a.url, adding())
    caller = await meeting.spoke(b.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
    assert ids(b.registry) == ["math.add"]
    assert ids(stranger.registry) == ["evil.add"]
    async with PendingRequestMap(hubs.link()) as calls:  # another client of the broker
        for address in await calls.transport.servers():
            with pytest.raises(CallError, match="needs the secret"):
                await calls.call("math.add", {"a": 1, "b": 2}, to=address)
    assert SECRET not in caplog.text


def test_a_proof_is_for_one_request_once() -> None:
    here, there = ClusterSecret(SECRET), ClusterSecret(SECRET)
    request = CallRequested(request_id="server/1", operation_id="math.add", input={"a": 1.0})
    proven = here.leaving(request, "b")
    for changed in (
        replace(proven, operation_id="math.sub"),
        replace(proven, input={"a": 2}),
        replace(proven, identity=Identity(id="root")),
        replace(proven, credential=None),
        replace(proven, credential="1." + (proven.credential or "").partition(".")[2]),
        replace(proven, credential="\u00b2.x"),
    ):
        with pytest.raises(CallError) as raised:
            there.arriving(changed, "b")
        assert raised.value.code is ErrorCode.UNAUTHENTICATED
    with pytest.raises(CallError, match="needs the secret"):
        there.arriving(proven, "c")  # another hub
    assert there.arriving(proven, "b") == request
    with pytest.raises(CallError, match="used before"):
        there.arriving(proven, "b")
    with pytest.raises(UsageError, match="at least 16"):
        ClusterSecret("short")


def test_a_used_proof_is_rejected_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, now = ClusterSecret(SECRET), ClusterSecret(SECRET), 1_000.0
    monkeypatch.setattr(time, "time", lambda: now)

    def proven(number: int) -> CallRequested:
        return here.leaving(CallRequested(request_id=f"server/{number}", operation_id="math.add", input={}))

    used: list[CallRequested] = []
    for number in range(200):
        used.append(proven(number))
        there.arriving(used[-1])
        now += 0.5
        for request in used:
            with pytest.raises(CallError, match=r"used before|needs the secret"):
                there.arriving(request)
    with pytest.raises(CallError, match="needs the secret"):
        there.arriving(used[0])  # it has expired


class Repeater:
    """A client of the broker that claims to be a hub, and repeats what it is asked at another one to prove it."""

    def __init__(self, link: BrokerTransport) -> None:
        self._link = link
        self._hubs: list[str] = []
        self._asked_by: dict[str, str] = {}  # by request id
        self.heard: list[CallEvent] = []

    async def start(self) -> None:
        """Connect, and claim to be a hub."""
        await self._link.start(self)
        self._hubs = await self._link.servers(0.1)
        await self._link.announce(["opwire.hub.routes"])

    def received(self, event: CallEvent, sender: str) -> None:
        """Repeat a request; return the response, and then a route."""
        if isinstance(event, CallRequested):
            self._asked_by[event.request_id] = sender
            for each in self._hubs:
                if each != sender:
                    self._link.send(event, each)
            return
        self.heard.append(event)
        asked_by = self._asked_by.pop(event.request_id, None)
        if asked_by is not None:
            self._link.send(event, asked_by)
        if asked_by is not None and isinstance(event, CallResponded):
            evil = {"number": 1, "id": "evil.add", "description": description("evil")}
            self._link.send(replace(event, seq=2, output=replace(event.output, data=evil)), asked_by)

    def lost(self, peer: str | None, reason: str) -> None:
        """Ignore it."""


def description(namespace: str) -> dict[str, Any]:
    """The description of an operation, as hubs send it."""
    (spec,) = adding(namespace).list()
    return OperationInfo.of(spec, Statistics()).plain()


async def test_a_request_of_a_hub_that_is_repeated_at_another_one_proves_nothing(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(secret=SECRET), await hubs.hub(secret=SECRET)
    repeater = Repeater(link := hubs.link())
    await repeater.start()
    caller = await meeting.spoke(b.url)
    try:
        c = await hubs.hub(secret=SECRET)  # asks the repeater, too
        await until("its request was repeated", lambda: bool(repeater.heard))
        with pytest.raises(CallError):
            await caller.call("evil.add", {"a": 1, "b": 2})
        assert [ids(each.registry) for each in (a, b, c)] == [[], [], []]
        assert {getattr(each, "code", "") for each in repeater.heard} == {ErrorCode.UNAUTHENTICATED}
    finally:
        await link.close()


class Poser:
    """A client of the broker that claims to be a hub, and sends what the test says instead of routes."""

    def __init__(self, link: BrokerTransport, changes: Iterable[dict[str, Any]] = ()) -> None:
        self._link = link
        self._changes = changes
        self.address = ""
        self.heard: list[CallEvent] = []

    async def __aenter__(self) -> Self:
        await self._link.start(self)
        self.address = self._link.address or ""
        await self._link.announce(["opwire.hub.routes"])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.close()

    def received(self, event: CallEvent, sender: str) -> None:
        """Claim changes that did not happen, and send the routes."""
        self.heard.append(event)
        if isinstance(event, CallRequested) and event.operation_id == "opwire.hub.sync":
            self._link.send(CallResponded(request_id=event.request_id, output=local_envelope(10**15, "sync")), sender)
        elif isinstance(event, CallRequested):
            for seq, change in enumerate(self._changes, 1):
                output = local_envelope(change, "routes")
                self._link.send(CallResponded(request_id=event.request_id, output=output, seq=seq), sender)

    def lost(self, peer: str | None, reason: str) -> None:
        """Ignore it."""


async def test_an_end_that_poses_as_a_hub_delays_the_calls_of_unknown_operations_once(
    hubs: Hubs, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_PROOF_TIMEOUT", 0.5)
    monkeypatch.setattr(cluster, "_SECONDS_BETWEEN_SEARCHES", 0.1)
    async with Poser(hubs.link()) as poser:
        a = await hubs.hub(adding(), secret=SECRET)
        caller = await meeting.spoke((await hubs.hub(secret=SECRET)).url)
        await until("it was asked for its routes", lambda: bool(poser.heard))
        for _ in range(3):
            with pytest.raises(CallError) as raised:
                await caller.call("math.sub", timeout=20)
            assert raised.value.code is ErrorCode.OPERATION_NOT_FOUND
        assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
        asked = [each for each in poser.heard if isinstance(each, CallRequested)]
        assert {each.operation_id for each in asked} == {"opwire.hub.routes"}
        assert len(asked) == 2  # once by each hub, however often they search
        assert poser.address not in a.transport.relay.peers  # no caller can address it
        assert len(a.transport.relay.peers) == 1  # the other hub


async def test_ends_that_are_not_hubs_leave_room_for_hubs(
    hubs: Hubs, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_MAX_HUBS", 1)
    monkeypatch.setattr(cluster, "_PROOF_TIMEOUT", 0.2)
    monkeypatch.setattr(cluster, "_SECONDS_BETWEEN_SEARCHES", 0.1)
    async with Poser(hubs.link()):
        await hubs.hub(adding())
        b = await hubs.hub()
        await until("the hubs have met", lambda: ids(b.registry) == ["math.add"])
        caller = await meeting.spoke(b.url)
        assert await caller.call("math.add", {"a": 1, "b": 2}) == 3


async def test_a_call_of_an_end_that_cannot_be_a_hub_is_refused_and_leaves_nothing(
    hubs: Hubs, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_transport, link = hubs.link(), hubs.link()
    await meeting.hub(adding(), cluster=hub_transport, cluster_open=True, linger=0)
    with monkeypatch.context() as patched:
        patched.setattr("opwire.transports.broker.token_hex", lambda _: "server")
        await link.start(poser := Poser(link))
    try:
        (address,) = await link.servers(0.2)
        link.send(CallRequested(request_id="c1/1", operation_id="math.add", input={"a": 1, "b": 2}), address)
        await until("it is refused", lambda: bool(poser.heard))
        (refused,) = poser.heard
        assert isinstance(refused, CallFailed)
        assert refused.code == ErrorCode.UNAVAILABLE
        assert len(hub_transport.leases) == 0
    finally:
        await link.close()


async def test_routes_that_another_hub_may_not_offer_are_ignored_and_not_kept(
    hubs: Hubs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "_MAX_LOGGED_REJECTIONS", 3)
    monkeypatch.setattr(cluster, "_MAX_DESCRIBED_BYTES", 2_000)
    own = {"id": "opwire.operations", "type": "subscription"}
    text = {"id": "big.text", "type": "query", "description": "x" * 2_000}
    fine = {"id": "fine.add", "type": "query"}
    long = {"id": "l." + "x" * 2_000, "type": "query"}
    changes: list[dict[str, Any]] = [
        {"number": 10**18, "id": "opwire.operations", "description": own},
        {"number": 2, "id": "other.add", "description": fine},  # of another operation than it says
        {"number": 3, "id": "fine.add", "version": "2", "description": fine},
        {"number": 4, "id": "big.text", "description": text},
        {"number": 5, "id": long["id"], "description": long},
        *({"number": 6, "id": f"wrong.n{number}", "description": {"id": 5}} for number in range(20)),
        {"number": 7, "id": "fine.add", "description": fine},
        {"number": 8},
    ]
    async with Poser(hubs.link(), changes):
        hub = await hubs.hub()
        await until("the last one has arrived", lambda: ids(hub.registry) == ["fine.add"])
    assert caplog.text.count("ignoring an operation") == 3


async def test_an_end_with_the_name_of_the_server_is_not_a_hub(
    hubs: Hubs, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = hubs.link()
    with monkeypatch.context() as patched:
        patched.setattr("opwire.transports.broker.token_hex", lambda _: "server")
        await link.start(Repeater(link))
    await link.announce(["opwire.hub.routes"])
    hub = await hubs.hub(adding(), secret=SECRET)  # searches for others, and finds it
    caller = await meeting.spoke(hub.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
    await link.close()
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3


async def test_a_caller_that_gives_up_or_leaves_stops_the_handler_at_another_hub(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(), await hubs.hub()
    for leave in (False, True):
        waiting = Waiting()
        spoke = await meeting.spoke(a.url, waiting.registry)
        caller = await meeting.spoke(b.url)
        call = asyncio.create_task(caller.call("slow.wait"))
        await soon("it has begun", waiting.began.wait())
        if leave:
            await caller.close()
        else:
            call.cancel()
        await soon("it is stopped", waiting.stopped.wait())
        with pytest.raises((CallError, asyncio.CancelledError)):
            await call
        await spoke.close()


async def test_items_progress_and_questions_cross(hubs: Hubs, meeting: Meeting) -> None:
    registry = OperationRegistry()
    produced = 0

    @registry.subscription("clock.count")
    async def count(to: int) -> AsyncIterator[int]:
        nonlocal produced
        for number in range(to):
            produced += 1
            yield number

    @registry.query("work.ask")
    async def ask(context: Context) -> bool:
        context.report(1, 2, "half")
        return bool(await context.elicit(bool, "Really?"))

    a, b = await hubs.hub(), await hubs.hub()
    await meeting.spoke(a.url, registry)
    caller = await meeting.spoke(b.url)
    assert [item async for item in caller.subscribe("clock.count", {"to": 500})] == list(range(500))
    produced = 0
    slow = caller.subscribe("clock.count", {"to": 500})
    assert await anext(slow) == 0
    assert produced < 200  # by credits, not by the broker's buffers
    await slow.aclose()
    reports: list[Progress] = []

    async def answer(question: Question) -> dict[str, Any]:
        return {"action": "accept", "content": {"value": True}}

    context = Context(on_progress=reports.append, on_question=answer)
    assert (await caller.calls.call("work.ask", context=context)).data is True
    assert [report.message for report in reports] == ["half"]


async def test_a_hub_that_is_gone_fails_the_calls_that_cross_and_no_others(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(), await hubs.hub()
    waiting = Waiting()
    await meeting.spoke(a.url, waiting.registry)
    await meeting.spoke(b.url, adding())
    caller = await meeting.spoke(b.url)
    call = asyncio.create_task(caller.call("slow.wait"))
    await soon("it has begun", waiting.began.wait())
    await a.close()
    with pytest.raises(CallError) as raised:
        await soon("it fails", call)
    assert raised.value.code is ErrorCode.UNAVAILABLE
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3


class Neighbour:
    """An end of the broker that is a hub for the others: it offers an operation, and keeps what it receives."""

    def __init__(self, link: BrokerTransport) -> None:
        self.link = link
        self.followers: dict[str, str] = {}  # of its routes: request ids by address
        self.heard: list[CallEvent] = []

    def received(self, event: CallEvent, sender: str) -> None:
        """Answer those that follow its routes."""
        if isinstance(event, CallRequested) and event.operation_id == "opwire.hub.routes":
            self.followers[sender] = event.request_id
            route = {"number": 1, "id": "far.add", "description": description("far")}
            output = local_envelope(route, event.operation_id)
            self.link.send(CallResponded(request_id=event.request_id, output=output, seq=1), sender)
        else:
            self.heard.append(event)

    def lost(self, peer: str | None, reason: str) -> None:
        """Ignore it."""

    async def join(self, hub: Hub) -> str:
        """Become a neighbour of the only hub, and return its address."""
        await self.link.start(self)
        async with asyncio.timeout(10):
            while not (found := await self.link.servers(0.1)):  # a busy machine answers later
                pass
        [address] = found
        await self.link.announce(["opwire.hub.routes"])
        self.link.send(CallRequested(request_id="1", operation_id="opwire.hub.sync"), address)
        await until("its operation is known", lambda: "far.add" in hub.registry)
        return address

    def fail_routes(self) -> None:
        """End the streams of its routes, and stay."""
        for address, request_id in self.followers.items():
            error = CallError(ErrorCode.RATE_LIMITED, "too many changes")
            self.link.send(CallFailed.of(request_id, error), address)


async def test_calls_of_a_hub_that_can_no_longer_be_followed_fail_on_both_sides(hubs: Hubs, meeting: Meeting) -> None:
    hub, waiting, neighbour = await hubs.hub(), Waiting(), Neighbour(hubs.link())
    await meeting.spoke(hub.url, waiting.registry)
    caller = await meeting.spoke(hub.url)
    address = await neighbour.join(hub)
    try:
        there = asyncio.create_task(caller.call("far.add", {"a": 1, "b": 2}))
        await until("it has crossed", lambda: any(isinstance(each, CallRequested) for each in neighbour.heard))
        someone = Identity(id="someone", scopes=("*",))
        wait = CallRequested(request_id="0123456789abcdef/7", operation_id="slow.wait", input={}, identity=someone)
        neighbour.link.send(wait, address)
        await soon("it has begun", waiting.began.wait())
        neighbour.fail_routes()
        with pytest.raises(CallError, match="too many changes") as raised:
            await soon("the call from here has failed", there)
        assert raised.value.code is ErrorCode.UNAVAILABLE
        await soon("the call from there is stopped", waiting.stopped.wait())

        def ended() -> set[type[CallEvent]]:
            return {type(each) for each in neighbour.heard if "/" in each.request_id} - {CallRequested}

        await until("it knows", lambda: ended() == {CallAborted, CallFailed})
        [failed] = [each for each in neighbour.heard if isinstance(each, CallFailed)]
        assert (failed.request_id, failed.code) == (wait.request_id, ErrorCode.UNAVAILABLE)
    finally:
        await neighbour.link.close()


async def test_servers_of_the_own_hub_come_first_and_sticky_calls_meet_at_one_server(
    hubs: Hubs, meeting: Meeting
) -> None:
    def named(name: str) -> OperationRegistry:
        registry = OperationRegistry()

        @registry.query("who.serves")
        async def serves() -> str:
            return name

        return registry

    a, b = await hubs.hub(), await hubs.hub()
    await meeting.spoke(a.url, named("a"))
    await meeting.spoke(b.url, named("b"))
    callers = [await meeting.spoke(a.url), await meeting.spoke(b.url)]
    await until("both know both", lambda: all(len(hub.transport.routes.servers()) == 2 for hub in (a, b)))
    assert [await each.call("who.serves") for each in callers] == ["a", "b"]
    for key in map(str, range(20)):
        first, second = [(await each.calls.call("who.serves", sticky_key=key)).data for each in callers]
        assert first == second


async def test_what_hubs_ask_each_other_is_not_in_the_access_log(
    hubs: Hubs, meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="opwire.access")
    a, b = await hubs.hub(), await hubs.hub()
    await meeting.spoke(a.url, adding())
    caller = await meeting.spoke(b.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
    await a.close()
    assert "math.add" in caplog.text
    assert "opwire.hub" not in caplog.text


async def test_discovery_and_figures_include_the_other_hubs(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(name="first"), await hubs.hub(name="second")
    await meeting.spoke(a.url, adding())
    caller = await meeting.spoke(b.url)
    assert await caller.call("math.add", {"a": 1, "b": 2}) == 3
    found = {each.server.name: [info.id for info in each.operations] for each in await caller.discover()}
    assert found == {"first": ["math.add"]}


@pytest.mark.parametrize("is_transport", [True, False])
async def test_a_cluster_without_a_secret_is_refused_unless_it_is_open(broker: str, is_transport: bool) -> None:
    cluster = cluster_transport(broker) if is_transport else broker
    with pytest.raises(UsageError, match=r"set cluster_secret .* or cluster_open"):
        Hub(url="ws://127.0.0.1:0", cluster=cluster)
    Hub(url="ws://127.0.0.1:0", cluster=cluster, cluster_open=True)
    if not is_transport:
        Hub(url="ws://127.0.0.1:0", cluster=cluster, cluster_secret="x" * 32)


async def test_the_cluster_of_a_hub_is_a_broker() -> None:
    with pytest.raises(UsageError, match="the URL of Redis or NATS"):
        Hub(cluster="ws://127.0.0.1:8700")


def greeting(version: str, parameter: str = "name") -> OperationRegistry:
    """An operation in a version, with a parameter of its own."""
    registry = OperationRegistry()
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    spec = OperationSpec(namespace="greet", name="hello", version=version, input_schema=Schema(schema))

    async def hello(input: Any, context: Context) -> str:
        return version

    registry.register(spec, hello)
    return registry


ADA = {"name": "Ada"}


@pytest.mark.parametrize("apart", [False, True], ids=["at one hub", "at two hubs"])
async def test_two_versions_are_served_side_by_side(hubs: Hubs, meeting: Meeting, apart: bool) -> None:
    """Versions of an operation are served side by side: a caller may ask for one, and otherwise gets the lowest,
    or any with its schemas."""
    a = await hubs.hub()
    b = await hubs.hub() if apart else a
    new = await meeting.spoke(b.url, greeting("1.10", "who"))
    await meeting.spoke(a.url, greeting("1.9"))
    for hub in (a, b):
        await until("both are known", lambda hub=hub: "greet.hello" in hub.transport.split)
        caller = await meeting.spoke(hub.url)
        assert (await caller.calls.call("greet.hello", {"who": "Ada"}, version="1.10")).data == "1.10"
        assert (await caller.calls.call("greet.hello", ADA, version="1.9")).data == "1.9"
        assert await caller.call("greet.hello", ADA) == "1.9"  # the lowest, which callers without a version know
        assert [spec.version for spec in hub.registry.list()] == ["1.9"]
        assert (await hub.registry.execute("greet.hello", ADA)).data == "1.9"
        with pytest.raises(CallError, match=r"version '2' of greet\.hello is not served") as raised:
            await caller.calls.call("greet.hello", ADA, version="2")
        assert raised.value.code is ErrorCode.UNAVAILABLE
    await new.close()
    await until("one is left", lambda: "greet.hello" not in a.transport.split)


async def test_when_the_last_server_of_the_old_version_leaves_the_new_one_is_listed(meeting: Meeting) -> None:
    hub = await meeting.hub(linger=0)
    old = await meeting.spoke(hub.url, greeting("1"))
    await meeting.spoke(hub.url, greeting("2", "who"))
    caller = await meeting.spoke(hub.url)
    assert await caller.call("greet.hello", ADA) == "1"
    await old.drain()
    assert await caller.call("greet.hello", {"who": "Ada"}) == "2"
    assert [spec.version for spec in hub.registry.list()] == ["2"]


async def test_versions_with_the_same_schemas_share_the_calls_and_a_version_may_be_replaced(meeting: Meeting) -> None:
    hub = await meeting.hub()
    await meeting.spoke(hub.url, greeting("1"))
    registry = greeting("2")
    await meeting.spoke(hub.url, registry)
    caller = await meeting.spoke(hub.url)
    assert {await caller.call("greet.hello", ADA) for _ in range(4)} == {"1", "2"}
    other = greeting("3")
    spec, handler = other.get_spec("greet.hello"), other.get_handler("greet.hello")
    assert spec is not None
    assert handler is not None
    registry.register(spec, handler, replace=True)
    async with asyncio.timeout(5):
        while {await caller.call("greet.hello", ADA) for _ in range(4)} != {"1", "3"}:
            await asyncio.sleep(0.01)


async def test_without_versions_of_their_own_two_schemas_are_a_conflict(meeting: Meeting) -> None:
    hub = await meeting.hub()
    await meeting.spoke(hub.url, greeting("1"))
    for version in ("", "1"):
        with pytest.raises(CallError, match="with another input schema: serve the same version, give each its own"):
            await meeting.spoke(hub.url, greeting(version, "who"))


async def test_a_server_rejects_a_version_that_it_does_not_serve_before_it_starts(
    broker: str, meeting: Meeting
) -> None:
    prefix = f"versions-{token_hex(4)}"
    everybody = Identity(id="everybody")
    await meeting.spoke(broker, greeting("1"), prefix=prefix, anonymous=everybody)
    caller = await meeting.spoke(broker, prefix=prefix)
    assert (await caller.calls.call("greet.hello", ADA, version="1")).data == "1"
    with pytest.raises(CallError, match="served here in version 1, not in the requested one"):
        await caller.calls.call("greet.hello", ADA, version="2")


class Load:
    """Callers that call without a pause, and count the outcomes."""

    def __init__(self, *callers: Spoke) -> None:
        self.calls = 0
        self.errors: list[CallError] = []
        self._over = False
        self._tasks = [asyncio.create_task(self._call(caller)) for caller in callers for _ in range(4)]

    async def _call(self, caller: Spoke) -> None:
        while not self._over:
            try:
                assert await caller.call("work.do", {"number": self.calls}, timeout=20) is not None
            except CallError as error:
                self.errors.append(error)
                await asyncio.sleep(0.01)
            self.calls += 1

    async def some(self, number: int) -> None:
        """Wait for this number of further calls."""
        until_then = self.calls + number
        await until(f"{number} calls", lambda: self.calls >= until_then)

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)


def working() -> OperationRegistry:
    registry = OperationRegistry()

    @registry.mutation("work.do")
    async def do(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 7))
        return number

    return registry


async def test_hubs_that_drain_move_their_spokes_and_callers_without_a_failed_call(
    hubs: Hubs, meeting: Meeting
) -> None:
    running = [await hubs.hub() for _ in range(3)]
    urls = [hub.url for hub in running]
    spokes = [await meeting.spoke(urls[number % 3 :] + urls[: number % 3], working()) for number in range(3)]
    callers = [await meeting.spoke(urls[number % 3 :] + urls[: number % 3]) for number in range(3)]
    load = Load(*callers)
    await load.some(100)
    for hub, url in zip(running[:2], urls, strict=False):
        assert await hub.drain()
        await load.some(100)
        await hubs.hub(url=url)
    await load.end()
    assert load.errors == []
    assert all(connected(each) for each in (*spokes, *callers))


async def test_calls_and_subscriptions_in_flight_go_on_at_the_hub_that_drains(hubs: Hubs, meeting: Meeting) -> None:
    a, b = await hubs.hub(), await hubs.hub()
    waiting = Waiting()
    more = asyncio.Event()

    @waiting.registry.subscription("clock.count")
    async def count() -> AsyncIterator[int]:
        for number in range(300):
            if number == 1:
                await more.wait()
            yield number

    await meeting.spoke([a.url, b.url], waiting.registry)
    caller = await meeting.spoke([a.url, b.url])
    call = asyncio.create_task(caller.call("slow.wait"))
    items = caller.subscribe("clock.count")
    assert await anext(items) == 0
    await soon("it has begun", waiting.began.wait())
    draining = asyncio.create_task(a.drain())
    await until("both have moved", lambda: len(peers(b)) == 2)
    assert not call.done()
    more.set()
    assert [item async for item in items] == list(range(1, 300))  # with credits, over the old connection
    waiting.go.set()
    assert await soon("the call ends", call) == "done"
    assert await soon("the hub is closed", draining)
    assert await caller.call("slow.wait") == "done"


async def test_without_another_hub_a_caller_learns_at_once_and_calls_in_flight_end(meeting: Meeting) -> None:
    hub = await meeting.hub()
    waiting = Waiting()
    await meeting.spoke(hub.url, waiting.registry)
    caller = await meeting.spoke(hub.url)
    call = asyncio.create_task(caller.call("slow.wait"))
    await soon("it has begun", waiting.began.wait())
    draining = asyncio.create_task(hub.drain())

    async def is_told() -> bool:
        try:
            await caller.call("opwire.about", timeout=1)
        except CallError as error:
            return error.code is ErrorCode.UNAVAILABLE
        return False

    async with asyncio.timeout(5):
        while not await is_told():
            await asyncio.sleep(0.01)
    waiting.go.set()
    assert await soon("the call ends", call) == "done"
    assert await soon("the hub is closed", draining)
