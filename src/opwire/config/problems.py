"""Problems of a configuration file: their messages, and the lines of their keys. No I/O.

`tomllib` does not report lines. `TOMLLines` is a small scanner for lines that start a table or assign a key. It does
not have to handle every TOML document: for a key that it misses, the line of the enclosing table is reported.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import Struct

Key = tuple[str | int, ...]
"""The names of the tables and the key: ("sources", "shop", "args", 0)."""

_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]")
_VALUE = re.compile(rf"\s*({_DOTTED})\s*=")
_MULTILINE = re.compile(r'"""|' + "'''")
_MAX_SHOWN = 20  # problems in a message
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class TOMLLines:
    """The line numbers of the keys of a TOML document."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Key, int] = {}
        table: Key = ()
        delimiter = ""  # of the multi-line string that this line is a part of
        for number, line in enumerate(text.split("\n"), 1):
            if not delimiter:
                if found := _TABLE.match(line):
                    table = _parse_key(found[1])
                    self._lines.setdefault(table, number)
                elif found := _VALUE.match(line):
                    self._lines.setdefault(table + _parse_key(found[1]), number)
            for quotes in _MULTILINE.findall(line):
                delimiter = quotes if not delimiter else "" if quotes == delimiter else delimiter

    def line_of(self, key: Key) -> int | None:
        """Return the line of a key, or of the nearest enclosing one; None if it is unknown."""
        while key:
            if line := self._lines.get(key):
                return line
            key = key[:-1]
        return None


def _parse_key(dotted: str) -> Key:
    """Parse `a."b.c"` as ("a", "b.c"), with TOML's own parser."""
    parts: list[str] = []
    try:
        inner: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    while isinstance(inner, dict):
        name, inner = next(iter(cast("dict[str, Any]", inner).items()))
        parts.append(name)
    return tuple(parts)


class ConfigProblem(Struct, frozen=True):
    """One problem of a file: its key, what is wrong, what to do, and the line."""

    path: Key
    message: str
    suggestion: str = ""
    line: int | None = None

    @property
    def key(self) -> str:
        """The key as TOML writes it."""
        return dotted(self.path)

    def __str__(self) -> str:
        where = ", ".join([f"line {self.line}"] * (self.line is not None) + [self.key] * bool(self.path))
        hint = f"; {self.suggestion}" if self.suggestion else ""
        return f"{where}: {self.message}{hint}" if where else f"{self.message}{hint}"


def dotted(key: Key) -> str:
    """Return a key as TOML writes it: `sources."my shop".args[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE.fullmatch(part) else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
            text += f".{name}" if text else name
    return text


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a suggestion, or an empty string if no known word is close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def problems_message(file: str, problems: Sequence[ConfigProblem]) -> str:
    """Return the message of a ConfigError."""
    if len(problems) == 1:
        return f"{file}: {problems[0]}"
    shown = "".join(f"\n  {each}" for each in problems[:_MAX_SHOWN])
    more = f"\n  and {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else ""
    return f"{file} has {len(problems)} problems:{shown}{more}"
