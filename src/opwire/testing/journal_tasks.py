"""The part of the contract that looks at tasks: how they are submitted, claimed, renewed and released."""

import asyncio
import time

from opwire.durable.journal import Claim, Journal
from opwire.errors import ErrorCode
from opwire.testing.journal_stage import LONG, SHORT, Stage, refused
from opwire.testing.scene import PATIENCE, expect, soon

_MANY = 60
ODD = ('línea\u2028 " \\ 🜚', "a:b.c*>", " ", "x" * 256)
"""Keys and names as people choose them."""


async def tasks_are_claimed_as_they_were_submitted(stage: Stage) -> None:
    """Every field, whatever is in it, by another end than the one that submitted it."""
    submitter, worker = await stage.end(), await stage.end()
    for number, odd in enumerate(ODD):
        request = bytes(range(256)) * number
        task = stage.task(odd, odd, request=request, fingerprint=odd)
        expect(await submitter.submit(task) is None, "a new task has an outcome")
        claim = await stage.claim(worker, odd)
        expect(claim.task == task, f"submitted {task}, claimed {claim.task}")
        expect((claim.attempt, claim.lease) == (1, LONG), f"a first attempt, for {LONG} s, was claimed as {claim}")


async def a_known_key_is_the_same_task(stage: Stage) -> None:
    """Submitted by two ends, before and after it is claimed: there is one task."""
    one, other = await stage.end(), await stage.end()
    task = stage.task("same")
    await asyncio.gather(*(end.submit(task) for end in (one, other) * 5))
    claim = await stage.claim(one)
    await other.submit(task)
    await stage.nothing(other)
    expect(claim.attempt == 1, f"the first attempt is counted as {claim.attempt}")


async def a_known_key_stands_for_one_call(stage: Stage) -> None:
    """With another fingerprint it is refused: while the task waits, and after it has ended."""
    journal = await stage.end()
    task, other = stage.task("same"), stage.task("same", fingerprint="f2")
    await journal.submit(task)
    await refused("another call with the same key", journal.submit(other), ErrorCode.VALIDATION_ERROR)
    claim = await stage.claim(journal)
    expect(claim.task == task, f"a call that was refused has become the task {claim.task}")
    await journal.record(claim, stage.outcome(claim))
    await refused("another call with the same key", journal.submit(other), ErrorCode.VALIDATION_ERROR)


async def one_worker_has_a_task(stage: Stage) -> None:
    """Three ends claim many tasks at the same time: each is claimed once, and none is forgotten."""
    submitter = await stage.end()
    workers = [await stage.end() for _ in range(3)]
    tasks = [stage.task(f"{number}") for number in range(_MANY)]
    claimed: list[Claim] = []

    async def work(journal: Journal) -> None:
        while len(claimed) < _MANY:
            claims = await journal.claim([stage.id()], lease=LONG, wait=0.2, limit=4)
            expect(len(claims) <= 4, f"{len(claims)} tasks were claimed at once, of 4 at most")
            claimed.extend(claims)

    async with asyncio.TaskGroup() as group:
        working = [group.create_task(work(worker)) for worker in workers]
        await asyncio.gather(*map(submitter.submit, tasks))
        await soon("all tasks are claimed", asyncio.wait(working))
    keys = sorted(claim.task.key for claim in claimed)
    expect(keys == sorted(task.key for task in tasks), f"{len(tasks)} tasks were claimed {len(keys)} times")


async def the_oldest_goes_first(stage: Stage) -> None:
    """Of one operation, as far as one worker sees it."""
    journal = await stage.end()
    tasks = [stage.task(f"{number}") for number in range(20)]
    for task in tasks:
        await journal.submit(task)
    claimed = [(await stage.claim(journal)).task.key for _ in tasks]
    expect(claimed == [task.key for task in tasks], f"the tasks were claimed as {claimed}")


async def only_the_named_operations_are_claimed(stage: Stage) -> None:
    """Several at once, and no other."""
    journal = await stage.end()
    for operation in ("a", "b", "c", "a"):
        await journal.submit(stage.task(f"{operation} {time.monotonic_ns()}", operation))
    claims: list[Claim] = []
    while len(claims) < 3:
        wanted = [stage.id("a"), stage.id("never"), stage.id("b")]
        new = await soon("the tasks are claimed", journal.claim(wanted, lease=LONG, wait=1, limit=9))
        expect(bool(new), f"only {len(claims)} tasks of 3 could be claimed")
        claims += new
    found = sorted(claim.task.operation_id for claim in claims)
    expect(found == [stage.id("a"), stage.id("a"), stage.id("b")], f"tasks of {found} were claimed")


async def a_claim_waits_for_a_task(stage: Stage) -> None:
    """What is submitted while a worker waits is claimed at once; a wait in vain ends in time."""
    submitter, worker = await stage.end(), await stage.end()
    await stage.nothing(worker, wait=0.2)
    for number in range(5):
        waiting = asyncio.create_task(stage.claim(worker))
        await asyncio.sleep(0.05 * number)
        began = time.monotonic()
        await submitter.submit(stage.task(f"{number}"))
        await waiting
        took = time.monotonic() - began
        expect(took < 1.0, f"a worker that waited was given a task after {took:.2g} s")


