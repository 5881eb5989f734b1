"""Rewrite a schema whose definitions multiply, so that jsonschema-rs caches their verdicts. No I/O.

jsonschema-rs caches what a definition said about an object or array, but only for references that it compiles while the
definition is open, that is, while it is still compiling it: in a recursive schema these are the references that lead
back. Any other reference is evaluated again, and definitions that each name the next one twice are evaluated twice as
often at every level of a value.

So each definition that multiplies is opened inside the one before it: beside its content, and compiled before that, is
a condition that always holds and mentions the next definition. The contents are then compiled from the last definition
to the first, each while all definitions before its own are open. A reference to a later one would find it closed, so
there are two rows of the same definitions, the second in reverse and behind the first: what is later in one row is
earlier in the other. Only references from the first row to the second are evaluated again, and no two of them follow
each other.

jsonschema-rs documents none of this. So opwire requires exactly one release of it, for which
`tests/schema/test_jsonschema_rs.py` and `tests/schema/test_memo.py` show that it holds.
"""

from itertools import pairwise
from typing import Any, Final

from opwire.errors import SchemaError
from opwire.schema.cost import FREE_UNITS, SchemaCosts
from opwire.schema.dialect import JSONSchema, map_subschemas

_MAX_DEFINITIONS: Final = 2_000
_FIRST_ROW, _SECOND_ROW = "-first", "-second"
_REFERENCE_PREFIX = "#/$defs/"


def memoised(document: JSONSchema, costs: SchemaCosts) -> JSONSchema:
    """Return an equivalent schema with cached verdicts. Every reference has to be of the form "#/$defs/name".

    Raises:
        SchemaError: too many definitions multiply, `unevaluated…` is among them, or one applies its own negation to
            the same value.
    """
    if not isinstance(document, dict):
        return document
    if costs.multiplies_unevaluated:  # it evaluates branches by itself, and those verdicts are not cached
        raise SchemaError("its definitions multiply, which cannot be bounded beside `unevaluated…`")
    if costs.has_negated_cycle:  # a cached verdict would depend on where the cycle was entered
        raise SchemaError("its definitions multiply, and apply their own negation to one and the same value")
    contents: dict[str, Any] = document.get("$defs", {})
    multiplying = [
        name
        for name, content in contents.items()
        if (part := costs.part(content)) is not None and part.descendant_cost > FREE_UNITS
    ]
    if len(multiplying) > _MAX_DEFINITIONS:
        raise SchemaError(f"more than {_MAX_DEFINITIONS} of its definitions multiply")
    if not multiplying:
        return document
    rows = _Rows(multiplying)
    definitions: dict[str, Any] = {name: content for name, content in contents.items() if name not in rows.positions}
    for name, row in rows.order:
        key = f"{name}{row}"
        definitions[key] = {"allOf": [rows.opening(name, row), {"$ref": f"{_REFERENCE_PREFIX}{key}-content"}]}
        definitions[f"{key}-content"] = rows.redirected(contents[name], rows.positions[name])
    body = {keyword: value for keyword, value in document.items() if keyword != "$defs"}
    return {"allOf": [rows.opening("", ""), rows.redirected(body, -1)], "$defs": definitions}


class _Rows:
    """The two rows of definitions that multiply."""

    def __init__(self, names: list[str]) -> None:
        self.positions = {name: position for position, name in enumerate(names)}
        self.order = [*((name, _FIRST_ROW) for name in names), *((name, _SECOND_ROW) for name in reversed(names))]
        self._next = dict(pairwise([("", ""), *self.order]))

    def opening(self, name: str, row: str) -> JSONSchema:
        """Return a condition that always holds and mentions the next definition.

        It is a `not`, since `unevaluatedProperties` looks into anything else that applies to the same value.
        """
        next_definition = self._next.get((name, row))
        if next_definition is None:
            return True
        return {"not": {"allOf": [False, {"$ref": f"{_REFERENCE_PREFIX}{''.join(next_definition)}"}]}}

    def redirected(self, schema: JSONSchema, position: int) -> JSONSchema:
        """Return a copy for one position: references up to it lead to the first row, later ones to the second."""
        if not isinstance(schema, dict):
            return schema
        copy = map_subschemas(schema, lambda subschema: self.redirected(subschema, position))
        name = str(copy.get("$ref", "")).removeprefix(_REFERENCE_PREFIX)
        if name in self.positions:
            row = _FIRST_ROW if self.positions[name] <= position else _SECOND_ROW
            copy["$ref"] = f"{_REFERENCE_PREFIX}{name}{row}"
        return copy
