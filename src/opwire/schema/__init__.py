"""JSON Schema: check, fit and cast values, and build schemas from Python types."""

from opwire.errors import CastError
from opwire.schema.dialect import Dialect, JSONSchema
from opwire.schema.fit import Fitted, Repair
from opwire.schema.schema import UNKNOWN, Problem, Schema

__all__ = ["UNKNOWN", "CastError", "Dialect", "Fitted", "JSONSchema", "Problem", "Repair", "Schema"]
