"""Tables of a TOML file as settings. No I/O.

msgspec would stop at the first mistake. Here all of them are found: what cannot be read is told and left out, and
reading goes on.
"""

from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from opwire.config.environment import EnvText, problem_of
from opwire.config.mistakes import Finding, did_you_mean
from opwire.config.places import Key

Complain = Callable[[Finding], object]
"""Is told of every mistake."""

S = TypeVar("S", bound=Struct)

_WRONG: Any = object()  # instead of a value that could not be read
_WORDS = {"bool": "true or false", "float": "a number", "int": "a whole number", "str": "a text"}
_SHOWN = 30  # characters of a word that is none of those that were expected
_MANY = 5  # names that are listed where none comes close


def read_table(
    table: Mapping[str, Any], kind: type[S], complain: Complain, *, unread: tuple[str, ...] = ()
) -> S | None:
    """A table as settings of this kind, of which the fields that are `unread` do not stand in files.

    What is wrong is left out; where that cannot be, because it is needed, the answer is None.
    """
    read = _Reader(complain, unread).struct((), table, kind)
    return None if read is _WRONG else read


class _Reader:
    """Reads values as their types."""

    def __init__(self, complain: Complain, unread: tuple[str, ...]) -> None:
        self._complain = complain
        self._unread = unread

    def struct(self, key: Key, table: Mapping[str, Any], kind: type[Struct]) -> Any:
        fields = {each.name: each for each in msgspec.structs.fields(kind) if key or each.name not in self._unread}
        for name in table.keys() - fields.keys():
            known = [each for each in fields if each not in table]
            hint = did_you_mean(name, known) or (f"the keys are {', '.join(fields)}" if len(fields) <= _MANY else "")
            self._complain(Finding((*key, name), "is no key that is known here", hint))
        values: dict[str, Any] = {}
        for name, field in fields.items():
            if name in table:
                values[name] = self._value((*key, name), table[name], field.type)
            elif _is_required(field):
                values[name] = self._wrong(key, f"has no {name}", f"{name} is {_expected(field.type)}")
        if any(_is_required(fields[name]) for name, value in values.items() if value is _WRONG):
            return _WRONG
        return kind(**{name: value for name, value in values.items() if value is not _WRONG})

    def _value(self, key: Key, value: Any, kind: Any) -> Any:
        if get_origin(kind) in (Union, UnionType):
            kind = self._chosen(key, value, [each for each in get_args(kind) if each is not NoneType])
        if kind is _WRONG:
            return _WRONG
        if _is_text(kind):
            return self._text(key, value, kind)
        if _is_struct(kind):
            return self._table(key, value, kind)
        if get_origin(kind) is dict:
            return self._by_name(key, value, kind)
        if get_origin(kind) is tuple:
            return self._list(key, value, kind)
        return self._plain(key, value, kind)

    def _table(self, key: Key, value: Any, kind: type[Struct]) -> Any:
        if not isinstance(value, dict):
            return self._unexpected(key, value, kind)
        return self.struct(key, cast("dict[str, Any]", value), kind)

    def _chosen(self, key: Key, value: Any, kinds: list[Any]) -> Any:
        """Which of several types a value is meant to be: of tables, the one whose mark it has."""
        if len(kinds) == 1:
            return kinds[0]
        tables: dict[str, Any] = {_mark(each): each for each in kinds if _is_struct(each)}
        lists = [each for each in kinds if get_origin(each) is tuple]
        texts = [each for each in kinds if each not in lists and not _is_struct(each)]
        if isinstance(value, list) and lists:
            return lists[0]
        if not isinstance(value, dict) or (texts and value.keys() == {"env"}):
            return texts[0] if texts else self._unexpected(key, value, dict[str, Any])
        found = [mark for mark in tables if mark in value]
        if len(found) == 1:
            return tables[found[0]]
        if found:
            return self._wrong(key, f"is one thing, and has {' and '.join(found)}", "leave one of them")
        close = next((hint for each in cast("dict[str, Any]", value) if (hint := did_you_mean(each, tables))), "")
        return self._wrong(key, f"has none of {', '.join(tables)}, which say what it is", close)

    def _text(self, key: Key, value: Any, kind: type[EnvText]) -> Any:
        if isinstance(value, dict) and value.keys() == {"env"} and isinstance(value["env"], str):
            value = f"${{{value['env']}}}"
        if not isinstance(value, str):
            return self._unexpected(key, value, kind)
        text = kind(value)
        problem = problem_of(text)
        return text if problem is None else self._wrong(key, *problem)

    def _by_name(self, key: Key, value: Any, kind: Any) -> Any:
        if not isinstance(value, dict):
            return self._unexpected(key, value, kind)
        table, of = cast("dict[str, Any]", value), get_args(kind)[1]
        read = {name: self._value((*key, name), each, of) for name, each in table.items()}
        return {name: each for name, each in read.items() if each is not _WRONG}

    def _list(self, key: Key, value: Any, kind: Any) -> Any:
        if not isinstance(value, list):
            return self._unexpected(key, value, kind)
        read = [self._value((*key, at), each, get_args(kind)[0]) for at, each in enumerate(cast("list[Any]", value))]
        return tuple(each for each in read if each is not _WRONG)

    def _plain(self, key: Key, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            pass
        if isinstance(value, str) and get_origin(kind) is Literal:
            problem = f'is {_expected(kind)}, not "{value[:_SHOWN]}"'
            return self._wrong(key, problem, did_you_mean(value, get_args(kind)))
        return self._unexpected(key, value, kind)

    def _unexpected(self, key: Key, value: Any, kind: Any) -> Any:
        # Of numbers alone the value is shown: a text may be a secret that was put into the wrong place.
        shown = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _kind_of(value)
        return self._wrong(key, f"is {_expected(kind)}, not {shown}")

    def _wrong(self, key: Key, problem: str, hint: str = "") -> Any:
        self._complain(Finding(key, problem, hint))
        return _WRONG


def _is_text(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, EnvText)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct) and not issubclass(kind, EnvText)


def _is_required(field: FieldInfo) -> bool:
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _mark(kind: type[Struct]) -> str:
    """The key that tells a table of this kind from others: its first that is needed."""
    return next(each.name for each in msgspec.structs.fields(kind) if _is_required(each))


def _expected(kind: Any) -> str:
    """A type in words."""
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(f'"{each}"' for each in get_args(kind))
    if origin is Annotated:
        return f"{_expected(get_args(kind)[0])} {_bounds(get_args(kind)[1])}"
    if origin is dict:
        return "a table"
    if origin is tuple:
        return "a list"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_expected(each) for each in get_args(kind) if each is not NoneType))
    if _is_text(kind):
        return "a text"
    return "a table" if _is_struct(kind) else _WORDS[kind.__name__]


def _bounds(meta: msgspec.Meta) -> str:
    low = f"above {meta.gt}" if meta.gt is not None else f"of {meta.ge} or more"
    high = f"below {meta.lt:g}" if meta.lt is not None else f"up to {meta.le}" if meta.le is not None else ""
    return f"{low} and {high}" if high else low


def _kind_of(value: Any) -> str:
    """A TOML value in words, without showing it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return _WORDS.get(type(value).__name__, "a date or time")
