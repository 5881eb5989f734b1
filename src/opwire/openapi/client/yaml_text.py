"""YAML text as plain data, as JSON would have it: dates, times, `yes`, `0777` and numeric keys stay strings. No I/O.

It is built from libyaml's events, which is faster than PyYAML's own constructors and keeps every rule in this file:

- A plain scalar is null, a boolean, a number, or else a string; a key is always a string.
- An alias is a copy of its anchor. The expanded size is counted, so that a few lines cannot become billions of values.
- The last of two equal keys wins, as in JSON, with a warning.
- Text that libyaml rejects and other parsers accept (js-yaml is the measure) is repaired and parsed again.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import isfinite
from typing import Any, cast

import yaml

from opwire.typed.plain import as_dict

MAX_EXPANDED_SIZE = 200_000_000
"""The size that a document may expand to, in characters: GitHub's, the largest known one, has 30 million."""

# The size of a document: the characters of its scalars, and as many for each value as that takes bytes as a schema.
# Without aliases, it is at most 17 times the length of the text.
_CHARACTERS_PER_VALUE = 32
_MIN_EXPANDED_SIZE = 1_000_000
_EXPANDED_SIZE_PER_CHARACTER = 20

MAX_DEPTH = 400

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TYPED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null"))

_loader: Any = getattr(yaml, "CLoader", yaml.Loader)  # only for its events: it constructs nothing here


# libyaml rejects these characters, or ends a line at them as YAML 1.1 did. Private characters replace them while it
# parses. The tab is replaced only at the start of a block scalar: `_repaired`.
_REJECTED = "\t\x7f" + "".join(map(chr, range(0x80, 0xA0))) + "\u2028\u2029\ufffe\uffff"
_SUBSTITUTES = {ord(char): chr(0x10FE00 + n) for n, char in enumerate(_REJECTED)}
_RESTORED = {ord(substitute): chr(char) for char, substitute in _SUBSTITUTES.items()}
_HIDDEN = {char: substitute for char, substitute in _SUBSTITUTES.items() if char != ord("\t")}
_TAB = _SUBSTITUTES[ord("\t")]

_BLOCK_TAB = re.compile(
    r"((?:^|[:?-])[ \t]+(?:[!&]\S{0,200}[ \t]+){0,2}[|>][-+]?[ \t]*(?:#.*)?\r?\n(?: *\r?\n)* +)\t", re.MULTILINE
)
_BLANKS = re.compile(r"[ \t]+")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPE = re.compile(
    r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F]..|\\.", re.DOTALL
)
_ANCHOR = re.compile(r"([&*])([^\s,\[\]{}]{1,200})")

# Each repair parses the text again, up to the next error: 16 million characters take about 0.2 s.
_MAX_REPARSED_CHARACTERS = 16_000_000
_CHARACTERS_PER_REPAIR = 16_000  # as long as a repair takes at least


def read_yaml(text: str | bytes, warn: Callable[[str], None]) -> Any:
    """Return the plain data of a YAML document.

    Raises:
        ValueError: it is not YAML, expands to too many values, or is nested too deeply.
    """
    warnings: list[str] = []

    def parse(text: str | bytes, *, restore: bool = False) -> Any:
        max_size = min(_MIN_EXPANDED_SIZE + _EXPANDED_SIZE_PER_CHARACTER * len(text), MAX_EXPANDED_SIZE)
        builder = _YAMLBuilder(warnings.append, max_size, restore=restore)
        return builder.build(cast("Any", yaml).parse(text, Loader=_loader))

    try:
        try:
            document = parse(text)
        except yaml.YAMLError:
            decoded = text if isinstance(text, str) else text.decode()
            if _loader is yaml.Loader or not _RESTORED.keys().isdisjoint(map(ord, set(decoded))):
                raise
            warnings.clear()
            document = parse(_repair(decoded.translate(_HIDDEN)), restore=True)
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is None:
            raise ValueError(str(error).replace("\n", " ")) from None
        raise ValueError(f"{error.problem or 'invalid YAML'}, {_position(error.problem_mark)}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error}") from None
    for warning in warnings:
        warn(warning)
    return document


def _repair(text: str) -> str:
    """Repair a text with replaced characters, at each error, as long as that is possible.

    Errors are found by the parser alone, without Python events: 15 times as fast as a builder.
    """
    reparsed_characters = 0
    while True:
        loader = _loader(text)
        try:
            loader.raw_parse()
            return text
        except yaml.MarkedYAMLError as error:
            if error.problem_mark is None:
                raise
            reparsed_characters += _CHARACTERS_PER_REPAIR + error.problem_mark.index
            if reparsed_characters > _MAX_REPARSED_CHARACTERS:
                raise
            repaired = _repaired(text, error, error.problem_mark.index)
            if repaired is None or repaired == text:
                raise
            text = repaired
        finally:
            loader.dispose()


