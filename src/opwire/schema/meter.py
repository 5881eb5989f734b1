"""Bound the work of checking one value, before the value reaches jsonschema-rs. No I/O, no clock.

A `Meter` follows a value through the expensive parts of a schema (`cost`) and adds up the units of each location. A
value may cost 5,000,000 units, about 0.1 s, and 150 more for each of its locations.
"""

from itertools import chain
from typing import Any, Final, cast

from opwire.schema.cost import SchemaCosts, SchemaPart, are_free

_BUDGET: Final = 5_000_000
_BUDGET_PER_LOCATION: Final = 150
_UNITS_PER_VISIT: Final = 30  # this one and the next are what the meter itself takes
_UNITS_PER_COMBINED_PART: Final = 20


class ComplexityError(ValueError):
    """A value costs more to check than one value may."""

    def __init__(self) -> None:
        super().__init__("the value is too large or too deeply nested to be checked against a schema of this cost")


class Meter:
    """Adds up what a check of a value may cost, in the parts of a schema that can be expensive.

    The parts that apply to one location are a state, and a member of the value leads from state to state: a location
    costs one step, however many parts apply to it. Items of an array lead to the same states, so these are cached.
    Several threads may use a meter at a time; what one of them pays for new states may then be too little.
    """

    def __init__(self, costs: SchemaCosts) -> None:
        self._costs = costs
        self._states: dict[frozenset[int], _MeterState] = {}
        self._new_parts = 0  # of the states that the current check has made

    def check(self, value: Any) -> int:
        """Return the units that a check of a plain value of limited depth takes, with those of the meter itself.

        Raises:
            ComplexityError: it would take too long.
        """
        budget = _BUDGET
        self._new_parts = 0
        visited_locations = 0  # each adds to the budget
        unvisited: list[tuple[Any, _MeterState]] = [(value, self._state([self._costs.root]))]
        while unvisited:
            value, state = unvisited.pop()
            visited_locations += 1
            budget += state.allowance - state.keyword_units(value)
            if budget < self._new_parts * _UNITS_PER_COMBINED_PART:
                raise ComplexityError
            if type(value) is dict:
                member_states = state.members
                for name, member in cast("dict[str, Any]", value).items():
                    member_state = member_states.get(name) or self._member_state(state, name)
                    if not member_state.is_free:
                        unvisited.append((member, member_state))
            elif type(value) is list:
                if state.items is None:
                    groups = chain.from_iterable(part.array_groups for part in state.parts)
                    state.items = self._state(list(chain.from_iterable(groups)))
                if not state.items.is_free:
                    unvisited.extend((item, state.items) for item in cast("list[Any]", value))
        return _BUDGET + visited_locations * _BUDGET_PER_LOCATION - budget + self._new_parts * _UNITS_PER_COMBINED_PART

    def _member_state(self, state: "_MeterState", name: str) -> "_MeterState":
        key = name if name in state.declared_names else None  # all other names lead to the same state
        if key not in state.members:
            declared = [part.properties[name] for part in state.parts if name in part.properties]
            others = chain.from_iterable(part.other_properties for part in state.parts)
            state.members[key] = self._state([*declared, *others])
        return state.members[key]

    def _state(self, schemas: list[Any]) -> "_MeterState":
        """Return the state of a location to which these schemas apply."""
        roots = list(self._costs.parts(schemas))
        key = frozenset(map(id, roots))
        if key not in self._states:
            is_free = are_free(roots)
            parts = dict.fromkeys(roots)
            unvisited = [] if is_free else roots
            while unvisited:
                new_parts = [part for part in self._costs.parts(unvisited.pop().in_place) if part not in parts]
                parts.update(dict.fromkeys(new_parts))
                unvisited.extend(new_parts)
            self._new_parts += len(parts)
            self._states[key] = _MeterState([] if is_free else list(parts))
        return self._states[key]


class _MeterState:
    """The parts that apply to one location, and the states of its members; empty where no meter is needed."""

    __slots__ = ("allowance", "declared_names", "is_free", "items", "keyword_costs", "members", "parts")

    def __init__(self, parts: list[SchemaPart]) -> None:
        self.parts = parts
        self.is_free = not parts
        units = sum(part.own_cost + len(part.in_place) for part in parts)  # trivial ones share one part
        # What a location adds to the budget, or takes off it.
        self.allowance = _BUDGET_PER_LOCATION - _UNITS_PER_VISIT - units if parts else 0
        self.keyword_costs = list(chain.from_iterable(part.keyword_costs for part in parts))
        self.declared_names = frozenset[str]().union(*(part.properties for part in parts))
        self.members: dict[str | None, _MeterState] = {}  # None: of every name that is not declared
        self.items: _MeterState | None = None

    def keyword_units(self, value: Any) -> int:
        """Return the units of keywords that cost more than one."""
        return sum(cost(value) for cost in self.keyword_costs)
