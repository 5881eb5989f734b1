"""Compile JSON Schemas with jsonschema-rs, without network, file system or unbounded work.

jsonschema-rs passes the official test suite of every draft. This module adds safety: references are never fetched, a
pattern that exceeds its backtracking limit counts as not matching, checking a value takes bounded time, and a schema
that cannot be compiled raises a `SchemaError` with the path.
"""

import re
from collections.abc import Callable
from math import inf
from typing import Any, Final, Generic, Protocol, TypeVar

from opwire.errors import SchemaError
from opwire.schema.cost import SchemaCosts
from opwire.schema.dialect import JSONSchema, lazy_property, map_subschemas, quoted_refs
from opwire.schema.effort import Effort, ExhaustedError
from opwire.schema.memo import memoised
from opwire.schema.meter import ComplexityError, Meter
from opwire.schema.pattern_cost import MAX_STEPS
from opwire.schema.shape import Node, Shapes, closed_document, plain_document

G = TypeVar("G")

# Its automaton has a copy of the class for each repetition: 440 kB for 259 of a negated class, and AWS has hundreds.
_COUNTED: Final = r"\^(\[\^?(?:[^\[\]\\]|\\.)+\]|\\[wdsWDS])\{([0-9]{1,9}),([0-9]{1,9})\}\$"


class Validator(Protocol):
    """The part of a jsonschema-rs validator that opwire uses."""

    def is_valid(self, instance: Any, /) -> bool: ...
    def iter_errors(self, instance: Any, /) -> Any: ...


def compile_validator(schema: JSONSchema, *, formats: bool = True) -> Validator:
    """Compile a schema of any draft; the default is 2020-12 unless `$schema` names another.

    `formats` is whether `format` is checked, and not only an annotation.

    Raises:
        SchemaError: the schema is invalid, or a reference leads out of it.
    """
    import jsonschema_rs  # 13 ms of `import opwire` on a slow machine; many programs only describe operations

    # Lookarounds and back-references need the backtracking engine; 10,000 steps end a hostile pattern within a
    # millisecond (measured: `^(?=(a+)+$)` on 40,000 characters).
    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_STEPS)
    try:
        return jsonschema_rs.validator_for(
            without_counts(schema),
            validate_formats=formats,
            ignore_unknown_formats=True,
            offline=True,
            pattern_options=patterns,
            mask="the value",  # messages never echo the value: it may be huge, or a secret
        )
    except jsonschema_rs.ValidationError as error:
        quoted = quoted_refs(schema)
        if quoted != schema:
            return compile_validator(quoted, formats=formats)
        where = "/".join(str(step) for step in error.instance_path)
        raise SchemaError(f"not a valid JSON Schema{f' at {where}' if where else ''}: {error.message}") from None
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
        raise SchemaError(f"not a valid JSON Schema: {error}") from None


def without_counts(schema: JSONSchema) -> JSONSchema:
    """Return an equivalent schema: `^[a-z]{1,255}$` is the pattern `^[a-z]*$` with `minLength` and `maxLength`."""
    if not isinstance(schema, dict):
        return schema
    copy = map_subschemas(schema, without_counts)
    if isinstance(pattern := copy.get("pattern"), str) and (count := re.fullmatch(_COUNTED, pattern)):
        min_length, max_length = copy.get("minLength", 0), copy.get("maxLength", count[3])
        try:
            copy["minLength"], copy["maxLength"] = (
                max(int(min_length), int(count[2])),
                min(int(max_length), int(count[3])),
            )
            copy["pattern"] = f"^{count[1]}*$"
        except (TypeError, ValueError):
            return schema  # invalid: the compiler reports it
    return copy


class MeteredValidator:
    """A validator that meters each value first, for schemas that may be expensive to check."""

    def __init__(self, validator: Validator, meter: Meter) -> None:
        self.unmetered = validator
        self.meter = meter
        self.iter_errors = validator.iter_errors

    def is_valid(self, instance: Any, /) -> bool:
        """Return whether a value is valid.

        Raises:
            ComplexityError: checking it would take too long.
        """
        self.meter.check(instance)
        return self.unmetered.is_valid(instance)


