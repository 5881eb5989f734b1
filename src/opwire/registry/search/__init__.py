"""Search: the operations that match a request in plain words, best first."""

from opwire.registry.search.embeddings import Embed
from opwire.registry.search.index import SearchIndex
from opwire.registry.search.weights import SearchWeights

__all__ = ["Embed", "SearchIndex", "SearchWeights"]
