"""Rank operations by a request in plain words, without a model.

1. A request is read as a list of concepts, each with alternatives (see `request`).
2. An operation matches a concept by its best alternative. How much a stem counts in an operation depends on where it
   is: in the name, title, namespace or description. Its score is the sum over all concepts, each multiplied by its
   rarity, as in BM25: a word of few operations says more than one of many.
3. The best ones are compared again by what a sum cannot say (see `_adjustment`): how much of a name or title the
   request covers, and whether it asks for an operation that reads, changes or removes something.

No I/O, no clock, no tasks, except for the user's embedding function. The work is bounded, whatever a request and the
texts of an operation contain.
"""

import re
from collections.abc import Callable, Iterable
from heapq import nlargest
from itertools import islice
from math import log
from typing import NamedTuple

from opwire.model.operation import OperationSpec, OperationType
from opwire.registry.search.embeddings import Embed, Embeddings
from opwire.registry.search.request import Concept, Request, RequestReader
from opwire.registry.search.vocabulary import load_vocabulary, stems_of
from opwire.registry.search.weights import SearchWeights
from opwire.registry.search.words import plain_text, split_words
from opwire.runtime.bounded import Tally

# Stems that all operations of a namespace may have together: GitHub's have 25 on average. 2,000 tools with descriptions
# of words that occur once, 4.5 MB, took 2.9 s and 285 MB.
_MIN_NAMESPACE_STEMS = 50_000
_MAX_STEMS_PER_OPERATION = 32
_TYPICAL_DESCRIPTION_LENGTH = 40  # words; in a longer one, each word counts less
_SHORTLIST_LENGTH = 120
_RANK_OFFSET = 10  # of reciprocal rank fusion: the lower, the more the first ranks count


class _TextLimits(NamedTuple):
    """The lengths of the texts of an operation that are indexed, and the number of tags."""

    name: int
    title: int
    description: int
    tags: int


_TEXT_LIMITS = _TextLimits(name=200, title=240, description=2_000, tags=20)
_BRIEF_TEXT_LIMITS = _TextLimits(name=60, title=60, description=60, tags=0)  # in a namespace with too many stems

_SENTENCE_END = re.compile(r"[.!?:](?:\s|$)|\n\s*\n")


class IndexedOperation:
    """What the index knows of an operation.

    `stem_weights` is how much each of its stems counts, `headings` the stems of its name and those of its title, and
    `words` the words of both.
    """

    __slots__ = ("headings", "is_change", "is_removal", "spec", "stem_weights", "words")

    def __init__(self, spec: OperationSpec, weights: SearchWeights, *, is_brief: bool) -> None:
        vocabulary = load_vocabulary()
        limits = _BRIEF_TEXT_LIMITS if is_brief else _TEXT_LIMITS
        name = spec.name[: limits.name]
        description = plain_text(spec.description[: limits.description])
        title = plain_text(spec.title[: limits.title]) or _first_sentence(description)[: limits.title]
        tags = [tag[: limits.name] for tag in spec.tags[: limits.tags]]
        name_words = set(split_words(name))
        title_words = set(split_words(title)) - vocabulary.stop_words
        body_words = [word for word in split_words(" ".join((description, *tags))) if word not in vocabulary.stop_words]
        headings = (split_words(name, joined=False), set(split_words(title, joined=False)) - vocabulary.stop_words)
        self.spec = spec
        self.words = name_words | title_words
        self.headings = [stems for words in headings if (stems := frozenset(stems_of(words)))]
        self.is_change = spec.type is OperationType.MUTATION
        self.is_removal = self.is_change and any(stems & vocabulary.removing_verbs for stems in self.headings)
        # A word counts once in a name or title, and each time in a description, but less the longer it is.
        body_weight = 2 * weights.description / (1 + len(body_words) / _TYPICAL_DESCRIPTION_LENGTH)
        counts = dict.fromkeys(stems_of(split_words(spec.namespace[: limits.name])), weights.namespace)
        for stems, weight in (
            (set(stems_of(name_words)), 1.0),
            (set(stems_of(title_words)), 1.0),
            (stems_of(body_words), body_weight),
        ):
            for stem in stems:
                counts[stem] = counts.get(stem, 0) + weight
        self.stem_weights = {stem: count / (count + weights.saturation) for stem, count in counts.items()}


def _first_sentence(text: str) -> str:
    sentence_end = _SENTENCE_END.search(text)
    return text[: sentence_end.start()] if sentence_end else text