class MemberValidator(Generic[G]):
    """The validator of one member of a group: of a schema that has each of them as a property.

    `compiled` returns the validator of the group, which may have been released and is then compiled again.
    """

    def __init__(self, name: str, group: G, compiled: Callable[[], Validator]) -> None:
        self.group = group
        self._name = name
        self._compiled = compiled

    def is_valid(self, instance: Any, /) -> bool:
        """Return whether a value is valid.

        Raises:
            ComplexityError: checking it would take too long.
        """
        return self._compiled().is_valid({self._name: instance})

    def iter_errors(self, instance: Any, /) -> Any:
        """Return the errors of a value. Their paths begin with the name of the member."""
        return self._compiled().iter_errors({self._name: instance})


def compile_bounded(
    schema: JSONSchema, costs: SchemaCosts, portable: Callable[[], JSONSchema] | None = None, *, formats: bool = True
) -> Validator:
    """Compile a schema so that checking a value takes bounded time.

    `costs` are those of the schema, or of its 2020-12 form. Caching verdicts requires every reference to be of the
    form "#/$defs/name": `portable` returns such a document, and is optional for a schema that is one already.

    Raises:
        SchemaError: the schema is invalid, or a reference leads out of it.
    """
    if costs.is_free:
        return compile_validator(schema, formats=formats)
    if costs.multiplies:
        document = schema if portable is None else portable()
        schema = memoised(document, costs if portable is None else SchemaCosts(document))
    return MeteredValidator(compile_validator(schema, formats=formats), Meter(costs))


Check = Callable[[Any], bool]

_LOOKUPS_PER_LOCATION: Final = 8  # that `MeteredChecks.count` accounts for
_MIN_COMPILED_PARTS: Final = 1_000  # for one walk; a part takes 15 µs
_COMPILED_PARTS_PER_PART: Final = 2
_PARTS_PER_DOCUMENT: Final = 10  # that a check counts for, however small it is
_COPIES_WITH_METER: Final = 3  # the costs of a part are read, and it is written twice


class PartChecks(Protocol):
    """Checks of parts of a value, with or without a budget."""

    shapes: Shapes

    def is_valid(self, schema: JSONSchema, value: Any) -> bool: ...
    def matches(self, pattern: str, name: str) -> bool: ...


class Checks:
    """Compiled checks of one root schema, cached by the identity of a part: they live as long as the root does.

    Methods that take a schema raise `SchemaError` if that part cannot be compiled.
    """

    def __init__(
        self,
        root: JSONSchema,
        *,
        formats: bool = True,
        compiled: Callable[[JSONSchema, int], None] = lambda document, parts: None,
    ) -> None:
        self.shapes = Shapes(root)
        self._formats = formats
        self._on_compiled = compiled  # called with each compiled document and its number of parts
        self._valid: dict[int, Check] = {}
        self._conforms: dict[tuple[int, bool], Check | str] = {}  # or the error: an invalid one is not written again
        self._patterns: dict[str, Check] = {}
        self._usable: dict[int, bool] = {}
        self._arrays: dict[int, Node] = {}
        self.sizes: dict[Any, int] = {}  # parts that a check was compiled from, by its key in `_valid` or `_conforms`
        self.metered: dict[Any, MeteredValidator] = {}  # those of them that meter a value first, by the same keys

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        """Return whether a value is valid against a part of the schema."""
        schema = self.shapes.resolved(schema)
        return schema if isinstance(schema, bool) else _run(self.validity(schema), value)

    def validity(self, schema: Node, limit: float = inf) -> Check:
        """Return the check behind `is_valid`, for plain data.

        Raises:
            ExhaustedError: it has to be compiled, from more parts than the limit.
        """
        check = self._valid.get(id(schema))
        if check is None:
            document, parts = plain_document(self.shapes, schema)
            size = self.sizes[id(schema)] = _PARTS_PER_DOCUMENT + parts * (1 if self._is_free else _COPIES_WITH_METER)
            if size > limit:
                raise ExhaustedError
            if self._is_free:  # so is each part of it, and reading its costs would take half the time
                check = compile_validator(document, formats=self._formats).is_valid
                self._on_compiled(document, parts)
            else:
                check = self._compiled(id(schema), document)
            self._valid[id(schema)] = check
        return check

    def conforms(self, schema: JSONSchema, value: Any, *, strip: bool) -> bool:
        """Return whether a value is valid and `fit` would leave it unchanged."""
        return _run(self.conformity(schema, strip=strip), value)

    def conformity(self, schema: JSONSchema, *, strip: bool) -> Check:
        """Return the check behind `conforms`, for plain data."""
        key = (id(schema), strip)
        check = self._conforms.get(key)
        if check is None:
            try:
                document = closed_document(self.shapes, schema, strip=strip, fills=self.is_usable)
                check = self._compiled(key, document)  # of few parts of a value, so that it is not counted before
            except SchemaError as error:
                check = str(error)
            self._conforms[key] = check
        if isinstance(check, str):
            raise SchemaError(check)
        return check

    def array_of(self, schema: JSONSchema) -> Node:
        """Return the schema of an array with such items: the same object each time, since checks are cached by it."""
        array = self._arrays.get(id(schema))
        if array is None:
            array = self._arrays[id(schema)] = {"items": schema}
        return array

    def is_usable(self, schema: Node, default: Any) -> bool:
        """Return whether a declared default is valid against its own schema."""
        if id(schema) not in self._usable:
            self._usable[id(schema)] = self.is_valid(schema, default)
        return self._usable[id(schema)]

    def matches(self, pattern: str, name: str) -> bool:
        """Return whether a property's name matches. Foreign patterns never reach Python's `re`, which could hang."""
        check = self._patterns.get(pattern)
        if check is None:
            check = self._patterns[pattern] = compile_validator({"pattern": pattern}).is_valid
        return _run(check, name)

    @lazy_property
    def max_parts(self) -> int:
        """How many parts the checks may have that are needed for one walk over a value."""
        return _MIN_COMPILED_PARTS + _COMPILED_PARTS_PER_PART * self.costs.size

    @lazy_property
    def costs(self) -> SchemaCosts:
        """The costs of the root; raises `SchemaError` where they are too high."""
        return self.shapes.costs()

    @lazy_property
    def _is_free(self) -> bool:
        try:
            return self.costs.is_free
        except SchemaError:
            return False

    def _compiled(self, key: Any, document: JSONSchema) -> Check:
        costs = SchemaCosts(document)
        self.sizes.setdefault(key, _PARTS_PER_DOCUMENT + costs.size)
        validator = compile_bounded(document, costs, formats=self._formats)
        if isinstance(validator, MeteredValidator):
            self.metered[key] = validator
        self._on_compiled(document, costs.size)
        return validator.is_valid


