"""Arrays, fixed tuples and maps."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast, get_origin

from opwire.typed.nodes import Misfit, Node, Refs, Schema, array_items, object_items, scalar_key


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
