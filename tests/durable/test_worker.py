"""The worker's side of durable calls, in virtual time: leases, retries, draining, and a journal that fails."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from opwire import CallError, Identity, OperationRegistry
from opwire.durable import Claim, DurableCalls, DurableWorker, MemoryJournal, MemoryJournalState, Outcome
from opwire.errors import UsageError
from tests.chaos.virtual_time import run_virtually
from tests.durable.samples import PUBLIC, Shop

TEA = {"article": "tea"}


def unavailable() -> CallError:
    return CallError("UNAVAILABLE", "the journal is away")


class Flaky(MemoryJournal):
    """A journal with methods that fail on command: by raising, or by not returning."""

    def __init__(self, state: MemoryJournalState | None = None) -> None:
        super().__init__(state)
        self.broken: set[str] = set()
        self.silent: set[str] = set()
        self.asked: list[tuple[str, float]] = []
        self.raises: Callable[[], Exception] = unavailable

    async def _fail(self, method: str) -> None:
        self.asked.append((method, asyncio.get_running_loop().time()))
        if method in self.silent:
            await asyncio.Event().wait()
        if method in self.broken:
            raise self.raises()

    async def claim(self, operation_ids: Sequence[str], **options: Any) -> list[Claim]:
        await self._fail("claim")
        return await super().claim(operation_ids, **options)

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        await self._fail("renew")
        return await super().renew(claim, alone=alone)

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        await self._fail("record")
        return await super().record(claim, outcome)

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        await self._fail("release")
        await super().release(claim, delay, failed=failed)

    def times(self, method: str) -> list[float]:
        return [when for name, when in self.asked if name == method]


def virtually(run: Callable[[Shop, Flaky, DurableCalls], Awaitable[None]]) -> None:
    async def scene() -> None:
        async with Flaky() as journal:
            await run(Shop(), journal, DurableCalls(journal))

    run_virtually(scene())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(1000):
        while not condition():
            await asyncio.sleep(0.1)


def now() -> float:
    return asyncio.get_running_loop().time()


# --- what is claimed --------------------------------------------------------------------------------------------------


def test_a_worker_claims_the_mutations_of_its_registry_and_nothing_else() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        for operation_id in ("shop.look", "shop.unknown", "shop.order"):
            await durable.submit(operation_id, TEA if operation_id == "shop.order" else {}, key=operation_id)
        async with DurableWorker(shop.registry, journal):
            assert await durable.outcome("shop.order", timeout=10) is not None
            await asyncio.sleep(60)
            assert {info.operation_id: info.waiting for info in await durable.info()} == {
                "shop.look": 1,
                "shop.unknown": 1,
                "shop.order": 0,
            }

    virtually(run)


def test_what_is_claimed_follows_the_registry() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        registry = OperationRegistry()
        async with DurableWorker(registry, journal):
            await durable.submit("shop.order", TEA, key="k")
            await asyncio.sleep(10)
            assert await durable.outcome("k") is None
            registry.mutation("shop.order", access=PUBLIC)(shop.order)
            assert await durable.outcome("k", timeout=10) is not None
            registry.unregister("shop.order")
            await asyncio.sleep(1)
            await durable.submit("shop.order", TEA, key="later")
            await asyncio.sleep(10)
            assert [info.waiting for info in await durable.info()] == [1]

    virtually(run)


def test_a_worker_can_be_told_which_mutations_to_claim() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.registry.mutation("shop.cancel", access=PUBLIC)(shop.order)
        async with DurableWorker(shop.registry, journal, operations=["shop.cancel"]):
            for operation_id in ("shop.order", "shop.cancel"):
                await durable.submit(operation_id, TEA, key=operation_id)
            assert await durable.outcome("shop.cancel", timeout=10) is not None
            assert await durable.outcome("shop.order", timeout=10) is None

    virtually(run)


@pytest.mark.parametrize("operation_id", ["shop.look", "shop.unknown"])
def test_only_mutations_can_be_named(operation_id: str) -> None:
    with pytest.raises(UsageError, match=f"not {operation_id}"):
        DurableWorker(Shop().registry, MemoryJournal(), operations=["shop.order", operation_id])


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"max_attempts": 0}, {"lease": 0}, {"lease": float("nan")}])
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        DurableWorker(Shop().registry, MemoryJournal(), **options)


class Untrusted(MemoryJournal):
    """A journal to which any peer could have written."""

    trusted = False


async def test_a_worker_that_could_only_refuse_does_not_start() -> None:
    shop = Shop()
    shop.registry.mutation("shop.close")(shop.look)
    options: dict[str, Any]
    for options in ({}, {"operations": ["shop.close"]}):
        with pytest.raises(UsageError, match=r"shop.close.*pass anonymous="):
            await DurableWorker(shop.registry, Untrusted(), **options).start()
    async with Untrusted() as journal:
        for options in ({"operations": ["shop.order"]}, {"anonymous": Identity(id="shop")}):
            async with DurableWorker(shop.registry, journal, **options):
                assert (await DurableCalls(journal).call("shop.order", TEA)).data == "tea is ordered"
    async with DurableWorker(shop.registry, MemoryJournal()):
        pass  # callers within this process are known


def test_no_more_tasks_are_in_flight_than_allowed_and_all_are_done() -> None:
    """A worker never has more tasks in progress than allowed."""

    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.gate = asyncio.Event()
        keys = [await durable.submit("shop.order", {"article": f"{number}"}) for number in range(10)]
        async with DurableWorker(shop.registry, journal, concurrency=3) as worker:
            await asyncio.sleep(5)
            assert (len(shop.runs), len(worker)) == (3, 3)
            assert [(info.waiting, info.claimed) for info in await durable.info()] == [(7, 3)]
            shop.gate.set()
            for key in keys:
                assert await durable.outcome(key, timeout=10) is not None
        assert sorted(shop.runs) == sorted((f"{number}", 1) for number in range(10))

    virtually(run)


# --- what comes of it -------------------------------------------------------------------------------------------------


def test_what_can_be_retried_is_tried_again_later_and_later() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.failures = [unavailable() for _ in range(4)]
        async with DurableWorker(shop.registry, journal, back_off=8, max_back_off=20):
            assert (await durable.call("shop.order", TEA, timeout=1000)).data == "tea is ordered"
        assert shop.runs == [("tea", attempt) for attempt in (1, 2, 3, 4, 5)]
        gaps = [after - before for before, after in zip(journal.times("release"), _runs(journal)[1:], strict=True)]
        for gap, (least, most) in zip(gaps, [(4, 8), (8, 16), (10, 20), (10, 20)], strict=True):
            assert least <= gap <= most + 0.6

    virtually(run)


def _runs(journal: Flaky) -> list[float]:
    """When a task was released or recorded, which is when it was run: the handler takes no time."""
    return sorted([*journal.times("release"), *journal.times("record")])


def test_what_fails_too_often_becomes_a_dead_letter_after_as_many_attempts_as_are_allowed() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.failures = [CallError("RATE_LIMITED", "slow down", retry_after=40) for _ in range(9)]
        began = now()
        async with DurableWorker(shop.registry, journal, max_attempts=3):
            with pytest.raises(CallError, match="slow down") as caught:
                await durable.call("shop.order", TEA, key="k", timeout=1000)
        assert not caught.value.retryable
        assert [attempt for _, attempt in shop.runs] == [1, 2, 3]
        assert now() - began >= 80
        (dead_letter,) = [each async for each in durable.dead_letters()]
        assert (dead_letter.key, dead_letter.attempts) == ("k", 3)

    virtually(run)


def test_the_outcome_of_a_worker_that_was_too_late_does_not_replace_the_first() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        await durable.submit("shop.order", TEA, key="k")
        async with DurableWorker(shop.registry, journal, lease=3) as slow:
            journal.broken = {"record"}
            await until(lambda: shop.runs)
            journal.broken = {"claim", "renew", "record"}
            await asyncio.sleep(3)
            async with MemoryJournal(journal.state) as healthy, DurableWorker(shop.registry, healthy, lease=3):
                first = await healthy.wait("k", 60)
                assert first is not None
                journal.broken = set()
                await until(lambda: not len(slow))
                assert await healthy.outcome("k") == first
        assert [attempt for _, attempt in shop.runs] == [1, 2]

    virtually(run)


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_long_job_is_run_once_while_its_worker_lives() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.gate = asyncio.Event()
        worker, other = (DurableWorker(shop.registry, journal, lease=3) for _ in range(2))
        async with worker, other:
            await durable.submit("shop.order", TEA, key="k")
            await asyncio.sleep(35 * 60)
            assert shop.runs == [("tea", 1)]
            beats = journal.times("renew")
            assert max(after - before for before, after in pairwise(beats)) <= 1.01
            shop.gate.set()
            assert await durable.outcome("k", timeout=10) is not None
        assert shop.runs == [("tea", 1)]

    virtually(run)


def test_a_handler_is_stopped_when_its_lease_is_lost_and_the_task_stays_with_its_new_owner() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.gate = asyncio.Event()
        async with DurableWorker(shop.registry, journal, lease=30) as worker:
            await durable.submit("shop.order", TEA, key="k")
            await until(lambda: shop.runs)
            entry = journal.state.entries["k"]
            journal.state.postpone(entry, 0)  # as if the lease had run out while this process slept
            (claim,) = journal.state.claim(["shop.order"], 1000, 1, now())
            await until(lambda: not len(worker))
            assert shop.stopped == 1
            assert await journal.renew(claim)
            assert len(shop.runs) == 1

    virtually(run)


@pytest.mark.parametrize("trouble", ["broken", "silent"])
def test_a_worker_that_cannot_renew_stops_before_the_lease_is_over(trouble: str) -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.gate = asyncio.Event()
        async with DurableWorker(shop.registry, journal, lease=30):
            for offset in range(12):
                before = shop.stopped
                await asyncio.sleep(5 * offset / 6)  # the beats are ten seconds apart: begin at each moment between two
                setattr(journal, trouble, {"renew"})
                await durable.submit("shop.order", TEA)
                claimed = now()
                await until(lambda before=before: shop.stopped > before)
                assert 10 <= now() - claimed <= 30.1
                setattr(journal, trouble, set())
                await asyncio.sleep(31)
                shop.gate.set()
                await asyncio.sleep(1)
                shop.gate.clear()

    virtually(run)


def test_a_journal_that_fails_for_a_moment_costs_no_lease() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.gate = asyncio.Event()
        async with DurableWorker(shop.registry, journal, lease=30):
            await durable.submit("shop.order", TEA, key="k")
            for _ in range(20):
                journal.broken = {"renew", "claim"}
                await asyncio.sleep(9)
                journal.broken = set()
                await asyncio.sleep(11)
            shop.gate.set()
            assert await durable.outcome("k", timeout=10) is not None
        assert shop.runs == [("tea", 1)]
        assert shop.stopped == 0

    virtually(run)


# --- suspects ---------------------------------------------------------------------------------------------------------


class Yard:
    """A registry with a mutation that records what runs beside what, for as many seconds as its input says."""

    def __init__(self) -> None:
        self.registry = OperationRegistry()
        self.running: set[str] = set()
        self.beside: dict[str, set[str]] = {}  # the last run of each, and what ran at the same time
        self.ends: list[tuple[str, float]] = []
        self.registry.mutation("yard.work", access=PUBLIC)(self.work)

    async def work(self, name: str, seconds: float) -> None:
        self.beside[name] = set(self.running)
        for each in self.running:
            self.beside[each].add(name)
        self.running.add(name)
        try:
            await asyncio.sleep(seconds)
            self.ends.append((name, now()))
        finally:
            self.running.discard(name)


async def lose(state: MemoryJournalState, names: Sequence[str], *, times: int = 1, alone: bool = False) -> None:
    """Have tasks claimed by a worker that dies at once, with all of them in flight, several times."""
    for _ in range(times):
        claims: list[Claim] = []
        while len(claims) < len(names):
            claims += state.claim(["yard.work"], 1, 99, now())
        for claim in claims:
            state.renew(claim, now(), alone=alone)
        await asyncio.sleep(2)


def in_the_yard(run: Callable[[Yard, Flaky, Callable[..., Awaitable[object]]], Awaitable[None]]) -> None:
    async def scene() -> None:
        async with Flaky() as journal:
            durable = DurableCalls(journal)

            async def submit(**seconds: float) -> None:
                for name, each in seconds.items():
                    await durable.submit("yard.work", {"name": name, "seconds": each}, key=name)

            await run(Yard(), journal, submit)

    run_virtually(scene())


async def outcomes(journal: MemoryJournal, *keys: str, timeout: float = 1000) -> list[Outcome | None]:
    return [await journal.wait(key, timeout) for key in keys]


def test_tasks_that_were_lost_together_are_run_one_after_the_other_with_nothing_else_in_flight() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(a=1, b=1, c=1)
        await lose(journal.state, "abc")
        await submit(**{f"sound{number}": 5 for number in range(20)})
        async with DurableWorker(yard.registry, journal, max_attempts=1):
            found = await outcomes(journal, "a", "b", "c", *(f"sound{number}" for number in range(20)))
        assert [each.dead_letter for each in found if each is not None] == [False] * 23
        assert [yard.beside[name] for name in "abc"] == [set()] * 3

    in_the_yard(run)


def test_suspects_cost_others_half_of_the_time_at_most_and_do_not_starve() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        suspects = [f"suspect{number}" for number in range(10)]
        await submit(**dict.fromkeys(suspects, 10.0))
        await lose(journal.state, suspects)
        await submit(**{f"sound{number}": 1 for number in range(2000)})
        async with DurableWorker(yard.registry, journal, concurrency=4) as worker:
            began = now()
            await asyncio.sleep(150)
            done = [name for name, _ in yard.ends if name.startswith("sound")]
            assert len(done) >= 4 * 150 / 2 - 4 * 10  # the last rest has not begun yet, perhaps
            found = await outcomes(journal, *suspects)
            assert all(found)
            assert now() - began <= 10 * (10 + 11) + 20
            assert [yard.beside[name] for name in suspects] == [set()] * 10
            await worker.drain(0)

    in_the_yard(run)


def test_a_suspect_and_long_jobs_do_not_wait_for_each_other_for_ever() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(suspect=10_000)
        await lose(journal.state, ["suspect"])
        await submit(long=10_000)
        async with DurableWorker(yard.registry, journal):
            await until(lambda: yard.running == {"suspect", "long"})
            assert await journal.purge("suspect") is False
            entry = journal.state.entries["suspect"]
            assert (entry.alone, entry.losses, entry.lone_losses) == (
                False,
                1,
                0,
            )  # a task that is lost now is not blamed
            await submit(other=1)
            assert await journal.wait("other", 10) is not None

    in_the_yard(run)


def test_a_suspect_waits_for_what_is_in_flight_but_not_for_what_takes_longer_than_the_quiet_time() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(suspect=1)
        await lose(journal.state, ["suspect"])
        entry = journal.state.entries["suspect"]
        journal.state.postpone(entry, now() + 5)
        await submit(short=10, long=10_000)
        async with DurableWorker(yard.registry, journal):
            await until(lambda: "suspect" in yard.running)
            assert yard.running == {"suspect", "long"}
            assert not entry.alone
            assert await journal.wait("suspect", 10) is not None

    in_the_yard(run)


def test_a_lone_suspect_is_marked_while_it_runs_and_every_renewal_says_so() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(suspect=25)
        await lose(journal.state, ["suspect"])
        entry = journal.state.entries["suspect"]
        async with DurableWorker(yard.registry, journal, lease=3):
            await until(lambda: yard.running)
            for _ in range(20):
                assert entry.alone
                await asyncio.sleep(1)

    in_the_yard(run)


def test_workers_of_one_process_do_not_run_anything_beside_the_suspect_of_another() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(suspect=5)
        await lose(journal.state, ["suspect"])
        async with MemoryJournal() as elsewhere:
            other = DurableCalls(elsewhere)
            workers = [DurableWorker(yard.registry, each) for each in (elsewhere, journal)]
            async with workers[0], workers[1]:
                for number in range(50):
                    name = f"sound{number}"
                    await other.submit("yard.work", {"name": name, "seconds": 1}, key=name)
                    await asyncio.sleep(0.2)
                assert await journal.wait("suspect", 100) is not None
                assert all(await outcomes(elsewhere, *(f"sound{number}" for number in range(50))))
        assert yard.beside["suspect"] == set()

    in_the_yard(run)


@pytest.mark.parametrize(("attempts", "lone"), [(1, 1), (2, 1), (5, 4)])
def test_a_task_that_was_lost_alone_too_often_becomes_a_dead_letter_at_once_regardless_of_others(
    attempts: int, lone: int
) -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(poison=1)
        await lose(journal.state, ["poison"], times=max(1, attempts - lone))
        await lose(journal.state, ["poison"], times=lone, alone=True)
        await submit(long=10_000)
        async with DurableWorker(yard.registry, journal, max_attempts=attempts):
            outcome = await journal.wait("poison", 5)
            assert outcome is not None
            assert (outcome.dead_letter, outcome.attempts) == (True, max(attempts, lone + 1))
            assert "poison" not in yard.beside

    in_the_yard(run)


def test_a_suspect_that_waits_for_its_turn_is_given_back_when_the_worker_closes_and_stays_a_suspect() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(suspect=1)
        await lose(journal.state, ["suspect"])
        await submit(long=10_000)
        entry = journal.state.entries["suspect"]
        journal.state.postpone(entry, now() + 1)
        async with DurableWorker(yard.registry, journal) as worker:
            await until(lambda: len(worker) == 2)
            assert yard.running == {"long"}
        assert (entry.claimed, entry.lost, entry.losses) == (False, True, 1)
        assert "suspect" not in yard.beside

    in_the_yard(run)


def test_a_task_that_many_workers_gave_back_when_they_closed_is_no_dead_letter() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(long=100)
        for _ in range(10):
            async with DurableWorker(yard.registry, journal, max_attempts=2):
                await until(lambda: yard.running)
        async with DurableWorker(yard.registry, journal, max_attempts=2):
            (outcome,) = await outcomes(journal, "long")
        assert outcome is not None
        assert (outcome.dead_letter, outcome.attempts) == (False, 11)

    in_the_yard(run)


def test_a_task_that_was_stopped_because_the_journal_was_away_was_not_lost() -> None:
    async def run(yard: Yard, journal: Flaky, submit: Callable[..., Awaitable[object]]) -> None:
        await submit(long=100)
        entry = journal.state.entries["long"]
        async with DurableWorker(yard.registry, journal, max_attempts=1, lease=30):
            for _ in range(5):
                await until(lambda: yard.running)
                journal.broken = {"renew", "record", "release", "claim"}
                await asyncio.sleep(60)
                assert not yard.running
                journal.broken = {"claim"}  # no other worker is faster
                await until(lambda: not entry.claimed)
                journal.broken = set()
            (outcome,) = await outcomes(journal, "long")
        assert outcome is not None
        assert (outcome.dead_letter, entry.losses) == (False, 0)

    in_the_yard(run)


# --- a journal that fails ---------------------------------------------------------------------------------------------


def test_an_outcome_is_recorded_when_the_journal_is_back_and_the_handler_has_run_once() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        journal.broken = {"record"}
        async with DurableWorker(shop.registry, journal, lease=30):
            await durable.submit("shop.order", TEA, key="k")
            await asyncio.sleep(600)
            journal.broken = set()
            assert await durable.outcome("k", timeout=10) is not None
        assert shop.runs == [("tea", 1)]

    virtually(run)


@pytest.mark.parametrize("error", [unavailable, lambda: OSError("not what a journal should raise")])
def test_a_worker_goes_on_claiming_when_the_journal_is_back(
    error: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        journal.raises = error
        journal.broken = {"claim"}
        async with DurableWorker(shop.registry, journal):
            await durable.submit("shop.order", TEA, key="k")
            await asyncio.sleep(100)
            assert 20 <= len(journal.asked) <= 60  # it waits between two attempts, and not too long
            journal.broken = set()
            assert await durable.outcome("k", timeout=10) is not None

    virtually(run)
    assert [record.levelname for record in caplog.records if "claiming tasks from" in record.message] == ["WARNING"]


@pytest.mark.parametrize("error", [asyncio.CancelledError, lambda: OSError("not what a journal should raise")])
def test_after_any_exception_of_a_journal_the_worker_renews_claims_and_records_when_it_is_back(
    error: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        journal.raises = error
        async with DurableWorker(shop.registry, journal, lease=30):
            for number, method in enumerate(("claim", "renew", "record", "release")):
                if method == "release":
                    shop.failures = [unavailable()]
                if method == "renew":
                    shop.gate = asyncio.Event()
                journal.broken = {method}
                await durable.submit("shop.order", TEA, key=f"{number}")
                await asyncio.sleep(5)
                journal.broken = set()
                if shop.gate is not None:
                    shop.gate.set()
                assert await durable.outcome(f"{number}", timeout=20) is not None
        assert len(shop.runs) == 5

    virtually(run)
    assert "failed and is retried" in caplog.text


def test_a_journal_that_never_takes_a_result_keeps_no_place_of_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """A worker outlasts an outage of its journal, and its results are not lost."""

    class Odd(Flaky):
        async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
            if claim.task.key == "odd":
                raise ValueError("not what a journal should raise")
            return await super().record(claim, outcome)

    async def run() -> None:
        shop = Shop()
        async with Odd() as journal, DurableWorker(shop.registry, journal, concurrency=1):
            durable = DurableCalls(journal)
            await durable.submit("shop.order", {"article": "odd"}, key="odd")
            await durable.submit("shop.order", TEA, key="k")
            assert await durable.outcome("k", timeout=60) is not None
            await asyncio.sleep(100)
            assert len([article for article, _ in shop.runs if article == "odd"]) > 1

    run_virtually(run())
    assert "shop.order with the key 'odd' has no outcome, and is retried" in caplog.text


@pytest.mark.parametrize("asked", [float("inf"), float("nan"), 10**400, "soon"], ids=["inf", "nan", "large", "text"])
def test_the_worker_goes_on_after_any_delay_that_an_error_requests(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No number that a handler, a caller or an entry of a journal gives ends or delays a worker for good."""
    monkeypatch.setattr(
        "opwire.durable.worker._CLAIM_WAIT_SECONDS", 60.0
    )  # a day of polls twice a second takes 10 s of CPU time

    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.failures = [CallError("UNAVAILABLE", retry_after=asked)]
        async with DurableWorker(shop.registry, journal, concurrency=1):
            await durable.submit("shop.order", {"article": "odd"}, key="odd")
            assert (await durable.call("shop.order", TEA, key="k")).data == "tea is ordered"
            assert await durable.outcome("odd", timeout=2 * 24 * 3600) is not None

    virtually(run)


