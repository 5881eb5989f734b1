"""The contract suite of journals.

    @pytest.mark.parametrize("promise", JOURNAL_CONTRACT)
    async def test_my_journal(promise: str) -> None:
        await JOURNAL_CONTRACT[promise](lambda: MyJournal(url))

Each check connects ends of the journal, submits and claims tasks, and closes the ends. It leaves a few tasks behind,
with unique operation ids. Leases have to expire in it, so the whole contract takes some seconds. The checks here look
at outcomes: how they are recorded, awaited, given up, replayed and purged; `journal_tasks` has those of tasks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from opwire.durable.journal import Journal, Outcome
from opwire.errors import ErrorCode
from opwire_conformance import journal_tasks as tasks
from opwire_conformance.harness import expect, named_checks, refused, soon
from opwire_conformance.journal_tasks import LONG, SHORT, Connect, JournalHarness

_AT_ONCE = 20


async def _dead_letter(
    harness: JournalHarness, journal: Journal, key: str, operation: str = "do", age: int = 0
) -> Outcome:
    claim = await harness.submitted(journal, key, operation)
    outcome = harness.outcome(claim, b'{"no": 1}', dead_letter=True, age=age)
    expect(await journal.record(claim, outcome) == outcome, "the outcome of a dead letter was not recorded")
    return outcome


async def an_outcome_is_kept_as_it_was_recorded(harness: JournalHarness) -> None:
    """Record an outcome; every field decodes to the same value, and submitting the task again returns it."""
    journal, other = await harness.end(), await harness.end()
    claim = await harness.submitted(journal, "ended")
    expect(await other.outcome(claim.task.key) is None, "there is an outcome before one was recorded")
    outcome = harness.outcome(claim, bytes(range(256)), age=5)
    expect(await journal.record(claim, outcome) == outcome, "the outcome that stands is not the one that was recorded")
    recorded_outcome = await other.outcome(claim.task.key)
    expect(recorded_outcome == outcome, f"recorded {outcome}, kept {recorded_outcome}")
    returned = await other.submit(claim.task)
    expect(returned == outcome, f"submitting the task again returned {returned}")
    await harness.nothing(other)


async def the_first_outcome_stands(harness: JournalHarness) -> None:
    """Record two outcomes, the first after its lease was lost; the second `record` returns the first outcome."""
    one, other = await harness.end(), await harness.end()
    slow = await harness.submitted(one, "twice", lease=SHORT)
    quick = await harness.claim(other)
    first, second = harness.outcome(slow, b"1"), harness.outcome(quick, b"2")
    expect(await one.record(slow, first) == first, "the first outcome was not recorded")
    stands = await other.record(quick, second)
    expect(stands == first, f"after {first} was recorded, the second record returned {stands}")
    expect(await other.outcome(slow.task.key) == first, "the second outcome took the place of the first")


async def outcomes_that_are_recorded_together_end_their_own_tasks(harness: JournalHarness) -> None:
    """Record many outcomes in one turn of the event loop; one of the tasks has ended before, and one is gone."""
    worker, other = await harness.end(), await harness.end()
    ended_claim = await harness.submitted(worker, "ended")
    purged_claim = await harness.submitted(worker, "gone")
    stands = harness.outcome(ended_claim, b"first")
    expect(await worker.record(ended_claim, stands) == stands, "the outcome was not recorded")
    await worker.record(purged_claim, harness.outcome(purged_claim))
    expect(await other.purge(purged_claim.task.key), "a task that has ended was not purged")
    claims = [await harness.submitted(worker, f"{number}", f"do{number % 2}") for number in range(_AT_ONCE)]
    outcomes = [harness.outcome(claim, claim.task.key.encode()) for claim in claims]
    returned = await asyncio.gather(
        worker.record(ended_claim, harness.outcome(ended_claim, b"second")),
        *map(worker.record, claims, outcomes),
        worker.record(purged_claim, harness.outcome(purged_claim)),
    )
    expect(returned == [stands, *outcomes, None], f"{[stands, *outcomes, None]} were returned as {returned}")
    for outcome in (stands, *outcomes):
        recorded_outcome = await other.outcome(outcome.key)
        expect(recorded_outcome == outcome, f"recorded {outcome}, kept {recorded_outcome}")
    for operation in ("do", "do0", "do1"):
        expect(await other.pending(harness.id(operation)) == [], f"a task of {operation} has not ended")


async def an_ended_task_stays_ended(harness: JournalHarness) -> None:
    """End a task; it is not claimed again, and any other lease of it is lost."""
    one, other = await harness.end(), await harness.end()
    slow = await harness.submitted(one, "ended", lease=SHORT)
    quick = await harness.claim(other, lease=SHORT)
    await one.record(slow, harness.outcome(slow))
    expect(not await other.renew(quick), "the lease of a task that has ended was renewed")
    await harness.nothing(one, wait=2 * SHORT)


async def a_released_task_can_still_end(harness: JournalHarness) -> None:
    """Record the outcome of a released task, from a worker that had lost it; the task is not claimed again."""
    one, other = await harness.end(), await harness.end()
    slow = await harness.submitted(one, "ended", lease=SHORT)
    await other.release(await harness.claim(other), SHORT)
    outcome = harness.outcome(slow)
    expect(await one.record(slow, outcome) == outcome, "the outcome was not recorded")
    await harness.nothing(other, wait=2 * SHORT)


async def every_waiting_caller_gets_the_outcome(harness: JournalHarness) -> None:
    """Wait for an outcome at several ends, several times at one, before and after it is recorded."""
    worker, one, other = [await harness.end() for _ in range(3)]
    claim = await harness.submitted(worker, "awaited")
    key = claim.task.key
    waiting = [asyncio.create_task(end.wait(key, LONG)) for end in (one, one, other, worker)]
    await asyncio.sleep(0.05)
    outcome = harness.outcome(claim, b"\x00\xff")
    await worker.record(claim, outcome)
    returned = await soon("every waiting caller gets the outcome", asyncio.gather(*waiting))
    expect(returned == [outcome] * 4, f"{outcome} was returned as {returned}")
    expect(await soon("wait returns", one.wait(key, LONG)) == outcome, "a later wait does not return it")


async def waiting_ends_in_time(harness: JournalHarness) -> None:
    """Wait for a missing outcome or an unknown task; `wait` returns None at its timeout, and the outcome later."""
    journal, other = await harness.end(), await harness.end()
    claim = await harness.submitted(journal, "slow")
    for key in (claim.task.key, harness.task("unknown").key):
        returned = await soon("wait returns", other.wait(key, 0.1))
        expect(returned is None, f"there was no outcome, and {returned} was returned")
    await journal.record(claim, harness.outcome(claim))
    returned = await soon("wait returns", other.wait(claim.task.key, LONG))
    expect(returned is not None, "a second wait does not return the outcome")


async def a_submission_waits_for_the_outcome(harness: JournalHarness) -> None:
    """Submit tasks at once at two ends, and record their outcomes at a third; each caller gets its own, in time."""
    worker, one, other = [await harness.end() for _ in range(3)]
    returned = await soon("submit returns", one.submit(harness.task("slow", "other"), wait=1))
    expect(returned is None, f"there was no outcome, and {returned} was returned")
    keys = [f"{number}" for number in range(_AT_ONCE)]
    callers = [asyncio.create_task(end.submit(harness.task(key), wait=LONG)) for key in keys for end in (one, other)]
    claims = [await harness.claim(worker) for _ in keys]
    outcomes = {claim.task.key: harness.outcome(claim, claim.task.key.encode()) for claim in claims}
    conflict = harness.task(keys[0], fingerprint="f2")
    wrong = refused("another call with the same key", one.submit(conflict, wait=LONG), ErrorCode.VALIDATION_ERROR)
    await asyncio.gather(wrong, *(worker.record(claim, outcomes[claim.task.key]) for claim in claims))
    returned = await soon("every submission returns the outcome", asyncio.gather(*callers))
    expected = [outcomes[harness.task(key).key] for key in keys for _ in (one, other)]
    expect(returned == expected, f"{expected} were returned as {returned}")
    again = await soon("submit returns", other.submit(harness.task(keys[0]), wait=LONG))
    expect(again == expected[0], f"submitting the task again returned {again}")


async def a_task_that_waits_can_be_cancelled(harness: JournalHarness) -> None:
    """Cancel a task that was submitted, and one that was released; neither is claimed, and callers get the outcome."""
    worker, one, other = [await harness.end() for _ in range(3)]
    claim = await harness.submitted(worker, "released")
    await worker.release(claim, SHORT, failed=True)
    for key, before in (("released", claim.attempt), ("waiting", 0)):
        task = harness.task(key)
        waiting = asyncio.create_task(one.submit(task, wait=LONG))
        await soon("the task is listed", _listed(harness, other, task.key))
        outcome = _cancelled(harness, key, before)
        expect(await other.cancel(outcome) == outcome, f"a task that was {key} was not cancelled")
        returned = await soon("the submission returns", waiting)
        expect(returned == outcome, f"the caller of a cancelled task got {returned}")
        expect(await worker.outcome(task.key) == outcome, "the outcome of a cancelled task was not kept")
        expect(await worker.submit(task) == outcome, "a cancelled key is unknown")
    await harness.nothing(worker, wait=2 * SHORT)
    expect(await other.pending(harness.id()) == [], "a cancelled task is listed as pending")
    expect(await worker.record(claim, harness.outcome(claim)) == await one.outcome(claim.task.key), "it ended twice")
    expect(await other.purge(claim.task.key), "a cancelled task was not purged")


async def a_task_that_has_begun_is_not_cancelled(harness: JournalHarness) -> None:
    """Cancel a claimed task, a lost one, an ended one and an unknown one; nothing changes."""
    worker, other = await harness.end(), await harness.end()
    claim = await harness.submitted(worker, "claimed")
    expect(await other.cancel(_cancelled(harness, "claimed")) is None, "a claimed task was cancelled")
    expect(await worker.renew(claim), "the lease was lost by an attempt to cancel")
    expect(await other.cancel(_cancelled(harness, "claimed")) is None, "a task with a renewed lease was cancelled")
    expect(await other.outcome(claim.task.key) is None, "a claimed task has the outcome of an attempt to cancel it")
    outcome = harness.outcome(claim)
    await worker.record(claim, outcome)
    was_cancelled = await other.cancel(_cancelled(harness, "claimed"))
    expect(was_cancelled == outcome, f"an ended task was cancelled: {was_cancelled}")
    await other.submit(harness.task("lost"))
    await harness.claim(worker, lease=SHORT)
    await asyncio.sleep(2 * SHORT)
    expect(await other.cancel(_cancelled(harness, "lost")) is None, "a task that may have run was cancelled")
    again = await harness.claim(worker)
    expect(again.attempt == 2, f"after an attempt to cancel it, a lost task was claimed as {again}")
    await other.submit(harness.task("waiting"))
    elsewhere = replace(_cancelled(harness, "waiting"), operation_id=harness.id("other"))
    expect(await other.cancel(elsewhere) is None, "a task of another operation was cancelled")
    expect(await other.cancel(_cancelled(harness, "unknown")) is None, "a task that does not exist was cancelled")
    expect(await other.outcome(harness.task("unknown").key) is None, "an unknown task was created to be cancelled")
    expect((await harness.claim(worker)).task.key == harness.task("waiting").key, "a task was lost by another's cancel")


async def _listed(harness: JournalHarness, journal: Journal, key: str) -> None:
    while True:
        if any(task.key == key for task in await journal.pending(harness.id())):
            return
        await asyncio.sleep(0.01)


def _cancelled(harness: JournalHarness, key: str, attempts: int = 0) -> Outcome:
    task = harness.task(key)
    return Outcome(
        key=task.key,
        operation_id=task.operation_id,
        event=b'{"cancelled": true}',
        attempts=attempts,
        recorded=task.submitted,
        cancelled=True,
    )


async def dead_letters_are_listed(harness: JournalHarness) -> None:
    """List dead letters, of one operation or of all, the oldest first."""
    journal = await harness.end()
    second = await _dead_letter(harness, journal, "2", "a", age=60_000)
    first = await _dead_letter(harness, journal, "1", "b", age=120_000)
    third = await _dead_letter(harness, journal, "3", "b")
    done = await harness.submitted(journal, "done", "a")
    await journal.record(done, harness.outcome(done))
    ours = {outcome.key for outcome in (first, second, third)} | {done.task.key}
    every = [outcome async for outcome in journal.dead_letters() if outcome.key in ours]
    expect(every == [first, second, third], f"{[first, second, third]} are listed as {every}")
    some = [outcome async for outcome in journal.dead_letters(harness.id("b"))]
    expect(some == [first, third], f"{[first, third]} are listed as {some}")
    expect(await journal.outcome(first.key) == first, "the outcome of a dead letter is not returned to its caller")


async def a_dead_letter_can_be_replayed(harness: JournalHarness) -> None:
    """Replay a dead letter; it is none any more, has no outcome, and counts attempts from 1."""
    journal, other = await harness.end(), await harness.end()
    dead_letter = await _dead_letter(harness, journal, "again")
    expect(await other.replay(dead_letter.key), "a dead letter was not replayed")
    expect(not await other.replay(dead_letter.key), "a task was replayed twice")
    expect(await other.outcome(dead_letter.key) is None, "a replayed task still has its outcome")
    expect(
        not [dead_letter async for dead_letter in other.dead_letters(harness.id())],
        "a replayed task is still listed as a dead letter",
    )
    claim = await harness.claim(other)
    expect(claim.attempt == 1, f"the first attempt after a replay is counted as {claim.attempt}")
    expect(
        claim.task.key == dead_letter.key and claim.task.request == harness.task("again").request,
        f"replayed as {claim}",
    )
    outcome = harness.outcome(claim, b"2")
    await other.record(claim, outcome)
    expect(await journal.outcome(dead_letter.key) == outcome, "the outcome of a replayed task was not recorded")
    expect(not await other.replay(dead_letter.key), "a task that was no dead letter was replayed")
    expect(not await other.replay(harness.task("unknown").key), "a task that does not exist was replayed")


async def a_claim_from_before_a_replay_ends_nothing(harness: JournalHarness) -> None:
    """Use a claim from before a replay; it can neither renew, nor release, nor end the replayed task."""
    one, other = await harness.end(), await harness.end()
    old = await harness.submitted(one, "again", lease=SHORT)
    claim = await harness.claim(other)
    await other.record(claim, harness.outcome(claim, dead_letter=True))
    await other.replay(claim.task.key)
    expect(await one.record(old, harness.outcome(old)) is None, "an outcome from before a replay was recorded")
    expect(not await one.renew(old), "a lease from before a replay was renewed")
    fresh = await harness.claim(other)
    await one.release(old, 0)
    expect(not await one.renew(old), "a lease from before a replay was renewed")
    expect(await other.renew(fresh), "a lease was lost to a worker from before a replay")


async def a_purged_key_can_be_used_again(harness: JournalHarness) -> None:
    """Purge tasks; ended ones are removed, dead letters or not, and open ones are not."""
    journal, other = await harness.end(), await harness.end()
    dead_letter = await _dead_letter(harness, journal, "dead")
    claim = await harness.submitted(journal, "ended")
    key = claim.task.key
    expect(not await other.purge(key), "a task that has not ended was purged")
    await journal.record(claim, harness.outcome(claim))
    for purged_key in (dead_letter.key, key):
        expect(await other.purge(purged_key), "a task that has ended was not purged")
        expect(not await other.purge(purged_key), "a task was purged twice")
        expect(await journal.outcome(purged_key) is None, "a task that was purged has an outcome")
    expect(
        not [dead_letter async for dead_letter in other.dead_letters(harness.id())],
        "a purged task is still listed as a dead letter",
    )
    expect(await journal.submit(harness.task("ended", fingerprint="f2")) is None, "a purged key is still known")
    expect((await harness.claim(other)).task.fingerprint == "f2", "a purged task came back")


async def everything_is_counted(harness: JournalHarness) -> None:
    """Count the tasks that are queued or claimed, and dead letters; ended ones are ignored."""
    journal = await harness.end()
    await _dead_letter(harness, journal, "dead")
    ended_claim, released = [await harness.submitted(journal, key) for key in ("ended", "released")]
    await journal.record(ended_claim, harness.outcome(ended_claim))
    await journal.release(released, LONG)
    await harness.submitted(journal, "claimed")
    for number in range(3):
        await journal.submit(harness.task(f"waiting {number}"))
    counted = [info for info in await journal.info() if info.operation_id == harness.id()]
    expect(len(counted) == 1, f"the operation is counted {len(counted)} times")
    info = counted[0]
    expect(
        (info.waiting, info.claimed, info.dead_letters) == (4, 1, 1),
        f"4 tasks that wait, 1 that is claimed and 1 dead letter are counted as {info}",
    )


async def what_waits_or_runs_is_listed(harness: JournalHarness) -> None:
    """List the tasks of an operation that wait or run, the oldest first; ended ones are left out."""
    journal, other = await harness.end(), await harness.end()
    await _dead_letter(harness, journal, "dead")
    ended_claim, released, claimed = [await harness.submitted(journal, key) for key in ("ended", "released", "claimed")]
    await journal.record(ended_claim, harness.outcome(ended_claim))
    await journal.release(released, LONG, failed=True)
    waiting = harness.task("waiting")
    await journal.submit(waiting)
    await journal.submit(harness.task("elsewhere", operation="other"))
    listed_tasks = [(task.key, task.claimed, task.attempts) for task in await other.pending(harness.id())]
    expected_tasks = [(released.task.key, False, 1), (claimed.task.key, True, 1), (waiting.key, False, 0)]
    expect(listed_tasks == expected_tasks, f"{expected_tasks} wait or run, and {listed_tasks} are listed")
    (oldest,) = await other.pending(harness.id(), limit=1)
    expect(oldest.key == released.task.key, f"the oldest task is {oldest.key}")
    expect(oldest.submitted == released.task.submitted, "the time of submission of a task has changed")
    expect(await other.pending(harness.id("unknown")) == [], "tasks of an unknown operation are listed")


async def a_closed_end_cannot_be_looked_at(harness: JournalHarness) -> None:
    """Query a closed end; every method raises UNAVAILABLE."""
    journal = await harness.end()
    key = (await _dead_letter(harness, journal, "dead")).key
    await journal.close()

    async def first_dead_letter() -> Outcome:
        return await anext(aiter(journal.dead_letters()))

    await refused("wait on a closed end", journal.wait(key, 1))
    await refused("dead_letters on a closed end", first_dead_letter())
    await refused("replay on a closed end", journal.replay(key))
    await refused("purge on a closed end", journal.purge(key))
    await refused("cancel on a closed end", journal.cancel(_cancelled(harness, "dead")))
    await refused("pending on a closed end", journal.pending("do"))
    await refused("info on a closed end", journal.info())


Check = Callable[[Connect], Awaitable[None]]


JOURNAL_CONTRACT: Mapping[str, Check] = named_checks(
    JournalHarness,
    {
        "tasks are claimed as they were submitted": tasks.tasks_are_claimed_as_they_were_submitted,
        "a key that is known is the same task": tasks.a_known_key_is_the_same_task,
        "a key that is known stands for one call": tasks.a_known_key_stands_for_one_call,
        "a task is claimed by one worker at a time": tasks.one_worker_has_a_task,
        "the oldest task goes first": tasks.the_oldest_goes_first,
        "tasks of other operations are not claimed": tasks.only_the_named_operations_are_claimed,
        "a claim waits for a task": tasks.a_claim_waits_for_a_task,
        "a task whose lease has run out is claimed again": tasks.a_lost_worker_loses_its_tasks,
        "a lease is as long as its claim says": tasks.a_lease_is_as_long_as_its_claim_says,
        "a lease that is renewed is kept": tasks.a_renewed_lease_is_kept,
        "a lease that was lost cannot be renewed": tasks.a_lost_lease_cannot_be_renewed,
        "a released task comes back after its delay": tasks.a_released_task_comes_back_after_its_delay,
        "a lost lease releases nothing": tasks.a_lost_lease_releases_nothing,
        "tasks outlive their submitters": tasks.tasks_outlive_their_submitters,
        "a closed end refuses, and can be closed again": tasks.a_closed_end_refuses,
        "losses are counted apart from failures": tasks.losses_are_counted_apart_from_failures,
        "only a task that was alone is blamed for a loss": tasks.only_a_lone_task_is_blamed,
        "suspects are claimed one at a time": tasks.suspects_come_one_at_a_time,
        "suspects can be left out": tasks.suspects_can_be_left_out,
        "a suspect is cleared by a failure only": tasks.a_suspect_is_cleared_by_a_failure,
        "every task that can run is run beside those that kill their worker": tasks.innocents_are_run_beside_poison,
        "an outcome is kept as it was recorded": an_outcome_is_kept_as_it_was_recorded,
        "the first outcome stands": the_first_outcome_stands,
        "outcomes that are recorded together end their own tasks": (
            outcomes_that_are_recorded_together_end_their_own_tasks
        ),
        "a task that has ended stays ended": an_ended_task_stays_ended,
        "a task that was released can still end": a_released_task_can_still_end,
        "every waiting caller gets the outcome": every_waiting_caller_gets_the_outcome,
        "waiting for an outcome ends in time": waiting_ends_in_time,
        "a submission waits for the outcome": a_submission_waits_for_the_outcome,
        "a task that waits can be cancelled": a_task_that_waits_can_be_cancelled,
        "a task that has begun is not cancelled": a_task_that_has_begun_is_not_cancelled,
        "dead letters are listed, the oldest first": dead_letters_are_listed,
        "a dead letter can be replayed": a_dead_letter_can_be_replayed,
        "a claim from before a replay ends nothing": a_claim_from_before_a_replay_ends_nothing,
        "a purged key can be used again": a_purged_key_can_be_used_again,
        "everything is counted": everything_is_counted,
        "what waits or runs is listed": what_waits_or_runs_is_listed,
        "a closed end cannot be looked at": a_closed_end_cannot_be_looked_at,
    },
)
"""The promises of every journal, each with a check that raises AssertionError if it is broken."""


async def check_journal(connect: Connect) -> None:
    """Check every promise of the contract in turn.

    `connect` returns a fresh end of the same journal, not started.

    Raises:
        AssertionError: names the first broken promise.
    """
    for check in JOURNAL_CONTRACT.values():
        await check(connect)
