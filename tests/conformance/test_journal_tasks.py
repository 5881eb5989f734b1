"""What the checks of tasks say when they fail, so that the author of a journal finds the place."""

import pytest

from opwire.durable import MemoryJournal, MemoryJournalState
from opwire_conformance import journal_tasks as tasks
from opwire_conformance.journal_tasks import JournalHarness
from tests.chaos.virtual_time import run_virtually
from tests.durable import broken


def complaint(check: object, kind: type[MemoryJournal]) -> str:
    state = MemoryJournalState()

    async def run() -> None:
        async with JournalHarness(lambda: kind(state)) as harness:
            await check(harness)  # pyright: ignore

    with pytest.raises(AssertionError) as failure:
        run_virtually(run())
    return str(failure.value)


@pytest.mark.parametrize(
    ("check", "kind", "said"),
    [
        (tasks.tasks_are_claimed_as_they_were_submitted, broken.ForgetsFields, "submitted=0"),
        (tasks.a_known_key_is_the_same_task, broken.SubmitsTwice, "could be claimed, and should not"),
        (tasks.a_known_key_stands_for_one_call, broken.IgnoresFingerprints, "the same key was not refused"),
        (tasks.the_oldest_goes_first, broken.NewestFirst, "the tasks were claimed as"),
        (tasks.a_claim_waits_for_a_task, broken.SleepsBetweenLooks, "was given a task after"),
        (tasks.a_lost_worker_loses_its_tasks, broken.LendsForEver, "no task could be claimed within"),
        (tasks.a_lease_is_as_long_as_its_claim_says, broken.HasOneLeaseForAll, "before its lease was over"),
        (tasks.a_lost_lease_cannot_be_renewed, broken.PretendsToRenew, "attempt 1 renewed a lease that attempt 3 has"),
        (tasks.a_released_task_comes_back_after_its_delay, broken.ReleasesAtOnce, "for 0.6 s came back after 0 s"),
        (tasks.a_closed_end_refuses, broken.AcceptsAfterClose, "submit on a closed end was not refused"),
    ],
)
def test_a_check_says_what_it_saw(check: object, kind: type[MemoryJournal], said: str) -> None:
    assert said in complaint(check, kind)


def test_the_names_that_have_to_be_carried_are_the_difficult_ones() -> None:
    assert any(not name.isascii() for name in tasks.ODD)
    assert any(set(":.*>") <= set(name) for name in tasks.ODD)  # they mean something to some engine
    assert any(name.isspace() for name in tasks.ODD)
