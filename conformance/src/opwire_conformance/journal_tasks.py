"""The journal contract of tasks: how they are submitted, claimed, renewed and released.

A task whose worker died is a suspect. Only a task that was alone with its worker is blamed for the loss, so suspects
are claimed one at a time.
"""

import asyncio
import time
from collections.abc import Callable

from opwire.durable.journal import Claim, Journal, Outcome, Task
from opwire.errors import ErrorCode
from opwire_conformance.harness import PATIENCE, Harness, expect, refused, soon

Connect = Callable[[], Journal]
"""Returns a fresh end of the same journal, not started."""

LONG = 60.0
"""A lease that outlasts every check, in seconds."""
SHORT = 0.3
"""A lease that expires soon, in seconds."""


class JournalHarness(Harness[Journal]):
    """Connects the ends of a journal."""

    async def end(self) -> Journal:
        """Connect an end of the journal."""
        journal = self._connect()
        self._stack.push_async_callback(journal.close)
        await journal.start()
        return journal

    def task(
        self, key: str, operation: str = "do", *, request: bytes = b'{"no": "matter"}', fingerprint: str = "f1"
    ) -> Task:
        """Return a task of this check."""
        return Task(
            key=f"{self._namespace} {key}",
            operation_id=self.id(operation),
            request=request,
            fingerprint=fingerprint,
            submitted=round(time.time() * 1000),
        )

    def outcome(
        self, claim: Claim, event: bytes = b'{"done": true}', *, dead_letter: bool = False, age: int = 0
    ) -> Outcome:
        """Return an outcome, recorded `age` milliseconds ago."""
        return Outcome(
            key=claim.task.key,
            operation_id=claim.task.operation_id,
            event=event,
            attempts=claim.attempt,
            recorded=round(time.time() * 1000) - age,
            dead_letter=dead_letter,
        )

    async def claim(self, journal: Journal, operation: str = "do", *, lease: float = LONG) -> Claim:
        """Claim the next task, with a timeout."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            claims = await soon("claim returns", journal.claim([self.id(operation)], lease=lease, wait=0.2))
            if claims:
                return claims[0]
        raise AssertionError(f"no task could be claimed within {PATIENCE:g} s")

    async def submitted(self, journal: Journal, key: str, operation: str = "do", *, lease: float = LONG) -> Claim:
        """Submit a task, and claim it."""
        await journal.submit(self.task(key, operation))
        return await self.claim(journal, operation, lease=lease)

    async def nothing(self, journal: Journal, *, wait: float = 0.0) -> None:
        """Check that no task can be claimed."""
        end = time.monotonic() + wait
        while True:
            remaining_seconds = max(0.0, end - time.monotonic())
            claims = await soon(
                "claim returns", journal.claim([self.id()], lease=LONG, wait=remaining_seconds, limit=9)
            )
            expect(not claims, f"{[claim.task.key for claim in claims]} could be claimed, and should not")
            if not remaining_seconds:
                return


_MANY = 60
ODD = ('línea\u2028 " \\ 🜚', "a:b.c*>", " ", "x" * 256)
"""Keys and names with unusual characters."""


async def tasks_are_claimed_as_they_were_submitted(harness: JournalHarness) -> None:
    """Submit and claim at different ends; every field decodes to the same value."""
    submitter, worker = await harness.end(), await harness.end()
    for number, odd in enumerate(ODD):
        task = harness.task(odd, odd, request=bytes(range(256)) * number, fingerprint=odd)
        expect(await submitter.submit(task) is None, "a new task has an outcome")
        claim = await harness.claim(worker, odd)
        expect(claim.task == task, f"submitted {task}, claimed {claim.task}")
        expect((claim.attempt, claim.lease) == (1, LONG), f"a first attempt, for {LONG} s, was claimed as {claim}")


async def a_known_key_is_the_same_task(harness: JournalHarness) -> None:
    """Submit a key at two ends, before and after it is claimed; there is one task."""
    one, other = await harness.end(), await harness.end()
    task = harness.task("same")
    await asyncio.gather(*(end.submit(task) for end in (one, other) * 5))
    claim = await harness.claim(one)
    await other.submit(task)
    await harness.nothing(other)
    expect(claim.attempt == 1, f"the first attempt is counted as {claim.attempt}")


async def a_known_key_stands_for_one_call(harness: JournalHarness) -> None:
    """Submit a key with another fingerprint; it is rejected while the task is queued, and after it has ended."""
    journal = await harness.end()
    task, other = harness.task("same"), harness.task("same", fingerprint="f2")
    await journal.submit(task)
    await refused("another call with the same key", journal.submit(other), ErrorCode.VALIDATION_ERROR)
    claim = await harness.claim(journal)
    expect(claim.task == task, f"a call that was refused has become the task {claim.task}")
    await journal.record(claim, harness.outcome(claim))
    await refused("another call with the same key", journal.submit(other), ErrorCode.VALIDATION_ERROR)


async def one_worker_has_a_task(harness: JournalHarness) -> None:
    """Claim many tasks at three ends at once; each is claimed exactly once."""
    submitter = await harness.end()
    workers = [await harness.end() for _ in range(3)]
    tasks = [harness.task(f"{number}") for number in range(_MANY)]
    claimed: list[Claim] = []

    async def work(journal: Journal) -> None:
        while len(claimed) < _MANY:
            claims = await journal.claim([harness.id()], lease=LONG, wait=0.2, limit=4)
            expect(len(claims) <= 4, f"{len(claims)} tasks were claimed at once, of 4 at most")
            claimed.extend(claims)

    async with asyncio.TaskGroup() as group:
        working = [group.create_task(work(worker)) for worker in workers]
        await asyncio.gather(*map(submitter.submit, tasks))
        await soon("all tasks are claimed", asyncio.wait(working))
    keys = sorted(claim.task.key for claim in claimed)
    expect(keys == sorted(task.key for task in tasks), f"{len(tasks)} tasks were claimed {len(keys)} times")


async def the_oldest_goes_first(harness: JournalHarness) -> None:
    """Claim tasks of one operation at one worker; they are returned in the order of submission."""
    journal = await harness.end()
    tasks = [harness.task(f"{number}") for number in range(20)]
    for task in tasks:
        await journal.submit(task)
    claimed = [(await harness.claim(journal)).task.key for _ in tasks]
    expect(claimed == [task.key for task in tasks], f"the tasks were claimed as {claimed}")


async def only_the_named_operations_are_claimed(harness: JournalHarness) -> None:
    """Claim several operations at once; tasks of other operations stay in the queue."""
    journal = await harness.end()
    for operation in ("a", "b", "c", "a"):
        await journal.submit(harness.task(f"{operation} {time.monotonic_ns()}", operation))
    claims: list[Claim] = []
    while len(claims) < 3:
        claimable_ids = [harness.id("a"), harness.id("never"), harness.id("b")]
        new = await soon("the tasks are claimed", journal.claim(claimable_ids, lease=LONG, wait=1, limit=9))
        expect(bool(new), f"only {len(claims)} tasks of 3 could be claimed")
        claims += new
    claimed_ids = sorted(claim.task.operation_id for claim in claims)
    expect(claimed_ids == [harness.id("a"), harness.id("a"), harness.id("b")], f"tasks of {claimed_ids} were claimed")


async def a_claim_waits_for_a_task(harness: JournalHarness) -> None:
    """Submit while a worker waits; it is claimed at once, and a `claim` without tasks returns at its timeout."""
    submitter, worker = await harness.end(), await harness.end()
    await harness.nothing(worker, wait=0.2)
    for number in range(5):
        waiting = asyncio.create_task(harness.claim(worker))
        await asyncio.sleep(0.05 * number)
        began = time.monotonic()
        await submitter.submit(harness.task(f"{number}"))
        await waiting
        took = time.monotonic() - began
        expect(took < 1.0, f"a worker that waited was given a task after {took:.2g} s")


async def a_lost_worker_loses_its_tasks(harness: JournalHarness) -> None:
    """Let a lease expire; the task is claimed again, and its attempts are counted."""
    journal, dying = await harness.end(), await harness.end()
    await journal.submit(harness.task("orphan"))
    first = await harness.claim(dying, lease=SHORT)
    await dying.close()
    again = await harness.claim(journal, lease=SHORT)
    expect(again.attempt == 2, f"the second attempt is counted as {again.attempt}")
    third = await harness.claim(journal)
    expect(third.attempt == 3, f"the third attempt is counted as {third.attempt}")
    expect(first.task == again.task == third.task, f"the task came back as {third.task}")


async def a_lease_is_as_long_as_its_claim_says(harness: JournalHarness) -> None:
    """Claim with short and long leases; a worker with short leases does not take a task with a long one."""
    patient, hasty = await harness.end(), await harness.end()
    await harness.submitted(patient, "long")
    await patient.submit(harness.task("short"))
    await harness.claim(hasty, lease=SHORT)
    again = await harness.claim(hasty, lease=SHORT)
    expect(again.task.key == harness.task("short").key, "a task was claimed again before its lease was over")
    end = time.monotonic() + 2 * SHORT
    while time.monotonic() < end:
        for claim in await hasty.claim([harness.id()], lease=SHORT, wait=SHORT):
            expect(claim.task.key == again.task.key, "a task was claimed again before its lease was over")


async def a_renewed_lease_is_kept(harness: JournalHarness) -> None:
    """Renew a lease beyond its original expiry."""
    worker, other = await harness.end(), await harness.end()
    lease = 3 * SHORT
    claim = await harness.submitted(worker, "long", lease=lease)

    async def renew() -> None:
        while True:
            await asyncio.sleep(lease / 8)
            expect(await worker.renew(claim), "a lease that was renewed in time was lost")

    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(renew())
        await harness.nothing(other, wait=1.5 * lease)
        renewing.cancel()
    again = await harness.claim(other)
    expect(again.attempt == 2, f"renewing a lease was counted as an attempt: {again.attempt}")


async def a_lost_lease_cannot_be_renewed(harness: JournalHarness) -> None:
    """Renew an expired lease after the task was claimed again, by another end and by the same."""
    one, other = await harness.end(), await harness.end()
    first = await harness.submitted(one, "lost", lease=SHORT)
    second = await harness.claim(other, lease=SHORT)
    third = await harness.claim(other, lease=SHORT)
    for end, claim in ((one, first), (other, second)):
        expect(not await end.renew(claim), f"attempt {claim.attempt} renewed a lease that attempt 3 has")
    expect(await other.renew(third), "the worker that has the lease cannot renew it")


async def a_released_task_comes_back_after_its_delay(harness: JournalHarness) -> None:
    """Release a task with a delay; the claim ends, and the task is queued again after the delay, or at once without."""
    one, other = await harness.end(), await harness.end()
    claim = await harness.submitted(one, "later")
    began = time.monotonic()
    await one.release(claim, 0.6)
    expect(not await one.renew(claim), "a lease was renewed after the task was released")
    again = await harness.claim(other)
    waited = time.monotonic() - began
    expect(waited > 0.55, f"a task that was released for 0.6 s came back after {waited:.3g} s")
    expect((again.attempt, again.task) == (2, claim.task), f"{claim} came back as {again}")
    await harness.nothing(await harness.end())
    await other.release(again, 0)
    third = await harness.claim(one)
    expect((third.attempt, third.task) == (3, claim.task), f"{claim} came back as {third}")


async def a_lost_lease_releases_nothing(harness: JournalHarness) -> None:
    """Release a task without its lease; it stays with the current claim, or ended."""
    one, other = await harness.end(), await harness.end()
    first = await harness.submitted(one, "lost", lease=SHORT)
    second = await harness.claim(one, lease=SHORT)
    await one.release(first, LONG)
    expect(await one.renew(second), "a worker released the task of its own later claim")
    third = await harness.claim(other)
    await one.release(second, 0)
    await harness.nothing(await harness.end())
    await other.record(third, harness.outcome(third))
    await other.release(third, 0)
    await harness.nothing(await harness.end())


async def tasks_outlive_their_submitters(harness: JournalHarness) -> None:
    """Close the end that submitted a task; another end claims it."""
    submitter = await harness.end()
    await submitter.submit(harness.task("left"))
    await submitter.close()
    await harness.claim(await harness.end())


async def a_closed_end_refuses(harness: JournalHarness) -> None:
    """Close an end twice; every method raises UNAVAILABLE, also one that was waiting."""
    journal = await harness.end()
    claim = await harness.submitted(journal, "one")
    waiting = asyncio.create_task(journal.wait(claim.task.key, PATIENCE))
    await asyncio.sleep(0.05)
    for _ in range(2):
        await journal.close()
    await refused("waiting on an end that is closed", waiting)
    await refused("submit on a closed end", journal.submit(harness.task("two")))
    await refused("claim on a closed end", journal.claim([harness.id()], lease=1, wait=0))
    await refused("renew on a closed end", journal.renew(claim))
    await refused("release on a closed end", journal.release(claim, 0))
    await refused("record on a closed end", journal.record(claim, harness.outcome(claim)))
    await refused("outcome on a closed end", journal.outcome(claim.task.key))


async def _past(
    harness: JournalHarness, journal: Journal, *, lease: float = LONG
) -> tuple[Claim, tuple[int, int, int, bool]]:
    claim = await harness.claim(journal, lease=lease)
    return claim, (claim.failures, claim.losses, claim.lone_losses, claim.suspect)


async def losses_are_counted_apart_from_failures(harness: JournalHarness) -> None:
    """Count an expired lease as a loss, and a release as a failure only if it is flagged."""
    journal = await harness.end()
    await journal.submit(harness.task("unlucky"))
    claim, past = await _past(harness, journal, lease=SHORT)
    expect(past == (0, 0, 0, False), f"the first claim of a task has the past {past}")
    for number in (1, 2):
        claim, past = await _past(harness, journal, lease=SHORT if number == 1 else LONG)
        expect(past == (0, number, 0, True), f"{number} losses are counted as {past}")
    await journal.release(claim, 0, failed=True)
    claim, past = await _past(harness, journal)
    expect(past == (1, 2, 0, False), f"2 losses and a failure are counted as {past}")
    await journal.release(claim, 0)
    _, past = await _past(harness, journal)
    expect(past == (1, 2, 0, False), f"2 losses, a failure and a release are counted as {past}")


async def only_a_lone_task_is_blamed(harness: JournalHarness) -> None:
    """Count a loss as a lone one if the last renewal stated that the worker had no other task."""
    journal = await harness.end()
    claim = await harness.submitted(journal, "unlucky", lease=2 * SHORT)
    expect(await journal.renew(claim, alone=True), "a lease could not be renewed in time")
    claim, past = await _past(harness, journal, lease=2 * SHORT)
    expect(past == (0, 1, 1, True), f"a loss alone is counted as {past}")
    expect(await journal.renew(claim, alone=True) and await journal.renew(claim), "a lease could not be renewed")
    claim, past = await _past(harness, journal, lease=2 * SHORT)
    expect(past == (0, 2, 1, True), f"a loss alone, and one with others, are counted as {past}")
    expect(await journal.renew(claim, alone=True), "a lease could not be renewed in time")
    await journal.release(claim, 0)
    claim, past = await _past(harness, journal, lease=SHORT)
    expect(past == (0, 2, 1, True), f"a task that was alone and was released has the past {past}")
    _, past = await _past(harness, journal)
    expect(past == (0, 3, 1, True), f"an attempt counts as alone because an earlier one was: {past}")


async def _lost(harness: JournalHarness, journal: Journal, *keys: str) -> set[str]:
    """Submit and claim tasks with short leases that are not renewed. Return their keys."""
    for key in keys:
        await journal.submit(harness.task(key))
    return {(await harness.claim(journal, lease=4 * SHORT)).task.key for _ in keys}


async def _claim_all(harness: JournalHarness, journal: Journal, number: int, *, suspects: bool = True) -> list[Claim]:
    """Claim this many tasks, in batches."""
    claimed: list[Claim] = []
    end = time.monotonic() + PATIENCE
    while len(claimed) < number:
        expect(time.monotonic() < end, f"{len(claimed)} tasks of {number} could be claimed")
        claims = await soon(
            "claim returns", journal.claim([harness.id()], lease=LONG, wait=0.2, limit=9, suspects=suspects)
        )
        together = [claim.task.key for claim in claims if claim.suspect]
        expect(len(together) <= int(suspects), f"the suspects {together} were claimed with suspects={suspects}")
        claimed += claims
    return claimed


async def suspects_come_one_at_a_time(harness: JournalHarness) -> None:
    """Lose several tasks with their worker; `claim` returns at most one of them, beside other tasks."""
    journal, other = await harness.end(), await harness.end()
    lost = await _lost(harness, journal, "a", "b", "c", "d")
    for number in range(3):
        await journal.submit(harness.task(f"{number}"))
    claimed = await _claim_all(harness, other, 7)
    suspect_keys = sorted(claim.task.key for claim in claimed if claim.suspect)
    expect(suspect_keys == sorted(lost), f"{sorted(lost)} were lost, and {suspect_keys} were claimed as suspects")


async def suspects_can_be_left_out(harness: JournalHarness) -> None:
    """Claim without suspects; they stay in the queue for the next worker that accepts one."""
    journal, other = await harness.end(), await harness.end()
    lost = await _lost(harness, journal, "a", "b", "c")
    await journal.release(await harness.claim(journal), 0)
    for number in range(3):
        await journal.submit(harness.task(f"{number}"))
    await _claim_all(harness, other, 3, suspects=False)
    again = {claim.task.key for claim in await _claim_all(harness, other, 3)}
    expect(again == lost, f"of {sorted(lost)}, {sorted(again)} came back")


async def a_suspect_is_cleared_by_a_failure(harness: JournalHarness) -> None:
    """Release a suspect; only a failure clears it, since a released task may not have started."""
    journal = await harness.end()
    await _lost(harness, journal, "unlucky")
    for _ in range(2):
        claim, past = await _past(harness, journal)
        expect(past == (0, 1, 0, True), f"a suspect that was released has the past {past}")
        await journal.release(claim, 0)
    claim = await harness.claim(journal)
    await journal.release(claim, 0, failed=True)
    _, past = await _past(harness, journal)
    expect(past == (1, 1, 0, False), f"a suspect that has failed has the past {past}")


async def innocents_are_run_beside_poison(harness: JournalHarness) -> None:
    """Claim with workers that die of some tasks; only those become dead letters, and all others are done."""
    journal = await harness.end()
    tasks = [harness.task(name) for name in ("a", "b", "poison c", "d", "poison e", "f")]
    poison = {task.key for task in tasks if "poison" in task.key}
    for task in tasks:
        await journal.submit(task)
    given_up: dict[str, bool] = {}
    for _ in range(2 * len(poison) + 1):
        end = await harness.end()
        await _work_until_death(harness, end, len(tasks), given_up)
        await end.close()
    dead_letters = {key for key, is_dead_letter in given_up.items() if is_dead_letter}
    expect(dead_letters == poison, f"{sorted(poison)} kill their worker, and {sorted(dead_letters)} were given up")
    expect(len(given_up) == len(tasks), f"of {len(tasks)} tasks, {len(given_up)} have an outcome")


async def _work_until_death(harness: JournalHarness, end: Journal, number: int, given_up: dict[str, bool]) -> None:
    """Work until a poisoned task; give up a suspect that was alone with a worker that died."""
    patience = time.monotonic() + PATIENCE
    while len(given_up) < number and time.monotonic() < patience:
        claims = await soon("claim returns", end.claim([harness.id()], lease=SHORT, wait=SHORT, limit=3))
        if any("poison" in claim.task.key for claim in claims if not claim.suspect):
            return
        for claim in sorted(claims, key=lambda claim: claim.suspect):
            if claim.suspect and not claim.lone_losses:
                if not await end.renew(claim, alone=True):
                    continue
                if "poison" in claim.task.key:
                    return
            dead_letter = claim.lone_losses > 0
            await end.record(claim, harness.outcome(claim, dead_letter=dead_letter))
            given_up[claim.task.key] = dead_letter