@pytest.mark.parametrize(
    "options",
    [{name: value} for name in ("lease", "back_off", "concurrency", "max_attempts") for value in (float("nan"), -1)]
    + [{"lease": 0}, {"lease": float("inf")}, {"lease": 10**400}],
    ids=lambda options: f"{options!r:.30}",
)
def test_a_worker_with_numbers_that_make_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        DurableWorker(Shop().registry, MemoryJournal(), **options)


@pytest.mark.parametrize("timeout", [float("inf"), 10**400, 1e300], ids=["inf", "large", "float"])
def test_draining_may_take_any_time(timeout: float) -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        async with DurableWorker(shop.registry, journal, back_off=float("inf"), max_back_off=10**400) as worker:
            assert (await durable.call("shop.order", TEA, key="k", timeout=timeout)).data == "tea is ordered"
            assert await worker.drain(timeout)

    virtually(run)


def test_a_result_that_a_journal_refuses_is_logged_and_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        journal.raises = lambda: CallError("VALIDATION_ERROR", "this is no journal any more")
        journal.broken = {"record"}
        async with DurableWorker(shop.registry, journal, lease=3):
            await durable.submit("shop.order", TEA, key="k")
            await asyncio.sleep(0.1)
            journal.broken = set()
            assert await durable.outcome("k", timeout=10) is not None
        assert [attempt for _, attempt in shop.runs] == [1, 2]

    virtually(run)
    assert "shop.order with the key 'k' has no outcome, and is retried" in caplog.text


