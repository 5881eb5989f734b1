"""What the journals of Redis and NATS JetStream share: the forwarding to claims, and the wait for outcomes."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, Self

from opwire.durable.journal import Claim, Outcome
from opwire.errors import CallError

logger = logging.getLogger("opwire.durable")

RECHECK = 5.0  # seconds between two lookups of an awaited outcome: notifications may get lost
_GRACE = 1.0  # seconds for an orderly close


class ClaimStore(Protocol):
    """The claims of one end of a journal."""

    async def claim(
        self, operation_ids: Sequence[str], lease: float, wait: float, limit: int, *, suspects: bool
    ) -> list[Claim]:
        """Claim the next tasks of these operations."""
        ...

    async def renew(self, claim: Claim, *, alone: bool) -> bool:
        """Renew a lease."""
        ...

    async def release(self, claim: Claim, delay: float, *, failed: bool) -> None:
        """Return a task to the queue."""
        ...

    async def leave(self) -> None:
        """Return the tasks that are reserved for this end."""
        ...


class OutcomeWaiters:
    """The callers that wait for outcomes, by idempotency key."""

    def __init__(self) -> None:
        self._futures: dict[str, set[asyncio.Future[Outcome]]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._futures

    async def wait(self, key: str, timeout: float, fetch: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Wait for `resolve` or for `fetch` to return an outcome; return None after `timeout` seconds."""
        end = time.monotonic() + timeout
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        futures = self._futures.setdefault(key, set())
        futures.add(future)
        try:
            while True:
                known = await fetch()
                if known is not None:
                    return known
                left = max(0.0, end - time.monotonic())
                await asyncio.wait([future], timeout=min(left, RECHECK))
                if future.done():
                    return future.result()
                if left <= RECHECK:
                    return None
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


class BrokerJournal(ABC):
    """Base class of a `Journal` in a broker."""

    _claims: ClaimStore

    def __init__(self, name: str, *, trusted: bool) -> None:
        self.name = name
        self.trusted = trusted
        self._waiters = OutcomeWaiters()
        self._closed = False

    @abstractmethod
    async def start(self) -> None:
        """Connect.

        Raises:
            CallError: UNAVAILABLE.
        """

    @abstractmethod
    async def disconnect(self) -> None:
        """End the connections."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; pending waits raise UNAVAILABLE. A second call is a no-op."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(_GRACE):
                await self._claims.leave()
        except (CallError, TimeoutError) as error:
            logger.debug("no orderly close at %s: %s", self.name, error)
        await self.disconnect()

    async def claim(
        self, operation_ids: Sequence[str], *, lease: float, wait: float, limit: int = 1, suspects: bool = True
    ) -> list[Claim]:
        """Claim the next tasks of these operations.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._claims.claim(operation_ids, lease, wait, limit, suspects=suspects)

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Renew a lease; return False if it was lost.

        Raises:
            CallError: UNAVAILABLE.
        """
        return await self._claims.renew(claim, alone=alone)

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Return a task to the queue, to be claimed again after `delay` seconds.

        Raises:
            CallError: UNAVAILABLE.
        """
        await self._claims.release(claim, delay, failed=failed)
