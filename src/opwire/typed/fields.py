"""Type hints and the fields of classes, read in one way for Structs, dataclasses, attrs, TypedDicts and NamedTuples.

Annotations are resolved and type parameters filled in before `from_hint` reads them.
"""

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

NOTHING: Any = msgspec.NODEFAULT
"""Marks a missing default, for all kinds of classes."""
QUALIFIERS = frozenset({"Required", "NotRequired", "ReadOnly", "Final"})
_STREAM_TYPES = (AsyncIterator, AsyncGenerator, AsyncIterable, Iterator, Generator, Iterable)
_EMPTY_FACTORIES = (list, tuple, set, frozenset, dict)


def yield_type_of(return_hint: Any, *, where: str = "") -> Any:
    """Return the item type of an iterator's or generator's return hint: `T` of `AsyncIterator[T]`.

    Raises:
        HintError: the hint is not an iterator, or its item type is missing.
    """
    while get_origin(return_hint) is Annotated:
        return_hint = return_hint.__origin__
    args = get_args(return_hint)
    if get_origin(return_hint) in _STREAM_TYPES and args:
        return args[0]
    raise hint_error(where, f"{describe(return_hint)} does not say what is yielded", "write e.g. AsyncIterator[int]")


def hint_error(where: str, problem: str, advice: str) -> HintError:
    """Return the error of an invalid hint: where it is, what is wrong, what to do."""
    return HintError(f"{f'{where}: ' if where else ''}{problem}; {advice}")


def describe(hint: Any) -> str:
    """Return a hint as its author would write it, cut to a readable length."""
    name = getattr(hint, "__qualname__", None)
    text = name if isinstance(hint, type) and name and not get_args(hint) else repr(hint)
    text = text.replace("typing.", "").replace("<locals>.", "")
    return text if len(text) <= 80 else f"{text[:77]}..."


def ordered_key(hint: Any) -> Hashable:
    """Return a cache key for a hint. Python equates `A | B` and `B | A`, also inside other hints; here order matters.

    Raises:
        TypeError: the hint contains something unhashable, such as a list in Annotated.
    """
    args = get_args(hint)
    key = (hint, *map(ordered_key, args)) if args else hint
    hash(key)
    return key


def class_hints(hint: Any, where: str = "") -> dict[str, Any]:
    """Return the annotations of a class or of a parameterised generic class, inherited ones first.

    Unlike `typing.get_type_hints`, type parameters are replaced by the arguments of `hint` and its bases.
    """
    cls = get_origin(hint) or hint
    scope = _scope(hint)
    hints: dict[str, Any] = {}
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__dict__.get("__orig_bases__", cls.__bases__)):
        origin = get_origin(base) or base
        if isinstance(origin, type) and origin not in (object, typing.Generic, dict, tuple):
            hints |= class_hints(substitute(base, scope, where), where)
            inherited |= inspect.get_annotations(origin)
    resolved = _resolve(cls, where)  # first: with lazy annotations (PEP 649), `get_annotations` raises NameError too
    own_annotations = inspect.get_annotations(cls)
    for name, annotation in resolved.items():
        # A TypedDict repeats the annotations of its bases as its own: only what differs from them is new.
        if name not in hints or (name in own_annotations and own_annotations[name] is not inherited.get(name)):
            hints[name] = substitute(annotation, scope, where)
    return hints


def _scope(hint: Any) -> dict[Any, Any]:
    """Return the arguments of a generic hint by type parameter."""
    origin = get_origin(hint) or hint
    parameters = getattr(origin, "__parameters__", None) or getattr(origin, "__type_params__", ())
    return dict(zip(parameters, get_args(hint), strict=False))


def _resolve(cls: type, where: str) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(cls, include_extras=True)
        except NameError:
            # A class defined inside a function is missing from its module; it may still name itself.
            names = {base.__name__: base for base in cls.__mro__}
            return typing.get_type_hints(cls, localns=names, include_extras=True)
    except NameError as error:
        raise hint_error(
            where,
            f"an annotation of {describe(cls)} cannot be resolved: {error}",
            f"define or import that name at the top of module {cls.__module__!r}, not under TYPE_CHECKING",
        ) from None
    except (TypeError, SyntaxError) as error:
        raise hint_error(where, f"an annotation of {describe(cls)} is not a type: {error}", "correct it") from None


def substitute(hint: Any, scope: dict[Any, Any], where: str = "") -> Any:
    """Return the hint with its type parameters replaced."""
    if isinstance(hint, TypeVar):
        return scope.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not scope or not parameters or not get_args(hint):
        return hint
    try:
        return hint[tuple(scope.get(parameter, parameter) for parameter in parameters)]
    except TypeError as error:  # Python's own rules: the members of a union must be hashable, arguments be types
        problem = f"{describe(hint)} cannot be given its type parameters: {error}"
        raise hint_error(where, problem, "change them") from None


def alias_value(hint: Any) -> Any:
    """Return the target of a PEP 695 alias, or of a generic one with its arguments."""
    return substitute((get_origin(hint) or hint).__value__, _scope(hint))


def default_of(parameter: Any) -> Any:
    """Return the default of a type parameter (PEP 696), or None."""
    has_default = getattr(parameter, "has_default", None)
    return parameter.__default__ if callable(has_default) and has_default() else None


