"""What it costs to hold a value against a schema: bounded before the value reaches jsonschema-rs. No I/O, no clock.

A check is linear in the value as long as few parts of the schema look at each place of it. Two things break that:
`allOf`, `anyOf` and their like apply several schemas to one place, and definitions that each name the next one twice,
below a property or in a circle, double the work at every level of the value. Rules:

1. `Costs` reads a schema once and says how many parts may look at one place. A schema that stays below `FREE` is
   compiled as it is, and its values are not metered: that is nearly every schema there is.
2. Any other schema is rewritten (see `memo`), so that jsonschema-rs remembers the verdict of each definition on each
   object and array. The work then grows with parts × places, and no longer with the number of ways to a place.
3. `Meter` bounds that product: it follows a value only through the parts that can be expensive, and rejects a value
   beyond its budget.
4. A schema of which one place alone would cost too much is rejected.

How much work one value may cause. No I/O, no clock: work is counted in places of the value.

A walk that checks each part of a value by itself looks at the inner parts once for each level around them. `Effort`
counts that: the size of every part that is checked is taken off a budget that is a multiple of the whole.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any, Final, cast

from opwire.errors import SchemaError
from opwire.schema.dialect import JSONSchema, References

MAX_COST: Final = 10_000
"""Parts that one place may be held against. GitHub's, Stripe's and Kubernetes' have 117 at most."""

FREE: Final = 64
"""Parts that may look at each place unmetered; a small one takes jsonschema-rs 15 ns."""

UNBOUNDED: Final = 1 << 40

_BUDGET: Final = 5_000_000  # units of 10 to 20 ns, so that a small value may take 0.1 s
_BUDGET_PER_PLACE: Final = 150
_LOOK: Final = 30  # units that the meter itself takes for a place
_NEW_PART: Final = 20  # units that the meter takes to combine one more part
_MAX_MARKED: Final = 2_000  # MAX_COST beside `unevaluated…`, which the compiler writes out: 2 ** 14 parts take 0.3 s
_MAX_MARKING: Final = 5  # `unevaluated…` in one circle: each may double what is done in a round
_MAX_CHAIN: Final = 3_000  # references in a row: the compiler recurses through them, at 1.3 kB of stack each
_CONTAINER_ENTRY: Final = 20  # units: an object in an `enum` is compared member by member
_RISKY_PATTERN: Final = 2_000  # units: a pattern that backtracks, stopped after 10,000 steps, takes 0.3 ms at worst
_SHORT: Final = 10  # letters: too few to backtrack often
_COLLISION: Final = 3  # units: comparing two items that jsonschema-rs cannot tell apart by hash takes 40 ns
_FLAT: Final = 8  # levels: parts that end so soon may go along with a circle
_SIMPLE: Final = ("string", "boolean", "null")
_SCALARS: Final = (*_SIMPLE, "integer", "number")
_CONTAINERS: Final = frozenset({dict, list})
_64_BITS: Final = range(-(1 << 63), 1 << 64)

_MANY = ("allOf", "anyOf", "oneOf")
_ONE = ("if", "then", "else", "not")
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_NOT_REGULAR = re.compile(r"\(\?(?:[=!>]|<[=!])|\\[1-9k]|[*+?}]\+")
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_OF_OBJECTS = frozenset(
    {"properties", "additionalProperties", "propertyNames", "patternProperties", "unevaluatedProperties"}
)
_OF_ARRAYS = frozenset({"prefixItems", "items", "contains", "unevaluatedItems"})
_PRICED = frozenset({"pattern", "patternProperties", "uniqueItems"})
_LISTS = frozenset({"enum", "required", "dependentRequired", "dependentSchemas"})
_APPLICATORS = frozenset({*_MANY, *_ONE, *_REFS, "dependentSchemas"}) | _OF_OBJECTS | _OF_ARRAYS
_TELLING = _APPLICATORS | _PRICED | _LISTS  # a schema without any of them is one look at a value


class ComplexityError(ValueError):
    """A value costs more to check than one value may."""

    def __init__(self) -> None:
        super().__init__("the value is too large or too deeply nested for a schema with so many alternatives")


