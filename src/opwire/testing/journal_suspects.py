"""The part of the contract that looks at losses: what is counted, who is blamed, and how suspects are handed out."""

import time

from opwire.durable.journal import Claim, Journal
from opwire.testing.journal_stage import LONG, SHORT, Stage
from opwire.testing.scene import PATIENCE, expect, soon


async def _past(stage: Stage, journal: Journal, *, lease: float = LONG) -> tuple[Claim, tuple[int, int, int, bool]]:
    claim = await stage.claim(journal, lease=lease)
    return claim, (claim.failures, claim.losses, claim.lone_losses, claim.suspect)


async def losses_are_counted_apart_from_failures(stage: Stage) -> None:
    """A lease that runs out is a loss, a release says whether it is a failure."""
    journal = await stage.end()
    await journal.submit(stage.task("unlucky"))
    claim, past = await _past(stage, journal, lease=SHORT)
    expect(past == (0, 0, 0, False), f"the first claim of a task has the past {past}")
    for number in (1, 2):
        claim, past = await _past(stage, journal, lease=SHORT if number == 1 else LONG)
        expect(past == (0, number, 0, True), f"{number} losses are counted as {past}")
    await journal.release(claim, 0, failed=True)
    claim, past = await _past(stage, journal)
    expect(past == (1, 2, 0, False), f"2 losses and a failure are counted as {past}")
    await journal.release(claim, 0)
    _, past = await _past(stage, journal)
    expect(past == (1, 2, 0, False), f"2 losses, a failure and a release are counted as {past}")


async def only_a_lone_task_is_blamed(stage: Stage) -> None:
    """A loss counts as a lone one if the last renewal said that the worker has nothing else in hand."""
    journal = await stage.end()
    await journal.submit(stage.task("unlucky"))
    claim = await stage.claim(journal, lease=2 * SHORT)
    expect(await journal.renew(claim, alone=True), "a lease could not be renewed in time")
    claim, past = await _past(stage, journal, lease=2 * SHORT)
    expect(past == (0, 1, 1, True), f"a loss alone is counted as {past}")
    expect(await journal.renew(claim, alone=True) and await journal.renew(claim), "a lease could not be renewed")
    claim, past = await _past(stage, journal, lease=2 * SHORT)
    expect(past == (0, 2, 1, True), f"a loss alone, and one with others, are counted as {past}")
    expect(await journal.renew(claim, alone=True), "a lease could not be renewed in time")
    await journal.release(claim, 0)
    claim, past = await _past(stage, journal, lease=SHORT)
    expect(past == (0, 2, 1, True), f"a task that was alone and was released has the past {past}")
    _, past = await _past(stage, journal)
    expect(past == (0, 3, 1, True), f"an attempt counts as alone because an earlier one was: {past}")


async def _lost(stage: Stage, journal: Journal, *keys: str) -> set[str]:
    """Have tasks submitted and claimed, and lost soon. Return their keys."""
    for key in keys:
        await journal.submit(stage.task(key))
    return {(await stage.claim(journal, lease=4 * SHORT)).task.key for _ in keys}


async def _claim_all(stage: Stage, journal: Journal, number: int, *, suspects: bool = True) -> list[Claim]:
    """Claim so many tasks, in portions."""
    claimed: list[Claim] = []
    end = time.monotonic() + PATIENCE
    while len(claimed) < number:
        expect(time.monotonic() < end, f"{len(claimed)} tasks of {number} could be claimed")
        claims = await soon(
            "claim returns", journal.claim([stage.id()], lease=LONG, wait=0.2, limit=9, suspects=suspects)
        )
        together = [claim.task.key for claim in claims if claim.suspect]
        expect(len(together) <= int(suspects), f"the suspects {together} were claimed with suspects={suspects}")
        claimed += claims
    return claimed


async def suspects_come_one_at_a_time(stage: Stage) -> None:
    """However many were lost with their worker, and whatever else there is to claim."""
    journal, other = await stage.end(), await stage.end()
    lost = await _lost(stage, journal, "a", "b", "c", "d")
    for number in range(3):
        await journal.submit(stage.task(f"{number}"))
    claimed = await _claim_all(stage, other, 7)
    found = sorted(claim.task.key for claim in claimed if claim.suspect)
    expect(found == sorted(lost), f"{sorted(lost)} were lost, and {found} were claimed as suspects")


async def suspects_can_be_left_out(stage: Stage) -> None:
    """Not for ever: they are there for the next worker that wants one."""
    journal, other = await stage.end(), await stage.end()
    lost = await _lost(stage, journal, "a", "b", "c")
    await journal.release(await stage.claim(journal), 0)
    for number in range(3):
        await journal.submit(stage.task(f"{number}"))
    await _claim_all(stage, other, 3, suspects=False)
    again = {claim.task.key for claim in await _claim_all(stage, other, 3)}
    expect(again == lost, f"of {sorted(lost)}, {sorted(again)} came back")


async def a_suspect_is_cleared_by_a_failure(stage: Stage) -> None:
    """But not by being given back: it may not even have begun."""
    journal = await stage.end()
    await _lost(stage, journal, "unlucky")
    for _ in range(2):
        claim, past = await _past(stage, journal)
        expect(past == (0, 1, 0, True), f"a suspect that was released has the past {past}")
        await journal.release(claim, 0)
    claim = await stage.claim(journal)
    await journal.release(claim, 0, failed=True)
    _, past = await _past(stage, journal)
    expect(past == (1, 1, 0, False), f"a suspect that has failed has the past {past}")


async def innocents_are_run_beside_poison(stage: Stage) -> None:
    """Workers die of some tasks, and of all that they have in hand only those are given up. All others are done."""
    journal = await stage.end()
    tasks = [stage.task(name) for name in ("a", "b", "poison c", "d", "poison e", "f")]
    poison = {task.key for task in tasks if "poison" in task.key}
    for task in tasks:
        await journal.submit(task)
    given_up: dict[str, bool] = {}
    for _ in range(2 * len(poison) + 1):
        end = await stage.end()
        await _work_until_death(stage, end, len(tasks), given_up)
        await end.close()
    buried = {key for key, buried in given_up.items() if buried}
    expect(buried == poison, f"{sorted(poison)} kill their worker, and {sorted(buried)} were given up")
    expect(len(given_up) == len(tasks), f"of {len(tasks)} tasks, {len(given_up)} have an outcome")


async def _work_until_death(stage: Stage, end: Journal, number: int, given_up: dict[str, bool]) -> None:
    """Be a worker that dies of poison, and gives up a task of which a worker has died that had nothing else."""
    patience = time.monotonic() + PATIENCE
    while len(given_up) < number and time.monotonic() < patience:
        claims = await soon("claim returns", end.claim([stage.id()], lease=SHORT, wait=SHORT, limit=3))
        if any("poison" in claim.task.key for claim in claims if not claim.suspect):
            return
        for claim in sorted(claims, key=lambda claim: claim.suspect):
            if claim.suspect and not claim.lone_losses:
                if not await end.renew(claim, alone=True):
                    continue
                if "poison" in claim.task.key:
                    return
            buried = claim.lone_losses > 0
            await end.record(claim, stage.outcome(claim, buried=buried))
            given_up[claim.task.key] = buried