def unwrap_qualifiers(hint: Any) -> tuple[set[str], Any]:
    """Return Required, NotRequired, ReadOnly and Final around a hint, and the hint itself."""
    marks: set[str] = set()
    while (name := getattr(get_origin(hint), "_name", None)) in QUALIFIERS:
        marks.add(name)
        hint = hint.__args__[0]
    return marks, hint


def loaded(module: str, name: str) -> Any:
    """Return `module.name` if the module is imported already, else None: optional libraries are never imported here."""
    return getattr(sys.modules.get(module), name, None)


class FieldSpec(NamedTuple):
    """One field as its class declares it."""

    name: str  # the property in JSON
    key: str  # the argument of the constructor
    hint: Any
    required: bool
    default: Any = NOTHING
    is_argument: bool = True  # False: computed by the class; decoded, checked and ignored


class ClassSpec(NamedTuple):
    """The fields of a class and how to build an instance, the same for all kinds of classes."""

    fields: list[FieldSpec]
    build: Callable[..., Any]
    native: bool
    closed: bool = False  # unknown properties are rejected
    tag: tuple[str, str | int] | None = None
    positional: bool = False  # an array in JSON


def plain_default(default: Any, factory: Any = NOTHING) -> Any:
    """Return a default for use in a schema; NOTHING if it has no JSON form or comes from a factory function."""
    if factory is not NOTHING:
        return to_plain(factory()) if factory in _EMPTY_FACTORIES else NOTHING
    if default is NOTHING or default is msgspec.UNSET:
        return NOTHING
    try:
        plain = to_plain(default)
    except NotPlainError:
        return NOTHING
    return NOTHING if find_nonfinite(plain) else plain


def spec_reader(cls: Any) -> Callable[[Any, dict[str, Any]], ClassSpec] | None:
    """Return the function that reads the spec of a class, given its resolved annotations; None without fields."""
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


def _struct(cls: Any, hints: dict[str, Any]) -> ClassSpec:
    config = cls.__struct_config__
    fields = [
        FieldSpec(
            field.encode_name,
            field.name,
            hints[field.name],
            field.required,
            plain_default(field.default, field.default_factory),
        )
        for field in msgspec.structs.fields(cls)
    ]
    tag = None if config.tag is None else (config.tag_field, config.tag)
    return ClassSpec(fields, cls, True, config.forbid_unknown_fields, tag, config.array_like)


def _dataclass(cls: Any, hints: dict[str, Any]) -> ClassSpec:
    import dataclasses  # the class has imported it: 1.8 ms of `import opwire` otherwise

    init_var: Any = dataclasses.InitVar
    fields: list[FieldSpec] = []
    native = cls.__dataclass_params__.init
    field_names = {field.name for field in dataclasses.fields(cls)}
    for field in cls.__dataclass_fields__.values():
        hint = hints[field.name]
        variable = isinstance(hint, init_var)
        if not variable and field.name not in field_names:
            continue  # a ClassVar
        native = native and field.init and not variable
        declared_defaults = (field.default, field.default_factory)
        default, factory = (NOTHING if declared is dataclasses.MISSING else declared for declared in declared_defaults)
        required = field.init and default is NOTHING and factory is NOTHING
        plain = plain_default(default, factory) if field.init else NOTHING
        fields.append(FieldSpec(field.name, field.name, hint.type if variable else hint, required, plain, field.init))
    return ClassSpec(fields, cls, native)


def _attrs(cls: Any, hints: dict[str, Any]) -> ClassSpec:
    nothing, factory_type = loaded("attr", "NOTHING"), loaded("attr", "Factory")
    fields: list[FieldSpec] = []
    for attribute in cls.__attrs_attrs__:
        default = NOTHING if attribute.default is nothing else attribute.default
        factory = default.factory if isinstance(default, factory_type) else NOTHING
        plain = plain_default(default, factory) if attribute.init else NOTHING
        hint = hints.get(attribute.name, attribute.type or Any)
        required = attribute.init and default is NOTHING
        fields.append(FieldSpec(attribute.name, attribute.alias, hint, required, plain, attribute.init))
    return ClassSpec(fields, cls, False)  # msgspec does not run converters


def _named_tuple(cls: Any, hints: dict[str, Any]) -> ClassSpec:
    defaults = cls._field_defaults
    fields = [
        FieldSpec(name, name, hints.get(name, Any), name not in defaults, plain_default(defaults.get(name, NOTHING)))
        for name in cls._fields
    ]
    return ClassSpec(fields, cls, True, closed=True, positional=True)


def _typed_dict(cls: Any, hints: dict[str, Any]) -> ClassSpec:
    fields: list[FieldSpec] = []
    for name, hint in hints.items():
        # A string annotation hides NotRequired from `__required_keys__`: the resolved hint decides.
        marks, bare = unwrap_qualifiers(hint)
        required = "NotRequired" not in marks and ("Required" in marks or name in cls.__required_keys__)
        fields.append(FieldSpec(name, name, bare, required))
    closed = getattr(cls, "__closed__", None) is True
    # msgspec does not fill in the type parameters of generic bases, and does not know `closed`.
    return ClassSpec(fields, dict, native=not closed and Generic not in cls.__mro__, closed=closed)
