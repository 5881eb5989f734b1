"""`fit`: opwire's normalisation. Fills declared defaults, strips undeclared properties, writes 5.0 as 5 for an integer.

Rules:
1. A value that conforms comes back as the same object, after one fast check; only otherwise it is walked.
2. The value is never changed. What is rebuilt shares every part that needed nothing with the original.
3. Nothing is invented: what has no declared default stays missing, what does not fit stays as it is.
4. What was valid stays valid: a repair that breaks its place (too many properties, two variants at once) is undone.
5. Fitting a fitted value does nothing. A repair that does not come to rest is given up for the original.

What the nodes that apply to one value say about its members: which stay, and which schemas each has to meet.

Which parts of a schema apply to a value.

"Applies" is what `unevaluatedProperties` sees: through references, `allOf`, the variants that match, the taken side of
an `if`, and dependent schemas. Where no variant of a union matches, the one that the value seems to mean counts: by
discriminator, then by properties pinned to constants, then by how many members fit. A union in which none stands out
is unresolved, and the value is then left as it is.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from enum import IntEnum
from typing import Any, Literal, NamedTuple, cast

from opwire.errors import SchemaError
from opwire.schema.cost import ComplexityError, Effort, ExhaustedError
from opwire.schema.dialect import JSONSchema, escaped
from opwire.schema.shape import (
    DEPENDENT,
    UNIONS,
    Check,
    Checks,
    MeteredChecks,
    Node,
    PartChecks,
    Shapes,
    allows_extras,
    json_type,
    many,
    named,
    names_properties,
    type_names,
)


class Force(IntEnum):
    """How much a schema may do to a value; the greater one wins where two meet."""

    EVALUATE = 0  # a condition: what it names is known, nothing more
    CONVERT = 1  # one of several variants that match equally well: its defaults would be a guess
    FILL = 2


class Demand(NamedTuple):
    """A schema that a value has to meet."""

    schema: JSONSchema
    force: Force


class Applied(NamedTuple):
    """One node that applies to a value, and the unions through which it was reached."""

    node: Node
    force: Force
    unions: tuple[int, ...]


class Scope:
    """The nodes that apply to one value."""

    def __init__(
        self, checks: PartChecks, applied: list[Applied], *, unresolved: bool = False, loose: Iterable[int] = ()
    ) -> None:
        self._checks = checks
        self.applied = applied
        self._unresolved = unresolved
        self._loose = loose  # the unions of which a matching variant declares nothing
        self.declared = {name for each in applied for name in named(each.node, "properties")}
        self.required = {name for each in applied for name in many(each.node, "required")}
        self.prefix = max((len(many(each.node, "prefixItems")) for each in applied), default=0)
        self._items: dict[int, list[Demand]] = {}

    def keeps(self, names: Iterable[str], *, strip: bool) -> list[str]:
        """The names of the properties that stay."""
        if self._keeps_extras(strip):
            return list(names)
        return [name for name in names if self._declares(name)]

    def member(self, name: str) -> list[Demand]:
        """The schemas that a property has to meet."""
        found: dict[int, Demand] = {}
        for node, force, _ in self.applied:
            for schema in self._own(node, name):
                _add(found, schema, force)
        if found or any("additionalProperties" in each.node for each in self.applied):
            return list(found.values())
        return self._rest("unevaluatedProperties")

    def item(self, index: int) -> list[Demand]:
        """The schemas that an item of an array has to meet; the same list for all behind the longest tuple."""
        index = min(index, self.prefix)
        if index not in self._items:
            self._items[index] = self._item(index)
        return self._items[index]

    def wants_integer(self) -> bool:
        """Whether a whole number has to be written as an integer."""
        binding = [(each, type_names(each.node)) for each in self.applied if each.force > Force.EVALUATE]
        wanting = [each for each, names in binding if "integer" in names and "number" not in names]
        if any(not each.unions for each in wanting):
            return True
        return bool(wanting) and not any(each.unions and "number" in names for each, names in binding)

    def _item(self, index: int) -> list[Demand]:
        found: dict[int, Demand] = {}
        for node, force, _ in self.applied:
            prefix = many(node, "prefixItems")
            if index < len(prefix):
                _add(found, prefix[index], force)
            elif "items" in node:
                _add(found, node["items"], force)
        if found or any("contains" in each.node for each in self.applied):  # evaluates what it matches
            return list(found.values())
        return self._rest("unevaluatedItems")

    def _own(self, node: Node, name: str) -> Iterator[JSONSchema]:
        """What one node says about a property: by name, by pattern, else as one of the rest."""
        properties = named(node, "properties")
        known = name in properties
        if known:
            yield properties[name]
        for pattern, schema in named(node, "patternProperties").items():
            if self._checks.matches(pattern, name):
                known = True
                yield schema
        if not known and isinstance(node.get("additionalProperties"), dict):  # `true` knows nothing about it
            yield node["additionalProperties"]

    def _rest(self, keyword: str) -> list[Demand]:
        """What an `unevaluated…` keyword says. Of several, the inner ones leave nothing to the outer: none is sure."""
        saying = [each for each in self.applied if keyword in each.node]
        return [Demand(each.node[keyword], each.force) for each in saying] if len(saying) == 1 else []

    def _declares(self, name: str) -> bool:
        # What is required stays even if nobody declares it: without it the value could not be valid.
        if name in self.declared or name in self.required:
            return True
        patterns = (pattern for each in self.applied for pattern in named(each.node, "patternProperties"))
        return any(self._checks.matches(pattern, name) for pattern in patterns)

    def _keeps_extras(self, strip: bool) -> bool:
        if self._unresolved:
            return True
        nodes = [each.node for each in self.applied if each.force > Force.EVALUATE]
        if any(node.get("additionalProperties") is False for node in nodes):
            return False
        if any(allows_extras(each.node) for each in self.applied):
            return True
        if any(node.get("unevaluatedProperties") is False for node in nodes):
            return False
        return not strip or self._is_free_form()

    def _is_free_form(self) -> bool:
        """Whether no property is declared, or the value also matches a variant that declares none."""
        binding = [each for each in self.applied if each.force > Force.EVALUATE]
        naming = [each for each in binding if names_properties(each.node)]
        return not naming or any(all(union in each.unions for each in naming) for union in self._loose)


def _add(found: dict[int, Demand], schema: JSONSchema, force: Force) -> None:
    known = found.get(id(schema))
    found[id(schema)] = Demand(schema, force if known is None else max(force, known.force))


_CONDITIONAL = frozenset({*UNIONS, *DEPENDENT, "if"})


class Evaluator:
    """Finds what applies to a value.

    Every method raises `SchemaError` where a part of the schema cannot be compiled, and what its checks raise.
    """

    def __init__(self, shapes: Shapes, checks: PartChecks) -> None:
        self._shapes = shapes
        self._checks = checks
        self._unconditional: dict[tuple[Any, ...], Scope] = {}  # by the demands and the type of the value

    def scope(self, demands: Sequence[Demand], value: Any) -> Scope:
        """What applies to a value that has to meet these schemas."""
        kind = json_type(value)
        key = (kind, *((id(schema), force) for schema, force in demands))
        scope = self._unconditional.get(key)  # worth half the time of a repair: most objects of an array are alike
        if scope is None:
            scope = self._scope(demands, value, kind)
            if all(_CONDITIONAL.isdisjoint(each.node) for each in scope.applied):
                self._unconditional[key] = scope
        return scope

    def _scope(self, demands: Sequence[Demand], value: Any, kind: str) -> Scope:
        applied: dict[tuple[int, Force], Applied] = {}
        loose: list[int] = []
        unresolved = False
        waiting: list[tuple[Demand, tuple[int, ...]]] = [(demand, ()) for demand in demands]
        for (schema, force), unions in waiting:  # grows while it is read: what applies may bring more
            unresolved = unresolved or self._shapes.is_opaque(schema)
            for node in self._shapes.conjuncts(schema):
                if (id(node), force) in applied or not _takes(node, kind):
                    continue
                applied[id(node), force] = Applied(node, force, unions)
                waiting.extend((each, unions) for each in self._branches(node, force, value))
                for branches, chosen in self._unions(node, force, value):
                    waiting.extend((each, (*unions, id(branches))) for each in chosen)
                    unresolved = unresolved or (not chosen and any(map(self._shapes.declares, branches)))
                    if not all(self._shapes.declares(each.schema) for each in chosen):
                        loose.append(id(branches))
        return Scope(self._checks, list(applied.values()), unresolved=unresolved, loose=loose)

    def meets(self, demands: Sequence[Demand], value: Any) -> bool:
        """Whether a value is valid against all of them."""
        return all(self._checks.is_valid(each.schema, value) for each in demands)

    def _branches(self, node: Node, force: Force, value: Any) -> Iterator[Demand]:
        """What applies in place under a condition that holds."""
        if "if" in node:
            holds = self._checks.is_valid(node["if"], value)
            if holds:
                yield Demand(node["if"], Force.EVALUATE)
            if (side := "then" if holds else "else") in node:
                yield Demand(node[side], force)
        if isinstance(value, dict):
            for keyword in DEPENDENT:
                for name, schema in named(node, keyword).items():
                    if name in value and not isinstance(schema, list):
                        yield Demand(schema, force)

    def _unions(self, node: Node, force: Force, value: Any) -> Iterator[tuple[list[JSONSchema], list[Demand]]]:
        """The unions of one node, each with the variants that count; none where no choice is sensible."""
        for keyword in UNIONS:
            if branches := many(node, keyword):
                yield branches, self._variants(node, keyword, force, value)

    def _variants(self, node: Node, keyword: str, force: Force, value: Any) -> list[Demand]:
        kind = json_type(value)
        possible: list[JSONSchema] = [each for each in many(node, keyword) if kind in self._shapes.types(each)]
        if len(possible) == 1:
            return [Demand(possible[0], force)]
        matching = [each for each in possible if self._checks.is_valid(each, value)]
        if len(matching) == 1:
            return [Demand(matching[0], force)]
        best = self._best(node, matching or possible, value)
        if matching and (best is None or keyword == "anyOf"):
            lesser = min(force, Force.CONVERT)
            return [Demand(each, force if each is best else lesser) for each in matching]
        return [] if best is None else [Demand(best, force)]

    def _best(self, union: Node, candidates: list[JSONSchema], value: Any) -> JSONSchema | None:
        """The variant that stands out, if one does."""
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            if (meant := _by_discriminator(union, candidates, members)) is not None:
                return meant
            candidates = self._by_tags(candidates, members)
            if len(candidates) == 1 and self._shapes.tags(candidates[0]).keys() & members.keys():
                return candidates[0]
        scores = [self._score(each, value) for each in candidates]
        top = max(scores, default=0)
        return candidates[scores.index(top)] if top > 0 and scores.count(top) == 1 else None

    def _by_tags(self, candidates: list[JSONSchema], value: dict[str, Any]) -> list[JSONSchema]:
        """Those that no constant rules out. One variant's own `enum` is no tag: only what several pin counts."""
        every = [self._shapes.tags(each) for each in candidates]
        present = {name for name in value if sum(name in tags for tags in every) > 1}
        return [
            each
            for each, tags in zip(candidates, every, strict=True)
            if all(_tag(value[name]) in tags[name] for name in present & tags.keys())
        ]

    def _score(self, schema: JSONSchema, value: Any) -> int:
        """How many members are known and fit."""
        scope = Scope(self._checks, [Applied(node, Force.EVALUATE, ()) for node in self._shapes.conjuncts(schema)])
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            pairs = [(item, scope.member(name)) for name, item in members.items()]
        elif isinstance(value, list):
            pairs = [(item, scope.item(index)) for index, item in enumerate(cast("list[Any]", value))]
        else:
            return 0
        return sum(bool(demands) and self.meets(demands, item) for item, demands in pairs)


