"""Which tasks the workers of one event loop run, and which of them runs alone.

A task whose last attempt was lost may have killed its process, or another task has. Run beside others it could kill
these, too, and its own death would prove nothing. So nothing else begins while such a suspect runs. Neither would it
do to wait for ever, for what runs already or for the suspect itself: a job may take hours. Hence the `quiet` time:

- A suspect begins when each of the others has ended, or has run for that long.
- Others begin again when the suspect has ended, or has run for that long.
- A loss counts against a suspect only while nothing else was running. The quiet time doubles with each loss, so that it
  gets there, however late a task kills its process and however long the others run.

No journal in here. Workers of one event loop share a process, and so they share this.
"""

import asyncio
import time
from collections.abc import Hashable
from contextlib import suppress
from weakref import WeakKeyDictionary

_FIRST_QUIET = 30.0  # seconds; most jobs are shorter, so that most suspects are alone from the first time on
_MOST_DOUBLINGS = 12  # a day and a half


def quiet_time(losses: int) -> float:
    """Return for how many seconds a task is isolated that was lost so many times."""
    return _FIRST_QUIET * 2 ** min(max(losses - 1, 0), _MOST_DOUBLINGS)


class Isolation:
    """What runs in this event loop. `news` are set whenever something begins or ends."""

    def __init__(self) -> None:
        self.news: set[asyncio.Event] = set()
        self._running: dict[Hashable, float] = {}  # when each began
        self._isolated: Hashable | None = None

    @property
    def closed(self) -> bool:
        """Whether a suspect is isolated, so that nothing else begins."""
        return self._isolated is not None

    async def enter(self, task: Hashable) -> None:
        """Begin a task as soon as no suspect is isolated."""
        while self._isolated is not None:
            await self._change()
        self._running[task] = time.monotonic()

    async def enter_alone(self, task: Hashable, quiet: float) -> bool:
        """Isolate a suspect as soon as no other is, and begin it. Return whether nothing else is running."""
        while self._isolated is not None:
            await self._change()
        self._isolated = task
        while (left := self._unquiet(quiet)) > 0:
            await self._change(left)
        self._running[task] = time.monotonic()
        return len(self._running) == 1

    def open(self, task: Hashable) -> None:
        """Let others begin beside a suspect that was isolated."""
        if self._isolated is task:
            self._isolated = None
            self._notify()

    def leave(self, task: Hashable) -> None:
        """End a task, or stop waiting to begin it."""
        self._running.pop(task, None)
        if self._isolated is task:
            self._isolated = None
        self._notify()

    def _unquiet(self, quiet: float) -> float:
        """Return how many seconds are left until every task has run for the quiet time."""
        return max(self._running.values()) + quiet - time.monotonic() if self._running else 0.0

    async def _change(self, timeout: float | None = None) -> None:
        event = asyncio.Event()
        self.news.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await event.wait()
        finally:
            self.news.discard(event)

    def _notify(self) -> None:
        for event in self.news:
            event.set()


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Isolation] = WeakKeyDictionary()


def isolation_here() -> Isolation:
    """Return what all workers of the running event loop share."""
    return _of_loops.setdefault(asyncio.get_running_loop(), Isolation())