@pytest.mark.parametrize("dead_letter", [False, True])
def test_a_result_that_is_too_large_for_the_journal_is_an_outcome_that_says_so(dead_letter: bool) -> None:
    """A result that is too large for the journal is recorded as the error that says so, and not run again."""

    class Small(MemoryJournal):
        async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
            if len(outcome.event) > 1000:
                raise CallError("PAYLOAD_TOO_LARGE", "1,000 bytes are let through", {"limit": 1000})
            return await super().record(claim, outcome)

    async def run() -> None:
        registry, runs = OperationRegistry(), 0

        @registry.mutation("shop.order", access=PUBLIC)
        async def order() -> str:  # a thread would take real time
            nonlocal runs
            runs += 1
            if dead_letter:
                raise CallError("UNAVAILABLE", "x" * 2000)
            return "x" * 2000

        async with Small() as journal, DurableWorker(registry, journal, max_attempts=2):
            durable = DurableCalls(journal)
            with pytest.raises(CallError, match=r"the outcome of shop\.order is too large") as failure:
                await durable.call("shop.order", {}, key="k", timeout=100)
            assert (failure.value.code, failure.value.details) == ("PAYLOAD_TOO_LARGE", {"limit": 1000})
            given_up = [each.attempts async for each in journal.dead_letters()]
            assert (runs, given_up) == ((2, [2]) if dead_letter else (1, []))

    run_virtually(run())


