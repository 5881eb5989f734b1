"""Owners of tasks on JetStream: what the contract of journals cannot see."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf, nan
from secrets import token_hex
from typing import Any

import pytest

from opwire import CallError
from opwire.durable import Claim, DurableCalls
from opwire.durable.jetstream.journal import JetStreamReceipt
from opwire.durable.jetstream.log import EntryBody, TaskLog, token
from opwire.durable.jetstream.session import JetStreamSession
from opwire_conformance.harness import soon
from tests.durable.jetstream.journals import ORDER, begun, claimed, drop_acknowledgements, entries, journal
from tests.durable.samples import outcome, task
from tests.servers.brokers import NatsServer
from tests.transports.nats.ends import plain_client

OwnNats = Callable[..., NatsServer]


def test_a_receipt_survives_being_written_down() -> None:
    receipt = JetStreamReceipt(17, "end/3", "-", "$JS.ACK.a.b.1.2.3.4.5")
    claim = Claim(task=task(), attempt=1, lease=9, receipt="17 end/3 - $JS.ACK.a.b.1.2.3.4.5")
    assert JetStreamReceipt.of(claim) == receipt


async def test_a_task_that_is_done_at_the_first_attempt_costs_no_entry_for_its_claim(
    jetstream_server: NatsServer,
) -> None:
    async with journal(jetstream_server) as made:
        claim = await begun(made, task())
        assert await entries(made) == ["k task"]
        await made.record(claim, outcome(claim))
        assert "k done" in await entries(made)


async def test_at_most_one_entry_names_the_owner_of_a_task(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        claim = await begun(made, task())
        for _ in range(3):
            assert await made.renew(claim)
        assert await entries(made) == ["k lease", "k task"]
        await made.release(claim, 0)
        again = await claimed(made)
        await made.release(again, 60)
        await made.info()  # what was sent before has been done
        assert await entries(made) == ["k later", "k task"]


async def test_a_renewed_lease_is_respected_even_if_jetstream_was_not_told_to_wait(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = token_hex(4)
    async with journal(jetstream_server, prefix) as made, journal(jetstream_server, prefix) as other:
        claim = await begun(made, task(), lease=1)
        with monkeypatch.context() as cut_off:
            drop_acknowledgements(cut_off, b"-NAK")
            await asyncio.sleep(0.6)  # most of the lease: JetStream delivers again before the renewed one expires
            began = time.monotonic()
            assert await made.renew(claim)
        again = await claimed(other)
        assert time.monotonic() - began > 0.95
        assert again.attempt == 2
        assert not await made.renew(claim)


async def forget_what_was_handed_out(server: NatsServer, prefix: str) -> None:
    """Delete the consumer: the one that is made instead knows nothing, as after a crash of the server."""
    async with plain_client(server.url) as admin:
        await admin.jetstream().delete_consumer(f"{prefix}_durable", token(ORDER))


async def test_of_two_first_deliveries_of_a_task_one_keeps_it(jetstream_server: NatsServer) -> None:
    """A task has one owner at a time."""
    async with journal(jetstream_server, "twice") as one, journal(jetstream_server, "twice") as other:
        first = await begun(one, task())
        await forget_what_was_handed_out(jetstream_server, "twice")
        second = await claimed(other)
        assert (first.attempt, second.attempt) == (1, 1)
        assert await other.renew(second)
        assert not await one.renew(first)
        await one.release(first, 0)
        assert await other.renew(second)
        assert await other.record(second, outcome(second)) == outcome(second)
        assert await one.record(first, outcome(first, "late")) == outcome(second)


async def test_the_log_is_read_unless_no_end_can_have_claimed_the_task(
    own_nats: Callable[..., NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, looked, since = own_nats(jetstream=True), list[str](), TaskLog.since

    async def noted(log: TaskLog, key: str) -> object:
        looked.append(key)
        return await since(log, key)

    monkeypatch.setattr(TaskLog, "since", noted)
    async with journal(server, "fresh") as one, journal(server, "fresh") as other:
        await one.submit(task("before"))
        await other.claim([ORDER], lease=9, wait=0, limit=1)
        assert looked == ["before"]  # it was there before this end was
        claims = [await begun(one, task("new"), lease=60), await begun(other, task("newer"), lease=60)]
        await one.release(claims[0], 0)
        assert [claim.task.key for claim in await other.claim([ORDER], lease=9, wait=5, limit=9)] == ["new"]
        assert looked == ["before", "new"]
        server.restart()
        async with asyncio.timeout(20), journal(server, "fresh") as third:
            await third.submit(task("after"))
            while "after" not in looked:  # the consumer was restored, and may have forgotten a delivery
                with suppress(CallError):  # the end has yet to notice that its connection is lost
                    await one.claim([ORDER], lease=9, wait=1, limit=9)


async def test_the_log_is_read_in_a_cluster(jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JetStreamSession, "is_local", False)
    async with journal(jetstream_server) as made:
        await begun(made, task("first"))
        monkeypatch.setattr(TaskLog, "since", None)
        with pytest.raises(TypeError):
            await begun(made, task("second"))


async def test_an_invalid_end_in_a_task_does_not_change_the_subject_of_its_outcome(
    jetstream_server: NatsServer,
) -> None:
    async with journal(jetstream_server) as made:
        await made.submit(task("sound"))
        wrong = task("wrong")
        body = EntryBody(fingerprint=wrong.fingerprint, task=wrong, caller="x\r\nPUB y 1\r\nz\r\n")
        assert await made.log.add(made.log.names.task(wrong.key, ORDER), body, 0)
        for claim in await made.claim([ORDER], lease=9, wait=5, limit=2):
            assert await made.record(claim, outcome(claim)) == outcome(claim)
        assert await made.outcome("wrong") is not None


async def test_what_jetstream_has_forgotten_is_known_to_the_log(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = "forgotten"
    async with journal(jetstream_server, prefix) as made:
        done, held, released = [await begun(made, task(key), lease=60) for key in ("done", "held", "released")]
        with monkeypatch.context() as crashing:
            drop_acknowledgements(crashing, b"+ACK")
            await made.record(done, outcome(done))
        assert await made.renew(held)
        await made.release(released, 60)
        await forget_what_was_handed_out(jetstream_server, prefix)
        (claim,) = await made.claim([ORDER], lease=9, wait=1, limit=9)  # the delay is forgotten, too
        assert (claim.task.key, claim.attempt) == ("released", 2)
        assert await made.claim([ORDER], lease=9, wait=0.2, limit=9) == []
        assert await made.renew(held)
        assert "done task" not in await entries(made)


async def test_a_lease_with_an_unconfirmed_renewal_is_kept(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written a second time, after an entry of our own that we do not know of."""
    add, failures = TaskLog.add, iter([True])

    async def lose_the_answer(*args: object, **options: object) -> int | None:
        written = await add(*args, **options)  # pyright: ignore[reportArgumentType]
        return None if next(failures, False) else written

    async with journal(jetstream_server) as made:
        claim = await begun(made, task())
        monkeypatch.setattr(TaskLog, "add", lose_the_answer)
        assert await made.renew(claim)
        assert await made.renew(claim)


