"""`fit`: opwire's normalisation. Fills declared defaults, strips undeclared properties, writes 5.0 as 5 for an integer.

Rules:
1. A value that conforms is returned as the same object, after one fast check; only otherwise it is walked.
2. The value is never changed. The result shares every part that needed no repair with the original.
3. Nothing is invented: a property without a declared default stays missing, an invalid value stays unchanged.
4. What was valid stays valid: a repair that breaks its location (too many properties, two variants at once) is undone.
5. Fitting a fitted value is a no-op. If repeated repairs do not settle, the original is returned.

A schema "applies" to a value as in `unevaluatedProperties`: through references, `allOf`, the variants that match, the
taken side of an `if`, and dependent schemas. Where no variant of a union matches, the best candidate counts: by
discriminator, then by properties pinned to constants, then by how many members are valid. A union without a single best
candidate is unresolved, and the value is then left unchanged.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple, cast

from opwire.errors import SchemaError
from opwire.schema.dialect import JSONSchema, escaped, lazy_property
from opwire.schema.effort import Effort, ExhaustedError
from opwire.schema.meter import ComplexityError
from opwire.schema.shape import DEPENDENT, UNIONS, Node, allows_extras, json_type, names_properties, type_names
from opwire.schema.validator import Check, Checks, MeteredChecks, PartChecks
from opwire.typed.plain import as_dict, as_list, collection_paused

_CONDITIONAL = frozenset({*UNIONS, *DEPENDENT, "if"})
_MAX_PASSES = 4  # one suffices unless conditions depend on what a repair changes
_MAX_NESTED_DEFAULTS = 10_000  # defaults inside defaults can double at each level
_REPAIRABLE = (dict, list, float)
_ITEMS_PER_CHECK = 32
_MISSING = object()
_NOT_FILLED: dict[str, Node] = {}


class Repair(NamedTuple):
    """One thing that `fit` did. `path` is a JSON Pointer to the property that it added, removed or converted."""

    kind: Literal["filled", "stripped", "converted"]
    path: str


class Fitted(NamedTuple):
    """The result of `fit`: the very same value if there was nothing to do."""

    value: Any
    repairs: tuple[Repair, ...]


class Force(IntEnum):
    """What a schema may do to a value; the greater one wins where two meet."""

    EVALUATE = 0  # a condition: it only declares properties
    CONVERT = 1  # one of several variants that match equally well: its defaults would be a guess
    FILL = 2


class Demand(NamedTuple):
    """A schema that a value has to satisfy."""

    schema: JSONSchema
    force: Force


class Applied(NamedTuple):
    """One node that applies to a value, and the unions through which it was reached."""

    node: Node
    force: Force
    unions: tuple[int, ...]


class Scope:
    """The nodes that apply to one value, and what they demand of its members."""

    def __init__(
        self,
        checks: PartChecks,
        applied: list[Applied],
        *,
        unresolved: bool = False,
        loose: Iterable[int] = (),
        fills: Sequence[tuple[str, Node, Any]] = (),
    ) -> None:
        self._checks = checks
        self.applied = applied
        self.fills = fills  # the properties with a default, and the schemas that declare it
        self._unresolved = unresolved
        self._loose = loose  # the unions of which a matching variant declares nothing
        self.declared = {name for applicable in applied for name in as_dict(applicable.node.get("properties"))}
        self.required = {name for applicable in applied for name in as_list(applicable.node.get("required"))}
        self.prefix = max((len(as_list(applicable.node.get("prefixItems"))) for applicable in applied), default=0)
        self._items: dict[int, list[Demand]] = {}
        self._members: dict[str, list[Demand]] = {}  # of declared properties only: peers choose the other names
        self._keeps_all: dict[bool, bool] = {}  # by whether undeclared properties are stripped

    @lazy_property
    def _patterns(self) -> list[str]:
        return [pattern for applicable in self.applied for pattern in as_dict(applicable.node.get("patternProperties"))]

    @lazy_property
    def _known(self) -> set[str]:
        # A required property is kept even if it is not declared: without it the value could not be valid.
        return self.declared | self.required

    def kept(self, value: dict[str, Any], *, strip: bool) -> dict[str, Any]:
        """Return the properties that are not stripped; the same object if that is all of them."""
        if strip not in self._keeps_all:
            self._keeps_all[strip] = self._keeps_extras(strip)
        if self._keeps_all[strip]:
            return value
        declared_or_required = self._known
        if not self._patterns:
            kept_properties = {name: item for name, item in value.items() if name in declared_or_required}
        else:
            kept_properties = {
                name: item
                for name, item in value.items()
                if name in declared_or_required
                or any(self._checks.matches(pattern, name) for pattern in self._patterns)
            }
        return value if len(kept_properties) == len(value) else kept_properties

    def _keeps_extras(self, strip: bool) -> bool:
        if self._unresolved:
            return True
        binding = [applicable for applicable in self.applied if applicable.force > Force.EVALUATE]
        if any(applicable.node.get("additionalProperties") is False for applicable in binding):
            return False
        if any(allows_extras(applicable.node) for applicable in self.applied):
            return True
        if any(applicable.node.get("unevaluatedProperties") is False for applicable in binding):
            return False
        naming = [applicable for applicable in binding if names_properties(applicable.node)]
        # Extras are kept without declared properties, or if the value also matches a variant that declares none.
        return (
            not strip
            or not naming
            or any(all(union in applicable.unions for applicable in naming) for union in self._loose)
        )

    def member(self, name: str) -> list[Demand]:
        """Return the schemas that a property has to satisfy: by name, by pattern, else as an additional one."""
        if name not in self.declared:
            return self._demands(name)
        if name not in self._members:
            self._members[name] = self._demands(name)
        return self._members[name]

    def _demands(self, name: str) -> list[Demand]:
        demands: dict[int, Demand] = {}
        for node, force, _ in self.applied:
            properties = as_dict(node.get("properties"))
            is_declared = name in properties
            if is_declared:
                _add(demands, properties[name], force)
            for pattern, schema in as_dict(node.get("patternProperties")).items():
                if self._checks.matches(pattern, name):
                    is_declared = True
                    _add(demands, schema, force)
            if not is_declared and isinstance(node.get("additionalProperties"), dict):  # `true` demands nothing
                _add(demands, node["additionalProperties"], force)
        if demands or any("additionalProperties" in applicable.node for applicable in self.applied):
            return list(demands.values())
        return self._unevaluated("unevaluatedProperties")

    def item(self, index: int) -> list[Demand]:
        """Return the schemas that an item of an array has to satisfy; the same list for all behind the prefix."""
        index = min(index, self.prefix)
        if index not in self._items:
            demands: dict[int, Demand] = {}
            for node, force, _ in self.applied:
                prefix = as_list(node.get("prefixItems"))
                if index < len(prefix):
                    _add(demands, prefix[index], force)
                elif "items" in node:
                    _add(demands, node["items"], force)
            evaluated = demands or any(
                "contains" in applicable.node for applicable in self.applied
            )  # evaluates what it matches
            self._items[index] = list(demands.values()) if evaluated else self._unevaluated("unevaluatedItems")
        return self._items[index]

    def _unevaluated(self, keyword: str) -> list[Demand]:
        """Return what an `unevaluated…` keyword demands. Of several, the inner ones leave nothing: return nothing."""
        with_keyword = [applicable for applicable in self.applied if keyword in applicable.node]
        return (
            [Demand(applicable.node[keyword], applicable.force) for applicable in with_keyword]
            if len(with_keyword) == 1
            else []
        )

    @lazy_property
    def wants_integer(self) -> bool:
        """Whether a whole number has to be written as an integer."""
        binding = [
            (applicable, type_names(applicable.node))
            for applicable in self.applied
            if applicable.force > Force.EVALUATE
        ]
        wanting = [applicable for applicable, names in binding if "integer" in names and "number" not in names]
        if any(not applicable.unions for applicable in wanting):
            return True
        return bool(wanting) and not any(applicable.unions and "number" in names for applicable, names in binding)


def _add(demands: dict[int, Demand], schema: JSONSchema, force: Force) -> None:
    earlier_demand = demands.get(id(schema))
    demands[id(schema)] = Demand(schema, force if earlier_demand is None else max(force, earlier_demand.force))


class Evaluator:
    """Finds the nodes that apply to a value.

    Every method raises `SchemaError` if a part of the schema cannot be compiled, and what its checks raise.
    """

    def __init__(self, checks: PartChecks) -> None:
        self._shapes = checks.shapes
        self._checks = checks
        self._unconditional: dict[tuple[Any, ...], Scope] = {}  # by the demands and the type of the value

    def meets(self, demands: Sequence[Demand], value: Any) -> bool:
        """Return whether a value is valid against all demands."""
        return all(self._checks.is_valid(demand.schema, value) for demand in demands)

    def scope(self, demands: Sequence[Demand], value: Any) -> Scope:
        """Return what applies to a value that has to satisfy these demands."""
        key = (type(cast("object", value)), *[(id(schema), force) for schema, force in demands])
        scope = self._unconditional.get(key)
        if scope is None:
            scope = self._evaluate(demands, value)
            if all(_CONDITIONAL.isdisjoint(applicable.node) for applicable in scope.applied):
                self._unconditional[key] = scope
        return scope

    def _evaluate(self, demands: Sequence[Demand], value: Any) -> Scope:
        kind = json_type(value)
        kinds = {kind, "integer"} if kind == "number" else {kind}
        applied: dict[tuple[int, Force], Applied] = {}
        loose: list[int] = []
        unresolved = False
        waiting: list[tuple[Demand, tuple[int, ...]]] = [(demand, ()) for demand in demands]
        for (schema, force), unions in waiting:  # grows during the iteration: what applies may bring more
            unresolved = unresolved or self._shapes.is_opaque(schema)
            for node in self._shapes.conjuncts(schema):
                types = type_names(node)
                if (id(node), force) in applied or (types and kinds.isdisjoint(types)):
                    continue
                applied[id(node), force] = Applied(node, force, unions)
                waiting.extend((demand, unions) for demand in self._branches(node, force, value))
                for keyword in UNIONS:
                    if not (branches := as_list(node.get(keyword))):
                        continue
                    variants = self._variants(node, keyword, force, value)
                    waiting.extend((variant, (*unions, id(branches))) for variant in variants)
                    unresolved = unresolved or (not variants and any(map(self._shapes.declares, branches)))
                    if not all(self._shapes.declares(variant.schema) for variant in variants):
                        loose.append(id(branches))
        fills = [
            (name, *default)
            for applicable in applied.values()
            if applicable.force is Force.FILL
            for name, default in self._shapes.defaults(applicable.node).items()
        ]
        return Scope(self._checks, list(applied.values()), unresolved=unresolved, loose=loose, fills=fills)

    def _branches(self, node: Node, force: Force, value: Any) -> Iterator[Demand]:
        """Yield what applies to the same value under a condition that holds."""
        if "if" in node:
            holds = self._checks.is_valid(node["if"], value)
            if holds:
                yield Demand(node["if"], Force.EVALUATE)
            if (side := "then" if holds else "else") in node:
                yield Demand(node[side], force)
        if isinstance(value, dict):
            for keyword in DEPENDENT:
                for name, schema in as_dict(node.get(keyword)).items():
                    if name in value and not isinstance(schema, list):
                        yield Demand(schema, force)

    def _variants(self, node: Node, keyword: str, force: Force, value: Any) -> list[Demand]:
        """Return the variants of a union that apply to a value; an empty list where no choice is sensible."""
        kind = json_type(value)
        possible: list[JSONSchema] = [
            variant for variant in as_list(node[keyword]) if kind in self._shapes.types(variant)
        ]
        if len(possible) == 1:
            return [Demand(possible[0], force)]
        matching = [
            variant
            for variant in possible
            if not self._is_ruled_out(variant, value) and self._checks.is_valid(variant, value)
        ]
        if len(matching) == 1:
            return [Demand(matching[0], force)]
        best = self._best(node, matching or possible, value)
        if matching and (best is None or keyword == "anyOf"):
            lesser = min(force, Force.CONVERT)
            return [Demand(variant, force if variant is best else lesser) for variant in matching]
        return [] if best is None else [Demand(best, force)]

    def _is_ruled_out(self, variant: JSONSchema, value: Any) -> bool:
        """Return whether a string rules a variant out, such as a tag: in a fraction of the time of a check."""
        if not isinstance(value, dict):
            return False
        members = cast("dict[str, Any]", value)
        for name, pinned in self._shapes.tags(variant).items():
            member = members.get(name)
            if type(member) is str and ("string", member) not in pinned:
                return True
        return False

    def _best(self, union: Node, candidates: list[JSONSchema], value: Any) -> JSONSchema | None:
        """Return the single best candidate, or None."""
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            if (meant := _by_discriminator(union, candidates, members)) is not None:
                return meant
            # Drop those that a constant rules out. One variant's own `enum` is not a tag: several have to pin it.
            tags = [(candidate, self._shapes.tags(candidate)) for candidate in candidates]
            scalars_by_name = {
                name: (json_type(item), None if isinstance(item, dict | list) else item)
                for name, item in members.items()
                if sum(name in pinned for _, pinned in tags) > 1
            }
            candidates = [
                candidate
                for candidate, pinned in tags
                if all(scalars_by_name[name] in pinned[name] for name in scalars_by_name.keys() & pinned.keys())
            ]
            if len(candidates) == 1 and self._shapes.tags(candidates[0]).keys() & members.keys():
                return candidates[0]
        scores = [self._score(candidate, value) for candidate in candidates]
        top = max(scores, default=0)
        return candidates[scores.index(top)] if top > 0 and scores.count(top) == 1 else None

    def _score(self, schema: JSONSchema, value: Any) -> int:
        """Count the members that are declared and valid."""
        scope = Scope(self._checks, [Applied(node, Force.EVALUATE, ()) for node in self._shapes.conjuncts(schema)])
        pairs = [(item, scope.member(name)) for name, item in as_dict(value).items()]
        pairs += [(item, scope.item(index)) for index, item in enumerate(as_list(value))]
        return sum(bool(demands) and self.meets(demands, item) for item, demands in pairs)


def _by_discriminator(union: Node, candidates: list[JSONSchema], value: dict[str, Any]) -> JSONSchema | None:
    """Return the variant that OpenAPI's `discriminator` names: through its mapping, else by the schema's name."""
    discriminator = as_dict(union.get("discriminator"))
    tag = value.get(discriminator.get("propertyName", ""))
    if not isinstance(tag, str):
        return None
    variant_name = str(as_dict(discriminator.get("mapping")).get(tag, tag)).rpartition("/")[2]
    for candidate in candidates:
        node = as_dict(candidate)
        refs = [as_dict(subschema).get("$ref", "") for subschema in (node, *as_list(node.get("allOf")))]
        if any(ref and str(ref).rpartition("/")[2] == variant_name for ref in refs):
            return candidate
    return None


class Fitter:
    """Fits values to one 2020-12 schema. Everything is read and compiled lazily."""

    def __init__(self, checks: Checks) -> None:
        self._root = checks.shapes.root
        self._checks = checks

    def conformity(self, *, strip: bool) -> Check:
        """Return a test of plain data: whether it is valid, with nothing to strip, to fill or to convert."""
        try:
            return self._checks.conformity(self._root, strip=strip)
        except (SchemaError, RecursionError):
            return lambda value: False

    def fit(self, value: Any, *, strip: bool) -> Fitted:
        """Return the repaired value and the changes. Never raises for plain data."""
        try:
            if self._checks.conforms(self._root, value, strip=strip):
                return Fitted(value, ())
            with collection_paused():  # a fifth of the time for 20,000 objects; copies of plain data hold no cycles
                result = self._repaired(value, strip)
                repairs: list[Repair] = []
                if result is not value:
                    _add_repairs(value, result, "", repairs)
            return Fitted(result if repairs else value, tuple(repairs))
        except (SchemaError, RecursionError, ComplexityError, ExhaustedError, _GivenUp):  # too complex: left unchanged
            return Fitted(value, ())

    def _repaired(self, value: Any, strip: bool) -> Any:
        """Repeat passes until the result settles. A guarded pass runs only if the unguarded one does not conform."""
        checks = MeteredChecks(self._checks, Effort(value))
        current = value
        for _ in range(_MAX_PASSES):
            result = current
            for guarded in (False, True):
                repair = _RepairPass(checks, strip=strip, guarded=guarded)
                result = repair.value(current, [Demand(self._root, Force.FILL)])
                if result is current or self._checks.conforms(self._root, result, strip=strip):
                    return result
            current = result
        return value


class _GivenUp(Exception):  # noqa: N818 - never leaves this module
    """The repair does not settle."""


class _EndlessDefault(Exception):  # noqa: N818 - never leaves this module
    """A default that contains itself, once it is filled in itself."""

    def __init__(self, schema: Node) -> None:
        self.schema = schema


class _RepairPass:
    """One pass over a value. Two frames per level: plain data may be 200 deep, Python's stack is 1,000.

    A guarded pass undoes each repair that makes a valid part invalid.
    """

    def __init__(self, checks: MeteredChecks, *, strip: bool, guarded: bool) -> None:
        self._checks = checks
        self._evaluator = Evaluator(checks)
        self._strip = strip
        self._guarded = guarded
        self._filling: list[Node] = []  # the schemas of the defaults that are being fitted
        self._nested = 0  # defaults filled inside defaults

    def value(self, value: Any, demands: Sequence[Demand]) -> Any:
        """Return the repaired value; the same object if there is nothing to do."""
        if isinstance(value, dict):
            return self._object(cast("dict[str, Any]", value), demands)
        if not isinstance(value, list):
            is_whole = type(value) is float and value.is_integer()
            return int(value) if is_whole and self._evaluator.scope(demands, value).wants_integer else value
        items = cast("list[Any]", value)
        if not any(issubclass(kind, _REPAIRABLE) for kind in set(map(type, items))):
            return items  # saves 0.1 µs per item: an array of a million numbers is skipped quickly
        scope = self._evaluator.scope(demands, items)
        result = items
        for index, item in self._unsettled(items, scope):
            if (type(item) is float and not item.is_integer()) or not isinstance(item, _REPAIRABLE):
                continue
            item_demands = scope.item(index)
            if self._conform(item_demands, [item]):
                continue
            fitted = self.value(item, item_demands)
            if fitted is not item:
                result = list(items) if result is items else result
                result[index] = fitted
        return items if result is items or self._spoils(demands, items, result) else result

    def _object(self, value: dict[str, Any], demands: Sequence[Demand]) -> dict[str, Any]:
        full, filled, scope = value, _NOT_FILLED, self._evaluator.scope(demands, value)
        if scope.fills:
            full, filled, scope = self._with_defaults(value, demands)
        self._checks.count(len(full) * len(scope.applied))
        result = self._with_members(scope.kept(full, strip=self._strip), filled, scope)
        if len(result) == len(value) and _is_same(value, result):
            return value
        if value and value.keys().isdisjoint(result) and not self._evaluator.meets(demands, result):
            return value  # an object without any known property is something else: do not empty it in vain
        if self._guarded and self._spoils(demands, value, result):
            result = {name: result.get(name, item) for name, item in value.items()}  # only what lies deeper
            return value if _is_same(value, result) or self._spoils(demands, value, result) else result
        return result

    def _with_members(self, value: dict[str, Any], filled: dict[str, Node], scope: Scope) -> dict[str, Any]:
        """Return a copy with each member repaired."""
        result = dict(value)
        for name, item in value.items():
            if not isinstance(item, _REPAIRABLE):
                continue
            member_demands = scope.member(name)
            if name in filled:
                self._filling.append(filled[name])
                try:
                    result[name] = self.value(item, member_demands)
                except _EndlessDefault as endless:
                    if endless.schema is not filled[name]:
                        raise
                    del result[name]
                finally:
                    self._filling.pop()
            elif name in scope.declared or not self._conform(member_demands, [item]):
                result[name] = self.value(item, member_demands)
        return result

    def _with_defaults(
        self, value: dict[str, Any], demands: Sequence[Demand]
    ) -> tuple[dict[str, Any], dict[str, Node], Scope]:
        """Return the value with all defaults, their schemas, and what then applies: a default may decide an `if`."""
        from copy import deepcopy  # 0.6 ms of `import opwire` otherwise, and few schemas have defaults

        filled: dict[str, Node] = {}
        while True:
            scope = self._evaluator.scope(demands, value)
            missing: dict[str, tuple[Node, Any]] = {}  # of several defaults for one property the first that is declared
            for name, schema, default in scope.fills:
                # An invalid default does not help a value that is valid without it.
                if name in value or not (name in scope.required or self._checks.is_usable(schema, default)):
                    continue
                if any(schema is ancestor for ancestor in self._filling):
                    raise _EndlessDefault(schema)
                missing.setdefault(name, (schema, default))
            if self._filling:
                self._nested += len(missing)
                if self._nested > _MAX_NESTED_DEFAULTS:
                    raise _GivenUp
            if not missing:
                return value, filled, scope
            filled |= {name: schema for name, (schema, _) in missing.items()}
            value = value | {name: deepcopy(default) for name, (_, default) in missing.items()}

    def _unsettled(self, items: list[Any], scope: Scope) -> Iterator[tuple[int, Any]]:
        """Yield the items that may need a repair. Many that conform are checked at once: 0.3 µs each instead of 2."""
        for start in range(0, len(items), _ITEMS_PER_CHECK):
            block = items[start : start + _ITEMS_PER_CHECK]
            if len(block) < _ITEMS_PER_CHECK or start < scope.prefix or not self._conform(scope.item(start), block):
                yield from enumerate(block, start)

    def _conform(self, demands: Sequence[Demand], items: list[Any]) -> bool:
        """Return whether several alike can be skipped. For arrays and maps only: each demand is compiled."""
        return all(self._checks.conform(demand.schema, items, strip=self._strip) for demand in demands)

    def _spoils(self, demands: Sequence[Demand], value: Any, result: Any) -> bool:
        """Return whether a repair makes something invalid that was valid."""
        return self._guarded and any(
            not self._checks.is_valid(demand.schema, result) and self._checks.is_valid(demand.schema, value)
            for demand in demands
        )


def _is_same(value: dict[str, Any], result: dict[str, Any]) -> bool:
    return len(value) == len(result) and all(name in result and result[name] is item for name, item in value.items())


def _add_repairs(old: Any, new: Any, path: str, repairs: list[Repair]) -> None:
    """Add what differs. Asserts rule 3: a scalar that is not the same one is an invalid repair."""
    if type(old) is float and type(new) is int and old == new:
        repairs.append(Repair("converted", path))
    elif isinstance(old, dict) and isinstance(new, dict):
        before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        stripped = 0
        for name in [name for name, item in before.items() if after.get(name, _MISSING) is not item]:
            if name not in after:
                stripped += 1
                repairs.append(Repair("stripped", f"{path}/{escaped(name)}"))
            else:
                _add_repairs(before[name], after[name], f"{path}/{escaped(name)}", repairs)
        if len(after) > len(before) - stripped:
            repairs.extend(Repair("filled", f"{path}/{escaped(name)}") for name in after if name not in before)
    elif isinstance(old, list) and isinstance(new, list):
        for index, (item, fitted) in enumerate(zip(cast("list[Any]", old), cast("list[Any]", new), strict=True)):
            if fitted is not item:
                _add_repairs(item, fitted, f"{path}/{index}", repairs)
    else:
        raise _GivenUp
