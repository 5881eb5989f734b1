"""When a call is made again, and how much later. No I/O, no clock.

Two limits hold at once. A call has so many attempts, with a random wait before each that doubles in its upper bound.
And a client has one budget for all its calls: each call pays in a share of a retry, each retry takes out a whole one.
When everything fails, retries are then that share of the load, and not a multiple of it.
"""

import random
from collections.abc import Callable
from math import inf
from typing import Any

from msgspec import Struct

from opwire.errors import CallError, ErrorCode


class Retries(Struct, frozen=True, kw_only=True):
    """How a client repeats queries that failed with a retryable error.

        Client(url, retries=Retries(attempts=5, longest=30))
        Client(url, retries=None)  # never

    Raises:
        CallError: VALIDATION_ERROR, `attempts` is not a number above zero, or another one is below zero or not finite.
    """

    attempts: int = 3  # altogether, the first one among them
    shortest: float = 0.1  # seconds: the first wait is at random between 0 and this
    longest: float = 5.0  # seconds, of any wait that the server does not ask for itself
    share: float = 0.2  # retries that each call pays in
    reserve: float = 10.0  # retries that can be saved up; they are there from the start

    def __post_init__(self) -> None:
        check_number("attempts of retries", self.attempts, least=1, whole=True)
        for option in ("shortest", "longest", "share", "reserve"):
            check_number(f"{option} of retries", getattr(self, option))


def check_number(option: str, value: Any, *, least: float = 0, whole: bool = False, above: bool = False) -> None:
    """Check an option: a finite number that is not below `least`, and not `least` itself with `above`.

    Raises:
        CallError: VALIDATION_ERROR, which names the option.
    """
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < inf or (above and value == least):
        kind = "a whole number" if whole else "a finite number"
        bound = f"above {least:g}" if above else f"of at least {least:g}"
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{option} is {kind} {bound}, not {value!r:.100}")


class RetryBudget:
    """What is left of the retries of one client."""

    def __init__(self, retries: Retries, chance: Callable[[], float] = random.random) -> None:
        self.retries = retries
        self._left = retries.reserve
        self._chance = chance

    def called(self) -> None:
        """A call begins, and pays in."""
        self._left = min(self._left + self.retries.share, self.retries.reserve)

    def wait(self, error: CallError, attempts: int, remaining: float) -> float | None:
        """Seconds to wait after a number of attempts of which the last gave this error; None if that was the last.

        `remaining` are the seconds until the deadline: a retry that could not begin before it is none.
        """
        policy = self.retries
        if not error.retryable or attempts >= policy.attempts:
            return None
        # Full jitter. What the server asks for comes on top, or all who were refused would be back at the same time.
        most = min(policy.shortest * 2 ** min(attempts - 1, 60), policy.longest)
        delay = (error.retry_after or 0.0) + self._chance() * most
        return delay if delay < remaining else None

    def spend(self) -> bool:
        """Take a retry out; False if there is none left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
