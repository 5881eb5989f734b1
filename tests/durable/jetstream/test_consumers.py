"""How tasks are handed out: what the contract of journals cannot see."""

import asyncio
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import pytest

from opwire.durable import Claim
from opwire.durable.jetstream import consumers as jetstream_consumers
from opwire.durable.jetstream.consumers import ConsumerPage, parse_ack
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.jetstream.log import TaskLog, token
from opwire.durable.jetstream.session import JetStreamSession
from opwire.errors import CallError
from opwire_conformance.harness import soon
from tests.durable.jetstream.journals import ORDER, begun, claimed, entries, journal, unavailable, until
from tests.durable.samples import DEEP, NOT_TEXT, outcome, task
from tests.servers.brokers import HOST, NatsServer
from tests.servers.faults import FaultProxy
from tests.servers.leaks import Leaks
from tests.transports.nats.ends import plain_client

OwnNats = Callable[..., NatsServer]
OPERATIONS = ["shop.a", "shop.b", "shop.c"]


async def submit_to_each(made: NatsJournal, times: int = 1) -> None:
    for number in range(times):
        for operation in OPERATIONS:
            await made.submit(task(f"{operation} {number}", operation))


async def test_no_operation_waits_until_another_has_no_more_tasks(jetstream_server: NatsServer) -> None:
    """Operations take turns in NATS."""
    async with journal(jetstream_server) as made:
        await submit_to_each(made, 10)
        taken: list[str] = []
        while len(taken) < 10:
            taken += [claim.task.operation_id for claim in await made.claim(OPERATIONS, lease=9, wait=1)]
        assert set(taken) == set(OPERATIONS)


async def test_what_an_end_has_no_room_for_is_given_to_others_soon_and_not_counted(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_consumers, "_MAX_UNCLAIMED_SECONDS", 0.05)
    prefix = token_hex(4)
    async with journal(jetstream_server, prefix) as full, journal(jetstream_server, prefix) as other:
        await submit_to_each(full)
        first = await full.claim(OPERATIONS, lease=60, wait=1, limit=1)
        rest: list[Claim] = []
        async with asyncio.timeout(4):  # they would come back after five seconds in any case
            while len(rest) < 2:
                rest += await other.claim(OPERATIONS, lease=60, wait=0.1, limit=9)
        assert sorted(claim.task.operation_id for claim in (*first, *rest)) == OPERATIONS
        assert [claim.attempt for claim in (*first, *rest)] == [1, 1, 1]


async def test_an_end_that_closes_gives_back_what_it_has_not_claimed(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_consumers, "ACK_WAIT", 60)  # seconds after which they would come back in any case
    monkeypatch.setattr(jetstream_consumers, "_MAX_UNCLAIMED_SECONDS", 60)
    prefix = token_hex(4)
    async with journal(jetstream_server, prefix) as other:
        async with Leaks(), journal(jetstream_server, prefix) as made:
            await submit_to_each(made)
            first = await soon("one is claimed", made.claim(OPERATIONS, lease=60, wait=20, limit=1))

            async def delivered() -> bool:  # the response follows what was delivered before, on one connection
                return sum(info.claimed for info in await made.info()) == 3

            await until(delivered)
        rest: list[Claim] = []
        while len(rest) < 2:
            rest += await soon("more are claimed", other.claim(OPERATIONS, lease=60, wait=20, limit=9))
        assert sorted(claim.task.operation_id for claim in (*first, *rest)) == OPERATIONS
        assert [claim.attempt for claim in (*first, *rest)] == [1, 1, 1]


