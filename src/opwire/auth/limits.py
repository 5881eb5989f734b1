"""How much one connection may ask for, and how much of it is logged. No I/O, no clock: the time is given."""

import logging
from math import inf

from opwire.errors import check_above_zero, check_counts


class RateLimit:
    """A bucket of `burst` calls that fills up again at `per_second`. One for each connection.

        if wait := limit.take(time.monotonic()):
            raise CallError(ErrorCode.RATE_LIMITED, retry_after=wait)

    Raises:
        CallError: VALIDATION_ERROR, if one of the numbers is not above zero.
    """

    __slots__ = ("_burst", "_left", "_per_second", "_time")

    def __init__(self, per_second: float, burst: int = 1) -> None:
        check_above_zero(per_second=per_second)
        check_counts(burst=burst)
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._time = -inf  # of the last call: long ago

    def take(self, now: float) -> float:
        """Take one call out: 0 if it may pass, else the seconds after which to try again."""
        if now > self._time:
            self._left = min(self._burst, self._left + (now - self._time) * self._per_second)
            self._time = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_second


class LogLimit(logging.Filter):
    """Lets a logger write so many lines that a stranger can cause, and says how many it left out.

        logging.getLogger("uvicorn.error").addFilter(LogLimit())

    Lines above the level `most`, and those that do not begin with `start`, are not counted.
    """

    def __init__(
        self, *, most: int = logging.WARNING, start: str = "", per_second: float = 5.0, burst: int = 500
    ) -> None:
        super().__init__()
        self._most = most
        self._start = start
        self._limit = RateLimit(per_second, burst)
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a line is written."""
        if record.levelno > self._most or not str(record.msg).startswith(self._start):
            return True
        if self._limit.take(record.created):
            self._left_out += 1
            return False
        if self._left_out:
            record.msg = f"{record.getMessage()} ({self._left_out:,} lines before this one were left out)"
            record.args = ()
            self._left_out = 0
        return True
