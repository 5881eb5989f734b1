"""The books of a journal that lives in this process: which tasks there are, who has them, and what came of them.

No I/O, no clock, no tasks: everything that submits, lends, ends or forgets a task is in this file.
Rule 1: a task is lent until a time, and belongs to the holder of the receipt of the latest loan.
Rule 2: the first outcome stands. A receipt of an earlier life of a key (before it was purged or replayed) ends nothing.
Rule 3: what is in a queue may be out of date; the entry itself says when it is due, and whether it is a suspect.
Rule 4: a loan that ran out is a loss, and makes its task a suspect. Suspects have queues of their own, and are lent one
at a time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol

from msgspec import Struct

from opwire.durable.journal import (
    KEEP,
    MAX_SECONDS,
    Claim,
    JournalInfo,
    Outcome,
    Task,
    check_seconds,
    key_in_use,
    seconds_within,
)


class Watcher(Protocol):
    """Whoever waits for news. Its methods return at once and raise nothing."""

    def claimable(self) -> None:
        """There may be something to claim."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """A task has ended."""
        ...


class _Entry(Struct, eq=False):
    task: Task
    born: int  # the number of its submission: older ones go first
    due: float = 0.0  # when it can be claimed: at once, after a delay, or when a lease has run out
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    lone_losses: int = 0
    lost: bool = False  # its last attempt, that is: it is a suspect
    alone: bool = False  # its worker has nothing else in hand
    lent: bool = False
    outcome: Outcome | None = None

    @property
    def receipt(self) -> str:
        return f"{self.born}/{self.attempts}"

    @property
    def suspect(self) -> bool:
        """Whether it would be one if it were lent now."""
        return self.lost or self.lent

    def lend(self, lease: float) -> Claim:
        """Begin another attempt. If it is lent still, that one was lost."""
        if self.lent:
            self.losses += 1
            self.lone_losses += self.alone
            self.lost = True
        self.attempts += 1
        self.lent, self.alone = True, False
        return Claim(
            task=self.task,
            attempt=self.attempts,
            lease=lease,
            receipt=self.receipt,
            failures=self.failures,
            losses=self.losses,
            lone_losses=self.lone_losses,
            suspect=self.lost,
        )


class _Queue(Struct, eq=False):
    """Tasks of one operation: those that can be claimed, suspects among them or not, and those that could be later."""

    ready: list[tuple[int, str]] = []  # number and key
    suspects: list[tuple[int, str]] = []
    later: list[tuple[float, int, str]] = []  # when, number and key


class Books:
    """What `MemoryJournal`s share. Outcomes are forgotten after `keep` seconds, buried ones never.

    Raises:
        CallError: VALIDATION_ERROR, if `keep` is not a time.
    """

    def __init__(self, keep: float = KEEP) -> None:
        self.watchers: set[Watcher] = set()
        self._keep = check_seconds("keep", keep)
        self._entries: dict[str, _Entry] = {}
        self._queues: dict[str, _Queue] = {}  # by operation
        self._ended: deque[tuple[float, _Entry]] = deque()  # what is to be forgotten, the oldest first
        self._births = 0

    # --- tasks --------------------------------------------------------------------------------------------------------

    def submit(self, task: Task, now: float) -> Outcome | None:
        """Keep a task, unless its key is known.

        Raises:
            CallError: VALIDATION_ERROR, if it is known with another fingerprint.
        """
        self._forget_what_expired(now)
        known = self._entries.get(task.key)
        if known is None:
            self._enter(task)
            return None
        if known.task.fingerprint != task.fingerprint:
            raise key_in_use(task.key)
        return known.outcome

    def _enter(self, task: Task) -> None:
        self._births += 1
        self._entries[task.key] = _Entry(task, self._births)
        heappush(self._queue(task).ready, (self._births, task.key))
        self._tell()

    def claim(
        self, operation_ids: Sequence[str], lease: float, limit: int, now: float, *, suspects: bool = True
    ) -> list[Claim]:
        """Lend tasks that are due, the oldest first: one suspect, or others."""
        queues = [self._queues[each] for each in operation_ids if each in self._queues]
        for queue in queues:
            self._sort(queue, now)
        if suspects and (entry := self._oldest(queues, now, suspect=True)) is not None:
            return [self._lend(entry, lease, now)]
        claims: list[Claim] = []
        while len(claims) < limit and (entry := self._oldest(queues, now, suspect=False)) is not None:
            claims.append(self._lend(entry, lease, now))
        return claims

    def _lend(self, entry: _Entry, lease: float, now: float) -> Claim:
        claim = entry.lend(lease)
        self._put_off(entry, now + lease)
        return claim

    def _sort(self, queue: _Queue, now: float) -> None:
        """Move what is due to those that can be claimed."""
        while queue.later and queue.later[0][0] <= now:
            _, born, key = heappop(queue.later)
            entry = self._unfinished(born, key)
            if entry is not None:
                heappush(queue.suspects if entry.suspect else queue.ready, (born, key))

    def _oldest(self, queues: list[_Queue], now: float, *, suspect: bool) -> _Entry | None:
        first = [entry for queue in queues if (entry := self._first(queue, now, suspect=suspect)) is not None]
        return min(first, key=lambda entry: entry.born, default=None)

    def _first(self, queue: _Queue, now: float, *, suspect: bool) -> _Entry | None:
        ready = queue.suspects if suspect else queue.ready
        while ready:
            entry = self._unfinished(*ready[0])
            if entry is not None and entry.due <= now and entry.suspect == suspect:
                return entry
            heappop(ready)
        return None

    def due(self, operation_ids: Sequence[str]) -> float | None:
        """When there will be something to claim, if nothing happens before; perhaps too early."""
        queues = [self._queues[each] for each in operation_ids if each in self._queues]
        return min((queue.later[0][0] for queue in queues if queue.later), default=None)

    def _unfinished(self, born: int, key: str) -> _Entry | None:
        entry = self._entries.get(key)
        return entry if entry is not None and entry.born == born and entry.outcome is None else None

    def _put_off(self, entry: _Entry, due: float) -> None:
        entry.due = due
        heappush(self._queue(entry.task).later, (due, entry.born, entry.task.key))

    def _queue(self, task: Task) -> _Queue:
        return self._queues.setdefault(task.operation_id, _Queue())

    def renew(self, claim: Claim, now: float, *, alone: bool = False) -> bool:
        """Lend a task for longer."""
        entry = self._lent(claim)
        if entry is not None:
            entry.alone = alone
            self._put_off(entry, now + claim.lease)
        return entry is not None

    def release(self, claim: Claim, delay: float, now: float, *, failed: bool = False) -> None:
        """Take a task back."""
        entry = self._lent(claim)
        if entry is not None:
            entry.lent = False
            if failed:
                entry.failures += 1
                entry.lost = False
            self._put_off(entry, now + seconds_within(delay, MAX_SECONDS))
            self._tell()

    def _lent(self, claim: Claim) -> _Entry | None:
        """The task, if this is the receipt of its latest loan."""
        entry = self._entries.get(claim.task.key)
        owned = entry is not None and entry.lent and entry.outcome is None and entry.receipt == claim.receipt
        return entry if owned else None

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def record(self, claim: Claim, outcome: Outcome, now: float) -> Outcome | None:
        """End a task, unless it has ended."""
        entry = self._entries.get(claim.task.key)
        if entry is None:
            return None
        if entry.outcome is None:
            if claim.receipt.partition("/")[0] != str(entry.born):
                return None
            entry.outcome = outcome
            if not outcome.buried:
                self._ended.append((now + self._keep, entry))
            for watcher in tuple(self.watchers):
                watcher.ended(outcome)
        return entry.outcome

    def outcome(self, key: str, now: float) -> Outcome | None:
        """What came of a task."""
        self._forget_what_expired(now)
        entry = self._entries.get(key)
        return None if entry is None else entry.outcome

    def buried(self, operation_id: str | None) -> Iterator[Outcome]:
        """What was given up."""
        found = [entry.outcome for entry in self._entries.values() if entry.outcome is not None]
        wanted = [each for each in found if each.buried and operation_id in (None, each.operation_id)]
        return iter(sorted(wanted, key=lambda outcome: outcome.recorded))

    def replay(self, key: str) -> bool:
        """Submit a buried task again, as if it were new."""
        entry = self._entries.get(key)
        if entry is None or entry.outcome is None or not entry.outcome.buried:
            return False
        self._enter(entry.task)
        return True

    def purge(self, key: str) -> bool:
        """Forget a task that has ended."""
        entry = self._entries.get(key)
        if entry is None or entry.outcome is None:
            return False
        del self._entries[key]
        return True

    def info(self) -> list[JournalInfo]:
        """How much there is of each operation."""
        counts: dict[str, list[int]] = {operation_id: [0, 0, 0] for operation_id in self._queues}
        for entry in self._entries.values():
            outcome = entry.outcome
            if outcome is None or outcome.buried:
                counts[entry.task.operation_id][2 if outcome else int(entry.lent)] += 1
        return [
            JournalInfo(operation_id=each, waiting=waiting, claimed=claimed, buried=buried)
            for each, (waiting, claimed, buried) in counts.items()
        ]

    def _forget_what_expired(self, now: float) -> None:
        while self._ended and self._ended[0][0] <= now:
            _, entry = self._ended.popleft()
            if self._entries.get(entry.task.key) is entry:  # otherwise it was purged, and perhaps submitted anew
                del self._entries[entry.task.key]

    def _tell(self) -> None:
        for watcher in tuple(self.watchers):
            watcher.claimable()
