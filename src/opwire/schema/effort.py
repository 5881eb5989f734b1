"""Bound walks over a value in Python, counted in locations of the value. No I/O, no clock.

A walk that checks each part of a value by itself looks at the inner parts once per level around them. So the size of
every checked part is taken off a budget that is a multiple of the whole: or what a meter has measured, since a location
to which many subschemas apply takes 20 times as long, or more.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, cast

_MIN_BUDGET: Final = 100_000  # locations that even a small value may be looked at
_BUDGET_PER_LOCATION: Final = 40
_LOCATIONS_PER_CHECK: Final = 20  # the call takes 2 µs, and a location 0.1 µs
_METER_UNITS_PER_LOCATION: Final = 7
_CHARACTERS_PER_LOCATION: Final = 100
_MAX_SHALLOW_LEVELS: Final = 12
_MAX_LOCATIONS: Final = 100_000_000  # a few containers, shared again and again, may count as any number

_CONTAINERS: Final = frozenset({dict, list})
_dict_values: Callable[[dict[Any, Any]], Iterable[Any]] = dict[Any, Any].values


class ExhaustedError(Exception):
    """The budget is exhausted."""


class Effort:
    """A budget for work on one value and its parts."""

    __slots__ = ("_sizes", "remaining")

    def __init__(self, value: Any) -> None:
        count, depth = extent(value)
        self.remaining = _MIN_BUDGET + _BUDGET_PER_LOCATION * count  # locations that may still be looked at
        self._sizes = _container_sizes(value) if depth > _MAX_SHALLOW_LEVELS else {}

    def spend(self, locations: int) -> None:
        """Take a number of locations off the budget, or raise `ExhaustedError`."""
        self.remaining -= locations
        if self.remaining < 0:
            raise ExhaustedError

    def spend_check(self, value: Any) -> None:
        """Take a check of a part off the budget, or raise `ExhaustedError`.

        In a shallow value only its members count: each location is inside few others, and counting all of them takes
        longer than the check.
        """
        if type(value) in _CONTAINERS:
            size = self._sizes.get(id(value), len(value))
            if self._sizes and id(value) not in self._sizes and type(value) is list:  # some of the items of another
                size += sum(self._sizes.get(id(item), 0) for item in cast("list[Any]", value))
            self.spend(_LOCATIONS_PER_CHECK + size)
        else:
            self.spend(_LOCATIONS_PER_CHECK + (len(value) // _CHARACTERS_PER_LOCATION if type(value) is str else 0))

    def spend_metered(self, units: int) -> None:
        """Take a check that a meter has measured off the budget, or raise `ExhaustedError`."""
        self.spend(_LOCATIONS_PER_CHECK + units // _METER_UNITS_PER_LOCATION)


def extent(value: Any, limit: int = _MAX_LOCATIONS) -> tuple[int, int]:
    """Return the number of locations in a plain value, more for long strings, and the depth of its nesting.

    Beyond the limit neither is exact. Level by level, as in `survey`, since that takes 50 ns per location, and one by
    one 300 ns.
    """
    level: list[Any] = [value]
    count = depth = 0
    while level:
        count += len(level)
        depth += 1
        if count > limit:
            break
        types = set(map(type, level))
        count += sum(map(len, _of_type(str, level, types))) // _CHARACTERS_PER_LOCATION
        lists = _of_type(list, level, types)
        dicts = _of_type(dict, level, types)
        level = list(chain(chain.from_iterable(lists), chain.from_iterable(map(_dict_values, dicts))))
    return count, depth


def _of_type(type_: type, values: list[Any], types: set[type]) -> list[Any]:
    """Return the values of one type; `types` are those of all values."""
    if type_ not in types:
        return []
    return values if len(types) == 1 else [value for value in values if type(value) is type_]


def _container_sizes(whole: Any) -> dict[int, int]:
    """Return the number of locations in each container, by its identity: they live as long as the value does."""
    sizes: dict[int, int] = {}
    unvisited: list[tuple[Any, bool]] = [(whole, False)]  # inner containers are counted before the one around them
    while unvisited:
        container, are_members_counted = unvisited.pop()
        key = id(container)
        if key in sizes:
            continue
        members = cast("list[Any]", [*container.values()] if type(container) is dict else container)
        inner = [member for member in members if type(member) in _CONTAINERS]
        if are_members_counted or not inner:
            sizes[key] = 1 + len(members) + sum(sizes.get(id(member), 0) for member in inner)
        else:
            unvisited.append((cast("Any", container), True))
            unvisited.extend((member, False) for member in inner)
    return sizes
