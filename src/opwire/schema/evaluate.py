"""Which parts of a schema apply to a value.

"Applies" is what `unevaluatedProperties` sees: through references, `allOf`, the variants that match, the taken side of
an `if`, and dependent schemas. Where no variant of a union matches, the one that the value seems to mean counts: by
discriminator, then by properties pinned to constants, then by how many members fit. A union in which none stands out
is unresolved, and the value is then left as it is.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from opwire.schema.checks import PartChecks
from opwire.schema.refs import JSONSchema
from opwire.schema.scope import Applied, Demand, Force, Scope
from opwire.schema.shape import DEPENDENT, UNIONS, Node, Shapes, json_type, many, named, type_names

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