class Part:
    """One schema object: what it applies, and where.

    `objects` and `arrays` hold the schemas of members, in groups: of one group a member meets one schema, of several
    groups it may meet one each.
    """

    # fmt: off
    __slots__ = (
        "arrays", "below", "cost", "height", "in_place", "marks", "names", "negated", "objects", "own", "priced",
        "prices", "rest", "spread",
    )
    # fmt: on

    def __init__(self, schema: dict[str, Any], references: References) -> None:
        self.in_place = list(_applied_here(schema, references))
        self.negated = list(_schemas(schema, "not", "if"))
        self.marks = not _UNEVALUATED.isdisjoint(schema)  # asks what it applies, and its branches, again
        self.names = _dict(schema, "properties")
        self.rest: list[Any] = []
        self.objects: list[list[Any]] = []
        self.arrays: list[list[Any]] = []
        if not _OF_OBJECTS.isdisjoint(schema):
            others = list(_schemas(schema, "additionalProperties", "propertyNames"))
            patterns = list(_dict(schema, "patternProperties").values())
            rest = list(_schemas(schema, "unevaluatedProperties"))
            self.rest = [*others, *patterns, *rest]
            self.objects = [[*self.names.values(), *others], *([each] for each in (*patterns, *rest))]
        if not _OF_ARRAYS.isdisjoint(schema):
            items = [*_list(schema, "prefixItems"), *_schemas(schema, "items")]
            rest = list(_schemas(schema, "unevaluatedItems"))
            self.arrays = [items, *([each] for each in (*_schemas(schema, "contains"), *rest))]
        self.own = 1 + _own_cost(schema)
        self.prices = Prices(schema) if Prices.concern(schema) else None
        self.priced = self.prices is not None  # it, or one that it leads to
        self.cost = self.own  # units of one place
        self.below = 0  # the most parts that may look at one place below
        self.spread = self.own  # the greater of both
        self.height: float = 0  # levels below that it may look at

    def members(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Each member of a value with each schema that may apply to it."""
        if type(value) is dict:
            for name, item in cast("dict[str, Any]", value).items():
                yield from ((each, item) for each in (self.names.get(name), *self.rest) if each is not None)
        elif type(value) is list:
            for group in self.arrays:
                yield from ((each, item) for each in group for item in cast("list[Any]", value))

    def of_members(self) -> list[list[list[Any]]]:
        """The groups of an object's members, and those of an array's; a value is one of the two."""
        return [groups for groups in (self.objects, self.arrays) if groups] or [[]]

    @property
    def is_leaf(self) -> bool:
        """Whether it applies no other schema."""
        return not (self.in_place or self.objects or self.arrays)

    def inside(self) -> Iterator[Any]:
        """The schemas that apply to the same value, and those of its members."""
        yield from self.in_place
        for group in (*self.objects, *self.arrays):
            yield from group


class Prices:
    """What a part costs beyond a look at each place: by the number of names, by hash collisions, by backtracking."""

    __slots__ = ("per_name", "text", "unique")

    def __init__(self, schema: dict[str, Any]) -> None:
        patterns = _dict(schema, "patternProperties")
        self.per_name = sum(_RISKY_PATTERN if _backtracks(each) else 1 for each in patterns)
        self.text = _RISKY_PATTERN if _backtracks(schema.get("pattern")) else 0
        self.unique = schema.get("uniqueItems") is True

    @staticmethod
    def concern(schema: dict[str, Any]) -> bool:
        """Whether a schema has any."""
        if _PRICED.isdisjoint(schema):
            return False
        patterns = _dict(schema, "patternProperties")
        if len(patterns) > FREE or any(map(_backtracks, (*patterns, schema.get("pattern")))):
            return True
        return schema.get("uniqueItems") is True and _may_collide(schema)

    def of(self, value: Any) -> int:
        """The units for one value."""
        if type(value) is str:
            return self.text if len(value) > _SHORT else 0
        if type(value) is dict:
            return self.per_name * len(cast("dict[str, Any]", value))
        return _collisions(cast("list[Any]", value)) * _COLLISION if self.unique and type(value) is list else 0


class Costs:
    """The parts of one schema, and how many of them may look at one place.

    Raises:
        SchemaError: one place alone would be held against too many parts, or references lead too far.
    """

    def __init__(self, root: JSONSchema) -> None:
        self.root = root
        self._references = References(root)
        self._parts: dict[int, Part] = {}  # by the identity of a schema, which the root holds
        for group in self._circles():
            self._weigh(group)
        dearest = max((part.cost for part in self._parts.values()), default=0)
        if dearest > (_MAX_MARKED if any(part.marks for part in self._parts.values()) else MAX_COST):
            raise SchemaError("its definitions multiply: one value would be held against them without end")

    @property
    def is_free(self) -> bool:
        """Whether so few parts look at each place that values need no meter."""
        part = self.part(self.root)
        return part is None or _is_free((part,))

    @property
    def size(self) -> int:
        """The number of its parts."""
        return len(self._parts)

    @property
    def multiplies(self) -> bool:
        """Whether many ways lead to the same place, so that verdicts have to be remembered."""
        part = self.part(self.root)
        return part is not None and part.below > FREE

    @property
    def marks(self) -> bool:
        """Whether `unevaluated…` stands where verdicts have to be remembered."""
        return any(part.marks and part.below > FREE for part in self._parts.values())

    @property
    def negated_loops(self) -> bool:
        """Whether a part applies its own negation, or that of a part which leads back to it, to the same value.

        Other loops have a meaning: a base that lists its variants, each of which extends the base, is frequent.
        """
        applied = {part: set(filter(None, map(self.part, part.in_place))) for part in self._parts.values()}
        looping = _without_ends(_without_ends(applied), reverse=True)
        return any(not looping[part].isdisjoint(filter(None, map(self.part, part.negated))) for part in looping)

    def part(self, schema: Any) -> Part | None:
        """The part of a schema object; None for a boolean."""
        return self._parts.get(id(schema))

    def _circles(self) -> Iterator[list[Part]]:
        """The parts in groups that lead to each other, the inner ones first: Tarjan's algorithm without recursion."""
        index: dict[int, int] = {}
        low: dict[int, int] = {}
        waiting: dict[int, None] = {}  # visited, and not in a group yet
        path: list[tuple[int, Iterator[Any]]] = []
        look = Part({}, self._references)  # one for all schemas that are no more than a look at a value
        inside: Iterator[Any] = iter((self.root,))
        while True:
            for each in inside:
                key = id(each)
                if key in waiting:
                    low[path[-1][0]] = min(low[path[-1][0]], index[key])
                elif not isinstance(each, dict) or key in self._parts:
                    continue
                elif _TELLING.isdisjoint(cast("dict[str, Any]", each)):
                    self._parts[key] = look
                else:
                    if len(path) > _MAX_CHAIN:
                        raise SchemaError(
                            f"nested too deeply: more than {_MAX_CHAIN} schemas lead to each other in a row"
                        )
                    part = self._parts[key] = Part(cast("dict[str, Any]", each), self._references)
                    index[key] = low[key] = len(index)
                    waiting[key] = None
                    inside = part.inside()
                    path.append((key, inside))
                    break
            else:
                if not path:
                    return
                key, _ = path.pop()
                if low[key] == index[key]:
                    yield [self._parts[each] for each in _popped(waiting, key)]
                if not path:
                    return
                outer, inside = path[-1]
                low[outer] = min(low[outer], low[key])

    def _weigh(self, circle: list[Part]) -> None:
        """Set the cost and the spread of parts that lead to each other; all that they lead to is known."""
        if len(circle) == 1 and circle[0].is_leaf:
            return
        members = frozenset(circle)
        for part in circle:
            inside = filter(None, map(self.part, part.in_place))
            cost = part.own + sum(each.cost for each in inside) * (1 + part.marks)  # one that leads back counts once
            part.cost = min(UNBOUNDED, cost)
        sums = [self._sum(part, groups, members) for part in circle for groups in part.of_members()]
        below, height = max(below for below, _ in sums), max(height for _, height in sums)
        if height == inf and sum(part.marks for part in circle) > _MAX_MARKING:
            below = UNBOUNDED
        spread = max(below, *(part.cost for part in circle))
        priced = any(part.priced or any(map(self._is_priced, part.inside())) for part in circle)
        for part in circle:
            part.below, part.height, part.spread, part.priced = below, height, spread, priced

    def _is_priced(self, schema: Any) -> bool:
        part = self.part(schema)
        return part is not None and part.priced

    def _sum(self, part: Part, groups: list[list[Any]], members: frozenset[Part]) -> tuple[int, float]:
        """How many parts may look at one place below a part, and how many levels of places there are.

        What applies together adds up. A circle is harmless while each step has one way to go on in it. With two ways,
        or with another part that goes along, the number grows with the depth of the value. That `unevaluated…` goes
        each way twice adds up too, but not from one round of a circle to the next: that much jsonschema-rs remembers.
        """
        ways, beside, instead = 0, 0, 0
        height, height_beside = 0.0, 0.0
        together = [([each], False) for each in part.in_place]
        for group, is_below in (*together, *((each, True) for each in groups)):
            most, levels, leads_on = 0, 0.0, False
            for inner in filter(None, map(self.part, group)):
                if inner in members:
                    leads_on = True
                else:
                    most = max(most, inner.spread if is_below else inner.below)
                    levels = max(levels, inner.height + is_below)
            height = max(height, levels)
            if leads_on:
                ways += 1
                instead = max(instead, most)
            else:
                beside += most * (1 + part.marks)
                height_beside = max(height_beside, levels)
        if not ways:
            return min(UNBOUNDED, beside), height
        if ways > 1 or height_beside > _FLAT:
            return UNBOUNDED, inf
        return min(UNBOUNDED, max(1, instead) + beside * int(height_beside + 1)), inf


class Meter:
    """Adds up what a check of a value may cost, in the parts of a schema that can be expensive.

    The parts that look at one place are a state. A member of the value leads from state to state, so a place costs
    one step here, however many parts look at it. The same states come again for each item: they are kept.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._states: dict[frozenset[int], _State] = {}
        self._budget = 0

    def check(self, value: Any) -> None:
        """Let a value pass that is plain and not deep.

        Raises:
            ComplexityError: it would take too long.
        """
        self._budget = _BUDGET
        waiting: list[tuple[Any, _State]] = [(value, self._state([self._costs.root]))]
        while waiting:
            value, state = waiting.pop()
            self._budget += state.allowance - state.price(value)
            if self._budget < 0:
                raise ComplexityError
            if type(value) is dict:
                members = state.members
                for name, item in cast("dict[str, Any]", value).items():
                    inner = members.get(name) or self._member(state, name)
                    if type(item) in _CONTAINERS or inner.prices:
                        if not inner.is_free:
                            waiting.append((item, inner))
                    else:  # worth half the time: most members are scalars
                        self._budget += inner.allowance
            elif type(value) is list and not (inner := self._item(state)).is_free:
                waiting.extend((item, inner) for item in cast("list[Any]", value))

    def _member(self, state: "_State", name: str) -> "_State":
        known = name if name in state.declared else None  # all other names lead to the same state
        if known not in state.members:
            schemas = [part.names[name] for part in state.parts if name in part.names]
            state.members[known] = self._state([*schemas, *(each for part in state.parts for each in part.rest)])
        return state.members[known]

    def _item(self, state: "_State") -> "_State":
        if state.items is None:
            groups = (group for part in state.parts for group in part.arrays)
            state.items = self._state([each for group in groups for each in group])
        return state.items

    def _state(self, schemas: list[Any]) -> "_State":
        """The state of a place that has to meet these schemas."""
        roots = list(filter(None, map(self._costs.part, schemas)))
        key = frozenset(map(id, roots))
        if key not in self._states:
            parts = dict.fromkeys(roots)
            waiting = [] if (is_free := _is_free(roots)) else roots
            while waiting:
                inner = filter(None, map(self._costs.part, waiting.pop().in_place))
                fresh = [part for part in inner if part not in parts]
                parts.update(dict.fromkeys(fresh))
                waiting.extend(fresh)
            self._budget -= _NEW_PART * len(parts)
            self._states[key] = _State([] if is_free else list(parts))
        return self._states[key]


class _State:
    """The parts that look at one place, and what they lead to. None of them where no meter is needed."""

    __slots__ = ("allowance", "declared", "is_free", "items", "members", "parts", "prices")

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.is_free = not parts
        cost = sum(part.own + len(part.in_place) for part in parts)  # those that are only a look are one part
        self.allowance = _BUDGET_PER_PLACE - _LOOK - cost if parts else 0  # what a place adds to the budget
        self.prices = [part.prices for part in parts if part.prices is not None]
        self.declared = frozenset[str]().union(*(part.names for part in parts))
        self.members: dict[str | None, _State] = {}
        self.items: _State | None = None

    def price(self, value: Any) -> int:
        return sum(each.of(value) for each in self.prices) if self.prices else 0


def _is_free(parts: Collection[Part]) -> bool:
    """Whether parts that look at the same place are cheap there and below."""
    return sum(part.spread for part in parts) <= FREE and not any(part.priced for part in parts)


def _without_ends(graph: dict[Part, set[Part]], *, reverse: bool = False) -> dict[Part, set[Part]]:
    """Remove the nodes of a graph from which no edge leads to a loop; with `reverse`, those that no loop leads to."""
    followers: dict[Part, list[Part]] = {part: [] for part in graph}
    for part, applied in graph.items():
        for each in applied:
            followers[each].append(part)
    ahead, behind = (followers, graph) if reverse else (graph, followers)
    left = {part: len(ahead[part]) for part in graph}
    ended = [part for part, count in left.items() if not count]
    for part in ended:  # grows while it is read
        for each in behind[part]:
            left[each] -= 1
            if not left[each]:
                ended.append(each)
    kept = graph.keys() - set(ended)
    return {part: graph[part] & kept for part in kept}


def _popped(waiting: dict[int, None], last: int) -> Iterator[int]:
    """Take entries from the end, up to one of them."""
    key = None
    while key != last:
        key, _ = waiting.popitem()
        yield key


def _applied_here(schema: dict[str, Any], references: References) -> Iterator[JSONSchema]:
    """The schemas that apply to the same value."""
    for keyword in _MANY:
        yield from _list(schema, keyword)
    yield from _schemas(schema, *_ONE)
    for keyword in _REFS:
        ref = schema.get(keyword)
        if isinstance(ref, str):
            try:
                yield references.resolve(ref)
            except SchemaError:  # that is for the compiler to say
                pass
    yield from _dict(schema, "dependentSchemas").values()


def _own_cost(schema: dict[str, Any]) -> int:
    """What keywords cost that go through a list of their own. An `enum` of strings is a hash table."""
    if _LISTS.isdisjoint(schema):
        return 0
    cost = len(_dict(schema, "dependentSchemas")) + len(_list(schema, "required")) // 8
    depending = _dict(schema, "dependentRequired")
    cost += sum(1 + len(_list(depending, name)) for name in depending)
    options = _list(schema, "enum")
    if any(not isinstance(option, str) for option in options):
        cost += sum(_CONTAINER_ENTRY if isinstance(option, dict | list) else 1 for option in options)
    return cost


def _backtracks(pattern: Any) -> bool:
    """Whether a pattern may backtrack often: a repeated group, beside what only the backtracking engine knows."""
    return isinstance(pattern, str) and bool(_REPEATED_GROUP.search(pattern) and _NOT_REGULAR.search(pattern))


def _may_collide(schema: dict[str, Any]) -> bool:
    """Whether a schema takes arrays with items that jsonschema-rs may have no different hashes for."""
    items = schema.get("items")
    kind = cast("dict[str, Any]", items).get("type") if isinstance(items, dict) else None
    return schema.get("type", "array") not in _SCALARS and kind not in _SIMPLE


def _collisions(items: list[Any]) -> int:
    """How many pairs of items share a hash: it does not see where an inner array ends, nor integers beyond 64 bits."""
    if not any(type(item) in _CONTAINERS or (type(item) is int and item not in _64_BITS) for item in items):
        return 0
    pairs, enough = 0, (_BUDGET + _BUDGET_PER_PLACE * len(items)) // _COLLISION
    counts: Counter[Any] = Counter()
    for key in map(_hashed, items):
        pairs += counts[key]
        counts[key] += 1
        if pairs > enough:
            break
    return pairs


def _hashed(value: Any) -> Any:
    """What of a value goes into the hash: the leaves in their order."""
    if type(value) is int:
        return value if value in _64_BITS else None
    if type(value) not in _CONTAINERS:
        return value
    leaves: list[Any] = []
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is list:
            waiting.extend(cast("list[Any]", each))
        elif type(each) is dict:
            waiting.extend(cast("dict[str, Any]", each).items())
        elif type(each) is tuple:
            waiting.extend(cast("tuple[Any, ...]", each))
        elif type(each) is not int or each in _64_BITS:
            leaves.append(each)
    return tuple(leaves)


def _schemas(schema: dict[str, Any], *keywords: str) -> Iterator[Any]:
    return (schema[keyword] for keyword in keywords if keyword in schema)


def _dict(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(schema: dict[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return cast("list[Any]", value) if isinstance(value, list) else []


_WALK: Final = 100_000  # places: a small value may be looked at as often as is of use
_WALK_PER_PLACE: Final = 40
_CHECK: Final = 20  # places that a check counts for by itself: the call takes 2 µs
_SHALLOW: Final = 12  # levels
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
