"""How often a schema looks at one and the same value. No I/O.

`allOf`, `anyOf`, a reference and their like apply a schema where they stand. Definitions that each name the one below
twice are small to write, and double the work at every level: forty of them never end. jsonschema-rs does not remember
what it has seen, so such a schema is refused before it is compiled.
"""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from opwire.errors import SchemaError
from opwire.schema.refs import JSONSchema, References

MAX_COST = 100_000
"""Schemas that one value may be held against. GitHub's, Stripe's and Kubernetes' have 117 at most."""

_MANY = ("allOf", "anyOf", "oneOf")
_ONE = ("if", "then", "else", "not")
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")


def check_cost(root: JSONSchema) -> None:
    """Let a schema pass whose work is bounded by its size, or by that of the value.

    Raises:
        SchemaError: it multiplies itself.
    """
    references = References(root)
    costs: dict[int, int] = {}  # by the identity of a schema
    applied: dict[int, list[JSONSchema]] = {}
    waiting: list[Any] = [root]
    while waiting:
        node = waiting[-1]
        key = id(node)
        if key in costs or not isinstance(node, dict):
            waiting.pop()
        elif key not in applied:  # those inside first
            schema = cast("dict[str, Any]", node)
            applied[key] = here = list(_applied_here(schema, references))
            waiting += (each for each in (*here, *_others(schema)) if id(each) not in applied)
        else:
            costs[key] = 1 + sum(costs.get(id(each), 0) for each in applied[key])  # one that leads back counts once
            if costs[key] > MAX_COST:
                raise SchemaError("its definitions multiply: one value would be held against them without end")
            waiting.pop()


def _applied_here(schema: dict[str, Any], references: References) -> Iterator[JSONSchema]:
    """The schemas that apply to the same value."""
    for keyword in _MANY:
        branches = schema.get(keyword)
        if isinstance(branches, list):
            yield from cast("list[JSONSchema]", branches)
    for keyword in _ONE:
        if keyword in schema:
            yield schema[keyword]
    for keyword in _REFS:
        ref = schema.get(keyword)
        if isinstance(ref, str):
            try:
                yield references.resolve(ref)
            except SchemaError:  # that is for the compiler to say
                pass
    depending = schema.get("dependentSchemas")
    if isinstance(depending, dict):
        yield from cast("dict[str, JSONSchema]", depending).values()


def _others(schema: dict[str, Any]) -> Iterable[Any]:
    """Whatever else may hold schemas: those of properties and items, and definitions."""
    for value in schema.values():
        if isinstance(value, dict):
            yield cast("Any", value)
        elif isinstance(value, list):
            yield from cast("list[Any]", value)
