"""How Structs, dataclasses, attrs classes, TypedDicts and NamedTuples declare their fields, told in one way."""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, get_origin

import msgspec

from opwire.errors import NotPlainError
from opwire.typed.hints import loaded
from opwire.typed.plain import find_nonfinite, to_plain

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
