"""Count how many subschemas may apply to one location of a value. No I/O, no clock.

A check takes time linear in the value as long as few subschemas apply to each location. Two things break that: `allOf`,
`anyOf` and their like apply several schemas to one location, and definitions that each name the next one twice, below
a property or in a cycle, double the work at every level of the value. Rules:

1. `SchemaCosts` reads a schema once. One that applies at most `FREE_UNITS` to each location is compiled unchanged, and
   its values are not metered: that is nearly every schema.
2. A schema whose definitions multiply is rewritten (`memo`), so that jsonschema-rs caches the verdict of each
   definition on each object and array. The work then grows with subschemas × locations, not with the paths to them.
3. `meter` bounds that product: it follows a value through the expensive subschemas, and raises beyond its budget.
4. A schema for which a single location would cost too much is rejected.

A unit is what jsonschema-rs needs to apply a small subschema: 10 to 20 ns.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from math import inf
from typing import Any, Final, cast

from opwire.errors import SchemaError
from opwire.schema.dialect import JSONSchema, References
from opwire.schema.keyword_cost import PRICED_KEYWORDS, KeywordCost, keyword_costs
from opwire.typed.plain import as_dict, as_list

FREE_UNITS: Final = 64
"""Units that each location may cost without a meter."""

_MAX_UNITS_PER_LOCATION: Final = 10_000  # GitHub's, Stripe's and Kubernetes' schemas have 117 at most
_MAX_UNITS_BESIDE_UNEVALUATED: Final = 2_000  # `unevaluated…` is written out: 2 ** 14 parts take 0.3 s
_MAX_UNEVALUATED_IN_CYCLE: Final = 5  # each may double the work of a round
_MAX_REFERENCE_CHAIN: Final = 3_000  # the compiler recurses through references, with 1.3 kB of stack each
_MAX_LEVELS_BESIDE_CYCLE: Final = 8
_UNITS_PER_CONTAINER_IN_ENUM: Final = 20  # an object in an `enum` is compared member by member
_REQUIRED_NAMES_PER_UNIT: Final = 8
_UNBOUNDED: Final = 1 << 40

_LISTS_OF_SUBSCHEMAS = frozenset({"allOf", "anyOf", "oneOf"})
_SINGLE_SUBSCHEMAS = frozenset({"if", "then", "else", "not"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_IN_PLACE = _LISTS_OF_SUBSCHEMAS | _SINGLE_SUBSCHEMAS | _REFERENCES | {"dependentSchemas"}
_NEGATED = frozenset({"not", "if"})
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_OBJECT_APPLICATORS = frozenset(
    {"properties", "additionalProperties", "propertyNames", "patternProperties", "unevaluatedProperties"}
)
_ARRAY_APPLICATORS = frozenset({"prefixItems", "items", "contains", "unevaluatedItems"})
_LISTS_OF_DATA = frozenset({"enum", "required", "dependentRequired", "dependentSchemas"})
_COSTLY_KEYWORDS = _IN_PLACE | _OBJECT_APPLICATORS | _ARRAY_APPLICATORS | PRICED_KEYWORDS | _LISTS_OF_DATA


class SchemaPart:
    """One schema object: the subschemas that it applies, where it applies them, and its costs in units.

    `in_place` apply to the same value, the groups to its members. One schema of a group applies to a member, while
    each of several groups may apply one.
    """

    # fmt: off
    __slots__ = (
        "array_groups", "descendant_cost", "has_unevaluated", "height", "in_place", "is_priced", "keyword_costs",
        "location_cost", "negated", "object_groups", "other_properties", "own_cost", "peak_cost", "properties",
    )
    # fmt: on

    def __init__(self, schema: dict[str, Any], references: References) -> None:
        def subschemas(*keywords: str) -> list[Any]:
            return [schema[keyword] for keyword in keywords if keyword in schema]

        def groups(alternatives: list[Any], independent: list[Any]) -> list[list[Any]]:
            return [group for group in (alternatives, *([subschema] for subschema in independent)) if group]

        self.in_place: list[JSONSchema] = list(_in_place(schema, references))
        self.negated = subschemas(*_NEGATED)
        self.has_unevaluated = not _UNEVALUATED.isdisjoint(schema)  # it evaluates the branches of the schema again
        self.properties = as_dict(schema.get("properties"))
        exclusive = subschemas("additionalProperties", "propertyNames")
        independent = [*as_dict(schema.get("patternProperties")).values(), *subschemas("unevaluatedProperties")]
        self.other_properties = [*exclusive, *independent]
        self.object_groups = groups([*self.properties.values(), *exclusive], independent)
        items = [*as_list(schema.get("prefixItems")), *subschemas("items")]
        self.array_groups = groups(items, subschemas("contains", "unevaluatedItems"))
        self.keyword_costs: list[KeywordCost] = list(keyword_costs(schema))
        self.own_cost = 1 + _cost_of_lists(schema)
        # `SchemaCosts` adds the costs of the subschemas to those that follow:
        self.is_priced = bool(self.keyword_costs)  # this part, or one that it leads to
        self.location_cost = self.own_cost  # of everything that applies to the same location
        self.descendant_cost = 0  # the most that applies to any location below
        self.peak_cost = self.own_cost  # the greater of both
        self.height: float = 0  # levels below that it may apply to

    def members(self, value: Any) -> Iterator[tuple[Any, Any]]:
        """Yield each subschema that may apply to a member of a value, with that member."""
        if type(value) is dict:
            for name, member in cast("dict[str, Any]", value).items():
                for subschema in (self.properties.get(name), *self.other_properties):
                    if subschema is not None:
                        yield subschema, member
        elif type(value) is list:
            for group in self.array_groups:
                yield from ((subschema, item) for subschema in group for item in cast("list[Any]", value))

    def subschemas(self) -> Iterator[Any]:
        """Yield the schemas that apply to the same value, and those of its members."""
        return chain(self.in_place, *self.object_groups, *self.array_groups)


def _in_place(schema: dict[str, Any], references: References) -> Iterator[JSONSchema]:
    """Yield the schemas that one schema applies to the same value."""
    for keyword, value in schema.items():
        if keyword in _LISTS_OF_SUBSCHEMAS:
            yield from as_list(value)
        elif keyword in _SINGLE_SUBSCHEMAS:
            yield value
        elif keyword == "dependentSchemas":
            yield from as_dict(value).values()
        elif keyword in _REFERENCES and isinstance(value, str):
            try:
                yield references.resolve(value)
            except SchemaError:  # raised by the compiler
                pass


def _cost_of_lists(schema: dict[str, Any]) -> int:
    """Return the units of keywords that iterate over a list of their own."""
    units = len(as_dict(schema.get("dependentSchemas")))
    units += len(as_list(schema.get("required"))) // _REQUIRED_NAMES_PER_UNIT
    units += sum(1 + len(as_list(names)) for names in as_dict(schema.get("dependentRequired")).values())
    options = as_list(schema.get("enum"))
    if any(not isinstance(option, str) for option in options):  # an `enum` of strings is a hash table
        units += sum(_UNITS_PER_CONTAINER_IN_ENUM if isinstance(option, dict | list) else 1 for option in options)
    return units


class SchemaCosts:
    """The parts of one schema, and how much of them may apply to one location.

    Raises:
        SchemaError: too many parts would apply to one location, or references lead too far.
    """

    def __init__(self, root: JSONSchema) -> None:
        self.root = root
        self._references = References(root)
        self._parts: dict[int, SchemaPart] = {}  # by the identity of a schema, which the root holds
        for cycle in self._cycles():
            self._add_costs(cycle)
        parts = self._parts.values()
        highest = max((part.location_cost for part in parts), default=0)
        has_unevaluated = any(part.has_unevaluated for part in parts)
        if highest > (_MAX_UNITS_BESIDE_UNEVALUATED if has_unevaluated else _MAX_UNITS_PER_LOCATION):
            raise SchemaError("its definitions multiply: too many of them apply to one value")

    @property
    def is_free(self) -> bool:
        """Whether each location costs so little that values need no meter."""
        root = self.part(self.root)
        return root is None or are_free((root,))

    @property
    def size(self) -> int:
        """The number of parts."""
        return len(self._parts)

    @property
    def multiplies(self) -> bool:
        """Whether many paths lead to the same location, so that verdicts have to be cached."""
        root = self.part(self.root)
        return root is not None and root.descendant_cost > FREE_UNITS

    @property
    def multiplies_unevaluated(self) -> bool:
        """Whether `unevaluated…` is where verdicts have to be cached."""
        return any(part.has_unevaluated and part.descendant_cost > FREE_UNITS for part in self._parts.values())

    @property
    def has_negated_cycle(self) -> bool:
        """Whether a part applies its own negation, or that of a part which leads back to it, to the same value.

        Other cycles are valid: a base that lists its variants, each of which extends the base, is frequent.
        """
        if not any(part.negated for part in self._parts.values()):
            return False
        parts_in_place = {part: set(self.parts(part.in_place)) for part in self._parts.values()}
        cyclic = _cyclic_nodes(parts_in_place)
        return any(not cyclic[part].isdisjoint(self.parts(part.negated)) for part in cyclic)

    def part(self, schema: Any) -> SchemaPart | None:
        """Return the part of a schema object, or None for a boolean."""
        return self._parts.get(id(schema))

    def parts(self, schemas: Iterable[Any]) -> Iterator[SchemaPart]:
        """Yield the parts of those schemas that are objects."""
        return filter(None, map(self._parts.get, map(id, schemas)))

    def _cycles(self) -> Iterator[list[SchemaPart]]:
        """Yield groups of parts that lead to each other, the inner ones first: Tarjan's algorithm, not recursive."""
        root_holder = 0  # not an identity
        index, low = {root_holder: 0}, {root_holder: 0}
        ungrouped: dict[int, None] = {}
        path: list[tuple[int, Iterator[Any]]] = [(root_holder, iter((self.root,)))]
        trivial = SchemaPart({}, self._references)  # shared by all schemas that cost one unit
        while True:
            outer, subschemas = path[-1]
            for subschema in subschemas:
                key = id(subschema)
                if key in ungrouped:
                    low[outer] = min(low[outer], index[key])
                elif not isinstance(subschema, dict) or key in self._parts:
                    continue
                elif _COSTLY_KEYWORDS.isdisjoint(cast("dict[str, Any]", subschema)):
                    self._parts[key] = trivial
                else:
                    if len(path) > _MAX_REFERENCE_CHAIN + 1:
                        raise SchemaError(
                            f"nested too deeply: more than {_MAX_REFERENCE_CHAIN} schemas refer to each other in a row"
                        )
                    part = self._parts[key] = SchemaPart(cast("dict[str, Any]", subschema), self._references)
                    index[key] = low[key] = len(index)
                    ungrouped[key] = None
                    path.append((key, part.subschemas()))
                    break
            else:
                path.pop()
                if not path:
                    return
                if low[outer] == index[outer]:
                    group = [ungrouped.popitem()[0]]
                    while group[-1] != outer:
                        group.append(ungrouped.popitem()[0])
                    yield [self._parts[key] for key in group]
                above = path[-1][0]
                low[above] = min(low[above], low[outer])

    def _add_costs(self, cycle: list[SchemaPart]) -> None:
        """Complete the costs of parts that lead to each other, once those of everything that they lead to are known."""
        if len(cycle) == 1 and next(cycle[0].subschemas(), None) is None:
            return
        members = frozenset(cycle)
        descendant_cost, height, is_priced = 0, 0.0, False
        for part in cycle:
            in_place = list(self.parts(part.in_place))  # one that leads back counts once
            in_place_cost = sum([inner.location_cost for inner in in_place])
            part.location_cost = min(_UNBOUNDED, part.own_cost + in_place_cost * (1 + part.has_unevaluated))
            is_priced = is_priced or part.is_priced or any(inner.is_priced for inner in self.parts(part.subschemas()))
            # A value is an object or an array.
            for groups in [groups for groups in (part.object_groups, part.array_groups) if groups] or [[]]:
                cost, levels = self._cost_below(part, in_place, groups, members)
                descendant_cost = max(descendant_cost, cost)
                height = max(height, levels)
        if height == inf and sum(part.has_unevaluated for part in cycle) > _MAX_UNEVALUATED_IN_CYCLE:
            descendant_cost = _UNBOUNDED
        peak_cost = max(descendant_cost, *(part.location_cost for part in cycle))
        for part in cycle:
            part.descendant_cost = descendant_cost
            part.peak_cost = peak_cost
            part.height = height
            part.is_priced = is_priced

    def _cost_below(
        self, part: SchemaPart, in_place: list[SchemaPart], groups: list[list[Any]], cycle: frozenset[SchemaPart]
    ) -> tuple[int, float]:
        """Return what may apply to one location below a part, and how many levels of locations there are.

        What applies together adds up. A cycle is harmless while each step has one way to go on in it. With two ways,
        or with another part beside it, the cost grows with the depth of the value. That `unevaluated…` goes each way
        twice adds up too, but not from one round of a cycle to the next: those verdicts jsonschema-rs caches.
        """
        ways_on = 0  # of the cycle
        cost_beside_cycle = cost_instead_of_cycle = 0
        height = 0.0
        for inner in in_place:
            if inner in cycle:
                ways_on += 1
            else:
                cost_beside_cycle += inner.descendant_cost
                height = max(height, inner.height)
        for group in groups:
            parts = list(self.parts(group))
            parts_outside = [inner for inner in parts if inner not in cycle]
            highest = max([inner.peak_cost for inner in parts_outside], default=0)
            if len(parts_outside) < len(parts):
                ways_on += 1
                cost_instead_of_cycle = max(cost_instead_of_cycle, highest)
            elif parts_outside:
                cost_beside_cycle += highest
                height = max(height, *[inner.height + 1 for inner in parts_outside])
        cost_beside_cycle *= 1 + part.has_unevaluated
        if not ways_on:
            return min(_UNBOUNDED, cost_beside_cycle), height
        if ways_on > 1 or height > _MAX_LEVELS_BESIDE_CYCLE:
            return _UNBOUNDED, inf
        return min(_UNBOUNDED, max(1, cost_instead_of_cycle) + cost_beside_cycle * int(height + 1)), inf


