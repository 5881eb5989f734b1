"""What the journals of Redis and NATS JetStream share: waiting callers, pacing of large outcomes, and closing."""

import asyncio
import time
from abc import abstractmethod

from opwire.durable.journal import Outcome
from opwire.durable.waiters import OutcomeWaiters
from opwire.errors import CallError
from opwire.runtime.limits import TokenBucket
from opwire.runtime.tasks import AsyncResource
from opwire.runtime.text import get_logger

logger = get_logger("opwire.durable")

_CLOSING_SECONDS = 1.0
_PACED_OUTCOME_BYTES = 64 * 1024
_PACED_BYTES_PER_SECOND = 32 * 1024 * 1024
_PACED_BYTES_AT_ONCE = 8 * 1024 * 1024


class BrokerJournal(AsyncResource):
    """Base class of a `Journal` in a broker."""

    def __init__(self, name: str, *, trusted: bool) -> None:
        self.name = name
        self.trusted = trusted
        self._waiters = OutcomeWaiters()
        self._paced_bytes = TokenBucket(_PACED_BYTES_PER_SECOND, _PACED_BYTES_AT_ONCE)
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.name}>"

    async def pace(self, outcome: Outcome) -> None:
        """Wait before a large outcome is recorded.

        It is sent to its callers at once, and the engine disconnects one for which it has to buffer too much.
        """
        size = min(len(outcome.event), _PACED_BYTES_AT_ONCE)
        if size <= _PACED_OUTCOME_BYTES:
            return
        while True:
            wait = self._paced_bytes.take(time.monotonic(), size)
            if not wait:
                return
            await asyncio.sleep(wait)

    @abstractmethod
    async def leave(self) -> None:
        """Return the tasks that are reserved for this peer."""

    @abstractmethod
    async def disconnect(self) -> None:
        """End the connections."""

    async def close(self) -> None:
        """Disconnect; pending waits raise UNAVAILABLE. A second call is a no-op."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self.leave()
        except (CallError, TimeoutError) as error:
            logger.debug("no orderly close at %s: %s", self.name, error)
        await self.disconnect()
