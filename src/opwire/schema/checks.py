"""Compiled checks of the parts of a schema, with or without a budget. Everything is compiled lazily, and once."""

from collections.abc import Callable
from math import inf
from typing import Any, Final, Protocol

from opwire.errors import SchemaError
from opwire.schema.cost import ComplexityError, Costs, Effort, ExhaustedError
from opwire.schema.dialect import JSONSchema, lazy_property
from opwire.schema.shape import Node, Shapes, closed_document, sized_document
from opwire.schema.validator import MeteredValidator, compile_bounded, compile_validator

Check = Callable[[Any], bool]

_LOOKUPS: Final = 8  # lookups of a name in a node that count as one location
_PARTS: Final = 1_000  # from which the checks of one walk may be compiled; 15 µs each, if not compiled yet
_PARTS_PER_PART: Final = 2
_DOCUMENT: Final = 10  # parts that a check counts for by itself, however small it is
_METERED: Final = 3  # times that a part takes in a document with a meter: its costs are read, and it is written twice


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
            document, parts = sized_document(self.shapes, schema)
            size = self.sizes[id(schema)] = _DOCUMENT + parts * (1 if self._is_free else _METERED)
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
        return _PARTS + _PARTS_PER_PART * self.costs.size

    @lazy_property
    def costs(self) -> Costs:
        """The costs of the root; raises `SchemaError` where they are too high."""
        return self.shapes.costs()

    @lazy_property
    def _is_free(self) -> bool:
        try:
            return self.costs.is_free
        except SchemaError:
            return False

    def _compiled(self, key: Any, document: JSONSchema) -> Check:
        costs = Costs(document)
        self.sizes.setdefault(key, _DOCUMENT + costs.size)
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

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        schema = self.shapes.resolved(schema)
        if isinstance(schema, bool):
            self._effort.spend_check(value)
            return schema
        check = self._used.get(id(schema)) or self._use(id(schema), self._checks.validity(schema, self._parts))
        return self._run(id(schema), check, value)

    def conforms(self, schema: JSONSchema, value: Any, *, strip: bool) -> bool:
        key = (id(schema), strip)
        check = self._used.get(key) or self._use(key, self._checks.conformity(schema, strip=strip))
        return self._run(key, check, value)

    def matches(self, pattern: str, name: str) -> bool:
        self._effort.spend(1)
        return self._checks.matches(pattern, name)

    def count(self, lookups: int) -> None:
        """Account for lookups of members that are not checks."""
        if lookups >= _LOOKUPS:
            self._effort.spend(lookups // _LOOKUPS)

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
