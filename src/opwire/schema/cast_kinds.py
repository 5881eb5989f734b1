"""The kinds of TypeBox 0.34 and their three primitives: check a value, create one from nothing, cast one.

Rules of this file. A kind never changes the value it is given. `cast` returns the very value that passes `check`; only
what fails is rebuilt. `MISSING` is passed through all three like a value: it is the missing property. A `Run` bounds
the work of one cast, so that no schema can make it hang.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, cast

from opwire.errors import CastError
from opwire.schema import cast_javascript as js
from opwire.schema.cast_javascript import MISSING

# Values created in one cast. A schema can ask for 10 ** 9 items in one line, or for 2 ** 40 objects in forty.
MAX_CREATED = 250_000


class Bounds:
    """A lower and an upper bound, both optional, from two keywords."""

    def __init__(self, schema: Mapping[str, Any], low: str, high: str) -> None:
        self.low, self.high = _number(schema, low), _number(schema, high)

    def allow(self, size: int) -> bool:
        return (self.low is None or size >= self.low) and (self.high is None or size <= self.high)


def _number(schema: Mapping[str, Any], keyword: str) -> float | None:
    value = schema.get(keyword)
    return value if js.is_number(value) else None


class Run:
    """The state of one cast: cached verdicts, what is being created, and how much may still be created."""

    def __init__(self, visits: float = inf) -> None:
        # The checked value is kept in the entry: while it lives, no other value can get its id.
        self.checked: dict[tuple[int, int], tuple[Any, bool]] = {}
        self.scored: dict[tuple[int, int], tuple[Any, int]] = {}
        self.creating: set[int] = set()
        self.absent = False  # whether MISSING may be in the result
        self._left = MAX_CREATED
        self._visits = visits

    def spend(self, amount: int) -> None:
        """Account for values that are about to be created."""
        self._left -= max(0, amount)
        if self._left < 0:
            raise CastError("the schema requires more values than a cast may create")

    def visit(self, container: Any, size: Bounds) -> bool:
        """Account for a check of an object or array, and return whether it has an allowed size.

        Nested ones are checked once per level around them.
        """
        members = len(container)
        self._visits -= 1 + members
        if self._visits < 0:
            raise CastError("the value is too large or too deeply nested for this schema")
        return size.allow(members)

    def clone(self, value: Any) -> Any:
        """Return a deep copy."""
        self.spend(1)
        if isinstance(value, dict):
            return {key: self.clone(item) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.clone(item) for item in cast("list[Any]", value)]
        return value


class Kind(ABC):
    """One schema, parsed."""

    is_unknown = False  # Any and Unknown: a required property of theirs must at least be present
    default: Any = MISSING

    @abstractmethod
    def check(self, value: Any, run: Run) -> bool:
        """Return whether a value passes, as TypeBox checks it."""

    def set_default(self, default: Any) -> None:
        self.default = default

    def create(self, run: Run) -> Any:
        """Return a value from nothing: the default, which is not checked, or what the kind makes."""
        run.spend(1)
        return self.make(run) if self.default is MISSING else run.clone(self.default)

    @abstractmethod
    def make(self, run: Run) -> Any:
        """Return a value from nothing, without a default."""

    def cast(self, value: Any, run: Run) -> Any:
        if not self.check(value, run):
            return self.repair(value, run)
        run.absent = run.absent or value is MISSING
        return value

    def repair(self, value: Any, run: Run) -> Any:
        """Cast a value that fails the check."""
        return self.create(run)

    def score(self, value: Any, run: Run) -> int:
        """Return how well a union's variant suits the value."""
        return 1 if self.check(value, run) else 0

    def deref(self) -> "Kind":
        return self

    def extends_undefined(self) -> bool:
        return False

    def key_patterns(self) -> list[str]:
        """Return the property names, as parts of a regular expression, that `unevaluatedProperties` allows."""
        return []


