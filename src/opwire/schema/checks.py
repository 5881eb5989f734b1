"""The questions that `fit` asks of single parts of a schema, each compiled when it is first asked."""

from collections.abc import Callable
from typing import Any

from opwire.schema.closed import closed_document, plain_document
from opwire.schema.cost import ComplexityError, Costs
from opwire.schema.effort import Effort
from opwire.schema.refs import JSONSchema
from opwire.schema.shape import Node, Shapes
from opwire.schema.validator import compile_bounded, compile_validator

Check = Callable[[Any], bool]


class Checks:
    """Compiled checks of one root schema. Parts are known by identity: they live as long as the root does."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._valid: dict[int, Check] = {}
        self._conforms: dict[tuple[int, bool], Check] = {}
        self._patterns: dict[str, Check] = {}
        self._fills: dict[int, bool] = {}

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        """Whether a value fits a part of the schema.

        Raises:
            SchemaError: the part cannot be compiled.
        """
        if isinstance(schema, bool):
            return schema
        check = self._valid.get(id(schema))
        if check is None:
            check = self._valid[id(schema)] = _compiled(plain_document(self._shapes, schema))
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
            check = self._conforms[key] = _compiled(document)
        return check

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

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        self._effort.spend(value)
        return self._checks.is_valid(schema, value)

    def conforms(self, schema: JSONSchema, value: Any, *, strip: bool) -> bool:
        self._effort.spend(value)
        return self._checks.conforms(schema, value, strip=strip)

    def is_usable(self, schema: Node, default: Any) -> bool:
        return self._checks.is_usable(schema, default)

    def matches(self, pattern: str, name: str) -> bool:
        self._effort.spend_places(1)
        return self._checks.matches(pattern, name)


def _compiled(document: JSONSchema) -> Check:
    return compile_bounded(document, Costs(document), lambda: document).is_valid


def _ask(check: Check, value: Any) -> bool:
    try:
        return check(value)
    except ComplexityError:
        raise
    except ValueError:  # a lone surrogate, or something that is not JSON at all
        return False
