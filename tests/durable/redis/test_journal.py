"""The journal in Redis: faults on the way to the server, its memory and settings. The contract looks at the rest."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex
from ssl import create_default_context
from typing import Any

import pytest
from msgspec.structs import replace

from opwire import CallError, OperationRegistry
from opwire.durable import Claim, DurableCalls, DurableWorker, waiters
from opwire.durable.redis import journal as redis_journal
from opwire.durable.redis.journal import RedisJournal
from opwire.durable.redis.session import RedisSession
from opwire.errors import UsageError
from opwire.transports.redis.connection import Script
from opwire_conformance.harness import soon
from tests.durable.samples import DEEP, NOT_TEXT, PUBLIC, lists_dead_letters_by_pages, outcome, task
from tests.servers.brokers import HOST, RedisServer
from tests.servers.faults import FaultProxy
from tests.servers.leaks import Leaks
from tests.transports.redis.ends import ask, exhaust

OwnRedis = Callable[..., RedisServer]


@asynccontextmanager
async def journal(url: str, prefix: str | None = None, keep: float = 60) -> AsyncIterator[RedisJournal]:
    async with RedisJournal(url, prefix=prefix or token_hex(4), keep=keep) as made:
        yield made


async def claimed(made: RedisJournal, lease: float = 9) -> Claim:
    claims = await made.claim(["shop.order"], lease=lease, wait=1)
    assert len(claims) == 1
    return claims[0]


async def test_durable_calls_over_redis_are_run_once_and_answered_to_all(redis_server: RedisServer) -> None:
    runs: list[int] = []
    registry = OperationRegistry()

    @registry.mutation("shop.order", access=PUBLIC)
    async def order(number: int) -> int:
        runs.append(number)
        return -number

    prefix = token_hex(4)
    async with Leaks(), journal(redis_server.url, prefix) as there, journal(redis_server.url, prefix) as here:
        async with DurableWorker(registry, there), DurableWorker(registry, there, concurrency=2):
            durable = DurableCalls(here)

            async def call(number: int) -> int:
                return (await durable.call("shop.order", {"number": number}, key=f"{number}")).data

            numbers = [*range(200)] * 2
            assert await asyncio.gather(*map(call, numbers)) == [-number for number in numbers]
        assert sorted(runs) == [*range(200)]


# --- the way to the server --------------------------------------------------------------------------------------------


async def test_a_submission_with_a_lost_confirmation_can_be_repeated(redis_server: RedisServer) -> None:
    async with FaultProxy(HOST, redis_server.port) as proxy, journal(f"redis://{HOST}:{proxy.port}") as made:
        proxy.drop_replies = True
        submitting = asyncio.create_task(made.submit(task()))
        name = made.keys.task("k")
        async with asyncio.timeout(5):
            while not ask(redis_server, "EXISTS", name):
                await asyncio.sleep(0.01)
        proxy.cut()
        with pytest.raises(CallError, match="UNAVAILABLE"):
            await soon("it is lost", submitting)
        proxy.flow()
        assert await soon("it is there", made.submit(task())) is None
        assert len(await made.claim(["shop.order"], lease=9, wait=0, limit=9)) == 1


async def test_a_waiter_is_notified_at_once_when_the_connection_is_lost(redis_server: RedisServer) -> None:
    prefix = token_hex(4)
    async with (
        FaultProxy(HOST, redis_server.port) as proxy,
        journal(f"redis://{HOST}:{proxy.port}", prefix) as here,
        journal(redis_server.url, prefix) as there,
    ):
        await here.submit(task())
        waiting = asyncio.create_task(here.wait("k", 60))
        await asyncio.sleep(0.05)
        proxy.cut()
        with pytest.raises(CallError, match="UNAVAILABLE"):
            await soon("it is told", waiting)
        claim = await claimed(there)
        await there.record(claim, outcome(claim))
        assert await soon("it asks again", here.wait("k", 60)) == outcome(claim)


async def test_an_outcome_with_a_lost_notification_is_found_by_polling(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome whose news got lost is found by asking again."""
    monkeypatch.setattr(waiters, "RECHECK_SECONDS", 0.1)
    async with journal(redis_server.url) as made:
        await made.submit(task())
        claim = await claimed(made)
        waiting = asyncio.create_task(made.wait("k", 60))
        async with asyncio.timeout(5):
            while made.peer.encode() not in (value := ask(redis_server, "GET", made.keys.task("k"))):
                await asyncio.sleep(0.001)
        monkeypatch.setattr(waiters.OutcomeWaiters, "resolve", lambda *_: None)
        ask(redis_server, "SET", made.keys.task("k"), value.replace(made.peer.encode(), b""))
        await made.record(claim, outcome(claim))
        assert await soon("it is found", waiting) == outcome(claim)


