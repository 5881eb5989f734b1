"""How Structs, dataclasses, attrs classes, TypedDicts and NamedTuples declare their fields, told in one way.

Type hints as they are written, made ready to be walked: annotations resolved, type parameters filled in.
"""

import dataclasses
import inspect
import sys
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
)
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from opwire.errors import HintError, NotPlainError
from opwire.typed.plain import find_nonfinite, to_plain

_STREAMS = (AsyncIterator, AsyncGenerator, AsyncIterable, Iterator, Generator, Iterable)


def yield_type_of(return_hint: Any, *, where: str = "") -> Any:
    """The item type of an iterator's or generator's return hint: `T` of `AsyncIterator[T]`.

    Raises:
        HintError: the hint is not an iterator, or does not say of what.
    """
    while get_origin(return_hint) is Annotated:
        return_hint = return_hint.__origin__
    args = get_args(return_hint)
    if get_origin(return_hint) in _STREAMS and args:
        return args[0]
    raise refusal(where, f"{describe(return_hint)} does not say what is yielded", "write e.g. AsyncIterator[int]")


def refusal(where: str, what: str, advice: str) -> HintError:
    """The error of a hint that cannot be used: where it stands, what is wrong, what to do."""
    return HintError(f"{f'{where}: ' if where else ''}{what}; {advice}")


def describe(hint: Any) -> str:
    """A hint as its author would write it, cut to a readable length."""
    name = getattr(hint, "__qualname__", None)
    text = name if isinstance(hint, type) and name and not get_args(hint) else repr(hint)
    text = text.replace("typing.", "").replace("<locals>.", "")
    return text if len(text) <= 80 else f"{text[:77]}..."


def class_hints(hint: Any, where: str = "") -> dict[str, Any]:
    """The annotations of a class or of a parameterised generic class, inherited ones first.

    Unlike `typing.get_type_hints`, type parameters are replaced by what `hint` and its bases give for them.
    """
    cls = get_origin(hint) or hint
    scope = _scope(hint)
    found: dict[str, Any] = {}
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__dict__.get("__orig_bases__", cls.__bases__)):
        origin = get_origin(base) or base
        if isinstance(origin, type) and origin not in (object, typing.Generic, dict, tuple):
            found |= class_hints(substitute(base, scope, where), where)
            inherited |= inspect.get_annotations(origin)
    own = inspect.get_annotations(cls)
    for name, each in _resolve(cls, where).items():
        # A TypedDict repeats the annotations of its bases as its own: only what differs from them is new.
        if name not in found or (name in own and own[name] is not inherited.get(name)):
            found[name] = substitute(each, scope, where)
    return found


def ordered_key(hint: Any) -> Hashable:
    """A key for a hint. Python takes `A | B` and `B | A` for equal, also inside other hints; here order matters.

    Raises:
        TypeError: the hint holds something that cannot be hashed, such as a list in Annotated.
    """
    args = get_args(hint)
    key = (hint, *map(ordered_key, args)) if args else hint
    hash(key)
    return key


def substitute(hint: Any, scope: dict[Any, Any], where: str = "") -> Any:
    """The hint with its type parameters replaced."""
    if isinstance(hint, TypeVar):
        return scope.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not scope or not parameters or not get_args(hint):
        return hint
    try:
        return hint[tuple(scope.get(each, each) for each in parameters)]
    except TypeError as error:  # Python's own rules: the members of a union must be hashable, arguments be types
        raise refusal(where, f"{describe(hint)} cannot be given its type parameters: {error}", "change them") from None


def type_parameters(cls: Any) -> tuple[Any, ...]:
    """The type parameters that a generic class or alias leaves open."""
    return getattr(cls, "__parameters__", None) or getattr(cls, "__type_params__", ())


def alias_value(hint: Any) -> Any:
    """What a PEP 695 alias, or a generic one with its arguments, stands for."""
    return substitute((get_origin(hint) or hint).__value__, _scope(hint))


def default_of(parameter: Any) -> Any:
    """The default of a type parameter (PEP 696), or None where it has none."""
    has_default = getattr(parameter, "has_default", None)
    return parameter.__default__ if callable(has_default) and has_default() else None


def _scope(hint: Any) -> dict[Any, Any]:
    args = get_args(hint)
    return dict(zip(type_parameters(get_origin(hint) or hint), args, strict=False)) if args else {}


def _resolve(cls: type, where: str) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(cls, include_extras=True)
        except NameError:
            # A class defined inside a function is not in its module; it may still name itself.
            names = {each.__name__: each for each in cls.__mro__}
            return typing.get_type_hints(cls, localns=names, include_extras=True)
    except NameError as error:
        raise refusal(
            where,
            f"an annotation of {describe(cls)} cannot be resolved: {error}",
            f"define or import that name at the top of module {cls.__module__!r}, not under TYPE_CHECKING",
        ) from None
    except (TypeError, SyntaxError) as error:
        raise refusal(where, f"an annotation of {describe(cls)} is not a type: {error}", "correct it") from None


def loaded(module: str, name: str) -> Any:
    """`module.name` if the module is imported already, else None: an optional library is never imported for a look."""
    return getattr(sys.modules.get(module), name, None)


