"""What every broker transport adds to its broker: in virtual time, on a broker in memory that can stop and can lose.

What holds for every transport is in the contract, tests/conformance/test_contract.py.
"""

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opwire.errors import CallError, ErrorCode
from opwire.model.context import Context
from opwire.protocol import (
    LOCAL_IDENTITY,
    MAX_MESSAGE,
    CallAborted,
    CallCredit,
    CallFailed,
    CallHandler,
    CallRequested,
    PendingRequestMap,
    discover,
    encode_event,
)
from opwire.protocol.events import Hello, Here, Left, Serving, Waiting, Who, encode_session
from opwire.registry import OperationRegistry
from opwire.transports.broker import BrokerTransport
from opwire_conformance.harness import Probe, item
from tests.chaos.virtual_time import run_virtually, skip
from tests.properties import is_thorough
from tests.transports.broker_in_memory import MemoryBroker, MemoryBrokerConnection

BEAT = 1.0


class Discreet(MemoryBrokerConnection):
    """A connection to a broker that does not report addresses without listeners."""

    def deliver(self, to: str, sender: str, token: str, message: bytes) -> None:
        if to in self._broker.ends:
            super().deliver(to, sender, token, message)


class Orderly(MemoryBroker):
    """Messages keep their order, whether each takes the same time or (`longest`) a time of its own."""

    def __init__(self, dice: random.Random | None = None, *, longest: float = 0.05) -> None:
        super().__init__()
        self._dice, self._longest = dice, longest
        self._arrives = 0.0
        self._on_the_way: deque[Callable[[], None]] = deque()  # timers of the same moment have no order of their own

    def pass_on(self, act: Callable[[], None], message: bytes = b"") -> None:
        if not self.loses(message):
            takes = self.latency if self._dice is None else self._dice.random() * self._longest
            self._arrives = max(self._arrives, now() + takes)
            self._on_the_way.append(act)
            asyncio.get_running_loop().call_at(self._arrives, self._arrive)

    def _arrive(self) -> None:
        self._on_the_way.popleft()()


