"""Python types and plain data, both ways: hints to JSON Schema, plain data to typed values, values to plain data."""

from opwire.typed.convert import convert, converter, identity_kinds, json_schema_of
from opwire.typed.fields import yield_type_of

__all__ = ["convert", "converter", "identity_kinds", "json_schema_of", "yield_type_of"]
