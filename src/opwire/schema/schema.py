"""`Schema`: one JSON Schema, used to check, fit and cast values. Everything is compiled lazily."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from threading import RLock
from time import thread_time
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

from opwire.errors import CastError, SchemaError
from opwire.schema.dialect import (
    META_SCHEMAS,
    Dialect,
    JSONSchema,
    dialect_of,
    lazy_property,
    lower,
    may_recurse,
)
from opwire.schema.fit import Fitted, Fitter
from opwire.schema.meter import ComplexityError
from opwire.schema.report import Problem, Reporter
from opwire.schema.shape import is_without_whole_floats, patterns_in, plain_document, type_names
from opwire.schema.validator import (
    Checks,
    MemberValidator,
    MeteredValidator,
    Validator,
    compile_bounded,
)
from opwire.typed import json_schema_of
from opwire.typed.plain import MAX_DEPTH, as_dict, survey

if TYPE_CHECKING:
    from opwire.schema.cast import Caster


MAX_PROBLEMS = 100
_LARGE_SCHEMA_PARTS: Final = 1_000

# Estimated bytes of a compiled schema: 1.5 to 2 kB per part in GitHub's and Stripe's documents. In AWS's, a pattern
# with counts or Unicode classes takes 200 kB.
_PART_BYTES, _PATTERN_BYTES, _LARGE_PATTERN_BYTES = 2_000, 8_000, 200_000
_MIN_TRACKED_BYTES: Final = 100_000  # a smaller schema is not worth an entry


class _CompiledSchemas:
    """The compiled schemas of this process, oldest first. Beyond the limit, the oldest are released."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Schema], int]] = {}  # by identity, with its bytes
        self._total = 0
        self._lock = RLock()  # garbage collection may end a schema, and compile another, anywhere

    def add(self, schema: "Schema", size: int) -> None:
        """Account for something that was compiled for a schema, which makes it the newest."""
        if size < _MIN_TRACKED_BYTES:
            return
        released: list[Schema] = []
        with self._lock:
            owner, before = self._entries.pop(id(schema), (None, 0))
            if owner is not None and owner() is not schema:  # another one that had the same identity
                self._total, before = self._total - before, 0
            self._entries[id(schema)] = (weakref.ref(schema), before + size)
            self._total += size
            while self._total > schema.max_compiled and len(self._entries) > 1:
                owner, freed = self._entries.pop(next(iter(self._entries)))
                self._total -= freed
                if (oldest := owner()) is not None:
                    released.append(oldest)
        for released_schema in released:
            released_schema.release()


_compiled: Final = _CompiledSchemas()

_MIN_SHARED_DEFINITIONS: Final = 100  # a schema with fewer is compiled by itself
_MAX_GROUP_SIZE: Final = 64  # 0.23 s for 64 schemas of Stripe's, where one by itself takes 0.15 s
_MAX_GROUP_GROWTH: Final = 2  # times the definitions of the first member: its first use pays for all of them
_MAX_SEARCH_SECONDS: Final = 0.1  # CPU time: the definitions of a member may have to be read first


class SchemaFamily:
    """Schemas of one document. Their definitions are the same objects: the large ones are compiled in groups.

    Each of 251 output schemas of Stripe's document refers to the same 411 definitions, which take 10 MB compiled. A
    group is one schema with a property per member; a value is checked as that property.
    """

    def __init__(self) -> None:
        self._members: list[weakref.ref[Schema]] = []

    def add(self, schema: "Schema") -> None:
        """Add a schema; all its references are of the form "#/$defs/name"."""
        self._members.append(weakref.ref(schema))

    def beginning_with(self, schema: "Schema") -> "Iterator[Schema]":
        """Yield the members from one on, and then those before it."""
        members = [member for ref in self._members if (member := ref()) is not None]
        start = next(
            index for index, member in enumerate(members) if member is schema
        )  # `index` would compare their JSON
        yield from chain(members[start:], members[:start])


# Not float: NaN is invalid everywhere.
_SCALAR_TYPES: dict[str, type] = {"integer": int, "number": int, "string": str, "boolean": bool, "null": NoneType}
_WITHOUT_EFFECT = frozenset({"type", "title", "description", "default", "examples", "$schema"})


