"""The state of a journal, against a model: after any events, a task has one owner at a time and one outcome at most."""

from dataclasses import dataclass, field
from math import inf, nan

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from opwire import CallError
from opwire.durable import Claim, MemoryJournal, MemoryJournalState, Outcome
from opwire.durable.journal import MAX_SECONDS
from opwire.errors import UsageError
from tests.durable.samples import claim as made_up
from tests.durable.samples import outcome, task
from tests.properties import examples

NAMES = ("a", "b", "c")
KEYS = st.sampled_from(NAMES)
OPERATIONS = ("shop.order", "shop.cancel")
LEASE, KEEP = 10.0, 100.0


@dataclass
class Life:
    """What the model knows of a key from its submission on, until it is purged, replayed or forgotten."""

    due: float = 0.0
    claims: list[Claim] = field(default_factory=list)
    failures: int = 0
    losses: int = 0
    lone_losses: int = 0
    lost: bool = False
    alone: bool = False
    released: bool = False
    outcome: Outcome | None = None
    expires: float = inf

    @property
    def held(self) -> bool:
        return bool(self.claims) and not self.released

    def owned_by(self, claim: Claim) -> bool:
        return self.outcome is None and not self.released and self.claims[-1:] == [claim]

    def is_claimed(self, claim: Claim) -> None:
        if self.held:
            self.losses, self.lone_losses, self.lost = self.losses + 1, self.lone_losses + self.alone, True
        self.claims.append(claim)
        self.released = self.alone = False
        told = (claim.attempt, claim.failures, claim.losses, claim.lone_losses, claim.suspect)
        assert told == (len(self.claims), self.failures, self.losses, self.lone_losses, self.lost)


