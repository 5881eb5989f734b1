"""`Outbox`: send what does not fit into the queue of a connection at the moment, as soon as it does.

A transport never waits: above a limit its queue rejects an event with RATE_LIMITED, so that a peer that does not read
costs bounded memory. But thirty responses of a megabyte fill the queue of any peer for a moment. Where a task can wait,
it does.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from opwire.errors import CallError, ErrorCode
from opwire.protocol.transport import Address
from opwire.runtime.bounded import SharedLimit
from opwire.typed.plain import memory_of

T = TypeVar("T")

_MAX_WAITING_BYTES = 256 * 1024 * 1024  # half of them for one identity
_FIRST_PAUSE_SECONDS = 0.002
_MAX_PAUSE_SECONDS = 0.05  # 16 MiB take 10 ms on a local connection


def is_full(error: BaseException) -> bool:
    """Return whether a transport rejected an event because its queue is full."""
    return isinstance(error, CallError) and error.code is ErrorCode.RATE_LIMITED


class Outbox:
    """Events that wait for room, in the order in which they were made; those to one peer do not wait for another."""

    def __init__(self) -> None:
        self.waiting: SharedLimit[str | None] = SharedLimit(_MAX_WAITING_BYTES, _MAX_WAITING_BYTES // 2)  # by identity
        self._turns: WeakValueDictionary[Address | None, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of peers for which events wait."""
        return len(self._turns)

    async def send(self, to: Address | None, send: Callable[[], T]) -> T:
        """Send an event to a peer when its queue has room: repeat `send` until it is not rejected any more.

        Raises:
            CallError: `send` failed for another reason.
        """
        async with self._turns.setdefault(to, asyncio.Lock()):  # one attempt at a time: each encodes the event again
            pause = _FIRST_PAUSE_SECONDS
            while True:
                try:
                    return send()
                except CallError as error:
                    if not is_full(error):
                        raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def respond(self, error: CallError, to: Address, identity: str | None, data: Any, send: Callable[[], T]) -> T:
        """Send a response with this data, which failed with an error, when there is room.

        Raises:
            CallError: the error, if it has another reason, or other responses that wait take too much memory already.
        """
        if not is_full(error):
            raise error
        size = memory_of(data)
        if not self.waiting.take(identity, size):
            raise error
        try:
            return await self.send(to, send)
        finally:
            self.waiting.give_back(identity, size)
