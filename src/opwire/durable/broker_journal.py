"""What the journals of Redis and NATS JetStream share: opening, closing, and the forwarding to claims."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from opwire.durable.journal import Claim, Outcome
from opwire.durable.waiters import OutcomeWaiters
from opwire.errors import CallError
from opwire.runtime.limits import TokenBucket
from opwire.runtime.tasks import AsyncResource
from opwire.runtime.text import get_logger

logger = get_logger("opwire.durable")

_GRACE = 1.0  # seconds for an orderly close
_LARGE = 64 * 1024  # bytes of an outcome that is paced
_LARGE_AT_ONCE, _LARGE_PER_SECOND = 8 * 1024 * 1024, 32 * 1024 * 1024  # bytes of them


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


C = TypeVar("C", bound=ClaimStore)


class BrokerJournal(AsyncResource, Generic[C]):
    """Base class of a `Journal` in a broker."""

    punctual = True
    _claims: C

    def __init__(self, name: str, *, trusted: bool) -> None:
        self.name = name
        self.trusted = trusted
        self._waiters = OutcomeWaiters()
        self._large = TokenBucket(_LARGE_PER_SECOND, _LARGE_AT_ONCE)
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.name}>"

    async def pace(self, outcome: Outcome) -> None:
        """Wait before a large outcome is recorded.

        It is sent to its callers at once, and the engine disconnects one for which it has to buffer too much.
        """
        size, wait = min(len(outcome.event), _LARGE_AT_ONCE), 1.0
        while size > _LARGE and wait:
            wait = self._large.take(time.monotonic(), size)
            await asyncio.sleep(wait)

    @abstractmethod
    async def disconnect(self) -> None:
        """End the connections."""

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
        """Claim the next tasks of these operations."""
        return await self._claims.claim(operation_ids, lease, wait, limit, suspects=suspects)

    async def renew(self, claim: Claim, *, alone: bool = False) -> bool:
        """Renew a lease; return False if it was lost."""
        return await self._claims.renew(claim, alone=alone)

    async def release(self, claim: Claim, delay: float, *, failed: bool = False) -> None:
        """Return a task to the queue, to be claimed again after `delay` seconds."""
        await self._claims.release(claim, delay, failed=failed)
