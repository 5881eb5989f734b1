"""The kinds of TypeBox 0.34 that hold other values: objects, records, tuples and arrays.

The rules at the top of `cast_kinds` hold here too.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from opwire.errors import CastError
from opwire.schema.cast_check import MISSING, code_units, fingerprint, is_container, matches, member, own_names
from opwire.schema.cast_kinds import Bounds, Kind, Literal, Run


class Object(Kind):
    """`additional` is the kind of undeclared properties: False for none of them, True for any."""

    def __init__(self, properties: dict[str, Kind], required: Iterable[str], size: Bounds) -> None:
        self.properties = properties
        self.required = frozenset(required) & properties.keys()
        self.size = size
        self.additional: Kind | bool = True
        self.patterns: list[tuple[str, Kind]] = []  # never in TypeBox, where patterns make a Record

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, dict):
            return False
        fields = cast("dict[str, Any]", value)
        run.look(len(fields))
        if not self.size.admit(len(fields)):
            return False
        for key, kind in self.properties.items():
            item = fields.get(key, MISSING)
            if key in self.required:
                if not kind.check(item, run) or (key not in fields and _must_be_present(kind)):
                    return False
            elif item is not MISSING and not kind.check(item, run):
                return False
        return self._extras_fit(fields, run)

    def _extras_fit(self, fields: dict[str, Any], run: Run) -> bool:
        if not self.patterns:
            if self.additional is True:
                return True
            # TypeBox counts the keys where that seems to be enough; a required key may be absent even so.
            if self.additional is False and len(self.required) == len(self.properties) == len(fields):
                return True
        for name, item in fields.items():
            if name in self.properties:
                continue
            kind = self._extra(name)
            if kind is False or (isinstance(kind, Kind) and not kind.check(item, run)):
                return False
        return True

    def _extra(self, name: str) -> Kind | bool:
        for pattern, kind in self.patterns:
            if matches(pattern, None, name):
                return kind
        return self.additional

    def make(self, run: Run) -> Any:
        return {key: kind.create(run) for key, kind in self.properties.items() if key in self.required}

    def repair(self, value: Any, run: Run) -> Any:
        if not is_container(value):
            return self.create(run)
        result: dict[str, Any] = {}
        for key, kind in self.properties.items():
            item = member(value, key)
            if item is not MISSING or key in self.required:
                result[key] = kind.cast(item, run)
        if self.patterns or isinstance(self.additional, Kind):
            for name in own_names(value):
                kind = True if name in self.properties else self._extra(name)
                if isinstance(kind, Kind):
                    result[name] = kind.cast(member(value, name), run)
        return result

    def score(self, value: Any, run: Run) -> int:
        if not is_container(value):
            return super().score(value, run)
        total = 0
        for key, kind in self.properties.items():
            item = member(value, key)
            fits = kind.check(item, run)
            total += 100 * (fits and isinstance(kind, Literal)) + 10 * fits + (item is not MISSING)
        return total

    def key_patterns(self) -> list[str]:
        return list(self.properties)


def _must_be_present(kind: Kind) -> bool:
    return kind.is_unknown or kind.extends_undefined()


class Record(Kind):
    def __init__(self, pattern: str, values: Kind, size: Bounds) -> None:
        self.pattern = pattern
        self.values = values
        self.size = size
        self.additional: Kind | bool = True

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, dict):
            return False
        fields = cast("dict[str, Any]", value)
        run.look(len(fields))
        if not self.size.admit(len(fields)):
            return False
        for name, item in fields.items():
            kind = self.values if matches(self.pattern, None, name) else self.additional
            if kind is False or (isinstance(kind, Kind) and not kind.check(item, run)):
                return False
        return True

    def make(self, run: Run) -> Any:
        return {}

    def repair(self, value: Any, run: Run) -> Any:
        if not isinstance(value, dict):
            return self.create(run)
        # Every key, whether it matches or not.
        return {name: self.values.cast(item, run) for name, item in cast("dict[str, Any]", value).items()}

    def key_patterns(self) -> list[str]:
        closed = self.pattern.startswith("^") and self.pattern.endswith("$")
        return [self.pattern[1:-1] if closed else self.pattern]


class Tuple(Kind):
    """`rest` and bounds other than the number of items are never in TypeBox; they count for the check alone."""

    def __init__(self, items: Sequence[Kind], rest: Kind, size: Bounds) -> None:
        self.items = items
        self.rest = rest
        self.size = size

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, list):
            return False
        given = cast("list[Any]", value)
        run.look(len(given))
        if not self.size.admit(len(given)):
            return False
        for index, item in enumerate(given):
            kind = self.items[index] if index < len(self.items) else self.rest
            if not kind.check(item, run):
                return False
        return True

    def make(self, run: Run) -> Any:
        return [item.create(run) for item in self.items]

    def repair(self, value: Any, run: Run) -> Any:
        if not isinstance(value, list):
            return self.create(run)
        given = cast("list[Any]", value)
        missing: list[Any] = [MISSING] * (len(self.items) - len(given))
        return [kind.cast(item, run) for kind, item in zip(self.items, [*given, *missing], strict=False)]

    def key_patterns(self) -> list[str]:
        return [str(index) for index in range(len(self.items))]


class Array(Kind):
    def __init__(self, items: Kind, size: Bounds) -> None:
        self.items = items
        self.size = size
        self.unique = False
        self.contains: Kind | None = None
        self.matching = Bounds()  # of `contains`; even a lower bound of 0 asks for one

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, list):
            return False
        given = cast("list[Any]", value)
        run.look(len(given))
        if not self.size.admit(len(given)):
            return False
        for item in given:
            if not self.items.check(item, run):
                return False
        if self.unique and len(set(map(fingerprint, given))) < len(given):
            return False
        if self.contains is None:  # then a bound of its own, `minContains`, can never be met
            return self.matching.low is None and self.matching.high is None
        found = sum(self.contains.check(item, run) for item in given)
        return found > 0 and self.matching.admit(found)

    def make(self, run: Run) -> Any:
        if self.unique or self.contains is not None:
            raise CastError("an array with `uniqueItems` or `contains` needs a default")
        return [self.items.create(run) for _ in range(int(self.size.low or 0))]

    def repair(self, value: Any, run: Run) -> Any:
        created = cast("list[Any]", value) if isinstance(value, list) else self.create(run)
        sized = self._fit_size(created, run)
        result = [self.items.cast(item, run) for item in sized]
        if not self.unique:
            return result
        distinct = _without_repeats(result)
        if not self.check(distinct, run):
            raise CastError("the items of an array with `uniqueItems` cannot be made unique")
        return distinct

    def _fit_size(self, created: Any, run: Run) -> list[Any]:
        low, high = self.size.low, self.size.high
        # A default may be anything. JavaScript spreads a string, but only where there is something to pad.
        if isinstance(created, str) and low is not None and len(code_units(created)) < low:
            lacking = int(low) - len(code_units(created))
        elif isinstance(created, list):
            lacking = max(0, int(low or 0) - len(cast("list[Any]", created)))
        else:
            raise CastError("the default of an array is no array")
        run.spend(lacking)
        padded: list[Any] = [*created, *[None] * lacking]
        return padded if high is None else padded[: max(0, int(high))]

    def key_patterns(self) -> list[str]:
        return ["[number]"]


def _without_repeats(items: list[Any]) -> list[Any]:
    """`[...new Set(items)]`: objects and arrays are equal to themselves alone."""
    seen: set[Any] = set()
    kept: list[Any] = []
    for item in items:
        key = id(item) if is_container(item) else (isinstance(item, bool), item)
        if is_container(item) or key not in seen:
            seen.add(key)
            kept.append(item)
    return kept
