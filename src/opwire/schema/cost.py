"""Bound the work of checking a value against a schema, before the value reaches jsonschema-rs. No I/O, no clock.

A check is linear in the value as long as few subschemas apply to each location in it. Two things break that: `allOf`,
`anyOf` and their like apply several schemas to one location, and definitions that each name the next one twice, below
a property or in a cycle, double the work at every level of the value. Rules:

1. `Costs` reads a schema once and counts how many subschemas may apply to one location. A schema that stays below
   `FREE` is compiled unchanged and its values are not metered: that is nearly every schema.
2. Any other schema is rewritten (`validator.memoised`), so that jsonschema-rs caches the verdict of each definition on
   each object and array. The work then grows with subschemas × locations, not with the number of paths to a location.
3. `Meter` bounds that product: it follows a value through the expensive subschemas only, and raises for a value beyond
   its budget.
4. A schema for which a single location would cost too much is rejected.

`Effort` bounds walks in Python, counted in locations of the value. A walk that checks each part of a value by itself
looks at the inner parts once per level around them, so the size of every checked part is taken off a budget that is a
multiple of the whole: or what its meter has measured, since a location to which many subschemas apply takes 20 times as
long, or more.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from math import frexp, inf
from typing import Any, Final, cast

from opwire.errors import SchemaError
from opwire.schema.dialect import JSONSchema, References
from opwire.schema.pattern_cost import PatternPrice
from opwire.typed.plain import as_dict, as_list

MAX_COST: Final = 10_000
"""Subschemas that may apply to one location. GitHub's, Stripe's and Kubernetes' have 117 at most."""

FREE: Final = 64
"""Subschemas that may apply to each location unmetered; a small one takes jsonschema-rs 15 ns."""

UNBOUNDED: Final = 1 << 40

_BUDGET: Final = 5_000_000  # units of 10 to 20 ns, so that a small value may take 0.1 s
_BUDGET_PER_LOCATION: Final = 150
_VISIT: Final = 30  # units that the meter itself takes for a location
_NEW_PART: Final = 20  # units that the meter takes to combine one more subschema
_MAX_UNEVALUATED_COST: Final = 2_000  # MAX_COST beside `unevaluated…`, which is written out: 2 ** 14 parts take 0.3 s
_MAX_UNEVALUATED: Final = 5  # `unevaluated…` in one cycle: each may double the work of a round
_MAX_CHAIN: Final = 3_000  # references in a row: the compiler recurses through them, at 1.3 kB of stack each
_CONTAINER_ENTRY: Final = 20  # units: an object in an `enum` is compared member by member
_COLLISION: Final = 3  # units: comparing two items that jsonschema-rs cannot tell apart by hash takes 40 ns
_QUADRATIC: Final = 2_500  # bits: `multipleOf: 0.01` takes 15 µs for 1e308 and 1 ms for an integer of 4,000 digits
_FLAT: Final = 8  # levels: subschemas that end so soon may apply beside a cycle
_SIMPLE: Final = ("string", "boolean", "null")
_SCALARS: Final = (*_SIMPLE, "integer", "number")
_CONTAINERS: Final = frozenset({dict, list})
_64_BITS: Final = range(-(1 << 63), 1 << 64)

_MANY = frozenset({"allOf", "anyOf", "oneOf"})
_ONE = frozenset({"if", "then", "else", "not"})
_REFS = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_IN_PLACE = _MANY | _ONE | _REFS | {"dependentSchemas"}
_NEGATED = frozenset({"not", "if"})
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_OF_OBJECTS = frozenset(
    {"properties", "additionalProperties", "propertyNames", "patternProperties", "unevaluatedProperties"}
)
_OF_ARRAYS = frozenset({"prefixItems", "items", "contains", "unevaluatedItems"})
_OF_NAMES = frozenset({"pattern", "type", "minLength", "maxLength", "format", "enum", "const", "title", "description"})
_PRICED = frozenset({"multipleOf", "pattern", "patternProperties", "propertyNames", "uniqueItems"})
_LISTS = frozenset({"enum", "required", "dependentRequired", "dependentSchemas"})
_COSTLY = _IN_PLACE | _OF_OBJECTS | _OF_ARRAYS | _PRICED | _LISTS  # a schema without any of them costs one unit