def _by_discriminator(union: Node, candidates: list[JSONSchema], value: dict[str, Any]) -> JSONSchema | None:
    """The variant that OpenAPI's `discriminator` names: through its mapping, else by the name of the schema."""
    discriminator = named(union, "discriminator")
    tag = value.get(discriminator.get("propertyName", ""))
    if not isinstance(tag, str):
        return None
    wanted = _last(named(discriminator, "mapping").get(tag, tag))
    return next((each for each in candidates if wanted in _reference_names(each)), None)


def _reference_names(schema: JSONSchema) -> list[str]:
    if isinstance(schema, bool):
        return []
    nodes: list[Any] = [schema, *many(schema, "allOf")]
    return [_last(node["$ref"]) for node in nodes if isinstance(node, dict) and "$ref" in node]


def _last(ref: Any) -> str:
    return str(ref).rpartition("/")[2]


def _tag(value: Any) -> tuple[str, Any]:
    kind = json_type(value)
    return kind, None if kind in ("object", "array") else value


def _takes(node: Node, kind: str) -> bool:
    names = type_names(node)
    return not names or kind in names or (kind == "number" and "integer" in names)


_PASSES = 4  # one finds everything in all but contrived schemas, whose conditions depend on what a repair changes
_MAX_NESTED = 10_000  # defaults inside defaults can double at each level
_REPAIRABLE = (dict, list, float)


