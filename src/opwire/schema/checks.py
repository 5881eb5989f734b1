"""The questions that `fit` asks of single parts of a schema, each compiled when it is first asked."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from opwire.schema.closed import closed_document, plain_document
from opwire.schema.cost import ComplexityError, Costs
from opwire.schema.effort import Effort, ExhaustedError
from opwire.schema.refs import JSONSchema
from opwire.schema.shape import Node, Shapes
from opwire.schema.validator import compile_bounded, compile_validator

Check = Callable[[Any], bool]

_LOOKS = 8  # looks of a part at a name that count as one place
_PARTS = 1_000  # that the checks of one walk may be compiled from; 30 µs each, if none of them is compiled yet
_PARTS_PER_PART = 6


class PartChecks(Protocol):
    """Checks of parts of a value, with a budget or without."""

    def is_valid(self, schema: JSONSchema, value: Any) -> bool: ...
    def matches(self, pattern: str, name: str) -> bool: ...


class Checks:
    """Compiled checks of one root schema. Parts are known by identity: they live as long as the root does."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._valid: dict[int, Check] = {}
        self._conforms: dict[tuple[int, bool], Check] = {}
        self._patterns: dict[str, Check] = {}
        self._fills: dict[int, bool] = {}
        self.sizes: dict[int, int] = {}  # parts that a check was compiled from, by the identity of its schema

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        """Whether a value fits a part of the schema.

        Raises:
            SchemaError: the part cannot be compiled.
        """
        if isinstance(schema, bool):
            return schema
        check = self._valid.get(id(schema))
        if check is None:
            document = plain_document(self._shapes, schema)
            check = self._valid[id(schema)] = self._compiled(schema, document)
        return _ask(check, value)

    def conforms(self, schema: JSONSchema, value: Any, *, strip: bool) -> bool:
        """Whether a value fits and leaves `fit` nothing to do.

        Raises:
            SchemaError: the part cannot be compiled.
        """
        return _ask(self.conformity(schema, strip=strip), value)

    def conformity(self, schema: JSONSchema, *, strip: bool) -> Check:
        """The check behind `conforms`, for plain data.

        Raises:
            SchemaError: the part cannot be compiled.
        """
        key = (id(schema), strip)
        check = self._conforms.get(key)
        if check is None:
            document = closed_document(self._shapes, schema, strip=strip, fills=self.is_usable)
            check = self._conforms[key] = self._compiled(schema, document)
        return check

    @cached_property
    def parts_of_a_walk(self) -> int:
        """How many parts the checks may have that one walk over a value asks for."""
        return _PARTS + _PARTS_PER_PART * Costs(self._shapes.root).size

    def _compiled(self, schema: JSONSchema, document: JSONSchema) -> Check:
        costs = Costs(document)
        self.sizes[id(schema)] = self.sizes.get(id(schema), 0) + costs.size
        return compile_bounded(document, costs).is_valid

    def is_usable(self, schema: Node, default: Any) -> bool:
        """Whether a declared default fits its own schema."""
        answer = self._fills.get(id(schema))
        if answer is None:
            answer = self._fills[id(schema)] = self.is_valid(schema, default)
        return answer

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a property's name matches. Foreign patterns never reach Python's `re`, which they could hang."""
        check = self._patterns.get(pattern)
        if check is None:
            check = self._patterns[pattern] = compile_validator({"pattern": pattern}).is_valid
        return _ask(check, name)


class MeteredChecks:
    """Checks of parts of one value, within a budget. Every method raises `ExhaustedError` where it is used up."""

    def __init__(self, checks: Checks, effort: Effort) -> None:
        self._checks = checks
        self._effort = effort
        self._used: set[int] = set()
        self._parts = checks.parts_of_a_walk

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        self._effort.spend_check(value)
        answer = self._checks.is_valid(schema, value)
        self._count(schema)
        return answer

    def conforms(self, schema: JSONSchema, value: Any, *, strip: bool) -> bool:
        self._effort.spend_check(value)
        answer = self._checks.conforms(schema, value, strip=strip)
        self._count(schema)
        return answer

    def is_usable(self, schema: Node, default: Any) -> bool:
        return self._checks.is_usable(schema, default)

    def matches(self, pattern: str, name: str) -> bool:
        self._effort.spend(1)
        return self._checks.matches(pattern, name)

    def count(self, looks: int) -> None:
        """Account for looks at members that are not checks."""
        self._effort.spend(looks // _LOOKS)

    def _count(self, schema: JSONSchema) -> None:
        """Account for a compiled check once, also if it was compiled for an earlier value: the outcome is the same."""
        if id(schema) not in self._used:
            self._used.add(id(schema))
            self._parts -= self._checks.sizes.get(id(schema), 0)
            if self._parts < 0:
                raise ExhaustedError


def _ask(check: Check, value: Any) -> bool:
    try:
        return check(value)
    except ComplexityError:
        raise
    except ValueError:  # a lone surrogate, or something that is not JSON at all
        return False
