"""Rank operations by a request in plain words, without a model.

An inverted index over ids, titles and descriptions finds candidates, as in BM25. The best are scored again: by how
much of their name or title the request covers, and by whether request and operation both read or both write. Words are
English; those of other languages are compared as they are.

No I/O, no clock, no tasks, except for the user's embedding function. The work is bounded, whatever a request and the
texts of an operation contain.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from math import isfinite, log, sqrt
from operator import mul
from typing import NamedTuple

from opwire.model.operation import OperationSpec, OperationType
from opwire.registry.search_words import (
    DETERMINERS,
    PARTICLES,
    STOP_WORDS,
    misspellings,
    plain_text,
    stem,
    thesaurus,
    words,
)
from opwire.runtime.bounded import Tally
from opwire.runtime.text import get_logger

logger = get_logger("opwire.registry")

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Returns a vector for each text, such as the `encode` of a sentence transformer."""

_MAX_REQUEST = 400  # characters
_MAX_CONCEPTS = 24  # of a request
_MAX_CORRECTED = 4  # unknown words of a request: each takes some 600 look-ups
_MIN_CORRECTED = 4  # letters
_MAX_NAME = 200  # characters that are indexed
_MAX_TITLE = 240
_MAX_DESCRIPTION = 2_000
_MAX_TAGS = 20
_MAX_BRIEF = 60  # characters of a name or title, if the namespace has too many words
# Words that all operations of a namespace may have: GitHub's have 25 on average. 2,000 tools with descriptions of
# words that occur once, 4.5 MB, took 2.9 s and 285 MB.
_MIN_TERMS, _TERMS_PER_OPERATION = 50_000, 32
_TYPICAL_LENGTH = 40  # words of a description
_SHORTLIST = 120  # candidates that are scored twice
_MAX_COMPLETIONS = 3  # words that start with an unknown one
_MAX_APART = 4  # how far the second word of a phrase may be: `sign a new customer up`
_BATCH = 100  # texts passed to `Embed` at once
_RANK_OFFSET = 10  # reciprocal rank fusion: the smaller, the more the first ranks count

_SENTENCE_END = re.compile(r"[.!?:](?:\s|$)|\n\s*\n")


class SearchWeights(NamedTuple):
    """How much each feature counts. `benchmarks/search.py` cross-validates them; the results are flat around these."""

    description: float = 0.25  # a word of the description; one of the name or of the title counts 1
    saturation: float = 0.8  # the more, the more a word counts that is in name, title and description
    namespace: float = 0.5
    synonym: float = 0.6
    abbreviation: float = 0.9
    misspelling: float = 0.9
    completion: float = 0.4
    title: float = 0.8  # the share of a name or title that the request covers
    form: float = 0.2  # the same form of a word: a list of branches rather than one branch
    intent: float = 0.15  # subtracted if one reads and the other writes
    removal: float = 0.2  # subtracted if the operation removes something, and the request does not
    elsewhere: float = 0.4  # subtracted if the request names another namespace


class _Entry:
    """An operation of the index. `terms` are its stems, each with its weight; `heads` the stems of name and title.

    One that is `brief` is indexed by the beginning of its name and title only.
    """

    __slots__ = ("forms", "heads", "namespace", "reads", "removes", "spec", "terms", "vector")

    def __init__(self, spec: OperationSpec, weights: SearchWeights, *, brief: bool = False) -> None:
        max_name, max_title = (_MAX_BRIEF, _MAX_BRIEF) if brief else (_MAX_NAME, _MAX_TITLE)
        description = plain_text(spec.description[: _MAX_BRIEF if brief else _MAX_DESCRIPTION])
        title = plain_text(spec.title[:max_title])
        if not title:
            end = _SENTENCE_END.search(description)
            title = description[: end.start() if end else None][:max_title]
        name = spec.name[:max_name]
        fields = [set(words(name)), set(words(title)) - STOP_WORDS]
        self.namespace = frozenset(map(stem, words(spec.namespace[:_MAX_NAME])))
        counts: dict[str, float] = dict.fromkeys(self.namespace, weights.namespace)
        for field in fields:
            for each in set(map(stem, field)):
                counts[each] = counts.get(each, 0) + 1
        parts = [set(words(name, joined=False)), set(words(title, joined=False)) - STOP_WORDS]
        self.heads = [frozenset(map(stem, field)) for field in parts if field]
        tags = () if brief else (tag[:_MAX_NAME] for tag in spec.tags[:_MAX_TAGS])
        body = [stem(word) for word in words(" ".join((description, *tags))) if word not in STOP_WORDS]
        weight = 2 * weights.description / (1 + len(body) / _TYPICAL_LENGTH)
        for each in body:
            counts[each] = counts.get(each, 0) + weight
        self.spec = spec
        self.forms = frozenset[str]().union(*fields)
        self.reads = spec.type is not OperationType.MUTATION
        self.removes = not self.reads and not thesaurus().removing.isdisjoint(frozenset[str]().union(*self.heads))
        self.terms = {each: count / (count + weights.saturation) for each, count in counts.items()}
        self.vector: tuple[float, ...] | None = None


