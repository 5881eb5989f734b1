"""Events that share a message: which do, in what order, and what each of them counts for."""

import asyncio
import json
import logging
from collections import Counter
from typing import Any, cast

import msgspec
import pytest

from opwire import Context, OperationRegistry
from opwire.errors import CallError, ErrorCode
from opwire.model.envelope import local_envelope
from opwire.protocol import LOCAL_IDENTITY, CallHandler, PendingRequestMap
from opwire.protocol.batch import MAX_BATCH
from opwire.protocol.events import (
    CallFailed,
    CallRequested,
    CallResponded,
    encode_event,
)
from opwire.transports.batches import BATCHING, Batches
from opwire.transports.broker import BrokerTransport
from opwire.transports.nats import NatsTransport
from opwire.transports.redis import RedisTransport
from opwire_conformance.harness import soon
from tests.servers.brokers import NatsServer, RedisServer
from tests.transports.broker_in_memory import MemoryBroker, MemoryBrokerConnection
from tests.transports.nats.ends import end as nats_end
from tests.transports.redis.ends import end as redis_end

HERE = f"{BATCHING}0123456789abcdef"


class Outgoing(MemoryBrokerConnection):
    """A connection that keeps what is sent, until `full`."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.sent: list[tuple[str, str, bytes, bool]] = []
        self.full = False
        self.turns: list[Any] = []
        cast("Any", self.link).at_turn_end = self.turns.append

    def send(self, to: str, token: str, message: bytes, *, control: bool) -> None:
        if self.full:
            raise CallError(ErrorCode.RATE_LIMITED, "the broker does not keep up")
        self.sent.append((to, token, message, control))

    def turn_ends(self) -> None:
        while self.turns:
            self.turns.pop()()

    @property
    def messages(self) -> list[bytes]:
        return [message for _, _, message, _ in self.sent]


def test_events_of_a_turn_for_one_end_are_one_message_and_a_single_one_is_sent_unchanged() -> None:
    out = Outgoing()
    batches = Batches(out)
    for number in range(3):
        batches.add(HERE, f"t{number}", b'{"n":%d}' % number, control=False)
    batches.add(f"{BATCHING}other", "t9", b"{}", control=False)
    assert out.sent == []
    out.turn_ends()
    batch = b'[["t0",{"n":0}],["t1",{"n":1}],["t2",{"n":2}]]'
    assert out.sent == [(HERE, "", batch, True), (f"{BATCHING}other", "t9", b"{}", True)]
    batches.add(HERE, "t3", b"{}", control=False)
    out.turn_ends()
    assert out.messages[2:] == [b"{}"], "the next turn has its own"


@pytest.mark.parametrize("address", ["0123456789abcdef", "@_INBOX.abc", "Batch1", ""])
def test_an_end_that_does_not_ask_for_batches_gets_none(address: str) -> None:
    out = Outgoing()
    for token in ("t1", "t2"):
        Batches(out).add(address, token, b"{}", control=True)
    assert out.sent == [(address, "t1", b"{}", True), (address, "t2", b"{}", True)]


def test_a_batch_is_bounded_and_a_large_event_is_sent_by_itself_in_its_place() -> None:
    out = Outgoing()
    batches = Batches(out)
    large = b'{"large":"%b"}' % (b"x" * 2000)
    for number in range(100):
        event = large if number == 50 else b'{"%04d":"%b"}' % (number, b"x" * 1000)
        batches.add(HERE, "0123456789abcdef", event, control=False)
    out.turn_ends()
    assert max(map(len, out.messages)) <= MAX_BATCH
    assert large in out.messages
    pairs = [pair for message in out.messages for pair in _pairs(message)]
    assert [next(iter(event)) for _, event in pairs] == [f"{n:04d}" if n != 50 else "large" for n in range(100)]


def _pairs(message: bytes) -> list[tuple[str, Any]]:
    decoded = json.loads(message)
    return decoded if isinstance(decoded, list) else [("", decoded)]


@pytest.mark.parametrize("token", ["", '"', 't"],["u', "t\\", "t\n"])
def test_a_token_of_other_characters_is_not_part_of_a_batch(token: str) -> None:
    out = Outgoing()
    batches = Batches(out)
    batches.add(HERE, "t1", b"{}", control=False)
    batches.add(HERE, token, b"{}", control=False)
    assert [(each, message) for _, each, message, _ in out.sent] == [("t1", b"{}"), (token, b"{}")]


def test_a_message_that_cannot_wait_does_not_overtake_what_waits() -> None:
    out = Outgoing()
    batches = Batches(out)
    for number in range(2):
        batches.add(HERE, "t", b"%d" % number, control=False)
    batches.send(HERE, "t", b"{}", control=True)
    assert out.messages == [b'[["t",0],["t",1]]', b"{}"]
    out.turn_ends()
    assert len(out.sent) == 2


def test_while_messages_queue_up_each_sender_learns_whether_there_is_room() -> None:
    out = Outgoing()
    batches = Batches(out)
    out.link.paused = out.full = True
    with pytest.raises(CallError, match="keep up"):
        batches.add(HERE, "t", b"{}", control=False)
    out.link.paused, out.max_message = False, MAX_BATCH - 1  # a batch may be too large for the broker
    with pytest.raises(CallError, match="keep up"):
        batches.add(HERE, "t", b"{}", control=False)


def test_a_batch_that_finds_no_room_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    out = Outgoing()
    batches = Batches(out)
    for token in ("secret1", "secret2"):
        batches.add(HERE, token, b'{"secret":3}', control=False)
    out.full = True
    with caplog.at_level(logging.WARNING):
        out.turn_ends()
    assert "2 events" in caplog.text
    assert "secret" not in caplog.text


def test_over_a_connection_that_does_not_buffer_each_event_is_a_message() -> None:
    class Plain:
        def __init__(self) -> None:
            self.name, self.max_message, self.sent = "plain", 2**20, list[bytes]()

        def send(self, to: str, token: str, message: bytes, *, control: bool) -> None:
            self.sent.append(message)

    plain: Any = Plain()
    for _ in range(2):
        Batches(plain).add(HERE, "t", b"{}", control=False)
    assert plain.sent == [b"{}", b"{}"]


# --- over a transport -------------------------------------------------------------------------------------------------


class Probe:
    """A receiver that records its events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def received(self, event: Any, sender: str) -> None:
        self.events.append(event)

    def lost(self, peer: str | None, reason: str) -> None: ...


