"""Limit how often something happens: a token bucket, and the log lines that peers cause.

`TokenBucket` and `LogLimit` read no clock: the time is an argument.
"""

import logging
import time
from math import inf

from opwire.errors import check_above_zero, check_counts
from opwire.runtime.text import EscapingLogger


class TokenBucket:
    """A token bucket: up to `burst` calls or bytes at once, refilled at `per_second`. Use one per connection.

        if wait := limit.take(time.monotonic()):
            raise CallError(ErrorCode.RATE_LIMITED, retry_after=wait)

    Raises:
        UsageError: a number is not above zero.
    """

    __slots__ = ("_burst", "_left", "_per_second", "_time")

    def __init__(self, per_second: float, burst: int = 1) -> None:
        check_above_zero(per_second=per_second)
        check_counts(burst=burst)
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._time = -inf  # of the last call

    def take(self, now: float, amount: int = 1) -> float:
        """Consume one call, or an amount up to `burst`: return 0 if it may pass, else the seconds to wait for it."""
        if now > self._time:
            self._left = min(self._burst, self._left + (now - self._time) * self._per_second)
            self._time = now
        if self._left >= amount:
            self._left -= amount
            return 0.0
        return (amount - self._left) / self._per_second


class LogLimit(logging.Filter):
    """Limit the log lines that a remote peer can cause, and log how many were dropped.

        logging.getLogger("uvicorn.error").addFilter(LogLimit())

    Lines below the level `least` or above `most`, and lines that do not begin with `start`, always pass.
    """

    def __init__(
        self,
        *,
        least: int = logging.NOTSET,
        most: int = logging.WARNING,
        start: str = "",
        per_second: float = 5.0,
        burst: int = 500,
    ) -> None:
        super().__init__()
        self._least = least
        self._most = most
        self._start = start
        self._limit = TokenBucket(per_second, burst)
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        if not self._least <= record.levelno <= self._most or not str(record.msg).startswith(self._start):
            return True
        if self._limit.take(record.created):
            self._dropped += 1
            return False
        if self._dropped:
            record.msg = f"{record.getMessage()} ({self._dropped:,} lines before this one were dropped)"
            record.args = ()
            self._dropped = 0
        return True


class LimitedLog:
    """Write lines that a peer causes to a logger, `per_second` at most, so that a flood fills no disk."""

    __slots__ = ("_lines", "_logger", "_per_second", "_second_ends")

    def __init__(self, logger: EscapingLogger, *, per_second: int) -> None:
        self._logger = logger
        self._per_second = per_second
        self._second_ends = 0.0
        self._lines = 0

    def write(self, level: int, message: str, *arguments: object) -> None:
        """Log a line; above the limit, log that once, and drop the rest of this second."""
        if not self._logger.isEnabledFor(level):
            return
        now = time.monotonic()
        if now >= self._second_ends:
            self._second_ends, self._lines = now + 1, 0
        self._lines += 1
        if self._lines <= self._per_second:
            self._logger.log(level, message, *arguments)
        elif self._lines == self._per_second + 1:
            self._logger.log(level, f"{message} (the rest of this second is dropped)", *arguments)