NOTHING: Any = msgspec.NODEFAULT
"""Stands for "no default" in all kinds of classes."""
QUALIFIERS = frozenset({"Required", "NotRequired", "ReadOnly", "Final"})
_INIT_VAR: Any = dataclasses.InitVar
_EMPTY = (list, tuple, set, frozenset, dict)


class Field(NamedTuple):
    """One field as its class declares it."""

    name: str  # the property in JSON
    key: str  # the argument of the constructor
    hint: Any
    required: bool
    default: Any = NOTHING
    given: bool = True  # False: computed by the class; read, checked and left out


class Plan(NamedTuple):
    """What a class is, told in one way for all kinds of classes."""

    fields: list[Field]
    build: Callable[..., Any]
    native: bool
    closed: bool = False  # unknown properties are refused
    tag: tuple[str, str | int] | None = None
    positional: bool = False  # an array in JSON


def plain_default(default: Any, factory: Any = NOTHING) -> Any:
    """A default as it stands in a schema; NOTHING where it has no JSON form or is made anew by a function."""
    if factory is not NOTHING:
        return to_plain(factory()) if factory in _EMPTY else NOTHING
    if default is NOTHING or default is msgspec.UNSET:
        return NOTHING
    try:
        plain = to_plain(default)
    except NotPlainError:
        return NOTHING
    return NOTHING if find_nonfinite(plain) else plain


Planner = Callable[[Any, dict[str, Any]], Plan]


def planner_of(cls: Any) -> Planner | None:
    """What tells how a class is built from its resolved annotations; None for a class without fields."""
    bases: set[Any] = set(cls.__mro__)
    if msgspec.Struct in bases:
        return _struct
    if dict in bases and hasattr(cls, "__required_keys__"):
        return _typed_dict  # `typing.is_typeddict` does not know the one of typing_extensions
    if tuple in bases and hasattr(cls, "_fields"):
        return _named_tuple
    if hasattr(cls, "__dataclass_fields__"):
        return _dataclass
    return _attrs if hasattr(cls, "__attrs_attrs__") else None


def _missing(value: Any, marker: Any) -> Any:
    return NOTHING if value is marker else value


def _struct(cls: Any, hints: dict[str, Any]) -> Plan:
    config = cls.__struct_config__
    fields = [
        Field(it.encode_name, it.name, hints[it.name], it.required, plain_default(it.default, it.default_factory))
        for it in msgspec.structs.fields(cls)
    ]
    tag = None if config.tag is None else (config.tag_field, config.tag)
    return Plan(fields, cls, True, config.forbid_unknown_fields, tag, config.array_like)


def _dataclass(cls: Any, hints: dict[str, Any]) -> Plan:
    fields: list[Field] = []
    native = cls.__dataclass_params__.init
    kept = {each.name for each in dataclasses.fields(cls)}
    for each in cls.__dataclass_fields__.values():
        hint = hints[each.name]
        variable = isinstance(hint, _INIT_VAR)
        if not variable and each.name not in kept:
            continue  # a ClassVar
        native = native and each.init and not variable
        default, factory = (_missing(it, dataclasses.MISSING) for it in (each.default, each.default_factory))
        required = each.init and default is NOTHING and factory is NOTHING
        plain = plain_default(default, factory) if each.init else NOTHING
        fields.append(Field(each.name, each.name, hint.type if variable else hint, required, plain, each.init))
    return Plan(fields, cls, native)


def _attrs(cls: Any, hints: dict[str, Any]) -> Plan:
    nothing, made = loaded("attr", "NOTHING"), loaded("attr", "Factory")
    fields: list[Field] = []
    for each in cls.__attrs_attrs__:
        default = _missing(each.default, nothing)
        factory = default.factory if isinstance(default, made) else NOTHING
        required = each.init and default is NOTHING
        plain = plain_default(default, factory) if each.init else NOTHING
        hint = hints.get(each.name, each.type or Any)
        fields.append(Field(each.name, each.alias, hint, required, plain, each.init))
    return Plan(fields, cls, False)  # msgspec does not run converters


def _named_tuple(cls: Any, hints: dict[str, Any]) -> Plan:
    defaults = cls._field_defaults
    fields = [
        Field(name, name, hints.get(name, Any), name not in defaults, plain_default(defaults.get(name, NOTHING)))
        for name in cls._fields
    ]
    return Plan(fields, cls, True, closed=True, positional=True)


def _typed_dict(cls: Any, hints: dict[str, Any]) -> Plan:
    fields: list[Field] = []
    for name, hint in hints.items():
        # A string annotation hides NotRequired from `__required_keys__`: the resolved hint has the last word.
        marks, bare = unwrap_qualifiers(hint)
        required = "NotRequired" not in marks and ("Required" in marks or name in cls.__required_keys__)
        fields.append(Field(name, name, bare, required))
    closed = getattr(cls, "__closed__", None) is True
    # msgspec does not fill in the type parameters of generic bases, and does not know `closed`.
    return Plan(fields, dict, native=not closed and Generic not in cls.__mro__, closed=closed)


def unwrap_qualifiers(hint: Any) -> tuple[set[str], Any]:
    """Required, NotRequired, ReadOnly and Final around a hint, and the hint itself."""
    marks: set[str] = set()
    while (name := getattr(get_origin(hint), "_name", None)) in QUALIFIERS:
        marks.add(name)
        hint = hint.__args__[0]
    return marks, hint
