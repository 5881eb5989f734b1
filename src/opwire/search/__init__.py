"""Search operations by a request in plain words."""

from opwire.search.index import Embed, SearchIndex, SearchWeights

__all__ = ["Embed", "SearchIndex", "SearchWeights"]
