"""Nodes: the parsed form of a type hint, which returns both the JSON Schema of the type and converts data to it.

This file has the base class and the nodes without parts: scalars, choices and aliases. Rules:

1. SchemaDict and conversion come from the same node, so they cannot disagree.
2. `convert` is authoritative. msgspec's C code replaces it where a node and everything under it is `native`: anything
   that msgspec accepts, the node accepts with the same result. If msgspec raises, the node decides.
3. A `Misfit` collects its path on the way up, so that the path costs nothing while data is valid.
4. Messages name what was expected and the type of the value; they never echo the value.
"""

import datetime
import decimal
import enum
import inspect
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import NoneType
from typing import Any, NamedTuple, Protocol, Self, cast

import msgspec

SchemaDict = dict[str, Any]

_KIND_OF: dict[type, str] = {
    dict: "object",
    list: "array",
    tuple: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    NoneType: "null",
}
ALL_KINDS = frozenset(_KIND_OF.values())
NUMERIC = frozenset({"integer", "number"})
PLAIN_TYPES = frozenset(_KIND_OF) - {tuple}
_ARTICLES = {"object": "an object", "array": "an array", "integer": "an integer", "null": "null"}
_LONGEST_REASON = 300
_LONGEST_STEP = 60


def kind_of(value: Any) -> str:
    """Return the JSON type of plain data; for anything else the name of its Python type."""
    kind = _KIND_OF.get(cast("Any", type(value)))
    return kind or next((kind for base, kind in _KIND_OF.items() if isinstance(value, base)), type(value).__name__)


class Misfit(Exception):  # noqa: N818 -- it never leaves this package: callers see a ConversionError
    """Data is invalid; the steps of the path are added from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = _cut(reason, _LONGEST_REASON)
        self.steps: list[str | int] = []

    def under(self, step: str | int) -> Self:
        self.steps.append(step)
        return self

    @property
    def path(self) -> str:
        steps = [step if isinstance(step, int) else _cut(step, _LONGEST_STEP) for step in reversed(self.steps)]
        return "$" + "".join(f".{step}" if str(step).isidentifier() else f"[{step!r}]" for step in steps)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def expected(expectation: str, value: Any) -> Misfit:
    """Return the misfit of a value of an invalid JSON type."""
    kind = kind_of(value)
    return Misfit(f"expected {expectation}, got {_ARTICLES.get(kind, f'a {kind}')}")


def array_items(value: Any) -> Sequence[Any]:
    """Return the value if it is an array, else raise `Misfit`."""
    if not isinstance(value, list | tuple):
        raise expected("an array", value)
    return cast("Sequence[Any]", value)


def object_items(value: Any) -> dict[Any, Any]:
    """Return the value if it is an object, else raise `Misfit`."""
    if not isinstance(value, dict):
        raise expected("an object", value)
    return cast("dict[Any, Any]", value)


class Refs(Protocol):
    """Returns the schemas of a node's parts: those in `$defs` as `$ref`."""

    def of(self, node: "Node") -> SchemaDict: ...


class Constant(NamedTuple):
    """A property that allows only certain values."""

    values: list[Any]
    required: bool