async def test_a_waiter_for_a_task_that_is_submitted_later_is_notified(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiters, "RECHECK_SECONDS", 0.05)
    async with journal(redis_server.url) as made:
        waiting = asyncio.create_task(made.wait("k", 60))
        await asyncio.sleep(0.01)
        await made.submit(task())
        claim = await claimed(made)
        await made.record(claim, outcome(claim))
        assert await soon("it is told", waiting) == outcome(claim)


async def test_foreign_messages_affect_no_peer(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with journal(redis_server.url) as made:
        await made.submit(task())
        waiting = asyncio.create_task(made.wait("k", 60))
        await asyncio.sleep(0.05)
        for message in (b"", b"nonsense", b"\x91\x81\xa3key\xa1k", b"\x91" + DEEP, b"\x91" + NOT_TEXT):
            ask(redis_server, "PUBLISH", made.keys.channels + made.peer.encode(), message)
        claim = await claimed(made)
        await made.record(claim, outcome(claim))
        assert await soon("it is told", waiting) == outcome(claim)
    assert caplog.text.count("ignored a message") == 5


# --- batches ----------------------------------------------------------------------------------------------------------


async def test_a_key_of_another_type_fails_its_own_call_and_no_other_of_the_batch(redis_server: RedisServer) -> None:
    async with journal(redis_server.url) as made:
        ask(redis_server, "LPUSH", made.keys.task("1"), "not a task")
        submitted = await asyncio.gather(
            *(made.submit(task(f"{number}")) for number in range(3)), return_exceptions=True
        )
        assert [type(each) for each in submitted] == [type(None), CallError, type(None)]
        assert "WRONGTYPE" in str(submitted[1])
        claims = await made.claim(["shop.order"], lease=9, wait=1, limit=9)
        assert [claim.task.key for claim in claims] == ["0", "2"]
        ask(redis_server, "DEL", made.keys.task("2"))
        ask(redis_server, "LPUSH", made.keys.task("2"), "not a task")
        recorded = await asyncio.gather(*(made.record(each, outcome(each)) for each in claims), return_exceptions=True)
        assert recorded[0] == outcome(claims[0])
        assert "WRONGTYPE" in str(recorded[1])
        ask(redis_server, "DEL", made.keys.task("1"), made.keys.task("2"))


async def test_of_two_outcomes_in_one_batch_the_first_stands(redis_server: RedisServer) -> None:
    async with journal(redis_server.url) as made:
        await made.submit(task())
        claim = await claimed(made)
        one, other = outcome(claim), replace(outcome(claim), attempts=2)
        assert await asyncio.gather(made.record(claim, one), made.record(claim, other)) == [one, one]
        assert await made.outcome("k") == one


async def test_a_batch_is_bounded_in_number_and_bytes(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_journal, "_MAX_SCRIPT_BYTES", 10_000)
    async with journal(redis_server.url) as made:
        sizes: list[tuple[int, int]] = []
        run = RedisSession.run

        def counted(
            session: RedisSession, script: Script, keys: Sequence[bytes], *arguments: bytes | str | int
        ) -> Awaitable[Any]:
            sizes.append((len(keys) - 2, sum(len(each) for each in arguments if isinstance(each, bytes))))
            return run(session, script, keys, *arguments)

        monkeypatch.setattr(RedisSession, "run", counted)
        tasks = [task(f"{number}", input="x" * (100 if number else 100_000)) for number in range(250)]
        await asyncio.gather(*map(made.submit, tasks))
        assert sizes[0][0] == 1  # it is too large to be joined
        assert sum(number for number, _ in sizes) == 250
        assert all(number <= 65 and size <= 10_000 for number, size in sizes[1:])
        monkeypatch.undo()
        assert [each.waiting for each in await made.info()] == [250]


async def test_a_caller_that_gives_up_takes_no_other_of_its_batch_along(redis_server: RedisServer) -> None:
    async with journal(redis_server.url) as made:
        submitting = [asyncio.create_task(made.submit(task(f"{number}"))) for number in range(3)]
        await asyncio.sleep(0)
        submitting[0].cancel()
        assert await asyncio.gather(*submitting[1:]) == [None, None]


# --- memory and settings ----------------------------------------------------------------------------------------------


async def test_outcomes_expire_and_nothing_else_is_left(own_redis: OwnRedis) -> None:
    server = own_redis()
    async with journal(server.url, "tidy", keep=0.2) as made:
        for number in range(50):
            await made.submit(task(f"{number}"))
        async with asyncio.timeout(10):
            for claim in await made.claim(["shop.order"], lease=9, wait=1, limit=50):
                await made.record(claim, outcome(claim))
            while await made.outcome("49") is not None:
                await asyncio.sleep(0.01)
        assert await made.submit(task("49", fingerprint="new")) is None
        await made.record(await claimed(made), outcome(await _last(made)))
    async with asyncio.timeout(10):
        while sorted(ask(server, "KEYS", "*")) != [b"tidy:durable:operations", b"tidy:durable:queue:shop.order"]:
            await asyncio.sleep(0.01)
    assert ask(server, "XLEN", "tidy:durable:queue:shop.order") == 0


async def _last(made: RedisJournal) -> Claim:
    return Claim(task=task("49"), attempt=1, lease=9, receipt="")


async def test_without_memory_submissions_are_refused_and_outcomes_are_recorded(own_redis: OwnRedis) -> None:
    server = own_redis()
    async with journal(server.url) as made:
        await made.submit(task())
        claim = await claimed(made)
        exhaust(server)
        with pytest.raises(CallError, match=r"UNAVAILABLE.*memory"):
            await made.submit(task("new"))
        assert await made.renew(claim)
        assert await made.record(claim, outcome(claim)) == outcome(claim)
        assert await made.submit(task()) == outcome(claim)


async def test_without_memory_a_new_task_fails_no_known_one_of_its_batch(own_redis: OwnRedis) -> None:
    server = own_redis()
    async with journal(server.url) as made:
        await made.submit(task())
        claim = await claimed(made)
        await made.record(claim, outcome(claim))
        exhaust(server)
        submitted = (made.submit(each) for each in (task("new"), task(), task("newer")))
        new, known, newer = await asyncio.gather(*submitted, return_exceptions=True)
        assert known == outcome(claim)
        for refused in (new, newer):
            assert isinstance(refused, CallError)
            assert "memory" in refused.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ["append-only"]),
        ({"appendonly": "yes"}, []),
        ({"appendonly": "yes", "policy": "allkeys-lru"}, ["may evict"]),
        ({"appendonly": "yes", "policy": "volatile-ttl"}, []),
    ],
)
async def test_settings_that_endanger_tasks_are_logged(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture, settings: dict[str, str], said: list[str]
) -> None:
    async with journal(own_redis(**settings).url):
        pass
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == len(said)
    assert all(word in warning for word, warning in zip(said, warnings, strict=True))


