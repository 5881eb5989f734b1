"""`from_hint`: parse a type hint into nodes.

`Annotated` adds bounds, lengths, patterns and documentation. msgspec.Meta, annotated_types and pydantic.Field express
the same constraints with different words; the latter two are recognised by their attributes, so that neither library
is imported.
"""

import collections
import enum
import math
import operator
import re
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import partial
from os import PathLike
from typing import Annotated, Any, ForwardRef, TypeVar, cast, get_args, get_origin

import msgspec

from opwire.errors import HintError, NotPlainError
from opwire.typed.composite import ArrayNode, MapNode, ObjectNode, RowNode, TupleNode, UnionNode
from opwire.typed.fields import (
    QUALIFIERS,
    ClassSpec,
    FieldSpec,
    alias_value,
    class_hints,
    default_of,
    describe,
    hint_error,
    ordered_key,
    spec_reader,
    unwrap_qualifiers,
)
from opwire.typed.nodes import (
    INTEGER_KEY,
    NUMERIC,
    SCALAR_NODES,
    AliasNode,
    ChoiceNode,
    Misfit,
    Node,
    Refs,
    SchemaDict,
    WrapperNode,
    subclass_scalar,
)
from opwire.typed.plain import SCALARS, to_plain
from opwire.typed.pydantic_types import PydanticNode, is_pydantic, model_spec

_BOUNDS: dict[str, tuple[str, str, Callable[[Any, Any], bool]]] = {
    "gt": ("exclusiveMinimum", "greater than", operator.gt),
    "ge": ("minimum", "at least", operator.ge),
    "lt": ("exclusiveMaximum", "less than", operator.lt),
    "le": ("maximum", "at most", operator.le),
}
_LENGTHS: dict[str, tuple[dict[str, str], str, Callable[[int, int], bool]]] = {
    "min_length": ({"string": "minLength", "array": "minItems", "object": "minProperties"}, "at least", operator.ge),
    "max_length": ({"string": "maxLength", "array": "maxItems", "object": "maxProperties"}, "at most", operator.le),
}
_DOCUMENTATION_WORDS = ("title", "description", "examples")
_CONSTRAINT_WORDS = (*_BOUNDS, *_LENGTHS, "multiple_of", "pattern", "tz", *_DOCUMENTATION_WORDS, "extra_json_schema")


