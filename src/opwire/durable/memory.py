"""`MemoryJournal`: durable calls within one process, for tests and for programs that do not need an engine yet.

`MemoryJournalState` holds the tasks and decides everything, without I/O, clock and asyncio tasks. `MemoryJournal` adds
waiting. Everything is lost with the process.

Rules of the state:
1. A task is claimed until its lease expires, and belongs to the holder of the receipt of the latest claim.
2. The first outcome stands. A receipt of an earlier life of a key (before it was purged or replayed) is ignored.
3. Queues may hold stale elements; the entry itself says when it is due, and whether it is a suspect.
4. A lease that expires is a loss, and makes its task a suspect. Suspects have queues of their own, and are claimed one
   at a time.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from math import inf

from msgspec import Struct

from opwire.durable.journal import (
    DEFAULT_KEEP_SECONDS,
    MAX_SECONDS,
    Claim,
    JournalInfo,
    Outcome,
    PendingTask,
    Task,
    check_seconds,
    key_in_use,
    seconds_within,
)
from opwire.durable.waiters import OutcomeWaiters
from opwire.errors import CallError, ErrorCode
from opwire.runtime.tasks import AsyncResource, reject, resolve


class JournalEntry(Struct, eq=False, gc=False):
    """A task, its attempts and its outcome."""

    task: Task
    number: int  # of its submission: older ones go first
    due: float = 0.0  # when it can be claimed: at once, after a delay, or when its lease expires
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    lone_losses: int = 0
    lost: bool = False  # its last attempt was lost: it is a suspect
    alone: bool = False  # its worker runs nothing else
    claimed: bool = False
    outcome: Outcome | None = None

    @property
    def receipt(self) -> str:
        return f"{self.number}/{self.attempts}"

    @property
    def suspect(self) -> bool:
        """Whether it would be a suspect if it were claimed now."""
        return self.lost or self.claimed

    def claim(self, lease: float) -> Claim:
        """Begin another attempt. If it is still claimed, that attempt was lost."""
        if self.claimed:
            self.losses += 1
            self.lone_losses += self.alone
            self.lost = True
        self.attempts += 1
        self.claimed, self.alone = True, False
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


class TaskQueue(Struct, eq=False):
    """The tasks of one operation that are not claimed: ready ones, ready suspects, and those that are due later."""

    ready: list[tuple[int, str]] = []  # number and key
    suspects: list[tuple[int, str]] = []
    later: list[tuple[float, int, str]] = []  # due time, number and key


class MemoryJournalState:
    """What several `MemoryJournal`s share. Outcomes expire after `keep` seconds, dead letters never.

    Raises:
        UsageError: `keep` is invalid.
    """

    def __init__(self, keep: float = DEFAULT_KEEP_SECONDS) -> None:
        self.listeners: set[MemoryJournal] = set()  # the open ones
        self._keep = check_seconds("keep", keep)
        self.entries: dict[str, JournalEntry] = {}  # by idempotency key
        self.queues: dict[str, TaskQueue] = {}  # by operation
        self._expiring: deque[tuple[float, JournalEntry]] = deque()  # with the time of expiry, the oldest first
        self._submissions = 0

    # --- tasks --------------------------------------------------------------------------------------------------------

    def submit(self, task: Task, now: float) -> Outcome | None:
        """Store a task, unless its key is known; return its outcome, if any.

        Raises:
            CallError: VALIDATION_ERROR, the key is known with another fingerprint.
        """
        self._expire(now)
        entry = self.entries.get(task.key)
        if entry is None:
            self.enter(task)
            return None
        if entry.task.fingerprint != task.fingerprint:
            raise key_in_use(task.key)
        return entry.outcome

    def enter(self, task: Task) -> None:
        """Store a task, as a new one."""
        self._submissions += 1
        self.entries[task.key] = JournalEntry(task, self._submissions)
        queue = self.queues.setdefault(task.operation_id, TaskQueue())
        heappush(queue.ready, (self._submissions, task.key))
        for listener in tuple(self.listeners):
            listener.claimable()

    def claim(
        self, operation_ids: Sequence[str], lease: float, limit: int, now: float, *, suspects: bool = True
    ) -> list[Claim]:
        """Claim tasks that are due, the oldest first: one suspect, or up to `limit` others."""
        queues = [self.queues[operation_id] for operation_id in operation_ids if operation_id in self.queues]
        for queue in queues:
            while queue.later and queue.later[0][0] <= now:
                _, number, key = heappop(queue.later)
                entry = self._unfinished(number, key)
                if entry is not None:
                    heappush(queue.suspects if entry.suspect else queue.ready, (number, key))
        if suspects and (entry := self._take([queue.suspects for queue in queues], now, suspect=True)) is not None:
            return [self._claim(entry, lease, now)]
        claims, ready = list[Claim](), [queue.ready for queue in queues]
        while len(claims) < limit and (entry := self._take(ready, now, suspect=False)) is not None:
            claims.append(self._claim(entry, lease, now))
        return claims

    def _claim(self, entry: JournalEntry, lease: float, now: float) -> Claim:
        claim = entry.claim(lease)
        self.postpone(entry, now + lease)
        return claim

    def _take(self, heaps: list[list[tuple[int, str]]], now: float, *, suspect: bool) -> JournalEntry | None:
        """Remove the oldest entry of these heaps and return it, and drop stale elements on the way."""
        oldest_entry: JournalEntry | None = None
        oldest_heap: list[tuple[int, str]] = []
        for heap in heaps:
            while heap:
                entry = self._unfinished(*heap[0])
                if entry is not None and entry.due <= now and entry.suspect == suspect:
                    if oldest_entry is None or entry.number < oldest_entry.number:
                        oldest_entry = entry
                        oldest_heap = heap
                    break
                heappop(heap)
        if oldest_entry is not None:
            heappop(oldest_heap)
        return oldest_entry

    def due(self, operation_ids: Sequence[str]) -> float | None:
        """Return the time of the next claimable task, if nothing happens before; it may be too early."""
        queues = [self.queues[operation_id] for operation_id in operation_ids if operation_id in self.queues]
        return min((queue.later[0][0] for queue in queues if queue.later), default=None)

    def _unfinished(self, number: int, key: str) -> JournalEntry | None:
        entry = self.entries.get(key)
        return entry if entry is not None and entry.number == number and entry.outcome is None else None

    def postpone(self, entry: JournalEntry, due: float) -> None:
        """Set when a task can be claimed: at once, after a delay, or when its lease expires."""
        entry.due = due
        heappush(self.queues[entry.task.operation_id].later, (due, entry.number, entry.task.key))

    def renew(self, claim: Claim, now: float, *, alone: bool = False) -> bool:
        """Extend the lease of a task; return False if it was lost."""
        entry = self._owned(claim)
        if entry is not None:
            entry.alone = alone
            self.postpone(entry, now + claim.lease)
        return entry is not None

    def release(self, claim: Claim, delay: float, now: float, *, failed: bool = False) -> None:
        """Return a task to its queue after a delay."""
        entry = self._owned(claim)
        if entry is None:
            return
        entry.claimed = False
        if failed:
            entry.failures += 1
            entry.lost = False
        self.postpone(entry, now + seconds_within(delay, MAX_SECONDS))
        for listener in tuple(self.listeners):
            listener.claimable()

    def _owned(self, claim: Claim) -> JournalEntry | None:
        """Return the entry if this is the receipt of its latest claim."""
        entry = self.entries.get(claim.task.key)
        owned = entry is not None and entry.claimed and entry.outcome is None and entry.receipt == claim.receipt
        return entry if owned else None

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def record(self, claim: Claim, outcome: Outcome, now: float) -> Outcome | None:
        """End a task, unless it has ended; return its outcome, or None if it does not exist any more."""
        entry = self.entries.get(claim.task.key)
        if entry is None:
            return None
        if entry.outcome is None:
            if claim.receipt.partition("/")[0] != str(entry.number):
                return None
            self._end(entry, outcome, now)
        return entry.outcome

    def cancel(self, outcome: Outcome, now: float) -> Outcome | None:
        """End a task that is not claimed; return its outcome, or None if it is claimed or does not exist."""
        entry = self.entries.get(outcome.key)
        if entry is None or entry.task.operation_id != outcome.operation_id:
            return None
        if entry.outcome is None and not entry.claimed:
            self._end(entry, outcome, now)
        return entry.outcome

    def _end(self, entry: JournalEntry, outcome: Outcome, now: float) -> None:
        entry.outcome = outcome
        if not outcome.dead_letter:
            self._expiring.append((now + self._keep, entry))
        for listener in tuple(self.listeners):
            listener.ended(outcome)

    def outcome(self, key: str, now: float) -> Outcome | None:
        """Return the outcome of a task, or None."""
        self._expire(now)
        entry = self.entries.get(key)
        return None if entry is None else entry.outcome

    def dead_letters(self, operation_id: str | None) -> Iterator[Outcome]:
        """Iterate over the outcomes of dead letters, the oldest first."""
        outcomes = (entry.outcome for entry in self.entries.values() if entry.outcome is not None)
        dead_letters = [outcome for outcome in outcomes if outcome.dead_letter]
        matching = [outcome for outcome in dead_letters if operation_id in (None, outcome.operation_id)]
        return iter(sorted(matching, key=lambda outcome: outcome.recorded))

    def pending(self, operation_id: str) -> Iterator[PendingTask]:
        """Iterate over the tasks of an operation that wait or run, the oldest first."""
        unfinished = [entry for entry in self.entries.values() if entry.outcome is None]
        for entry in sorted(unfinished, key=lambda entry: entry.number):
            task = entry.task
            if task.operation_id == operation_id:
                yield PendingTask(
                    key=task.key,
                    operation_id=operation_id,
                    submitted=task.submitted,
                    claimed=entry.claimed,
                    attempts=entry.attempts,
                )

    def replay(self, key: str) -> bool:
        """Submit a dead letter again, as a new one; return False if it does not exist."""
        entry = self.entries.get(key)
        if entry is None or entry.outcome is None or not entry.outcome.dead_letter:
            return False
        self.enter(entry.task)
        return True

    def purge(self, key: str) -> bool:
        """Delete an ended task; return False if it does not exist."""
        entry = self.entries.get(key)
        if entry is None or entry.outcome is None:
            return False
        del self.entries[key]
        return True

    def info(self) -> list[JournalInfo]:
        """Return the task counts of each operation."""
        counts: dict[str, list[int]] = {operation_id: [0, 0, 0] for operation_id in self.queues}
        for entry in self.entries.values():
            outcome = entry.outcome
            if outcome is None or outcome.dead_letter:
                counts[entry.task.operation_id][2 if outcome else int(entry.claimed)] += 1
        return [
            JournalInfo(operation_id=operation_id, waiting=waiting, claimed=claimed, dead_letters=dead_letters)
            for operation_id, (waiting, claimed, dead_letters) in counts.items()
        ]

    def _expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            _, entry = self._expiring.popleft()
            if self.entries.get(entry.task.key) is entry:  # otherwise it was purged, and perhaps submitted again
                del self.entries[entry.task.key]


class MemoryJournal(AsyncResource):
    """A `Journal` in this process.

        async with MemoryJournal() as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    Journals with the same `state` are peers of the same journal. After `close` every method raises UNAVAILABLE.
    """

    name = "the journal in memory"
    trusted = True

    def __init__(self, state: MemoryJournalState | None = None, *, keep: float = DEFAULT_KEEP_SECONDS) -> None:
        self.state = MemoryJournalState(keep) if state is None else state
        self._waiting_claims: set[asyncio.Future[None]] = set()
        self._waiters = OutcomeWaiters(inf)  # nothing gets lost on the way
        self._is_open = False

    def __repr__(self) -> str:
        return f"<MemoryJournal{'' if self._is_open else ', not open'}>"

    async def start(self) -> None:
        """Open the journal."""
        self._is_open = True
        self._waiters.bind()
        self.state.listeners.add(self)

    async def close(self) -> None:
        """Close the journal; pending waits raise UNAVAILABLE."""
        self._is_open = False
        self.state.listeners.discard(self)
        self._waiters.fail(_closed())
        for future in self._waiting_claims:
            reject(future, _closed())

    def _opened(self) -> MemoryJournalState:
        if not self._is_open:
            raise _closed()
        return self.state

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def submit(self, task: Task, *, wait: float = 0.0) -> Outcome | None:
        """Store a task, unless its key is known; return its outcome, waiting for it up to `wait` seconds.

        Raises:
            CallError: VALIDATION_ERROR, the key is known with another fingerprint.
        """
        now = time.monotonic()
        return self._opened().submit(task, now) or await self._outcome_until(now + wait, task.key)

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """Claim the next tasks of these operations, waiting up to `wait` seconds."""
        deadline = time.monotonic() + wait
        while True:
            now = time.monotonic()
            claims = self._opened().claim(operation_ids, lease, limit, now, suspects=suspects)
            if claims or now >= deadline:
                return claims
            due = self.state.due(operation_ids)
            wake_up_time = deadline if due is None else min(due, deadline)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_claims.add(future)
            try:
                async with asyncio.timeout(wake_up_time - time.monotonic()):
                    await future
            except TimeoutError:
                pass
            finally:
                self._waiting_claims.discard(future)

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Extend the lease of a task; return False if it was lost."""
        return self._opened().renew(claim, time.monotonic(), alone=alone)

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """End a task; return its outcome."""
        return self._opened().record(claim, outcome, time.monotonic())

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Return a task, to be claimed again after `delay` seconds."""
        self._opened().release(claim, delay, time.monotonic(), failed=failed)

    async def cancel(self, outcome: Outcome) -> Outcome | None:
        """End a task that is not claimed; return its outcome, or None if it is claimed or does not exist."""
        return self._opened().cancel(outcome, time.monotonic())

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a task, or None."""
        return self._opened().outcome(key, time.monotonic())

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task; return None after `timeout` seconds."""
        now = time.monotonic()
        return self._opened().outcome(key, now) or await self._outcome_until(now + timeout, key)

    async def _outcome_until(self, deadline: float, key: str) -> Outcome | None:
        with self._waiters.waiting(key) as waiter:
            return await waiter.outcome(deadline, partial(self.outcome, key))

    async def dead_letters(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """Iterate over the outcomes of dead letters, the oldest first."""
        for outcome in self._opened().dead_letters(operation_id):
            yield outcome

    async def pending(self, operation_id: str, *, limit: int = 100) -> list[PendingTask]:
        """Return the tasks of an operation that wait or run, the oldest first, at most `limit`."""
        return list(islice(self._opened().pending(operation_id), limit))

    async def replay(self, key: str) -> bool:
        """Submit a dead letter again."""
        return self._opened().replay(key)

    async def purge(self, key: str) -> bool:
        """Delete an ended task with its outcome."""
        return self._opened().purge(key)

    async def info(self) -> list[JournalInfo]:
        """Return the task counts of each operation."""
        return self._opened().info()

    # --- callbacks of the state ---------------------------------------------------------------------------------------

    def claimable(self) -> None:
        """Wake pending claims."""
        for future in self._waiting_claims:
            resolve(future)

    def ended(self, outcome: Outcome) -> None:
        """Wake pending waits for this outcome."""
        self._waiters.resolve(outcome)


def _closed() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the journal in memory is closed")
