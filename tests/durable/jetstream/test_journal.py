"""The journal in JetStream: the contract of journals on a real server, and what it cannot see."""

import asyncio
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import pytest

from opwire.durable import DurableCalls, DurableWorker, waiters
from opwire.durable.jetstream import journal as nats_journal
from opwire.durable.jetstream.journal import NatsJournal
from opwire.durable.jetstream.log import TaskLog, token
from opwire.durable.jetstream.session import JetStreamSession
from opwire.errors import CallError, UsageError
from opwire_conformance.harness import soon
from opwire_conformance.journal import JOURNAL_CONTRACT
from tests.durable.jetstream.journals import (
    ORDER,
    begun,
    claimed,
    drop_acknowledgements,
    entries,
    journal,
    unavailable,
    until,
)
from tests.durable.samples import DEEP, NOT_TEXT, Shop, lists_dead_letters_by_pages, outcome, task
from tests.servers.brokers import HOST, NatsServer
from tests.transports.nats.ends import flushed, plain_client

OwnNats = Callable[..., NatsServer]


@pytest.mark.parametrize("promise", JOURNAL_CONTRACT)
async def test_it_keeps_every_promise_of_the_contract(jetstream_server: NatsServer, promise: str) -> None:
    """The journal in NATS JetStream keeps the whole contract on a real server."""
    await JOURNAL_CONTRACT[promise](lambda: NatsJournal(jetstream_server.url, prefix="contract"))


async def test_calls_are_served_by_workers(jetstream_server: NatsServer) -> None:
    shop = Shop()
    async with journal(jetstream_server) as made, DurableWorker(shop.registry, made):
        durable = DurableCalls(made)
        orders = [durable.call(ORDER, {"article": f"{number}"}, key=f"{number % 20}") for number in range(20)]
        answers = await soon("all are served", asyncio.gather(*orders))
        assert [each.data for each in answers] == [f"{number} is ordered" for number in range(20)]
        again = await durable.call(ORDER, {"article": "7"}, key="7")
        assert again.data == "7 is ordered"
    assert len(shop.runs) == 20


