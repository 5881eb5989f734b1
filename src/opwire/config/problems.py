"""What is wrong with a configuration file: collected, so that all of it can be said at once. No I/O.

On which lines of a TOML text its keys stand: `tomllib` does not say. No I/O.

A small scanner of the lines that begin a table or give a key a value. It does not have to be right about every TOML
text in the world: where it sees nothing, a mistake is reported at the table around it.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from msgspec import Struct

Key = tuple[str | int, ...]
"""The names of the tables and the key: ("sources", "shop", "args", 0)."""

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]")
_VALUE = re.compile(rf"\s*({_DOTTED})\s*=")
_LONG = re.compile(r'"""|' + "'''")


class Places:
    """Where the keys of a TOML text stand."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Key, int] = {}
        table: Key = ()
        delimiter = ""  # of the text over several lines that this line is a part of
        for number, line in enumerate(text.split("\n"), 1):
            if not delimiter:
                if found := _TABLE.match(line):
                    table = _parts(found[1])
                    self._lines.setdefault(table, number)
                elif found := _VALUE.match(line):
                    self._lines.setdefault(table + _parts(found[1]), number)
            for quotes in _LONG.findall(line):
                delimiter = quotes if not delimiter else "" if quotes == delimiter else delimiter

    def line_of(self, key: Key) -> int | None:
        """The line of a key, or of the nearest thing around it; None if there is none."""
        while key:
            if line := self._lines.get(key):
                return line
            key = key[:-1]
        return None


def _parts(dotted: str) -> Key:
    """`a."b.c"` as ("a", "b.c"): TOML's own parser knows best."""
    parts: list[str] = []
    try:
        inner: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    while isinstance(inner, dict):
        name, inner = next(iter(cast("dict[str, Any]", inner).items()))
        parts.append(name)
    return tuple(parts)


_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Finding(NamedTuple):
    """A mistake, before anybody knows its line."""

    key: Key
    problem: str
    suggestion: str = ""


class Mistake(Struct, frozen=True):
    """One thing that is wrong: at which key and on which line, what, and what was probably meant."""

    key: str
    problem: str
    suggestion: str = ""
    line: int | None = None

    def __str__(self) -> str:
        line = f"line {self.line}, " if self.line is not None else ""
        hint = f"; {self.suggestion}" if self.suggestion else ""
        return f"{line}{self.key or 'the file'} {self.problem}{hint}"


def dotted(key: Key) -> str:
    """A key as TOML writes it: `sources."my shop".args[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE.fullmatch(part) else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
            text += f".{name}" if text else name
    return text


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A suggestion, if one of the known words comes close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def told(file: str, mistakes: Sequence[Mistake]) -> str:
    """The message of a ConfigError."""
    if len(mistakes) == 1:
        return f"{file}: {mistakes[0]}"
    return f"{file} has {len(mistakes)} mistakes:" + "".join(f"\n  {each}" for each in mistakes)