# --- leaving ----------------------------------------------------------------------------------------------------------


def test_draining_finishes_what_is_in_flight_and_takes_nothing_new() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.gate = asyncio.Event()
        async with DurableWorker(shop.registry, journal) as worker:
            await durable.submit("shop.order", TEA, key="k")
            await until(lambda: shop.runs)
            assert not await worker.drain(timeout=5)
            draining = asyncio.create_task(worker.drain())
            await asyncio.sleep(1)
            await durable.submit("shop.order", TEA, key="later")
            shop.gate.set()
            assert await draining
            assert await durable.outcome("k") is not None
            await asyncio.sleep(10)
            assert len(shop.runs) == 1

    virtually(run)


def test_closing_stops_what_is_in_flight_and_another_worker_has_it_at_once() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        shop.gate = asyncio.Event()
        async with DurableWorker(shop.registry, journal, lease=1000):
            await durable.submit("shop.order", TEA, key="k")
            await until(lambda: shop.runs)
        assert shop.stopped == 1
        shop.gate.set()
        began = now()
        async with DurableWorker(shop.registry, journal):
            assert await durable.outcome("k", timeout=10) is not None
        assert now() - began < 2
        assert shop.runs == [("tea", 1), ("tea", 2)]

    virtually(run)


def test_what_was_claimed_while_the_worker_closes_is_given_back_without_running() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        worker = await DurableWorker(shop.registry, journal, lease=1000).start()
        await asyncio.sleep(0.1)  # it waits for a task
        closing = asyncio.create_task(worker.close())
        await asyncio.sleep(0)
        await durable.submit("shop.order", TEA, key="k")
        await closing
        assert shop.runs == []
        assert [(info.waiting, info.claimed) for info in await durable.info()] == [(1, 0)]
        await worker.close()
        assert await worker.drain()

    virtually(run)


