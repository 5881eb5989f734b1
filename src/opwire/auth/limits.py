"""How much one connection may ask for. No I/O, no clock: the time is given."""

from math import inf

from opwire.errors import CallError, ErrorCode


class RateLimit:
    """A bucket of `burst` calls that fills up again at `per_second`. One for each connection.

        if wait := limit.take(time.monotonic()):
            raise CallError(ErrorCode.RATE_LIMITED, retry_after=wait)

    Raises:
        CallError: VALIDATION_ERROR, if no call at all would pass.
    """

    __slots__ = ("_burst", "_left", "_per_second", "_time")

    def __init__(self, per_second: float, burst: int = 1) -> None:
        if not 0 < per_second < inf or burst < 1:
            wrong = f"a rate is above zero and a burst at least 1: {per_second} and {burst} cannot be used"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
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
