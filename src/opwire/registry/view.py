"""The rules of a view: which operations it has, under which names, and how their inputs and results are reshaped.

`OperationRegistry.view` applies them. Patterns and names refer to the operations of the viewed registry. A rule that
cannot be applied leaves its operation out: a parameter that should be hidden must not become visible by a typo.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from fnmatch import translate
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from msgspec.structs import replace

from opwire.errors import CallError, RegistrationError, SchemaError, UsageError, check_known, check_list
from opwire.model.access import AccessControl, may_access
from opwire.model.completion import Completion, CompletionRequest
from opwire.model.context import Context
from opwire.model.envelope import ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import Operation, OperationSpec, OperationType, PreparedRequest, split_id
from opwire.names import similar_names, suggestion
from opwire.registry.reshape import Reshape, Reshaping, ResultStore
from opwire.runtime.text import get_logger

if TYPE_CHECKING:
    from opwire.registry.registry import OperationRegistry

logger = get_logger("opwire.registry")

Pattern = str | Callable[[OperationSpec], bool]
"""An id or tag with `*` and `?`, a namespace, `type:query`, `tag:NAME`, `scope:NAME`, or a predicate."""


class ViewOptions(TypedDict, total=False):
    """The options of `OperationRegistry.view`.

    `include` selects operations, all by default, and `exclude` removes some of these. `rename` maps an id to another
    ("shop.order": "store.buy"), ids by a pattern ("shop.*": "store.*"), or a namespace ("shop": "store"). `reshape`
    maps ids or patterns to changes; later ones override earlier ones. With `identity`, the view has only the operations
    which that identity may call, and calls without a context are its own. `scopes` are required of callers, in addition
    to those of each operation.
    """

    include: Iterable[Pattern]
    exclude: Iterable[Pattern]
    rename: Mapping[str, str]
    reshape: Mapping[str, Reshape]
    identity: Identity | None
    scopes: Iterable[str]


class _Matcher:
    """A pattern, and whether it has matched an operation."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.matched = False
        self._test = pattern if callable(pattern) else _test_of(pattern)

    def matches(self, spec: OperationSpec) -> bool:
        is_match = bool(self._test(spec))
        self.matched = self.matched or is_match
        return is_match


def _test_of(pattern: str) -> Callable[[OperationSpec], bool]:
    kind, colon, name = pattern.partition(":")
    match kind if colon else "":
        case "type":
            return lambda spec: spec.type == name
        case "tag":
            return lambda spec: name in spec.tags
        case "scope":
            return lambda spec: spec.access is not None and name in spec.access.required_scopes
        case _:
            test = re.compile(translate(pattern)).match
            return lambda spec: test(spec.id) is not None or spec.namespace == pattern or any(map(test, spec.tags))


class Selection:
    """Select operations by patterns: all that match `include`, or all if it is empty, without those of `exclude`.

    Raises:
        UsageError: `include` or `exclude` is a string.
    """

    def __init__(self, include: Iterable[Pattern] = (), exclude: Iterable[Pattern] = ()) -> None:
        check_list("patterns", include=include, exclude=exclude)
        self.include = [_Matcher(pattern) for pattern in include]
        self.exclude = [_Matcher(pattern) for pattern in exclude]

    def __str__(self) -> str:
        options = ((name, [matcher.pattern for matcher in getattr(self, name)]) for name in ("include", "exclude"))
        return "".join(f", {name}={patterns}" for name, patterns in options if patterns)

    def selects(self, spec: OperationSpec) -> bool:
        """Return whether an operation is selected."""
        included = [matcher.matches(spec) for matcher in self.include]  # all of them, to find those that match nothing
        excluded = [matcher.matches(spec) for matcher in self.exclude]
        return (not included or any(included)) and not any(excluded)

    def problems(self, ids: Iterable[str]) -> list[str]:
        """Return the patterns that have matched nothing so far; `ids` are suggested."""
        return [*_unmatched("include", self.include, ids), *_unmatched("exclude", self.exclude, ids)]


def _unmatched(option: str, matchers: Iterable[_Matcher], ids: Iterable[str]) -> Iterator[str]:
    missed = [matcher.pattern for matcher in matchers if not matcher.matched and isinstance(matcher.pattern, str)]
    names = dict.fromkeys(name for id in ids for name in (id, id.partition(".")[0])) if missed else ()
    for pattern in missed:
        yield f"{option}: {pattern!r} matches nothing{suggestion(similar_names(pattern, names))}"


class Derived(NamedTuple):
    """An operation of a view: its spec there, and the changes of its input and results."""

    spec: OperationSpec
    reshaping: "Reshaping"


