"""Nodes with parts: classes with fields, unions, arrays, tuples and maps."""

from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, cast, get_origin

from opwire.typed.fields import NOTHING, ClassSpec, FieldSpec
from opwire.typed.nodes import (
    PLAIN_TYPES,
    Constant,
    Misfit,
    Node,
    Refs,
    SchemaDict,
    array_items,
    documentation,
    expected,
    kind_of,
    listed,
    object_items,
    scalar_key,
)


class ObjectNode(Node):
    """A class with values that are objects in JSON."""

    fields: list[tuple[FieldSpec, Node]]

    def __init__(self, hint: Any, name: str, spec: ClassSpec) -> None:
        self.hint, self.name, self.owner, self.spec = hint, name, get_origin(hint) or hint, spec
        self.kinds = frozenset({"array" if spec.positional else "object"})
        # msgspec accepts a tagged Struct without its tag, except inside a union.
        self.native = spec.native and spec.tag is None
        self._passes = not issubclass(self.owner, dict)

    def fill(self, parse: Callable[[FieldSpec], Node]) -> None:
        """Parse the hints of the fields; separate from the constructor, since they may refer to this node."""
        self.fields = [(field, parse(field)) for field in self.spec.fields]
        self._names = {field.name for field in self.spec.fields}
        if self.spec.tag is not None:
            self._names.add(self.spec.tag[0])

    def parts(self) -> Iterable[Node]:
        return [node for _, node in self.fields]

    def constants(self) -> dict[str, Constant]:
        constants = {self.spec.tag[0]: Constant([self.spec.tag[1]], required=True)} if self.spec.tag else {}
        for field, node in self.fields:
            if options := node.options():
                constants[field.name] = Constant(options, field.required)
        return constants

    def schema(self, refs: Refs) -> SchemaDict:
        tag = self.spec.tag
        properties = {tag[0]: {"const": tag[1]}} if tag else {}
        properties |= {field.name: _field_schema(field, refs.of(node)) for field, node in self.fields}
        required = ([tag[0]] if tag else []) + [field.name for field, _ in self.fields if field.required]
        return {
            **documentation(self.owner, self.name),
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            **({"additionalProperties": False} if self.spec.closed else {}),
        }

    def convert(self, value: Any) -> Any:
        if self._passes and isinstance(value, self.owner):
            return value
        members = object_items(value)
        if self.spec.tag is not None:
            self._check_tag(*self.spec.tag, members)
        arguments: dict[str, Any] = {}
        for field, node in self.fields:
            if field.name in members:
                try:
                    converted = node.run(members[field.name])
                except Misfit as misfit:
                    misfit.under(field.name)
                    raise
                if field.is_argument:
                    arguments[field.key] = converted
            elif field.required:
                raise Misfit(f"the property {field.name!r} is missing")
        unknown = next((name for name in members if name not in self._names), None) if self.spec.closed else None
        if unknown is not None:
            raise Misfit("is not a property of this object").under(str(unknown))
        return self._build(arguments)

    def _check_tag(self, name: str, tag: str | int, value: dict[str, Any]) -> None:
        if name not in value:
            raise Misfit(f"the property {name!r} is missing")
        if type(value[name]) is not type(tag) or value[name] != tag:
            raise Misfit(f"is not {tag!r}").under(name)

    def _build(self, arguments: dict[str, Any]) -> Any:
        """Return the instance; errors of its constructor or `__post_init__` are misfits too."""
        try:
            return self.spec.build(**arguments)
        except (TypeError, ValueError) as error:
            raise Misfit(f"is not a {self.name}: {error}") from error

    def known(self, value: dict[str, Any]) -> int:
        return sum(field.name in value for field, _ in self.fields)


class RowNode(ObjectNode):
    """A class with values that are arrays in JSON: NamedTuple, or a Struct with `array_like`."""

    def schema(self, refs: Refs) -> SchemaDict:
        tag = self.spec.tag
        items = ([{"const": tag[1]}] if tag else []) + [
            _field_schema(field, refs.of(node)) for field, node in self.fields
        ]
        return {
            **documentation(self.owner, self.name),
            "type": "array",
            "prefixItems": items,
            "minItems": self._min_items,
            **({"maxItems": len(items)} if self.spec.closed else {}),
        }

    def fill(self, parse: Callable[[FieldSpec], Node]) -> None:
        super().fill(parse)
        needed = [index for index, (field, _) in enumerate(self.fields, 1) if field.required]
        self._min_items = (needed[-1] if needed else 0) + (self.spec.tag is not None)

    def convert(self, value: Any) -> Any:
        if isinstance(value, self.owner):
            return value
        values = array_items(value)
        offset = int(self.spec.tag is not None)
        max_items = len(self.fields) + offset
        if len(values) < self._min_items or (self.spec.closed and len(values) > max_items):
            raise Misfit(f"expected {self._min_items} to {max_items} items, got {len(values)}")
        if self.spec.tag is not None and values[0] != self.spec.tag[1]:
            raise Misfit(f"is not {self.spec.tag[1]!r}").under(0)
        arguments: dict[str, Any] = {}
        for index, ((field, node), item) in enumerate(zip(self.fields, values[offset:], strict=False), offset):
            try:
                arguments[field.key] = node.run(item)
            except Misfit as misfit:
                misfit.under(index)
                raise
        return self._build(arguments)