class Change(NamedTuple):
    """One thing that `fit` did. `path` is a JSON Pointer to the property that it added, removed or converted."""

    kind: Literal["filled", "stripped", "converted"]
    path: str


class Fitted(NamedTuple):
    """What `fit` made of a value: the very same object where there was nothing to do."""

    value: Any
    changes: tuple[Change, ...]


class Fitter:
    """Fits values to one 2020-12 schema. Everything is read and compiled when it is first needed."""

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._shapes = Shapes(root)
        self._checks = Checks(self._shapes)

    def conforms(self, value: Any, *, strip: bool) -> bool:
        """Whether a value is valid, with nothing to strip, to fill or to convert."""
        try:
            return self._checks.conforms(self._root, value, strip=strip)
        except (SchemaError, RecursionError, ComplexityError):
            return False

    def conformity(self, *, strip: bool) -> Check:
        """`conforms` as one bare call, for values that are known to be plain data."""
        try:
            return self._checks.conformity(self._root, strip=strip)
        except (SchemaError, RecursionError):
            return _unknown

    def fit(self, value: Any, *, strip: bool) -> Fitted:
        """The value with what could be repaired, and what was done. Never raises for plain data."""
        try:
            if self._checks.conforms(self._root, value, strip=strip):
                return Fitted(value, ())
            result = self._repair(value, MeteredChecks(self._checks, Effort(value)), strip)
            changes = tuple(_changes(value, result, ""))
            return Fitted(result if changes else value, changes)
        except (SchemaError, RecursionError, ComplexityError, ExhaustedError, _GivenUp):  # beyond analysis: left alone
            return Fitted(value, ())

    def _repair(self, value: Any, checks: MeteredChecks, strip: bool) -> Any:
        current = value
        for _ in range(_PASSES):
            result = self._step(current, checks, strip)
            if result is current or self._checks.conforms(self._root, result, strip=strip):
                return result
            current = result
        return value

    def _step(self, value: Any, checks: MeteredChecks, strip: bool) -> Any:
        """One pass. Only if the outcome still does not conform it is done again, with each place guarded."""
        result = self._walk(value, checks, strip, guarded=False)
        if result is value or self._checks.conforms(self._root, result, strip=strip):
            return result
        return self._walk(value, checks, strip, guarded=True)

    def _walk(self, value: Any, checks: MeteredChecks, strip: bool, *, guarded: bool) -> Any:
        walk = _Walk(self._shapes, checks, strip=strip, guarded=guarded)
        return walk.value(value, [Demand(self._root, Force.FILL)])


