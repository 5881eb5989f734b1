"""On which lines of a TOML text its keys stand: `tomllib` does not say. No I/O.

A small scanner of the lines that begin a table or give a key a value. It does not have to be right about every TOML
text in the world: where it sees nothing, a mistake is reported at the table around it.
"""

import re
import tomllib
from typing import Any, cast

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