class ConstrainedNode(WrapperNode):
    """A node with constraints and documentation from `Annotated`."""

    def __init__(self, hint: Any, inner: Node, metadata: Iterable[Any]) -> None:
        self.hint, self.inner, self.name = hint, inner, inner.name
        self.kinds, self.identity, self.native = inner.kinds, inner.identity, True
        self._keywords: SchemaDict = {}
        self._checks: list[tuple[Callable[[Any], bool], Callable[[Any], str]]] = []  # predicates and their messages
        for constraint in flatten(metadata):
            words = _words_of(constraint)
            # msgspec enforces its own Meta only.
            self.native = self.native and (
                isinstance(constraint, msgspec.Meta) or not words.keys() - _DOCUMENTATION_WORDS
            )
            for word, value in words.items():
                self._add(word, value)

    def _check(self, holds: Callable[[Any], bool], message: Callable[[Any], str]) -> None:
        self._checks.append((holds, message))

    def _add(self, word: str, limit: Any) -> None:
        is_number = issubclass(type(limit), int | float) and math.isfinite(limit)
        if word in _BOUNDS:
            keyword, text, holds = _BOUNDS[word]
            if is_number and self.inner.hint is not Decimal:  # which is text in JSON
                self._keywords[keyword] = limit
            self._check(lambda value: holds(value, limit), lambda _: f"is not {text} {limit}")
        elif word in _LENGTHS:
            keywords, text, holds = _LENGTHS[word]
            is_base64 = self.inner.hint is bytes or self.inner.hint is bytearray
            size = 4 * ((limit + 2) // 3) if is_base64 else limit
            self._keywords |= {keyword: size for kind, keyword in keywords.items() if kind in self.kinds}
            self._check(
                lambda value: holds(len(value), limit),
                lambda value: f"has a length of {len(value)}, not {text} {limit}",
            )
        elif word == "multiple_of":
            self._keywords |= {"multipleOf": limit} if is_number else {}
            self._check(lambda value: _is_multiple(value, limit), lambda _: f"is not a multiple of {limit}")
        elif word == "pattern":
            pattern = self._keywords["pattern"] = getattr(limit, "pattern", limit)
            self._check(
                lambda value: re.search(limit, value) is not None, lambda _: f"does not match the pattern {pattern!r}"
            )
        elif word == "tz":
            self._keywords["format"] = "date-time" if limit else None
            self._check(
                lambda value: not hasattr(value, "tzinfo") or (value.tzinfo is not None) is limit,
                lambda _: f"is a time {'without' if limit else 'with'} an offset from UTC",
            )
        else:
            self._keywords |= limit if word == "extra_json_schema" else {word: to_plain(limit)}

    def schema(self, refs: Refs) -> SchemaDict:
        merged = refs.of(self.inner) | self._keywords
        return {key: value for key, value in merged.items() if value is not None}

    def convert(self, value: Any) -> Any:
        converted = self.inner.run(value)
        for holds, message in self._checks:
            try:
                is_met = holds(converted)
            except TypeError:  # another member of a union: None beside an int
                continue
            if not is_met:
                raise Misfit(message(converted))
        return converted


def flatten(metadata: Iterable[Any]) -> Iterable[Any]:
    """Yield single pieces of metadata: groups (annotated_types.Len, pydantic.Field) are split."""
    for piece in metadata:
        if getattr(piece, "__is_annotated_types_grouped_metadata__", False):
            yield from flatten(piece)
        elif is_pydantic_field(piece):
            yield from flatten(piece.metadata)
            yield piece
        else:
            yield piece


def only_pydantic_knows(metadata: Any) -> bool:
    """Return whether only pydantic can enforce it, such as a validator: it must not be ignored silently."""
    if is_pydantic_field(metadata):
        return False
    if hasattr(metadata, "__get_pydantic_core_schema__") or hasattr(metadata, "__get_pydantic_json_schema__"):
        return True
    if type(metadata).__name__ == "_PydanticGeneralMetadata":  # StringConstraints that change the text
        words = cast("dict[str, Any]", vars(metadata))
        return any(value for word, value in words.items() if word not in ("pattern", "strict"))
    return False


def is_pydantic_field(metadata: Any) -> bool:
    """Return whether it is the result of `pydantic.Field(...)`."""
    return type(metadata).__name__ == "FieldInfo" and type(metadata).__module__.startswith("pydantic.")


def _words_of(metadata: Any) -> dict[str, Any]:
    """Return the constraints and documentation of one piece of metadata, in msgspec's words."""
    if isinstance(metadata, msgspec.Meta):
        words = {word: getattr(metadata, word) for word in _CONSTRAINT_WORDS}
    elif is_pydantic_field(metadata):
        words = {word: getattr(metadata, word) for word in _DOCUMENTATION_WORDS}
        schema_extra = metadata.json_schema_extra
        words["extra_json_schema"] = cast("SchemaDict", schema_extra) if isinstance(schema_extra, dict) else None
    elif type(metadata).__module__.partition(".")[0] in ("annotated_types", "pydantic"):
        words = {word: getattr(metadata, word, None) for word in (*_BOUNDS, *_LENGTHS, "multiple_of", "pattern")}
    else:
        words = {}
    if isinstance(metadata, str):
        words["description"] = metadata
    if type(metadata).__name__ in ("Doc", "DocInfo"):  # of typing_extensions and annotated_types
        words["description"] = getattr(metadata, "documentation", None)
    return {word: value for word, value in words.items() if value is not None}


_EXACT_ARITHMETIC = Context(
    prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[]
)  # the default one raises on 1e308 % 2


def _is_multiple(value: Any, factor: Any) -> bool:
    if not isinstance(value, int | float | Decimal):  # another member of a union
        return True
    if isinstance(value, int) and isinstance(factor, int):
        return value % factor == 0
    # By the digits of a float: 0.3 is a multiple of 0.1. What is not finite leaves NaN.
    parts = (Decimal(repr(number)) if isinstance(number, float) else Decimal(number) for number in (value, factor))
    return _EXACT_ARITHMETIC.remainder(*parts) == 0


_ARRAYS: dict[Any, Callable[[Any], Any]] = {
    list: list,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    set: set,
    abc.Set: set,
    abc.MutableSet: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
}
_MAPS: dict[Any, Callable[[Any], Any] | None] = {
    dict: None,
    abc.Mapping: None,
    abc.MutableMapping: None,
    collections.OrderedDict: collections.OrderedDict,
    collections.Counter: collections.Counter,
    collections.defaultdict: collections.defaultdict,
}
_STRING_KINDS = frozenset({"string"})
_FACTORIES = (int, float, str, bool, list, dict, set)
_TYPES_ADVICE = "use a dataclass, TypedDict, Struct, model, Enum or a plain type"


def from_hint(hint: Any, where: str = "") -> Node:
    """Return the node of a hint.

    Raises:
        HintError: it cannot be expressed as JSON Schema; the message names `where`.
    """
    try:
        return _HintParser(where).node(hint)
    except RecursionError:
        raise hint_error(where, f"{describe(hint)} grows without end as it refers to itself", "simplify it") from None


class _HintParser:
    """Builds the nodes of one hint and of everything that it refers to; each class once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._named: dict[Any, Node] = {}
        self._inside: list[tuple[Any, str]] = []  # the classes and fields that lead to the current hint

    def node(self, hint: Any) -> Node:
        if hint is PathLike:
            from pathlib import Path  # see `subclass_scalar`

            hint = Path
        scalar_node = SCALAR_NODES.get(hint) if _hashable(hint) else None
        if scalar_node is not None:
            return scalar_node
        for rule in _HINT_RULES:
            node = rule(self, hint, get_origin(hint) or hint, get_args(hint))
            if node is not None:
                return node
        raise self._refuse(f"{describe(hint)} cannot be expressed as JSON Schema", _TYPES_ADVICE)

    # Each rule takes the hint, its origin (`list` of `list[int]`, else the hint itself) and its arguments, and
    # returns None for a hint of another kind.

    def unresolved(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if isinstance(hint, str | ForwardRef):
            raise self._refuse(f"the forward reference {hint!r} is not resolved", "pass the type itself")
        if isinstance(hint, TypeVar):
            default = default_of(hint)
            if default is None:
                raise self._refuse(f"the type parameter {hint.__name__} is open", "fill it in, e.g. Page[int] for Page")
            return self.node(default)
        if hint is typing.Self:
            if not self._inside:
                raise self._refuse("Self is used outside of a class", "name the class")
            return self.node(self._inside[-1][0])
        return None

    def annotated(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if origin is not Annotated:
            return None
        inner, *metadata = args
        if any(only_pydantic_knows(piece) for piece in flatten(metadata)):
            return PydanticNode(hint, describe(inner), self._where)
        return ConstrainedNode(hint, self.node(inner), metadata)

    def union(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if origin is not typing.Union and origin is not types.UnionType:
            return None
        # UNSET makes a Struct's field optional: it is not a value in JSON.
        members = [self.node(member) for member in args if member is not msgspec.UnsetType]
        return members[0] if len(members) == 1 else UnionNode(hint, members)

    def literal(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if getattr(origin, "_name", None) != "Literal":
            return None
        native = {type(choice) for choice in args} <= {str, int, types.NoneType}
        return ChoiceNode(hint, describe(hint), self._choices(hint, args), native=native)

    def enumeration(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if not isinstance(hint, type) or not issubclass(hint, enum.Enum) or issubclass(hint, enum.Flag):
            return None
        choices = self._choices(hint, list(hint))
        # With an overridden `_missing_`, msgspec would accept values that are not listed.
        listed = cast("Any", hint._missing_).__func__ is cast("Any", enum.Enum._missing_).__func__
        native = listed and {type(plain) for plain, _ in choices} in ({str}, {int})
        return self._once(hint, lambda: ChoiceNode(hint, self._name(hint), choices, native=native, owner=hint))

    def _choices(self, hint: Any, values: typing.Iterable[Any]) -> list[tuple[Any, Any]]:
        """Return each value with its JSON form."""
        try:
            choices = [
                (to_plain(choice.value if isinstance(choice, enum.Enum) else choice), choice) for choice in values
            ]
        except NotPlainError:
            choices = []
        if not choices or not {type(plain) for plain, _ in choices} <= SCALARS:
            raise self._refuse(f"{describe(hint)} is not a list of JSON scalars", "use str, int, float, bool or None")
        return choices

    def renamed(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        """NewType, Required, Final and the like: another name for a hint, or a qualifier around it."""
        if isinstance(hint, typing.NewType):
            return self.node(hint.__supertype__)
        if getattr(origin, "_name", None) in QUALIFIERS and args:
            return self.node(unwrap_qualifiers(hint)[1])
        return SCALAR_NODES[str] if hint is typing.LiteralString else None

    def alias(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if type(origin).__name__ != "TypeAliasType":
            return None
        return self._once(
            hint, lambda: AliasNode(hint, self._name(hint)), lambda alias: alias.aim(self.node(alias_value(hint)))
        )

    def array(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if origin is tuple:
            bare = hint is tuple or hint is typing.Tuple  # noqa: UP006 -- tuple[()] has no arguments either
            if not bare and args[1:] != (Ellipsis,):
                return TupleNode(hint, [self.node(item) for item in args])
            return ArrayNode(hint, self.node(Any if bare else args[0]), tuple)
        if not _hashable(origin) or origin not in _ARRAYS:
            return None
        build = _ARRAYS[origin]
        return ArrayNode(hint, self.node(args[0] if args else Any), build, unique=build in (set, frozenset))

    def map(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if not _hashable(origin) or origin not in _MAPS:
            return None
        if origin is collections.Counter:
            args = (*args, int) if args else (str, int)
        key, item = args or (str, Any)
        build = _MAPS[origin]
        if origin is collections.defaultdict:
            factory = get_origin(item) or item
            build = partial(collections.defaultdict[Any, Any], factory if factory in _FACTORIES else None)
        # JSON has only text for keys: an int is parsed from its digits.
        of_key = SCALAR_NODES[str] if key is Any or key is object else self.node(key)
        if of_key is SCALAR_NODES[int]:
            of_key = INTEGER_KEY
        elif isinstance(of_key, ChoiceNode) and of_key.kinds == NUMERIC:
            of_key = of_key.as_keys()
        elif of_key.kinds != _STRING_KINDS:
            raise self._refuse(
                f"{describe(key)} cannot be the key of a JSON object", "use str, int, Enum, UUID or date"
            )
        return MapNode(hint, of_key, self.node(item), build)

    def model(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        if not is_pydantic(hint):
            return None
        try:
            return self._once(hint, lambda: PydanticNode(hint, self._name(hint), self._where))
        except HintError:
            if hasattr(origin, "model_fields"):
                return self._object(hint, model_spec(origin))
            if spec_reader(origin) is None:
                raise
            return None

    def fields(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        read_spec = spec_reader(origin) if isinstance(origin, type) else None
        return self._object(hint, read_spec(origin, class_hints(hint, self._where))) if read_spec else None

    def _object(self, hint: Any, spec: ClassSpec) -> Node:
        def field_node(field: FieldSpec) -> Node:
            self._inside.append((hint, field.name))
            try:
                return self.node(field.hint)
            finally:
                self._inside.pop()

        kind = RowNode if spec.positional else ObjectNode
        return self._once(hint, lambda: kind(hint, self._name(hint), spec), lambda node: node.fill(field_node))

    def subclass(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Node | None:
        return subclass_scalar(hint) if isinstance(hint, type) else None

    def _once(self, hint: Any, make: Callable[[], Any], fill: Callable[[Any], None] = lambda _: None) -> Node:
        """Return the node of a class or alias, built once: it may be referred to while it is being filled."""
        try:
            key = ordered_key(hint)
        except TypeError:
            key = id(hint)
        node = self._named.get(key)
        if node is None:
            node = self._named[key] = make()
            fill(node)
        return node

    def _name(self, hint: Any) -> str:
        name = (get_origin(hint) or hint).__name__
        args = ", ".join(describe(argument) for argument in get_args(hint))
        return f"{name}[{args}]" if args else name

    def _refuse(self, problem: str, advice: str) -> HintError:
        if not self._inside:
            return hint_error(self._where, problem, advice)
        cls, name = self._inside[-1]
        field = f"field {name!r} of {describe(cls)}"
        return hint_error(f"{self._where}, {field}" if self._where else field, problem, advice)


_HINT_RULES = (
    _HintParser.unresolved,
    _HintParser.annotated,
    _HintParser.union,
    _HintParser.literal,
    _HintParser.renamed,
    _HintParser.alias,
    _HintParser.array,
    _HintParser.map,
    _HintParser.enumeration,
    _HintParser.model,
    _HintParser.fields,
    _HintParser.subclass,
)


def _hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:
        return False
    return True
