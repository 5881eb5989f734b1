"""Split texts and identifiers into words, and reduce words to stems. The rules are those of English."""

import re
from collections.abc import Iterator
from functools import lru_cache

_MAX_WORD_LENGTH = 40  # longer ones are hashes and encoded data
_LONG_WORD_LENGTH = 6  # of these, the first letter may be misspelled, too
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_MARKUP = re.compile(r"<[^<>]{0,300}>|\]\([^()\s]{0,400}\)|https?://[^\s)\"'<>]{0,400}")
_WORD = re.compile(r"[^\W_]+")
_IDENTIFIER_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^A-Z]+|[A-Z]+")  # HTTPServer: HTTP, Server
_API_VERSION = re.compile(r"v\d{1,3}(?:(?:alpha|beta|rc)\d{0,3})?")

_IRREGULAR_FORMS = {
    form: word
    for word, forms in {
        "alias": "aliases",
        "analysis": "analyses",
        "build": "built",
        "buy": "bought",
        "child": "children",
        "choose": "chosen",
        "find": "found",
        "freeze": "frozen",
        "get": "got",
        "go": "went",
        "hide": "hidden",
        "hold": "held",
        "index": "indices",
        "keep": "kept",
        "leave": "left",
        "lose": "lost",
        "make": "made",
        "man": "men",
        "matrix": "matrices",
        "pay": "paid",
        "person": "people",
        "run": "ran running",
        "sell": "sold",
        "send": "sent",
        "show": "shown",
        "spend": "spent",
        "status": "statuses",
        "take": "taken",
        "tell": "told",
        "tie": "tied",
        "vertex": "vertices",
        "win": "won",
        "write": "written wrote",
        # These only look like a plural.
        "always": "always",
        "news": "news",
        "series": "series",
    }.items()
    for form in forms.split()
}

# A suffix, what replaces it, and how many letters must remain before it. The first that fits applies.
_SUFFIXES = (
    ("ification", "ify", 2),
    ("ization", "ize", 2),
    ("isation", "ize", 2),
    ("ription", "ribe", 2),
    ("ation", "", 3),
    ("ating", "", 3),
    ("ated", "", 3),
    ("ator", "", 3),
    ("ate", "", 3),
    ("tion", "t", 3),
    ("sion", "s", 3),
    ("ment", "", 4),
    ("ship", "", 4),
    ("ied", "y", 3),
    ("ing", "", 3),
    ("ed", "", 3),
    ("val", "v", 4),
    ("wal", "w", 3),
    ("ise", "ize", 4),
    ("ily", "y", 3),
    ("ly", "", 4),
)


def plain_text(text: str) -> str:
    """Return a text without HTML tags and without the addresses of links."""
    return _MARKUP.sub(" ", text)


def split_words(text: str, *, joined: bool = True) -> Iterator[str]:
    """Yield the words of a text in lower case. Identifiers are split: `getConfigMap` is `get`, `config`, `map`.

    With `joined`, an identifier of two or three parts is a word as well: `ConfigMap` is also `configmap`.
    """
    for word in _WORD.findall(text):
        if len(word) > _MAX_WORD_LENGTH:
            continue
        lower = word.lower()
        parts = [lower] if word.isupper() or word == lower else _IDENTIFIER_PART.findall(word)
        if len(parts) > 1:
            lower_parts = [part.lower() for part in parts]
            yield from (part for part in lower_parts if not _API_VERSION.fullmatch(part))
        is_word = len(parts) == 1 or (joined and len(parts) <= 3)
        if is_word and not _API_VERSION.fullmatch(lower):
            yield lower


@lru_cache(maxsize=20_000)
def stem_of(word: str) -> str:
    """Return the stem of a word in lower case: `finalizing`, `finalized` and `finalization` have the same."""
    word = _IRREGULAR_FORMS.get(word, word)
    if not word.isascii() or not word.isalpha():
        return word
    word = _singular(word)
    for suffix, replacement, min_letters in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= min_letters:
            word = word.removesuffix(suffix) + replacement
            break
    if len(word) > 3 and word.endswith("e"):  # `delete`, because of `deleting`
        word = word[:-1]
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiousz":  # `cancell`, of `cancelled`
        word = word[:-1]
    return word


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word.removesuffix("ies") + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word.removesuffix("es")
    if len(word) > 2 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word.removesuffix("s")
    return word


def misspellings(word: str) -> Iterator[str]:
    """Yield the words one letter away: one too many, one missing, one wrong, two swapped.

    The first letter of a short word is kept, or names of persons would become words.
    """
    for position in range(len(word) < _LONG_WORD_LENGTH, len(word) + 1):
        head, tail = word[:position], word[position:]
        if tail:
            yield head + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield head + letter + tail
            if tail:
                yield head + letter + tail[1:]