async def a_lost_worker_loses_its_tasks(stage: Stage) -> None:
    """A task whose lease has run out is claimed again, and its attempts are counted."""
    journal, dying = await stage.end(), await stage.end()
    await journal.submit(stage.task("orphan"))
    first = await stage.claim(dying, lease=SHORT)
    await dying.close()
    again = await stage.claim(journal, lease=SHORT)
    expect(again.attempt == 2, f"the second attempt is counted as {again.attempt}")
    third = await stage.claim(journal)
    expect(third.attempt == 3, f"the third attempt is counted as {third.attempt}")
    expect(first.task == again.task == third.task, f"the task came back as {third.task}")


async def a_lease_is_as_long_as_its_claim_says(stage: Stage) -> None:
    """A worker with short leases does not take what another one has for longer."""
    patient, hasty = await stage.end(), await stage.end()
    await patient.submit(stage.task("long"))
    await stage.claim(patient, lease=LONG)
    await patient.submit(stage.task("short"))
    await stage.claim(hasty, lease=SHORT)
    again = await stage.claim(hasty, lease=SHORT)
    expect(again.task.key == stage.task("short").key, "a task was claimed again before its lease was over")
    end = time.monotonic() + 2 * SHORT
    while time.monotonic() < end:
        for claim in await hasty.claim([stage.id()], lease=SHORT, wait=SHORT):
            expect(claim.task.key == again.task.key, "a task was claimed again before its lease was over")


async def a_renewed_lease_is_kept(stage: Stage) -> None:
    """For several times as long as it would have lasted."""
    worker, other = await stage.end(), await stage.end()
    await worker.submit(stage.task("long"))
    lease = 3 * SHORT
    claim = await stage.claim(worker, lease=lease)

    async def renew() -> None:
        while True:
            await asyncio.sleep(lease / 8)
            expect(await worker.renew(claim), "a lease that was renewed in time was lost")

    async with asyncio.TaskGroup() as group:
        renewing = group.create_task(renew())
        await stage.nothing(other, wait=1.5 * lease)
        renewing.cancel()
    again = await stage.claim(other)
    expect(again.attempt == 2, f"renewing a lease was counted as an attempt: {again.attempt}")


async def a_lost_lease_cannot_be_renewed(stage: Stage) -> None:
    """Neither after another end has claimed the task, nor after the same end has."""
    one, other = await stage.end(), await stage.end()
    await one.submit(stage.task("lost"))
    first = await stage.claim(one, lease=SHORT)
    second = await stage.claim(other, lease=SHORT)
    third = await stage.claim(other, lease=SHORT)
    for end, claim in ((one, first), (other, second)):
        expect(not await end.renew(claim), f"attempt {claim.attempt} renewed a lease that attempt 3 has")
    expect(await other.renew(third), "the worker that has the lease cannot renew it")


async def a_released_task_comes_back_after_its_delay(stage: Stage) -> None:
    """Not before, counted, and not renewable meanwhile. Without a delay it comes back at once."""
    one, other = await stage.end(), await stage.end()
    await one.submit(stage.task("later"))
    claim = await stage.claim(one)
    began = time.monotonic()
    await one.release(claim, 0.6)
    expect(not await one.renew(claim), "a lease was renewed after the task was released")
    again = await stage.claim(other)
    waited = time.monotonic() - began
    expect(waited > 0.55, f"a task that was released for 0.6 s came back after {waited:.3g} s")
    expect((again.attempt, again.task) == (2, claim.task), f"{claim} came back as {again}")
    await stage.nothing(await stage.end())
    await other.release(again, 0)
    third = await stage.claim(one)
    expect((third.attempt, third.task) == (3, claim.task), f"{claim} came back as {third}")


async def who_lost_the_lease_cannot_release(stage: Stage) -> None:
    """The task stays where it is: with another worker, with another claim of the same one, or ended."""
    one, other = await stage.end(), await stage.end()
    await one.submit(stage.task("lost"))
    first = await stage.claim(one, lease=SHORT)
    second = await stage.claim(one, lease=SHORT)
    await one.release(first, LONG)
    expect(await one.renew(second), "a worker released the task of its own later claim")
    third = await stage.claim(other)
    await one.release(second, 0)
    await stage.nothing(await stage.end())
    await other.record(third, stage.outcome(third))
    await other.release(third, 0)
    await stage.nothing(await stage.end())


async def tasks_outlive_those_who_submitted_them(stage: Stage) -> None:
    """Closing an end forgets nothing."""
    submitter = await stage.end()
    await submitter.submit(stage.task("left"))
    await submitter.close()
    await stage.claim(await stage.end())


async def a_closed_end_refuses(stage: Stage) -> None:
    """Closing twice is closing once. Afterwards everything raises UNAVAILABLE, also for those who were waiting."""
    journal = await stage.end()
    await journal.submit(stage.task("one"))
    claim = await stage.claim(journal)
    waiting = asyncio.create_task(journal.wait(claim.task.key, PATIENCE))
    await asyncio.sleep(0.05)
    for _ in range(2):
        await journal.close()
    unavailable = ErrorCode.UNAVAILABLE
    await refused("waiting on an end that is closed", waiting, unavailable)
    await refused("submit on a closed end", journal.submit(stage.task("two")), unavailable)
    await refused("claim on a closed end", journal.claim([stage.id()], lease=1, wait=0), unavailable)
    await refused("renew on a closed end", journal.renew(claim), unavailable)
    await refused("release on a closed end", journal.release(claim, 0), unavailable)
    await refused("record on a closed end", journal.record(claim, stage.outcome(claim)), unavailable)
    await refused("outcome on a closed end", journal.outcome(claim.task.key), unavailable)
