"""Type hints as they are written, made ready to be walked: annotations resolved, type parameters filled in."""

import inspect
import sys
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Hashable, Iterable, Iterator
from typing import Annotated, Any, TypeVar, get_args, get_origin

from opwire.errors import HintError

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
