"""JSON Schema: check, fit and cast values, and build schemas from Python types."""

from opwire.errors import CastError
from opwire.schema.dialect import Dialect, JSONSchema
from opwire.schema.fit import Change, Fitted
from opwire.schema.schema import UNKNOWN, Problem, Schema

__all__ = ["UNKNOWN", "CastError", "Change", "Dialect", "Fitted", "JSONSchema", "Problem", "Schema"]
