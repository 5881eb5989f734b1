"""What the checks of losses say when they fail, so that the author of a journal finds the place."""

import pytest

from opwire.durable import MemoryJournal
from opwire_conformance import journal_tasks as suspects
from tests.conformance.test_journal_tasks import complaint
from tests.durable import broken


@pytest.mark.parametrize(
    ("check", "kind", "said"),
    [
        (suspects.losses_are_counted_apart_from_failures, broken.CountsLossesAsFailures, "1 losses are counted as (1,"),
        (suspects.only_a_lone_task_is_blamed, broken.BlamesNobody, "a loss alone is counted as (0, 1, 0, True)"),
        (suspects.only_a_lone_task_is_blamed, broken.StaysAlone, "and one with others, are counted as (0, 2, 2, True)"),
        (suspects.suspects_come_one_at_a_time, broken.HandsOutSuspectsTogether, "were claimed with suspects=True"),
        (suspects.suspects_can_be_left_out, broken.HandsOutSuspectsUnasked, "were claimed with suspects=False"),
        (suspects.a_suspect_is_cleared_by_a_failure, broken.ClearsWhatIsReleased, "that was released has the past"),
        (suspects.innocents_are_run_beside_poison, broken.BlamesEverybody, "were given up"),
        (suspects.innocents_are_run_beside_poison, broken.BlamesNobody, "[] were given up"),
    ],
)
def test_a_check_says_what_it_saw(check: object, kind: type[MemoryJournal], said: str) -> None:
    assert said in complaint(check, kind)
