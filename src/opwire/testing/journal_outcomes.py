"""The part of the contract that looks at outcomes: how they are recorded, waited for, buried, replayed and purged."""

import asyncio

from opwire.durable.journal import Claim, Journal, Outcome
from opwire.errors import ErrorCode
from opwire.testing.journal_stage import LONG, SHORT, Stage, refused
from opwire.testing.scene import expect, soon


async def _submitted(stage: Stage, journal: Journal, key: str, operation: str = "do") -> Claim:
    await journal.submit(stage.task(key, operation))
    return await stage.claim(journal, operation)


async def _buried(stage: Stage, journal: Journal, key: str, operation: str = "do", age: int = 0) -> Outcome:
    claim = await _submitted(stage, journal, key, operation)
    outcome = stage.outcome(claim, b'{"no": 1}', buried=True, age=age)
    expect(await journal.record(claim, outcome) == outcome, "a buried outcome was not recorded")
    return outcome


async def an_outcome_is_kept_as_it_was_recorded(stage: Stage) -> None:
    """Every field, whatever is in it; and whoever submits the same task again is given it."""
    journal, other = await stage.end(), await stage.end()
    claim = await _submitted(stage, journal, "ended")
    expect(await other.outcome(claim.task.key) is None, "there is an outcome before one was recorded")
    outcome = stage.outcome(claim, bytes(range(256)), age=5)
    expect(await journal.record(claim, outcome) == outcome, "the outcome that stands is not the one that was recorded")
    kept = await other.outcome(claim.task.key)
    expect(kept == outcome, f"recorded {outcome}, kept {kept}")
    told = await other.submit(claim.task)
    expect(told == outcome, f"who submitted the task again was told {told}")
    await stage.nothing(other)


async def the_first_outcome_stands(stage: Stage) -> None:
    """Recorded by a worker that had lost its lease, or by the one that has it: the second is told the first."""
    one, other = await stage.end(), await stage.end()
    await one.submit(stage.task("twice"))
    slow = await stage.claim(one, lease=SHORT)
    quick = await stage.claim(other)
    first, second = stage.outcome(slow, b"1"), stage.outcome(quick, b"2")
    expect(await one.record(slow, first) == first, "the first outcome was not recorded")
    stands = await other.record(quick, second)
    expect(stands == first, f"after {first} was recorded, the second was told {stands}")
    expect(await other.outcome(slow.task.key) == first, "the second outcome took the place of the first")


async def an_ended_task_stays_ended(stage: Stage) -> None:
    """It is not claimed again, and the lease of whoever still had it is lost."""
    one, other = await stage.end(), await stage.end()
    await one.submit(stage.task("ended"))
    slow = await stage.claim(one, lease=SHORT)
    quick = await stage.claim(other, lease=SHORT)
    await one.record(slow, stage.outcome(slow))
    expect(not await other.renew(quick), "the lease of a task that has ended was renewed")
    await stage.nothing(one, wait=2 * SHORT)


async def a_released_task_can_still_end(stage: Stage) -> None:
    """By a worker that lost it and finished nonetheless: it does not come back then."""
    one, other = await stage.end(), await stage.end()
    await one.submit(stage.task("ended"))
    slow = await stage.claim(one, lease=SHORT)
    await other.release(await stage.claim(other), SHORT)
    outcome = stage.outcome(slow)
    expect(await one.record(slow, outcome) == outcome, "the outcome was not recorded")
    await stage.nothing(other, wait=2 * SHORT)


async def everybody_who_waits_is_told(stage: Stage) -> None:
    """At several ends, several times at one, before and after it is there."""
    worker, one, other = [await stage.end() for _ in range(3)]
    claim = await _submitted(stage, worker, "awaited")
    key = claim.task.key
    waiting = [asyncio.create_task(end.wait(key, LONG)) for end in (one, one, other, worker)]
    await asyncio.sleep(0.05)
    outcome = stage.outcome(claim, b"\x00\xff")
    await worker.record(claim, outcome)
    told = await soon("everybody who waits is told", asyncio.gather(*waiting))
    expect(told == [outcome] * 4, f"{outcome} was told as {told}")
    expect(await soon("wait returns", one.wait(key, LONG)) == outcome, "who asks later is not told")


async def waiting_ends_in_time(stage: Stage) -> None:
    """With nothing, if there is nothing yet, or no such task. What ends afterwards is told to who asks again."""
    journal, other = await stage.end(), await stage.end()
    claim = await _submitted(stage, journal, "slow")
    for key in (claim.task.key, stage.task("unknown").key):
        told = await soon("wait returns", other.wait(key, 0.1))
        expect(told is None, f"there was no outcome, and {told} was told")
    await journal.record(claim, stage.outcome(claim))
    told = await soon("wait returns", other.wait(claim.task.key, LONG))
    expect(told is not None, "who gave up waiting is not told when asking again")


