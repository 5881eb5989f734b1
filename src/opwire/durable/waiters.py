"""The callers of one end of a journal that wait for outcomes."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from opwire.deadlines import Deadlines
from opwire.durable.journal import Outcome
from opwire.errors import CallError

RECHECK = 5.0
"""Seconds between two lookups of an awaited outcome, in an engine whose notifications may get lost."""

Fetch = Callable[[], Awaitable[Outcome | None]]


class OutcomeWaiters:
    """The callers that wait for outcomes, by idempotency key; outcomes are looked up every `recheck` seconds."""

    def __init__(self, recheck: float = RECHECK) -> None:
        self._recheck = recheck
        self._futures: dict[str, set[asyncio.Future[Outcome | None]]] = {}
        self._deadlines = Deadlines()

    def __contains__(self, key: str) -> bool:
        return key in self._futures

    async def wait(self, key: str, timeout: float, fetch: Fetch, first: Fetch | None = None) -> Outcome | None:
        """Wait for `resolve` or for `fetch` to return an outcome; return None after `timeout` seconds.

        `first` replaces the first `fetch`. An outcome that is resolved while it runs is not missed.
        """
        loop, end = asyncio.get_running_loop(), time.monotonic() + timeout
        future: asyncio.Future[Outcome | None] = loop.create_future()
        futures = self._futures.setdefault(key, set())
        futures.add(future)
        try:
            while (known := await (first or fetch)()) is None:
                first, now = None, time.monotonic()
                tick = self._deadlines.add(future, min(end, now + self._recheck), _expire)
                try:
                    known = await future
                finally:
                    self._deadlines.discard(future, tick)
                if known is not None or end - now <= self._recheck:
                    break
                futures.discard(future)
                future = loop.create_future()
                futures.add(future)
            return known
        finally:
            if not future.cancel() and not future.cancelled():
                future.exception()  # retrieved, or asyncio logs it
            futures.discard(future)
            if not futures and self._futures.get(key) is futures:
                del self._futures[key]

    def resolve(self, outcome: Outcome) -> None:
        """Return an outcome to the callers that wait for its key."""
        for future in self._futures.get(outcome.key, ()):
            if not future.done():
                future.set_result(outcome)

    def fail(self, error: CallError, is_concerned: Callable[[str], bool] = lambda _: True) -> None:
        """Raise an error in the callers that wait for these keys; by default, for any key."""
        for key, futures in self._futures.items():
            for future in futures:
                if not future.done() and is_concerned(key):
                    future.set_exception(error)


def _expire(future: asyncio.Future[Outcome | None]) -> None:
    if not future.done():
        future.set_result(None)
