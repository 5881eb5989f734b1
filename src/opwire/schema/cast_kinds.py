"""The kinds of TypeBox 0.34 and their three primitives: check a value, create one from nothing, cast one.

Rules of this file. A kind never changes the value it is given. `cast` returns the very value that passes `check`;
only what fails is rebuilt. `MISSING` goes through all three like a value: it is the absent property. What a cast
may cost is bounded by its `Run`, so that no schema can make it hang.

How JavaScript sees JSON values, where Python sees them differently.

`Value.Cast` is defined by what JavaScript answers: `true` is not 1, a string has the length of its UTF-16 form, a
property that is not there is `undefined`, an array is an object with the properties "0", "1", … and "length".
"""

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from math import inf
from typing import Any, Final, cast

from opwire.errors import CastError, SchemaError
from opwire.schema.validator import Validator, compile_validator


class Missing(Enum):
    """JavaScript's `undefined`: what an absent property holds. JSON's null is None, which is a value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING

# Those that are registered where the parity cases come from; every other format is ignored, as an annotation.
ASSERTED_FORMATS = frozenset({"date-time", "date", "uuid", "email"})


def is_container(value: Any) -> bool:
    """An object or an array; both are objects there."""
    return isinstance(value, dict | list)


def is_number(value: Any) -> bool:
    """A finite number; a boolean is none."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    """`Number.isInteger`: 1.0 is an integer."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def is_multiple(value: float, of: float) -> bool:
    """`value % of === 0` in doubles, where 0.3 is no multiple of 0.1. Whole numbers keep every digit."""
    if of == 0:
        return False
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    try:
        return math.fmod(value, of) == 0
    except OverflowError:  # an integer beyond the doubles
        return False


def is_same(left: Any, right: Any) -> bool:
    """`===`, and for the objects and arrays that JSON Schema allows as constants, equality in depth."""
    if isinstance(left, dict) and isinstance(right, dict):
        a, b = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        return a.keys() == b.keys() and all(is_same(item, b[key]) for key, item in a.items())
    if isinstance(left, list) and isinstance(right, list):
        pair = cast("list[Any]", left), cast("list[Any]", right)
        return len(pair[0]) == len(pair[1]) and all(map(is_same, *pair))
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def code_units(text: str) -> str:
    """The text with one character for each UTF-16 code unit.

    Surrogates move to a private area, since no regular expression engine here takes them. A pattern is moved in
    the same way, so `^.$` does not match an emoji, just as in JavaScript.
    """
    if text.isascii():
        return text
    raw = text.encode("utf-16-le", "surrogatepass")
    units = struct.unpack(f"<{len(raw) // 2}H", raw)
    return "".join(chr(unit + 0x800 if 0xD800 <= unit <= 0xDFFF else unit) for unit in units)


def matches(pattern: str | None, format: str | None, text: str) -> bool:
    """Whether the text matches the pattern somewhere and has the format. An unusable pattern matches nothing."""
    validator = _text_validator(pattern, format)
    return validator is not None and validator.is_valid(code_units(text))


@lru_cache(maxsize=1024)
def _text_validator(pattern: str | None, format: str | None) -> Validator | None:
    schema: dict[str, Any] = {}
    if pattern is not None:
        schema["pattern"] = code_units(pattern)
    if format in ASSERTED_FORMATS:
        schema["format"] = format
    try:
        return compile_validator(schema)
    except SchemaError:
        return None


def own_names(value: Any) -> list[str]:
    """`Object.getOwnPropertyNames`."""
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value))
    if isinstance(value, list | str):
        return [*map(str, range(len(cast("list[Any] | str", value)))), "length"]
    return []


