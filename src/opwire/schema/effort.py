"""How much work one value may cause. No I/O, no clock: work is counted in places of the value.

A walk that checks each part of a value by itself looks at the inner parts once for each level around them. `Effort`
counts that: the size of every part that is checked is taken off a budget that is a multiple of the whole.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, cast

_WALK: Final = 100_000  # places: a small value may be looked at as often as is of use
_WALK_PER_PLACE: Final = 40
_CHECK: Final = 20  # places that a check counts for by itself: the call takes 2 µs
_SHALLOW: Final = 12  # levels
_CONTAINERS: Final = frozenset({dict, list})
_LETTERS: Final = 100  # of a text that count as one place
_MAX_PLACES: Final = 100_000_000  # a few containers, shared again and again, may count as any number


class ExhaustedError(Exception):
    """The budget is used up."""


class Effort:
    """A budget for work on one value and its parts."""

    __slots__ = ("_left", "_sizes")

    def __init__(self, value: Any) -> None:
        """What a walk over a value may cost that checks its parts."""
        count, depth = _extent(value)
        self._left = _WALK + _WALK_PER_PLACE * count
        self._sizes = _sizes(value) if depth > _SHALLOW else {}

    @property
    def left(self) -> int:
        """The places that may still be looked at."""
        return self._left

    def spend(self, amount: int) -> None:
        """Take a number of places off the budget.

        Raises:
            ExhaustedError: it is used up.
        """
        self._left -= amount
        if self._left < 0:
            raise ExhaustedError

    def spend_check(self, value: Any) -> None:
        """Take a check of a part off the budget.

        In a shallow value only its members count: each place is inside few others, and counting all of them takes
        longer than the check.

        Raises:
            ExhaustedError: it is used up.
        """
        if type(value) in _CONTAINERS:
            self.spend(_CHECK + self._sizes.get(id(value), len(value)))
        else:
            self.spend(_CHECK + (len(value) // _LETTERS if type(value) is str else 0))


def places(value: Any) -> int:
    """The number of places in a plain value: itself, its members, theirs, and more for long texts."""
    return _extent(value)[0]


def _extent(value: Any) -> tuple[int, int]:
    """The number of places, and how deep they are nested.

    Level by level, as `survey` does it, since that takes 50 ns for a place, and one by one 300 ns.
    """
    level: list[Any] = [value]
    count, depth = 0, 0
    while level and count < _MAX_PLACES:
        count += len(level)
        depth += 1
        kinds = set(map(type, level))
        if str in kinds:
            count += sum(map(len, [each for each in level if type(each) is str])) // _LETTERS
        lists = [cast("list[Any]", each) for each in level if type(each) is list] if list in kinds else []
        dicts = [cast("dict[str, Any]", each) for each in level if type(each) is dict] if dict in kinds else []
        level = list(chain(chain.from_iterable(lists), chain.from_iterable(map(_values, dicts))))
    return count, depth


_values: Callable[[dict[Any, Any]], Iterable[Any]] = dict[Any, Any].values


def _sizes(whole: Any) -> dict[int, int]:
    """The number of places in each container, by its identity: they live as long as the value does."""
    sizes: dict[int, int] = {}
    waiting: list[tuple[Any, bool]] = [(whole, False)]  # those inside are counted before what holds them
    while waiting:
        value, counted = waiting.pop()
        key = id(value)
        if key in sizes:
            continue
        items = cast("list[Any]", [*value.values()] if type(value) is dict else value)
        inner = [each for each in items if type(each) in _CONTAINERS]
        if counted or not inner:
            sizes[key] = 1 + len(items) + sum(sizes.get(id(each), 0) for each in inner)
        else:
            waiting.append((cast("Any", value), True))
            waiting.extend((each, False) for each in inner)
    return sizes
