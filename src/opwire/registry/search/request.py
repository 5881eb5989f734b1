"""Read what a request asks for.

`turn on 2FA for my org` becomes three concepts: enable, two-factor authentication, organization. A concept is a word or
phrase of the request with its alternatives: the word itself, its meanings and synonyms, or, if no operation has any of
them, what the word may be a misspelling of.
"""

from collections.abc import Collection
from typing import NamedTuple

from opwire.registry.search.vocabulary import Stems, load_vocabulary, stems_of
from opwire.registry.search.weights import SearchWeights
from opwire.registry.search.words import misspellings, split_words, stem_of

_MAX_REQUEST_LENGTH = 400
_MAX_CONCEPTS = 24
_MAX_CORRECTED_WORDS = 4  # each takes some 600 look-ups
_MIN_CORRECTED_LENGTH = 4
_MIN_COMPOUND_LENGTH = 3  # `config` and `map`, if a request has `configmap`
_MAX_PHRASE_GAP = 4  # `sign a new customer up` is `sign up`
_MAX_COMPLETIONS = 3

Alternatives = dict[Stems, float]
"""What an operation may contain to match a concept: the stems, which it needs all, and how well they match."""


class Concept(NamedTuple):
    """A thing that a request asks for. `words` are those of the request, if they stand for themselves."""

    words: tuple[str, ...]
    alternatives: Alternatives


class Request:
    """What a request asks for, and what kind of operation."""

    def __init__(self, concepts: list[Concept], *, is_change: bool) -> None:
        self.concepts = concepts
        self.words = frozenset(word for concept in concepts for word in concept.words)
        self.stem_weights: dict[str, float] = {}  # how well each stem matches
        for concept in concepts:
            for stems, weight in concept.alternatives.items():
                for stem in stems:
                    self.stem_weights[stem] = max(weight, self.stem_weights.get(stem, 0))
        self.is_change = is_change
        self.is_removal = not load_vocabulary().removing_verbs.isdisjoint(self.stem_weights)


def _is_change(words: list[str]) -> bool:
    """Return whether a request asks for a change: its first verb does, or it is an imperative, `star the gist`."""
    vocabulary = load_vocabulary()
    verb = next((word for word in words if word not in vocabulary.stop_words), "")
    if stem_of(verb) in vocabulary.changing_verbs:
        return True
    is_imperative = words[:1] == [verb] and not vocabulary.determiners.isdisjoint(words[1:2])
    return is_imperative and stem_of(verb) not in vocabulary.reading_verbs and not verb.endswith("s")


class RequestReader:
    """Reads requests for operations with these stems, and these words in their names and titles."""

    def __init__(self, stems: Collection[str], words: Collection[str], weights: SearchWeights) -> None:
        self._stems = stems
        self._words = words
        self._weights = weights
        self._vocabulary = load_vocabulary()

    def read(self, text: str) -> Request:
        """Return what a request asks for."""
        words = list(split_words(text[:_MAX_REQUEST_LENGTH]))
        is_change = _is_change(words)
        stop_words = self._vocabulary.stop_words
        if stop_words.issuperset(words):
            stop_words = frozenset[str]()
        concepts: list[Concept] = []
        corrected_words = 0
        while words and len(concepts) < _MAX_CONCEPTS:
            word = words.pop(0)
            concept = self._phrase(word, words) or self._compound(word, words)
            if concept is None:
                alternatives = self._alternatives(word, is_stop_word=word in stop_words)
                if not alternatives and word not in stop_words and corrected_words < _MAX_CORRECTED_WORDS:
                    corrected_words += 1
                    alternatives = self._corrections(word)
                concept = Concept((word,), alternatives)
            if concept.alternatives:
                concepts.append(concept)
        return Request(concepts, is_change=is_change)

    def _phrase(self, word: str, next_words: list[str]) -> Concept | None:
        """Return what a word means with one of the next, which is removed from them: `turn it on`."""
        for position, next_word in enumerate(next_words[:_MAX_PHRASE_GAP]):
            meanings = self._vocabulary.meanings.get((stem_of(word), stem_of(next_word)))
            if meanings is not None:
                del next_words[position]
                return Concept((), self._indexed(dict.fromkeys(meanings, self._weights.meaning)))
        return None

    def _compound(self, word: str, next_words: list[str]) -> Concept | None:
        """Return what a word means with the next, which is removed: `check out` is `checkout`."""
        if not next_words:
            return None
        stems = stems_of((word, next_words[0]))
        opposite = f"un{stems[1]}"  # `stop following` is `unfollow`
        if word in ("undo", "stop") and opposite in self._stems:
            del next_words[0]
            return Concept((), {(opposite,): 1.0})
        compound = word + next_words[0]
        if stem_of(compound) in self._stems:
            del next_words[0]
            return Concept((compound,), self._indexed({(stem_of(compound),): 1.0, stems: 1.0}))
        return None

    def _alternatives(self, word: str, *, is_stop_word: bool = False) -> Alternatives:
        """Return what a word stands for: itself, unless it is a stop word, its meanings and its synonyms."""
        word_stem = stem_of(word)
        alternatives: Alternatives = {}
        if word.isdecimal():  # an argument, unless it is part of a name
            alternatives[word_stem,] = self._weights.synonym if word in self._words else 0.0
        elif not is_stop_word:
            alternatives[word_stem,] = 1.0
        for meaning in self._vocabulary.meanings.get((word_stem,), ()):
            alternatives.setdefault(meaning, self._weights.meaning)
        for synonym in self._vocabulary.synonyms.get(word_stem, ()):
            alternatives.setdefault((synonym,), self._weights.synonym)
        return self._indexed(alternatives)

    def _indexed(self, alternatives: Alternatives) -> Alternatives:
        """Return the alternatives that an operation may match."""
        return {
            stems: weight
            for stems, weight in alternatives.items()
            if weight and all(stem in self._stems for stem in stems)
        }

    def _corrections(self, word: str) -> Alternatives:
        """Return what an unknown word may be: two words, a misspelling, or the beginning of a word."""
        if len(word) < _MIN_CORRECTED_LENGTH or not word.isalpha():
            return {}
        for position in range(_MIN_COMPOUND_LENGTH, len(word) - _MIN_COMPOUND_LENGTH + 1):
            parts = (word[:position], word[position:])
            if all(part in self._words for part in parts):
                return {stems_of(parts): 1.0}
        alternatives: Alternatives = {}
        for correction in {spelling for spelling in misspellings(word) if spelling in self._words}:
            for stems, weight in self._alternatives(correction).items():
                alternatives[stems] = max(weight * self._weights.misspelling, alternatives.get(stems, 0))
        if not alternatives:
            completions = sorted((longer for longer in self._words if longer.startswith(word)), key=len)
            alternatives = {(stem_of(longer),): self._weights.completion for longer in completions[:_MAX_COMPLETIONS]}
        return alternatives
