"""Ends what a request runs when nobody waits for it any more, or when it may not go on."""

import asyncio
import time
from types import TracebackType
from typing import Self

from opwire.deadlines import Deadlines
from opwire.errors import CallError
from opwire.serve.door import Receive

PATIENCE = 0.02
"""Seconds after which somebody looks whether the client is still there. Most calls have ended by then, for free."""


class Guard:
    """While the block runs, its task is cancelled if the client leaves, or by `interrupt`; the block ends there.

    with Guard(receive, deadlines) as guard:
        envelope = await registry.execute(...)
    if guard.interrupted: ...

    `reason` is what the client is to be told. None: it is not there.
    """

    def __init__(self, receive: Receive, deadlines: Deadlines) -> None:
        self._receive = receive
        self._deadlines = deadlines
        self._tick = 0
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self.interrupted = False
        self.reason: CallError | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._tick = self._deadlines.add(self, time.monotonic() + PATIENCE, Guard._watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._deadlines.discard(self, self._tick)
        for timer in self._timers:
            timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        task, self._task = self._task, None
        # Somebody else may have cancelled the task too, and wants it to end.
        others = self.interrupted and task is not None and task.uncancel() > 0
        return self.interrupted and not others and isinstance(error, asyncio.CancelledError)

    def interrupt(self, reason: CallError | None = None) -> None:
        """End the block now, once."""
        if self._task is not None and not self.interrupted:
            self.interrupted, self.reason = True, reason
            self._task.cancel()

    def interrupt_at(self, when: float | None, reason: CallError) -> None:
        """End the block at a time (Unix epoch, in seconds); None: never."""
        if when is not None:
            self._timers.append(self._loop.call_later(max(0, when - time.time()), self.interrupt, reason))

    def _watch(self) -> None:
        self._watcher = self._loop.create_task(self._wait_for_the_end())

    async def _wait_for_the_end(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt()
