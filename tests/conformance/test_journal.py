"""The contract of journals: what is shipped passes it, what is broken does not."""

import inspect
from collections.abc import Callable

import pytest

from opwire.durable import Journal, MemoryJournal, MemoryJournalState
from opwire.durable.redis.journal import RedisJournal
from opwire_conformance.journal import JOURNAL_CONTRACT, check_journal
from tests.chaos.virtual_time import run_virtually
from tests.durable import broken
from tests.servers.brokers import RedisServer

Connect = Callable[[], Journal]


def memory(kind: type[MemoryJournal] = MemoryJournal) -> Connect:
    state = MemoryJournalState()
    return lambda: kind(state)


@pytest.mark.parametrize("promise", JOURNAL_CONTRACT)
def test_the_journal_in_memory_keeps_its_promise(promise: str) -> None:
    """The journal in memory keeps the whole contract, in virtual time too."""
    run_virtually(JOURNAL_CONTRACT[promise](memory()))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("promise", JOURNAL_CONTRACT)
async def test_the_journal_in_redis_keeps_its_promise(promise: str, redis_server: RedisServer) -> None:
    """The journal in Redis Streams keeps the whole contract on a real server."""
    await JOURNAL_CONTRACT[promise](lambda: RedisJournal(redis_server.url))


def test_check_journal_runs_the_whole_contract_on_one_journal() -> None:
    run_virtually(check_journal(memory()))


AS_SUBMITTED = "tasks are claimed as they were submitted"
SAME_TASK = "a key that is known is the same task"
ONE_CALL = "a key that is known stands for one call"
ONE_WORKER = "a task is claimed by one worker at a time"
OLDEST = "the oldest task goes first"
OTHERS = "tasks of other operations are not claimed"
WAITS = "a claim waits for a task"
RUN_OUT = "a task whose lease has run out is claimed again"
LENGTH = "a lease is as long as its claim says"
RENEWED = "a lease that is renewed is kept"
LOST = "a lease that was lost cannot be renewed"
RELEASED = "a released task comes back after its delay"
NOT_RELEASED = "a lost lease releases nothing"
OUTLIVE = "tasks outlive their submitters"
CLOSED = "a closed end refuses, and can be closed again"
APART = "losses are counted apart from failures"
ALONE = "only a task that was alone is blamed for a loss"
ONE_SUSPECT = "suspects are claimed one at a time"
LEFT_OUT = "suspects can be left out"
CLEARED = "a suspect is cleared by a failure only"
INNOCENT = "every task that can run is run beside those that kill their worker"
KEPT = "an outcome is kept as it was recorded"
FIRST = "the first outcome stands"
TOGETHER = "outcomes that are recorded together end their own tasks"
ENDED = "a task that has ended stays ended"
STILL_ENDS = "a task that was released can still end"
TOLD = "every waiting caller gets the outcome"
IN_TIME = "waiting for an outcome ends in time"
SUBMITTED = "a submission waits for the outcome"
CANCELLED = "a task that waits can be cancelled"
BEGUN = "a task that has begun is not cancelled"
DEAD_LETTERS = "dead letters are listed, the oldest first"
REPLAYED = "a dead letter can be replayed"
FORMER = "a claim from before a replay ends nothing"
PURGED = "a purged key can be used again"
COUNTED = "everything is counted"
LISTED = "what waits or runs is listed"
NOT_LOOKED_AT = "a closed end cannot be looked at"

