"""The logs of tasks: the subjects of their entries, and that unseen entries are not overwritten."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from secrets import token_hex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opwire.durable.jetstream.log import EntryBody, JournalSubjects, TaskLog, decode_entry, token
from opwire.errors import CallError, UsageError
from tests.durable.jetstream.journals import ORDER, entries, journal, until
from tests.durable.samples import claim, outcome, task
from tests.servers.brokers import NatsServer
from tests.transports.nats.ends import plain_client

NAMES = JournalSubjects("shop")
TASK = EntryBody(fingerprint="f", task=task())


@asynccontextmanager
async def log(server: NatsServer) -> AsyncIterator[TaskLog]:
    async with journal(server) as made:
        yield made.log


def subject(made: TaskLog, kind: str = "task", operation: str = ORDER) -> str:
    return made.names.log("k", f"{kind}.{token(operation)}")


# --- names ------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=300), st.text(max_size=300))
def test_every_name_has_a_token_of_its_own(one: str, other: str) -> None:
    """Every key and operation has a legal name of its own in NATS."""
    made = token(one)
    assert (made == token(other)) == (one == other)
    assert 0 < len(made) <= 200
    assert made.isascii()
    assert not set(made) & set(" .*>%/\\\r\n\t")
    assert PurePath(made).name == made


def test_a_name_cannot_look_like_that_of_a_longer_one() -> None:
    long = "x" * 300
    hashed = token(long).rpartition("-")[2]
    assert token(chr(int(hashed[:2], 16)) + hashed[2:]) != token(long)


def test_names_are_readable() -> None:
    assert NAMES.task("order-17", "orders.create") == "shop.durable.order-17.task.orders=2Ecreate"
    dead_letter = outcome(claim(task("k", "a.b")), dead_letter=True, recorded=5)
    assert NAMES.ended(dead_letter, "e1") == "shop.durable.k.since.ended.buried.a=2Eb.e1.5"
    assert (NAMES.stream, NAMES.republished("k")) == ("shop_durable", "shop.ended.*.k")


def test_the_kind_of_an_entry_is_in_its_subject() -> None:
    assert NAMES.kind(NAMES.task("since", "c.d")) == "task"
    assert NAMES.kind(NAMES.held("task", "lease", "task")) == "lease"
    assert NAMES.kind(NAMES.held("a.b", "later", "c.d")) == "later"
    assert NAMES.kind(NAMES.ended(outcome(claim()), "-")) == "done"
    assert NAMES.kind(NAMES.ended(outcome(claim(), dead_letter=True), "-")) == "dead letter"


@pytest.mark.parametrize("rest", ["what", "what.is.this", "since.held.what.a", "since.ended.lease.a.-.5"])
def test_a_foreign_event_has_no_kind(rest: str) -> None:
    assert NAMES.kind(NAMES.log("k", rest)) == "gone"


@pytest.mark.parametrize("prefix", ["", "a b", "a.", "a.*", "x" * 300])
def test_a_prefix_that_nats_cannot_use_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="invalid prefix"):
        JournalSubjects(prefix)


# --- writing ----------------------------------------------------------------------------------------------------------


async def test_an_entry_is_written_only_after_the_one_that_was_seen(jetstream_server: NatsServer) -> None:
    async with log(jetstream_server) as made:
        first = await made.add(subject(made), TASK, 0)
        assert first is not None
        for after in (0, first + 1):
            for other in (subject(made), subject(made, "since.held.lease"), subject(made, operation="other")):
                assert await made.add(other, TASK, after) is None
        assert (
            await made.add(subject(made, "since.held.lease"), EntryBody(fingerprint="f", birth=first), first)
            is not None
        )
        assert await made.add(made.names.task("other", ORDER), TASK, 0) is not None


async def test_of_many_concurrent_writers_one_succeeds(jetstream_server: NatsServer) -> None:
    async with log(jetstream_server) as made:
        subjects = [subject(made, operation=f"{number}") for number in range(20)]
        written = await asyncio.gather(*(made.add(each, TASK, 0) for each in subjects))
        assert sum(each is not None for each in written) == 1


async def test_what_is_written_without_limit_stays_and_the_rest_expires(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        await made.log.add(made.log.names.task("for ever", ORDER), TASK, 0)
        await made.log.add(made.log.names.task("for a while", ORDER), TASK, 0, ttl=0.1)

        async def one_is_left() -> bool:
            return await entries(made) == ["for=20ever task"]

        await until(one_is_left)


async def test_what_is_deleted_is_deleted_once(jetstream_server: NatsServer) -> None:
    async with log(jetstream_server) as made:
        first = await made.add(subject(made), TASK, 0)
        assert first is not None
        assert await made.delete(first)
        assert not await made.delete(first)
        assert not await made.delete(first + 100)
        assert await made.last("k") is None


# --- reading ----------------------------------------------------------------------------------------------------------


async def test_the_last_entry_says_how_a_task_stands(jetstream_server: NatsServer) -> None:
    async with log(jetstream_server) as made:
        assert await made.last("k") is None
        birth = await made.add(subject(made), TASK, 0)
        assert birth is not None
        last = await made.last("k")
        assert last is not None
        assert (last.kind, last.seq, last.birth, last.body) == ("task", birth, birth, TASK)
        assert await made.hold("lease", task(), EntryBody(fingerprint="f", birth=birth, holder="me"), birth)
        last = await made.last("k")
        assert last is not None
        assert (last.kind, last.birth, last.body.holder) == ("lease", birth, "me")
        await made.delete(birth)
        last = await made.last("k")
        assert last is not None
        assert last.kind == "gone"


async def test_the_clock_is_that_of_the_server(jetstream_server: NatsServer) -> None:
    async with log(jetstream_server) as made:
        await made.add(subject(made), TASK, 0)
        last, now = await made.last("k"), await made.now()
        assert last is not None
        assert now is not None
        assert 0 <= (now - last.time).total_seconds() < 60


async def test_entries_of_strangers_are_distinguished_from_ours(jetstream_server: NatsServer) -> None:
    async with log(jetstream_server) as made, plain_client(jetstream_server.url) as stranger:
        await stranger.jetstream().publish(made.names.log("k", "what"), b"is this?")
        with pytest.raises(CallError, match="PROTOCOL_ERROR"):
            await made.last("k")


def test_what_is_not_an_entry_cannot_be_read() -> None:
    with pytest.raises(CallError, match="PROTOCOL_ERROR"):
        decode_entry(b"\xc1")


async def test_a_log_that_changes_all_the_time_is_given_up(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_late(*_: object, **__: object) -> None:
        return None

    async with journal(jetstream_server, token_hex(4)) as made:
        await made.submit(task("k"))
        (held,) = await made.claim([ORDER], lease=9, wait=1)
        await made.submit(task("b"))
        (other,) = await made.claim([ORDER], lease=9, wait=1)
        await made.record(other, outcome(other, dead_letter=True))
        monkeypatch.setattr(TaskLog, "add", too_late)
        for act in (made.submit(task("new")), made.record(held, outcome(held)), made.renew(held), made.replay("b")):
            with pytest.raises(CallError, match=r"UNAVAILABLE.*changed by others"):
                await act