class Node(ABC):
    """One hint. Subclasses return its schema and convert data."""

    hint: Any
    name: str
    """The name in messages; for a node with an owner also the name in `$defs`."""
    owner: Any = None
    """The class or alias of a node in `$defs`."""
    kinds: frozenset[str]
    """The JSON types that it accepts."""
    identity: frozenset[type] = frozenset()
    """Python types of values that are returned unchanged if they are valid."""
    native: bool = False
    """Whether msgspec returns the same results, as far as this node alone is concerned."""
    run: Callable[[Any], Any]
    """The fastest correct conversion: by default `convert`, or msgspec."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        node = super().__new__(cls)
        node.run = node.convert
        return node

    @abstractmethod
    def schema(self, refs: Refs) -> SchemaDict:
        """Return its JSON Schema; the schemas of parts come from `refs`."""

    @abstractmethod
    def convert(self, value: Any) -> Any:
        """Return plain data as a value of the type, or raise `Misfit`."""

    def parts(self) -> Iterable["Node"]:
        """Return the nodes that it is made of."""
        return ()

    def native_parts(self) -> Iterable["Node"]:
        """Return the nodes that must be native too for msgspec to convert this one."""
        return self.parts()

    def options(self) -> list[Any]:
        """Return the plain values of an enumeration; by default an empty list."""
        return []

    def constants(self) -> dict[str, Constant]:
        """Return the properties that allow only certain values: candidates for the discriminator of a union."""
        return {}

    def known(self, value: dict[str, Any]) -> int:
        """Return how many properties of an object it keeps: decides between valid members of a union."""
        return 0

    @property
    def whole(self) -> bool:
        """Whether every valid value is returned unchanged."""
        return self.identity >= {plain_type for plain_type in PLAIN_TYPES if _KIND_OF[plain_type] in self.kinds}


def reachable(root: Node, *, native: bool = False) -> Iterable[Node]:
    """Yield the node and everything under it, each once, in the order of the hint; `native` follows `native_parts`."""
    seen_node_ids: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) not in seen_node_ids:
            seen_node_ids.add(id(node))
            yield node
            stack.extend(reversed(list(node.native_parts() if native else node.parts())))


def documentation(owner: Any, name: str) -> SchemaDict:
    """Return title and description of a class; an empty schema for a node without one."""
    if owner is None:
        return {}
    doc = owner.__dict__.get("__doc__") or ""
    # dataclasses and NamedTuples generate a docstring from the signature: it adds nothing to the schema.
    written = doc and not doc.startswith(f"{owner.__name__}(")
    return {"title": name, **({"description": inspect.cleandoc(doc)} if written else {})}


class ScalarNode(Node):
    """A type without parts: a fixed schema and a function."""

    def __init__(
        self,
        hint: Any,
        kinds: Iterable[str],
        fixed: SchemaDict,
        convert: Callable[[Any], Any],
        *,
        name: str = "",
        identity: Iterable[type] = (),
        native: bool = False,
    ) -> None:
        self.hint, self.kinds, self.fixed, self.run = hint, frozenset(kinds), fixed, convert
        self.name, self.identity, self.native = name or fixed["type"], frozenset(identity), native

    def schema(self, refs: Refs) -> SchemaDict:
        return dict(self.fixed)

    def convert(self, value: Any) -> Any:
        return self.run(value)


class ChoiceNode(Node):
    """Literal and Enum: an enumeration of plain values, each mapped to a Python value."""

    def __init__(self, hint: Any, name: str, choices: Sequence[tuple[Any, Any]], *, native: bool, owner: Any = None):
        self.hint, self.name, self.native, self.owner = hint, name, native, owner
        self.plain = [plain for plain, _ in choices]
        self._values = {scalar_key(plain): value for plain, value in choices}
        kinds = frozenset(kind_of(plain) for plain in self.plain)
        self.kinds = kinds | NUMERIC if kinds & NUMERIC else kinds  # 5.0 is accepted for 5, as everywhere
        if all(plain is value for plain, value in choices):
            self.identity = frozenset(map(type, self.plain))

    def schema(self, refs: Refs) -> SchemaDict:
        kinds = sorted({kind_of(plain) for plain in self.plain})
        return {
            **documentation(self.owner, self.name),
            "type": kinds[0] if len(kinds) == 1 else kinds,
            **({"const": self.plain[0]} if len(self.plain) == 1 else {"enum": self.plain}),
        }

    def convert(self, value: Any) -> Any:
        try:
            return self._values[scalar_key(value)]
        except (KeyError, TypeError):
            if self.owner is not None and isinstance(value, self.owner):
                return value
        if kind_of(value) not in self.kinds:
            raise expected(" or ".join(sorted({kind_of(choice) for choice in self.plain})), value)
        raise Misfit(f"is not one of {listed(self.plain)}")

    def options(self) -> list[Any]:
        return self.plain

    def as_keys(self) -> "ChoiceNode":
        """Return the same choices as the keys of an object, where they are text."""
        choices = [(str(plain), self._values[scalar_key(plain)]) for plain in self.plain]
        return ChoiceNode(self.hint, self.name, choices, native=False)


def scalar_key(value: Any) -> Hashable:
    """Return a key under which 1 and 1.0 are equal but 1 and True, unlike in Python, are not."""
    return (value, isinstance(value, bool))


def listed(values: Iterable[Any]) -> str:
    """Return the first allowed values, for a message."""
    texts = [repr(value) for value in values]
    return ", ".join(texts[:10]) + (", ..." if len(texts) > 10 else "")


class WrapperNode(Node):
    """A node around another one, with the same values."""

    inner: Node

    def parts(self) -> Iterable[Node]:
        return (self.inner,)

    def options(self) -> list[Any]:
        return self.inner.options()

    def constants(self) -> dict[str, Constant]:
        return self.inner.constants()

    def known(self, value: dict[str, Any]) -> int:
        return self.inner.known(value)


class AliasNode(WrapperNode):
    """A PEP 695 alias: a name for another hint, which may refer back to it."""

    def __init__(self, hint: Any, name: str) -> None:
        self.hint, self.name, self.owner = hint, name, hint
        self.kinds = ALL_KINDS  # what is known while the alias refers to itself

    def aim(self, target: Node) -> None:
        self.inner, self.kinds, self.identity, self.native = target, target.kinds, target.identity, True

    def schema(self, refs: Refs) -> SchemaDict:
        return refs.of(self.inner)

    def convert(self, value: Any) -> Any:
        return self.inner.run(value)


# RFC 3339 has no time of day without an offset, and no fractions or signs in durations, so the formats "time" and
# "duration" would reject what `datetime.time` and `datetime.timedelta` are encoded as. Patterns match
# what is parsed.
TIME_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])?$"
_DURATION_NUMBER = r"[0-9]+(\.[0-9]+)?"
_DURATION_TIME = rf"(?=[0-9])({_DURATION_NUMBER}H)?({_DURATION_NUMBER}M)?({_DURATION_NUMBER}S)?"
DURATION_PATTERN = rf"^[+-]?P(?=[0-9]|T)({_DURATION_NUMBER}D)?(T{_DURATION_TIME})?$"
# An exponent has at most four digits: arithmetic with 1e999999999 raises, and converting it to an integer never ends.
DECIMAL_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?$"
INTEGER_PATTERN = r"^-?(0|[1-9][0-9]*)$"


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise expected("an integer", value)


def _number(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Misfit("is too large for a floating-point number") from None
    raise expected("a number", value)


def _instance_of(type_: type, expectation: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, type_):
            return value
        raise expected(expectation, value)

    return read


def _decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, decimal.Decimal):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)  # the shortest text of a float, so that 0.1 is not 0.1000000000000000055511151231
    if not isinstance(value, str):
        raise expected("a decimal number as a string", value)
    if not re.search(DECIMAL_PATTERN, value):
        raise Misfit("is not a decimal number")
    return decimal.Decimal(value)


def _integer_key(value: Any) -> int:
    if not isinstance(value, str) or not re.search(INTEGER_PATTERN, value):
        raise Misfit("the key is not an integer")
    try:
        return int(value)
    except ValueError:  # Python's limit of 4,300 digits
        raise Misfit("the key has too many digits") from None


def _text(type_: Any, expectation: str, **schema: str) -> ScalarNode:
    """Return the node of a type that msgspec parses from text; not native if a pattern is stricter than msgspec."""
    pattern = schema.get("pattern", "")

    def read(value: Any) -> Any:
        if isinstance(value, type_):
            return value
        if not isinstance(value, str):
            raise expected(f"{expectation} as a string", value)
        try:
            if not pattern or re.search(pattern, value):
                return msgspec.convert(value, type_)
        except (msgspec.ValidationError, OverflowError):
            pass
        raise Misfit(f"is not {expectation}")

    return ScalarNode(type_, _STRING_KINDS, {"type": "string", **schema}, read, name=type_.__name__, native=not pattern)


_STRING_KINDS = frozenset({"string"})
_STRING_READER = _instance_of(str, "a string")
_ANY_NODE = ScalarNode(Any, ALL_KINDS, {}, lambda value: value, name="any", identity=PLAIN_TYPES, native=True)
_NULL_NODE = ScalarNode(
    None, {"null"}, {"type": "null"}, _instance_of(NoneType, "null"), identity={NoneType}, native=True
)

SCALAR_NODES: dict[Any, ScalarNode] = {
    Any: _ANY_NODE,
    object: _ANY_NODE,
    None: _NULL_NODE,
    NoneType: _NULL_NODE,
    bool: ScalarNode(
        bool, {"boolean"}, {"type": "boolean"}, _instance_of(bool, "a boolean"), identity={bool}, native=True
    ),
    int: ScalarNode(int, NUMERIC, {"type": "integer"}, _integer, identity={int}, native=True),
    float: ScalarNode(float, NUMERIC, {"type": "number"}, _number, identity={float}, native=True),
    str: ScalarNode(str, _STRING_KINDS, {"type": "string"}, _STRING_READER, identity={str}, native=True),
    bytes: _text(bytes, "base64 text", contentEncoding="base64"),
    bytearray: _text(bytearray, "base64 text", contentEncoding="base64"),
    datetime.datetime: _text(datetime.datetime, "a date and time (RFC 3339)", format="date-time"),
    datetime.date: _text(datetime.date, "a date (YYYY-MM-DD)", format="date"),
    datetime.time: _text(datetime.time, "a time of day (HH:MM:SS)", pattern=TIME_PATTERN),
    datetime.timedelta: _text(datetime.timedelta, "a duration (ISO 8601, e.g. PT90S)", pattern=DURATION_PATTERN),
    uuid.UUID: _text(uuid.UUID, "a UUID", format="uuid"),
    decimal.Decimal: ScalarNode(
        decimal.Decimal,
        _STRING_KINDS | NUMERIC,
        {"type": "string", "format": "decimal", "pattern": DECIMAL_PATTERN},
        _decimal,
        name="Decimal",
    ),
}
_PATH_TEXT = ScalarNode(str, _STRING_KINDS, {"type": "string", "format": "path"}, _STRING_READER)
_BASES: dict[type, ScalarNode] = {
    enum.Flag: SCALAR_NODES[int],
    str: SCALAR_NODES[str],
    int: SCALAR_NODES[int],
    float: SCALAR_NODES[float],
}
INTEGER_KEY = ScalarNode(int, _STRING_KINDS, {"type": "string", "pattern": INTEGER_PATTERN}, _integer_key)


def subclass_scalar(hint: type) -> ScalarNode | None:
    """Return the node of a subclass of a plain type, e.g. `class Email(str)`: the class is called with the value."""
    from pathlib import PurePath  # with `urllib.parse`, 5 % of the time of `import opwire`

    bases = {PurePath: _PATH_TEXT, **_BASES}
    base = next((node for above, node in bases.items() if issubclass(hint, above)), None)
    if base is None:
        return None

    def read(value: Any) -> Any:
        if isinstance(value, hint):
            return value
        plain = base.run(value)
        try:
            return hint(plain)
        except (TypeError, ValueError) as error:
            raise Misfit(f"is not a {hint.__name__}: {error}") from error

    return ScalarNode(hint, base.kinds, base.fixed, read, name=hint.__name__)