class JournalMachine(RuleBasedStateMachine):
    """Time passes, workers come back late, tasks are given up and replayed."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.state = MemoryJournalState(KEEP)
        self.now = 1000.0
        self.number = 0
        self.lives: dict[str, Life] = {}

    @rule(seconds=st.sampled_from([1.0, LEASE, KEEP]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.lives = {key: life for key, life in self.lives.items() if life.expires > self.now}

    @rule(key=KEYS)
    def submit(self, key: str) -> None:
        life = self.lives.setdefault(key, Life())
        assert self.state.submit(task(key, OPERATIONS[key == "c"]), self.now) == life.outcome

    @rule(target=claims, limit=st.integers(1, 3), both=st.booleans(), suspects=st.booleans())
    def claim(self, limit: int, both: bool, suspects: bool) -> object:
        due = {
            key: life.lost or life.held
            for key, life in self.lives.items()
            if life.outcome is None and life.due <= self.now and (both or key != "c")
        }
        claims = self.state.claim(OPERATIONS if both else OPERATIONS[:1], LEASE, limit, self.now, suspects=suspects)
        one_suspect = suspects and any(due.values())
        assert len(claims) == (1 if one_suspect else min(limit, len(due) - sum(due.values())))
        for claim in claims:
            assert due.pop(claim.task.key) == one_suspect == claim.suspect
            life = self.lives[claim.task.key]
            life.is_claimed(claim)
            life.due = self.now + LEASE
        return multiple(*claims)

    @rule(claim=claims, alone=st.booleans())
    def renew(self, claim: Claim, alone: bool) -> None:
        life = self.lives.get(claim.task.key, Life())
        kept = self.state.renew(claim, self.now, alone=alone)
        assert kept == life.owned_by(claim)
        if kept:
            life.due, life.alone = self.now + LEASE, alone

    @rule(claim=claims, delay=st.sampled_from([0.0, 5.0]), failed=st.booleans())
    def release(self, claim: Claim, delay: float, failed: bool) -> None:
        life = self.lives.get(claim.task.key, Life())
        self.state.release(claim, delay, self.now, failed=failed)
        if life.owned_by(claim):
            life.due, life.released = self.now + delay, True
            life.failures, life.lost = life.failures + failed, life.lost and not failed

    @rule(claim=claims, dead_letter=st.booleans())
    def record(self, claim: Claim, dead_letter: bool) -> None:
        self.number += 1
        mine = outcome(claim, self.number, dead_letter=dead_letter, recorded=self.number)
        life = self.lives.get(claim.task.key, Life())
        if life.outcome is None and claim in life.claims:
            life.outcome, life.expires = mine, inf if dead_letter else self.now + KEEP
        self.state.outcome("", self.now)  # forgets what has expired
        assert self.state.record(claim, mine, self.now) == life.outcome

    @rule(key=KEYS)
    def replay(self, key: str) -> None:
        life = self.lives.get(key, Life())
        dead_letter = life.outcome is not None and life.outcome.dead_letter
        assert self.state.replay(key) == dead_letter
        if dead_letter:
            self.lives[key] = Life()

    @rule(key=KEYS)
    def purge(self, key: str) -> None:
        ended = self.lives.get(key, Life()).outcome is not None
        self.state.outcome("", self.now)
        assert self.state.purge(key) == ended
        if ended:
            del self.lives[key]

    @invariant()
    def what_is_told_is_true(self) -> None:
        lives = self.lives.values()
        for key in NAMES:
            assert self.state.outcome(key, self.now) == self.lives.get(key, Life()).outcome
        dead_letter = sorted(
            (life.outcome for life in lives if life.outcome and life.outcome.dead_letter), key=_recorded
        )
        assert list(self.state.dead_letters(None)) == dead_letter
        counts = self.state.info()
        assert sum(info.dead_letters for info in counts) == len(dead_letter)
        open_ = [life for life in lives if life.outcome is None]
        assert sum(info.claimed for info in counts) == sum(life.held for life in open_)
        assert sum(info.waiting + info.claimed for info in counts) == len(open_)


def _recorded(outcome: Outcome) -> int:
    return outcome.recorded


class TestJournal(JournalMachine.TestCase):
    settings = settings(max_examples=examples(150), stateful_step_count=40)


def test_the_next_look_is_due_when_the_first_lease_or_delay_is_over() -> None:
    state = MemoryJournalState()
    assert state.due(["shop.order"]) is None
    for key in ("a", "b"):
        state.submit(task(key), 0)
    state.claim(["shop.order"], 30, 1, 0)
    (second,) = state.claim(["shop.order"], 20, 1, 0)
    assert state.due(["shop.order"]) == 20
    state.release(second, 5, 0)
    assert state.due(["shop.order", "shop.unknown"]) == 5
    assert state.due(["shop.unknown"]) is None


def test_what_was_released_goes_before_what_came_later() -> None:
    state = MemoryJournalState()
    for key in ("old", "new"):
        state.submit(task(key), 0)
    (old,) = state.claim(["shop.order"], 30, 1, 0)
    state.release(old, 1, 0)
    assert [each.task.key for each in state.claim(["shop.order"], 30, 2, 1)] == ["old", "new"]


def test_watchers_are_notified_of_claimable_and_ended_tasks() -> None:
    told: list[object] = []

    class Watcher(MemoryJournal):
        def claimable(self) -> None:
            told.append("claimable")

        def ended(self, outcome: Outcome) -> None:
            told.append(outcome)

    state = MemoryJournalState()
    state.listeners.add(Watcher())
    state.submit(task(), 0)
    (claim,) = state.claim(["shop.order"], 30, 1, 0)
    state.release(claim, 0, 0)
    (claim,) = state.claim(["shop.order"], 30, 1, 0)
    done = outcome(claim, dead_letter=True)
    state.record(claim, done, 0)
    state.record(claim, outcome(claim), 0)
    state.replay("k")
    assert told == ["claimable", "claimable", done, "claimable"]


def test_a_known_key_with_another_fingerprint_is_refused() -> None:
    state = MemoryJournalState()
    state.submit(task(), 0)
    with pytest.raises(CallError, match="belongs to another call"):
        state.submit(task(fingerprint="other"), 0)


def test_an_outcome_of_an_unknown_task_is_not_recorded() -> None:
    assert MemoryJournalState().record(made_up(), outcome(made_up()), 0) is None


@pytest.mark.parametrize("delay", [inf, nan, 10**400, -(10**400)], ids=lambda value: f"{value!r:.9}")
def test_the_state_stays_consistent_for_any_requested_delay(delay: float) -> None:
    state = MemoryJournalState()
    for key in ("odd", "even"):
        state.submit(task(key), 0)
    (odd,) = state.claim(["shop.order"], 30, 1, 0)
    state.release(odd, delay, 0)
    assert "even" in [claim.task.key for claim in state.claim(["shop.order"], 2 * MAX_SECONDS, 1, 0)] or not delay > 0
    assert "odd" in [claim.task.key for claim in state.claim(["shop.order"], 30, 1, MAX_SECONDS + 1)] or not delay > 0


@pytest.mark.parametrize("keep", [0, -1, inf, nan, 10**400], ids=lambda value: f"{value!r:.9}")
def test_an_invalid_time_to_keep_outcomes_is_rejected(keep: float) -> None:
    with pytest.raises(UsageError, match="keep is a number of seconds above 0"):
        MemoryJournalState(keep)