class _GivenUp(Exception):  # noqa: N818 - never leaves this module
    """The repair leads nowhere."""


class _EndlessDefault(Exception):  # noqa: N818 - never leaves this module
    """A default that holds itself, once it is filled in itself."""

    def __init__(self, schema: Node) -> None:
        self.schema = schema


class _Walk:
    """One pass over a value. Two frames a level: plain data may be 200 deep, Python's stack is 1,000."""

    def __init__(self, shapes: Shapes, checks: MeteredChecks, *, strip: bool, guarded: bool) -> None:
        self._shapes = shapes
        self._checks = checks
        self._evaluator = Evaluator(shapes, checks)
        self._strip = strip
        self._guarded = guarded
        self._filling: list[Node] = []  # the schemas of the defaults that are being fitted
        self._nested = 0  # defaults filled inside defaults

    def value(self, value: Any, demands: Sequence[Demand]) -> Any:
        """The value, repaired; the same object where there is nothing to do."""
        if isinstance(value, dict):
            return self._object(cast("dict[str, Any]", value), demands)
        if isinstance(value, list):
            return self._array(cast("list[Any]", value), demands)
        if type(value) is float and value.is_integer() and self._evaluator.scope(demands, value).wants_integer():
            return int(value)
        return value

    def _object(self, value: dict[str, Any], demands: Sequence[Demand]) -> dict[str, Any]:
        full, filled, scope = self._with_defaults(value, demands)
        result: dict[str, Any] = {}
        self._checks.count(len(full) * len(scope.applied))
        for name in scope.keeps(full, strip=self._strip):
            item = result[name] = full[name]
            if not isinstance(item, _REPAIRABLE):
                continue
            wanted = scope.member(name)
            if name in filled:
                self._filling.append(filled[name])
                try:
                    result[name] = self.value(item, wanted)
                except _EndlessDefault as endless:
                    if endless.schema is not filled[name]:
                        raise
                    del result[name]
                finally:
                    self._filling.pop()
            elif name in scope.declared or not self._conforms(wanted, item):
                result[name] = self.value(item, wanted)
        if _is_same(value, result) or self._empties(demands, value, result):
            return value
        if self._spoils(demands, value, result):
            result = {name: result.get(name, item) for name, item in value.items()}  # only what lies deeper
            return value if _is_same(value, result) or self._spoils(demands, value, result) else result
        return result

    def _array(self, value: list[Any], demands: Sequence[Demand]) -> list[Any]:
        if not any(issubclass(kind, _REPAIRABLE) for kind in set(map(type, value))):
            return value  # worth 0.1 µs an item: a million numbers are soon passed over
        scope = self._evaluator.scope(demands, value)
        result = value
        for index, item in enumerate(value):
            if not isinstance(item, _REPAIRABLE) or self._conforms(wanted := scope.item(index), item):
                continue
            fitted = self.value(item, wanted)
            if fitted is not item:
                result = list(value) if result is value else result
                result[index] = fitted
        return value if result is value or self._spoils(demands, value, result) else result

    def _with_defaults(
        self, value: dict[str, Any], demands: Sequence[Demand]
    ) -> tuple[dict[str, Any], dict[str, Node], Scope]:
        """The value with all defaults, their schemas, and what then applies: a default may decide on an `if`."""
        filled: dict[str, Node] = {}
        while True:
            scope = self._evaluator.scope(demands, value)
            missing = self._missing(scope, value)
            if not missing:
                return value, filled, scope
            filled |= {name: schema for name, (schema, _) in missing.items()}
            value = value | {name: deepcopy(default) for name, (_, default) in missing.items()}

    def _missing(self, scope: Scope, value: dict[str, Any]) -> dict[str, tuple[Node, Any]]:
        """The defaults to fill; of several for one property the first that is declared."""
        missing: dict[str, tuple[Node, Any]] = {}
        for node, force, _ in scope.applied:
            for name, (schema, default) in self._shapes.defaults(node).items() if force is Force.FILL else ():
                # A default that does not fit its own schema is no help to a value that is valid without it.
                if name in value or not (name in scope.required or self._checks.is_usable(schema, default)):
                    continue
                if any(schema is each for each in self._filling):
                    raise _EndlessDefault(schema)
                missing.setdefault(name, (schema, default))
        if self._filling:
            self._nested += len(missing)
            if self._nested > _MAX_NESTED:
                raise _GivenUp
        return missing

    def _conforms(self, demands: Sequence[Demand], value: Any) -> bool:
        """Whether one of many alike can be passed over. Only arrays and maps ask: each part asked is compiled."""
        return all(self._checks.conforms(each.schema, value, strip=self._strip) for each in demands)

    def _empties(self, demands: Sequence[Demand], value: dict[str, Any], result: dict[str, Any]) -> bool:
        """Whether nothing would remain, in vain: an object of which no property is known is another thing."""
        return bool(value) and value.keys().isdisjoint(result) and not self._evaluator.meets(demands, result)

    def _spoils(self, demands: Sequence[Demand], value: Any, result: Any) -> bool:
        """Whether something that was valid no longer is."""
        return self._guarded and any(
            not self._checks.is_valid(each.schema, result) and self._checks.is_valid(each.schema, value)
            for each in demands
        )


def _is_same(value: dict[str, Any], result: dict[str, Any]) -> bool:
    return len(value) == len(result) and all(name in result and result[name] is item for name, item in value.items())


def _changes(old: Any, new: Any, path: str) -> Iterator[Change]:
    """What differs, with a last look at rule 3: a leaf that is not the same one is a repair gone wrong."""
    if old is new:
        return
    if type(old) is float and type(new) is int and old == new:
        yield Change("converted", path)
    elif isinstance(old, dict) and isinstance(new, dict):
        before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        for name, item in before.items():
            if name in after:
                yield from _changes(item, after[name], f"{path}/{escaped(name)}")
            else:
                yield Change("stripped", f"{path}/{escaped(name)}")
        yield from (Change("filled", f"{path}/{escaped(name)}") for name in after if name not in before)
    elif isinstance(old, list) and isinstance(new, list):
        for index, (item, fitted) in enumerate(zip(cast("list[Any]", old), cast("list[Any]", new), strict=True)):
            yield from _changes(item, fitted, f"{path}/{index}")
    else:
        raise _GivenUp


def _unknown(_value: Any) -> bool:
    return False
