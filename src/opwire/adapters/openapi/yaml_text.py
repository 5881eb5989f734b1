"""YAML as JSON would have it: dates, times, `yes`, `0777` and keys that are numbers stay the text that was written.

Built from libyaml's events, which is quicker than PyYAML's own construction and lets every rule stand here:

- A plain scalar is null, a boolean, a number or else a string; a key is always a string.
- An alias stands for a whole copy of its anchor. What a document would be when written out is counted, so that a few
  lines cannot stand for billions of values.
- Of two equal keys the last one counts, as in JSON, with a warning.
"""

import re
from collections.abc import Callable, Iterator
from math import inf, isfinite
from typing import Any, cast

import yaml

MAX_VALUES = 5_000_000
"""How many values a document may stand for: GitHub's, which is the largest that we know, has 0.6 million."""

# What is written out has at most half a value for each byte. Aliases may make it eight times as many, so that 1 kB
# cannot become the 615 MB that 5 million values of a schema take when they are used.
_FREE_VALUES, _VALUES_PER_BYTE = 20_000, 4

MAX_DEPTH = 400

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_DIGITS = 4_000  # Python refuses to read longer integers

_TYPED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null"))

_parser: Any = getattr(yaml, "CLoader", yaml.Loader)  # only for its events: it constructs nothing here


def read_yaml(text: str | bytes, warn: Callable[[str], None]) -> Any:
    """The plain data of a YAML document.

    Raises:
        ValueError: it is not YAML, or stands for too many values, or is nested too deeply.
    """
    try:
        most = min(_FREE_VALUES + _VALUES_PER_BYTE * len(text), MAX_VALUES)
        return _Builder(warn, most).build(cast("Any", yaml).parse(text, Loader=_parser))
    except yaml.YAMLError as error:
        raise ValueError(_telling(error)) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error}") from None


class _Open:
    """A mapping or sequence that is being read."""

    __slots__ = ("anchor", "key", "merged", "size", "value")

    def __init__(self, value: Any, anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: str | None = None  # of a mapping: the one whose value comes next
        self.merged: list[Any] = []  # what `<<` brings: it stands back behind the mapping's own keys
        self.size = 1


class _Builder:
    def __init__(self, warn: Callable[[str], None], most: int) -> None:
        self._warn = warn
        self._most = most
        self._stack: list[_Open] = [_Open([], None)]  # the outermost collects the documents
        self._anchors: dict[str, tuple[Any, int]] = {}

    def build(self, events: Iterator[Any]) -> Any:
        for event in events:
            match event:
                case yaml.ScalarEvent():
                    self._add(event, *self._scalar(event))
                case yaml.MappingStartEvent():
                    self._enter({}, event)
                case yaml.SequenceStartEvent():
                    self._enter([], event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._leave(event)
                case yaml.AliasEvent():
                    self._add(event, *self._alias(event))
                case _:  # where a stream or a document starts and ends
                    pass
        documents = self._stack[0].value
        if len(documents) > 1:
            self._warn("the file holds several YAML documents: the first one counts")
        return documents[0] if documents else None

    def _enter(self, value: Any, event: Any) -> None:
        if len(self._stack) > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}, {_place(event.start_mark)}")
        if isinstance(self._stack[-1].value, dict) and self._stack[-1].key is None:
            raise ValueError(f"a key has to be a scalar, {_place(event.start_mark)}")
        self._stack.append(_Open(value, event.anchor))

    def _leave(self, event: Any) -> None:
        done = self._stack.pop()
        for source in done.merged:
            for name, each in cast("dict[str, Any]", source).items() if isinstance(source, dict) else ():
                done.value.setdefault(name, each)
        if done.anchor is not None:  # only now: an anchor that holds an alias of itself has no JSON form
            self._anchors[done.anchor] = (done.value, done.size)
        self._add(event, done.value, done.size)

    def _alias(self, event: Any) -> tuple[Any, int]:
        try:
            return self._anchors[event.anchor]
        except KeyError:
            where = _place(event.start_mark)
            raise ValueError(f"the alias *{event.anchor} has no anchor that is complete, {where}") from None

    def _scalar(self, event: Any) -> tuple[Any, int]:
        parent = self._stack[-1]
        is_key = isinstance(parent.value, dict) and parent.key is None
        is_plain = (event.implicit[0] or event.tag in _TYPED) and not is_key
        value = _plain_value(event.value) if is_plain else event.value
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1)
        return value, 1

    def _add(self, event: Any, value: Any, size: int) -> None:
        parent = self._stack[-1]
        parent.size += size
        if parent.size > self._most:
            raise ValueError(f"it stands for more than {self._most:,} values, {_place(event.start_mark)}")
        into = parent.value
        if isinstance(into, list):
            cast("list[Any]", into).append(value)
        elif parent.key is None:
            if isinstance(value, dict | list):
                raise ValueError(f"a key has to be a scalar, {_place(event.start_mark)}")
            parent.key = str(value)
        else:
            self._put(parent, parent.key, value, event)
            parent.key = None

    def _put(self, parent: _Open, key: str, value: Any, event: Any) -> None:
        mapping = cast("dict[str, Any]", parent.value)
        if key == "<<" and isinstance(value, dict | list):
            parent.merged.extend(cast("list[Any]", value) if isinstance(value, list) else [value])
            return
        if key in mapping:
            self._warn(f"the key {key[:80]!r} stands twice in one mapping, {_place(event.start_mark)}: the last counts")
        mapping[key] = value


def _plain_value(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _INTEGER.fullmatch(text) and len(text) < _MAX_DIGITS:
        return int(text)
    number = float(text) if _FLOAT.fullmatch(text) else inf
    return number if isfinite(number) else text


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _telling(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem or 'it cannot be read'}, {_place(error.problem_mark)}"
    return str(error).replace("\n", " ")
