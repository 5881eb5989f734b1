"""Report what is wrong with a value, in bounded work.

jsonschema-rs builds every error of a value at once, with a copy of the part that it is about: 2,000,000 invalid items
take 48 s and 3.6 GB, and the branches of recursive unions take as many errors as there are paths through them. So only
a small value against few parts of a schema gets all its errors from there. In anything larger the invalid locations are
searched first, by checks that return at the first error, and each is then reported by itself. The work is bounded by a
multiple of the value's size; where it ends, the last known location is reported.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple, cast

from opwire.errors import SchemaError
from opwire.names import similar_names, suggestion
from opwire.schema.dialect import JSONSchema, escaped
from opwire.schema.effort import Effort, ExhaustedError, extent
from opwire.schema.fit import Demand, Evaluator, Force, Scope
from opwire.schema.meter import ComplexityError
from opwire.schema.shape import Node, type_names
from opwire.schema.validator import Checks, MemberValidator, MeteredChecks, Validator
from opwire.typed.plain import as_dict, as_list, shorten

_MAX_MESSAGE_LENGTH: Final = 300  # an `enum` may hold thousands of words, and a key a million letters
_MAX_ERROR_LOCATIONS: Final = 4_000  # counted once per part that applies to them: 20 ms
_MAX_LISTED_NAMES: Final = 100
_MAX_HINTS: Final = 5  # a hint takes 1 ms
_MAX_SEARCHED_MEMBERS: Final = 10_000  # 10 µs each
_ITEMS_PER_CHECK: Final = 1_000

_CONSTANTS = frozenset({"const", "enum"})
_TAGS = _CONSTANTS | {"not"}  # a variant may also list the tags that it does not have
_OTHER_KIND = _CONSTANTS | {"type", "anyOf", "oneOf"}

# The message of each keyword about the location itself; "{}" is the keyword's value.
_MESSAGES: Final = {
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
    "contains": "too few or too many items match `contains`",
    "minProperties": "the value has less than {} properties",
    "maxProperties": "the value has more than {} properties",
    "propertyNames": "the name of a property is not allowed",
    "dependentRequired": "a property is missing that another one requires",
    "not": "the value is one of those that are not allowed",
}
_WHOLE_MESSAGES: Final = {
    "anyOf": "the value does not fit any of the variants",
    "oneOf": "the value does not fit exactly one of the variants",
    "if": "the value does not fit what some of its properties require",
}
_TOGETHER: Final = {"contains": ("contains", "minContains", "maxContains"), "if": ("if", "then", "else")}


class Problem(NamedTuple):
    """One way in which a value is invalid. `path` is a JSON Pointer, "" is the value itself."""

    path: str
    message: str


class Reporter:
    """Finds the problems of values that are invalid against one schema."""

    def __init__(self, checks: Checks, validator: Validator) -> None:
        self._root = checks.shapes.root
        self._validator = validator
        self._above = 1 if isinstance(validator, MemberValidator) else 0  # steps of a path that lead to the value
        self._checks = checks
        self._costs = checks.costs
        self._aspects: dict[tuple[int, str], JSONSchema] = {}  # single keywords, by the identity of the whole schema

    def problems(self, value: Any, limit: int) -> list[Problem]:
        """Return the problems of invalid plain data, up to a limit."""
        try:
            if self._is_small(value):
                errors = chain.from_iterable(map(specific_errors, self._validator.iter_errors(value)))
                reported_errors = list(islice(errors, limit))
                hints = chain((hint_of(error, self._root) for error in reported_errors[:_MAX_HINTS]), repeat(""))
                paths = (
                    "".join(f"/{escaped(step)}" for step in error.instance_path[self._above :])
                    for error in reported_errors
                )
                return [
                    _problem(path, error.message, hint)
                    for path, error, hint in zip(paths, reported_errors, hints, strict=False)
                ]
            search = _Search(MeteredChecks(self._checks, Effort(value)), self._aspects)
            return list(islice(search.problems(value, [Demand(self._root, Force.FILL)], ""), limit))
        except ComplexityError as error:
            return [Problem("", str(error))]
        except ValueError as error:
            return [Problem("", f"the value is not plain JSON data: {error}")]

    def _is_small(self, value: Any) -> bool:
        """Return whether jsonschema-rs builds few errors. It visits each part once per path that leads there."""
        waiting: list[tuple[JSONSchema, Any]] = [(self._root, value)]
        extents: dict[int, int] = {}  # by the identity of a part of the value
        locations_left = _MAX_ERROR_LOCATIONS
        while waiting:
            schema, value = waiting.pop()
            if id(value) not in extents:
                extents[id(value)] = extent(value, locations_left)[0]
            locations_left -= extents[id(value)]  # an error holds a copy of the part that it is about
            if locations_left < 0:
                return False
            if (part := self._costs.part(schema)) is not None:
                waiting.extend((subschema, value) for subschema in part.in_place)
                waiting.extend(part.members(value))
        return True


class _Search:
    """One search for the invalid locations of a value."""

    def __init__(self, checks: MeteredChecks, aspects: dict[tuple[int, str], JSONSchema]) -> None:
        self._checks = checks
        self._evaluator = Evaluator(checks)
        self._aspects = aspects

    def problems(self, value: Any, demands: Sequence[Demand], path: str) -> Iterator[Problem]:
        """Yield the problems of a value that does not meet the demands: at least one."""
        any_problem = False
        try:
            scope = self._evaluator.scope(demands, value)
            binding = [applicable.node for applicable in scope.applied if applicable.force > Force.EVALUATE]
            own_problems = (_problem(path, message) for message in self._messages(demands, binding, value))
            for problem in chain(own_problems, self._of_members(scope, value, path)):
                any_problem = True
                yield problem
            if not any_problem:  # each member is valid by itself
                failing = (
                    _WHOLE_MESSAGES[keyword]
                    for node in binding
                    for keyword in _WHOLE_MESSAGES
                    if self._fails(node, keyword, value)
                )
                yield _problem(path, next(failing, "the value does not fit the schema"))
        except (ExhaustedError, ComplexityError, SchemaError, RecursionError):
            if not any_problem:
                yield _problem(path, "the value does not fit; it is too large to say more about it")

    def _messages(self, demands: Sequence[Demand], binding: list[Node], value: Any) -> Iterator[str]:
        """Yield what is wrong with the location itself."""
        for node in chain.from_iterable(self._checks.shapes.conjuncts(demand.schema) for demand in demands):
            if self._fails(node, "type", value):
                names = ", ".join(f'"{name}"' for name in type_names(node))
                yield f"the value is not of type {names}"
        for node in binding:
            if isinstance(value, dict):
                yield from self._property_messages(node, cast("dict[str, Any]", value))
            for keyword, message in _MESSAGES.items():
                if self._fails(node, keyword, value):
                    yield message.format(node[keyword])

    def _property_messages(self, node: Node, value: dict[str, Any]) -> Iterator[str]:
        for name in as_list(node.get("required")):
            if name not in value:
                yield f'"{name}" is a required property'
        if node.get("additionalProperties") is False:
            patterns, declared = as_dict(node.get("patternProperties")), as_dict(node.get("properties"))
            extra = (
                name
                for name in value
                if name not in declared and not any(self._checks.matches(pattern, name) for pattern in patterns)
            )
            if unexpected_names := list(islice(extra, _MAX_LISTED_NAMES)):
                names = ", ".join(f"'{name[:_MAX_MESSAGE_LENGTH]}'" for name in unexpected_names)
                yield f"Additional properties are not allowed ({names} were unexpected)"

    def _of_members(self, scope: Scope, value: Any, path: str) -> Iterator[Problem]:
        if isinstance(value, dict):
            self._checks.count(len(cast("dict[str, Any]", value)) * len(scope.applied))
            for name, item in islice(cast("dict[str, Any]", value).items(), _MAX_SEARCHED_MEMBERS):
                member_demands = scope.member(name)
                if not self._evaluator.meets(member_demands, item):
                    yield from self.problems(item, member_demands, f"{path}/{escaped(name)}")
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            prefix = range(min(scope.prefix, len(items)))
            invalid = (index for index in prefix if not self._evaluator.meets(scope.item(index), items[index]))
            for index in chain(invalid, self._invalid(items, scope.prefix, len(items), scope)):
                yield from self.problems(items[index], scope.item(index), f"{path}/{index}")

    def _invalid(self, items: list[Any], start: int, end: int, scope: Scope) -> Iterator[int]:
        """Yield the invalid items behind the prefix, by bisection: a check of many returns at the first error."""
        if start >= end:
            return
        block = items[start:end]
        if all(self._checks.is_valid(self._checks.array_of(demand.schema), block) for demand in scope.item(start)):
            return
        if end - start == 1:
            yield start
            return
        step = max(1, min((end - start) // 2, _ITEMS_PER_CHECK))
        for half in range(start, end, step):
            yield from self._invalid(items, half, min(half + step, end), scope)

    def _fails(self, node: Node, keyword: str, value: Any) -> bool:
        return keyword in node and not self._checks.is_valid(self._aspect(node, keyword), value)

    def _aspect(self, schema: Node, keyword: str) -> JSONSchema:
        """Return one keyword as a schema: the same object each time, since checks are cached by identity."""
        aspect = self._aspects.get((id(schema), keyword))
        if aspect is None:
            aspect = {
                related_keyword: schema[related_keyword]
                for related_keyword in _TOGETHER.get(keyword, (keyword,))
                if related_keyword in schema
            }
            self._aspects[id(schema), keyword] = aspect
        return aspect


def _problem(path: str, message: str, hint: str = "") -> Problem:
    return Problem(
        shorten(path, _MAX_MESSAGE_LENGTH), shorten(message, _MAX_MESSAGE_LENGTH) + shorten(hint, _MAX_MESSAGE_LENGTH)
    )


def specific_errors(error: Any) -> list[Any]:
    """Return the error itself, or for a union the errors of the variant that the value was meant for.

    Where that variant is ambiguous, the error of the union is more useful.
    """
    context: list[list[Any]] = getattr(error.kind, "context", [])
    if not context or not all(context):  # not a union, or one of which several branches match
        return [error]
    branches = [list(chain.from_iterable(map(specific_errors, branch))) for branch in context]
    depth = len(error.instance_path)
    branches_for_value = [branch for branch in branches if not _is_null(branch, depth)]  # the value is not null
    if len(branches_for_value) == 1:
        return branches_for_value[0]
    distances = [_Distance.of(branch, depth) for branch in branches]
    closest = min(distances)
    is_unique = not closest.is_other_kind and distances.count(closest) == 1
    return branches[distances.index(closest)] if is_unique else [error]


def _is_null(branch: list[Any], depth: int) -> bool:
    """Return whether a branch of a union accepts null only."""
    kinds = [error.kind for error in branch if len(error.instance_path) == depth]
    return any(kind.name == "type" and kind.types == ["null"] for kind in kinds)


class _Distance(NamedTuple):
    is_other_kind: bool  # a string where the branch is an object
    other_constants: int  # of the properties: one of them tells the variants apart
    errors: int

    @classmethod
    def of(cls, branch: list[Any], depth: int) -> "_Distance":
        failed_keywords = {error.kind.name for error in branch if len(error.instance_path) == depth}
        constants = [error for error in branch if error.kind.name in _TAGS and len(error.instance_path) == depth + 1]
        return cls(not failed_keywords.isdisjoint(_OTHER_KIND), len(constants), len(branch))


def hint_of(error: Any, root: JSONSchema) -> str:
    """Suggest the property that an unexpected one may mean, of those that are missing."""
    unexpected: list[str] = getattr(error.kind, "unexpected", [])
    steps, node = error.schema_path[:-1], cast("Any", root)
    with suppress(LookupError, TypeError):  # the schema may have been rewritten, or be a member of a group
        for step in steps if unexpected else ():
            node = node[step]
        missing = (name for name in as_dict(node["properties"]) if name not in as_dict(error.instance))
        return suggestion(similar_names(unexpected[0], missing))
    return ""
