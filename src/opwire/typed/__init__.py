"""Python types and plain data: JSON Schema from type hints, typed values from plain data, plain data from values."""

from opwire.typed.convert import convert, converter, identity_kinds, json_schema_of
from opwire.typed.fields import yield_type_of

__all__ = ["convert", "converter", "identity_kinds", "json_schema_of", "yield_type_of"]
