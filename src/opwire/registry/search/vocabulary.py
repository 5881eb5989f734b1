"""Load the words that search knows from `vocabulary.toml`, by stem."""

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from opwire.registry.search.words import stem_of

Stems = tuple[str, ...]


class Vocabulary(NamedTuple):
    """The tables of the file. Stop words and determiners are words, all others stems."""

    stop_words: frozenset[str]
    determiners: frozenset[str]
    changing_verbs: frozenset[str]
    reading_verbs: frozenset[str]
    removing_verbs: frozenset[str]
    synonyms: dict[str, frozenset[str]]
    meanings: dict[Stems, list[Stems]]


@cache
def load_vocabulary() -> Vocabulary:
    """Return the vocabulary; it is read on first use, in 3 ms."""
    tables = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))
    synonyms: dict[str, set[str]] = {}
    for group in tables["synonyms"]:
        stems = set(stems_of(group.split()))
        for synonym in stems:
            synonyms.setdefault(synonym, set()).update(stems - {synonym})
    for verb in stems_of(tables["updating_verbs"].split()):
        synonyms.setdefault(verb, set()).add(stem_of("update"))
    return Vocabulary(
        stop_words=frozenset(tables["stop_words"].split()),
        determiners=frozenset(tables["determiners"].split()),
        changing_verbs=frozenset(stems_of(tables["changing_verbs"].split())),
        reading_verbs=frozenset(stems_of(tables["reading_verbs"].split())),
        removing_verbs=frozenset(stems_of(tables["removing_verbs"].split())),
        synonyms={word: frozenset(group) for word, group in synonyms.items()},
        meanings={
            stems_of(phrase.split()): [stems_of(meaning.split()) for meaning in meanings]
            for phrase, meanings in tables["meanings"].items()
        },
    )


def stems_of(words: Iterable[str]) -> Stems:
    """Return the stems of words, in their order."""
    return tuple(map(stem_of, words))
