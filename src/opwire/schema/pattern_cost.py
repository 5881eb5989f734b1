"""The time that a pattern may take for a text, beyond a few nanoseconds per character. No I/O.

Patterns with lookarounds or back-references run on an engine that stops after `MAX_STEPS`; but each step may read the
rest of the text, and a search begins at every character: `(?=a*b)c` took 20 s for 1 MB. Others run on a linear engine:
their time per character grows with counts, `[ab]*a[ab]{900}c` took 8 s, and with parts that may be absent, one after
the other: 5,000 times `a?` took 0.1 s for 1,000 characters.
"""

import re
from typing import Any, Final

MAX_STEPS: Final = 10_000
"""Steps after which the backtracking engine stops; the pattern then counts as not matching."""

_BACKTRACKING: Final = 2_000  # units: 10,000 steps that read little take 0.3 ms at worst
_CHARACTERS: Final = 8  # that a step reads, or states that a character passes, per unit of 10 to 20 ns
_FEW_STATES: Final = 200  # from counts, as in `[a-z]{1,63}(\.[a-z]{1,63})*`: at most 2 µs per character
_OPTIONAL: Final = 16  # states that a part counts for that may be absent: all of them are tried for each character
_STATES_PER_STEP: Final = 50
_FEW_LOOKAROUNDS: Final = 8
_SHORT: Final = 10  # characters: too few to backtrack often

# Compiled by their first use, not by `import opwire`: 0.6 ms.
_ELEMENT = r"(?s)\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,5})(,(\d{0,5}))?\}|\(\?<?[=!]|."
_REPEATED_GROUP = r"\)[*+{]"
_NOT_REGULAR = r"\(\?(?:[=!>]|<[=!])|\\[1-9k]|[*+?}]\+"
_ABSENT = ("?", "*", "{0", "|)", "(|")  # these make a part optional
_REFERENCE = r"\\[1-9k]"


class PatternPrice:
    """The price of one pattern, in units; `matters` is false for most."""

    __slots__ = ("_backtracks", "_is_quadratic", "_states", "matters")

    def __init__(self, pattern: Any) -> None:
        text = pattern if isinstance(pattern, str) else ""
        found = _Structure(text)
        optional = sum(map(text.count, _ABSENT))
        many = max(found.added, optional) > _FEW_STATES
        self._states = max(found.added, optional * _OPTIONAL) if many else 0
        self._backtracks = bool(re.search(_REPEATED_GROUP, text) and re.search(_NOT_REGULAR, text))
        self._is_quadratic = found.rereads or re.search(_REFERENCE, text) is not None
        self.matters = bool(self._states) or self._backtracks or self._is_quadratic

    def of(self, text: str) -> int:
        """Return the units that a search in a text takes at most."""
        size = len(text)
        if size <= _SHORT:
            return 0
        steps = min(size, MAX_STEPS) if self._is_quadratic else 0
        read = self._states + steps * (1 + self._states // _STATES_PER_STEP)
        return size * read // _CHARACTERS + (_BACKTRACKING if self._backtracks else 0)


class _Structure:
    """What a pattern costs: the states that its counts add, and whether it may read the same text at every step.

    Lookarounds with a repetition do, except a few at the start of a pattern that matches only at the start of a text:
    `^(?!\\s*$)(?=.*[0-9])`.
    """

    def __init__(self, pattern: str) -> None:
        self.rereads = False
        self._groups: list[tuple[int, bool]] = [(0, False)]  # states, and whether it is a lookaround that may reread
        self._last = self._leading = atoms = 0
        is_start = is_anchored = pattern.startswith("^")
        for token in re.finditer(_ELEMENT, pattern) if "{" in pattern or "(" in pattern else ():
            match token[0][0]:
                case "(":
                    looks = len(token[0]) > 1
                    is_leading = looks and is_start and len(self._groups) == 1
                    self._leading += is_leading
                    self._groups.append((0, looks and not is_leading))
                    is_start = is_start and (looks or len(self._groups) > 2)
                case ")" if len(self._groups) > 1:
                    self._last = self._groups.pop()[0]
                    self._add(self._last)
                case "|" if len(self._groups) == 1:
                    is_anchored = False
                case "*" | "+" | "?" | "{" if token[0] != "{":
                    self._repeat(token)
                case _:
                    self._last, atoms = 1, atoms + 1
                    self._add(1)
                    is_start = is_start and (len(self._groups) > 1 or token.start() == 0)
        self.added = sum(states for states, _ in self._groups) - atoms
        self.rereads = self.rereads or (self._leading > (_FEW_LOOKAROUNDS if is_anchored else 0))

    def _add(self, states: int) -> None:
        before, looks = self._groups[-1]
        self._groups[-1] = before + states, looks

    def _repeat(self, token: re.Match[str]) -> None:
        if token[0] != "?" and any(looks for _, looks in self._groups):
            self.rereads = True
        if token[1] is not None:
            count = max(int(token[1]) + (token[2] is not None), int(token[3] or 0), 1)
            self._add(self._last * (count - 1))
            self._last *= count
