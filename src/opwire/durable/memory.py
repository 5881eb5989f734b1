"""Durable calls within one process: for tests, and for programs that want the same calls before they need an engine.

What fails is tried again, and an outcome is given to whoever asks, as elsewhere. All is lost with the process.

The books of a journal that lives in this process: which tasks there are, who has them, and what came of them.

No I/O, no clock, no tasks: everything that submits, lends, ends or forgets a task is in this file.
Rule 1: a task is lent until a time, and belongs to the holder of the receipt of the latest loan.
Rule 2: the first outcome stands. A receipt of an earlier life of a key (before it was purged or replayed) ends nothing.
Rule 3: what is in a queue may be out of date; the entry itself says when it is due, and whether it is a suspect.
Rule 4: a loan that ran out is a loss, and makes its task a suspect. Suspects have queues of their own, and are lent one
at a time.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol, Self

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
from opwire.errors import CallError, ErrorCode


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


class MemoryJournal:
    """A `Journal` in this process.

        async with MemoryJournal() as journal, DurableWorker(registry, journal):
            await DurableCalls(journal).call("orders.create", {"article": "tea"}, key="order-17")

    Journals that are given the same `books` are ends of the same journal.
    """

    name = "the journal in memory"
    trusted = True

    def __init__(self, books: Books | None = None, *, keep: float = KEEP) -> None:
        self._books = Books(keep) if books is None else books
        self._claiming: set[asyncio.Future[None]] = set()
        self._waiting: dict[str, set[asyncio.Future[Outcome]]] = {}
        self._open = False

    async def start(self) -> None:
        """Begin."""
        self._open = True
        self._books.watchers.add(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End: whoever waits gets UNAVAILABLE."""
        self._open = False
        self._books.watchers.discard(self)
        for future in (*self._claiming, *(each for waiting in self._waiting.values() for each in waiting)):
            if not future.done():
                future.set_exception(_closed())

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def submit(self, task: Task) -> Outcome | None:
        """Keep a task, unless its key is known.

        Raises:
            CallError: VALIDATION_ERROR, if it is known with another fingerprint; UNAVAILABLE after `close`.
        """
        return self._here().submit(task, time.monotonic())

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """The next tasks of these operations.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        end = time.monotonic() + wait
        while True:
            now = time.monotonic()
            claims = self._here().claim(operation_ids, lease, limit, now, suspects=suspects)
            if claims or now >= end:
                return claims
            due = self._books.due(operation_ids)
            await self._news(end if due is None else min(due, end))

    async def _news(self, until: float) -> None:
        """Wait until there may be something to claim, or for a time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._claiming.add(future)
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await future
        except TimeoutError:
            pass
        finally:
            self._claiming.discard(future)

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Keep a task for another lease.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        return self._here().renew(claim, time.monotonic(), alone=alone)

    async def record(self, claim: Claim, outcome: Outcome) -> Outcome | None:
        """End a task.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        return self._here().record(claim, outcome, time.monotonic())

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Give a task back.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        self._here().release(claim, delay, time.monotonic(), failed=failed)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    async def outcome(self, key: str) -> Outcome | None:
        """What came of a task, if anything yet.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        return self._here().outcome(key, time.monotonic())

    async def wait(self, key: str, timeout: float) -> Outcome | None:
        """Wait for the outcome of a task.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        known = await self.outcome(key)
        if known is not None:
            return known
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(key, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            return None
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]

    async def buried(self, operation_id: str | None = None) -> AsyncIterator[Outcome]:
        """The tasks that were given up, the oldest first.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        for outcome in self._here().buried(operation_id):
            yield outcome

    async def replay(self, key: str) -> bool:
        """Submit a buried task again.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        return self._here().replay(key)

    async def purge(self, key: str) -> bool:
        """Forget a task that has ended.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        return self._here().purge(key)

    async def info(self) -> list[JournalInfo]:
        """How much there is of each operation.

        Raises:
            CallError: UNAVAILABLE after `close`.
        """
        return self._here().info()

    # --- what the books tell ------------------------------------------------------------------------------------------

    def claimable(self) -> None:
        """There may be something to claim."""
        for future in self._claiming:
            if not future.done():
                future.set_result(None)

    def ended(self, outcome: Outcome) -> None:
        """A task has ended."""
        for future in self._waiting.get(outcome.key, ()):
            if not future.done():
                future.set_result(outcome)

    def _here(self) -> Books:
        if not self._open:
            raise _closed()
        return self._books


def _closed() -> CallError:
    return CallError(ErrorCode.UNAVAILABLE, "the journal in memory is closed")