CAUGHT: dict[type[MemoryJournal], set[str]] = {
    broken.ForgetsFields: {AS_SUBMITTED},
    broken.SubmitsTwice: {SAME_TASK, ONE_WORKER},
    broken.IgnoresFingerprints: {AS_SUBMITTED, ONE_CALL},
    broken.LendsToEverybody: {ONE_WORKER, RENEWED},
    broken.TakesTooMany: {ONE_WORKER},
    broken.NewestFirst: {OLDEST},
    broken.ClaimsWhateverThereIs: {OTHERS},
    broken.SleepsBetweenLooks: {WAITS},
    broken.LendsForEver: {RUN_OUT, LOST, AS_SUBMITTED},
    broken.HasOneLeaseForAll: {LENGTH},
    broken.PretendsToRenew: {RENEWED, LOST, ENDED, CLOSED},
    broken.CountsRenewals: {RENEWED, LOST, ENDED},
    broken.ReleasesAtOnce: {RELEASED},
    broken.ReleasesForAnybody: {NOT_RELEASED, FORMER},
    broken.TakesItsTasksAlong: {OUTLIVE},
    broken.AcceptsAfterClose: {CLOSED, NOT_LOOKED_AT},
    broken.CannotBeClosedTwice: {CLOSED},
    broken.ForgetsWhoWaitsWhenItCloses: {CLOSED},
    broken.ChangesEvents: {KEPT},
    broken.TheLastOutcomeStands: {FIRST},
    broken.RecordsForOwnersOnly: {FIRST, STILL_ENDS},
    broken.ForgetsThatTasksHaveEnded: {FIRST, ENDED, STILL_ENDS},
    broken.TellsOne: {TOLD},
    broken.WaitsForEver: {IN_TIME},
    broken.SubmitsAndForgets: {SUBMITTED},
    broken.SubmitsForEver: {SUBMITTED},
    broken.ListsTheNewestFirst: {DEAD_LETTERS},
    broken.GoesOnCountingAfterAReplay: {REPLAYED},
    broken.MixesUpLives: {FORMER},
    broken.PurgesAnything: {PURGED},
    broken.PurgesNothing: {PURGED},
    broken.CountsWhatHasEnded: {COUNTED},
    broken.ListsWhatRunsAsWaiting: {LISTED},
    broken.CountsLossesAsFailures: {APART, CLEARED},
    broken.BlamesEverybody: {ALONE, INNOCENT},
    broken.BlamesNobody: {ALONE, INNOCENT},
    broken.StaysAlone: {ALONE},
    broken.HandsOutSuspectsTogether: {ONE_SUSPECT},
    broken.HandsOutSuspectsUnasked: {LEFT_OUT},
    broken.KeepsSuspectsForItself: {LEFT_OUT},
    broken.ClearsWhatIsReleased: {CLEARED},
    broken.SuspectsForEver: {APART, CLEARED},
    broken.CancelsWhatRuns: {BEGUN},
    broken.CancelsWhatHasEnded: {BEGUN},
    broken.CancelsNothing: {CANCELLED},
    broken.RunsWhatWasCancelled: {CANCELLED},
    broken.CancelsInSilence: {CANCELLED},
    broken.RecordsTheFirstOnly: {TOGETHER},
    broken.MixesUpReplies: {TOGETHER},
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "expected"), CAUGHT.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_journal_is_caught(kind: type[MemoryJournal], expected: set[str]) -> None:
    complaints: dict[str, str] = {}
    for promise, check in JOURNAL_CONTRACT.items():
        try:
            run_virtually(check(memory(kind)))  # pyright: ignore[reportArgumentType]
        except AssertionError as error:
            complaints[promise] = str(error)
    assert expected <= complaints.keys()
    for promise, complaint in complaints.items():
        assert complaint.startswith(f"broken promise: {promise}: ")


def test_every_promise_is_broken_by_some_journal() -> None:
    assert set().union(*CAUGHT.values()) == set(JOURNAL_CONTRACT)


def test_every_broken_journal_is_tried() -> None:
    kinds = {each for each in vars(broken).values() if inspect.isclass(each) and issubclass(each, MemoryJournal)}
    assert kinds - {MemoryJournal} == set(CAUGHT)


def test_check_journal_names_the_promise_that_is_broken() -> None:
    with pytest.raises(AssertionError, match=f"broken promise: {COUNTED}"):
        run_virtually(check_journal(memory(broken.CountsWhatHasEnded)))