class Unknown(Kind):
    is_unknown = True

    def check(self, value: Any, run: Run) -> bool:
        return True

    def make(self, run: Run) -> Any:
        return {}


class Never(Kind):
    def check(self, value: Any, run: Run) -> bool:
        return False

    def make(self, run: Run) -> Any:
        raise CastError("a schema that no value satisfies needs a default")

    def repair(self, value: Any, run: Run) -> Any:
        raise CastError("no value satisfies this schema")


class Not(Kind):
    def __init__(self, negated: Kind) -> None:
        self.negated = negated

    def check(self, value: Any, run: Run) -> bool:
        return not self.negated.check(value, run)

    def make(self, run: Run) -> Any:
        raise CastError("a `not` schema needs a default")

    def extends_undefined(self) -> bool:
        return not self.negated.extends_undefined()


class Literal(Kind):
    def __init__(self, const: Any) -> None:
        self.const = const

    def check(self, value: Any, run: Run) -> bool:
        return value is not MISSING and js.is_same(value, self.const)

    def make(self, run: Run) -> Any:
        return run.clone(self.const)


class Null(Kind):
    def check(self, value: Any, run: Run) -> bool:
        return value is None

    def make(self, run: Run) -> Any:
        return None


class Boolean(Kind):
    def check(self, value: Any, run: Run) -> bool:
        return isinstance(value, bool)

    def make(self, run: Run) -> Any:
        return False


class Number(Kind):
    """Number and Integer. Only the lower bound is used to create one."""

    def __init__(self, schema: Mapping[str, Any], *, integer: bool = False) -> None:
        self.is_kind = js.is_integer if integer else js.is_number
        self.minimum, self.maximum = _number(schema, "minimum"), _number(schema, "maximum")
        # In draft-04 and OpenAPI 3.0 `exclusive…` is a flag on the bound.
        low, high = schema.get("exclusiveMinimum") is True, schema.get("exclusiveMaximum") is True
        self.above = self.minimum if low else _number(schema, "exclusiveMinimum")
        self.below = self.maximum if high else _number(schema, "exclusiveMaximum")
        self.multiple_of = _number(schema, "multipleOf")

    def check(self, value: Any, run: Run) -> bool:
        return (
            self.is_kind(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (self.multiple_of is None or js.is_multiple(value, self.multiple_of))
        )

    def make(self, run: Run) -> Any:
        return 0 if self.minimum is None else self.minimum


class String(Kind):
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.length = Bounds(schema, "minLength", "maxLength")
        pattern, format = schema.get("pattern"), schema.get("format")
        self.pattern = pattern if isinstance(pattern, str) else None
        self.format = format if isinstance(format, str) else None

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, str) or not self.length.allow(len(js.code_units(value))):
            return False
        return (self.pattern is None and self.format is None) or js.matches(self.pattern, self.format, value)

    def make(self, run: Run) -> Any:
        if self.pattern is not None or self.format is not None:
            raise CastError("a string with a pattern or a format needs a default")
        length = int(self.length.low or 0)
        run.spend(length)
        return " " * length


class Ref(Kind):
    """A reference, resolved lazily: schemas refer to themselves."""

    def __init__(self, follow: Callable[[], Kind], *, is_pointer: bool) -> None:
        self._follow, self._is_pointer = follow, is_pointer
        self._target: Kind | None = None
        self._keys: list[str] | None = None

    def deref(self) -> Kind:
        if self._target is None:
            self._target = self._follow()
        return self._target.deref()

    def check(self, value: Any, run: Run) -> bool:
        # Without this cache, unions of references can take time exponential in the depth of the value.
        target = self.deref()
        key = id(target), id(value)
        cached = run.checked.get(key)
        if cached is None:
            cached = run.checked[key] = (value, target.check(value, run))
        return cached[1]

    def make(self, run: Run) -> Any:
        # What `create` returns depends on the schema alone, so meeting the same one again would never end.
        target = self.deref()
        if id(target) in run.creating:
            raise CastError("a schema that requires itself without end needs a default")
        run.creating.add(id(target))
        try:
            return target.create(run)
        finally:
            run.creating.discard(id(target))

    def cast(self, value: Any, run: Run) -> Any:
        return self.deref().cast(value, run)

    def key_patterns(self) -> list[str]:
        # TypeBox does not look behind references by name. A pointer stands for what TypeBox writes in place.
        if self._keys is None:
            self._keys = self.deref().key_patterns() if self._is_pointer else []
        return self._keys