async def asking(*request_ids: str, **options: Any) -> tuple[BrokerTransport, Probe, dict[str, str]]:
    """An end with requests in flight, its events, and the tokens of the requests."""
    broker, probe = MemoryBroker(), Probe()
    connection, server = MemoryBrokerConnection(broker), MemoryBrokerConnection(broker)
    transport = BrokerTransport(connection, **options)
    await transport.start(probe)
    log: Any = Probe()
    tokens: dict[str, str] = {}
    log.arrived = lambda _sender, token, message: tokens.update({json.loads(message)["requestId"]: token})
    await server.connect("server", log)
    await server.serve(["math.add"])
    for each in request_ids:
        transport.request(CallRequested(request_id=each, operation_id="math.add"))
    while len(tokens) < len(request_ids):
        await asyncio.sleep(0.001)
    return transport, probe, tokens


def answer(request_id: str) -> bytes:
    return encode_event(CallResponded(request_id=request_id, output=local_envelope(3, "math.add")))


def pairs(*given: tuple[str, bytes]) -> bytes:
    return b"[%b]" % b",".join(b'["%b",%b]' % (token.encode(), event) for token, event in given)


async def test_each_event_of_a_batch_counts_by_its_own_token() -> None:
    transport, probe, tokens = await soon("it is asked", asking("r1", "r2", "r3"))
    forged = pairs(
        (tokens["r1"], answer("r2")), ("", answer("r2")), ("guess", answer("r3")), (tokens["r1"], answer("r1"))
    )
    transport.arrived("server", tokens["r2"], forged)  # the token beside the batch authenticates no event in it
    assert [event.request_id for event in probe.events] == ["r1"]
    assert (transport.foreign, transport.malformed) == (3, 0)
    transport.arrived("server", "", pairs((tokens["r2"], answer("r2")), (tokens["r3"], answer("r3"))))
    assert [event.request_id for event in probe.events] == ["r1", "r2", "r3"]
    await transport.close()


async def test_an_invalid_event_of_a_batch_fails_its_own_call_and_a_batch_in_a_batch_is_invalid() -> None:
    transport, probe, tokens = await soon("it is asked", asking("r1", "r2", "r3"))
    broken = b'{"type":"call.responded","requestId":"r2","output":7}'
    transport.arrived("server", "", pairs((tokens["r1"], answer("r1")), (tokens["r2"], broken)))
    transport.arrived("server", "", pairs((tokens["r3"], pairs((tokens["r3"], answer("r3"))))))
    assert [(event.request_id, type(event)) for event in probe.events] == [("r1", CallResponded), ("r2", CallFailed)]
    assert transport.malformed == 2
    transport.arrived("server", "", b"[" * 60_000)
    transport.arrived("server", "", pairs((tokens["r3"], answer("r3")), *[("", answer("x"))] * 1000))
    assert transport.malformed == 4, "one is not a batch, the other is too large"
    transport.arrived("server", "", pairs((tokens["r3"], answer("r3"))))
    assert [event.request_id for event in probe.events] == ["r1", "r2", "r3"]
    await transport.close()


