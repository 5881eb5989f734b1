"""Deadlines of many calls at once.

Nearly every call has a deadline, and nearly none reaches it. A loop timer for each costs 4 µs to make and cancel; here
calls that are due within the same 10 ms share one, and joining or leaving costs 0.3 µs. A deadline is never early, and
at most 10 ms late.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, TypeVar

from opwire.errors import CallError, ErrorCode

K = TypeVar("K")

_TICK = 0.01
_LOOK = 0.25  # seconds between two looks at whether the loop is held up
_TOLERATED = 0.1  # seconds by which a look may be late
_CATCH_UP = 5.0  # seconds, at most, that it takes to read what has waited


class Deadlines:
    """What is due when, on the running event loop."""

    __slots__ = ("_due", "_loop")

    def __init__(self) -> None:
        self._due: dict[int, dict[Any, Callable[[Any], None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, key: K, when: float, expire: Callable[[K], None]) -> int:
        """Have `expire(key)` called at a monotonic time. The number that is returned, and the key, take it back."""
        tick = int(when / _TICK) + 1
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another `asyncio.run`: the timers of the last one are gone with it
            self._loop = loop
            self._due = {}
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}
            loop.call_later(max(tick * _TICK - time.monotonic(), 0), self._expire, tick, due)
        due[key] = expire
        return tick

    def discard(self, key: object, tick: int) -> None:
        """Take one back; nothing happens if it was due already."""
        due = self._due.get(tick)
        if due is not None:
            due.pop(key, None)

    def _expire(self, tick: int, due: dict[Any, Callable[[Any], None]]) -> None:
        if self._due.get(tick) is due:
            del self._due[tick]
        for key, expire in list(due.items()):
            expire(key)

    async def limit(self, call: Callable[[], Awaitable[Any]], when: float | None, complaint: str) -> Any:
        """Await a call, but not beyond a monotonic time; if that has passed already, do not even begin.

        Raises:
            CallError: TIMEOUT, with the complaint and the time that there was as its message.
        """
        if when is None:
            return await call()
        seconds = when - time.monotonic()
        task = asyncio.current_task()
        if seconds <= 0 or task is None:
            raise _timeout(complaint, seconds)
        scope = _Scope(task)
        tick = self.add(scope, when, _Scope.expire)
        try:
            return await call()
        except asyncio.CancelledError:
            if scope.leave():
                raise _timeout(complaint, seconds) from None
            raise
        finally:
            scope.leave()
            self.discard(scope, tick)


class _Scope:
    """A task that is cancelled if its time is up before it leaves."""

    __slots__ = ("_before", "_expired", "_task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task: asyncio.Task[Any] | None = task
        self._before = task.cancelling()
        self._expired = False

    def expire(self) -> None:
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    def leave(self) -> bool:
        """Take back what was done to the task. True if it was this deadline alone that cancelled it."""
        task, self._task = self._task, None
        return task is not None and self._expired and task.uncancel() <= self._before


def _timeout(complaint: str, seconds: float) -> CallError:
    return CallError(ErrorCode.TIMEOUT, f"{complaint} within {max(seconds, 0):.3g} s")


class HoldUps:
    """How long the event loop was held up lately: by a handler that blocks, or because the process was stopped.

    What is read after a hold-up may have waited in a socket for as long.
    """

    __slots__ = ("_due", "_handle", "_held_up", "_until")

    def __init__(self) -> None:
        self._due = inf  # the monotonic time of the next look
        self._held_up = 0.0
        self._until = 0.0  # until then, what is read may have waited
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look at the running loop from now on."""
        self.stop()
        self._schedule(time.monotonic())

    def stop(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._due = inf

    def recent(self, now: float) -> float:
        """Return for how many seconds a message that is read now may have waited because of the loop."""
        late = now - self._due  # the first messages after a hold-up are read before the timer is run
        return max(late if late > _TOLERATED else 0.0, self._held_up if now < self._until else 0.0)

    def _schedule(self, now: float) -> None:
        self._due = now + _LOOK
        self._handle = asyncio.get_running_loop().call_later(_LOOK, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        late = now - self._due
        if late > _TOLERATED:
            self._held_up, self._until = late, now + min(late, _CATCH_UP)
        self._schedule(now)
