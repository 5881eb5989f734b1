"""`Schema`: one JSON Schema, used to check, fit and cast values. Everything is compiled lazily."""

from collections.abc import Callable, Mapping
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, cast

from opwire.errors import CastError, SchemaError
from opwire.schema.cost import ComplexityError, Costs
from opwire.schema.dialect import META_SCHEMAS, Dialect, JSONSchema, dialect_of, lower, may_recurse
from opwire.schema.fit import Fitted, Fitter
from opwire.schema.report import Problem, Reporter
from opwire.schema.shape import Shapes, plain_document, type_names
from opwire.schema.validator import MeteredValidator, Validator, compile_bounded
from opwire.typed import json_schema_of
from opwire.typed.plain import MAX_DEPTH, survey

if TYPE_CHECKING:
    from opwire.schema.cast import Caster

MAX_PROBLEMS = 100

# Not float: NaN is invalid everywhere.
_SCALAR_TYPES: dict[str, type] = {"integer": int, "number": int, "string": str, "boolean": bool, "null": NoneType}
_WITHOUT_EFFECT = frozenset({"type", "title", "description", "default", "examples", "$schema"})


class Schema:
    """A JSON Schema.

    schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}})
    schema.is_valid({"n": 1})      # True
    schema.problems({"n": "one"})  # [Problem(path='/n', message='the value is not of type "integer"')]
    schema.fit({"n": 1, "x": 2})   # Fitted(value={'n': 1}, changes=(Change('stripped', '/x'),))

    Values are plain JSON data and are never changed; `cast` and `fit` return new ones.

    Raises:
        SchemaError: `json_schema` is neither a mapping nor a boolean. Its content is checked by `compile`.
    """

    _make: Callable[[], JSONSchema]  # of a deferred schema

    def __init__(self, json_schema: Mapping[str, Any] | bool, *, dialect: Dialect | None = None) -> None:
        given = cast("Any", json_schema)  # a foreign document may hold anything here
        if not isinstance(given, Mapping | bool):
            raise SchemaError(f"a JSON Schema is an object or a boolean, not {type(given).__name__}")
        self.json = given if isinstance(given, bool) else dict(cast("Mapping[str, Any]", given))
        self.dialect: Dialect = dialect or dialect_of(self.json)

    @classmethod
    def deferred(cls, make: Callable[[], JSONSchema]) -> Self:
        """Return a 2020-12 schema and build its JSON lazily: most schemas of a large API are never used.

        `make` is called once, and must not raise.
        """
        schema = cls.__new__(cls)
        schema.dialect = "2020-12"
        schema._make = make
        return schema

    @classmethod
    def from_type(cls, hint: Any, *, where: str = "") -> Self:
        """Return the schema of a Python type. `where` names it in errors: "parameter 'when' of plan_trip".

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

    @cached_property
    def json(self) -> JSONSchema:
        """The schema as plain data."""
        return self._make()

    @cached_property
    def lowered(self) -> JSONSchema:
        """The schema in 2020-12; shared, so copy it before a change.

        Raises:
            SchemaError: it is nested too deeply.
        """
        return lower(self.json, self.dialect)

    @property
    def is_deferred(self) -> bool:
        """Whether its JSON has not been built yet."""
        return "json" not in self.__dict__

    @property
    def is_unknown(self) -> bool:
        """Whether it allows every value."""
        return self.json is True or self.json == {}

    def fitting_kinds(self) -> frozenset[type]:
        """Return the scalar types of which every value is valid, as far as `type` alone tells."""
        if not isinstance(self.json, dict) or not _WITHOUT_EFFECT.issuperset(self.json):
            return frozenset()
        return frozenset(_SCALAR_TYPES[name] for name in type_names(self.json) if name in _SCALAR_TYPES)

    def compile(self) -> Self:
        """Compile now, to find out whether the schema is valid.

        Raises:
            SchemaError: it is not a valid schema, or the target of a reference is missing.
        """
        _ = self._validator
        return self

    def is_valid(self, value: Any) -> bool:
        """Return whether a value, which has to be plain JSON data, is valid.

        A deep value is invalid if the schema is recursive, and so is one that is too complex to be checked in bounded
        time; `problems` then tells.

        Raises:
            SchemaError: the schema itself is invalid; never because of a value.
        """
        validator = self._validator
        try:
            return self._is_safe(value) and validator.is_valid(value)
        except ValueError:  # not plain after all, or a lone surrogate
            return False

    def problems(self, value: Any, *, limit: int = MAX_PROBLEMS) -> list[Problem]:
        """Return the ways in which a value is invalid, up to a limit; messages never echo the value.

        Of a large value, or one with many nested unions, these are the first that a bounded search finds.

        Raises:
            SchemaError: the schema itself is invalid.
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
        except ValueError:  # a lone surrogate: reported below
            pass
        return self._reporter.problems(value, limit)

    def cast(self, value: Any) -> Any:
        """Return the value cast to the schema, exactly as TypeBox 0.34's `Value.Cast` does it.

        Raises:
            CastError: TypeBox throws too, or the value is nested too deeply.
        """
        if survey(value).deep:
            raise CastError(f"the value is nested deeper than {MAX_DEPTH}")
        return self._caster.cast(value)

    def fit(self, value: Any, *, strip: bool = True) -> Fitted:
        """Return the value with defaults filled and, if `strip`, undeclared properties removed. Never raises.

        A value that needs no change is returned as the same object.
        """
        return self._fitter.fit(value, strip=strip) if self._is_safe(value) else Fitted(value, ())

    def checker(self) -> Callable[[Any], bool]:
        """Return `is_valid` without its guard, for values that are known to be plain and not deep.

        The check raises `ComplexityError`, a ValueError, for a value that would take too long.
        """
        return self._validator.is_valid

    def conformity(self, *, strip: bool) -> Callable[[Any], bool]:
        """Return a fast test of plain data: True means that `fit` would leave it unchanged and it is valid.

        Raises:
            SchemaError: the schema itself is invalid.
        """
        return self.compile()._fitter.conformity(strip=strip)

    def _is_safe(self, value: Any) -> bool:
        """Return whether a value can be passed to jsonschema-rs."""
        if not self._needs_survey:
            return True
        found = survey(value)
        return found.plain and not found.deep

    @cached_property
    def _needs_survey(self) -> bool:
        """Whether values have to be plain and not deep: a meter reads nothing else, and jsonschema-rs crashes on depth.

        Only a recursive schema leads it into any depth. Most are not, and a survey costs more than the check itself.
        """
        return may_recurse(self.lowered) or isinstance(self._validator, MeteredValidator)

    @cached_property
    def _validator(self) -> Validator:
        lowered = self.lowered
        schema = lowered
        if self.dialect != "openapi-3.0" and isinstance(self.json, dict):
            schema = {**self.json, "$schema": META_SCHEMAS[self.dialect]}
        return compile_bounded(schema, Costs(lowered), lambda: plain_document(Shapes(lowered), lowered))

    @cached_property
    def _reporter(self) -> Reporter:
        return Reporter(self.lowered, self._validator)

    @cached_property
    def _caster(self) -> "Caster":
        from opwire.schema.cast import Caster  # 1,000 lines that few programs need

        return Caster(self.lowered)

    @cached_property
    def _fitter(self) -> Fitter:
        return Fitter(self.lowered)


UNKNOWN = Schema(True)
"""The schema of any value."""