class Union(Kind):
    def __init__(self, variants: Sequence[Kind]) -> None:
        self.variants = variants

    def check(self, value: Any, run: Run) -> bool:
        for variant in self.variants:  # noqa: SIM110  (avoids a stack frame: values nest deeply)
            if variant.check(value, run):
                return True
        return False

    def make(self, run: Run) -> Any:
        return self._first().create(run)

    def repair(self, value: Any, run: Run) -> Any:
        if self.default is not MISSING:
            return run.clone(self.default)
        best_variant, best = self._first().deref(), 0
        for variant in self.variants:
            score = variant.deref().score(value, run)
            if score > best:
                best_variant, best = variant.deref(), score
        return best_variant.cast(value, run)

    def score(self, value: Any, run: Run) -> int:
        key = id(self), id(value)
        cached = run.scored.get(key)
        if cached is None:
            score = max((variant.deref().score(value, run) for variant in self.variants), default=0)
            cached = run.scored[key] = (value, score)
        return cached[1]

    def extends_undefined(self) -> bool:
        return any(variant.extends_undefined() for variant in self.variants)

    def key_patterns(self) -> list[str]:
        patterns = [set(variant.key_patterns()) for variant in self.variants]
        return sorted(patterns[0].intersection(*patterns[1:])) if patterns else []

    def _first(self) -> Kind:
        if not self.variants:
            raise CastError("a union without variants has no value")
        return self.variants[0]


class Intersect(Kind):
    """`unevaluated` is the kind of the keys that no part declares: False rejects them, True allows any."""

    def __init__(self, parts: Sequence[Kind], unevaluated: Kind | bool = True) -> None:
        self.parts, self.unevaluated = parts, unevaluated
        self._pattern: str | None = None  # of the keys that the parts declare

    def check(self, value: Any, run: Run) -> bool:
        fits = True
        for part in self.parts:  # not `all`, which would take a stack frame more
            fits = fits and part.check(value, run)
        if self.unevaluated is True:
            return fits
        if value is None or value is MISSING:  # even where a part rejects it already
            raise CastError("`unevaluatedProperties` cannot be checked on null")
        if self._pattern is None:
            self._pattern = "^({})$".format("|".join(f"({key})" for key in self.key_patterns()))
        for name in js.own_names(value):
            if js.matches(self._pattern, None, name):
                continue
            if isinstance(self.unevaluated, bool) or not self.unevaluated.check(js.member(value, name), run):
                return False
        return fits

    def make(self, run: Run) -> Any:
        merged: Any = {}
        for part in self.parts:
            made = part.create(run)
            merged = {**js.spread(merged), **js.spread(made)} if made is None or js.is_container(made) else made
        if not self.check(merged, run):
            raise CastError("the parts of an `allOf` contradict each other, it needs a default")
        return merged

    def repair(self, value: Any, run: Run) -> Any:
        correct = self.create(run)
        merged = _assign(correct, value)
        return merged if self.check(merged, run) else correct

    def extends_undefined(self) -> bool:
        return all(part.extends_undefined() for part in self.parts)

    def key_patterns(self) -> list[str]:
        return list(dict.fromkeys(key for part in self.parts for key in part.key_patterns()))


def _assign(correct: Any, value: Any) -> Any:
    """Return the keys of the created value, with the given values where both are containers or both are not."""
    if js.is_container(correct) != js.is_container(value):
        return correct
    if not js.is_container(correct):
        return value
    value_names = set(js.own_names(value))
    return {
        name: _assign(js.member(correct, name), js.member(value, name))
        if name in value_names
        else js.member(correct, name)
        for name in js.own_names(correct)
    }