async def test_the_limit_of_a_message_is_that_of_each_event_in_a_batch() -> None:
    transport, probe, tokens = await soon("it is asked", asking("r1", "r2", max_message=400))
    large = answer("r2").replace(b'"data":3', b'"data":"%b"' % (b"x" * 400))
    transport.arrived("server", "", pairs((tokens["r1"], answer("r1")), (tokens["r2"], large)))
    assert [(event.request_id, type(event)) for event in probe.events] == [("r1", CallResponded), ("r2", CallFailed)]
    assert transport.malformed == 1
    await transport.close()


async def test_a_batch_that_was_lost_fails_its_calls_alone() -> None:
    broker, registry = MemoryBroker(), OperationRegistry()

    @registry.query("work.echo")
    async def echo(value: int) -> int:
        return value

    def transport() -> BrokerTransport:
        return BrokerTransport(MemoryBrokerConnection(broker), heartbeat=0.05)

    serving, calls = PendingRequestMap(transport()), PendingRequestMap(transport())
    async with serving, calls, CallHandler(registry, serving, anonymous=LOCAL_IDENTITY):
        lost: list[bytes] = []

        def lose(message: bytes) -> bool:
            lost.extend([message] if message.startswith(b"[") and not lost else [])
            return bool(lost) and message is lost[0]

        broker.loses = lose
        made = [calls.call("work.echo", {"value": value}) for value in range(40)]
        results = await soon("all end", asyncio.gather(*made, return_exceptions=True))
        failed = [each.code for each in results if isinstance(each, CallError)]
        assert set(failed) == {ErrorCode.UNAVAILABLE}
        assert len(failed) == len(json.loads(lost[0])) < 40
        assert (await calls.call("work.echo", {"value": 7})).data == 7


@pytest.mark.parametrize("kind", ["nats", "redis"])
async def test_calls_and_items_over_a_real_broker_share_messages_and_plain_peers_get_single_events(
    kind: str, nats_server: NatsServer, redis_server: RedisServer
) -> None:
    registry, prefix = OperationRegistry(), f"batches-{kind}"

    @registry.query("work.echo")
    async def echo(value: Any) -> Any:
        return value

    @registry.subscription("work.count")
    async def count(to: int, context: Context) -> Any:
        for number in range(to):
            yield number

    def transport() -> BrokerTransport:
        if kind == "nats":
            return NatsTransport(nats_server.url, prefix=prefix)
        return RedisTransport(redis_server.url, prefix=prefix)

    async with PendingRequestMap(transport()) as serving, CallHandler(registry, serving, anonymous=LOCAL_IDENTITY):
        async with PendingRequestMap(transport()) as calls:
            end, seen = cast("Any", calls.transport), Counter[bytes]()

            def watch(sender: str, token: str, message: bytes) -> None:
                seen[message[:1]] += 1
                end.arrived(sender, token, message)

            end.connection._listener = _Watched(end, watch)
            values = [number if number % 10 else "x" * 5000 for number in range(200)]
            made = [calls.call("work.echo", {"value": value}) for value in values]
            assert [each.data for each in await soon("all end", asyncio.gather(*made))] == values
            items = [item.data async for item in calls.subscribe("work.count", {"to": 500})]
            assert items == list(range(500))
            assert seen[b"["] >= 5, "batches arrived"
            assert sum(seen.values()) < 400, "of 700 events"
        if kind == "nats":
            open_end: Any = nats_end(nats_server.url, prefix=prefix)
        else:
            open_end = redis_end(redis_server.url, "0123456789abcdef", prefix=prefix)
        async with open_end as plain:
            for number in range(20):
                request = CallRequested(request_id=f"r{number}", operation_id="work.echo", input={"value": number})
                plain.connection.request("work.echo", f"token{number}", encode_event(request))
            await plain.log.until(lambda: len(plain.log.arrivals) >= 20)
            single = [msgspec.json.decode(message)["output"]["data"] for message in plain.log.messages]
            assert sorted(single) == list(range(20))
            assert {token for _, token, _ in plain.log.arrivals} == {f"token{number}" for number in range(20)}


class _Watched:
    """A listener with a filter for messages to this end."""

    def __init__(self, transport: Any, arrived: Any) -> None:
        self._transport, self.arrived = transport, arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
