"""What the nodes that apply to one value say about its members: which stay, and which schemas each has to meet."""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from opwire.schema.checks import PartChecks
from opwire.schema.closed import allows_extras
from opwire.schema.refs import JSONSchema
from opwire.schema.shape import Node, many, named, names_properties, type_names


class Force(IntEnum):
    """How much a schema may do to a value; the greater one wins where two meet."""

    EVALUATE = 0  # a condition: what it names is known, nothing more
    CONVERT = 1  # one of several variants that match equally well: its defaults would be a guess
    FILL = 2


class Demand(NamedTuple):
    """A schema that a value has to meet."""

    schema: JSONSchema
    force: Force


class Applied(NamedTuple):
    """One node that applies to a value, and the unions through which it was reached."""

    node: Node
    force: Force
    unions: tuple[int, ...]


class Scope:
    """The nodes that apply to one value."""

    def __init__(
        self, checks: PartChecks, applied: list[Applied], *, unresolved: bool = False, loose: Iterable[int] = ()
    ) -> None:
        self._checks = checks
        self.applied = applied
        self._unresolved = unresolved
        self._loose = loose  # the unions of which a matching variant declares nothing
        self.declared = {name for each in applied for name in named(each.node, "properties")}
        self.required = {name for each in applied for name in many(each.node, "required")}
        self.prefix = max((len(many(each.node, "prefixItems")) for each in applied), default=0)
        self._items: dict[int, list[Demand]] = {}

    def keeps(self, names: Iterable[str], *, strip: bool) -> list[str]:
        """The names of the properties that stay."""
        if self._keeps_extras(strip):
            return list(names)
        return [name for name in names if self._declares(name)]

    def member(self, name: str) -> list[Demand]:
        """The schemas that a property has to meet."""
        found: dict[int, Demand] = {}
        for node, force, _ in self.applied:
            for schema in self._own(node, name):
                _add(found, schema, force)
        if found or any("additionalProperties" in each.node for each in self.applied):
            return list(found.values())
        return self._rest("unevaluatedProperties")

    def item(self, index: int) -> list[Demand]:
        """The schemas that an item of an array has to meet; the same list for all behind the longest tuple."""
        index = min(index, self.prefix)
        if index not in self._items:
            self._items[index] = self._item(index)
        return self._items[index]

    def wants_integer(self) -> bool:
        """Whether a whole number has to be written as an integer."""
        binding = [(each, type_names(each.node)) for each in self.applied if each.force > Force.EVALUATE]
        wanting = [each for each, names in binding if "integer" in names and "number" not in names]
        if any(not each.unions for each in wanting):
            return True
        return bool(wanting) and not any(each.unions and "number" in names for each, names in binding)

    def _item(self, index: int) -> list[Demand]:
        found: dict[int, Demand] = {}
        for node, force, _ in self.applied:
            prefix = many(node, "prefixItems")
            if index < len(prefix):
                _add(found, prefix[index], force)
            elif "items" in node:
                _add(found, node["items"], force)
        if found or any("contains" in each.node for each in self.applied):  # evaluates what it matches
            return list(found.values())
        return self._rest("unevaluatedItems")

    def _own(self, node: Node, name: str) -> Iterator[JSONSchema]:
        """What one node says about a property: by name, by pattern, else as one of the rest."""
        properties = named(node, "properties")
        known = name in properties
        if known:
            yield properties[name]
        for pattern, schema in named(node, "patternProperties").items():
            if self._checks.matches(pattern, name):
                known = True
                yield schema
        if not known and isinstance(node.get("additionalProperties"), dict):  # `true` knows nothing about it
            yield node["additionalProperties"]

    def _rest(self, keyword: str) -> list[Demand]:
        """What an `unevaluated…` keyword says. Of several, the inner ones leave nothing to the outer: none is sure."""
        saying = [each for each in self.applied if keyword in each.node]
        return [Demand(each.node[keyword], each.force) for each in saying] if len(saying) == 1 else []

    def _declares(self, name: str) -> bool:
        # What is required stays even if nobody declares it: without it the value could not be valid.
        if name in self.declared or name in self.required:
            return True
        patterns = (pattern for each in self.applied for pattern in named(each.node, "patternProperties"))
        return any(self._checks.matches(pattern, name) for pattern in patterns)

    def _keeps_extras(self, strip: bool) -> bool:
        if self._unresolved:
            return True
        nodes = [each.node for each in self.applied if each.force > Force.EVALUATE]
        if any(node.get("additionalProperties") is False for node in nodes):
            return False
        if any(allows_extras(each.node) for each in self.applied):
            return True
        if any(node.get("unevaluatedProperties") is False for node in nodes):
            return False
        return not strip or self._is_free_form()

    def _is_free_form(self) -> bool:
        """Whether no property is declared, or the value also matches a variant that declares none."""
        binding = [each for each in self.applied if each.force > Force.EVALUATE]
        naming = [each for each in binding if names_properties(each.node)]
        return not naming or any(all(union in each.unions for each in naming) for union in self._loose)


def _add(found: dict[int, Demand], schema: JSONSchema, force: Force) -> None:
    known = found.get(id(schema))
    found[id(schema)] = Demand(schema, force if known is None else max(force, known.force))
