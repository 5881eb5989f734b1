"""What is wrong with a configuration file: collected, so that all of it can be said at once. No I/O."""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from opwire.config.places import Key

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
