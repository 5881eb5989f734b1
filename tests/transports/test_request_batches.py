"""Requests that share a message: to which server, how many of them, and what becomes of them when it is gone."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest

from opwire import OperationRegistry
from opwire.errors import CallError, ErrorCode
from opwire.model.envelope import local_envelope
from opwire.protocol import LOCAL_IDENTITY, CallHandler, PendingRequestMap
from opwire.protocol.events import CallFailed, CallRequested, CallResponded, encode_event
from opwire.transports.batches import BATCHING, Batches, batch_number
from opwire.transports.broker import BrokerTransport
from opwire.transports.leases import Asked, LatestServer, Leases
from opwire.transports.nats import NatsTransport
from opwire.transports.redis import RedisTransport
from opwire_conformance.harness import soon
from tests.servers.brokers import HOST, NatsServer, RedisServer
from tests.transports.broker_in_memory import MemoryBroker, MemoryBrokerConnection
from tests.transports.recording import Log
from tests.transports.test_batches import HERE, Outgoing

THERE = f"{BATCHING}fedcba9876543210"
ADD = "math.add"
StartNats = Callable[..., NatsServer]

# --- which requests ---------------------------------------------------------------------------------------------------


def responses(leases: Leases, number: int, server: str = HERE, *, batch: int = 0) -> None:
    for each in range(number):
        asked = leases.ask(f"{server} {each}", ADD, 0.0, streams=False)
        asked.batch = batch
        answer = CallResponded(request_id=asked.request_id, output=local_envelope(3, ADD))
        assert leases.authenticates(answer, server, asked.token, 0.0)


def direct(leases: Leases, now: float = 1.0, requests: int = 10) -> list[str | None]:
    """The servers of requests that are made one right after the other."""
    return [chosen(leases, now + each * 1e-5) for each in range(requests)]


def chosen(leases: Leases, now: float, operation_id: str = ADD) -> str | None:
    """The server to which a request is sent directly."""
    route = leases.sole_server(operation_id, now)
    return None if route is None else route.server


def proven(server: str = HERE) -> Leases:
    """Leases whose requests go to one server, with one in flight."""
    leases = Leases(3.0)
    leases.ask("open", ADD, 0.0, streams=False)
    responses(leases, 64, server)
    assert direct(leases) == [None, server, *[None] * 8], "one request tries whether it can be reached"
    responses(leases, 1, server, batch=1)
    return leases


def test_requests_are_sent_to_a_server_that_has_sent_the_latest_responses_alone_once_it_has_answered_one() -> None:
    leases = Leases(3.0)
    leases.ask("open", ADD, 0.0, streams=False)
    responses(leases, 63)
    assert direct(leases) == [None] * 10
    responses(leases, 1)
    assert direct(leases) == [None, HERE, *[None] * 8]
    assert direct(leases, 2.0) == [None] * 10, "it has not answered yet"
    assert direct(leases, 4.1) == [None, HERE, *[None] * 8], "that one was lost: another tries again"
    responses(leases, 1, batch=1)
    assert direct(leases, 5.0) == [None, *[HERE] * 9]
    assert chosen(leases, 5.0, "math.sub") is None


def test_the_broker_routes_the_first_request_after_a_pause_and_one_in_5_ms_in_any_case() -> None:
    leases = proven()
    assert direct(leases, 2.0) == [None, *[HERE] * 9]
    assert [chosen(leases, 3.0 + each * 3e-4) for each in range(5)] == [None] * 5, "a call at a time"
    steady = [chosen(leases, 4.0 + each * 1e-4) for each in range(200)]
    assert 3 <= steady.count(None) <= 5
    assert steady[1:50] == [HERE] * 49


def test_as_soon_as_another_server_responds_or_this_one_rejects_a_request_the_broker_routes_all_of_them() -> None:
    leases = proven()
    responses(leases, 1, THERE)
    assert direct(leases, 2.0) == [None] * 10
    responses(leases, 1, HERE)
    assert direct(leases, 3.0) == [None] * 10
    leases = proven()
    asked = leases.ask("rejected", ADD, 2.0, streams=False)
    rejected = CallFailed(request_id="rejected", code="UNAVAILABLE", message="it drains", not_started=True)
    assert leases.authenticates(rejected, HERE, asked.token, 2.0)
    assert direct(leases, 2.0) == [None] * 10
    for forget in (lambda each: each.clear(), lambda each: each.left(HERE)):
        leases = proven()
        leases.ask("there", ADD, 2.0, streams=False, server=HERE)
        forget(leases)
        leases.ask("open", ADD, 2.0, streams=False)
        assert direct(leases, 2.0) == [None] * 10


def test_a_batch_that_was_not_delivered_to_a_lost_server_is_known() -> None:
    leases = proven()
    for number, batch in enumerate((0, 1, 2, 2, 3)):
        leases.ask(f"r{number}", ADD, 2.0, streams=False, server=HERE).batch = batch
    leases.ask("other", ADD, 2.0, streams=False, server=THERE).batch = 2
    served, unsent = leases.left(HERE, 2)
    assert [each.request_id for each in served] == ["r0", "r1"]
    assert [each.request_id for each in unsent] == ["r2", "r3"]
    assert [len(each) for each in leases.left(HERE, 2)] == [0, 0], "the last batch may have been delivered"
    assert [len(each) for each in leases.left(HERE)] == [0, 0], "a message without a number may be an earlier one"
    assert [each.request_id for each in leases.left(HERE, 3)[1]] == ["r4"]
    assert leases.asked("other") is not None


def test_without_permission_the_request_that_tried_it_is_returned_and_those_that_may_have_arrived_are_not() -> None:
    leases = Leases(3.0)
    leases.ask("open", ADD, 0.0, streams=False)
    responses(leases, 64)
    direct(leases)
    leases.ask("tried", ADD, 1.0, streams=False, server=HERE).batch = 1
    leases.ask("routed", ADD, 1.0, streams=False, server=HERE)
    assert [each.request_id for each in leases.forbidden(HERE)] == ["tried"]
    leases = proven()
    leases.ask("sent", ADD, 1.0, streams=False, server=HERE).batch = 2
    assert leases.forbidden(HERE) == []
    assert direct(leases, 2.0) == [None] * 10


def silence(leases: Leases, now: float, request_id: str = "lost") -> None:
    """Let a request expire that the broker routed to a server which has not reported it."""
    leases.ask(request_id, ADD, now - 4.0, streams=False)
    assert request_id in [each.request_id for each in leases.expire(now).calls]


def test_after_a_request_without_any_reply_requests_go_to_the_server_that_responds_except_for_a_few_samples() -> None:
    leases = Leases(3.0)
    responses(leases, 1, THERE)
    responses(leases, 2, HERE)
    assert direct(leases, 5.0) == [None] * 10, "the broker spreads the requests"
    silence(leases, 10.0)
    assert direct(leases, 10.0) == [HERE, *[None] * 9], "the first one tries whether it can be reached"
    responses(leases, 1, HERE, batch=1)
    responses(leases, 3, THERE)  # of samples
    one_at_a_time = [chosen(leases, 11.0 + each) for each in range(12)]
    assert one_at_a_time.count(None) == 3, "one in three heartbeats"
    assert set(one_at_a_time) == {None, HERE}
    silence(leases, 60.0, "sample")
    assert [chosen(leases, 60.0 + each) for each in range(4)] == [HERE] * 4, "not another one at once"
    assert chosen(leases, 119.0) is None
    assert chosen(leases, 119.5) == HERE
    assert direct(leases, 121.0) == [None] * 10, "a minute after the last one the broker spreads them again"


def test_a_subscription_avoids_a_silent_server_and_is_routed_by_the_broker_otherwise() -> None:
    leases = proven()
    assert [leases.sole_server(ADD, 2.0 + each * 1e-5, True) for each in range(5)] == [None] * 5
    leases = Leases(3.0)
    responses(leases, 1)
    silence(leases, 10.0)
    route = leases.sole_server(ADD, 10.1, True)
    assert route is not None
    assert route.server == HERE
    stream = leases.ask("stream", ADD, 10.1, streams=True, server=HERE)
    stream.batch = 1
    assert leases.sole_server(ADD, 10.2, True) is None, "the first one tries whether it can be reached"
    leases.confirm(HERE, [stream.token], 10.3)
    assert leases.sole_server(ADD, 10.4, True) is route, "it runs there, before its first item"


def test_a_server_that_is_silent_itself_is_not_preferred() -> None:
    leases = proven()
    leases.ask("there", ADD, 2.0, streams=False, server=HERE).batch = 2
    assert [each.request_id for each in leases.expire(6.0).calls] == ["open", "there"]
    assert direct(leases, 6.0) == [None] * 10


# --- how they are sent ------------------------------------------------------------------------------------------------


def asked(number: int) -> Asked:
    return Asked(f"r{number}", ADD, f"t{number}", False, 0.0)


def test_a_batch_of_requests_has_a_number_of_its_own_and_at_most_32() -> None:
    out = Outgoing()
    batches = Batches(out)
    requests = [asked(number) for number in range(40)]
    for each in requests:
        assert batches.request(LatestServer(HERE), each, b"{}")
    assert len(out.sent) == 1, "the first batch is full"
    out.turn_ends()
    assert [(to, token, len(json.loads(message)), control) for to, token, message, control in out.sent] == [
        (HERE, "q1", 32, True),
        (HERE, "q2", 8, True),
    ]
    assert Counter((each.server, each.batch) for each in requests) == {(HERE, 1): 32, (HERE, 2): 8}
    assert [batch_number(token) for token in ("q1", "q2", "", "q", "1", "qx", "q²", "q" + "9" * 20)] == [1, 2, *[0] * 6]
    assert batches.request(LatestServer(HERE), asked(1), b"{}")
    out.turn_ends()
    assert out.messages[2] == b'[["t1",{}]]', "an array, although it is alone: the number is in place of its token"


def test_a_request_that_is_large_or_for_another_kind_of_end_or_finds_the_broker_busy_is_sent_by_itself() -> None:
    out = Outgoing()
    batches = Batches(out)
    alone = asked(1)
    assert not batches.request(LatestServer("0123456789abcdef"), alone, b"{}")
    assert not batches.request(LatestServer(HERE), alone, b'{"x":"%b"}' % (b"x" * 2000))
    assert not batches.request(LatestServer(HERE, wary=True), alone, b'{"x":"%b"}' % (b"x" * out.max_message))
    out.link.paused = True
    assert not batches.request(LatestServer(HERE), alone, b"{}")
    assert (alone.server, alone.batch, out.sent, out.turns) == (None, 0, [], [])


def test_a_large_request_that_avoids_a_silent_server_is_a_batch_by_itself_behind_those_before_it() -> None:
    out = Outgoing()
    batches, route = Batches(out), LatestServer(HERE, wary=True)
    requests = [asked(number) for number in range(3)]
    for each, size in zip(requests, (1, 200_000, 1), strict=True):
        assert batches.request(route, each, b'{"x":"%b"}' % (b"x" * size))
    assert [token for _, token, _, _ in out.sent] == ["q1", "q2"]
    out.turn_ends()
    assert [(token, len(json.loads(message))) for _, token, message, _ in out.sent] == [("q1", 1), ("q2", 1), ("q3", 1)]
    assert [each.batch for each in requests] == [1, 2, 3]


def test_what_steers_a_call_does_not_overtake_its_request() -> None:
    out = Outgoing()
    batches = Batches(out)
    batches.request(LatestServer(HERE), asked(1), b'{"request":1}')
    batches.add(HERE, "t9", b'{"response":9}', control=False)
    batches.send(HERE, "t1", b'{"abort":1}', control=True)
    assert out.messages == [b'{"response":9}', b'[["t1",{"request":1}]]', b'{"abort":1}']
    batches.request(LatestServer(HERE), asked(2), b"{}")
    batches.clear()
    out.turn_ends()
    assert len(out.sent) == 3, "dropped with the connection"


# --- over a transport -------------------------------------------------------------------------------------------------

Make = Callable[[], BrokerTransport]


class Watched:
    """Counts the messages to a server: those that are batches with requests, and others."""

    def __init__(self, transport: BrokerTransport) -> None:
        self._transport, self.batches, self.requests = transport, 0, 0

    def arrived(self, sender: str, token: str, message: bytes) -> None:
        if b"call.requested" in message:
            self.batches += message.startswith(b"[")
            self.requests += message.count(b"call.requested")
        self._transport.arrived(sender, token, message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@asynccontextmanager
async def serving(make: Make, **options: Any) -> AsyncIterator[tuple[CallHandler, Watched]]:
    registry = OperationRegistry()

    @registry.query("work.echo")
    async def echo(value: int) -> int:
        return value

    transport: Any = make()
    watched = Watched(transport)
    async with PendingRequestMap(transport) as calls:
        transport.connection._listener = watched
        async with CallHandler(registry, calls, anonymous=LOCAL_IDENTITY, **options) as handler:
            yield handler, watched


async def burst(calls: PendingRequestMap, number: int = 64) -> None:
    made = [calls.call("work.echo", {"value": value}) for value in range(number)]
    results = await soon("all end", asyncio.gather(*made))
    assert [each.data for each in results] == list(range(number))


async def until_batched(calls: PendingRequestMap, watched: Watched) -> None:
    """Call until requests are batched; on a busy machine that takes several tries."""
    before = watched.batches

    async def bursts() -> None:
        while watched.batches < before + 5:
            await burst(calls)

    await soon("requests are batched", bursts())


@pytest.fixture(params=["memory", "nats", "redis"])
def make(request: pytest.FixtureRequest, nats_server: NatsServer, redis_server: RedisServer) -> Make:
    prefix, memory = f"requests-{request.node.name[:40].replace('[', '-')}", MemoryBroker()
    if request.param == "nats":
        return lambda: NatsTransport(nats_server.url, prefix=prefix)
    if request.param == "redis":
        return lambda: RedisTransport(redis_server.url, prefix=prefix)
    return lambda: BrokerTransport(MemoryBrokerConnection(memory))


async def test_a_sole_server_gets_batches_and_a_second_one_its_share_of_the_requests(make: Make) -> None:
    async with serving(make) as (_, first), PendingRequestMap(make()) as calls:
        await until_batched(calls, first)
        async with serving(make) as (_, second):

            async def shared() -> None:
                while second.requests < 200:
                    await burst(calls)

            await soon("the second has its share", shared())
            batches, requests = first.batches + second.batches, first.requests + second.requests
            for _ in range(5):
                await burst(calls)
            assert first.batches + second.batches == batches, "the broker routes each request"
            assert first.requests + second.requests == requests + 320
        await until_batched(calls, first)


@pytest.mark.parametrize("orderly", [True, False])
async def test_no_call_fails_when_the_server_of_its_batch_drains_or_closes_while_another_takes_over(
    make: Make, orderly: bool
) -> None:
    async with AsyncExitStack() as stack, PendingRequestMap(make()) as calls:
        handler, first = await stack.enter_async_context(serving(make))
        await until_batched(calls, first)
        async with serving(make) as (_, second):
            leaving = False

            async def keep_calling() -> None:
                while not leaving or second.requests < 100:
                    await burst(calls, 20)
                    await asyncio.sleep(0)

            caller = asyncio.create_task(keep_calling())
            if orderly:
                assert await handler.drain()
            await stack.aclose()
            leaving = True
            await soon("the second has taken over", caller)


async def test_a_batch_for_a_server_that_is_gone_is_sent_to_another(make: Make) -> None:
    async with serving(make) as (_, first), serving(make) as (_, second), PendingRequestMap(make()) as calls:
        transport = cast("Any", calls.transport)
        gone = f"{BATCHING}{'0' * 16}"
        transport._leases.sole_server = lambda *_: None if calls_left() else LatestServer(gone)
        sent = 0

        def calls_left() -> bool:
            nonlocal sent
            sent += 1
            return sent > 40  # those that are sent again

        await burst(calls, 40)
        assert sent == 80
        assert first.requests + second.requests == 40


async def test_of_a_server_that_is_gone_calls_before_a_probe_fail_and_those_after_it_are_sent_again(make: Make) -> None:
    silent, log, gone = make().connection, Log(), LatestServer(f"{BATCHING}{'0' * 16}")
    await silent.connect(gone.server, log)
    async with serving(make) as (_, watched), PendingRequestMap(make()) as calls:
        transport, direct = cast("Any", calls.transport), iter([gone] * 60)
        transport._leases.sole_server = lambda *_: next(direct, None)

        def make_calls(number: int) -> list[asyncio.Task[Any]]:
            return [asyncio.create_task(calls.call("work.echo", {"value": each})) for each in range(number)]

        received = make_calls(20)
        await log.until(lambda: log.arrivals)
        await silent.close()
        transport._batches.probe(Asked("probe", ADD, "token", False, 0.0, gone.server))
        not_received = make_calls(40)
        for each in received:
            with pytest.raises(CallError, match=r"the peer is gone before work\.echo ended") as caught:
                await soon("it fails", each)
            assert caught.value.code is ErrorCode.UNAVAILABLE
        assert [(await soon("it was sent again", each)).data for each in not_received] == list(range(40))
        assert watched.requests == 40


async def test_a_request_in_a_batch_for_an_operation_that_was_withdrawn_is_rejected_and_not_run() -> None:
    broker = MemoryBroker()

    def make() -> BrokerTransport:
        return BrokerTransport(MemoryBrokerConnection(broker))

    async with serving(make) as (handler, watched), PendingRequestMap(make()) as calls:
        server = cast("Any", watched._transport)
        received: list[Any] = []
        end = cast("Any", calls.transport)
        arrived = end.arrived

        def keep(sender: str, token: str, message: bytes) -> None:
            received.append((token, json.loads(message)))
            arrived(sender, token, message)

        end.connection._listener.arrived = keep
        ids = ("work.echo", "work.gone", "opwire.about")
        events = [encode_event(CallRequested(request_id=id, operation_id=id, input={"value": 1})) for id in ids]
        batch = b"[%b]" % b",".join(b'["t%d",%b]' % (number, event) for number, event in enumerate(events))
        server.arrived(end.address, "q1", batch)

        async def all_answered() -> None:
            while len(received) < 3:
                await asyncio.sleep(0.001)

        await soon("each is answered", all_answered())
        answers = {event["requestId"]: (token, event["type"], event.get("notStarted")) for token, event in received}
        assert answers == {
            "work.echo": ("t0", "call.responded", None),
            "work.gone": ("t1", "call.error", True),
            "opwire.about": ("t2", "call.error", True),
        }
        assert handler.monitor.statistics.keys() == {"work.echo"}


async def test_a_caller_that_may_not_publish_to_inboxes_calls_as_before(own_nats: StartNats) -> None:
    users = [
        {"user": "server", "password": "s3cret"},
        {"user": "ann", "password": "s3cret", "permissions": {"publish": {"deny": ["opwire.in.>"]}}},
    ]
    port = own_nats(authorization={"users": users}).port

    def transport(user: str) -> BrokerTransport:
        return NatsTransport(f"nats://{user}:s3cret@{HOST}:{port}", heartbeat=60)

    async with serving(lambda: transport("server")) as (_, watched), PendingRequestMap(transport("ann")) as calls:
        routes = cast("Any", calls.transport)._leases._routes

        async def denied() -> None:
            while "work.echo" not in routes or routes["work.echo"].tried < 0:
                await burst(calls)

        await soon("it was tried", denied())
        for _ in range(5):
            await burst(calls)
        assert watched.batches == 0