async def buried_tasks_are_listed(stage: Stage) -> None:
    """The oldest first, of one operation or of all, and only those."""
    journal = await stage.end()
    second = await _buried(stage, journal, "2", "a", age=60_000)
    first = await _buried(stage, journal, "1", "b", age=120_000)
    third = await _buried(stage, journal, "3", "b")
    done = await _submitted(stage, journal, "done", "a")
    await journal.record(done, stage.outcome(done))
    ours = {outcome.key for outcome in (first, second, third)} | {done.task.key}
    every = [outcome async for outcome in journal.buried() if outcome.key in ours]
    expect(every == [first, second, third], f"{[first, second, third]} are listed as {every}")
    some = [outcome async for outcome in journal.buried(stage.id("b"))]
    expect(some == [first, third], f"{[first, third]} are listed as {some}")
    expect(await journal.outcome(first.key) == first, "a buried outcome is not told to its caller")


async def a_buried_task_can_be_replayed(stage: Stage) -> None:
    """It is then as new: claimed with attempts from 1, without its outcome, and no longer buried."""
    journal, other = await stage.end(), await stage.end()
    buried = await _buried(stage, journal, "again")
    expect(await other.replay(buried.key), "a buried task was not replayed")
    expect(not await other.replay(buried.key), "a task was replayed twice")
    expect(await other.outcome(buried.key) is None, "a replayed task still has its outcome")
    expect(not [each async for each in other.buried(stage.id())], "a replayed task is still listed as buried")
    claim = await stage.claim(other)
    expect(claim.attempt == 1, f"the first attempt after a replay is counted as {claim.attempt}")
    expect(claim.task.key == buried.key and claim.task.request == stage.task("again").request, f"replayed as {claim}")
    outcome = stage.outcome(claim, b"2")
    await other.record(claim, outcome)
    expect(await journal.outcome(buried.key) == outcome, "the outcome of a replayed task was not recorded")
    expect(not await other.replay(buried.key), "a task that was not buried was replayed")
    expect(not await other.replay(stage.task("unknown").key), "a task that does not exist was replayed")


async def who_worked_before_a_replay_ends_nothing(stage: Stage) -> None:
    """A worker that comes back from long ago neither renews, nor releases, nor ends the task of today."""
    one, other = await stage.end(), await stage.end()
    await one.submit(stage.task("again"))
    old = await stage.claim(one, lease=SHORT)
    claim = await stage.claim(other)
    await other.record(claim, stage.outcome(claim, buried=True))
    await other.replay(claim.task.key)
    expect(await one.record(old, stage.outcome(old)) is None, "an outcome from before a replay was recorded")
    expect(not await one.renew(old), "a lease from before a replay was renewed")
    fresh = await stage.claim(other)
    await one.release(old, 0)
    expect(not await one.renew(old), "a lease from before a replay was renewed")
    expect(await other.renew(fresh), "a lease was lost to a worker from before a replay")


async def a_purged_key_can_be_used_anew(stage: Stage) -> None:
    """What has ended can be purged, buried or not; what has not, cannot."""
    journal, other = await stage.end(), await stage.end()
    buried = await _buried(stage, journal, "buried")
    claim = await _submitted(stage, journal, "ended")
    key = claim.task.key
    expect(not await other.purge(key), "a task that has not ended was purged")
    await journal.record(claim, stage.outcome(claim))
    for each in (buried.key, key):
        expect(await other.purge(each), "a task that has ended was not purged")
        expect(not await other.purge(each), "a task was purged twice")
        expect(await journal.outcome(each) is None, "a task that was purged has an outcome")
    expect(not [each async for each in other.buried(stage.id())], "a purged task is still listed as buried")
    expect(await journal.submit(stage.task("ended", fingerprint="f2")) is None, "a purged key is still known")
    expect((await stage.claim(other)).task.fingerprint == "f2", "a purged task came back")


async def everything_is_counted(stage: Stage) -> None:
    """What waits, what is claimed, what is buried; what has ended is not."""
    journal = await stage.end()
    await _buried(stage, journal, "buried")
    ended, released = [await _submitted(stage, journal, key) for key in ("ended", "released")]
    await journal.record(ended, stage.outcome(ended))
    await journal.release(released, LONG)
    await _submitted(stage, journal, "claimed")
    for number in range(3):
        await journal.submit(stage.task(f"waiting {number}"))
    counted = [info for info in await journal.info() if info.operation_id == stage.id()]
    expect(len(counted) == 1, f"the operation is counted {len(counted)} times")
    info = counted[0]
    expect(
        (info.waiting, info.claimed, info.buried) == (4, 1, 1),
        f"4 tasks that wait, 1 that is claimed and 1 that is buried are counted as {info}",
    )


async def a_closed_end_cannot_be_looked_at(stage: Stage) -> None:
    """Everything raises UNAVAILABLE, and nothing is made up."""
    journal = await stage.end()
    key = (await _buried(stage, journal, "buried")).key
    await journal.close()

    async def first_buried() -> Outcome:
        return await anext(aiter(journal.buried()))

    unavailable = ErrorCode.UNAVAILABLE
    await refused("wait on a closed end", journal.wait(key, 1), unavailable)
    await refused("buried on a closed end", first_buried(), unavailable)
    await refused("replay on a closed end", journal.replay(key), unavailable)
    await refused("purge on a closed end", journal.purge(key), unavailable)
    await refused("info on a closed end", journal.info(), unavailable)