async def test_a_server_that_does_not_tell_its_settings_will_do(own_redis: OwnRedis) -> None:
    server = own_redis()
    ask(server, "ACL", "SETUSER", "default", "-info")
    async with journal(server.url) as made:
        assert await made.submit(task()) is None


async def test_journals_with_another_prefix_or_database_do_not_meet(redis_server: RedisServer) -> None:
    prefix = token_hex(4)
    async with (
        journal(redis_server.url, prefix) as one,
        journal(redis_server.url) as two,
        journal(f"{redis_server.url}/1", prefix) as three,
    ):
        await one.submit(task())
        for other in (two, three):
            assert await other.claim(["shop.order"], lease=9, wait=0) == []
            assert await other.outcome("k") is None
        assert len(await one.claim(["shop.order"], lease=9, wait=0)) == 1


async def test_many_dead_letters_are_listed_page_by_page(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_journal, "_OUTCOMES_PER_PAGE", 3)
    async with journal(redis_server.url) as made:
        await lists_dead_letters_by_pages(made, 3)


# --- making one -------------------------------------------------------------------------------------------------------


def test_what_is_not_the_url_of_a_redis_server_is_refused() -> None:
    for url, ssl in (("http://secret@host", None), ("redis://host", create_default_context())):
        with pytest.raises(UsageError) as caught:
            RedisJournal(url, ssl=ssl)
        assert "secret" not in str(caught.value)