def are_free(parts: Collection[SchemaPart]) -> bool:
    """Return whether parts that apply to the same location are cheap there and below."""
    return sum(part.peak_cost for part in parts) <= FREE_UNITS and not any(part.is_priced for part in parts)


def _cyclic_nodes(graph: dict[SchemaPart, set[SchemaPart]]) -> dict[SchemaPart, set[SchemaPart]]:
    """Return the part of a graph that is in cycles, or on a path from one to another."""
    return _reversed(_without_leaves(_reversed(_without_leaves(graph))))


def _without_leaves(graph: dict[SchemaPart, set[SchemaPart]]) -> dict[SchemaPart, set[SchemaPart]]:
    """Remove the nodes from which no edge leads to a cycle."""
    predecessors = _reversed(graph)
    remaining_edges = {node: len(successors) for node, successors in graph.items()}
    leaves = [node for node, count in remaining_edges.items() if not count]
    for leaf in leaves:  # grows during the iteration
        for node in predecessors[leaf]:
            remaining_edges[node] -= 1
            if not remaining_edges[node]:
                leaves.append(node)
    cyclic = graph.keys() - set(leaves)
    return {node: graph[node] & cyclic for node in cyclic}


def _reversed(graph: dict[SchemaPart, set[SchemaPart]]) -> dict[SchemaPart, set[SchemaPart]]:
    edges_back: dict[SchemaPart, set[SchemaPart]] = {node: set() for node in graph}
    for node, successors in graph.items():
        for successor in successors:
            edges_back[successor].add(node)
    return edges_back
