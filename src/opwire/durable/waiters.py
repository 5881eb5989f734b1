"""The callers of one end of a journal that wait for outcomes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from opwire.deadlines import Deadlines
from opwire.durable.journal import Outcome
from opwire.errors import CallError
from opwire.tasks import resolve

RECHECK = 5.0
"""Seconds between two lookups of an awaited outcome, in an engine whose notifications may get lost."""

Fetch = Callable[[], Awaitable[Outcome | None]]


class PendingReply(NamedTuple):
    """A task that is being stored: the reply of the engine, and how to read it. An outcome may be known already."""

    reply: asyncio.Future[Any]
    read: Callable[[Any], Outcome | None]

    def settle(self, waiting: asyncio.Future[Outcome | None], reply: asyncio.Future[Any]) -> None:
        """End the wait of a caller if the reply is an outcome or an error. Nearly always it is neither."""
        if reply.cancelled():  # by the caller itself
            return
        try:
            known = self.read(reply.result())
        except Exception as error:
            if not waiting.done():
                waiting.set_exception(error)
        else:
            if known is not None and not waiting.done():
                waiting.set_result(known)


class OutcomeWaiters:
    """The callers that wait for outcomes, by idempotency key; outcomes are looked up every `recheck` seconds."""

    def __init__(self, recheck: float = RECHECK) -> None:
        self._recheck = recheck
        self._futures: dict[str, set[asyncio.Future[Outcome | None]]] = {}
        self._deadlines = Deadlines()

    def __contains__(self, key: str) -> bool:
        return key in self._futures

    async def wait(
        self, key: str, timeout: float, fetch: Fetch, first: Fetch | None = None, submission: PendingReply | None = None
    ) -> Outcome | None:
        """Wait for `resolve` or for `fetch` to return an outcome; return None after `timeout` seconds.

        `first` replaces the first `fetch`. An outcome that is resolved while it runs is not missed. So does the reply
        of a `submission`, which has arrived when this returns; a caller does not wake up for it: 10 µs.
        """
        loop, end = asyncio.get_running_loop(), time.monotonic() + timeout
        future: asyncio.Future[Outcome | None] = loop.create_future()
        futures = self._futures.setdefault(key, set())
        futures.add(future)
        if submission is not None:
            submission.reply.add_done_callback(partial(submission.settle, future))
        try:
            known = None if submission is not None else await (first or fetch)()
            while known is None:
                now = time.monotonic()
                tick = self._deadlines.add(future, min(end, now + self._recheck), resolve)
                try:
                    known = await future
                finally:
                    self._deadlines.discard(future, tick)
                if submission is not None:
                    # An outcome counts when the reply has arrived: the key may belong to the call of another caller.
                    known, submission = submission.read(await submission.reply) or known, None
                if known is not None or end - now <= self._recheck:
                    break
                futures.discard(future)
                future = loop.create_future()
                futures.add(future)
                known = await fetch()
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