class SearchIndex:
    """An index of operations.

        index = SearchIndex(registry.list())
        index.find("who starred this repository?", 5)

    With `embed`, the ranking by words and the ranking by the similarity of the vectors are merged.
    """

    def __init__(
        self, specs: Iterable[OperationSpec] = (), *, weights: SearchWeights | None = None, embed: Embed | None = None
    ) -> None:
        self._weights = weights or SearchWeights()
        self._embeddings = None if embed is None else Embeddings(embed)
        self._operations: dict[str, IndexedOperation] = {}  # by id
        self._postings: dict[str, dict[str, float]] = {}  # the weight of each stem, by the ids that have it
        self._words: Tally[str] = Tally()  # operations with each word in their name or title
        self._namespace_sizes: Tally[str] = Tally()  # operations
        self._namespace_stems: Tally[str] = Tally()
        self._rarities: dict[str, float] = {}  # of stems, until an operation changes
        self._reader = RequestReader(self._postings, self._words, self._weights)
        for spec in specs:
            self.put(spec)

    def put(self, spec: OperationSpec) -> None:
        """Add an operation, or replace the one with its id."""
        self.drop(spec.id)
        self._rarities.clear()
        max_stems = _MIN_NAMESPACE_STEMS + _MAX_STEMS_PER_OPERATION * self._namespace_sizes[spec.namespace]
        is_brief = self._namespace_stems[spec.namespace] > max_stems
        operation = self._operations[spec.id] = IndexedOperation(spec, self._weights, is_brief=is_brief)
        self._namespace_sizes[spec.namespace] += 1
        self._namespace_stems[spec.namespace] += len(operation.stem_weights)
        for stem, weight in operation.stem_weights.items():
            self._postings.setdefault(stem, {})[spec.id] = weight
        for word in operation.words:
            self._words[word] += 1

    def drop(self, operation_id: str) -> None:
        """Remove an operation, if it is known."""
        operation = self._operations.pop(operation_id, None)
        if operation is None:
            return
        self._rarities.clear()
        if self._embeddings is not None:
            self._embeddings.drop(operation_id)
        self._namespace_sizes.subtract(operation.spec.namespace)
        self._namespace_stems.subtract(operation.spec.namespace, len(operation.stem_weights))
        for stem in operation.stem_weights:
            del self._postings[stem][operation_id]
            if not self._postings[stem]:
                del self._postings[stem]
        for word in operation.words:
            self._words.subtract(word)

    def find(
        self, text: str, limit: int, *, visible: Callable[[OperationSpec], bool] | None = None
    ) -> tuple[OperationSpec, ...]:
        """Return the specs that match a request, best first; an empty request matches all."""
        limit = max(limit, 0)

        def is_visible(id: str) -> bool:
            return visible is None or visible(self._operations[id].spec)

        if not text.strip():
            ids = list(islice(filter(is_visible, self._operations), limit))
        else:
            ids = self._ranked_by_words(self._reader.read(text), is_visible, max(limit, _SHORTLIST_LENGTH))
            if self._embeddings is not None:
                specs = {id: operation.spec for id, operation in self._operations.items()}
                similarities = self._embeddings.similarities(text, specs)
                similar_ids = nlargest(
                    _SHORTLIST_LENGTH, filter(is_visible, similarities), key=similarities.__getitem__
                )
                ids = _fused([ids, similar_ids])
        return tuple(self._operations[id].spec for id in ids[:limit])

    def _ranked_by_words(self, request: Request, is_visible: Callable[[str], bool], max_ids: int) -> list[str]:
        scores: dict[str, float] = {}
        for concept in request.concepts:
            matches = self._matches(concept)
            rarity = self._rarity(sum(matches.values()))  # a mention in a long description hardly makes it common
            for id, match in matches.items():
                scores[id] = scores.get(id, 0) + rarity * match
        ranked_ids = filter(is_visible, sorted(scores, key=scores.__getitem__, reverse=True))
        shortlist = [self._operations[id] for id in islice(ranked_ids, max_ids)]
        adjusted_scores = {
            operation.spec.id: scores[operation.spec.id] * self._adjustment(operation, request)
            for operation in shortlist
        }
        return sorted(adjusted_scores, key=adjusted_scores.__getitem__, reverse=True)

    def _matches(self, concept: Concept) -> dict[str, float]:
        """Return how well operations match a concept, by their ids."""
        matches: dict[str, float] = {}
        for stems, alternative_weight in concept.alternatives.items():
            rarest, *other_postings = sorted((self._postings[stem] for stem in stems), key=len)
            for id, stem_weight in rarest.items():
                match = alternative_weight * min([stem_weight, *(posting.get(id, 0) for posting in other_postings)])
                if match > matches.get(id, 0):
                    matches[id] = match
        return matches

    def _rarity(self, count: float) -> float:
        """Return how much a concept says that this many operations match."""
        return log(1 + (len(self._operations) - count + 0.5) / (count + 0.5))

    def _stem_rarity(self, stem: str) -> float:
        rarity = self._rarities[stem] = self._rarity(len(self._postings[stem]))
        return rarity

    def _adjustment(self, operation: IndexedOperation, request: Request) -> float:
        """Return by what the score of an operation is multiplied."""
        weights = self._weights
        same_words = len(request.words & operation.words) / max(len(request.words), 1)
        factor = 1 + weights.coverage * self._coverage(operation, request)
        factor *= 1 + weights.form * same_words
        if operation.is_change is not request.is_change:
            factor *= 1 - weights.intent
        if operation.is_removal and not request.is_removal:
            factor *= 1 - weights.removal
        return factor

    def _coverage(self, operation: IndexedOperation, request: Request) -> float:
        """Return the share of the name or of the title that a request has, whichever is more; rare words count more."""
        coverage = 0.0
        for stems in operation.headings:
            total_rarity = covered = 0.0
            for stem in stems:
                rarity = self._rarities.get(stem) or self._stem_rarity(stem)
                total_rarity += rarity
                covered += rarity * request.stem_weights.get(stem, 0)
            coverage = max(coverage, covered / total_rarity)
        return coverage


def _fused(rankings: Iterable[list[str]]) -> list[str]:
    """Merge rankings: an id counts by its ranks, not by its scores, which cannot be compared."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, id in enumerate(ranking, _RANK_OFFSET):
            scores[id] = scores.get(id, 0) + 1 / rank
    return sorted(scores, key=scores.__getitem__, reverse=True)