async def test_an_unreachable_server_is_unavailable_and_the_error_has_no_password() -> None:
    made = RedisJournal(f"redis://:s3cret@{HOST}:1")
    assert "s3cret" not in made.name
    with pytest.raises(CallError, match="UNAVAILABLE") as caught:
        await made.start()
    assert "s3cret" not in str(caught.value)
    await made.close()


def test_identities_are_believed_only_where_that_is_said() -> None:
    assert not RedisJournal().trusted
    assert RedisJournal(trusted=True).trusted


async def test_an_outcome_that_another_program_has_written_is_a_protocol_error_and_hides_no_other(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with journal(redis_server.url) as made:
        for key in ("odd", "good"):
            await made.submit(task(key))
            claim = await claimed(made)
            await made.record(claim, outcome(claim, dead_letter=True))
        for wrong in (b"\xff not ours", DEEP, NOT_TEXT):
            ask(redis_server, "SET", made.keys.task("odd"), b"f\n" + wrong)
            with pytest.raises(CallError, match="PROTOCOL_ERROR: an outcome in the journal is invalid"):
                await made.outcome("odd")
        assert [each.key async for each in made.dead_letters()] == ["good"]
        assert "ignored a dead letter" in caplog.text


async def test_what_another_program_has_written_hides_no_task_from_an_operator(redis_server: RedisServer) -> None:
    async with journal(redis_server.url) as made:
        await made.submit(task("dead"))
        claim = await claimed(made)
        await made.record(claim, outcome(claim, dead_letter=True))
        names, stream = made.keys, made.keys.stream("shop.order")
        ask(redis_server, "ZADD", names.dead_letters("shop.order"), 0, b"\xff\xfe")
        ask(redis_server, "SADD", names.operations, b"\xff\xfe")
        ask(redis_server, "XADD", stream, "*", "other", "fields")
        for entry in (b"", b"\xff", b"1", b"{}\n", b'["x", "f", "never"]\n', b'[1, "f", 1]\n'):
            ask(redis_server, "XADD", stream, "*", "task", entry)
        await made.submit(task("waiting"))
        assert [each.key async for each in made.dead_letters()] == ["dead"]
        assert [each.key for each in await made.pending("shop.order")] == ["waiting"]
        assert {each.operation_id: each.dead_letters for each in await made.info()}["shop.order"] == 2


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), 10**400, -1], ids=lambda value: f"{value!r:.9}")
async def test_a_task_is_released_after_any_requested_delay(redis_server: RedisServer, delay: float) -> None:
    async with journal(redis_server.url) as made:
        await made.submit(task())
        await made.release(await claimed(made), delay)
        (info,) = await made.info()
        assert (info.waiting, info.claimed) == (1, 0)


@pytest.mark.parametrize("keep", [0, -1, float("inf"), float("nan"), 10**400], ids=lambda value: f"{value!r:.9}")
def test_an_invalid_time_to_keep_outcomes_is_rejected(keep: float) -> None:
    with pytest.raises(UsageError, match="keep is"):
        RedisJournal("redis://127.0.0.1:1", keep=keep)


async def test_a_silent_server_does_not_prolong_the_wait_for_an_outcome(own_redis: OwnRedis) -> None:
    server = own_redis()
    async with journal(server.url) as made:
        server.freeze()
        with pytest.raises(CallError, match=r"TIMEOUT: .* has no outcome after 0.1 s"):
            await soon("the call ends", DurableCalls(made).call("shop.order", timeout=0.1))
        server.thaw()
        assert await made.submit(task("k")) is None
