"""Durable calls within one process: for tests, and for programs that want the same calls before they need an engine.

What fails is tried again, and an outcome is given to whoever asks, as elsewhere. All is lost with the process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Self

from opwire.durable.books import Books
from opwire.durable.journal import KEEP, Claim, JournalInfo, Outcome, Task
from opwire.errors import CallError, ErrorCode


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