Condition = Callable[[Any, Run], bool]


class Guarded(Kind):
    """A kind with conditions that are checked and never repaired: TypeBox has no kind for these keywords."""

    def __init__(self, inner: Kind, conditions: Sequence[Condition]) -> None:
        self.inner, self.conditions = inner, conditions
        self.is_unknown = inner.is_unknown

    def check(self, value: Any, run: Run) -> bool:
        if not self.inner.check(value, run):
            return False
        for condition in self.conditions:  # noqa: SIM110  (avoids a stack frame: values nest deeply)
            if not condition(value, run):
                return False
        return True

    def set_default(self, default: Any) -> None:
        self.inner.set_default(default)

    def make(self, run: Run) -> Any:
        return self.inner.create(run)

    def repair(self, value: Any, run: Run) -> Any:
        return self.inner.cast(value, run)

    def score(self, value: Any, run: Run) -> int:
        return self.inner.score(value, run)

    def extends_undefined(self) -> bool:
        return self.inner.extends_undefined()

    def key_patterns(self) -> list[str]:
        return self.inner.key_patterns()


class Object(Kind):
    """`additional` is the kind of undeclared properties: False rejects them, True allows any."""

    patterns: Sequence[tuple[str, Kind]] = ()  # empty in TypeBox, where patterns make a Record

    def __init__(self, properties: dict[str, Kind], required: Iterable[str], size: Bounds) -> None:
        self.properties = properties
        self.required = frozenset(required) & properties.keys()
        self.size = size
        self.additional: Kind | bool = True

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, dict):
            return False
        fields = cast("dict[str, Any]", value)
        if not run.visit(fields, self.size):
            return False
        for key, kind in self.properties.items():
            item = fields.get(key, MISSING)
            if key in self.required:
                if not kind.check(item, run):
                    return False
                if key not in fields and (kind.is_unknown or kind.extends_undefined()):
                    return False
            elif item is not MISSING and not kind.check(item, run):
                return False
        return self._extras_fit(fields, run)

    def _extras_fit(self, fields: dict[str, Any], run: Run) -> bool:
        if not self.patterns:
            if self.additional is True:
                return True
            # TypeBox counts the keys where that seems to be enough; a required key may be missing even so.
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
            if js.matches(pattern, None, name):
                return kind
        return self.additional

    def make(self, run: Run) -> Any:
        return {key: kind.create(run) for key, kind in self.properties.items() if key in self.required}

    def repair(self, value: Any, run: Run) -> Any:
        if not js.is_container(value):
            return self.create(run)
        result: dict[str, Any] = {}
        for key, kind in self.properties.items():
            item = js.member(value, key)
            if item is not MISSING or key in self.required:
                result[key] = kind.cast(item, run)
        if self.patterns or isinstance(self.additional, Kind):
            for name in js.own_names(value):
                kind = True if name in self.properties else self._extra(name)
                if isinstance(kind, Kind):
                    result[name] = kind.cast(js.member(value, name), run)
        return result

    def score(self, value: Any, run: Run) -> int:
        if not js.is_container(value):
            return super().score(value, run)
        total = 0
        for key, kind in self.properties.items():
            item = js.member(value, key)
            fits = kind.check(item, run)
            total += 100 * (fits and isinstance(kind, Literal)) + 10 * fits + (item is not MISSING)
        return total

    def key_patterns(self) -> list[str]:
        return list(self.properties)


