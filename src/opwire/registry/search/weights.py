"""How much each feature of the ranking counts."""

from typing import NamedTuple


class SearchWeights(NamedTuple):
    """The weights of the ranking. `benchmarks/search.py` cross-validates them; the results are flat around these."""

    # How well an operation matches a concept that has the word itself in its name or title: 1.
    description: float = 0.25  # the word is in the description
    namespace: float = 0.5
    synonym: float = 0.6
    meaning: float = 0.9  # of an abbreviation or phrase
    misspelling: float = 0.9
    completion: float = 0.4
    saturation: float = 0.8  # the higher, the more counts a word that is in name, title and description

    # What is added to the score of an operation or subtracted from it, as a share of it.
    coverage: float = 0.8  # added if the request has all words of the name or of the title
    form: float = 0.2  # added if they have the same form: `branches` prefers a list of branches to one branch
    intent: float = 0.15  # subtracted if one reads and the other changes something
    removal: float = 0.2  # subtracted if the operation removes something, and the request does not
