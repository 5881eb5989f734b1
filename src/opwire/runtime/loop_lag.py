"""How long the event loop was blocked, by a handler or because the process was stopped."""

import asyncio
import time
from math import inf

_CHECK_INTERVAL = 0.25  # seconds
_TOLERATED_LAG = 0.1  # seconds by which a check may be late
_MAX_CATCH_UP = 5.0  # seconds to read the messages buffered meanwhile


class LoopLag:
    """Measures how long the event loop was blocked.

    A message that is read afterwards may have been buffered in a socket for as long.
    """

    __slots__ = ("_check", "_due", "_seconds", "_until", "calm_until")

    def __init__(self) -> None:
        self.calm_until = inf
        """What is read before this monotonic time was not buffered: `recent` would return 0."""
        self._due = inf  # the monotonic time of the next check
        self._seconds = 0.0
        self._until = 0.0  # until then, messages may have been buffered
        self._check: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to watch the running event loop."""
        self.stop()
        self._schedule(time.monotonic())

    def stop(self) -> None:
        """Stop watching."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._due = self.calm_until = inf

    def recent(self, now: float) -> float:
        """Return the seconds for which a message that is read now may have been buffered."""
        late = now - self._due  # the first messages are read before the timer runs
        return max(late if late > _TOLERATED_LAG else 0.0, self._seconds if now < self._until else 0.0)

    def _schedule(self, now: float) -> None:
        self._due = now + _CHECK_INTERVAL
        self.calm_until = self._due if now >= self._until else 0.0
        self._check = asyncio.get_running_loop().call_later(_CHECK_INTERVAL, self._measure)

    def _measure(self) -> None:
        now = time.monotonic()
        late = now - self._due
        if late > _TOLERATED_LAG:
            self._seconds, self._until = late, now + min(late, _MAX_CATCH_UP)
        self._schedule(now)