class Record(Object):
    """An object with one kind for all properties that match a pattern."""

    def __init__(self, pattern: str, values: Kind, size: Bounds) -> None:
        super().__init__({}, (), size)
        self.patterns = [(pattern, values)]

    def repair(self, value: Any, run: Run) -> Any:
        if not isinstance(value, dict):
            return self.create(run)
        values = self.patterns[0][1]  # for every key, whether it matches or not
        return {name: values.cast(item, run) for name, item in cast("dict[str, Any]", value).items()}

    def score(self, value: Any, run: Run) -> int:
        return Kind.score(self, value, run)

    def key_patterns(self) -> list[str]:
        pattern = self.patterns[0][0]
        return [pattern[1:-1] if pattern.startswith("^") and pattern.endswith("$") else pattern]


class Tuple(Kind):
    """`rest`, and bounds other than the number of items, are not in TypeBox; they count for the check alone."""

    def __init__(self, items: Sequence[Kind], rest_kind: Kind, size: Bounds) -> None:
        self.items, self.rest, self.size = items, rest_kind, size

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, list) or not run.visit(value, self.size):
            return False
        for index, item in enumerate(cast("list[Any]", value)):
            kind = self.items[index] if index < len(self.items) else self.rest
            if not kind.check(item, run):
                return False
        return True

    def make(self, run: Run) -> Any:
        return [item.create(run) for item in self.items]

    def repair(self, value: Any, run: Run) -> Any:
        if not isinstance(value, list):
            return self.create(run)
        items = cast("list[Any]", value)
        missing: list[Any] = [MISSING] * (len(self.items) - len(items))
        return [kind.cast(item, run) for kind, item in zip(self.items, [*items, *missing], strict=False)]

    def key_patterns(self) -> list[str]:
        return [str(index) for index in range(len(self.items))]


class Array(Kind):
    """`matching` are the bounds of `contains`; even a lower bound of 0 requires one match."""

    def __init__(self, schema: Mapping[str, Any], items: Kind, contains: Kind | None) -> None:
        self.items, self.contains = items, contains
        self.size = Bounds(schema, "minItems", "maxItems")
        self.matching = Bounds(schema, "minContains", "maxContains")
        self.unique = schema.get("uniqueItems") is True

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, list) or not run.visit(value, self.size):
            return False
        items = cast("list[Any]", value)
        for item in items:
            if not self.items.check(item, run):
                return False
        if self.unique and len(set(map(js.fingerprint, items))) < len(items):
            return False
        if self.contains is None:  # then a bound of its own, `minContains`, can never be met
            return self.matching.low is None and self.matching.high is None
        match_count = sum(self.contains.check(item, run) for item in items)
        return match_count > 0 and self.matching.allow(match_count)

    def make(self, run: Run) -> Any:
        if self.unique or self.contains is not None:
            raise CastError("an array with `uniqueItems` or `contains` needs a default")
        return [self.items.create(run) for _ in range(int(self.size.low or 0))]

    def repair(self, value: Any, run: Run) -> Any:
        created: Any = cast("Any", value) if isinstance(value, list) else self.create(run)
        low, high = self.size.low, self.size.high
        # A default may be anything. JavaScript spreads a string, but only to pad it.
        if isinstance(created, str) and low is not None and len(js.code_units(created)) < low:
            lacking = int(low) - len(js.code_units(created))
        elif isinstance(created, list):
            lacking = max(0, int(low or 0) - len(cast("list[Any]", created)))
        else:
            raise CastError("the default of an array is not an array")
        run.spend(lacking)
        padded: list[Any] = [*created, *[None] * lacking]
        resized = padded if high is None else padded[: max(0, int(high))]
        result = [self.items.cast(item, run) for item in resized]
        if not self.unique:
            return result
        distinct: list[Any] = []  # `[...new Set(items)]`, where objects and arrays are never equal
        seen: set[Any] = set()
        for item in result:
            if js.is_container(item):
                distinct.append(item)
            elif (key := (isinstance(item, bool), item)) not in seen:
                seen.add(key)
                distinct.append(item)
        if not self.check(distinct, run):
            raise CastError("the items of an array with `uniqueItems` cannot be made unique")
        return distinct

    def key_patterns(self) -> list[str]:
        return ["[number]"]