async def test_what_arrives_without_a_claim_is_kept_for_the_next_one(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        await submit_to_each(made)
        first = await made.claim(OPERATIONS, lease=9, wait=1, limit=1)
        began = time.monotonic()
        rest: list[Claim] = []
        while len(rest) < 2:
            rest += await made.claim(OPERATIONS, lease=9, wait=1, limit=1)
        assert time.monotonic() - began < jetstream_consumers.ACK_WAIT / 2, "kept, not handed out again"
        assert sorted(claim.task.operation_id for claim in (*first, *rest)) == OPERATIONS


async def test_a_task_that_is_lost_on_the_way_to_an_end_isparse_ack_again(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_consumers, "ACK_WAIT", 0.5)
    prefix = token_hex(4)
    async with FaultProxy(HOST, jetstream_server.port) as proxy, journal(jetstream_server, prefix) as other:
        async with journal(f"nats://{HOST}:{proxy.port}", prefix) as made:
            waiting = asyncio.create_task(made.claim([ORDER], lease=60, wait=60))
            await asyncio.sleep(0.1)
            proxy.stall("down")
            await other.submit(task())

            async def handed_out() -> bool:
                return [info.claimed for info in await other.info()] == [1]

            await until(handed_out)
            proxy.cut()
            await unavailable(waiting)
        assert (await claimed(other)).task == task()


async def test_a_claim_that_is_cancelled_loses_nothing(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        waiting = asyncio.create_task(made.claim([ORDER], lease=9, wait=60))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await made.submit(task())
        assert (await claimed(made)).attempt == 1


async def test_claims_at_the_same_time_do_not_wait_for_each_other(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        patient = asyncio.create_task(made.claim([ORDER], lease=9, wait=60))
        await asyncio.sleep(0.05)
        for wait in (0, 0.05):
            assert await soon("it returns", made.claim([ORDER], lease=9, wait=wait)) == []
        await made.submit(task())
        assert len(await soon("it is claimed", patient)) == 1


async def test_no_operations_have_no_tasks(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        assert await soon("it returns", made.claim([], lease=9, wait=0.01)) == []


# --- what others do to the stream -------------------------------------------------------------------------------------


async def test_foreign_entries_among_the_tasks_are_removed(
    jetstream_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is not a task is removed from the stream in NATS."""
    async with journal(jetstream_server) as made, plain_client(jetstream_server.url) as stranger:
        for key, message in zip("abcd", (b"what is this?", b"\x81\xabfingerprint\xa1f", DEEP, NOT_TEXT), strict=True):
            await stranger.jetstream().publish(made.log.names.task(key, ORDER), message)
        await made.submit(task())
        (claim,) = await made.claim([ORDER], lease=9, wait=1, limit=9)
        assert claim.task == task()

        async def removed() -> bool:
            return await entries(made) == ["k task"]

        await until(removed)
    assert caplog.text.count("removed an invalid task") == 4


async def test_a_worker_that_waits_goes_on_after_its_consumer_or_its_stream_was_deleted(own_nats: OwnNats) -> None:
    server = own_nats(jetstream=True)
    async with journal(server, "shop") as made, plain_client(server.url) as admin:

        async def delete_the_consumer() -> None:
            await admin.jetstream().delete_consumer("shop_durable", token(ORDER))

        async def delete_the_stream() -> None:
            await admin.jetstream().delete_stream("shop_durable")

        for number, delete in enumerate((delete_the_consumer, delete_the_stream)):
            waiting = asyncio.create_task(made.claim([ORDER], lease=9, wait=60))
            await asyncio.sleep(0.05)
            await delete()
            if number:
                with pytest.raises(CallError, match="UNAVAILABLE"):
                    await waiting
                assert await made.claim([ORDER], lease=9, wait=0.05) == []
                waiting = asyncio.create_task(made.claim([ORDER], lease=9, wait=60))
            await until(lambda number=number: submitted(made, f"{number}"))
            assert len(await soon("the task is claimed", waiting)) == 1


async def submitted(made: NatsJournal, key: str) -> bool:
    try:
        return await made.submit(task(key)) is None
    except CallError:  # the stream is being made again
        return False


async def test_too_many_waiters_do_not_affect_the_others(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_consumers, "_MAX_PEERS_PER_OPERATION", 1)
    prefix = token_hex(4)
    async with journal(jetstream_server, prefix) as one, journal(jetstream_server, prefix) as other:
        waiting = asyncio.create_task(one.claim([ORDER], lease=9, wait=60))
        await asyncio.sleep(0.05)
        assert await soon("it returns", other.claim([ORDER], lease=9, wait=0.25)) == []
        await other.submit(task())
        assert len(await soon("the task is claimed", waiting)) == 1


async def test_consumers_of_strangers_are_not_counted(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server, "counted") as made, plain_client(jetstream_server.url) as stranger:
        await begun(made, task())
        await stranger.jetstream().pull_subscribe("counted.durable.*.since.>", "stranger", stream="counted_durable")
        assert [info.operation_id for info in await made.info()] == [ORDER]


async def test_a_silent_consumer_is_given_up(jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_consumers, "RESPONSE_TIMEOUT_SECONDS", 0.1)
    async with FaultProxy(HOST, jetstream_server.port) as proxy, journal(f"nats://{HOST}:{proxy.port}") as made:
        await made.claim([ORDER], lease=9, wait=0)
        proxy.stall("down")
        assert "does not answer" in await unavailable(made.claim([ORDER], lease=9, wait=0.1))
        proxy.flow()
        claim = await begun(made, task())
        assert await made.record(claim, outcome(claim)) == outcome(claim)


async def test_a_pull_request_that_is_lost_with_its_server_is_sent_again(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_consumers, "_MIN_HEARTBEAT_SECONDS", 0.1)
    async with journal(jetstream_server) as made:
        await made.claim([ORDER], lease=9, wait=0)
        send, lost = JetStreamSession.request, list[str]()

        def lose_the_first(session: JetStreamSession, method: str, request: object, token: str = "") -> str:
            if lost:
                return send(session, method, request, token)
            lost.append(method)
            return method

        monkeypatch.setattr(JetStreamSession, "request", lose_the_first)
        await made.submit(task())
        (claim,) = await soon("the task is claimed", made.claim([ORDER], lease=9, wait=60))
        assert claim.attempt == 1


async def test_a_pull_request_stays_in_flight_while_its_consumer_sends_heartbeats(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_consumers, "_MIN_HEARTBEAT_SECONDS", 0.1)
    send, methods = JetStreamSession.request, list[str]()

    def note(session: JetStreamSession, method: str, request: object, token: str = "") -> str:
        methods.append(method)
        return send(session, method, request, token)

    monkeypatch.setattr(JetStreamSession, "request", note)
    async with journal(jetstream_server) as made:
        claiming = asyncio.create_task(made.claim([ORDER], lease=9, wait=60))
        await asyncio.sleep(1)  # ten heartbeats, where two and a half that are missing end a request
        assert len(methods) == 1
        await made.submit(task())
        assert len(await soon("the task is claimed", claiming)) == 1


@pytest.mark.parametrize(
    "ack", ["$JS.ACK.s.c.3.17.9.1700000000000000000.0", "$JS.ACK._.hash.s.c.3.17.9.1700000000000000000.0.random"]
)
def test_an_acknowledgement_is_parsed_in_the_old_form_and_in_the_new(ack: str) -> None:
    assert parse_ack(ack) == (3, 17)


async def test_what_cannot_be_counted_completely_is_not_counted(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster, a consumer without a leader is missing in the list."""

    api = JetStreamSession.api

    async def incomplete(session: JetStreamSession, kind: Any, *request: Any, **options: Any) -> Any:
        return ConsumerPage(total=1) if kind is ConsumerPage else await api(session, kind, *request, **options)

    async with journal(jetstream_server) as made:
        monkeypatch.setattr(JetStreamSession, "api", incomplete)
        assert "has a leader" in await unavailable(made.info())


async def test_a_connection_that_breaks_while_tasks_are_released_is_not_an_error(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> bool:
        raise CallError("UNAVAILABLE", "the connection is gone")

    async with journal(jetstream_server) as made:
        await submit_to_each(made)
        await made.claim(OPERATIONS, lease=60, wait=1, limit=1)
        monkeypatch.setattr(TaskLog, "hold", broken)
