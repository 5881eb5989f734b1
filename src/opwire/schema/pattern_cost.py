"""Estimate how long jsonschema-rs may search a text for a pattern. No I/O.

A pattern is ordinary, and costs nothing extra, unless it has one of three properties:

- **Many states.** A pattern without lookarounds and back-references runs on an engine that is linear in the text, but
  each character passes all states: `[ab]*a[ab]{900}c` took 8 s for 1 MB. Counts multiply states, and so do parts that
  may be absent: 5,000 times `a?` took 0.1 s for 1,000 characters.
- **Rereading.** Other patterns run on an engine that stops after `MAX_STEPS`. But each step of a lookaround or
  back-reference may read the rest of the text, and a search begins at every character: `(?=a*b)c` took 20 s for 1 MB.
- **Backtracking.** A repeated group may use up the steps of that engine even on a short text.
"""

import re
from typing import Any, Final

MAX_STEPS: Final = 10_000
"""Steps after which the backtracking engine stops; the pattern then counts as not matching."""

# Costs are in units of 10 to 20 ns, as in `cost`.
_STATES_PER_UNIT: Final = 8  # that one character passes; also the characters that one step reads
_STATES_PER_OPTIONAL_PART: Final = 16  # every one of them is tried at each character
_STATES_PER_STEP: Final = 50
_BACKTRACKING_UNITS: Final = 2_000  # `MAX_STEPS` that read little take 0.3 ms at worst

_ORDINARY_STATES: Final = 200  # `[a-z]{1,63}(\.[a-z]{1,63})*` has 126, and a character takes at most 2 µs
_ORDINARY_LOOKAROUNDS: Final = 8  # at the start of an anchored pattern, as in the rules for a password
_ORDINARY_LENGTH: Final = 10  # characters of a text that is too short for any of this

# Compiled with their first use, not by `import opwire`: 0.6 ms.
_ELEMENT = r"(?s)\\.|\[(?:\\.|[^\]\\])*\]|\{(?P<least>\d{1,5})(?P<range>,(?P<most>\d{0,5}))?\}|\(\?<?[=!]|."
_REPEATED_GROUP = r"\)[*+{]"
_NEEDS_BACKTRACKING = r"\(\?(?:[=!>]|<[=!])|\\[1-9k]|[*+?}]\+"
_BACK_REFERENCE = r"\\[1-9k]"
_OPTIONAL_PART_MARKERS = ("?", "*", "{0", "|)", "(|")


class PatternCost:
    """What searching a text for one pattern may cost, in units."""

    __slots__ = ("_backtracks", "_rereads", "_states")

    def __init__(self, pattern: Any) -> None:
        source = pattern if isinstance(pattern, str) else ""
        structure = _PatternStructure(source)
        optional_parts = sum(map(source.count, _OPTIONAL_PART_MARKERS))
        has_many_states = max(structure.repeated_states, optional_parts) > _ORDINARY_STATES
        states = max(structure.repeated_states, optional_parts * _STATES_PER_OPTIONAL_PART)
        self._states = states if has_many_states else 0
        self._rereads = structure.rereads or re.search(_BACK_REFERENCE, source) is not None
        self._backtracks = bool(re.search(_REPEATED_GROUP, source) and re.search(_NEEDS_BACKTRACKING, source))

    @property
    def is_ordinary(self) -> bool:
        """Whether no text costs anything extra."""
        return not (self._states or self._rereads or self._backtracks)

    def units(self, text: str) -> int:
        """Return the units that searching a text may take beyond those of an ordinary pattern."""
        length = len(text)
        if length <= _ORDINARY_LENGTH:
            return 0
        steps = min(length, MAX_STEPS) if self._rereads else 0
        states_per_character = self._states + steps * (1 + self._states // _STATES_PER_STEP)
        return length * states_per_character // _STATES_PER_UNIT + self._backtracks * _BACKTRACKING_UNITS


class _Group:
    """An open group of a pattern, or the pattern itself."""

    __slots__ = ("may_reread", "states")

    def __init__(self, *, may_reread: bool) -> None:
        self.states = 0
        self.may_reread = may_reread  # a lookaround, unless it is only tried at the start of the text


class _PatternStructure:
    """What one pass over the tokens of a pattern finds.

    A lookaround with a repetition rereads the text at every step. A few at the start of a pattern that matches only at
    the start of a text do not: `^(?!\\s*$)(?=.*[0-9])`.
    """

    def __init__(self, pattern: str) -> None:
        self.rereads = False
        self._groups = [_Group(may_reread=False)]
        self._last_states = 0  # of the token that a quantifier repeats
        leading_lookarounds = atoms = 0
        at_start = is_anchored = pattern.startswith("^")
        for token in re.finditer(_ELEMENT, pattern) if "{" in pattern or "(" in pattern else ():
            is_top_level = len(self._groups) == 1
            match token[0][0]:
                case "(":
                    is_lookaround = len(token[0]) > 1
                    is_leading = is_lookaround and at_start and is_top_level
                    leading_lookarounds += is_leading
                    self._groups.append(_Group(may_reread=is_lookaround and not is_leading))
                    at_start = at_start and (is_lookaround or not is_top_level)
                case ")" if not is_top_level:
                    self._last_states = self._groups.pop().states
                    self._groups[-1].states += self._last_states
                case "|" if is_top_level:
                    is_anchored = False
                case "*" | "+" | "?" | "{" if token[0] != "{":
                    self._repeat(token)
                case _:
                    atoms += 1
                    self._last_states = 1
                    self._groups[-1].states += 1
                    at_start = at_start and (not is_top_level or token.start() == 0)
        self.repeated_states = sum(group.states for group in self._groups) - atoms
        if leading_lookarounds > (_ORDINARY_LOOKAROUNDS if is_anchored else 0):
            self.rereads = True

    def _repeat(self, quantifier: re.Match[str]) -> None:
        """Account for `*`, `+`, `?` or a count of the last token."""
        if quantifier[0] != "?" and any(group.may_reread for group in self._groups):
            self.rereads = True
        if quantifier["least"] is not None:
            is_range = quantifier["range"] is not None
            repetitions = max(int(quantifier["least"]) + is_range, int(quantifier["most"] or 0), 1)
            self._groups[-1].states += self._last_states * (repetitions - 1)
            self._last_states *= repetitions