def _field_schema(field: FieldSpec, schema: SchemaDict) -> SchemaDict:
    default = {} if field.default is NOTHING else {"default": field.default}
    return {**schema, **default, **({} if field.is_argument else {"readOnly": True})}


_NUMBER_TYPES = frozenset({int, float})


class Discriminator(NamedTuple):
    """A property with values that select the member of a union."""

    name: str
    members: dict[Any, Node]
    required: bool  # by all members


class UnionNode(Node):
    """Several types. A discriminator decides if there is one, else the members are tried in order.

    Of several valid objects, the one that keeps most of the value's properties is returned.
    """

    def __init__(self, hint: Any, members: list[Node]) -> None:
        self.hint, self.members = hint, members
        self.name = " | ".join(member.name for member in members)
        self.kinds = frozenset[str]().union(*(member.kinds for member in members))
        # Plain types with values that each accepting member returns unchanged.
        identity: set[type] = set()
        for plain_type in PLAIN_TYPES:
            unchanged = [plain_type in member.identity for member in self._candidates(plain_type())]
            if any(unchanged) if plain_type in _NUMBER_TYPES else unchanged and all(unchanged):
                identity.add(plain_type)
        self.identity = frozenset(identity)
        tagged = _tagged(members)
        # Native if the JSON type alone decides, so that msgspec cannot prefer another member.
        self.native = all(
            member.kinds.isdisjoint(other_member.kinds)
            or {member.identity, other_member.identity} == {frozenset({int}), frozenset({float})}
            for member, other_member in combinations([member for member in members if member not in tagged[1:]], 2)
        )

    def _candidates(self, value: Any) -> list[Node]:
        """Return the members that may accept a value, in order; 5 prefers an int and 5.0 a float at any position."""
        kind = kind_of(value)
        candidates = [member for member in self.members if kind in member.kinds]
        if type(value) in _NUMBER_TYPES:
            candidates.sort(key=lambda member: type(value) not in member.identity)
        return candidates

    def parts(self) -> Iterable[Node]:
        return self.members

    def native_parts(self) -> Iterable[Node]:
        # Inside a union msgspec requires the tag, so it does not matter that it is optional elsewhere.
        tagged = _tagged(self.members)
        untagged = [member for member in self.members if member not in tagged]
        return [*untagged, *(part for member in tagged for part in member.parts())]

    @cached_property
    def discriminator(self) -> Discriminator | None:
        """The property that selects between the objects of this union, or None."""
        objects = [member for member in self.members if "object" in member.kinds]
        constants = [member.constants() for member in objects]
        for name in constants[0] if len(objects) > 1 else ():
            if not all(name in by_name for by_name in constants):
                continue
            pairs = [
                (value, node)
                for node, by_name in zip(objects, constants, strict=True)
                for value in by_name[name].values
            ]
            if len(dict(pairs)) == len(pairs):
                return Discriminator(name, dict(pairs), all(by_name[name].required for by_name in constants))
        return None

    def schema(self, refs: Refs) -> SchemaDict:
        schemas = [refs.of(member) for member in self.members]
        distinct = [schema for index, schema in enumerate(schemas) if schema not in schemas[:index]]
        schema: SchemaDict = {"anyOf": distinct}
        if self.discriminator is not None and self.discriminator.required:
            bodies = {str(value): refs.of(node) for value, node in self.discriminator.members.items()}
            mapping = {value: body["$ref"] for value, body in bodies.items() if "$ref" in body}
            schema["discriminator"] = {"propertyName": self.discriminator.name, "mapping": mapping}
        return schema

    def convert(self, value: Any) -> Any:
        if isinstance(value, dict):
            selected = self._selected(cast("dict[str, Any]", value))
            if selected is not None:
                return selected.run(value)
        candidates = self._candidates(value)
        if not candidates:
            raise expected(self.name, value)
        if len(candidates) == 1:
            return candidates[0].run(value)
        fits: list[tuple[int, Any]] = []
        misfits: list[str] = []
        for member in candidates:
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

    def _selected(self, value: dict[str, Any]) -> Node | None:
        """Return the member that the discriminator selects, or None if it is missing."""
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


