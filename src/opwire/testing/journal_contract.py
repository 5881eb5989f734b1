"""The contract of journals: every one that is shipped passes it, and yours can be tested with it too.

    @pytest.mark.parametrize("promise", JOURNAL_CONTRACT)
    async def test_my_journal(promise: str) -> None:
        await JOURNAL_CONTRACT[promise](lambda: MyJournal(url))

A check makes ends of the journal, lets them work, and closes them. It leaves a few tasks behind, of operations that
nobody else serves. Leases have to run out in it, so that the whole contract takes some seconds.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

from opwire.testing import journal_outcomes as outcomes
from opwire.testing import journal_suspects as suspects
from opwire.testing import journal_tasks as tasks
from opwire.testing.journal_stage import Connect, Stage

Check = Callable[[Connect], Awaitable[None]]


async def _keep(promise: str, check: Callable[[Stage], Awaitable[None]], connect: Connect) -> None:
    """Run one check; whatever it raises is a broken promise."""
    try:
        async with Stage(connect) as stage:
            await check(stage)
    except Exception as error:
        raise AssertionError(f"broken promise: {promise}: {error!r}") from error


_CHECKS: dict[str, Callable[[Stage], Awaitable[None]]] = {
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
    "who has lost a lease releases nothing": tasks.who_lost_the_lease_cannot_release,
    "tasks outlive those who submitted them": tasks.tasks_outlive_those_who_submitted_them,
    "a closed end refuses, and can be closed again": tasks.a_closed_end_refuses,
    "losses are counted apart from failures": suspects.losses_are_counted_apart_from_failures,
    "only a task that was alone is blamed for a loss": suspects.only_a_lone_task_is_blamed,
    "suspects are claimed one at a time": suspects.suspects_come_one_at_a_time,
    "suspects can be left out": suspects.suspects_can_be_left_out,
    "a suspect is cleared by a failure only": suspects.a_suspect_is_cleared_by_a_failure,
    "every task that can run is run beside those that kill their worker": suspects.innocents_are_run_beside_poison,
    "an outcome is kept as it was recorded": outcomes.an_outcome_is_kept_as_it_was_recorded,
    "the first outcome stands": outcomes.the_first_outcome_stands,
    "a task that has ended stays ended": outcomes.an_ended_task_stays_ended,
    "a task that was released can still end": outcomes.a_released_task_can_still_end,
    "everybody who waits for an outcome is told": outcomes.everybody_who_waits_is_told,
    "waiting for an outcome ends in time": outcomes.waiting_ends_in_time,
    "buried tasks are listed, the oldest first": outcomes.buried_tasks_are_listed,
    "a buried task can be replayed": outcomes.a_buried_task_can_be_replayed,
    "who worked before a replay ends nothing": outcomes.who_worked_before_a_replay_ends_nothing,
    "a key that was purged can be used anew": outcomes.a_purged_key_can_be_used_anew,
    "everything is counted": outcomes.everything_is_counted,
    "a closed end cannot be looked at": outcomes.a_closed_end_cannot_be_looked_at,
}

JOURNAL_CONTRACT: Mapping[str, Check] = MappingProxyType(
    {promise: partial(_keep, promise, check) for promise, check in _CHECKS.items()}
)
"""What every journal promises: a sentence, and the check that raises AssertionError if it is not kept."""


async def check_journal(connect: Connect) -> None:
    """Check every promise of the contract, one after the other.

    `connect` makes a fresh end, not started, of always the same journal.

    Raises:
        AssertionError: names the first promise that is broken.
    """
    for check in JOURNAL_CONTRACT.values():
        await check(connect)
