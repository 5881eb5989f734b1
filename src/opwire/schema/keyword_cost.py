"""Estimate the cost of keywords that take more than one unit for a value. No I/O.

Nearly every keyword takes jsonschema-rs 10 to 20 ns, which is one unit. The exceptions are here:

| keyword | its cost grows with |
|---|---|
| `pattern` | the length of the text: see `pattern_cost` |
| `patternProperties`, `propertyNames` | the number of patterns, and the length of each name |
| `multipleOf` | the digits of the number |
| `uniqueItems` | the pairs of items that jsonschema-rs cannot tell apart by their hash |
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from math import frexp
from typing import Any, Final, cast

from opwire.schema.pattern_cost import PatternCost
from opwire.typed.plain import as_dict, as_list

PRICED_KEYWORDS = frozenset({"multipleOf", "pattern", "patternProperties", "propertyNames", "uniqueItems"})

_MAX_ORDINARY_PATTERNS: Final = 64  # that every property name may be compared with at no extra cost
_UNITS_PER_EQUAL_HASH: Final = 3  # comparing two items takes 40 ns
_BITS_PER_UNIT_OF_DIVISION: Final = 2_500  # squared: 15 µs for 1e308, and 1 ms for an integer of 4,000 digits

_CONTAINERS = frozenset({dict, list})
_64_BITS: Final = range(-(1 << 63), 1 << 64)
_UNIQUE_BY_HASH = ("string", "boolean", "null")
_NOT_ARRAYS = (*_UNIQUE_BY_HASH, "integer", "number")
_KEYWORDS_OF_NAMES = frozenset(
    {"pattern", "type", "minLength", "maxLength", "format", "enum", "const", "title", "description"}
)
_ANY_PATTERN = r"\1"  # as expensive as a pattern can be


KeywordCost = Callable[[Any], int]
"""Returns the units that one keyword takes for a value, beyond the unit that every keyword takes."""


def keyword_costs(schema: dict[str, Any]) -> Iterator[KeywordCost]:
    """Yield the costs of the keywords of one schema object that can be expensive."""
    if "pattern" in schema and not (pattern_cost := PatternCost(schema["pattern"])).is_ordinary:
        yield lambda value: pattern_cost.units(value) if type(value) is str else 0
    if "patternProperties" in schema or "propertyNames" in schema:
        yield from _names_cost(schema)
    if schema.get("multipleOf") is not None:
        yield partial(_division_units, schema["multipleOf"])
    if schema.get("uniqueItems") is True:
        item_type = as_dict(schema.get("items")).get("type")
        if schema.get("type", "array") not in _NOT_ARRAYS and item_type not in _UNIQUE_BY_HASH:
            yield _uniqueness_units


def _names_cost(schema: dict[str, Any]) -> Iterator[KeywordCost]:
    """Yield the cost of `patternProperties` and `propertyNames`, which look at every property name."""
    patterns = list(as_dict(schema.get("patternProperties")))
    units_per_name = len(patterns)
    name_schema = as_dict(schema.get("propertyNames"))
    # No meter follows names into the schemas below `propertyNames`: one that is elsewhere may have any pattern.
    patterns.append(name_schema.get("pattern", "") if name_schema.keys() <= _KEYWORDS_OF_NAMES else _ANY_PATTERN)
    pattern_costs = [cost for cost in map(PatternCost, patterns) if not cost.is_ordinary]

    def units(value: Any) -> int:
        names = as_dict(value)
        return units_per_name * len(names) + sum(cost.units(name) for cost in pattern_costs for name in names)

    if pattern_costs or units_per_name > _MAX_ORDINARY_PATTERNS:
        yield units


def _division_units(divisor: Any, value: Any) -> int:
    """Return the units of `multipleOf`: a division of integers as long as the binary exponents of both numbers."""
    if type(value) not in (int, float):
        return 0
    bits = _exponent_bits(value) + (_exponent_bits(divisor) if isinstance(divisor, int | float) else 0)
    return bits + bits * bits // _BITS_PER_UNIT_OF_DIVISION


def _exponent_bits(number: float) -> int:
    return number.bit_length() if isinstance(number, int) else abs(frexp(number)[1])


def _uniqueness_units(value: Any) -> int:
    """Return the units of `uniqueItems`: items with equal hashes are compared pair by pair.

    What jsonschema-rs leaves out of a hash is not documented: where inner containers begin and end, and integers beyond
    64 bits. `tests/schema/test_jsonschema_rs.py` checks it.
    """
    items = as_list(value)
    if not any(type(item) in _CONTAINERS or (type(item) is int and item not in _64_BITS) for item in items):
        return 0
    items_by_hash = Counter(map(hashed_part, items))
    pairs = sum(count * (count - 1) // 2 for count in items_by_hash.values())
    return pairs * _UNITS_PER_EQUAL_HASH


def hashed_part(value: Any) -> Any:
    """Return what jsonschema-rs hashes of a value: the scalars in their order."""
    if type(value) is int:
        return value if value in _64_BITS else None
    if type(value) not in _CONTAINERS:
        return value
    scalars: list[Any] = []
    unvisited: list[Any] = [value]
    while unvisited:
        part = unvisited.pop()
        if type(part) is list or type(part) is tuple:
            unvisited.extend(cast("list[Any]", part))
        elif type(part) is dict:
            unvisited.extend(cast("dict[str, Any]", part).items())
        elif type(part) is not int or part in _64_BITS:
            scalars.append(part)
    return tuple(scalars)
