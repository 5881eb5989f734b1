"""A schema rewritten so that jsonschema-rs remembers verdicts. No I/O.

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

from itertools import pairwise
from typing import Any, Final

from opwire.errors import SchemaError
from opwire.schema.cost import FREE, Costs
from opwire.schema.dialect import map_subschemas
from opwire.schema.refs import JSONSchema

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
