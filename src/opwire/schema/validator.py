"""JSON Schema to a checker: jsonschema-rs, closed to the network, the file system and slow patterns.

jsonschema-rs passes the official test-suite of every draft. What is added here is safety: references are never
fetched, a pattern that backtracks without end counts as not matching, and a schema that cannot be compiled is
a `SchemaError` that says where.
"""

from typing import Any, Protocol

import jsonschema_rs

from opwire.errors import SchemaError
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