class MeteredChecks:
    """Checks of parts of one value, within a budget. Every method raises `ExhaustedError` where it is used up."""

    def __init__(self, checks: Checks, effort: Effort) -> None:
        self._checks = checks
        self._effort = effort
        self._used: dict[Any, Check] = {}  # by their keys in `sizes`
        self._parts = checks.max_parts
        self.shapes = checks.shapes
        self.is_usable = checks.is_usable
        self.array_of = checks.array_of

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        schema = self.shapes.resolved(schema)
        if isinstance(schema, bool):
            self._effort.spend_check(value)
            return schema
        check = self._used.get(id(schema)) or self._use(id(schema), self._checks.validity(schema, self._parts))
        return self._run(id(schema), check, value)

    def conform(self, schema: JSONSchema, items: list[Any], *, strip: bool) -> bool:
        """Return whether each of several values is valid and `fit` would leave it unchanged."""
        array = self.array_of(schema)
        key = (id(array), strip)
        check = self._used.get(key) or self._use(key, self._checks.conformity(array, strip=strip))
        return self._run(key, check, items)

    def matches(self, pattern: str, name: str) -> bool:
        self._effort.spend(1)
        return self._checks.matches(pattern, name)

    def count(self, lookups: int) -> None:
        """Account for lookups of members that are not checks."""
        if lookups >= _LOOKUPS_PER_LOCATION:
            self._effort.spend(lookups // _LOOKUPS_PER_LOCATION)

    def _run(self, key: Any, check: Check, value: Any) -> bool:
        metered = self._checks.metered.get(key)
        if metered is None:
            self._effort.spend_check(value)
        else:
            self._effort.spend_metered(metered.meter.check(value))
            check = metered.unmetered.is_valid
        return _run(check, value)

    def _use(self, key: Any, check: Check) -> Check:
        """Account for a compiled check once, even if it was cached for an earlier value: the outcome is the same."""
        self._parts -= self._checks.sizes[key]
        if self._parts < 0:
            raise ExhaustedError
        self._used[key] = check
        return check


def _run(check: Check, value: Any) -> bool:
    try:
        return check(value)
    except ComplexityError:
        raise
    except ValueError:  # a lone surrogate, or not JSON at all
        return False