def test_a_handler_that_ignores_its_cancellation_blocks_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        hurry = asyncio.Event()

        async def stubborn() -> str:
            while not hurry.is_set():
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    hurry_up = asyncio.current_task()
                    assert hurry_up is not None
                    hurry_up.uncancel()
            return "done"

        shop.registry.mutation("shop.stubborn", access=PUBLIC)(stubborn)
        worker = await DurableWorker(shop.registry, journal).start()
        await durable.submit("shop.stubborn", key="k")
        await until(lambda: len(worker))
        began = now()
        await worker.close(grace=2)
        assert now() - began < 3
        hurry.set()
        await asyncio.sleep(2000)

    virtually(run)
    assert "1 tasks are left behind" in caplog.text


def test_a_worker_can_be_started_again() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        worker = DurableWorker(shop.registry, journal)
        for key in ("one", "two"):
            async with worker:
                assert (await durable.call("shop.order", TEA, key=key)).data == "tea is ordered"

    virtually(run)


def test_no_task_is_left_behind() -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        before = asyncio.all_tasks()
        shop.gate = asyncio.Event()
        async with DurableWorker(shop.registry, journal):
            await durable.submit("shop.order", TEA)
            await until(lambda: shop.runs)
        assert asyncio.all_tasks() == before

    virtually(run)


def test_nothing_is_logged_when_nothing_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    async def run(shop: Shop, journal: Flaky, durable: DurableCalls) -> None:
        async with DurableWorker(shop.registry, journal) as worker:
            await durable.call("shop.order", TEA)
            await worker.drain()

    with caplog.at_level(logging.INFO):
        virtually(run)
    assert [record.message for record in caplog.records if record.name.startswith("opwire")] == []