class ViewRules:
    """The options of a view, checked and compiled."""

    def __init__(self, options: ViewOptions) -> None:
        check_known(options, ViewOptions.__annotations__, "view()")  # a typo in `exclude` would show too much
        self.identity = options.get("identity")
        self._scopes = tuple(options.get("scopes", ()))
        self._selection = Selection(options.get("include", ()), options.get("exclude", ()))
        self._renames = [(_Matcher(key), key, to) for key, to in options.get("rename", {}).items()]
        for _, key, to in self._renames:
            if key.count("*") != to.count("*") or key.count("*") > 1 or not all(to.split(".", 1)):
                forms = '"id": "id", "namespace": "namespace" or "a.*": "b.*"'
                raise UsageError(f"rename: {key!r} to {to!r}: write {forms}")
        self._reshapes = [(_Matcher(key), key, reshape) for key, reshape in options.get("reshape", {}).items()]
        self.shortens = any(reshape.max_chars is not None for _, _, reshape in self._reshapes)
        self.store = ResultStore()
        self._left_out: dict[str, str] = {}

    def derive(self, operation_id: str, spec: OperationSpec | None) -> Derived | None:
        """Return an operation as the view has it, or None if it does not have it; `spec` is None if it is gone."""
        self._left_out.pop(operation_id, None)
        if spec is None or not self._selection.selects(spec):
            return None
        if self.identity is not None and not may_access(spec, self.identity):
            return None
        try:
            changes = Reshape()
            for matcher, _, reshape in self._reshapes:
                if matcher.matches(spec):
                    changes = reshape.over(changes)
            namespace, name = split_id(self._new_id(spec))
            reshaping = Reshaping(spec, f"{namespace}.{name}", changes, self.store)
            access = spec.access
            if self._scopes:
                access = access or AccessControl()
                access = replace(access, required_scopes=(*access.required_scopes, *self._scopes), public=False)
            return Derived(
                replace(
                    spec,
                    namespace=namespace,
                    name=name,
                    title=spec.title if changes.title is None else changes.title,
                    description=spec.description if changes.description is None else changes.description,
                    access=access,
                    input_schema=reshaping.input_schema,
                    output_schema=reshaping.output_schema,
                    normalize=spec.normalize if reshaping.keeps_results else "off",
                    examples=() if changes.parameters else spec.examples,
                ),
                reshaping,
            )
        except (RegistrationError, SchemaError) as error:
            self.leave_out(operation_id, str(error))
            return None

    def leave_out(self, operation_id: str, reason: str) -> None:
        """Report an operation that the view cannot have."""
        self._left_out[operation_id] = f"{operation_id} is left out: {reason}"
        logger.warning("%s", self._left_out[operation_id])

    def share_results(self, source: "ViewRules | None") -> None:
        """Use the shortened results of the view that is viewed."""
        if source is not None:
            self.store, self.shortens = source.store, self.shortens or source.shortens

    def context(self, default: Context) -> Context:
        """Return the context of calls without one."""
        return default if self.identity is None else replace(default, identity=self.identity)

    def problems(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return what was left out, and the patterns that have matched nothing so far; `ids` are suggested."""
        return (*self._left_out.values(), *self._unmatched(ids))

    def _unmatched(self, ids: Iterable[str]) -> list[str]:
        known_ids = [*ids]
        renames = _unmatched("rename", (matcher for matcher, _, _ in self._renames), known_ids)
        reshapes = _unmatched("reshape", (matcher for matcher, _, _ in self._reshapes), known_ids)
        return [*self._selection.problems(known_ids), *renames, *reshapes]

    def log_unmatched(self, ids: Iterable[str]) -> None:
        """Log a warning for each pattern that has matched nothing so far."""
        for problem in self._unmatched(ids):
            logger.warning("%s", problem)

    def _new_id(self, spec: OperationSpec) -> str:
        for matcher, key, to in self._renames:
            if not matcher.matches(spec):
                continue
            if "*" in key:
                prefix, _, suffix = key.partition("*")
                return to.replace("*", spec.id[len(prefix) : len(spec.id) - len(suffix)])
            if key == spec.id:
                return to if "." in to else f"{spec.namespace}.{to}"
            if key == spec.namespace:
                return f"{to}.{spec.name}"
        return spec.id


def operation_through(
    registry: "OperationRegistry", spec: OperationSpec, outer: OperationSpec, reshaping: "Reshaping | None" = None
) -> Operation:
    """Return an operation that calls another one of a registry, with its interceptors; `outer` is its spec."""
    if registry.get_handler(spec.id) is None:
        return Operation(outer)
    changes = reshaping or Reshaping(spec, outer.id, Reshape(), ResultStore())

    async def execute(input: Any, context: Context) -> ResponseEnvelope[Any]:
        arguments = changes.inward(input, context)
        try:
            envelope = await registry.execute(spec.id, arguments, context)
        except CallError as error:
            changes.reraise(error)
        return changes.outward(envelope, context)

    async def subscribe(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        arguments = changes.inward(input, context)
        try:
            async with aclosing(registry.subscribe(spec.id, arguments, context)) as envelopes:
                async for envelope in envelopes:
                    yield changes.outward(envelope, context)
        except CallError as error:
            changes.reraise(error)

    def preview(input: Any, context: Context, reveal: bool) -> Awaitable[PreparedRequest]:
        return registry.preview(spec.id, changes.inward(input, context), context, reveal=reveal)

    def complete(request: CompletionRequest, context: Context) -> Awaitable[Completion]:
        return registry.complete(spec.id, changes.asked(request), context)

    handler = subscribe if spec.type is OperationType.SUBSCRIPTION else execute
    return Operation(outer, handler, preview=preview, complete=complete)
