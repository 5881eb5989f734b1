"""The callers that wait for outcomes at one peer of a journal."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from opwire.durable.journal import Outcome
from opwire.errors import CallError
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import resolve

RECHECK_SECONDS = 5.0
"""Time between two lookups of an awaited outcome, in an engine that may lose notifications."""

Lookup = Callable[[], Awaitable[Outcome | None]]


class OutcomeWaiter:
    """A caller that waits for one outcome. What arrives before it is awaited is kept."""

    def __init__(self, deadlines: Deadlines, recheck: float) -> None:
        self._deadlines = deadlines
        self._recheck = recheck
        # Resolves to None when it is time to look for the outcome, or to give up.
        self._future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

    async def outcome(self, deadline: float, look_up: Lookup) -> Outcome | None:
        """Wait for the outcome, and look for it from time to time; return None at a monotonic time.

        Raises:
            CallError: an error of `look_up`, or of the journal.
        """
        while (now := time.monotonic()) < deadline:
            lookup_time = now + self._recheck
            tick = self._deadlines.add(self, min(deadline, lookup_time), OutcomeWaiter._wake_up)
            try:
                outcome = await self._future
            finally:
                self._deadlines.discard(self, tick)
            if outcome is None and lookup_time < deadline:
                self._future = asyncio.get_running_loop().create_future()
                outcome = await look_up()
            if outcome is not None:
                return outcome
        return None

    def _wake_up(self) -> None:
        resolve(self._future)

    def resolve(self, outcome: Outcome) -> None:
        """Return an outcome to the caller."""
        resolve(self._future, outcome)

    def fail(self, error: CallError) -> None:
        """Raise an error in the caller."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # retrieved, even if the caller never awaits it


class OutcomeWaiters:
    """The callers that wait, by idempotency key; each looks for its outcome every `recheck` seconds.

    The default is `RECHECK_SECONDS`.
    """

    def __init__(self, recheck: float | None = None) -> None:
        self._recheck = RECHECK_SECONDS if recheck is None else recheck
        self._waiters: dict[str, set[OutcomeWaiter]] = {}
        self._deadlines = Deadlines()

    def bind(self) -> None:
        """Use the running event loop, which is that of the journal."""
        self._deadlines.bind()

    def __len__(self) -> int:
        """Return the number of keys for which callers wait."""
        return len(self._waiters)

    @contextmanager
    def waiting(self, key: str) -> Generator[OutcomeWaiter]:
        """Return a waiter that gets the outcome with this key, from now until the end of the block."""
        waiter = OutcomeWaiter(self._deadlines, self._recheck)
        waiters = self._waiters.setdefault(key, set())
        waiters.add(waiter)
        try:
            yield waiter
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiters.get(key) is waiters:
                del self._waiters[key]

    def resolve(self, outcome: Outcome) -> None:
        """Return an outcome to the callers that wait for its key."""
        for waiter in self._waiters.get(outcome.key, ()):
            waiter.resolve(outcome)

    def fail(self, error: CallError, *, concerns: Callable[[str], bool] = lambda _: True) -> None:
        """Raise an error in the callers that wait for the keys that it concerns, by default for any key."""
        for key, waiters in self._waiters.items():
            if concerns(key):
                for waiter in waiters:
                    waiter.fail(error)