class Schema:
    """A JSON Schema.

    schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}})
    schema.is_valid({"n": 1})      # True
    schema.problems({"n": "one"})  # [Problem(path='/n', message='the value is not of type "integer"')]
    schema.fit({"n": 1, "x": 2})   # Fitted(value={'n': 1}, repairs=(Repair('stripped', '/x'),))

    Values are plain JSON data and are never changed; `cast` and `fit` return new ones.

    Raises:
        SchemaError: `json_schema` is neither a mapping nor a boolean. Its content is checked by `compile`.
    """

    max_compiled: ClassVar[int] = 512 * 1024 * 1024
    """Bytes that the compiled schemas of a process may take, as estimated; the oldest are compiled again when used."""

    checks_formats: bool = True
    """Whether `format` is checked, and not only an annotation."""

    _make: Callable[[], JSONSchema]  # of a deferred schema
    _size: int = 0  # parts, once it is compiled
    _holders: "set[weakref.WeakMethod[Callable[[], None]]] | None" = None
    _family: SchemaFamily | None = None
    _member: MemberValidator["Schema"] | None = None  # once it is in a group

    def __init__(self, json_schema: Mapping[str, Any] | bool, *, dialect: Dialect | None = None) -> None:
        foreign_schema = cast("Any", json_schema)  # a foreign document may hold anything here
        if not isinstance(foreign_schema, Mapping | bool):
            raise SchemaError(f"a JSON Schema is an object or a boolean, not {type(foreign_schema).__name__}")
        self.json = (
            foreign_schema if isinstance(foreign_schema, bool) else dict(cast("Mapping[str, Any]", foreign_schema))
        )
        self.dialect: Dialect = dialect or dialect_of(self.json)

    @classmethod
    def deferred(
        cls, make: Callable[[], JSONSchema], *, checks_formats: bool = True, family: SchemaFamily | None = None
    ) -> Self:
        """Return a 2020-12 schema and build its JSON lazily: most schemas of a large API are never used.

        `make` is called once, and must not raise. `family`: see `SchemaFamily`.
        """
        schema = cls.__new__(cls)
        schema.dialect = "2020-12"
        schema._make = make
        schema.checks_formats = checks_formats
        if family is not None:
            schema._family = family
            family.add(schema)
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

    @lazy_property
    def json(self) -> JSONSchema:
        """The schema as plain data."""
        return self._make()

    @lazy_property
    def lowered(self) -> JSONSchema:
        """The schema in 2020-12; shared, so copy it before a change.

        Raises:
            SchemaError: it is nested too deeply.
        """
        return lower(self.json, self.dialect)

    @property
    def lowered_object(self) -> dict[str, Any]:
        """The schema in 2020-12; {} if it is a boolean, or nested too deeply."""
        try:
            return as_dict(self.lowered)
        except SchemaError:
            return {}

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

    def release(self) -> None:
        """Drop what was compiled; it is compiled again when it is used."""
        for name in ("_validator", "_checks", "_fitter", "_reporter", "_caster"):
            self.__dict__.pop(name, None)
        holders, self._holders = self._holders, None
        for holder in tuple(holders or ()):
            if (forget := holder()) is not None:
                forget()

    def on_release(self, forget: Callable[[], None]) -> None:
        """Call a method, once, when what was compiled is dropped: its owner has to drop it as well."""
        holders = self._holders = self._holders or set()
        holders.add(weakref.WeakMethod(forget, holders.discard))  # an owner that is gone is not kept

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

    def problems(self, value: Any, *, limit: int = MAX_PROBLEMS, is_plain: bool = False) -> list[Problem]:
        """Return the ways in which a value is invalid, up to a limit; messages never echo the value.

        Of a large value, or one with many nested unions, these are the first that a bounded search finds. `is_plain`
        skips the survey of a value that is known to be plain and not deep: 0.2 µs per array or object.

        Raises:
            SchemaError: the schema itself is invalid.
        """
        if not is_plain:
            if not self._needs_survey and self.is_valid(value):
                return []
            value_survey = survey(value)
            if value_survey.deep:
                return [Problem("", f"the value is nested deeper than {MAX_DEPTH}")]
            if not value_survey.plain:
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

    def fit(self, value: Any, *, strip: bool = True, is_plain: bool = False) -> Fitted:
        """Return the value with defaults filled and, if `strip`, undeclared properties removed. Never raises.

        A value that needs no change is returned as the same object. `is_plain` is as in `problems`.
        """
        return self._fitter.fit(value, strip=strip) if is_plain or self._is_safe(value) else Fitted(value, ())

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
        validator = self._validator
        compiled = self if self._member is None else self._member.group
        if strip or self._size < _LARGE_SCHEMA_PARTS or compiled._checks.shapes.has_defaults:
            return self._fitter.conformity(strip=strip)

        # Only a whole float could change, to an integer. The closed form of a schema with many overlapping unions is
        # compiled for such a value alone: it takes 42 MB and 0.7 s for one of Stripe's, four times the schema itself.
        def conforms(value: Any) -> bool:
            if not validator.is_valid(value):
                return False
            return is_without_whole_floats(value) or self._fitter.conformity(strip=False)(value)

        return conforms

    def _is_safe(self, value: Any) -> bool:
        """Return whether a value can be passed to jsonschema-rs."""
        if not self._needs_survey:
            return True
        value_survey = survey(value)
        return value_survey.plain and not value_survey.deep

    @lazy_property
    def _needs_survey(self) -> bool:
        """Whether values have to be plain and not deep: a meter reads nothing else, and jsonschema-rs crashes on depth.

        Only a recursive schema leads it into any depth. Most are not, and a survey costs more than the check itself.
        """
        return may_recurse(self.lowered) or isinstance(self._validator, MeteredValidator | MemberValidator)

    @lazy_property
    def _validator(self) -> Validator:
        if self._family is not None and self._member is None and len(self._definitions) >= _MIN_SHARED_DEFINITIONS:
            self._form_group(self._family)
        if self._member is not None:
            try:
                self._size = self._member.group.compile()._size
                return self._member
            except SchemaError:  # one of the members is invalid, maybe not this one
                self._family = self._member = None
        shapes = self._checks.shapes
        schema = shapes.root
        if self.dialect != "openapi-3.0" and isinstance(self.json, dict):
            schema = {**self.json, "$schema": META_SCHEMAS[self.dialect]}
        costs = shapes.costs()
        self._size = costs.size
        if not costs.is_free:
            shapes.metered = costs
        validator = compile_bounded(
            schema, costs, lambda: plain_document(shapes, shapes.root)[0], formats=self.checks_formats
        )
        self._account(schema, costs.size)
        return validator

    @property
    def _definitions(self) -> dict[str, Any]:
        return as_dict(as_dict(self.json).get("$defs"))

    def _form_group(self, family: SchemaFamily) -> None:
        """Group this schema with the next ones of its family that refer, for the most part, to the same definitions."""
        roots: dict[str, JSONSchema] = {}
        definitions = dict(self._definitions)
        first_size = len(definitions)
        group = Schema.deferred(lambda: {"properties": roots, "$defs": definitions}, checks_formats=self.checks_formats)
        until = thread_time() + _MAX_SEARCH_SECONDS
        for member in family.beginning_with(self):
            if len(roots) == _MAX_GROUP_SIZE or (roots and thread_time() > until):
                return
            if member._family is None or member._member is not None or member.checks_formats is not self.checks_formats:
                continue
            member_definitions = member._definitions
            common = member_definitions.keys() & definitions.keys()
            is_other = any(member_definitions[name] is not definitions[name] for name in common)
            group_size = len(definitions) + len(member_definitions) - len(common)
            if (
                len(member_definitions) < _MIN_SHARED_DEFINITIONS
                or 2 * len(common) < len(member_definitions)
                or is_other
                or group_size > _MAX_GROUP_GROWTH * first_size
            ):
                continue
            definitions.update(member_definitions)
            name = str(len(roots))
            roots[name] = {keyword: value for keyword, value in as_dict(member.json).items() if keyword != "$defs"}
            member._member = MemberValidator(name, group, lambda: group._validator)

    @lazy_property
    def _checks(self) -> Checks:
        checks = Checks(self.lowered, formats=self.checks_formats, compiled=self._account)
        if self._member is not None and not (costs := checks.shapes.costs()).is_free:
            checks.shapes.metered = costs
        return checks

    def _account(self, document: JSONSchema, parts: int) -> None:
        patterns = list(patterns_in(document))
        large = sum("{" in pattern or "\\p" in pattern for pattern in patterns)
        size = parts * _PART_BYTES + len(patterns) * _PATTERN_BYTES + large * _LARGE_PATTERN_BYTES
        _compiled.add(self, size)

    @lazy_property
    def _reporter(self) -> Reporter:
        return Reporter(self._checks, self._validator)

    @lazy_property
    def _caster(self) -> "Caster":
        from opwire.schema.cast import Caster  # 1,000 lines that few programs need

        return Caster(self.lowered)

    @lazy_property
    def _fitter(self) -> Fitter:
        return Fitter(self._checks)


UNKNOWN = Schema(True)
"""The schema of any value."""
