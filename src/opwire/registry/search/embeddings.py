"""Rank operations by the similarity of vectors, which a function of the user makes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite, sqrt
from operator import mul

from opwire.model.operation import OperationSpec
from opwire.registry.search.words import plain_text
from opwire.runtime.text import get_logger

logger = get_logger("opwire.registry.search")

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Returns a vector for each text, such as the `encode` of a sentence transformer."""

_BATCH_SIZE = 100  # texts passed to `Embed` at once
_MAX_TITLE_LENGTH = 240
_MAX_DESCRIPTION_LENGTH = 2_000

Vector = tuple[float, ...]


class Embeddings:
    """The vectors of operations. They are made by the first ranking; later ones make those of new operations."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._vectors: dict[str, Vector] = {}  # by id

    def drop(self, operation_id: str) -> None:
        """Forget the vector of an operation."""
        self._vectors.pop(operation_id, None)

    def similarities(self, text: str, specs: Mapping[str, OperationSpec]) -> dict[str, float]:
        """Return the similarity of each operation to a request; none, and a logged error, if the function fails."""
        missing = [spec for spec in specs.values() if spec.id not in self._vectors]
        try:
            for start in range(0, len(missing), _BATCH_SIZE):
                batch = missing[start : start + _BATCH_SIZE]
                vectors = _unit_vectors(self._embed, list(map(_text_of, batch)))
                self._vectors |= zip((spec.id for spec in batch), vectors, strict=True)
            (request_vector,) = _unit_vectors(self._embed, [text])
            return {id: sum(map(mul, request_vector, self._vectors[id])) for id in specs}
        except Exception:
            logger.exception("the embedding function failed: operations are ranked by their words only")
            return {}


def _text_of(spec: OperationSpec) -> str:
    description = plain_text(spec.description[:_MAX_DESCRIPTION_LENGTH])
    return f"{spec.id}\n{spec.title[:_MAX_TITLE_LENGTH]}\n{description}"


def _unit_vectors(embed: Embed, texts: Sequence[str]) -> Iterator[Vector]:
    for vector in embed(texts):
        numbers = tuple(map(float, vector))
        length = sqrt(sum(map(mul, numbers, numbers)))
        if not isfinite(length) or not length:
            raise ValueError("an embedding is a vector of finite numbers, and not zero")
        yield tuple(number / length for number in numbers)
