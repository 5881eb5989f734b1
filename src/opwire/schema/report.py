"""What is wrong with a value, from a bounded part of it.

jsonschema-rs builds every error of a value at once, with a copy of the part that it is about: 2,000,000 wrong items
take 48 s and 3.6 GB, and the branches of recursive unions take as many errors as there are ways through them. So only
a small value against few parts of a schema gets all its errors from there. In anything larger the places that do not
fit are looked up first, by checks that stop at the first error, and each is then reported by itself. The work is
bounded by a multiple of the value's size; where it ends, the last place that is known is reported.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple, cast

from opwire.errors import SchemaError
from opwire.schema.cost import ComplexityError, Costs, Effort, ExhaustedError, places
from opwire.schema.dialect import JSONSchema, escaped
from opwire.schema.fit import Demand, Evaluator, Force, Scope
from opwire.schema.shape import Checks, MeteredChecks, Node, Shapes, many, named, type_names
from opwire.schema.validator import Validator

_MAX_TEXT: Final = 300  # a schema's own enum may hold thousands of words, and a key of the value a million letters
_SMALL: Final = 10_000  # places that errors may be about, counted once for each part that looks at them: 50 ms
_SHOWN_NAMES: Final = 100
_BLOCK: Final = 1_000  # items that are copied and checked at once
_CONSTANTS = frozenset({"const", "enum"})
_TAGS = _CONSTANTS | {"not"}  # a variant may also list the tags that it does not have
_OTHER_KIND = _CONSTANTS | {"type", "anyOf", "oneOf"}

# What a keyword says about a place itself; "{}" stands for the keyword's value.
_SENTENCES: Final = {
    "const": "the value is not the one that is allowed",
    "enum": "the value is not one of those that are allowed",
    "pattern": "the value does not match {}",
    "format": "the value is not a {}",
    "minimum": "the value is less than the minimum of {}",
    "maximum": "the value is greater than the maximum of {}",
    "exclusiveMinimum": "the value is less than or equal to the minimum of {}",
    "exclusiveMaximum": "the value is greater than or equal to the maximum of {}",
    "multipleOf": "the value is not a multiple of {}",
    "minLength": "the value is shorter than {} characters",
    "maxLength": "the value is longer than {} characters",
    "minItems": "the value has less than {} items",
    "maxItems": "the value has more than {} items",
    "uniqueItems": "the value has items that are not unique",
    "contains": "too few or too many of the items are of the kind that has to be there",
    "minProperties": "the value has less than {} properties",
    "maxProperties": "the value has more than {} properties",
    "propertyNames": "the name of a property is not allowed",
    "dependentRequired": "a property is missing that another one requires",
    "not": "the value is one of those that are not allowed",
}
_OF_WHOLE: Final = {
    "anyOf": "the value does not fit any of the variants",
    "oneOf": "the value does not fit exactly one of the variants",
    "if": "the value does not fit what some of its properties require",
}
_TOGETHER: Final = {"contains": ("contains", "minContains", "maxContains"), "if": ("if", "then", "else")}


class Problem(NamedTuple):
    """One way in which a value does not fit a schema. `path` is a JSON Pointer, "" is the value itself."""

    path: str
    message: str


class Reporter:
    """Finds what is wrong with values that do not fit one schema."""

    def __init__(self, root: JSONSchema, validator: Validator) -> None:
        self._root = root
        self._validator = validator
        self._costs = Costs(root)
        self._shapes = Shapes(root)
        self._checks = Checks(self._shapes)
        self._aspects: dict[tuple[int, str], JSONSchema] = {}  # parts of parts, by the identity of the whole

    def problems(self, value: Any, limit: int) -> list[Problem]:
        """The problems of plain data that does not fit, up to a limit."""
        try:
            if self._is_small(value):
                errors = chain.from_iterable(map(_telling, self._validator.iter_errors(value)))
                return [_problem(error) for error in islice(errors, limit)]
            search = _Search(self._shapes, MeteredChecks(self._checks, Effort(value)), self._aspects)
            return list(islice(search.problems(value, [Demand(self._root, Force.FILL)], ""), limit))
        except ComplexityError as error:
            return [Problem("", str(error))]
        except ValueError as error:
            return [Problem("", f"the value is not plain JSON data: {error}")]

    def _is_small(self, value: Any) -> bool:
        """Whether jsonschema-rs has few errors to build at most. It looks at each part as often as ways lead there."""
        waiting: list[tuple[JSONSchema, Any]] = [(self._root, value)]
        left = _SMALL
        while waiting:
            schema, value = waiting.pop()
            left -= places(value)  # an error holds a copy of what it is about
            if left < 0:
                return False
            if (part := self._costs.part(schema)) is not None:
                waiting.extend((each, value) for each in part.in_place)
                waiting.extend(part.members(value))
        return True


class _Search:
    """One walk to the places that do not fit."""

    def __init__(self, shapes: Shapes, checks: MeteredChecks, aspects: dict[tuple[int, str], JSONSchema]) -> None:
        self._shapes = shapes
        self._checks = checks
        self._evaluator = Evaluator(shapes, checks)
        self._aspects = aspects

    def problems(self, value: Any, demands: Sequence[Demand], path: str) -> Iterator[Problem]:
        """The problems of a value that does not meet the demands: at least one."""
        found = False
        try:
            scope = self._evaluator.scope(demands, value)
            binding = [each.node for each in scope.applied if each.force > Force.EVALUATE]
            own = chain.from_iterable(self._own(node, value, path) for node in binding)
            for problem in chain(self._of_kind(demands, value, path), own, self._of_members(scope, value, path)):
                found = True
                yield problem
            if not found:
                yield self._of_whole(binding, value, path)
        except (ExhaustedError, ComplexityError, SchemaError, RecursionError):
            if not found:
                yield Problem(_short(path), "the value does not fit; it is too large to say more about it")

    def _of_kind(self, demands: Sequence[Demand], value: Any, path: str) -> Iterator[Problem]:
        for node in chain.from_iterable(self._shapes.conjuncts(each.schema) for each in demands):
            if "type" in node and not self._checks.is_valid(self._aspect(node, "type"), value):
                kinds = ", ".join(f'"{name}"' for name in type_names(node))
                yield Problem(_short(path), _short(f"the value is not of type {kinds}"))

    def _of_members(self, scope: Scope, value: Any, path: str) -> Iterator[Problem]:
        if isinstance(value, dict):
            self._checks.count(len(cast("dict[str, Any]", value)) * len(scope.applied))
            for name, item in cast("dict[str, Any]", value).items():
                wanted = scope.member(name)
                if not self._evaluator.meets(wanted, item):
                    yield from self.problems(item, wanted, f"{path}/{escaped(name)}")
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            for index in chain(
                range(min(scope.prefix, len(items))), self._wrong(items, scope.prefix, len(items), scope)
            ):
                wanted = scope.item(index)
                if not self._evaluator.meets(wanted, items[index]):
                    yield from self.problems(items[index], wanted, f"{path}/{index}")

    def _wrong(self, items: list[Any], start: int, end: int, scope: Scope) -> Iterator[int]:
        """The items behind the prefix that do not fit, by halves: a check of many ends at the first that does not."""
        if start >= end or self._all_meet(scope.item(start), items[start:end]):
            return
        if end - start == 1:
            yield start
            return
        step = max(1, min((end - start) // 2, _BLOCK))
        for half in range(start, end, step):
            yield from self._wrong(items, half, min(half + step, end), scope)

    def _of_whole(self, binding: list[Node], value: Any, path: str) -> Problem:
        """What is wrong with a value whose members, each by itself, are what they have to be."""
        for node in binding:
            for keyword in _OF_WHOLE:
                if keyword in node and not self._checks.is_valid(self._aspect(node, keyword), value):
                    return Problem(_short(path), _OF_WHOLE[keyword])
        return Problem(_short(path), "the value does not fit the schema")

    def _all_meet(self, demands: Sequence[Demand], items: list[Any]) -> bool:
        return all(self._checks.is_valid(self._aspect(each.schema, "items of"), items) for each in demands)

    def _own(self, node: Node, value: Any, path: str) -> Iterator[Problem]:
        """What one part says about the place itself."""
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            for name in many(node, "required"):
                if name not in members:
                    yield Problem(_short(path), _short(f'"{name}" is a required property'))
            if node.get("additionalProperties") is False:
                yield from self._undeclared(node, members, path)
        for keyword, sentence in _SENTENCES.items():
            if keyword in node and not self._checks.is_valid(self._aspect(node, keyword), value):
                yield Problem(_short(path), _short(sentence.format(node[keyword])))

    def _undeclared(self, node: Node, value: dict[str, Any], path: str) -> Iterator[Problem]:
        patterns = named(node, "patternProperties")
        declared = named(node, "properties")
        extra = [
            name
            for name in value
            if name not in declared and not any(self._checks.matches(pattern, name) for pattern in patterns)
        ]
        if extra:
            names = ", ".join(f"'{name[:_MAX_TEXT]}'" for name in extra[:_SHOWN_NAMES])
            yield Problem(_short(path), _short(f"Additional properties are not allowed ({names} were unexpected)"))

    def _aspect(self, schema: JSONSchema, keyword: str) -> JSONSchema:
        """One keyword of a part as a schema: the same object each time, since checks are compiled by identity."""
        aspect = self._aspects.get((id(schema), keyword))
        if aspect is None:
            if isinstance(schema, bool) or keyword == "items of":
                aspect = {"items": schema}
            else:
                aspect = {each: schema[each] for each in _TOGETHER.get(keyword, (keyword,)) if each in schema}
            self._aspects[id(schema), keyword] = aspect
        return aspect


def _problem(error: Any) -> Problem:
    path = "".join(f"/{escaped(step)}" for step in cast("list[str | int]", error.instance_path))
    return Problem(_short(path), _short(error.message))


def _telling(error: Any) -> list[Any]:
    """The error itself; that of a union, as the errors of the branch that the value was meant for.

    Where it is not plain to see which one that is, the union's own error tells more.
    """
    context: list[list[Any]] = getattr(error.kind, "context", [])
    if not context or not all(context):  # no union, or one of which several branches fit
        return [error]
    branches = [list(chain.from_iterable(map(_telling, branch))) for branch in context]
    distances = [_distance(branch, len(error.instance_path)) for branch in branches]
    closest = min(distances)
    is_plain = not closest.is_other_kind and distances.count(closest) == 1
    return branches[distances.index(closest)] if is_plain else [error]


class _Distance(NamedTuple):
    is_other_kind: bool  # a string where the branch is an object
    other_constants: int  # of the properties: one of them tells the variants apart
    errors: int


def _distance(branch: list[Any], depth: int) -> _Distance:
    own = {each.kind.name for each in branch if len(each.instance_path) == depth}
    constants = [each for each in branch if each.kind.name in _TAGS and len(each.instance_path) == depth + 1]
    return _Distance(not own.isdisjoint(_OTHER_KIND), len(constants), len(branch))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