def _tagged(members: list[Node]) -> list[ObjectNode]:
    """Return the Structs that msgspec selects by their tags; an empty list unless there are several."""
    objects = [member for member in members if isinstance(member, ObjectNode)]
    tagged = [node for node in objects if node.spec.tag is not None and node.spec.native]
    return tagged if len(tagged) > 1 and len({node.kinds for node in tagged}) == 1 else []


class ArrayNode(Node):
    """list, Sequence, variadic tuple, set, deque: one item type, collected by `build`."""

    name = "array"
    kinds = frozenset({"array"})

    def __init__(self, hint: Any, item: Node, build: Callable[[list[Any]], Any], *, unique: bool = False) -> None:
        self.hint, self._item, self._build, self._unique = hint, item, build, unique
        # msgspec accepts repeated values for a set, which the schema rejects, and any iterable for an Iterable.
        self.native = build in (list, tuple) and (get_origin(hint) or hint) is not Iterable
        if build is list and item.whole:
            self.identity = frozenset({list})

    def parts(self) -> Iterable[Node]:
        return (self._item,)

    def schema(self, refs: Refs) -> SchemaDict:
        items = refs.of(self._item)
        unique = {"uniqueItems": True} if self._unique else {}
        return {"type": "array", **({"items": items} if items else {}), **unique}

    def convert(self, value: Any) -> Any:
        values = array_items(value)
        run = self._item.run
        items: list[Any] = []
        try:
            for item in values:
                items.append(run(item))  # noqa: PERF401 -- on failure its length is the index
        except Misfit as misfit:
            misfit.under(len(items))
            raise
        try:
            built = self._build(items)
        except TypeError as error:
            raise Misfit(f"cannot be a set: {error}") from error
        if self._unique and len(built) < len(values) and len(set(map(_key, values))) < len(values):
            raise Misfit("has the same item twice")
        return built


def _key(value: Any) -> Hashable:
    """Return a key that is equal for values equal in JSON Schema: 1 is 1.0 but not true."""
    if isinstance(value, dict):
        return ("object", frozenset((name, _key(member)) for name, member in cast("SchemaDict", value).items()))
    if isinstance(value, list | tuple):
        return ("array", *map(_key, cast("list[Any]", value)))
    return scalar_key(value)


class TupleNode(Node):
    """tuple[int, str]: one item per type."""

    name = "array"
    kinds = frozenset({"array"})
    native = True

    def __init__(self, hint: Any, items: list[Node]) -> None:
        self.hint, self._items = hint, items

    def parts(self) -> Iterable[Node]:
        return self._items

    def schema(self, refs: Refs) -> SchemaDict:
        count = len(self._items)
        items = {"prefixItems": [refs.of(item) for item in self._items]} if count else {}
        return {"type": "array", **items, "minItems": count, "maxItems": count}

    def convert(self, value: Any) -> Any:
        values = array_items(value)
        if len(values) != len(self._items):
            raise Misfit(f"expected {len(self._items)} items, got {len(values)}")
        items: list[Any] = []
        try:
            for item, item_value in zip(self._items, values, strict=True):
                items.append(item.run(item_value))
        except Misfit as misfit:
            misfit.under(len(items))
            raise
        return tuple(items)


class MapNode(Node):
    """dict and Mapping. JSON has only text for keys: `key` parses it."""

    name = "object"
    kinds = frozenset({"object"})

    def __init__(self, hint: Any, key: Node, item: Node, build: Callable[[dict[Any, Any]], Any] | None) -> None:
        self.hint, self._key, self._item, self._build = hint, key, item, build
        self.native = build is None
        if build is None and key.whole and item.whole:
            self.identity = frozenset({dict})

    def parts(self) -> Iterable[Node]:
        return (self._key, self._item)

    def schema(self, refs: Refs) -> SchemaDict:
        names = refs.of(self._key)
        return {
            "type": "object",
            **({"propertyNames": names} if names != {"type": "string"} else {}),
            "additionalProperties": refs.of(self._item) or True,
        }

    def convert(self, value: Any) -> Any:
        convert_key, run = self._key.run, self._item.run
        converted: dict[Any, Any] = {}
        for name, item in object_items(value).items():
            try:
                converted[convert_key(name)] = run(item)
            except Misfit as misfit:
                misfit.under(str(name))
                raise
        return converted if self._build is None else self._build(converted)

    def known(self, value: dict[str, Any]) -> int:
        return len(value)
