"""Names that are given once each, names similar to an unknown one, nouns with a number, and limits. No I/O.

Names come from documents and peers, so numbering must stay linear however they collide: trying `name_2`, `name_3`, …
from the start for each of 8,000 equal names took 6 s.
"""

from collections.abc import Callable, Iterable
from heapq import nlargest
from itertools import islice
from math import ceil

MAX_COMPARED_NAME = 200
"""The length of a name for which similar ones are searched."""

_MAX_SEARCHED_NAMES = 4_000
_MAX_COMPARED_NAMES = 12  # in full, with as many substrings to select them
_MAX_RATIO_DIFFERENCE = 0.15  # shop.ordr is similar to shop.order, and to shop.visitors only by its namespace

_NUMBER_LENGTH = 12  # kept free for `_` and a number


class UniqueNames:
    """Names that are taken, so that none is given twice and none is longer than it may be."""

    def __init__(self, taken: Iterable[str] = (), *, longest: int = 200) -> None:
        self._taken = set(taken)
        self._longest = longest
        # By what stands before the number, cut to length: names that differ only beyond the cut share one count.
        self._next: dict[str, int] = {}

    def take(self, wish: str) -> str:
        """Return the name itself, cut to length, or the name with the next free number behind it."""
        name = wish[: self._longest]
        if name in self._taken:
            stem = wish[: self._longest - _NUMBER_LENGTH]
            number = self._next.get(stem, 2)
            while (name := f"{stem}_{number}") in self._taken:
                number += 1
            self._next[stem] = number + 1
        self._taken.add(name)
        return name

    def give_back(self, name: str) -> None:
        """Free a name that is not needed after all; its number is used again if it was the last one given."""
        self._taken.discard(name)
        stem, _, digits = name.rpartition("_")
        if digits == str(self._next.get(stem, 0) - 1):
            self._next[stem] -= 1


def similar_names(name: str, names: Iterable[str], *, visible: Callable[[str], bool] | None = None) -> list[str]:
    """Return up to three visible names similar to an unknown one, in bounded time."""
    import difflib

    if len(name) > MAX_COMPARED_NAME:
        return []
    pieces = [name[at : at + 3] for at in range(0, len(name), 1 + len(name) // _MAX_COMPARED_NAMES)]
    # difflib takes 0.1 ms per name; counting shared substrings, at 1 µs per name, selects the candidates.
    likely = nlargest(
        4 * _MAX_COMPARED_NAMES,
        islice(names, _MAX_SEARCHED_NAMES),
        key=lambda candidate: sum(map(candidate.__contains__, pieces)) - abs(len(candidate) - len(name)) / 100,
    )
    visible_names = likely if visible is None else [candidate for candidate in likely if visible(candidate)]
    close = difflib.get_close_matches(name, visible_names[:_MAX_COMPARED_NAMES], n=3)
    ratios = [difflib.SequenceMatcher(None, candidate, name).ratio() for candidate in close]  # falling
    return [
        candidate for candidate, ratio in zip(close, ratios, strict=True) if ratios[0] - ratio <= _MAX_RATIO_DIFFERENCE
    ]


def did_you_mean(close: Iterable[str]) -> str:
    """Return "did you mean a or b?", or "" for no names."""
    names = " or ".join(close)
    return f"did you mean {names}?" if names else ""


def suggestion(close: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown name: "; did you mean a or b?", or another hint."""
    hint = did_you_mean(close) or otherwise
    return f"; {hint}" if hint else ""


def counted(number: int, noun: str) -> str:
    """Return `1 operation`, `1,223 operations`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def limit_text(seconds: float) -> str:
    """Return the limit that most probably left these seconds, for a message: "1" for 0.997.

    It is the shortest number that is greater by at most 20 ms or 2 %: time passes between setting a limit and using it.
    """
    if seconds < 0.02:
        return f"{max(seconds, 0):.3g}"
    limits = (ceil(round(seconds * 10**digits, 6)) / 10**digits for digits in range(3))
    return next(f"{limit:.10g}" for limit in limits if limit <= seconds + max(0.02, seconds / 50))