class _Concept(NamedTuple):
    """A word of a request. An alternative is a weight and the stems that an operation has to contain, all of them."""

    forms: frozenset[str]
    alternatives: dict[tuple[str, ...], float]


class SearchIndex:
    """An index of operations.

        index = SearchIndex(registry.list())
        index.find("who starred this repository?", 5)

    With `embed`, the ranking by words and the ranking by the similarity of the vectors are merged.
    """

    def __init__(
        self, specs: Iterable[OperationSpec] = (), *, weights: SearchWeights | None = None, embed: Embed | None = None
    ) -> None:
        self.embed = embed
        self._weights = weights or SearchWeights()
        self._entries: dict[str, _Entry] = {}
        self._postings: dict[str, dict[str, float]] = {}
        self._sizes: Tally[str] = Tally()  # operations, by namespace
        self._terms: Tally[str] = Tally()  # and their words
        self._forms: Tally[str] = Tally()  # words of names and titles, and the number of operations that contain them
        for spec in specs:
            self.put(spec)

    def put(self, spec: OperationSpec) -> None:
        """Add an operation, or replace the one with its id."""
        self.drop(spec.id)
        namespace = spec.namespace
        brief = self._terms[namespace] > _MIN_TERMS + _TERMS_PER_OPERATION * self._sizes[namespace]
        entry = self._entries[spec.id] = _Entry(spec, self._weights, brief=brief)
        self._sizes[namespace] += 1
        self._terms[namespace] += len(entry.terms)
        for term, weight in entry.terms.items():
            self._postings.setdefault(term, {})[spec.id] = weight
        for each in entry.forms:
            self._forms[each] += 1

    def drop(self, operation_id: str) -> None:
        """Remove an operation, if it is known."""
        entry = self._entries.pop(operation_id, None)
        if entry is None:
            return
        self._sizes.subtract(entry.spec.namespace)
        self._terms.subtract(entry.spec.namespace, len(entry.terms))
        for term in entry.terms:
            del self._postings[term][operation_id]
            if not self._postings[term]:
                del self._postings[term]
        for each in entry.forms:
            self._forms.subtract(each)

    def find(
        self, text: str, limit: int, *, visible: Callable[[OperationSpec], bool] | None = None
    ) -> tuple[OperationSpec, ...]:
        """Return the specs that match a request, best first; an empty request matches all."""
        text = text[:_MAX_REQUEST]
        entries = self._entries

        def is_visible(id: str) -> bool:
            return visible is None or visible(entries[id].spec)

        if not text.strip():
            return tuple(entries[id].spec for id in islice(filter(is_visible, entries), max(limit, 0)))
        ranked = self._ranked_by_words(text, is_visible, max(limit, _SHORTLIST))
        if self.embed is not None and (near := self._ranked_by_vectors(self.embed, text, is_visible)):
            fused: dict[str, float] = {}
            for ranking in (ranked, near):
                for rank, id in enumerate(ranking, _RANK_OFFSET):
                    fused[id] = fused.get(id, 0) + 1 / rank
            ranked = sorted(fused, key=fused.__getitem__, reverse=True)
        return tuple(entries[id].spec for id in ranked[: max(limit, 0)])

    # --- by words ---------------------------------------------------------------------------------------------------

    def _ranked_by_words(self, text: str, is_visible: Callable[[str], bool], most: int) -> list[str]:
        concepts = self._concepts(text)
        scores: dict[str, float] = {}
        for concept in concepts:
            best: dict[str, float] = {}
            for terms, weight in concept.alternatives.items():
                postings = sorted((self._postings[term] for term in terms), key=len)
                for id, impact in postings[0].items():
                    least = impact if len(postings) == 1 else min(each.get(id, 0) for each in postings)
                    if weight * least > best.get(id, 0):
                        best[id] = weight * least
            rarity = self._rarity(sum(best.values()))  # a mention in a long description hardly makes a word common
            for id, match in best.items():
                scores[id] = scores.get(id, 0) + rarity * match
        ranked = filter(is_visible, sorted(scores, key=scores.__getitem__, reverse=True))
        shortlist = [(id, self._entries[id]) for id in islice(ranked, most)]
        requested: dict[str, float] = {}
        for concept in concepts:
            for terms, weight in concept.alternatives.items():
                for term in terms:
                    requested[term] = max(requested.get(term, 0), weight)
        forms = frozenset[str]().union(*(concept.forms for concept in concepts))
        named = {term for term, weight in requested.items() if weight >= self._weights.abbreviation}
        named &= frozenset[str]().union(*(entry.namespace for _, entry in shortlist))
        reads = not _is_change(text)
        keeps = thesaurus().wanting_removal.isdisjoint(map(stem, words(text)))
        rarities: dict[str, float] = {}
        final = {
            id: scores[id]
            * (1 + self._weights.title * self._covered(entry, requested, rarities))
            * (1 + self._weights.form * len(forms & entry.forms) / max(len(forms), 1))
            * (1 - self._weights.intent * (entry.reads is not reads))
            * (1 - self._weights.removal * (keeps and entry.removes))
            * (1 - self._weights.elsewhere * (bool(named) and named.isdisjoint(entry.namespace)))
            for id, entry in shortlist
        }
        return sorted(final, key=final.__getitem__, reverse=True)

    def _concepts(self, text: str) -> list[_Concept]:
        given = list(words(text.replace("'s ", " ").replace("’s ", " ")))
        ignored = STOP_WORDS if not STOP_WORDS.issuperset(given) else frozenset[str]()
        concepts: list[_Concept] = []
        at = guesses = 0
        while at < len(given) and len(concepts) < _MAX_CONCEPTS:
            word = given[at]
            at += 1
            if (phrase := self._phrase(given, at)) is not None:
                concepts.append(phrase)
                continue
            if (pair := self._pair(word, given[at : at + 1])) is not None:
                concepts.append(pair)
                at += 1
                continue
            alternatives = self._alternatives(word, is_ignored=word in ignored)
            if not alternatives and word not in ignored and guesses < _MAX_CORRECTED:
                guesses += 1
                alternatives = self._guesses(word)
            if alternatives:
                concepts.append(_Concept(frozenset([word]), alternatives))
        return concepts

    def _phrase(self, given: list[str], at: int) -> _Concept | None:
        """Return what the word before a position means with one of the next, which is removed: `turn it on`."""
        for later in range(at, min(at + _MAX_APART, len(given))):
            meaning = thesaurus().expansions.get((stem(given[at - 1]), stem(given[later])))
            if meaning is not None:
                del given[later]
                return _Concept(frozenset[str](), self._known(dict.fromkeys(meaning, self._weights.abbreviation)))
        return None

    def _pair(self, word: str, following: Sequence[str]) -> _Concept | None:
        """Return what two words mean together: `stop following` is `unfollow`, and `check out` may be `checkout`."""
        if not following:
            return None
        pair = (word, *following)
        terms, joined = tuple(map(stem, pair)), "".join(pair)
        if word in ("undo", "stop") and (opposite := f"un{terms[1]}") in self._postings:
            return _Concept(frozenset[str](), {(opposite,): 1.0})
        if stem(joined) in self._postings and (STOP_WORDS.isdisjoint(pair) or pair[1] in PARTICLES):
            return _Concept(frozenset([joined]), self._known(dict.fromkeys([(stem(joined),), terms], 1.0)))
        return None

    def _alternatives(self, word: str, *, is_ignored: bool = False) -> dict[tuple[str, ...], float]:
        """Return what a word stands for: itself, what it abbreviates, its synonyms."""
        term = stem(word)
        found: dict[tuple[str, ...], float] = {}
        if not is_ignored:  # a number is an argument, unless it is part of a name
            found[term,] = 1.0 if not word.isdecimal() else self._weights.synonym if word in self._forms else 0.0
        expansions = thesaurus().expansions
        for each in expansions.get((term,)) or expansions.get((word.removesuffix("s"),), ()):
            found.setdefault(each, self._weights.abbreviation)
        for each in thesaurus().synonyms.get(term, ()):
            found.setdefault((each,), self._weights.synonym)
        return self._known(found)

    def _known(self, alternatives: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
        known = self._postings.__contains__
        return {terms: weight for terms, weight in alternatives.items() if weight and all(map(known, terms))}

    def _guesses(self, word: str) -> dict[tuple[str, ...], float]:
        """Return what an unknown word may be: two words, a misspelling, or the beginning of a word."""
        if len(word) < _MIN_CORRECTED or not word.isalpha():
            return {}
        for cut in range(3, len(word) - 2):
            if word[:cut] in self._forms and word[cut:] in self._forms:
                return {(stem(word[:cut]), stem(word[cut:])): 1.0}
        found: dict[tuple[str, ...], float] = {}
        for each in {each for each in misspellings(word) if each in self._forms}:
            for terms, weight in self._alternatives(each).items():
                found[terms] = max(found.get(terms, 0), weight * self._weights.misspelling)
        if not found:
            completions = sorted((each for each in self._forms if each.startswith(word)), key=len)
            found = {(stem(each),): self._weights.completion for each in completions[:_MAX_COMPLETIONS]}
        return found

    def _rarity(self, count: float) -> float:
        return log(1 + (len(self._entries) - count + 0.5) / (count + 0.5))

    def _covered(self, entry: _Entry, requested: dict[str, float], rarities: dict[str, float]) -> float:
        """Return the share of the name or of the title that the request covers, whichever is more."""
        most = 0.0
        for head in entry.heads:
            whole = covered = 0.0
            for term in head:
                if term not in rarities:
                    rarities[term] = self._rarity(len(self._postings[term]))
                whole += rarities[term]
                covered += rarities[term] * requested.get(term, 0)
            most = max(most, covered / whole)
        return most

    # --- by vectors -------------------------------------------------------------------------------------------------

    def _ranked_by_vectors(self, embed: Embed, text: str, is_visible: Callable[[str], bool]) -> list[str]:
        """Return the ids with the most similar vectors; an embedding function that fails is logged and left out."""
        missing = [entry for entry in self._entries.values() if entry.vector is None]
        try:
            for batch in (missing[at : at + _BATCH] for at in range(0, len(missing), _BATCH)):
                specs = [entry.spec for entry in batch]
                texts = [
                    f"{spec.id}\n{spec.title[:_MAX_TITLE]}\n{plain_text(spec.description[:_MAX_DESCRIPTION])}"
                    for spec in specs
                ]
                for entry, vector in zip(batch, _vectors(embed, texts), strict=True):
                    entry.vector = vector
            (wanted,) = _vectors(embed, [text])
            near = {
                id: sum(map(mul, wanted, entry.vector or ())) for id, entry in self._entries.items() if is_visible(id)
            }
        except Exception:
            logger.exception("the embedding function failed: operations are ranked by their words only")
            return []
        return nlargest(_SHORTLIST, near, key=near.__getitem__)


def _is_change(text: str) -> bool:
    """Return whether a request asks for a change: its first verb does, or it is an imperative, `star the gist`."""
    given = list(words(text))
    first = next((word for word in given if word not in STOP_WORDS), "")
    if stem(first) in thesaurus().writing:
        return True
    is_imperative = given[:1] == [first] and not DETERMINERS.isdisjoint(given[1:2])
    return is_imperative and stem(first) not in thesaurus().reading and not first.endswith("s")


def _vectors(embed: Embed, texts: Sequence[str]) -> Iterator[tuple[float, ...]]:
    for vector in embed(texts):
        numbers = tuple(map(float, vector))
        length = sqrt(sum(map(mul, numbers, numbers)))
        if not isfinite(length) or not length:
            raise ValueError("an embedding is a vector of finite numbers, and not zero")
        yield tuple(number / length for number in numbers)