class ComplexityError(ValueError):
    """A value costs more to check than one value may."""

    def __init__(self) -> None:
        super().__init__("the value is too large or too deeply nested to be checked against a schema of this cost")


class SchemaPart:
    """One schema object: what it applies, where, and at which cost.

    `objects` and `arrays` hold the schemas of members, in groups: one schema of a group applies to a member, while
    each of several groups may apply one.
    """

    # fmt: off
    __slots__ = (
        "arrays", "below", "cost", "height", "in_place", "negated", "objects", "own", "priced", "prices", "properties",
        "rest", "spread", "unevaluated",
    )
    # fmt: on

    def __init__(self, schema: dict[str, Any], references: References) -> None:
        def present(*keywords: str) -> list[Any]:
            return [schema[keyword] for keyword in keywords if keyword in schema]

        # Most schemas have keywords of one kind, so skipping the other kinds halves the time: 5 µs.
        self.in_place: list[JSONSchema] = [] if _IN_PLACE.isdisjoint(schema) else list(_in_place(schema, references))
        self.negated = [] if _NEGATED.isdisjoint(schema) else present(*_NEGATED)
        self.unevaluated = not _UNEVALUATED.isdisjoint(schema)  # evaluates what it applies, and its branches, again
        self.properties: dict[str, Any] = {}
        self.rest: list[Any] = []
        self.objects: list[list[Any]] = []
        self.arrays: list[list[Any]] = []
        if not _OF_OBJECTS.isdisjoint(schema):
            self.properties = as_dict(schema.get("properties"))
            others = present("additionalProperties", "propertyNames")
            alone = [*as_dict(schema.get("patternProperties")).values(), *present("unevaluatedProperties")]
            self.rest = [*others, *alone]
            self.objects = [[*self.properties.values(), *others], *([each] for each in alone)]
        if not _OF_ARRAYS.isdisjoint(schema):
            items = [*as_list(schema.get("prefixItems")), *present("items")]
            self.arrays = [items, *([each] for each in present("contains", "unevaluatedItems"))]
        self.own = 1
        if not _LISTS.isdisjoint(schema):  # keywords that iterate over a list of their own
            self.own += len(as_dict(schema.get("dependentSchemas"))) + len(as_list(schema.get("required"))) // 8
            self.own += sum(1 + len(as_list(names)) for names in as_dict(schema.get("dependentRequired")).values())
            options = as_list(schema.get("enum"))
            if any(not isinstance(option, str) for option in options):  # an `enum` of strings is a hash table
                self.own += sum(_CONTAINER_ENTRY if isinstance(option, dict | list) else 1 for option in options)
        prices = None if _PRICED.isdisjoint(schema) else Prices(schema)
        self.prices = prices if prices is not None and prices.matter else None
        self.priced = self.prices is not None  # it, or one that it leads to
        self.cost = self.own  # units of one location
        self.below = 0  # the most subschemas that may apply to one location below
        self.spread = self.own  # the greater of both
        self.height: float = 0  # levels below that it may apply to

    def members(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield each member of a value with each schema that may apply to it."""
        if type(value) is dict:
            for name, item in cast("dict[str, Any]", value).items():
                yield from ((each, item) for each in (self.properties.get(name), *self.rest) if each is not None)
        elif type(value) is list:
            for group in self.arrays:
                yield from ((each, item) for each in group for item in cast("list[Any]", value))

    def inside(self) -> Iterator[Any]:
        """Yield the schemas that apply to the same value, and those of its members."""
        return chain(self.in_place, *self.objects, *self.arrays)


def _in_place(schema: dict[str, Any], references: References) -> Iterator[JSONSchema]:
    """Yield the schemas that one schema applies to the same value."""
    for keyword, value in schema.items():
        if keyword in _MANY:
            yield from as_list(value)
        elif keyword in _ONE:
            yield value
        elif keyword == "dependentSchemas":
            yield from as_dict(value).values()
        elif keyword in _REFS and isinstance(value, str):
            try:
                yield references.resolve(value)
            except SchemaError:  # raised by the compiler
                pass


class Prices:
    """The cost of a subschema beyond one unit per location.

    It is due per property name, per hash collision, for backtracking, and for the division of large numbers.
    """

    __slots__ = ("matter", "multiple", "names", "per_name", "text", "unique")

    def __init__(self, schema: dict[str, Any]) -> None:
        patterns = as_dict(schema.get("patternProperties"))
        self.per_name = len(patterns)
        named = as_dict(schema.get("propertyNames"))
        # Names are not metered by the subschemas that apply to them: one that is elsewhere may have any pattern.
        pattern = named.get("pattern") if named.keys() <= _OF_NAMES else r"\1"
        self.names = [each for each in map(PatternPrice, (*patterns, pattern)) if each.matters]
        text = PatternPrice(schema.get("pattern"))
        self.text = text if text.matters else None
        self.unique = schema.get("uniqueItems") is True
        kind = as_dict(schema.get("items")).get("type")
        may_collide = schema.get("type", "array") not in _SCALARS and kind not in _SIMPLE
        self.multiple = schema.get("multipleOf")
        has_risky_pattern = self.text is not None or bool(self.names)
        self.matter = (
            self.per_name > FREE or has_risky_pattern or (self.unique and may_collide) or self.multiple is not None
        )

    def of(self, value: Any) -> int:
        """Return the units for one value."""
        if type(value) is str:
            return 0 if self.text is None else self.text.of(value)
        if type(value) is dict:
            members = cast("dict[str, Any]", value)
            return self.per_name * len(members) + sum(each.of(name) for each in self.names for name in members)
        if self.multiple is not None and type(value) in (int, float):
            bits = _bits(value) + _bits(self.multiple)
            return bits + bits * bits // _QUADRATIC
        if not self.unique or type(value) is not list:
            return 0
        # Items that share a hash are compared: it ignores the ends of inner arrays and integers beyond 64 bits.
        items = cast("list[Any]", value)
        if not any(type(item) in _CONTAINERS or (type(item) is int and item not in _64_BITS) for item in items):
            return 0
        pairs, enough = 0, (_BUDGET + _BUDGET_PER_LOCATION * len(items)) // _COLLISION
        counts: Counter[Any] = Counter()
        for key in map(_hashed, items):
            pairs += counts[key]
            counts[key] += 1
            if pairs > enough:
                break
        return pairs * _COLLISION


def _bits(number: float) -> int:
    """Return the binary exponent of a number: the length of the integers that a division of it takes."""
    return number.bit_length() if isinstance(number, int) else abs(frexp(number)[1])


def _hashed(value: Any) -> Any:
    """Return what jsonschema-rs hashes of a value: the scalars in their order."""
    if type(value) is int:
        return value if value in _64_BITS else None
    if type(value) not in _CONTAINERS:
        return value
    scalars: list[Any] = []
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is list or type(each) is tuple:
            waiting.extend(cast("list[Any]", each))
        elif type(each) is dict:
            waiting.extend(cast("dict[str, Any]", each).items())
        elif type(each) is not int or each in _64_BITS:
            scalars.append(each)
    return tuple(scalars)


class Costs:
    """The parts of one schema, and how many of them may apply to one location.

    Raises:
        SchemaError: too many parts would apply to one location, or references lead too far.
    """

    def __init__(self, root: JSONSchema) -> None:
        self.root = root
        self._references = References(root)
        self._parts: dict[int, SchemaPart] = {}  # by the identity of a schema, which the root holds
        for cycle in self._cycles():
            self._weigh(cycle)
        parts = self._parts.values()
        highest = max((part.cost for part in parts), default=0)
        if highest > (_MAX_UNEVALUATED_COST if any(part.unevaluated for part in parts) else MAX_COST):
            raise SchemaError("its definitions multiply: too many of them apply to one value")

    @property
    def is_free(self) -> bool:
        """Whether so few parts apply to each location that values need no meter."""
        part = self.part(self.root)
        return part is None or _are_free((part,))

    @property
    def size(self) -> int:
        """The number of parts."""
        return len(self._parts)

    @property
    def multiplies(self) -> bool:
        """Whether many paths lead to the same location, so that verdicts have to be cached."""
        part = self.part(self.root)
        return part is not None and part.below > FREE

    @property
    def has_unevaluated(self) -> bool:
        """Whether `unevaluated…` is where verdicts have to be cached."""
        return any(part.unevaluated and part.below > FREE for part in self._parts.values())

    @property
    def negated_loops(self) -> bool:
        """Whether a part applies its own negation, or that of a part which leads back to it, to the same value.

        Other loops are valid: a base that lists its variants, each of which extends the base, is frequent.
        """
        if not any(part.negated for part in self._parts.values()):
            return False
        applied = {part: set(self.parts(part.in_place)) for part in self._parts.values()}
        looping = _without_ends(_without_ends(applied), reverse=True)
        return any(not looping[part].isdisjoint(self.parts(part.negated)) for part in looping)

    def part(self, schema: Any) -> SchemaPart | None:
        """Return the part of a schema object, or None for a boolean."""
        return self._parts.get(id(schema))

    def parts(self, schemas: Iterable[Any]) -> Iterator[SchemaPart]:
        """Yield the parts of those schemas that are objects."""
        return filter(None, map(self._parts.get, map(id, schemas)))

    def _cycles(self) -> Iterator[list[SchemaPart]]:
        """Yield groups of parts that lead to each other, the inner ones first: Tarjan's algorithm, not recursive."""
        index, low = {0: 0}, {0: 0}  # 0 is not an identity: the entry of the root's holder
        waiting: dict[int, None] = {}  # visited, and not in a group yet
        path: list[tuple[int, Iterator[Any]]] = [(0, iter((self.root,)))]
        trivial = SchemaPart({}, self._references)  # shared by all schemas that cost one unit
        while True:
            outer, inside = path[-1]
            for each in inside:
                key = id(each)
                if key in waiting:
                    low[outer] = min(low[outer], index[key])
                elif not isinstance(each, dict) or key in self._parts:
                    continue
                elif _COSTLY.isdisjoint(cast("dict[str, Any]", each)):
                    self._parts[key] = trivial
                else:
                    if len(path) > _MAX_CHAIN + 1:
                        raise SchemaError(
                            f"nested too deeply: more than {_MAX_CHAIN} schemas refer to each other in a row"
                        )
                    part = self._parts[key] = SchemaPart(cast("dict[str, Any]", each), self._references)
                    index[key] = low[key] = len(index)
                    waiting[key] = None
                    path.append((key, part.inside()))
                    break
            else:
                path.pop()
                if not path:
                    return
                if low[outer] == index[outer]:
                    group = [waiting.popitem()[0]]
                    while group[-1] != outer:
                        group.append(waiting.popitem()[0])
                    yield [self._parts[each] for each in group]
                above = path[-1][0]
                low[above] = min(low[above], low[outer])

    def _weigh(self, cycle: list[SchemaPart]) -> None:
        """Set the costs of parts that lead to each other, once those of everything that they lead to are known."""
        if len(cycle) == 1 and next(cycle[0].inside(), None) is None:
            return
        members = frozenset(cycle)
        below, height, priced = 0, 0.0, False
        for part in cycle:
            inside = list(self.parts(part.in_place))  # one that leads back counts once
            part.cost = min(UNBOUNDED, part.own + sum([each.cost for each in inside]) * (1 + part.unevaluated))
            priced = priced or part.priced or any(each.priced for each in self.parts(part.inside()))
            for groups in [each for each in (part.objects, part.arrays) if each] or [[]]:
                # A value is an object or an array.
                most, levels = self._sum(part, inside, groups, members)
                below, height = max(below, most), max(height, levels)
        if height == inf and sum(part.unevaluated for part in cycle) > _MAX_UNEVALUATED:
            below = UNBOUNDED
        spread = max(below, *(part.cost for part in cycle))
        for part in cycle:
            part.below, part.height, part.spread, part.priced = below, height, spread, priced

    def _sum(
        self, part: SchemaPart, inside: list[SchemaPart], groups: list[list[Any]], members: frozenset[SchemaPart]
    ) -> tuple[int, float]:
        """Return how many parts may apply to one location below a part, and how many levels of locations there are.

        What applies together adds up. A cycle is harmless while each step has one way to go on in it. With two ways,
        or with another part beside it, the number grows with the depth of the value. That `unevaluated…` goes each way
        twice adds up too, but not from one round of a cycle to the next: those verdicts jsonschema-rs caches.
        """
        ways, beside, instead, height = 0, 0, 0, 0.0
        for inner in inside:
            if inner in members:
                ways += 1
            else:
                beside += inner.below
                height = max(height, inner.height)
        for group in groups:
            found = list(self.parts(group))
            others = [inner for inner in found if inner not in members]
            most = max([inner.spread for inner in others], default=0)
            if len(others) < len(found):
                ways += 1
                instead = max(instead, most)
            elif others:
                beside += most
                height = max(height, *[inner.height + 1 for inner in others])
        beside *= 1 + part.unevaluated
        if not ways:
            return min(UNBOUNDED, beside), height
        if ways > 1 or height > _FLAT:
            return UNBOUNDED, inf
        return min(UNBOUNDED, max(1, instead) + beside * int(height + 1)), inf


def _are_free(parts: Collection[SchemaPart]) -> bool:
    """Return whether parts that apply to the same location are cheap there and below."""
    return sum(part.spread for part in parts) <= FREE and not any(part.priced for part in parts)


def _without_ends(
    graph: dict[SchemaPart, set[SchemaPart]], *, reverse: bool = False
) -> dict[SchemaPart, set[SchemaPart]]:
    """Remove the nodes of a graph from which no edge leads to a loop; with `reverse`, those that no loop leads to."""
    followers: dict[SchemaPart, list[SchemaPart]] = {part: [] for part in graph}
    for part, applied in graph.items():
        for each in applied:
            followers[each].append(part)
    ahead, behind = (followers, graph) if reverse else (graph, followers)
    left = {part: len(ahead[part]) for part in graph}
    ended = [part for part, count in left.items() if not count]
    for part in ended:  # grows during the iteration
        for each in behind[part]:
            left[each] -= 1
            if not left[each]:
                ended.append(each)
    kept = graph.keys() - set(ended)
    return {part: graph[part] & kept for part in kept}


class Meter:
    """Adds up what a check of a value may cost, in the parts of a schema that can be expensive.

    The parts that apply to one location are a state, and a member of the value leads from state to state: a location
    costs one step, however many parts apply to it. Items of an array lead to the same states, so these are cached.
    Several threads may use it at a time; what one of them pays for new states may then be too little.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._states: dict[frozenset[int], _MeterState] = {}
        self._new_parts = 0  # of the states that the current check has made

    def check(self, value: Any) -> int:
        """Return the units that a check of a plain value of limited depth takes, with those of the meter itself.

        Raises:
            ComplexityError: it would take too long.
        """
        budget, self._new_parts = _BUDGET, 0
        visited = 0  # locations, each of which adds to the budget
        waiting: list[tuple[Any, _MeterState]] = [(value, self._state([self._costs.root]))]
        while waiting:
            value, state = waiting.pop()
            visited += 1
            budget += state.allowance - state.price(value)
            if budget < self._new_parts * _NEW_PART:
                raise ComplexityError
            if type(value) is dict:
                members = state.members
                for name, item in cast("dict[str, Any]", value).items():
                    inner = members.get(name) or self._member(state, name)
                    if type(item) in _CONTAINERS or inner.prices:
                        if not inner.is_free:
                            waiting.append((item, inner))
                    else:  # saves half the time: most members are scalars
                        budget += inner.allowance
                        visited += not inner.is_free
            elif type(value) is list:
                if state.items is None:
                    state.items = self._state([*chain.from_iterable(g for part in state.parts for g in part.arrays)])
                if not state.items.is_free:
                    waiting.extend((item, state.items) for item in cast("list[Any]", value))
        return _BUDGET + visited * _BUDGET_PER_LOCATION - budget + self._new_parts * _NEW_PART

    def _member(self, state: "_MeterState", name: str) -> "_MeterState":
        known = name if name in state.declared else None  # all other names lead to the same state
        if known not in state.members:
            schemas = [part.properties[name] for part in state.parts if name in part.properties]
            state.members[known] = self._state([*schemas, *(each for part in state.parts for each in part.rest)])
        return state.members[known]

    def _state(self, schemas: list[Any]) -> "_MeterState":
        """Return the state of a location to which these schemas apply."""
        roots = list(self._costs.parts(schemas))
        key = frozenset(map(id, roots))
        if key not in self._states:
            parts = dict.fromkeys(roots)
            waiting = [] if (is_free := _are_free(roots)) else roots
            while waiting:
                fresh = [part for part in self._costs.parts(waiting.pop().in_place) if part not in parts]
                parts.update(dict.fromkeys(fresh))
                waiting.extend(fresh)
            self._new_parts += len(parts)
            self._states[key] = _MeterState([] if is_free else list(parts))
        return self._states[key]


class _MeterState:
    """The parts that apply to one location, and the states of its members; empty where no meter is needed."""

    __slots__ = ("allowance", "declared", "is_free", "items", "members", "parts", "prices")

    def __init__(self, parts: list[SchemaPart]) -> None:
        self.parts = parts
        self.is_free = not parts
        cost = sum(part.own + len(part.in_place) for part in parts)  # trivial ones share one part
        self.allowance = _BUDGET_PER_LOCATION - _VISIT - cost if parts else 0  # what a location adds to the budget
        self.prices = [part.prices for part in parts if part.prices is not None]
        self.declared = frozenset[str]().union(*(part.properties for part in parts))
        self.members: dict[str | None, _MeterState] = {}
        self.items: _MeterState | None = None

    def price(self, value: Any) -> int:
        return sum(each.of(value) for each in self.prices) if self.prices else 0


_EFFORT: Final = 100_000  # locations: a small value may be looked at as often as is of use
_EFFORT_PER_LOCATION: Final = 40
_CHECK: Final = 20  # locations that a check counts for by itself: the call takes 2 µs
_UNITS: Final = 7  # of a meter that count as one location: both take 0.1 µs
_SHALLOW: Final = 12  # levels
_CHARACTERS: Final = 100  # of a string that count as one location
_MAX_LOCATIONS: Final = 100_000_000  # a few containers, shared again and again, may count as any number
_values: Callable[[dict[Any, Any]], Iterable[Any]] = dict[Any, Any].values


class ExhaustedError(Exception):
    """The budget is exhausted."""


class Effort:
    """A budget for work on one value and its parts."""

    __slots__ = ("_sizes", "left")

    def __init__(self, value: Any) -> None:
        count, depth = extent(value)
        self.left = _EFFORT + _EFFORT_PER_LOCATION * count  # locations that may still be looked at
        self._sizes = _sizes(value) if depth > _SHALLOW else {}

    def spend(self, amount: int) -> None:
        """Take a number of locations off the budget, or raise `ExhaustedError`."""
        self.left -= amount
        if self.left < 0:
            raise ExhaustedError

    def spend_check(self, value: Any) -> None:
        """Take a check of a part off the budget, or raise `ExhaustedError`.

        In a shallow value only its members count: each location is inside few others, and counting all of them takes
        longer than the check.
        """
        if type(value) in _CONTAINERS:
            size = self._sizes.get(id(value), len(value))
            if self._sizes and id(value) not in self._sizes and type(value) is list:  # some of the items of another
                size += sum(self._sizes.get(id(each), 0) for each in cast("list[Any]", value))
            self.spend(_CHECK + size)
        else:
            self.spend(_CHECK + (len(value) // _CHARACTERS if type(value) is str else 0))

    def spend_metered(self, units: int) -> None:
        """Take a check that a meter has measured off the budget, or raise `ExhaustedError`."""
        self.spend(_CHECK + units // _UNITS)


def extent(value: Any, limit: int = _MAX_LOCATIONS) -> tuple[int, int]:
    """Return the number of locations in a plain value, more for long strings, and the depth of its nesting.

    Beyond the limit neither is exact. Level by level, as in `survey`, since that takes 50 ns per location, and one by
    one 300 ns.
    """
    level: list[Any] = [value]
    count, depth = 0, 0
    while level:
        count += len(level)
        depth += 1
        if count > limit:
            break
        kinds = set(map(type, level))
        count += sum(map(len, _of_kind(str, level, kinds))) // _CHARACTERS
        lists, dicts = _of_kind(list, level, kinds), _of_kind(dict, level, kinds)
        level = list(chain(chain.from_iterable(lists), chain.from_iterable(map(_values, dicts))))
    return count, depth


def _of_kind(kind: type, values: list[Any], kinds: set[type]) -> list[Any]:
    if kind not in kinds:
        return []
    return values if len(kinds) == 1 else [each for each in values if type(each) is kind]


def _sizes(whole: Any) -> dict[int, int]:
    """Return the number of locations in each container, by its identity: they live as long as the value does."""
    sizes: dict[int, int] = {}
    waiting: list[tuple[Any, bool]] = [(whole, False)]  # those inside are counted before their container
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
