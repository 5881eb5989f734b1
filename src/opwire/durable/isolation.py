"""Suspects run alone: a task that lost its last attempt may have killed its process, or another task has.

Run beside others it could kill these, too, and its own death would prove nothing. So no other task begins while such a
suspect runs. Waiting forever, for running tasks or for the suspect itself, is not an option either: a job may take
hours. Hence the quiet time:

- A suspect begins when each of the others has ended, or has run for the quiet time.
- Others begin again when the suspect has ended, or has run for the quiet time.
- A loss counts against a suspect only while no other task was running. The quiet time doubles with each loss, so that
  this happens eventually, however late a task kills its process and however long the others run.

Workers of one event loop share a process, and therefore one `Isolation`.
"""

import asyncio
import time
from collections.abc import Hashable
from contextlib import suppress
from weakref import WeakKeyDictionary

_FIRST_QUIET_SECONDS = 30.0  # most jobs are shorter, so that most suspects run alone from the first time on
_MAX_DOUBLINGS = 12  # a day and a half


def quiet_time(losses: int) -> float:
    """Return the seconds for which a task with this number of losses is isolated."""
    return _FIRST_QUIET_SECONDS * 2 ** min(max(losses - 1, 0), _MAX_DOUBLINGS)


class Isolation:
    """The running tasks of one event loop. `changed` events are set whenever a task begins or ends."""

    def __init__(self) -> None:
        self.changed: set[asyncio.Event] = set()
        self._start_times: dict[Hashable, float] = {}  # of the running tasks
        self._isolated: Hashable | None = None

    @property
    def closed(self) -> bool:
        """Whether a suspect is isolated, so that no other task begins."""
        return self._isolated is not None

    async def enter(self, task: Hashable) -> None:
        """Begin a task as soon as no suspect is isolated."""
        while self._isolated is not None:
            await self._change()
        self._start_times[task] = time.monotonic()

    async def enter_alone(self, task: Hashable, quiet: float) -> bool:
        """Isolate a suspect as soon as no other is, and begin it. Return whether no other task is running."""
        while self._isolated is not None:
            await self._change()
        self._isolated = task
        while self._start_times and (seconds_left := max(self._start_times.values()) + quiet - time.monotonic()) > 0:
            await self._change(seconds_left)
        self._start_times[task] = time.monotonic()
        return len(self._start_times) == 1

    def open(self, task: Hashable) -> None:
        """Let others begin beside a suspect that was isolated."""
        if self._isolated is task:
            self._isolated = None
            self._notify()

    def leave(self, task: Hashable) -> None:
        """End a task, or stop waiting for its turn."""
        self._start_times.pop(task, None)
        if self._isolated is task:
            self._isolated = None
        self._notify()

    async def _change(self, timeout: float | None = None) -> None:
        event = asyncio.Event()
        self.changed.add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await event.wait()
        finally:
            self.changed.discard(event)

    def _notify(self) -> None:
        for event in self.changed:
            event.set()


_isolation_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Isolation] = WeakKeyDictionary()


def isolation_of_loop() -> Isolation:
    """Return the isolation that all workers of the running event loop share."""
    return _isolation_by_loop.setdefault(asyncio.get_running_loop(), Isolation())
