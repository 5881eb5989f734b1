"""The condition under which an operation need not send its result again.

A cache that holds a result puts the headers that validate it (RFC 9110, section 13) into the context of the call; an
operation of an HTTP API sends them, and its result may be a 304 without data. A condition names its operation, because
nested calls inherit the metadata of a context.
"""

from msgspec import Struct
from msgspec.structs import replace

from opwire.model.context import Context

_METADATA_KEY = "opwire.condition"

Headers = tuple[tuple[str, str], ...]


class _Condition(Struct, frozen=True):
    operation_id: str
    headers: Headers


def with_condition(context: Context, operation_id: str, headers: Headers) -> Context:
    """Return a context under which an operation sends these conditional headers."""
    return replace(context, metadata={**context.metadata, _METADATA_KEY: _Condition(operation_id, headers)})


def condition_headers(context: Context, operation_id: str) -> Headers:
    """Return the conditional headers that an operation sends; empty without a condition."""
    condition = context.metadata.get(_METADATA_KEY)
    if isinstance(condition, _Condition) and condition.operation_id == operation_id:
        return condition.headers
    return ()