async def test_what_another_program_has_written_hides_no_task_from_an_operator(
    jetstream_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with journal(jetstream_server) as made, plain_client(jetstream_server.url) as stranger:
        claim = await begun(made, task("dead"))
        await made.record(claim, outcome(claim, dead_letter=True))
        root, operation = made.log.names.log("x").removesuffix("x.>"), token(ORDER)
        for number, wrong in enumerate((b"", b"not ours", b"\xc1", b"\x80", DEEP, NOT_TEXT)):
            await stranger.publish(f"{root}odd{number}.task.{operation}", wrong)
            await stranger.publish(f"{root}odd{number}.since.ended.buried.{operation}.-.{number}", wrong)
        await stranger.publish(f"{root}odd.since.ended.buried.{operation}.-.yesterday", b"")
        await stranger.publish(f"{root}{token('doubtful')}.since.held.lease.{operation}", b"not ours")
        await flushed(stranger)
        await made.submit(task("waiting"))
        with pytest.raises(CallError, match="PROTOCOL_ERROR"):
            await made.submit(task("doubtful"))
        assert [each.key async for each in made.dead_letters()] == ["dead"]
        assert [each.key for each in await made.pending(ORDER)] == ["waiting"]
        assert "ignored a dead letter" in caplog.text


async def test_journals_with_another_prefix_do_not_meet(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server, "one") as one, journal(jetstream_server, "one.two") as two:
        await one.submit(task())
        assert await two.claim([ORDER], lease=9, wait=0) == []
        assert await two.outcome("k") is None
        assert len(await one.claim([ORDER], lease=9, wait=0)) == 1


async def test_a_key_stands_for_one_operation(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        await made.submit(task("k", "shop.order", fingerprint="order"))
        with pytest.raises(CallError, match="VALIDATION_ERROR"):
            await made.submit(task("k", "shop.cancel", fingerprint="cancel"))
        assert await made.claim(["shop.cancel"], lease=9, wait=0) == []


# --- outcomes ---------------------------------------------------------------------------------------------------------


async def test_outcomes_expire_and_nothing_else_is_left(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server, keep=1) as made:
        for number in range(20):
            await made.submit(task(f"{number}"))
        dead_letter = await claimed(made)
        await made.record(dead_letter, outcome(dead_letter, dead_letter=True))
        for claim in await made.claim([ORDER], lease=9, wait=1, limit=50):
            await made.renew(claim)
            await made.record(claim, outcome(claim))
        for _ in range(18):
            if claims := await made.claim([ORDER], lease=9, wait=0.1, limit=50):
                for claim in claims:
                    await made.record(claim, outcome(claim))

        async def only_the_dead_letter() -> bool:
            return await entries(made) == [f"{dead_letter.task.key} dead letter"]

        await until(only_the_dead_letter)
        assert await made.outcome("7") is None
        assert await made.submit(task("7", fingerprint="new")) is None
        assert (await claimed(made)).task.fingerprint == "new"


async def test_a_waiter_is_notified_without_polling(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "RECHECK_SECONDS", 1000)
    async with journal(jetstream_server) as made:
        claim = await begun(made, task())
        for _ in range(2):  # the second time without a listener
            waiting = [asyncio.create_task(made.wait("k", 60)) for _ in range(3)]
            await asyncio.sleep(0.05)
            waiting[0].cancel()
            await made.record(claim, outcome(claim))
            assert await soon("they are told", asyncio.gather(*waiting[1:])) == [outcome(claim)] * 2


async def test_every_submitter_of_a_task_is_notified_without_polling(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "RECHECK_SECONDS", 1000)
    listening: set[tuple[JetStreamSession, str]] = set()
    listen, forget = JetStreamSession.listen, JetStreamSession.forget

    def note_listening(session: JetStreamSession, subject: str) -> None:
        listening.add((session, subject))
        listen(session, subject)

    def note_forgotten(session: JetStreamSession, subject: str) -> None:
        listening.discard((session, subject))
        forget(session, subject)

    monkeypatch.setattr(JetStreamSession, "listen", note_listening)
    monkeypatch.setattr(JetStreamSession, "forget", note_forgotten)
    async with journal(jetstream_server, "told") as one, journal(jetstream_server, "told") as other:
        calls = [asyncio.create_task(one.submit(task(key), wait=60)) for key in ("k", "l")]
        claims = sorted([await claimed(other), await claimed(other)], key=lambda claim: claim.task.key)
        calls += [asyncio.create_task(other.submit(task(key), wait=60)) for key in ("k", "l")]
        async with asyncio.timeout(20):
            while len(listening) < 4:  # each peer listens to its own outcomes, and `other` to two keys
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        told = [await other.record(claim, outcome(claim)) for claim in claims]
        assert await soon("they are told", asyncio.gather(*calls)) == told * 2
        assert len(listening) == 2


async def test_an_outcome_with_a_lost_notification_is_found_by_polling(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome in NATS whose news got lost is found by asking again."""
    monkeypatch.setattr(waiters, "RECHECK_SECONDS", 0.1)
    sessions: list[JetStreamSession] = []
    listen = JetStreamSession.listen

    def note_session(session: JetStreamSession, subject: str) -> None:
        sessions.append(session)
        listen(session, subject)

    monkeypatch.setattr(JetStreamSession, "listen", note_session)
    async with journal(jetstream_server) as made:
        claim = await begun(made, task())
        waiting = asyncio.create_task(made.wait("k", 60))
        await asyncio.sleep(0.05)
        sessions[0].forget(made.log.names.republished("k"))
        await made.record(claim, outcome(claim))
        assert await soon("it is found", waiting) == outcome(claim)


async def test_published_messages_that_are_not_outcomes_are_ignored(
    jetstream_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with journal(jetstream_server, "any") as made, plain_client(jetstream_server.url) as stranger:
        claim = await begun(made, task())
        waiting = asyncio.create_task(made.wait("k", 60))
        await asyncio.sleep(0.05)
        for message in (b"", b"nonsense", b"\x81\xabfingerprint\xa1f", DEEP, NOT_TEXT):
            await stranger.publish("any.ended.-.k", message)
        await flushed(stranger)
        await made.record(claim, outcome(claim))
        assert await soon("it is told", waiting) == outcome(claim)
    assert caplog.text.count("ignored a message") == 4


async def test_many_dead_letters_are_listed_page_by_page(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_journal, "_OUTCOMES_PER_PAGE", 3)
    async with journal(jetstream_server) as made:
        await lists_dead_letters_by_pages(made, 3)


async def test_of_concurrent_replays_and_purges_one_succeeds(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server) as made:
        for key, act in (("p", made.purge), ("r", made.replay)):
            claim = await begun(made, task(key))
            await made.record(claim, outcome(claim, dead_letter=True))
            assert sorted(await asyncio.gather(*(act(key) for _ in range(5)))) == [False] * 4 + [True]


# --- what a crash can leave behind ------------------------------------------------------------------------------------


async def test_a_task_that_was_not_removed_after_its_outcome_was_recorded_is_not_run_again(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfinished step in NATS blocks no other, and runs nothing again."""
    async with journal(jetstream_server) as made:
        claim = await begun(made, task(), lease=0.3)
        with monkeypatch.context() as crashing:
            crashing.setattr(TaskLog, "drop", lambda *_: None)
            await made.release(claim, 0)
            claim = await claimed(made, lease=0.3)
            crashing.setattr(TaskLog, "tidy", lambda *_: asyncio.sleep(0))
            drop_acknowledgements(crashing, b"+ACK")
            await made.record(claim, outcome(claim))
        assert await entries(made) == ["k done", "k later", "k lease", "k task"]
        assert await made.claim([ORDER], lease=0.3, wait=1) == []
        assert await entries(made) == ["k done"]


async def test_leftovers_of_a_purged_task_are_ignored(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journal(jetstream_server) as made:
        old = await begun(made, task())
        await made.renew(old)
        with monkeypatch.context() as crashing:
            crashing.setattr(TaskLog, "tidy", lambda *_: asyncio.sleep(0))
            drop_acknowledgements(crashing, b"+ACK")
            await made.record(old, outcome(old))
        assert await entries(made) == ["k done", "k lease", "k task"]
        assert await made.purge("k")
        assert await entries(made) == ["k lease"]
        assert await made.record(old, outcome(old)) is None
        assert not await made.renew(old)
        new = await begun(made, task(fingerprint="new"))
        assert (new.attempt, new.task.fingerprint) == (1, "new")
        assert await made.renew(new)
        assert not await made.renew(old)


async def test_a_replay_that_was_not_finished_is_not_listed_any_more(
    jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> bool:
        return False

    async with journal(jetstream_server) as made:
        claim = await begun(made, task())
        await made.record(claim, outcome(claim, dead_letter=True))
        with monkeypatch.context() as crashing:
            crashing.setattr(TaskLog, "delete", nothing)
            assert await made.replay("k")
        assert await made.outcome("k") is None
        assert [each async for each in made.dead_letters()] == []
        new = await claimed(made)
        await made.record(new, outcome(new, "again"))
        assert await made.outcome("k") == outcome(new, "again")
        assert [each async for each in made.dead_letters()] == []


# --- size -------------------------------------------------------------------------------------------------------------


async def test_what_the_server_does_not_let_through_is_refused_and_the_connection_lives(own_nats: OwnNats) -> None:
    async with journal(own_nats(jetstream=True, max_payload=20_000)) as made:
        with pytest.raises(CallError, match="PAYLOAD_TOO_LARGE") as caught:
            await made.submit(task("large", input="x" * 20_000))
        assert caught.value.details["limit"] == 20_000
        claim = await begun(made, task("small"))
        with pytest.raises(CallError, match="PAYLOAD_TOO_LARGE"):
            await made.record(claim, outcome(claim, "x" * 20_000))
        assert await made.record(claim, outcome(claim)) == outcome(claim)


async def test_a_task_that_is_too_large_to_be_kept_beside_its_error_becomes_a_dead_letter_without_it(
    own_nats: OwnNats, caplog: pytest.LogCaptureFixture
) -> None:
    async with journal(own_nats(jetstream=True, max_payload=20_000)) as made:
        claim = await begun(made, task(input="x" * 15_000))
        dead_letter = outcome(claim, "y" * 10_000, dead_letter=True)
        assert await made.record(claim, dead_letter) == dead_letter
        assert [each async for each in made.dead_letters()] == [dead_letter]
        assert not await made.replay("k")
        assert await made.purge("k")
    assert "too large to be replayed" in caplog.text


# --- servers that are away, refuse, or are not as they should be ------------------------------------------------------


async def test_it_comes_back_when_its_server_does(own_nats: OwnNats) -> None:
    server = own_nats(jetstream=True)
    async with journal(server) as made:
        claim = await begun(made, task())
        waiting = [asyncio.create_task(made.wait("k", 60)), asyncio.create_task(made.claim([ORDER], lease=9, wait=60))]
        await asyncio.sleep(0.05)
        server.kill()
        for each in waiting:
            assert "was lost" in await unavailable(each)
        assert "cannot be reached" in await unavailable(made.submit(task("other")))
        server.start()
        assert await made.renew(claim)
        assert await made.record(claim, outcome(claim)) == outcome(claim)
        assert await made.wait("k", 60) == outcome(claim)
        await begun(made, task("other"))


async def test_a_server_without_jetstream_gets_an_error_with_a_remedy(nats_server: NatsServer) -> None:
    made = NatsJournal(nats_server.url)
    message = await unavailable(made.start())
    assert "JetStream does not answer" in message
    assert "-js" in message
    await made.close()


async def test_an_account_without_jetstream_gets_an_error_with_a_remedy(own_nats: OwnNats) -> None:
    user = {"user": "ann", "password": "s3cret"}
    server = own_nats(jetstream=True, accounts={"SHOP": {"users": [user]}, "SYS": {}}, system_account="SYS")
    made = NatsJournal(server.url, user="ann", password="s3cret")
    message = await unavailable(made.start())
    assert "JetStream" in message
    assert "jetstream: enabled" in message or "-js" in message
    assert "s3cret" not in message
    await made.close()


async def test_a_server_that_is_too_old_is_named(jetstream_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NATS server that cannot keep a journal is named, with what to do about it."""
    monkeypatch.setattr("opwire.durable.jetstream.log._OLDEST_VERSION", (99, 0))
    made = NatsJournal(jetstream_server.url)
    assert "durable calls need 2.11" in await unavailable(made.start())
    await made.close()


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        ({"name": "other", "subjects": ["{}.>"]}, "UNAVAILABLE", "give the journal another prefix"),
        ({"name": "{}_durable", "subjects": ["{}.durable.>"]}, "VALIDATION_ERROR", "its retention, max_msgs"),
        ({"name": "{}_durable", "subjects": ["other"], "retention": "workqueue"}, "VALIDATION_ERROR", "its subjects"),
    ],
)
async def test_a_stream_that_is_not_the_journals_is_left_alone(
    own_nats: OwnNats, config: dict[str, Any], code: str, said: str
) -> None:
    server, prefix = own_nats(jetstream=True), "mine"
    config = {**config, "name": config["name"].format(prefix)}
    config["subjects"] = [subject.format(prefix) for subject in config["subjects"]]
    async with plain_client(server.url) as client:
        await client.jetstream().add_stream(**config)
        made = NatsJournal(server.url, prefix=prefix)
        with pytest.raises(CallError, match=said) as failure:
            await made.start()
        assert failure.value.code == code
        await made.close()
        assert [info.config.name for info in await client.jetstream().streams_info()] == [config["name"]]


async def test_replicas_need_a_cluster(jetstream_server: NatsServer) -> None:
    made = NatsJournal(jetstream_server.url, prefix=token_hex(4), replicas=3)
    assert "`replicas` above 1 is for clusters" in await unavailable(made.start())
    await made.close()


async def test_a_stream_with_other_replicas_or_limits_will_do(jetstream_server: NatsServer) -> None:
    async with journal(jetstream_server, "limited") as made, plain_client(jetstream_server.url) as client:
        info = await client.jetstream().stream_info("limited_durable")
        await client.jetstream().update_stream(info.config, max_bytes=1_000_000)
        async with journal(jetstream_server, "limited", replicas=3) as other:
            await made.submit(task())
            await claimed(other)


# --- permissions ------------------------------------------------------------------------------------------------------


def guarded(
    own_nats: OwnNats, *, publish: dict[str, Any] | None = None, subscribe: dict[str, Any] | None = None
) -> str:
    """The URL of a server that allows a user only this."""
    permissions = {"publish": publish or {"allow": [">"]}, "subscribe": subscribe or {"allow": [">"]}}
    user = {"user": "ann", "password": "s3cret", "permissions": permissions}
    server = own_nats(jetstream=True, authorization={"users": [user]})
    return server.url.replace("nats://", "nats://ann:s3cret@")


async def test_the_permissions_that_are_named_are_enough(own_nats: OwnNats) -> None:
    publish = {"allow": ["$JS.API.>", "$JS.ACK.shop_durable.>", "shop.durable.>"]}
    url = guarded(own_nats, publish=publish, subscribe={"allow": ["shop.in.>", "shop.ended.>"]})
    async with journal(url, "shop") as made:
        claim = await begun(made, task())
        assert await made.renew(claim)
        waiting = asyncio.create_task(made.wait("k", 60))
        await made.record(claim, outcome(claim))
        assert await soon("it is told", waiting) == outcome(claim)
        assert len(await made.info()) == 1


@pytest.mark.parametrize("denied", ["$JS.API.>", "*.durable.>", "$JS.API.CONSUMER.MSG.NEXT.>"])
async def test_what_may_not_be_published_is_known_at_once(own_nats: OwnNats, denied: str) -> None:
    url = guarded(own_nats, publish={"deny": [denied]})

    async def use() -> None:
        async with journal(url) as made:
            await made.submit(task())
            await made.claim([ORDER], lease=9, wait=60)

    message = await unavailable(use())
    assert "permissions of this user" in message
    assert "s3cret" not in message


@pytest.mark.parametrize("denied", ["*.in.>", "*.ended.>"])
async def test_what_may_not_be_heard_is_known_at_once(own_nats: OwnNats, denied: str) -> None:
    url = guarded(own_nats, subscribe={"deny": [denied]})

    async def use() -> None:
        async with journal(url) as made:
            await made.submit(task())
            await made.wait("k", 60)

    assert "ermissions" in await unavailable(use())


# --- making one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"url": "http://s3cret@host"}, {"url": []}, {"prefix": "a b"}])
def test_what_cannot_be_used_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        NatsJournal(**options)
    assert "s3cret" not in str(caught.value)


async def test_an_unreachable_server_is_unavailable_and_the_error_has_no_password() -> None:
    made = NatsJournal(f"nats://ann:s3cret@{HOST}:1")
    assert "s3cret" not in made.name
    assert "s3cret" not in await unavailable(made.start())
    await made.close()


async def test_jetstream_may_have_a_domain(own_nats: OwnNats) -> None:
    server = own_nats(jetstream=True, domain="hub")
    async with journal(server, domain="hub") as made:
        claim = await begun(made, task())
        assert await made.renew(claim)
        assert await made.record(claim, outcome(claim)) == outcome(claim)
    elsewhere = NatsJournal(server.url, domain="nowhere")
    assert "JetStream does not answer" in await unavailable(elsewhere.start())
    await elsewhere.close()


def test_identities_are_believed_only_where_that_is_said() -> None:
    assert not NatsJournal().trusted
    assert NatsJournal(trusted=True).trusted
