"""JSON Schema to a checker: jsonschema-rs, closed to the network, the file system and slow patterns.

jsonschema-rs passes the official test-suite of every draft. What is added here is safety: references are never
fetched, a pattern that backtracks without end counts as not matching, no value can take long to check, and a schema
that cannot be compiled is a `SchemaError` that says where.

A schema rewritten so that jsonschema-rs remembers verdicts. No I/O.

jsonschema-rs remembers what a definition said about an object or array, but only for references that it compiles while
the definition is open, that is, while it is still compiling it: in a recursive schema these are the references that
lead back. Any other reference asks again, and definitions that each name the next one twice ask twice as often at
every level of a value.

So each definition that multiplies is opened inside the one before it: beside its content, and compiled before that,
stands a condition that always holds and that mentions the next definition. The contents are then compiled from the
last definition to the first, each while all definitions before its own are open. A reference to a later one would
find it closed, so there are two rows of the same definitions, the second in reverse and behind the first: what is
later in one row is earlier in the other. Only references from the first row to the second are asked again, and no
two of them follow each other.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Protocol

import jsonschema_rs

from opwire.errors import SchemaError
from opwire.schema.cost import FREE, Costs, Meter
from opwire.schema.dialect import JSONSchema, map_subschemas, quoted_refs

_MAX_DEFINITIONS: Final = 2_000
_FIRST, _SECOND = "-first", "-second"


def memoised(document: JSONSchema, costs: Costs) -> JSONSchema:
    """The same schema, of which verdicts are remembered. Every reference has to be of the form "#/$defs/name".

    Raises:
        SchemaError: too many definitions multiply, `unevaluated…` stands among them, or one applies its own
            negation to the same value.
    """
    if not isinstance(document, dict):
        return document
    if costs.marks:  # it asks the branches of a definition by itself, and nothing remembers what they said
        raise SchemaError("its definitions multiply, which cannot be bounded beside `unevaluated…`")
    if costs.negated_loops:  # what is remembered on the way round depends on where it began
        raise SchemaError("its definitions multiply, and apply their own negation to one and the same value")
    contents: dict[str, Any] = document.get("$defs", {})
    names = [name for name, each in contents.items() if (part := costs.part(each)) is not None and part.below > FREE]
    if len(names) > _MAX_DEFINITIONS:
        raise SchemaError(f"more than {_MAX_DEFINITIONS} of its definitions multiply")
    if not names:
        return document
    rows = _Rows(names)
    definitions: dict[str, Any] = {name: each for name, each in contents.items() if name not in rows.places}
    for row, name in rows.order:
        key = f"{name}{row}"
        definitions[key] = {"allOf": [rows.opening(row, name), {"$ref": _pointer(f"{key}-content")}]}
        definitions[f"{key}-content"] = rows.moved(contents[name], rows.places[name])
    body = {keyword: value for keyword, value in document.items() if keyword != "$defs"}
    return {"allOf": [rows.opening("", ""), rows.moved(body, -1)], "$defs": definitions}


class _Rows:
    """The definitions that multiply, twice."""

    def __init__(self, names: list[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}
        self.order = [*((_FIRST, name) for name in names), *((_SECOND, name) for name in reversed(names))]
        self._following = dict(pairwise([("", ""), *self.order]))

    def opening(self, row: str, name: str) -> JSONSchema:
        """A condition that always holds, and mentions the definition that follows.

        It is a `not`, since `unevaluatedProperties` looks into whatever else applies to the same value.
        """
        following = self._following.get((row, name))
        return (
            True if following is None else {"not": {"allOf": [False, {"$ref": _pointer("".join(reversed(following)))}]}}
        )

    def moved(self, schema: JSONSchema, place: int) -> JSONSchema:
        """A copy for one place: references to it and to those before lead to the first row, others to the second."""
        if not isinstance(schema, dict):
            return schema
        copy = map_subschemas(schema, lambda each: self.moved(each, place))
        name = str(copy.get("$ref", "")).removeprefix("#/$defs/")
        if name in self.places:
            copy["$ref"] = _pointer(f"{name}{_FIRST if self.places[name] <= place else _SECOND}")
        return copy


def _pointer(name: str) -> str:
    return f"#/$defs/{name}"


# Lookarounds and back-references need the backtracking engine; 10,000 steps end a hostile pattern within a
# millisecond (measured: `^(?=(a+)+$)` on 40,000 characters).
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000)


class Validator(Protocol):
    """The part of a jsonschema-rs validator that opwire uses."""

    def is_valid(self, instance: Any, /) -> bool: ...
    def iter_errors(self, instance: Any, /) -> Any: ...


def compile_validator(schema: JSONSchema) -> Validator:
    """Compile a schema of any draft (2020-12 unless its `$schema` says otherwise).

    Raises:
        SchemaError: it is not a valid schema, or a reference leads out of it.
    """
    try:
        return jsonschema_rs.validator_for(
            schema,
            validate_formats=True,
            ignore_unknown_formats=True,
            offline=True,
            pattern_options=_PATTERNS,
            mask="the value",  # messages name the place, never the value: it may be huge, or a secret
        )
    except jsonschema_rs.ValidationError as error:
        quoted = quoted_refs(schema)
        if quoted != schema:
            return compile_validator(quoted)
        where = "/".join(str(step) for step in error.instance_path)
        raise SchemaError(f"not a valid JSON Schema{f' at {where}' if where else ''}: {error.message}") from None
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError) as error:
        raise SchemaError(f"not a valid JSON Schema: {error}") from None


class MeteredValidator:
    """A validator of a schema whose values may be expensive to check: each is metered first."""

    def __init__(self, validator: Validator, meter: Meter) -> None:
        self._validator = validator
        self._meter = meter

    def is_valid(self, instance: Any, /) -> bool:
        """Whether a value fits.

        Raises:
            ComplexityError: checking it would take too long.
        """
        self._meter.check(instance)
        return self._validator.is_valid(instance)

    def iter_errors(self, instance: Any, /) -> Any:
        return self._validator.iter_errors(instance)


def compile_bounded(schema: JSONSchema, costs: Costs, portable: Callable[[], JSONSchema] | None = None) -> Validator:
    """Compile a schema so that checking a value takes bounded time.

    `costs` are those of the schema, or of the same one in 2020-12. If verdicts have to be remembered, every reference
    has to be of the form "#/$defs/name": `portable` gives such a document, unless the schema is one.

    Raises:
        SchemaError: it is not a valid schema, or a reference leads out of it.
    """
    if costs.is_free:
        return compile_validator(schema)
    if costs.multiplies:
        document = schema if portable is None else portable()
        schema = memoised(document, costs if portable is None else Costs(document))
    return MeteredValidator(compile_validator(schema), Meter(costs))
