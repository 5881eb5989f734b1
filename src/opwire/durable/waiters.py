"""The callers of one end of a journal that wait for outcomes."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from opwire.durable.journal import Outcome
from opwire.errors import CallError, ErrorCode
from opwire.names import limit_text
from opwire.runtime.deadlines import Deadlines
from opwire.runtime.tasks import reject, resolve

RECHECK = 5.0
"""Seconds between two lookups of an awaited outcome, in an engine that may lose notifications."""

Fetch = Callable[[], Awaitable[Outcome | None]]


class OutcomeWaiter(Struct, eq=False):
    """A caller that waits. It gets no outcome while its task is being stored, which `stored` tells.

    The outcome may be that of another caller's call under the same key: the reply of the engine is an error then.
    """

    future: asyncio.Future[None]  # woken up: there is an outcome, or it is time to look for one
    stored: bool = True
    outcome: Outcome | None = None

    def settle(self, known: Outcome | None) -> None:
        """Take the reply of the engine: the task is stored, and may have an outcome already.

        Without one, the caller does not wake up: 10 µs.
        """
        self.stored = True
        self.outcome = known or self.outcome
        if self.outcome is not None:
            resolve(self.future)

    def resolve(self, outcome: Outcome) -> None:
        """Return an outcome to the caller."""
        self.outcome = outcome
        if self.stored:
            resolve(self.future)

    def expire(self) -> None:
        """Wake the caller up: it is time to look for an outcome, or to give up."""
        resolve(self.future)

    def fail(self, error: Exception) -> None:
        """Raise an error in the caller."""
        reject(self.future, error)


class OutcomeWaiters:
    """The callers that wait for outcomes, by idempotency key; outcomes are looked up every `recheck` seconds."""

    def __init__(self, recheck: float = RECHECK) -> None:
        self._recheck = recheck
        self._waiting: dict[str, set[OutcomeWaiter]] = {}
        self._deadlines = Deadlines()

    def bind(self) -> None:
        """Use the running event loop, which is that of the journal."""
        self._deadlines.bind()

    def __contains__(self, key: str) -> bool:
        return key in self._waiting

    async def wait(
        self,
        key: str,
        timeout: float,
        fetch: Fetch | None = None,
        submit: Callable[[OutcomeWaiter], None] | None = None,
    ) -> Outcome | None:
        """Wait for an outcome that is resolved, or that `fetch` returns; return None after `timeout` seconds.

        `submit` starts to store the task, and passes the reply to `settle` or `fail`; it replaces the first `fetch`.
        An outcome that is resolved while one of them runs is not missed.

        Raises:
            CallError: an error of `submit` or `fetch`; TIMEOUT, if the task is not known to be stored by then.
        """
        loop, end = asyncio.get_running_loop(), time.monotonic() + timeout
        waiter = OutcomeWaiter(loop.create_future(), submit is None)
        waiting = self._waiting.setdefault(key, set())
        waiting.add(waiter)
        try:
            if submit is not None:
                submit(waiter)
            elif fetch is not None:
                waiter.outcome = await fetch() or waiter.outcome
            while waiter.outcome is None or not waiter.stored:
                look = time.monotonic() + self._recheck
                tick = self._deadlines.add(waiter, min(end, look), OutcomeWaiter.expire)
                try:
                    await waiter.future
                finally:
                    self._deadlines.discard(waiter, tick)
                if waiter.stored and waiter.outcome is not None:
                    break
                if end <= look:
                    return _expired(waiter, key, timeout)
                waiter.future = loop.create_future()
                if fetch is not None and waiter.stored:
                    waiter.outcome = await self.within(end, fetch) or waiter.outcome
            return waiter.outcome
        finally:
            if not waiter.future.cancel() and not waiter.future.cancelled():
                waiter.future.exception()  # retrieved, or asyncio logs it
            waiting.discard(waiter)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]

    async def within(self, end: float, fetch: Fetch) -> Outcome | None:
        """Return what `fetch` returns, or None at a monotonic time."""
        try:
            return await self._deadlines.limit(fetch, end, "no outcome")
        except CallError as error:
            if error.code is not ErrorCode.TIMEOUT:
                raise
            return None

    def resolve(self, outcome: Outcome) -> None:
        """Return an outcome to the callers that wait for its key."""
        for waiter in self._waiting.get(outcome.key, ()):
            waiter.resolve(outcome)

    def fail(self, error: CallError, is_concerned: Callable[[str], bool] = lambda _: True) -> None:
        """Raise an error in the callers that wait for these keys; by default, for any key."""
        for key, waiting in self._waiting.items():
            if is_concerned(key):
                for waiter in waiting:
                    waiter.fail(error)


def _expired(waiter: OutcomeWaiter, key: str, timeout: float) -> None:
    if not waiter.stored:
        message = f"the engine has not confirmed within {limit_text(timeout)} s that the task {key!r:.80} is stored"
        raise CallError(ErrorCode.TIMEOUT, message, {"key": key})