def member(value: Any, name: str) -> Any:
    """`value[name]`, own properties only."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(name, MISSING)
    if not isinstance(value, list | str):
        return MISSING
    items = cast("list[Any] | str", value)
    if name == "length":
        return len(items)
    if not (name.isascii() and name.isdigit() and len(name) < 16 and str(int(name)) == name):
        return MISSING
    index = int(name)
    return items[index] if index < len(items) else MISSING


def spread(value: Any) -> dict[str, Any]:
    """`{...value}`."""
    return {name: member(value, name) for name in own_names(value) if isinstance(value, dict) or name != "length"}


def fingerprint(value: Any) -> bytes:
    """What TypeBox's `Value.Hash` digests; `uniqueItems` compares nothing else.

    Neither strings nor arrays are closed by a mark, so [[1], 2] and [[1, 2]] count as duplicates there, and here.
    """
    match value:
        case Missing.MISSING:
            return b"\x00"
        case None:
            return b"\x01"
        case bool():
            return b"\x02\x01" if value else b"\x02\x00"
        case int() | float():
            return b"\x03" + _number_bytes(value)
        case str():
            return b"\x04" + b"".join(map(_unit_bytes, code_units(value)))
        case dict():
            fields = cast("dict[str, Any]", value)
            pairs = ((fingerprint(name), fingerprint(fields[name])) for name in sorted(fields, key=code_units))
            return b"\x05" + b"".join(name + item for name, item in pairs)
        case list():
            return b"\x06" + b"".join(map(fingerprint, cast("list[Any]", value)))
        case _:
            return repr(value).encode("utf-8", "backslashreplace")


def _number_bytes(value: float) -> bytes:
    if isinstance(value, int) and abs(value) > 2**53:  # two such integers may share a double, and yet they differ
        return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return struct.pack(">d", value)


def _unit_bytes(unit: str) -> bytes:
    code = ord(unit)
    return bytes((code,)) if code < 0x100 else code.to_bytes(2, "big")


# Values made from nothing in one cast. A schema can ask for 10 ** 9 items in one line, or for 2 ** 40 objects in forty.
MAX_CREATED = 250_000


class Run:
    """What one cast remembers: which checks are done, what is being created, how much may still be created."""

    def __init__(self, looks: float = inf) -> None:
        # The checked value is kept in the entry: while it lives, no other value can get its id.
        self.checked: dict[tuple[int, int], tuple[Any, bool]] = {}
        self.scored: dict[tuple[int, int], tuple[Any, int]] = {}
        self.creating: set[int] = set()
        self.absent = False  # whether MISSING may stand in the result
        self._left = MAX_CREATED
        self._looks = looks

    def spend(self, amount: int) -> None:
        """Account for values that are about to be created."""
        self._left -= max(0, amount)
        if self._left < 0:
            raise CastError("the schema asks for more values than a cast may create")

    def look(self, members: int) -> None:
        """Account for a check of an object or array. What is inside others is checked once for each level around it."""
        self._looks -= 1 + members
        if self._looks < 0:
            raise CastError("the value is too large or too deeply nested for this schema")

    def clone(self, value: Any) -> Any:
        """A deep copy."""
        self.spend(1)
        if isinstance(value, dict):
            return {key: self.clone(item) for key, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self.clone(item) for item in cast("list[Any]", value)]
        return value


class Kind(ABC):
    """One schema, understood."""

    is_unknown = False  # Any and Unknown: a required property of theirs must at least be there
    default: Any = MISSING

    @abstractmethod
    def check(self, value: Any, run: Run) -> bool:
        """Whether a value passes, as TypeBox checks it."""

    def set_default(self, default: Any) -> None:
        self.default = default

    def create(self, run: Run) -> Any:
        """A value from nothing: the default, which nobody checks, or what the kind makes."""
        run.spend(1)
        return self.make(run) if self.default is MISSING else run.clone(self.default)

    @abstractmethod
    def make(self, run: Run) -> Any:
        """A value from nothing, where there is no default."""

    def cast(self, value: Any, run: Run) -> Any:
        if not self.check(value, run):
            return self.repair(value, run)
        run.absent = run.absent or value is MISSING
        return value

    def repair(self, value: Any, run: Run) -> Any:
        """Cast a value that fails the check."""
        return self.create(run)

    def score(self, value: Any, run: Run) -> int:
        """How well a union's variant suits the value."""
        return 1 if self.check(value, run) else 0

    def deref(self) -> "Kind":
        return self

    def extends_undefined(self) -> bool:
        return False

    def key_patterns(self) -> list[str]:
        """The property names, as parts of a regular expression, that `unevaluatedProperties` lets pass."""
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
        raise CastError("a schema that nothing satisfies needs a default")

    def repair(self, value: Any, run: Run) -> Any:
        raise CastError("nothing satisfies this schema")


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
        return value is not MISSING and is_same(value, self.const)

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

    def __init__(self, *, integer: bool) -> None:
        self.is_kind = is_integer if integer else is_number
        self.minimum: float | None = None
        self.maximum: float | None = None
        self.exclusive_minimum: float | None = None
        self.exclusive_maximum: float | None = None
        self.multiple_of: float | None = None

    def check(self, value: Any, run: Run) -> bool:
        return (
            self.is_kind(value)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.exclusive_minimum is None or value > self.exclusive_minimum)
            and (self.exclusive_maximum is None or value < self.exclusive_maximum)
            and (self.multiple_of is None or is_multiple(value, self.multiple_of))
        )

    def make(self, run: Run) -> Any:
        return 0 if self.minimum is None else self.minimum


class Bounds:
    """A lower and an upper bound, each of which may be absent."""

    def __init__(self, low: float | None = None, high: float | None = None) -> None:
        self.low = low
        self.high = high

    def admit(self, size: int) -> bool:
        return (self.low is None or size >= self.low) and (self.high is None or size <= self.high)


class String(Kind):
    def __init__(self, length: Bounds, pattern: str | None, format: str | None) -> None:
        self.length = length
        self.pattern = pattern
        self.format = format

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, str) or not self.length.admit(len(code_units(value))):
            return False
        return (self.pattern is None and self.format is None) or matches(self.pattern, self.format, value)

    def make(self, run: Run) -> Any:
        if self.pattern is not None or self.format is not None:
            raise CastError("a string with a pattern or a format needs a default")
        length = int(self.length.low or 0)
        run.spend(length)
        return " " * length


