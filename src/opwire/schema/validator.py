"""JSON Schema to a checker: jsonschema-rs, closed to the network, the file system and slow patterns.

jsonschema-rs passes the official test-suite of every draft. What is added here is safety: references are never
fetched, a pattern that backtracks without end counts as not matching, no value can take long to check, and a schema
that cannot be compiled is a `SchemaError` that says where.
"""

from collections.abc import Callable
from typing import Any, Protocol

import jsonschema_rs

from opwire.errors import SchemaError
from opwire.schema.cost import Costs, Meter
from opwire.schema.memo import memoised
from opwire.schema.refs import JSONSchema, quoted_refs

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