def _repaired(text: str, error: yaml.MarkedYAMLError, at: int) -> str | None:
    """Return the text without the cause of an error at a position; None if it is invalid in YAML 1.2 as well.

    Line numbers stay the same. In a folded scalar, a first line with a tab is joined with the next one.
    """
    problem, start = str(error.problem), error.context_mark.index if error.context_mark else at
    if "tab character where an indentation" in problem:  # all at once: where there is one, there are more
        return _BLOCK_TAB.sub(rf"\1{_TAB}", text)
    if ("cannot start any token" in problem or "violates indentation" in problem) and (
        blanks := _BLANKS.match(text, at)
    ):
        before = text[text.rfind("\n", 0, at) + 1 : at].strip()
        if text[blanks.end() : blanks.end() + 1] in ("", "#", "\r", "\n") or before[-1:] in ("-", "?", ":"):
            return f"{text[:at]}{' ' * (blanks.end() - at)}{text[blanks.end() :]}"
    if "character escape code" in problem and (quoted := _QUOTED.match(text, start)):
        return f"{text[:start]}{_ESCAPE.sub(_unescaped, quoted[0])}{text[quoted.end() :]}"
    if "alphabetic or numeric character" in problem and (name := _ANCHOR.match(text, start)):
        renamed = f"x-{name[2].encode().hex()}"  # libyaml takes only letters and digits
        if name[1] == "&" or f"&{renamed}" in text:
            return f"{text[:start]}{name[1]}{renamed}{text[name.end() :]}"
    return None


def _unescaped(escape: re.Match[str]) -> str:
    """Return the character of a surrogate pair, which is how JSON writes it; keep other escapes."""
    if escape[1] is not None:
        return bytes.fromhex(escape[1] + escape[2]).decode("utf-16-be")
    return "\ufffd" if len(escape[0]) > 2 else escape[0]


class _OpenContainer:
    """A mapping or sequence that is being parsed."""

    __slots__ = ("anchor", "key", "merged", "size", "value")

    def __init__(self, value: Any, anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: str | None = None  # in a mapping, the key of the next value
        self.merged: list[Any] = []  # mappings from `<<`, overridden by the mapping's own keys
        self.size = _CHARACTERS_PER_VALUE


class _YAMLBuilder:
    def __init__(self, warn: Callable[[str], None], max_size: int, *, restore: bool) -> None:
        self._warn = warn
        self._max_size = max_size
        self._restore = restore  # the characters that were replaced
        self._stack: list[_OpenContainer] = [_OpenContainer([], None)]  # the outermost collects the documents
        self._anchors: dict[str, tuple[Any, int]] = {}  # a value and its size

    def build(self, events: Iterator[Any]) -> Any:
        for event in events:
            match event:
                case yaml.ScalarEvent():
                    self._add(event, self._scalar(event), _CHARACTERS_PER_VALUE + len(event.value))
                case yaml.MappingStartEvent():
                    self._enter({}, event)
                case yaml.SequenceStartEvent():
                    self._enter([], event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._leave(event)
                case yaml.AliasEvent():
                    if event.anchor not in self._anchors:
                        where = _position(event.start_mark)
                        raise ValueError(f"the alias *{event.anchor} has no complete anchor, {where}")
                    self._add(event, *self._anchors[event.anchor])
                case yaml.DocumentStartEvent() if self._stack[0].value:  # 200,000 empty ones in 0.8 MB take 1.6 s
                    self._warn("the file has several YAML documents: only the first is used")
                    break
                case _:  # start or end of a stream or document
                    pass
        return next(iter(self._stack[0].value), None)

    def _enter(self, value: Any, event: Any) -> None:
        if len(self._stack) > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}, {_position(event.start_mark)}")
        if isinstance(self._stack[-1].value, dict) and self._stack[-1].key is None:
            raise ValueError(f"a key must be a scalar, {_position(event.start_mark)}")
        self._stack.append(_OpenContainer(value, event.anchor))

    def _leave(self, event: Any) -> None:
        done = self._stack.pop()
        for source in done.merged:
            for name, merged_value in as_dict(source).items():
                done.value.setdefault(name, merged_value)
        if done.anchor is not None:  # only now: an anchor that contains its own alias has no JSON form
            self._anchors[done.anchor] = (done.value, done.size)
        self._add(event, done.value, done.size)

    def _scalar(self, event: Any) -> Any:
        parent, value = self._stack[-1], event.value.translate(_RESTORED) if self._restore else event.value
        is_key = isinstance(parent.value, dict) and parent.key is None
        if (event.implicit[0] or event.tag in _TYPED) and not is_key:
            if value in _CONSTANTS:
                value = _CONSTANTS[value]
            elif value[0] in "-+.0123456789":
                value = _number(value)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, _CHARACTERS_PER_VALUE + len(event.value))
        return value

    def _add(self, event: Any, value: Any, size: int) -> None:
        parent = self._stack[-1]
        parent.size += size
        if parent.size > self._max_size:
            limit = f"{self._max_size:,} characters, where a value counts as {_CHARACTERS_PER_VALUE}"
            raise ValueError(f"it expands to more than {limit}, {_position(event.start_mark)}")
        into, key = parent.value, parent.key
        if isinstance(into, list):
            cast("list[Any]", into).append(value)
        elif key is None:
            if isinstance(value, dict | list):
                raise ValueError(f"a key must be a scalar, {_position(event.start_mark)}")
            parent.key = str(value)
        else:
            parent.key = None
            if key == "<<" and isinstance(value, dict | list):
                parent.merged.extend(cast("list[Any]", value) if isinstance(value, list) else [value])
                return
            if key in into:
                self._warn(f"duplicate key {key[:80]!r}, {_position(event.start_mark)}: the last one wins")
            into[key] = value


def _number(text: str) -> int | float | str:
    """Return the number that a text is; the text itself if it is none, or none that Python reads."""
    with suppress(ValueError):  # an integer of more than 4,300 digits
        if _INTEGER.fullmatch(text):
            return int(text)
    if _FLOAT.fullmatch(text) and isfinite(number := float(text)):
        return number
    return text


def _position(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
