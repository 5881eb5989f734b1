"""Unions: which member a value is meant for."""

from collections.abc import Iterable
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, cast

from opwire.typed.nodes import PLAIN_TYPES, Misfit, Node, Refs, Schema, expected, kind_of, listed
from opwire.typed.objects import Object

_NUMBERS = frozenset({int, float})


class Discriminator(NamedTuple):
    """A property whose values say which member is meant."""

    name: str
    members: dict[Any, Node]
    required: bool  # by all members


class Union(Node):
    """Several types. A discriminator decides where there is one, else the members are tried in order.

    Of several objects that fit, the one that keeps most of the value's properties is meant.
    """

    def __init__(self, hint: Any, members: list[Node]) -> None:
        self.hint, self.members = hint, members
        self.name = " | ".join(each.name for each in members)
        self.kinds = frozenset[str]().union(*(each.kinds for each in members))
        self.identity = frozenset(each for each in PLAIN_TYPES if self._keeps(each))
        tagged = _tagged(members)
        self.native = _told_apart([each for each in members if each not in tagged[1:]])

    def _keeps(self, type_: type) -> bool:
        """Whether values of a plain type stay what they are, whichever member takes them."""
        if type_ in _NUMBERS:
            return any(type_ in each.identity for each in self.members)
        takers = self._takers(type_())
        return bool(takers) and all(type_ in each.identity for each in takers)

    def _takers(self, value: Any) -> list[Node]:
        """The members that may take a value, in order; 5 prefers an int and 5.0 a float wherever they stand."""
        kind = kind_of(value)
        takers = [each for each in self.members if kind in each.kinds]
        if type(value) in _NUMBERS:
            takers.sort(key=lambda each: type(value) not in each.identity)
        return takers

    def parts(self) -> Iterable[Node]:
        return self.members

    def native_parts(self) -> Iterable[Node]:
        # Inside a union msgspec insists on the tag, so it does not matter that it does not elsewhere.
        tagged = _tagged(self.members)
        others = [each for each in self.members if each not in tagged]
        return [*others, *(part for each in tagged for part in each.parts())]

    @cached_property
    def discriminator(self) -> Discriminator | None:
        """The property that tells the objects of this union apart, if there is one."""
        objects = [each for each in self.members if "object" in each.kinds]
        constants = [each.constants() for each in objects]
        for name in constants[0] if len(objects) > 1 else ():
            found = [(node, each[name]) for node, each in zip(objects, constants, strict=True) if name in each]
            pairs = [(value, node) for node, constant in found for value in constant.values]
            if len(found) == len(objects) and len(dict(pairs)) == len(pairs):
                return Discriminator(name, dict(pairs), all(constant.required for _, constant in found))
        return None

    def schema(self, refs: Refs) -> Schema:
        members = [refs.of(each) for each in self.members]
        schema: Schema = {"anyOf": [each for index, each in enumerate(members) if each not in members[:index]]}
        if self.discriminator is not None and self.discriminator.required:
            bodies = {str(value): refs.of(node) for value, node in self.discriminator.members.items()}
            mapping = {value: body["$ref"] for value, body in bodies.items() if "$ref" in body}
            schema["discriminator"] = {"propertyName": self.discriminator.name, "mapping": mapping}
        return schema

    def convert(self, value: Any) -> Any:
        if isinstance(value, dict):
            meant = self._meant(cast("dict[str, Any]", value))
            if meant is not None:
                return meant.run(value)
        takers = self._takers(value)
        if not takers:
            raise expected(self.name, value)
        if len(takers) == 1:
            return takers[0].run(value)
        return self._best(takers, value)

    def _meant(self, value: dict[str, Any]) -> Node | None:
        """The member that the discriminator says, if there is one and it says something."""
        if self.discriminator is None:
            return None
        name, members, required = self.discriminator
        if name not in value:
            if required:
                raise Misfit(f"the property {name!r} is missing")
            return None
        try:
            return members[value[name]]
        except (KeyError, TypeError):
            raise Misfit(f"is not one of {listed(members)}").under(name) from None

    def _best(self, takers: list[Node], value: Any) -> Any:
        fits: list[tuple[int, Any]] = []
        misfits: list[str] = []
        for member in takers:
            try:
                converted = member.run(value)
            except Misfit as misfit:
                misfits.append(f"{member.name}: {misfit.path} {misfit.reason}")
                continue
            if not isinstance(value, dict):
                return converted
            fits.append((member.known(cast("dict[str, Any]", value)), converted))
        if not fits:
            raise Misfit(f"fits none of {self.name} ({'; '.join(misfits)})")
        return max(fits, key=lambda fit: fit[0])[1]


def _tagged(members: list[Node]) -> list[Object]:
    """Structs that msgspec tells apart by their tags; none unless there are several."""
    found = [each for each in members if isinstance(each, Object) and each.plan.tag is not None and each.plan.native]
    return found if len(found) > 1 and len({each.kinds for each in found}) == 1 else []


def _told_apart(members: list[Node]) -> bool:
    """Whether the JSON type alone decides, so that msgspec has no other order of preference than ours."""
    for one, other in combinations(members, 2):
        numbers = {one.identity, other.identity} == {frozenset({int}), frozenset({float})}
        if not one.kinds.isdisjoint(other.kinds) and not numbers:
            return False
    return True