class Ref(Kind):
    """A reference, followed when it is first needed: schemas refer to themselves."""

    def __init__(self, follow: Callable[[], Kind], *, is_pointer: bool) -> None:
        self._follow = follow
        self._is_pointer = is_pointer
        self._target: Kind | None = None
        self._keys: list[str] | None = None

    def deref(self) -> Kind:
        if self._target is None:
            self._target = self._follow()
        return self._target.deref()

    def check(self, value: Any, run: Run) -> bool:
        # Without this memory, unions of references can take time exponential in the depth of the value.
        target = self.deref()
        key = id(target), id(value)
        known = run.checked.get(key)
        if known is None:
            known = run.checked[key] = (value, target.check(value, run))
        return known[1]

    def make(self, run: Run) -> Any:
        # What `create` makes depends on the schema alone, so meeting the same one again would go on for ever.
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
        # TypeBox does not look behind its references by name. A pointer stands for what TypeBox writes in place.
        if self._keys is None:
            self._keys = self.deref().key_patterns() if self._is_pointer else []
        return self._keys


class Union(Kind):
    def __init__(self, variants: Sequence[Kind]) -> None:
        self.variants = variants

    def check(self, value: Any, run: Run) -> bool:
        for variant in self.variants:  # noqa: SIM110  (no stack frame more than needed: values nest deeply)
            if variant.check(value, run):
                return True
        return False

    def make(self, run: Run) -> Any:
        return self._first().create(run)

    def repair(self, value: Any, run: Run) -> Any:
        if self.default is not MISSING:
            return run.clone(self.default)
        chosen, best = self._first().deref(), 0
        for variant in self.variants:
            score = variant.deref().score(value, run)
            if score > best:
                chosen, best = variant.deref(), score
        return chosen.cast(value, run)

    def score(self, value: Any, run: Run) -> int:
        key = id(self), id(value)
        known = run.scored.get(key)
        if known is None:
            score = max((variant.deref().score(value, run) for variant in self.variants), default=0)
            known = run.scored[key] = (value, score)
        return known[1]

    def extends_undefined(self) -> bool:
        return any(variant.extends_undefined() for variant in self.variants)

    def key_patterns(self) -> list[str]:
        if not self.variants:
            return []
        shared = set(self.variants[0].key_patterns()).intersection(
            *(variant.key_patterns() for variant in self.variants[1:])
        )
        return sorted(shared)

    def _first(self) -> Kind:
        if not self.variants:
            raise CastError("a union without variants has no value")
        return self.variants[0]


class Intersect(Kind):
    """`unevaluated` is the kind of the keys that no part declares: False for none of them, True for any."""

    def __init__(self, parts: Sequence[Kind], unevaluated: Kind | bool = True) -> None:
        self.parts = parts
        self.unevaluated = unevaluated
        self._pattern: str | None = None  # of the keys that the parts declare

    def check(self, value: Any, run: Run) -> bool:
        fits = True
        for part in self.parts:
            if not part.check(value, run):
                fits = False
                break
        return self._keys_fit(value, run) and fits

    def _keys_fit(self, value: Any, run: Run) -> bool:
        if self.unevaluated is True:
            return True
        if value is None or value is MISSING:  # even where a part refuses it already
            raise CastError("`unevaluatedProperties` cannot be checked on null")
        if self._pattern is None:
            self._pattern = "^({})$".format("|".join(f"({key})" for key in self.key_patterns()))
        for name in own_names(value):
            if matches(self._pattern, None, name):
                continue
            if isinstance(self.unevaluated, bool) or not self.unevaluated.check(member(value, name), run):
                return False
        return True

    def make(self, run: Run) -> Any:
        merged: Any = {}
        for part in self.parts:
            made = part.create(run)
            merged = {**spread(merged), **spread(made)} if made is None or is_container(made) else made
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
    """The keys of the created value, holding the given values where both are of the same nature."""
    if is_container(correct) != is_container(value):
        return correct
    if not is_container(correct):
        return value
    given = set(own_names(value))
    return {
        name: _assign(member(correct, name), member(value, name)) if name in given else member(correct, name)
        for name in own_names(correct)
    }


Condition = Callable[[Any, Run], bool]


class Guarded(Kind):
    """A kind with conditions that are checked and never repaired: what TypeBox has no kind for."""

    def __init__(self, inner: Kind, conditions: Sequence[Condition]) -> None:
        self.inner = inner
        self.conditions = conditions
        self.is_unknown = inner.is_unknown

    def check(self, value: Any, run: Run) -> bool:
        if not self.inner.check(value, run):
            return False
        for condition in self.conditions:  # noqa: SIM110  (as above)
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
