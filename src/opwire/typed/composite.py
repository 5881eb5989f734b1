"""Classes with fields: their values are objects in JSON, or arrays for those that go by position.

Unions: which member a value is meant for.

Arrays, fixed tuples and maps.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, cast, get_origin

from opwire.typed.fields import NOTHING, Field, Plan
from opwire.typed.nodes import (
    PLAIN_TYPES,
    Constant,
    Misfit,
    Node,
    Refs,
    Schema,
    array_items,
    documentation,
    expected,
    kind_of,
    listed,
    object_items,
    scalar_key,
)


class Object(Node):
    """A class whose values are objects in JSON."""

    fields: list[tuple[Field, Node]]

    def __init__(self, hint: Any, name: str, plan: Plan) -> None:
        self.hint, self.name, self.owner, self.plan = hint, name, get_origin(hint) or hint, plan
        self.kinds = frozenset({"array" if plan.positional else "object"})
        # msgspec takes a tagged Struct without its tag, except inside a union.
        self.native = plan.native and plan.tag is None
        self._passes = not issubclass(self.owner, dict)

    def fill(self, walk: Callable[[Field], Node]) -> None:
        """Walk the hints of the fields; apart from the constructor, since they may refer to this node."""
        self.fields = [(each, walk(each)) for each in self.plan.fields]

    def parts(self) -> Iterable[Node]:
        return [node for _, node in self.fields]

    def constants(self) -> dict[str, Constant]:
        found = {self.plan.tag[0]: Constant([self.plan.tag[1]], required=True)} if self.plan.tag else {}
        for field, node in self.fields:
            if options := node.options():
                found[field.name] = Constant(options, field.required)
        return found

    def schema(self, refs: Refs) -> Schema:
        tag = self.plan.tag
        properties = {tag[0]: {"const": tag[1]}} if tag else {}
        properties |= {field.name: _field_schema(field, refs.of(node)) for field, node in self.fields}
        required = ([tag[0]] if tag else []) + [field.name for field, _ in self.fields if field.required]
        return {
            **documentation(self.owner, self.name),
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            **({"additionalProperties": False} if self.plan.closed else {}),
        }

    def convert(self, value: Any) -> Any:
        if self._passes and isinstance(value, self.owner):
            return value
        given = object_items(value)
        self._check_tag(given)
        arguments: dict[str, Any] = {}
        for field, node in self.fields:
            if field.name in given:
                try:
                    converted = node.run(given[field.name])
                except Misfit as misfit:
                    misfit.under(field.name)
                    raise
                if field.given:
                    arguments[field.key] = converted
            elif field.required:
                raise Misfit(f"the property {field.name!r} is missing")
        if self.plan.closed:
            self._refuse_unknown(given)
        return _build(self, arguments)

    def _check_tag(self, value: dict[str, Any]) -> None:
        if self.plan.tag is None:
            return
        name, wanted = self.plan.tag
        if name not in value:
            raise Misfit(f"the property {name!r} is missing")
        if type(value[name]) is not type(wanted) or value[name] != wanted:
            raise Misfit(f"is not {wanted!r}").under(name)

    def _refuse_unknown(self, value: dict[str, Any]) -> None:
        names = {field.name for field, _ in self.fields}
        if self.plan.tag:
            names.add(self.plan.tag[0])
        for name in value:
            if name not in names:
                raise Misfit("is not a property of this object").under(str(name))

    def known(self, value: dict[str, Any]) -> int:
        return sum(field.name in value for field, _ in self.fields)


class Row(Object):
    """A class whose values are arrays in JSON: NamedTuple, or a Struct with `array_like`."""

    def schema(self, refs: Refs) -> Schema:
        tag = self.plan.tag
        items = ([{"const": tag[1]}] if tag else []) + [
            _field_schema(field, refs.of(node)) for field, node in self.fields
        ]
        return {
            **documentation(self.owner, self.name),
            "type": "array",
            "prefixItems": items,
            "minItems": self._shortest,
            **({"maxItems": len(items)} if self.plan.closed else {}),
        }

    @property
    def _shortest(self) -> int:
        needed = [index for index, (field, _) in enumerate(self.fields, 1) if field.required]
        return (needed[-1] if needed else 0) + (self.plan.tag is not None)

    def convert(self, value: Any) -> Any:
        if isinstance(value, self.owner):
            return value
        given = array_items(value)
        offset = int(self.plan.tag is not None)
        self._check_shape(given, len(self.fields) + offset)
        arguments: dict[str, Any] = {}
        for index, ((field, node), each) in enumerate(zip(self.fields, given[offset:], strict=False), offset):
            try:
                arguments[field.key] = node.run(each)
            except Misfit as misfit:
                misfit.under(index)
                raise
        return _build(self, arguments)

    def _check_shape(self, value: Any, longest: int) -> None:
        if len(value) < self._shortest or (self.plan.closed and len(value) > longest):
            raise Misfit(f"expected {self._shortest} to {longest} items, got {len(value)}")
        if self.plan.tag is not None and value[0] != self.plan.tag[1]:
            raise Misfit(f"is not {self.plan.tag[1]!r}").under(0)


def _field_schema(field: Field, schema: Schema) -> Schema:
    default = {} if field.default is NOTHING else {"default": field.default}
    return {**schema, **default, **({} if field.given else {"readOnly": True})}


def _build(node: Object, arguments: dict[str, Any]) -> Any:
    """The instance; what its constructor or `__post_init__` objects to is a misfit too."""
    try:
        return node.plan.build(**arguments)
    except (TypeError, ValueError) as error:
        raise Misfit(f"is not a {node.name}: {error}") from error


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


class Array(Node):
    """list, Sequence, variadic tuple, set, deque: one item type, gathered by `build`."""

    name = "array"
    kinds = frozenset({"array"})

    def __init__(self, hint: Any, item: Node, build: Callable[[list[Any]], Any], *, unique: bool = False) -> None:
        self.hint, self._item, self._build, self._unique = hint, item, build, unique
        # msgspec takes repeated values for a set, which the schema forbids, and anything iterable for an Iterable.
        self.native = build in (list, tuple) and (get_origin(hint) or hint) is not Iterable
        if build is list and item.whole:
            self.identity = frozenset({list})

    def parts(self) -> Iterable[Node]:
        return (self._item,)

    def schema(self, refs: Refs) -> Schema:
        items = refs.of(self._item)
        unique = {"uniqueItems": True} if self._unique else {}
        return {"type": "array", **({"items": items} if items else {}), **unique}

    def convert(self, value: Any) -> Any:
        given = array_items(value)
        run = self._item.run
        found: list[Any] = []
        try:
            for each in given:
                found.append(run(each))  # noqa: PERF401 -- on failure its length is the index
        except Misfit as misfit:
            misfit.under(len(found))
            raise
        try:
            built = self._build(found)
        except TypeError as error:
            raise Misfit(f"cannot be a set: {error}") from error
        if self._unique and len(built) < len(given) and _repeats(given):
            raise Misfit("has the same item twice")
        return built


def _repeats(items: Iterable[Any]) -> bool:
    """Whether two items are equal as JSON Schema sees it: 1 is 1.0 but not true."""
    keys = [_key(each) for each in items]
    return len(set(keys)) < len(keys)


def _key(value: Any) -> Hashable:
    if isinstance(value, dict):
        return ("object", frozenset((name, _key(each)) for name, each in cast("Schema", value).items()))
    if isinstance(value, list | tuple):
        return ("array", *map(_key, cast("list[Any]", value)))
    return scalar_key(value)


class FixedTuple(Node):
    """tuple[int, str]: as many items as types."""

    name = "array"
    kinds = frozenset({"array"})
    native = True

    def __init__(self, hint: Any, items: list[Node]) -> None:
        self.hint, self._items = hint, items

    def parts(self) -> Iterable[Node]:
        return self._items

    def schema(self, refs: Refs) -> Schema:
        count = len(self._items)
        items = {"prefixItems": [refs.of(each) for each in self._items]} if count else {}
        return {"type": "array", **items, "minItems": count, "maxItems": count}

    def convert(self, value: Any) -> Any:
        given = array_items(value)
        if len(given) != len(self._items):
            raise Misfit(f"expected {len(self._items)} items, got {len(given)}")
        found: list[Any] = []
        try:
            for item, each in zip(self._items, given, strict=True):
                found.append(item.run(each))
        except Misfit as misfit:
            misfit.under(len(found))
            raise
        return tuple(found)


class Map(Node):
    """dict and Mapping. JSON has only text for keys: `key` reads it."""

    name = "object"
    kinds = frozenset({"object"})

    def __init__(self, hint: Any, key: Node, item: Node, build: Callable[[dict[Any, Any]], Any] | None) -> None:
        self.hint, self._key, self._item, self._build = hint, key, item, build
        self.native = build is None
        if build is None and key.whole and item.whole:
            self.identity = frozenset({dict})

    def parts(self) -> Iterable[Node]:
        return (self._key, self._item)

    def schema(self, refs: Refs) -> Schema:
        names = refs.of(self._key)
        return {
            "type": "object",
            **({"propertyNames": names} if names != {"type": "string"} else {}),
            "additionalProperties": refs.of(self._item) or True,
        }

    def convert(self, value: Any) -> Any:
        read, run = self._key.run, self._item.run
        found: dict[Any, Any] = {}
        for name, each in object_items(value).items():
            try:
                found[read(name)] = run(each)
            except Misfit as misfit:
                misfit.under(str(name))
                raise
        return found if self._build is None else self._build(found)

    def known(self, value: dict[str, Any]) -> int:
        return len(value)
