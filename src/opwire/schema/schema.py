"""`Schema`: one JSON Schema, checked, fitted and cast to. Everything is compiled when it is first needed."""

from collections.abc import Callable, Mapping
from functools import cached_property
from types import NoneType
from typing import Any, Self, cast

from opwire.errors import CastError, SchemaError
from opwire.schema.cast import Caster
from opwire.schema.cost import ComplexityError, Costs
from opwire.schema.dialect import META_SCHEMAS, Dialect, JSONSchema, dialect_of, lower, may_recurse
from opwire.schema.fit import Fitted, Fitter
from opwire.schema.report import Problem, Reporter
from opwire.schema.shape import Shapes, plain_document
from opwire.schema.validator import MeteredValidator, Validator, compile_bounded
from opwire.typed import json_schema_of
from opwire.typed.plain import MAX_DEPTH, survey

MAX_PROBLEMS = 100

# Not float: a NaN fits nothing.
_KINDS: dict[str, type] = {"integer": int, "number": int, "string": str, "boolean": bool, "null": NoneType}
_SAYS_NOTHING_ELSE = frozenset({"type", "title", "description", "default", "examples", "$schema"})


class Schema:
    """A JSON Schema.

    schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}})
    schema.is_valid({"n": 1})      # True
    schema.problems({"n": "one"})  # [Problem(path='/n', message='the value is not of type "integer"')]
    schema.fit({"n": 1, "x": 2})   # Fitted(value={'n': 1}, changes=(Change('stripped', '/x'),))

    Values are plain JSON data. Nothing here ever changes a value that is given; `cast` and `fit` build new ones.
    """

    _make: Callable[[], JSONSchema]  # of a deferred one

    def __init__(self, json_schema: Mapping[str, Any] | bool, *, dialect: Dialect | None = None) -> None:
        given = cast("Any", json_schema)  # a foreign document may hold anything here
        if not isinstance(given, Mapping | bool):
            raise SchemaError(f"a JSON Schema is an object or a boolean, not {type(given).__name__}")
        self.json = given if isinstance(given, bool) else dict(cast("Mapping[str, Any]", given))
        self.dialect: Dialect = dialect or dialect_of(self.json)

    @classmethod
    def deferred(cls, make: Callable[[], JSONSchema]) -> Self:
        """A schema of the dialect 2020-12 whose JSON is made when it is first asked for: most of a large API never is.

        `make` is called once, and may not raise.
        """
        schema = cls.__new__(cls)
        schema.dialect = "2020-12"
        schema._make = make
        return schema

    @cached_property
    def json(self) -> JSONSchema:
        """The schema as plain data."""
        return self._make()

    @classmethod
    def from_type(cls, hint: Any, *, where: str = "") -> Self:
        """The schema of a Python type. `where` names it in errors: "parameter 'when' of plan_trip".

        Raises:
            HintError: the type has no JSON form.
        """
        return cls(json_schema_of(hint, where=where))

    def __repr__(self) -> str:
        return f"Schema({self.json!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and (self.json, self.dialect) == (other.json, other.dialect)

    def __hash__(self) -> int:
        return hash(self.dialect)

    @property
    def is_deferred(self) -> bool:
        """Whether its JSON has not been made yet."""
        return "json" not in self.__dict__

    @property
    def is_unknown(self) -> bool:
        """Whether it says nothing: every value fits."""
        return self.json is True or self.json == {}

    def fitting_kinds(self) -> frozenset[type]:
        """The scalar types of which every value fits, as far as that is plain to see from `type` alone."""
        if not isinstance(self.json, dict) or not _SAYS_NOTHING_ELSE.issuperset(self.json):
            return frozenset()
        named = self.json.get("type", ())
        names = cast("list[str]", [named] if isinstance(named, str) else named)
        return frozenset(_KINDS[name] for name in names if name in _KINDS)

    def compile(self) -> Self:
        """Compile now, to learn now whether the schema is usable.

        Raises:
            SchemaError: it is not a valid schema, or refers to what is not there.
        """
        _ = self._validator
        return self

    def is_valid(self, value: Any) -> bool:
        """Whether a value, which has to be plain JSON data, fits. Where the schema is recursive, a deep one does not.

        Nor does a value that is too complex to be checked in bounded time; `problems` says so.

        Raises:
            SchemaError: the schema itself is not usable; never because of a value.
        """
        validator = self._validator
        try:
            return self._is_safe(value) and validator.is_valid(value)
        except ValueError:  # not plain after all, or a lone surrogate
            return False

    def problems(self, value: Any, *, limit: int = MAX_PROBLEMS) -> list[Problem]:
        """The ways in which a value does not fit, up to a limit; the value itself is never echoed.

        Of a large value, or one with many unions inside each other, these are the first that a bounded search finds.

        Raises:
            SchemaError: as `is_valid`.
        """
        if not self._needs_survey and self.is_valid(value):
            return []
        found = survey(value)
        if found.deep:
            return [Problem("", f"the value is nested deeper than {MAX_DEPTH}")]
        if not found.plain:
            return [Problem("", "the value is not plain JSON data")]
        try:
            if self._validator.is_valid(value):
                return []
        except ComplexityError as error:
            return [Problem("", str(error))]
        except ValueError:  # a lone surrogate: the report says so
            pass
        return self._reporter.problems(value, limit)

    def cast(self, value: Any) -> Any:
        """The value cast to the schema, exactly as TypeBox 0.34's `Value.Cast` does it.

        Raises:
            CastError: where the real one throws too.
        """
        if survey(value).deep:
            raise CastError(f"the value is nested deeper than {MAX_DEPTH}")
        return self._caster.cast(value)

    def fit(self, value: Any, *, strip: bool = True) -> Fitted:
        """The value with defaults filled and, if `strip`, undeclared properties removed. Never raises.

        A value that needs nothing of this comes back as the same object.
        """
        return self._fitter.fit(value, strip=strip) if self._is_safe(value) else Fitted(value, ())

    def checker(self) -> Callable[[Any], bool]:
        """`is_valid` without its guard, for values that are known to be plain and not deep.

        The check raises `ComplexityError`, a ValueError, for a value that would take too long.
        """
        return self._validator.is_valid

    def conformity(self, *, strip: bool) -> Callable[[Any], bool]:
        """A fast test of plain data: True means that `fit` would find nothing to do and nothing to report.

        Raises:
            SchemaError: as `compile`.
        """
        return self.compile()._fitter.conformity(strip=strip)

    def _is_safe(self, value: Any) -> bool:
        """Whether a value can be looked at."""
        if not self._needs_survey:
            return True
        found = survey(value)
        return found.plain and not found.deep

    @property
    def _needs_survey(self) -> bool:
        """Whether values have to be plain and not deep: a meter reads nothing else, and jsonschema-rs crashes on depth.

        Only a recursive schema leads it into any depth. Most are not, and a survey costs more than the check itself.
        """
        return self._may_recurse or isinstance(self._validator, MeteredValidator)

    @cached_property
    def _may_recurse(self) -> bool:
        return may_recurse(self._lowered)

    @cached_property
    def _lowered(self) -> JSONSchema:
        return lower(self.json, self.dialect)

    @cached_property
    def _validator(self) -> Validator:
        lowered = self._lowered
        schema = lowered
        if self.dialect != "openapi-3.0" and isinstance(self.json, dict):
            schema = {**self.json, "$schema": META_SCHEMAS[self.dialect]}
        return compile_bounded(schema, Costs(lowered), lambda: plain_document(Shapes(lowered), lowered))

    @cached_property
    def _reporter(self) -> Reporter:
        return Reporter(self._lowered, self._validator)

    @cached_property
    def _caster(self) -> Caster:
        return Caster(self._lowered)

    @cached_property
    def _fitter(self) -> Fitter:
        return Fitter(self._lowered)


UNKNOWN = Schema(True)
"""No schema: any value fits, and nothing is done to it."""
