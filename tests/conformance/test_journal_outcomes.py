"""What the checks of outcomes say when they fail, so that the author of a journal finds the place."""

import pytest

from opwire.durable import MemoryJournal
from opwire_conformance import journal as outcomes
from tests.conformance.test_journal_tasks import complaint
from tests.durable import broken


@pytest.mark.parametrize(
    ("check", "kind", "said"),
    [
        (outcomes.an_outcome_is_kept_as_it_was_recorded, broken.ChangesEvents, "kept Outcome("),
        (outcomes.the_first_outcome_stands, broken.RecordsForOwnersOnly, "the first outcome was not recorded"),
        (outcomes.the_first_outcome_stands, broken.TheLastOutcomeStands, "the second record returned"),
        (outcomes.an_ended_task_stays_ended, broken.ForgetsThatTasksHaveEnded, "was renewed"),
        (
            outcomes.every_waiting_caller_gets_the_outcome,
            broken.TellsOne,
            "after 20 s: every waiting caller gets the outcome",
        ),
        (outcomes.waiting_ends_in_time, broken.WaitsForEver, "after 20 s: wait returns"),
        (outcomes.a_submission_waits_for_the_outcome, broken.SubmitsAndForgets, "every submission returns the outcome"),
        (outcomes.a_submission_waits_for_the_outcome, broken.SubmitsForEver, "after 20 s: submit returns"),
        (outcomes.dead_letters_are_listed, broken.ListsTheNewestFirst, "are listed as"),
        (outcomes.a_dead_letter_can_be_replayed, broken.GoesOnCountingAfterAReplay, "is counted as 2"),
        (outcomes.a_claim_from_before_a_replay_ends_nothing, broken.MixesUpLives, "from before a replay was recorded"),
        (outcomes.a_purged_key_can_be_used_again, broken.PurgesAnything, "has not ended was purged"),
        (outcomes.everything_is_counted, broken.CountsWhatHasEnded, "waiting=6, claimed=1, dead_letters=1"),
        (outcomes.a_closed_end_cannot_be_looked_at, broken.AcceptsAfterClose, "was not refused"),
    ],
)
def test_a_check_says_what_it_saw(check: object, kind: type[MemoryJournal], said: str) -> None:
    assert said in complaint(check, kind)