async def test_of_several_redeliveries_of_a_task_the_first_claims_it(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = TaskLog.since

    async with journal(jetstream_server) as made:
        claim = await begun(made, task(), lease=0.1)

        async def slow(log: TaskLog, key: str) -> object:
            """Read, and return after another end has written an entry."""
            seen = await since(log, key)
            monkeypatch.setattr(TaskLog, "since", since)
            assert await made.renew(claim)
            return seen

        await asyncio.sleep(0.1)  # the lease expires
        monkeypatch.setattr(TaskLog, "since", slow)
        assert await made.claim([ORDER], lease=9, wait=0.1) == []
        assert (await claimed(made)).attempt == 2


@pytest.mark.parametrize("delay", [inf, nan, 10**400, -1], ids=lambda value: f"{value!r:.9}")
async def test_a_task_is_released_after_any_requested_delay(jetstream_server: NatsServer, delay: float) -> None:
    async with journal(jetstream_server) as made:
        await made.release(await begun(made, task()), delay)
        (info,) = await made.info()
        assert (info.waiting, info.claimed) == (1, 0)


@pytest.mark.parametrize("lease", [nan, -inf])
async def test_a_lease_of_another_program_without_a_valid_time_does_not_block_the_task(
    jetstream_server: NatsServer, lease: float
) -> None:
    async with journal(jetstream_server) as made:
        claim = await begun(made, task(), lease=0.3)
        body = EntryBody(
            fingerprint="f", birth=JetStreamReceipt.of(claim).birth, holder="stranger", attempt=1, lease=lease
        )
        assert await made.log.hold("lease", claim.task, body, JetStreamReceipt.of(claim).birth)
        again = await claimed(made)
        assert (again.attempt, again.losses, again.suspect) == (2, 1, True)


async def test_a_suspect_that_is_not_wanted_costs_no_attempt(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        await begun(made, task(), lease=0.1)
        for _ in range(3):
            assert await made.claim([ORDER], lease=9, wait=0.3, suspects=False) == []
        again = await claimed(made)
        assert (again.attempt, again.losses, again.suspect) == (2, 1, True)


# --- redelivery -------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is sent as acknowledgements of tasks: the first word of each."""
    words: list[bytes] = []
    send = JetStreamSession.send

    def note(self: JetStreamSession, subject: str, payload: bytes, *rest: Any, **more: Any) -> None:
        send(self, subject, payload, *rest, **more)
        if subject.startswith("$JS.ACK."):
            words.append(payload.split(b" ")[0])

    monkeypatch.setattr(JetStreamSession, "send", note)
    return words


async def test_the_redelivery_of_a_task_is_delayed_when_it_is_claimed(
    jetstream_server: NatsServer, sent: list[bytes]
) -> None:
    async with journal(jetstream_server) as made:
        claim = await begun(made, task("k"))
        assert sent == [b"-NAK"]
        assert await made.record(claim, outcome(claim)) == outcome(claim)
        assert sent == [b"-NAK", b"+ACK"]


async def test_a_silent_server_does_not_prolong_the_wait_for_an_outcome(own_nats: OwnNats) -> None:
    server = own_nats(jetstream=True)
    async with journal(server) as made:
        assert await made.submit(task("j"), wait=0.5) is None
        server.freeze()
        durable = DurableCalls(made)
        for operation_id in (ORDER, "shop.other"):
            with pytest.raises(CallError, match=r"TIMEOUT: .* has no outcome after 0.1 s"):
                await soon("the call ends", durable.call(operation_id, timeout=0.1))
        server.thaw()
        assert await made.submit(task("k")) is None
