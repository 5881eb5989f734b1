"""How much work one value may cause. No I/O, no clock: work is counted in places of the value.

A walk that checks each part of a value by itself looks at the inner parts once for each level around them. `Effort`
counts that: the size of every part that is checked is taken off a budget that is a multiple of the whole.
"""

from copy import copy
from typing import Any, Final, cast

_WALK: Final = 100_000  # places: a small value may be looked at as often as is of use
_WALK_PER_PLACE: Final = 40
_LETTERS: Final = 100  # of a text that count as one place
_CONTAINERS: Final = frozenset({dict, list})


class ExhaustedError(Exception):
    """The budget is used up."""


class Effort:
    """A budget for work on one value and its parts."""

    __slots__ = ("_left", "_sizes")

    def __init__(self, value: Any) -> None:
        """What a walk over a value may cost that checks its parts."""
        self._sizes = _sizes(value)
        self._left = _WALK + _WALK_PER_PLACE * self._size(value)

    def limited(self, places: int) -> "Effort":
        """Another budget for the same value."""
        other = copy(self)
        other._left = places
        return other

    @property
    def places(self) -> int:
        """The places that may still be looked at."""
        return self._left

    def spend(self, value: Any) -> None:
        """Take one look at a value and everything in it off the budget.

        Raises:
            ExhaustedError: it is used up.
        """
        self.spend_places(self._size(value))

    def spend_places(self, amount: int) -> None:
        """Take a number of places off the budget.

        Raises:
            ExhaustedError: it is used up.
        """
        self._left -= amount
        if self._left < 0:
            raise ExhaustedError

    def _size(self, value: Any) -> int:
        """The places of a value. A container that is not part of the whole, a repaired one, counts by its members."""
        if type(value) is str:
            return 1 + len(value) // _LETTERS
        if type(value) is dict:
            return self._sizes.get(id(cast("Any", value))) or 1 + sum(map(self._inner, cast("Any", value).values()))
        if type(value) is list:
            return self._sizes.get(id(cast("Any", value))) or 1 + sum(map(self._inner, cast("Any", value)))
        return 1

    def _inner(self, value: Any) -> int:
        return self._sizes.get(id(value), 1)


def _sizes(whole: Any) -> dict[int, int]:
    """The number of places in each container, by its identity. Shared ones count each time, as in a check."""
    sizes: dict[int, int] = {}
    waiting: list[tuple[Any, bool]] = [(whole, False)]  # those inside are counted before what holds them
    while waiting:
        value, counted = waiting.pop()
        key = id(value)
        if type(value) not in _CONTAINERS or key in sizes:
            continue
        items = cast("list[Any]", [*value.values()] if type(value) is dict else value)
        kinds = set(map(type, items))  # a million numbers take 25 ms this way, and 100 ms one by one
        inner = [] if kinds.isdisjoint(_CONTAINERS) else [each for each in items if type(each) in _CONTAINERS]
        if counted or not inner:
            letters = sum(len(each) for each in items if type(each) is str) if str in kinds else 0
            size = 1 + len(items) + letters // _LETTERS
            sizes[key] = size + sum(sizes.get(id(each), 1) for each in inner)
        else:
            waiting.append((cast("Any", value), True))
            waiting.extend((each, False) for each in inner)
    return sizes
