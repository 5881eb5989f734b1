"""Deadlines of many calls at once.

Nearly every call has a deadline, and nearly none reaches it. A loop timer for each costs 4 µs to make and cancel; here
calls that are due within the same 10 ms share an entry, one timer waits for the earliest entry, and joining and leaving
costs 0.5 µs. An entry that was left by its last call goes at once, however far away it is. A deadline is never early,
and at most 10 ms late.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, TypeVar

from opwire.errors import CallError, ErrorCode

K = TypeVar("K")

MAX_SECONDS = 86_400.0
"""The longest time, in seconds, that a peer can ask for: what it says beyond that counts as a day."""

_TICK = 0.01
_LOOK = 0.25  # seconds between two looks at whether the loop is held up
_TOLERATED = 0.1  # seconds by which a look may be late
_CATCH_UP = 5.0  # seconds, at most, that it takes to read what has waited
_SPARE = 64  # emptied entries that may wait in the heap before it is built again


def back_off(attempt: int, *, first: float, longest: float) -> float:
    """Return the seconds to wait before an attempt (the first is 1): doubled each time, with jitter of up to a half."""
    limit = min(longest, first * 2 ** min(attempt - 1, 60))
    return random.uniform(limit / 2, limit)  # noqa: S311 - not a secret


def bounded_seconds(seconds: object, most: float = MAX_SECONDS) -> float:
    """Return a time in seconds that came from a peer, at least 0 and at most `most`.

    Use it for every timeout, deadline and delay that is read from outside, integers of any size included.

    Raises:
        ValueError: it is not a number, or NaN. (An infinity is a very long time.)
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds <= inf:
        raise ValueError("a time is a number")
    return float(min(max(seconds, 0), most))


class Deadlines:
    """What is due when, on the running event loop."""

    __slots__ = ("_armed", "_due", "_loop", "_ticks", "_timer")

    def __init__(self) -> None:
        self._reset(None)

    def _reset(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._due: dict[int, dict[Any, Callable[[Any], None]]] = {}
        self._ticks: list[int] = []  # a heap of the keys of `_due`, and of some that are gone
        self._armed: float = inf  # the tick that the timer waits for
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: K, when: float, expire: Callable[[K], None]) -> int:
        """Call `expire(key)` at a monotonic time. The number that is returned, and the key, take it back."""
        tick = int(when / _TICK) + 1
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # another `asyncio.run`: the timer of the last one is gone with it
            self._reset(loop)
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}
            heappush(self._ticks, tick)
            if tick < self._armed:
                self._arm(tick)
        due[key] = expire
        return tick

    def discard(self, key: object, tick: int) -> None:
        """Take one back; a no-op if it was due already."""
        due = self._due.get(tick)
        if due is None or due.pop(key, None) is None or due:
            return
        del self._due[tick]
        if len(self._ticks) > 2 * len(self._due) + _SPARE:
            self._ticks = list(self._due)
            heapify(self._ticks)

    def _arm(self, tick: int) -> None:
        """Wait for this tick, the earliest. A timer for one that was taken back meanwhile fires for nothing, once."""
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(tick * _TICK - time.monotonic(), 0), self._expire)

    def _expire(self) -> None:
        self._armed, self._timer = inf, None
        now, ready = time.monotonic(), list[dict[Any, Callable[[Any], None]]]()
        while self._ticks and (self._ticks[0] * _TICK <= now or self._ticks[0] not in self._due):
            ready.append(self._due.pop(heappop(self._ticks), {}))
        if self._ticks:
            self._arm(self._ticks[0])
        for due in ready:
            for key, expire in due.items():
                try:
                    expire(key)
                except Exception as error:  # the others are due all the same
                    context = {"message": "a callback of a deadline failed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)

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