class Stage:
    """A broker, a server with a few operations, and a caller."""

    def __init__(self) -> None:
        self.broker: MemoryBroker = Orderly()
        self.connection = MemoryBrokerConnection
        self.mediums: list[Any] = []  # `MemoryBrokerConnection`, which some tests break
        self.runs: Counter[Any] = Counter()
        self.stopped = asyncio.Event()
        self.began = asyncio.Event()
        self.registry = OperationRegistry()
        self.registry.query("work.echo")(self.echo)
        self.registry.query("work.hang")(self.hang)
        self.registry.subscription("work.items")(self.items)

    async def echo(self, value: Any = None, seconds: float = 0) -> Any:
        self.runs[value] += 1
        await asyncio.sleep(seconds)
        return value

    async def hang(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    async def items(self, context: Context) -> AsyncGenerator[int]:
        yield 1
        await self.hang()

    def transport(self, **options: Any) -> BrokerTransport:
        self.mediums.append(self.connection(self.broker, **options))
        return BrokerTransport(self.mediums[-1], heartbeat=BEAT)

    async def server(self) -> tuple[PendingRequestMap, CallHandler]:
        calls = await PendingRequestMap(self.transport()).start()
        return calls, await CallHandler(self.registry, calls, anonymous=LOCAL_IDENTITY).start()

    async def caller(self) -> PendingRequestMap:
        return await PendingRequestMap(self.transport()).start()

    def vanish(self, place: int) -> None:
        """An end dies without a word: nothing from it and nothing to it arrives any more, and it does not know."""
        medium = self.mediums[place]
        assert medium.address is not None
        del self.broker.ends[medium.address]
        self.broker.ends[f"ghost{place}"] = medium
        medium.send = medium.broadcast = lambda *_, **__: None
        medium.deliver = lambda *_: None


def virtual(test: Callable[[Stage], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test with a stage of its own, in virtual time: waiting costs none."""

    async def staged() -> None:
        stage = Stage()
        async with asyncio.timeout(300):
            await test(stage)

    def run() -> None:
        run_virtually(staged())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    setattr(run, "pytestmark", getattr(test, "pytestmark", []))  # noqa: B010 (functions have no such attribute)
    return run


def refusing(medium: Any, word: bytes) -> None:
    """From now on this end has no room for messages with that word."""
    send = medium.send

    def full(to: str, token: str, message: bytes, *, control: bool) -> None:
        if word in message:
            raise CallError(ErrorCode.RATE_LIMITED, "the broker does not keep up")
        send(to, token, message, control=control)

    medium.send = full


def sent_queries(medium: MemoryBrokerConnection) -> list[int]:
    """The ids of the queries for servers that this end sends from now on."""
    ids: list[int] = []
    broadcast = medium.broadcast

    def keep(token: str, message: bytes) -> None:
        ids.append(json.loads(message)["id"])
        broadcast(token, message)

    medium.broadcast = keep  # type: ignore[method-assign]
    return ids


def now() -> float:
    return asyncio.get_running_loop().time()


async def outcome(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        return (await call).data
    except CallError as error:
        return error.code


@virtual
async def test_a_call_keeps_its_lease_when_its_progress_cannot_be_sent(stage: Stage) -> None:
    async def work(context: Context) -> str:
        context.report(1)
        await asyncio.sleep(10 * BEAT)
        return "done"

    stage.registry.query("work.report")(work)
    await stage.server()
    refusing(stage.mediums[0], b"call.progress")
    caller = await stage.caller()
    reports: list[Any] = []
    assert await outcome(caller.call("work.report", context=Context(on_progress=reports.append))) == "done"
    assert reports == []


@virtual
async def test_calls_of_a_server_that_died_without_a_word_fail_within_four_beats(stage: Stage) -> None:
    stage.connection = Discreet
    await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
    items = caller.subscribe("work.items")
    assert (await anext(items)).data == 1
    await stage.began.wait()
    stage.vanish(0)
    began = now()
    assert await call is ErrorCode.UNAVAILABLE
    with pytest.raises(CallError, match="no message from it for 3 s"):
        await anext(items)
    assert 2 * BEAT < now() - began <= 4.1 * BEAT
    assert caller.open_calls == 0


@virtual
async def test_where_the_broker_knows_that_a_server_is_gone_its_calls_fail_in_a_moment(stage: Stage) -> None:
    for round, in_hand in enumerate((0.05, 0.1, 1.0, 2.0, 10.0, 50.0)):
        await stage.server()
        caller = await stage.caller()
        calls = [asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200))) for _ in range(20)]
        items = caller.subscribe("work.items")
        assert (await anext(items)).data == 1
        await asyncio.sleep(in_hand)
        stage.vanish(2 * round)
        began = now()
        assert set(await asyncio.gather(*calls)) == {ErrorCode.UNAVAILABLE}
        with pytest.raises(CallError, match=r"the peer is gone before work\.items ended"):
            await anext(items)
        assert now() - began <= 0.05
        assert caller.open_calls == 0


@virtual
async def test_a_subscription_may_pause_for_as_long_as_it_likes(stage: Stage) -> None:
    @stage.registry.subscription("work.rare")
    async def rare() -> AsyncGenerator[int]:
        for number in range(3):
            await asyncio.sleep(30)
            yield number

    await stage.server()
    caller = await stage.caller()
    assert [item.data async for item in caller.subscribe("work.rare")] == [0, 1, 2]


@virtual
async def test_calls_that_the_last_server_of_an_operation_had_no_time_to_name_fail_in_a_moment(stage: Stage) -> None:
    server, _ = await stage.server()
    caller = await stage.caller()
    assert await outcome(caller.call("work.echo", {"value": 1})) == 1
    calls = [
        asyncio.ensure_future(outcome(caller.call("work.echo", {"value": 2, "seconds": 9}, timeout=50)))
        for _ in range(100)
    ]
    await asyncio.sleep(0.005)
    stage.vanish(0)
    began = now()
    assert set(await asyncio.gather(*calls)) == {ErrorCode.UNAVAILABLE}
    assert now() - began <= 0.05
    await server.close()


@virtual
async def test_probes_cost_nothing_where_calls_are_quick_and_little_where_they_are_many(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    sent: Counter[bytes] = Counter()

    def count(message: bytes) -> bool:
        sent[message.removeprefix(b'{"type":"')[:16]] += 1
        return False

    stage.broker.loses = count
    for number in range(50):
        await caller.call("work.echo", {"value": number})
    assert set(sent) == {b'call.requested",', b'call.responded",'}
    sent.clear()
    calls = [caller.call("work.echo", {"value": 1, "seconds": 0.9}) for _ in range(300)]
    await asyncio.gather(*calls)
    assert sent[b'call.requested",'] == sent[b'call.responded",'] == 300
    assert 1 <= sent[b'session.serving"'] <= 2, "one message names them all, beside the beats"
    assert 30 <= sent[b'session.waiting"'] <= 60, "a probe is for a server, and not for a call"


@virtual
async def test_a_stranger_cannot_keep_a_caller_alive_that_is_gone(stage: Stage) -> None:
    stage.connection = Discreet
    _, handler = await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
    await stage.began.wait()
    server, calling = (medium.address for medium in stage.mediums)
    stage.vanish(1)
    stranger = MemoryBrokerConnection(stage.broker)
    nobody: Any = Probe(caller.transport)
    await stranger.connect(calling, nobody)
    began = now()
    while not stage.stopped.is_set():
        for token, gone in (("", []), ("guess", ["guess"])):
            stranger.send(server, token, encode_session(Waiting(gone=gone)), control=True)
        await asyncio.sleep(0.1)
        assert now() - began <= 5.1 * BEAT
    await asyncio.sleep(0)
    assert len(handler) == 0
    call.cancel()


@virtual
async def test_what_a_stranger_says_of_calls_in_its_hands_is_answered_once_and_changes_nothing(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    stranger = Probe(stage.transport())
    await stranger.transport.start(stranger)
    calling = stage.mediums[1].address
    for tokens in ([], ["guess"], ["x" * 100_000], ["a b\r\nPUB c 0"]):
        stage.mediums[2].send(calling, "", encode_session(Serving(tokens=tokens)), control=True)
    await asyncio.sleep(0.1)
    assert await outcome(caller.call("work.echo", {"value": 3})) == 3


@virtual
async def test_a_discovery_finds_a_limited_number_of_servers_and_only_while_it_is_open(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    transport: Any = caller.transport
    queries = sent_queries(stage.mediums[1])
    asking = asyncio.ensure_future(transport.servers(wait=0.5))
    await asyncio.sleep(0.1)
    (query_id,) = queries
    assert query_id > 0
    for number in range(20_000):
        transport.arrived(f"forged{number}", "", encode_session(Here(id=query_id, peers=[])))
        transport.arrived(f"other{number}", "", encode_session(Here(id=query_id + 1, peers=[])))
    transport.arrived("", "", encode_session(Here(id=query_id, peers=[])))
    servers = await asking
    assert len(servers) == 10_000
    assert not [server for server in servers if server.startswith("other") or not server]
    transport.arrived("late", "", encode_session(Here(id=query_id, peers=[])))
    assert "late" not in await transport.servers()


@virtual
async def test_a_request_that_cannot_be_answered_does_not_run(stage: Stage) -> None:
    server, _ = await stage.server()
    transport: Any = server.transport
    asked = CallRequested(request_id="r", operation_id="work.echo", input={"value": 1})
    transport.arrived("", "", encode_event(asked))
    transport.arrived("", "0123", encode_event(asked))
    await asyncio.sleep(0.1)
    assert (stage.runs, transport.malformed, len(transport.leases)) == ({}, 2, 0)


@virtual
async def test_a_request_with_a_long_id_is_rejected(stage: Stage) -> None:
    await stage.server()
    probe = Probe(stage.transport())
    await probe.transport.start(probe)
    for length in (1_000, 1_001, 500_000):
        probe.transport.request(
            CallRequested(request_id="x" * length, operation_id="work.echo", input={"value": length})
        )
    await asyncio.sleep(0.1)
    outcomes = {len(event.request_id): getattr(event, "code", None) for event in probe.events}
    assert outcomes == {1_000: None, 1_001: "VALIDATION_ERROR", 500_000: "VALIDATION_ERROR"}
    assert stage.runs == {1_000: 1}


def test_invalid_messages_are_logged_a_bounded_number_of_times(caplog: pytest.LogCaptureFixture) -> None:
    async def flooded() -> None:
        stage = Stage()
        server, _ = await stage.server()
        transport: Any = server.transport
        for _ in range(10_000):
            transport.arrived("stranger", "", b"\xff not JSON")
        assert transport.malformed == 10_000
        await server.close()

    run_virtually(flooded())
    invalid = [record for record in caplog.records if "invalid message" in record.getMessage()]
    assert 10 <= len(invalid) <= 30


@virtual
async def test_a_failed_connection_is_reported_in_the_words_of_the_broker(stage: Stage) -> None:
    caller = await stage.caller()
    medium: Any = stage.mediums[0]
    for said, shown in (
        (
            "the broker in memory is a replica: connect to the primary",
            "^UNAVAILABLE: the broker in memory is a replica",
        ),
        ("no route", "^UNAVAILABLE: the broker in memory is not reachable at the moment: no route$"),
    ):

        async def refuse(address: str, listener: Any, said: str = said) -> None:
            raise CallError(ErrorCode.UNAVAILABLE, said)

        medium.connect = refuse
        medium.break_off("it was demoted")
        await asyncio.sleep(12)
        with pytest.raises(CallError, match=shown):
            await caller.call("work.echo", {"value": 1})
    await caller.close()


@virtual
async def test_an_exception_in_a_task_that_keeps_the_connection_ends_neither_it_nor_the_beats(stage: Stage) -> None:
    server, _ = await stage.server()
    caller = await stage.caller()
    transport: Any = server.transport
    receiver: Any = server
    lease = {"failures": 3}
    expire, lost = transport.leases.expire, server.lost

    def failing(now: float) -> Any:
        if lease["failures"]:
            lease["failures"] -= 1
            raise RuntimeError("the vault is sealed")
        return expire(now)

    def refusing_receiver(peer: Any, reason: str) -> None:
        receiver.lost = lost
        raise RuntimeError("a fault of the receiver")

    transport.leases.expire = failing
    await asyncio.sleep(30)
    assert lease == {"failures": 0}
    assert await outcome(caller.call("work.echo", {"value": 5, "seconds": 20}, timeout=50)) == 5
    stage.broker.running = False
    stage.mediums[0].break_off("only this one")
    receiver.lost = refusing_receiver
    await asyncio.sleep(10)
    stage.broker.running = True
    await asyncio.sleep(10)
    assert transport.connected
    assert await outcome(caller.call("work.echo", {"value": 6})) == 6


@virtual
async def test_a_call_may_take_many_beats_as_long_as_its_server_lives(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    assert (await caller.call("work.echo", {"value": 7, "seconds": 40}, timeout=100)).data == 7
    assert stage.runs == {7: 1}


@virtual
async def test_a_lost_answer_and_a_lost_request_fail_their_call_within_four_beats(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    for lost, runs in ((b'"call.requested"', 0), (b'"call.responded"', 1)):
        stage.runs.clear()
        stage.broker.loses = lambda message, lost=lost: lost in message
        began = now()
        assert await outcome(caller.call("work.echo", {"value": 1}, timeout=100)) is ErrorCode.UNAVAILABLE
        assert now() - began <= 4.1 * BEAT
        assert stage.runs[1] == runs
    stage.broker.loses = lambda message: False
    assert await outcome(caller.call("work.echo", {"value": 2})) == 2


@virtual
async def test_a_handler_is_stopped_by_the_next_beats_if_its_abort_was_lost(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    stage.broker.loses = lambda message: b'"call.aborted"' in message
    call = asyncio.ensure_future(caller.call("work.hang", timeout=200))
    await stage.began.wait()
    began = now()
    call.cancel()
    await stage.stopped.wait()
    assert now() - began <= 2.1 * BEAT
    assert caller.open_calls == 0


@virtual
async def test_the_handlers_of_a_caller_that_died_without_a_word_are_stopped(stage: Stage) -> None:
    _, handler = await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
    await stage.began.wait()
    stage.vanish(1)
    began = now()
    await stage.stopped.wait()
    assert now() - began <= 5.1 * BEAT
    await asyncio.sleep(0)
    assert len(handler) == 0
    call.cancel()


@virtual
async def test_an_abort_reaches_a_server_that_was_not_heard_of_yet(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(caller.call("work.hang", timeout=200))
    await stage.began.wait()
    began = now()
    call.cancel()
    await stage.stopped.wait()
    assert now() - began < 0.1


@virtual
async def test_a_stranger_can_neither_stop_nor_answer_a_call(stage: Stage) -> None:
    server_calls, _ = await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.echo", {"value": 5, "seconds": 2}, timeout=50)))
    await asyncio.sleep(0.1)
    (request_id,) = caller.open_requests()
    server, calling = (medium.address for medium in stage.mediums)
    stranger = MemoryBrokerConnection(stage.broker)
    nobody: Any = Probe(caller.transport)
    await stranger.connect(calling, nobody)
    stage.broker.ends[calling] = stage.mediums[1]  # it sends as the caller, and receives nothing
    for token in ("", "guess"):
        stranger.send(server, token, encode_event(CallAborted(request_id=request_id)), control=True)
        failed = CallFailed(request_id=request_id, code="INTERNAL", message="forged")
        stranger.send(calling, token, encode_event(failed), control=True)
        # An item of an unknown stream, to which the server would reply in the name of the call with the same id.
        stranger.send(server, token, encode_event(item(request_id, "forged", 1)), control=False)
    assert await call == 5
    transports: list[Any] = [server_calls.transport, caller.transport]
    assert sum(transport.foreign for transport in transports) == 6


@virtual
async def test_a_message_that_cannot_be_read_fails_its_own_call_and_nothing_else(stage: Stage) -> None:
    server, _ = await stage.server()
    caller = await stage.caller()
    medium = stage.mediums[1]
    asked = CallRequested(request_id="bad", operation_id="work.echo")
    probe = Probe(stage.transport())
    await probe.transport.start(probe)
    probe.transport.request(asked)
    await asyncio.sleep(0.1)
    broken = json.dumps({"type": "call.requested", "requestId": "worse", "operationId": 7}).encode()
    stage.mediums[2].request("work.echo", "0123456789abcdef", broken)
    lists = ",".join(["[]"] * 100_000)
    large = f'{{"type":"call.requested","requestId":"large","operationId":"work.echo","input":[{lists}]}}'
    stage.mediums[2].request("work.echo", "0123456789abcdee", large.encode())
    medium.send(stage.mediums[0].address, "", b"\xff not JSON", control=True)
    await asyncio.sleep(0.1)
    for cut in (b"{%b", b'{"a":[],%b', b'{%b,"b":[[]]'):  # as deep as it can be, and without an end
        event = cut % b'"type":"call.responded","requestId":"deep","output":' + b"[" * 10_000
        medium.send(stage.mediums[0].address, "", event, control=True)
    await asyncio.sleep(0.1)
    refused = [event for event in probe.events if isinstance(event, CallFailed)]
    codes = {event.request_id: event.code for event in refused}
    assert codes == {"worse": "PROTOCOL_ERROR", "large": "PAYLOAD_TOO_LARGE"}
    transport: Any = server.transport
    assert transport.malformed == 6
    assert await outcome(caller.call("work.echo", {"value": 3})) == 3


@virtual
async def test_a_broker_that_stops_ends_every_call_at_once_and_all_goes_on_when_it_is_back(stage: Stage) -> None:
    server, handler = await stage.server()
    caller = await stage.caller()
    calls = [asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200))) for _ in range(5)]
    await asyncio.sleep(0.1)
    began = now()
    stage.broker.stop()
    assert await asyncio.gather(*calls) == [ErrorCode.UNAVAILABLE] * 5
    await stage.stopped.wait()
    assert now() - began < 0.1
    with pytest.raises(CallError, match="not reachable at the moment"):
        await caller.call("work.echo")
    await asyncio.sleep(20)
    stage.broker.running = True
    await asyncio.sleep(6)
    assert await outcome(caller.call("work.echo", {"value": 1})) == 1
    assert (len(handler), server.open_calls, caller.open_calls) == (0, 0, 0)
    assert stage.mediums[0].connections == 2


@virtual
async def test_peers_of_an_end_that_was_away_learn_at_once_that_their_calls_are_over(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
    await stage.began.wait()
    began = now()
    stage.mediums[0].break_off("only this one")
    assert await call is ErrorCode.UNAVAILABLE
    assert now() - began < 0.5 * BEAT
    assert await outcome(caller.call("work.echo", {"value": 1})) == 1


@virtual
async def test_what_is_announced_while_the_broker_is_away_is_served_when_it_is_back(stage: Stage) -> None:
    _, handler = await stage.server()
    caller = await stage.caller()
    stage.broker.stop()
    stage.registry.query("work.late")(stage.echo)
    await asyncio.sleep(1)
    stage.broker.running = True
    await asyncio.sleep(6)
    assert await outcome(caller.call("work.late", {"value": 9})) == 9
    assert len(handler) == 0


@virtual
async def test_what_the_broker_refuses_is_not_announced_again(stage: Stage) -> None:
    transport = stage.transport()
    await transport.start(Probe(transport))
    medium, serve = stage.mediums[0], stage.mediums[0].serve

    async def refuse(operation_ids: Iterable[str]) -> None:
        if "secret.op" in (ids := list(operation_ids)):
            raise CallError(ErrorCode.UNAVAILABLE, "not allowed")
        await serve(ids)

    medium.serve = refuse
    with pytest.raises(CallError, match="not allowed"):
        await transport.announce(["secret.op"])
    await transport.announce(["work.open"])
    medium.break_off("again")
    await asyncio.sleep(6)
    assert list(stage.broker.serving["work.open"])[-1:] == [medium.address]
    await transport.close()


@virtual
async def test_closing_does_not_wait_for_a_broker_that_is_silent(stage: Stage) -> None:
    server, handler = await stage.server()

    async def never(_: Iterable[str]) -> None:
        await asyncio.Event().wait()

    stage.mediums[0].unserve = never
    began = now()
    await handler.close()
    await server.close()
    assert now() - began <= 11
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.cancelling()]


@virtual
async def test_a_start_that_fails_leaves_nothing_behind_and_can_be_tried_again(stage: Stage) -> None:
    stage.broker.running = False
    transport = stage.transport()
    with pytest.raises(CallError, match="the broker is not there"):
        await transport.start(Probe(transport))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(CallError, match="closed"):
        transport.request(CallRequested(request_id="r", operation_id="a.b"))
    stage.broker.running = True
    await transport.start(Probe(transport))
    assert transport.connected
    await transport.close()


@virtual
async def test_a_process_that_was_held_up_does_not_give_up_calls_that_live(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.echo", {"value": 1, "seconds": 30}, timeout=100)))
    await asyncio.sleep(2.5)
    skip(10)  # nothing ran for ten seconds: neither beats nor the reading of what arrived
    assert await call == 1


@virtual
async def test_beats_fit_into_the_messages_that_the_broker_lets_through(stage: Stage) -> None:
    await stage.server()
    stage.mediums[0].max_message = 500
    caller = await stage.caller()
    calls = [caller.call("work.echo", {"value": n, "seconds": 10}, timeout=100) for n in range(100)]
    assert sorted(await asyncio.gather(*map(outcome, calls))) == list(range(100))
    assert stage.mediums[0].largest <= 500


@virtual
async def test_a_plain_client_of_the_broker_gets_its_answer_and_no_beats(stage: Stage) -> None:
    await stage.server()
    plain = MemoryBrokerConnection(stage.broker)
    heard: list[bytes] = []

    class Listening(Probe):
        def arrived(self, sender: str, token: str, message: bytes) -> None:
            heard.append(message)

    listening: Any = Listening(stage.transport())
    await plain.connect("plain", listening)
    request = CallRequested(request_id="r", operation_id="work.echo", input={"value": 4, "seconds": 5})
    plain.request("work.echo", "", encode_event(request))
    await asyncio.sleep(10)
    assert [json.loads(message)["output"]["data"] for message in heard] == [4]


@virtual
async def test_thousands_of_calls_over_a_broker_that_loses_and_stops_end_once_each(stage: Stage) -> None:
    dice = random.Random(5)
    servers = [await stage.server() for _ in range(2)]
    caller = await stage.caller()
    stage.broker.loses = lambda message: dice.random() < 0.02

    async def one(number: int) -> Any:
        await asyncio.sleep(dice.random() * 60)
        began = now()
        result = await outcome(caller.call("work.echo", {"value": number, "seconds": dice.random() * 4}, timeout=8))
        assert now() - began <= 8 + 0.02
        return result

    async def trouble() -> None:
        for _ in range(4):
            await asyncio.sleep(12)
            stage.broker.stop()
            await asyncio.sleep(1)
            stage.broker.running = True

    results, _ = await asyncio.gather(asyncio.gather(*map(one, range(2_000))), trouble())
    counts = Counter("answered" if result == number else result for number, result in enumerate(results))
    assert set(counts) <= {"answered", ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT}
    assert counts["answered"] > 1_000
    assert counts[ErrorCode.UNAVAILABLE] > 50
    assert max(stage.runs.values()) == 1
    stage.broker.loses = lambda message: False
    await asyncio.sleep(20)
    ends = [calls for calls, _ in servers] + [caller]
    assert [end.open_calls for end in ends] == [0, 0, 0]
    transports: list[Any] = [end.transport for end in ends]
    assert [len(transport.leases) for transport in transports] == [0, 0, 0]


# --- senders that may end or answer a call ----------------------------------------------------------------------------


@virtual
async def test_a_request_with_the_id_of_a_call_of_this_end_does_not_learn_its_token(stage: Stage) -> None:
    server, _ = await stage.server()
    await stage.server()
    call = asyncio.ensure_future(outcome(server.call("work.hang", timeout=50)))
    await asyncio.sleep(0.1)
    (request_id,) = set(server.open_requests())  # the server may have got its own request
    learned: list[str] = []

    class Thief(Probe):
        def arrived(self, sender: str, token: str, message: bytes) -> None:
            learned.append(token)

    medium, thief = MemoryBrokerConnection(stage.broker), Thief(stage.transport())
    await medium.connect("thief", thief)  # pyright: ignore[reportArgumentType]
    stolen = CallRequested(request_id=request_id, operation_id="work.echo")
    medium.send(stage.mediums[0].address, "", encode_event(stolen), control=False)
    await asyncio.sleep(0.1)
    assert learned == [""]
    assert not call.done()
    call.cancel()


@virtual
async def test_the_token_of_a_call_that_goes_on_is_not_told_to_all(stage: Stage) -> None:
    await stage.server()
    transport = stage.transport()
    probe = Probe(transport)
    await transport.start(probe)
    transport.request(CallRequested(request_id="r", operation_id="work.hang", credits=1))
    with pytest.raises(CallError, match="UNAVAILABLE"):
        transport.send(CallCredit(request_id="r", n=1), None)
    transport.send(CallAborted(request_id="r"), None)
    assert len(transport.leases) == 0


@virtual
async def test_a_request_that_takes_the_id_of_one_in_flight_is_refused_and_the_first_is_answered(stage: Stage) -> None:
    """Over a broker only the server that has a request can answer it, and only its caller can steer it."""
    server, _ = await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.echo", {"value": 5, "seconds": 1}, timeout=50)))
    await asyncio.sleep(0.1)
    (request_id,) = caller.open_requests()
    transport: Any = server.transport
    forged = encode_event(CallRequested(request_id=request_id, operation_id="work.echo", input={"value": 6}))
    transport.arrived(stage.mediums[1].address, "guess", forged)
    assert await call == 5
    assert (transport.foreign, stage.runs) == (1, {5: 1})


@virtual
async def test_a_farewell_without_the_tokens_of_calls_ends_none_of_them(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.echo", {"value": 5, "seconds": 4}, timeout=50)))
    await asyncio.sleep(1.5 * BEAT)
    server, calling = stage.mediums
    for forged in (Left(), Left(tokens=["guess"])):
        server.listener.arrived(calling.address, "", encode_session(forged))
        calling.listener.arrived(server.address, "", encode_session(forged))
    assert await call == 5


@virtual
async def test_a_farewell_for_a_request_with_the_address_of_another_caller_ends_that_request_alone(
    stage: Stage,
) -> None:
    server, _ = await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.echo", {"value": 5, "seconds": 4}, timeout=50)))
    await asyncio.sleep(0.1)
    transport: Any = server.transport
    victim = stage.mediums[1].address
    forged = CallRequested(request_id="forged", operation_id="work.echo", input={"value": 6, "seconds": 30})
    transport.arrived(victim, "mine", encode_event(forged))
    assert len(transport.leases) == 2
    transport.overheard("anyone", "", encode_session(Left(tokens=["mine"])))
    assert list(dict(transport.leases.requests.reports())) == [victim]
    assert len(transport.leases) == 1
    assert await call == 5


# --- what cannot be sent ----------------------------------------------------------------------------------------------


@virtual
async def test_a_handler_is_stopped_by_the_next_beats_if_there_was_no_room_for_its_abort(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    items = caller.subscribe("work.items")
    await anext(items)
    await stage.began.wait()
    refusing(stage.mediums[1], b'"call.aborted"')
    began = now()
    await items.aclose()
    await stage.stopped.wait()
    assert now() - began <= 2.1 * BEAT


@virtual
async def test_an_abort_with_a_reason_too_large_to_send_still_stops_the_handler(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
    await stage.began.wait()
    (request_id,) = caller.open_requests()
    began = now()
    assert caller.abort(request_id, "x" * MAX_MESSAGE)
    assert await call is ErrorCode.ABORTED
    await stage.stopped.wait()
    assert now() - began <= 2.1 * BEAT


@virtual
async def test_a_call_that_lost_its_last_message_to_a_full_queue_fails_within_four_beats(stage: Stage) -> None:
    """A call whose abort or last word found no room to be sent ends all the same, within four beats."""
    server, _ = await stage.server()
    caller = await stage.caller()
    items = caller.subscribe("work.items")
    await anext(items)
    await stage.began.wait()
    refusing(stage.mediums[0], b'"call.error"')
    began = now()
    (request_id,) = server.open_requests()
    assert not server.fail(request_id, CallError(ErrorCode.EXECUTION_ERROR, "no"))
    with pytest.raises(CallError, match="no message from it"):
        await anext(items)
    assert now() - began <= 4.1 * BEAT
    transports: list[Any] = [server.transport, caller.transport]
    assert [len(transport.leases) for transport in transports] == [0, 0]


@virtual
async def test_an_invalid_message_from_an_unknown_sender_ends_nothing(stage: Stage) -> None:
    server, _ = await stage.server()
    caller = await stage.caller()
    long = b'{"type":"call.requested","requestId":"' + b"x" * (MAX_MESSAGE - 60) + b'"}'
    transport: Any = server.transport
    transport.arrived("somebody", "token", long)
    transport.arrived("somebody", "token", encode_session(Hello(version=1)))
    transport.overheard("somebody", "token", b"{")
    assert transport.malformed == 3
    assert await outcome(caller.call("work.echo", {"value": 3})) == 3


# --- coming back, and leaving -----------------------------------------------------------------------------------------


@virtual
async def test_the_handlers_of_a_caller_that_was_away_are_stopped_when_it_is_back(stage: Stage) -> None:
    stage.connection = Discreet
    await stage.server()
    caller = await stage.caller()
    for beats in (0.5, 1.5):  # before its server is heard of, and after
        stage.began.clear()
        stage.stopped.clear()
        call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
        await stage.began.wait()
        await asyncio.sleep(beats * BEAT)
        began = now()
        stage.mediums[1].break_off("only this one")
        assert await call is ErrorCode.UNAVAILABLE
        await stage.stopped.wait()
        assert now() - began < BEAT


@virtual
async def test_a_caller_that_leaves_before_its_server_is_heard_of_has_its_handlers_stopped_at_once(
    stage: Stage,
) -> None:
    stage.connection = Discreet
    _, handler = await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
    await stage.began.wait()
    began = now()
    await caller.close()
    assert await call is ErrorCode.UNAVAILABLE
    await stage.stopped.wait()
    assert now() - began < 0.1
    await asyncio.sleep(0)
    assert len(handler) == 0


@virtual
async def test_calls_over_a_connection_on_which_nothing_could_be_announced_end_with_it(stage: Stage) -> None:
    server, _ = await stage.server()
    await stage.server()
    medium = stage.mediums[0]

    async def never(_: Iterable[str]) -> None:
        await asyncio.Event().wait()

    medium.serve = never
    medium.break_off("only this one")
    began = now()
    await asyncio.sleep(1)
    transport: Any = server.transport
    assert transport.connected
    call = asyncio.ensure_future(outcome(server.call("work.hang", timeout=200)))
    assert await call is ErrorCode.UNAVAILABLE
    assert now() - began <= 5.2  # which is how long the broker had to confirm the announcement
    assert len(transport.leases) == 0
    await server.close()


@virtual
async def test_a_fault_of_the_medium_does_not_keep_an_end_away(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    medium, connect = stage.mediums[0], stage.mediums[0].connect

    async def faulty(address: str, listener: Any) -> None:
        medium.connect = connect
        raise OSError("nobody has mapped this")

    medium.connect = faulty
    medium.break_off("only this one")
    await asyncio.sleep(6)
    assert await outcome(caller.call("work.echo", {"value": 5})) == 5


@virtual
async def test_a_beat_that_fails_is_not_the_last_one(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()

    def full(_: float) -> None:
        raise CallError(ErrorCode.RATE_LIMITED, "the broker does not keep up")

    stage.mediums[0].beat = full
    assert await outcome(caller.call("work.echo", {"value": 5, "seconds": 20}, timeout=50)) == 5


@virtual
async def test_a_close_that_is_cancelled_has_left_all_the_same(stage: Stage) -> None:
    server, _ = await stage.server()
    caller = await stage.caller()
    call = asyncio.ensure_future(outcome(caller.call("work.hang", timeout=200)))
    await stage.began.wait()
    await asyncio.sleep(1.5 * BEAT)

    async def never(_: Iterable[str]) -> None:
        await asyncio.Event().wait()

    stage.mediums[0].unserve = never
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await server.transport.close()
    began = now()
    assert await call is ErrorCode.UNAVAILABLE
    assert now() - began < 0.1
    assert list(stage.broker.ends) == [stage.mediums[1].address]


def test_an_end_can_be_started_again_in_another_event_loop() -> None:
    broker = MemoryBroker()
    transport = BrokerTransport(MemoryBrokerConnection(broker))

    async def visit() -> None:
        await transport.start(Probe(transport))
        await asyncio.sleep(1)
        broker.stop()
        broker.running = True
        await asyncio.sleep(6)
        assert transport.connected
        await transport.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(visit())
    run_virtually(visit())


@virtual
async def test_what_two_lost_connections_leave_unsaid_is_said_after_the_third(stage: Stage) -> None:
    server, _ = await stage.server()
    caller = await stage.caller()
    transport, medium = cast("BrokerTransport", server.transport), stage.mediums[0]
    said: list[str] = []
    transport.leases.requests.add("peer", "first", "1" * 16, now())
    serve = medium.serve

    async def lose_the_second_connection(operation_ids: Iterable[str]) -> None:
        medium.serve = serve
        transport.leases.requests.add("peer", "second", "2" * 16, now())
        medium.break_off("again")
        raise CallError(ErrorCode.UNAVAILABLE, "the connection was lost")

    medium.serve = lose_the_second_connection
    medium.send = lambda to, _, message, **__: said.extend(json.loads(message).get("tokens", ()))
    medium.break_off("once")
    await asyncio.sleep(6)
    assert said == ["1" * 16, "2" * 16]
    await caller.close()
    await server.close()


# --- servers ----------------------------------------------------------------------------------------------------------


@virtual
async def test_servers_with_different_operations_are_found_each_with_its_own(stage: Stage) -> None:
    first, first_handler = await stage.server()
    shop = OperationRegistry()
    shop.query("shop.price")(stage.echo)
    second = await PendingRequestMap(stage.transport()).start()
    handler = await CallHandler(shop, second, anonymous=LOCAL_IDENTITY, name="shop").start()
    caller = await stage.caller()
    found = {each.server.id: each for each in await discover(caller)}
    assert found.keys() == {first_handler.about().id, handler.about().id}
    assert [each.id for each in found[handler.about().id].operations] == ["shop.price"]
    assert found[handler.about().id].server.name == "shop"
    assert len(await first.transport.servers()) == 2, "an end finds itself, too"
    assert await handler.drain(5)
    assert await caller.transport.servers() == [found[first_handler.about().id].address]
    ends: list[Any] = [first.transport, second.transport, caller.transport]
    assert [len(end.leases) for end in ends] == [0, 0, 0]


@virtual
async def test_invented_servers_delay_a_discovery_no_longer_than_one_silent_server(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    silent = MemoryBrokerConnection(stage.broker)
    ignoring: Any = SimpleNamespace(arrived=lambda *_: None, overheard=lambda *_: None)
    await silent.connect("silent", ignoring)
    invented = [f"invented{number}" for number in range(500)]
    stage.broker.ends.update(dict.fromkeys(invented, silent))
    transport, medium = cast("BrokerTransport", caller.transport), stage.mediums[1]
    broadcast = medium.broadcast

    def reply_first(token: str, message: bytes) -> None:
        for address in invented:
            transport.arrived(address, "", encode_session(Here(id=json.loads(message)["id"], peers=[])))
        broadcast(token, message)

    medium.broadcast = reply_first
    began = now()
    (found,) = await discover(caller)
    assert [each.id for each in found.operations] == ["work.echo", "work.hang", "work.items"]
    assert now() - began < 0.5 + 5 * BEAT


@virtual
async def test_a_discovery_that_loses_the_broker_does_not_report_missing_servers(stage: Stage) -> None:
    await stage.server()
    caller = await stage.caller()
    asking = asyncio.ensure_future(caller.transport.servers(0.5))
    await asyncio.sleep(0)
    stage.mediums[1].break_off("only this one")  # it is back before the answers were to be counted
    with pytest.raises(CallError, match="UNAVAILABLE"):
        await asking
    transport: Any = caller.transport
    transport.arrived("somebody", "", b'{"type":"session.here","id":1,"peers":[]}')
    transport.overheard("somebody", "", encode_session(Who(id=1)))  # an end without operations says nothing


@virtual
async def test_a_server_that_drains_finishes_what_takes_many_beats_and_others_get_the_rest(stage: Stage) -> None:
    leaving = [await stage.server() for _ in range(2)]
    await stage.server()
    caller = await stage.caller()
    calls = [caller.call("work.echo", {"value": n, "seconds": 8}, timeout=60) for n in range(30)]
    begun = asyncio.gather(*map(outcome, calls))
    await asyncio.sleep(1)
    drained = asyncio.gather(*(handler.drain(30) for _, handler in leaving))
    later = [caller.call("work.echo", {"value": n}, timeout=60) for n in range(30, 60)]
    answers = await asyncio.gather(*map(outcome, later))
    assert answers + await begun == [*range(30, 60), *range(30)]
    assert await drained == [True, True]
    assert max(stage.runs.values()) == 1


# --- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3 if is_thorough() else 1))
def test_calls_and_subscriptions_of_many_ends_over_a_rough_broker_end_once_each_and_leave_nothing(seed: int) -> None:
    async def storm() -> None:
        dice = random.Random(seed)
        stage = Stage()
        stage.broker = Orderly(dice)
        stage.registry.subscription("work.count")(count_to)
        ends = [await stage.server() for _ in range(3)]
        stage.broker.loses = lambda message: dice.random() < 0.01

        async def one(number: int) -> Any:
            await asyncio.sleep(dice.random() * 60)
            calls, began = dice.choice(ends)[0], now()
            if number % 3:
                seconds = dice.random() * 4
                result = await outcome(calls.call("work.echo", {"value": number, "seconds": seconds}, timeout=8))
                assert now() - began <= 8.02
            else:
                result = await followed(calls.subscribe("work.count", {"to": 200}))
                assert now() - began <= 200 * 0.05 + 5 * BEAT, "it has no deadline, and ends all the same"
                result = number if result == list(range(200)) else result
            return "answered" if result == number else result

        async def trouble() -> None:
            for _ in range(12):
                await asyncio.sleep(dice.random() * 8)
                dice.choice(stage.mediums).break_off("at random")

        results, _ = await asyncio.gather(asyncio.gather(*map(one, range(1_000))), trouble())
        counts = Counter(results)
        assert set(counts) <= {"answered", ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT, ErrorCode.ABORTED}
        assert counts["answered"] > 400
        assert counts[ErrorCode.UNAVAILABLE] > 20
        assert max(stage.runs.values()) == 1
        stage.broker.loses = lambda message: False
        await asyncio.sleep(20)
        assert [(len(handler), calls.open_calls) for calls, handler in ends] == [(0, 0)] * 3
        transports: list[Any] = [calls.transport for calls, _ in ends]
        assert [len(transport.leases) for transport in transports] == [0, 0, 0]
        for calls, handler in ends:
            await handler.close()
            await calls.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(storm())


async def count_to(to: int) -> AsyncGenerator[int]:
    for number in range(to):
        if number % 20 == 0:
            await asyncio.sleep(0.2)
        yield number


async def followed(stream: AsyncGenerator[Any]) -> Any:
    try:
        return [item.data async for item in stream]
    except CallError as error:
        return error.code
