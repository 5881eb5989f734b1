"""Random schemas and values over a few names, so that they often meet.

They are drawn with a seeded `Random`: hypothesis' own recursive strategies prefer trivial schemas, to which there is
nothing to fit.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "x-1", "kind")
LEAVES = (None, True, False, 0, 1, 5, 5.0, -3.0, 2.5, 1e30, "", "a", "b", "cat", "dog")
TYPES = ("object", "array", "integer", "number", "string", "boolean", "null")
REFERENCES = ("#/$defs/a", "#/$defs/b", "#/$defs/c", "#named", "#", "#/properties/a", "#/$defs/gone")
WRAPPER = "#/properties/inside"
RARE = 0.07


def value(random: Random, depth: int = 3) -> Any:
    """Plain data, mostly objects."""
    kind = random.random() if depth else 1.0
    if kind < 0.55:
        names = random.sample((*NAMES, "z", "~/"), random.randint(0, 4))
        return {name: value(random, depth - 1) for name in names}
    if kind < 0.7:
        return [value(random, depth - 1) for _ in range(random.randint(0, 3))]
    return random.choice(LEAVES)


def schema(random: Random) -> Any:
    """A schema with definitions that its parts may refer to; a few references lead nowhere."""
    root = _part(random, 3)
    if isinstance(root, bool):
        return root
    definitions = {name: _part(random, 2) for name in ("a", "b", "c")}
    return {**root, "$defs": {**definitions, "n": {"$anchor": "named", "properties": {"a": {"$ref": "#"}}}}}


def _part(random: Random, depth: int) -> Any:
    if random.random() < 0.04:
        return random.random() < 0.7
    if depth == 0 or random.random() < 0.15:
        return _leaf(random)
    node: dict[str, Any] = {"type": "object"} if random.random() < 0.5 else {}
    for keyword, (chance, make) in _KEYWORDS.items():
        if random.random() < chance:
            node[keyword] = make(random, depth - 1)
    return node


def _leaf(random: Random) -> dict[str, Any]:
    if random.random() < 0.3:
        return {"$ref": random.choice(REFERENCES[: 5 if random.random() < 0.95 else None])}
    node: dict[str, Any] = {"type": random.choice(TYPES)} if random.random() < 0.7 else {}
    if random.random() < 0.4:
        node["default"] = random.choice((*LEAVES, {}, [], {"a": 1}))
    if random.random() < 0.2:
        node["const"] = random.choice(LEAVES)
    return node


def _named(random: Random, depth: int) -> dict[str, Any]:
    return {name: _part(random, depth) for name in random.sample(NAMES, random.randint(0, 3))}


def _several(random: Random, depth: int) -> list[Any]:
    return [_part(random, depth) for _ in range(random.randint(1, 3))]


def _some_names(random: Random, _depth: int) -> list[str]:
    return random.sample(NAMES, random.randint(0, 2))


def _patterns(random: Random, depth: int) -> dict[str, Any]:
    return {random.choice(("^x-", "^[ab]$", ".")): _part(random, depth)}


def _types(random: Random, _depth: int) -> list[str]:
    return random.sample(TYPES, random.randint(1, 3))


def _leaves(random: Random, _depth: int) -> list[Any]:
    return random.sample(LEAVES, 3)


def _small(random: Random, _depth: int) -> int:
    return random.randint(0, 3)


def _discriminator(_random: Random, _depth: int) -> dict[str, Any]:
    return {"propertyName": "kind", "mapping": {"cat": "#/$defs/a", "dog": "b"}}


_KEYWORDS: dict[str, tuple[float, Callable[[Random, int], Any]]] = {
    "properties": (0.7, _named),
    "allOf": (0.12, _several),
    "anyOf": (0.15, _several),
    "oneOf": (0.12, _several),
    "if": (0.1, _part),
    "then": (0.12, _part),
    "else": (0.12, _part),
    "not": (RARE / 2, _part),
    "default": (0.2, lambda random, _: value(random, 2)),
    "required": (0.2, _some_names),
    "patternProperties": (0.1, _patterns),
    "additionalProperties": (0.12, _part),
    "unevaluatedProperties": (RARE, _part),
    "propertyNames": (RARE / 2, _part),
    "dependentSchemas": (RARE, _named),
    "minProperties": (RARE, _small),
    "maxProperties": (RARE, _small),
    "items": (0.2, _part),
    "prefixItems": (RARE, _several),
    "unevaluatedItems": (RARE, _part),
    "contains": (RARE / 2, _part),
    "uniqueItems": (RARE / 2, lambda *_: True),
    "type": (RARE, _types),
    "enum": (RARE / 2, _leaves),
    "discriminator": (0.1, _discriminator),
}


def wrapped(schema: Any) -> dict[str, Any]:
    """An object schema with the given one under the name "inside", and a default that is always missing beside it."""
    return {"properties": {"inside": _moved(schema), "missing": {"default": 1}}}


def _moved(node: Any) -> Any:
    if isinstance(node, list):
        return [_moved(each) for each in node]
    if not isinstance(node, dict):
        return node
    moved = {name: _moved(each) for name, each in node.items()}
    if node.get("$ref") in REFERENCES and node["$ref"] != "#named":
        moved["$ref"] = WRAPPER + node["$ref"][1:]
    return moved


randoms = st.integers(0, 2**48).map(Random)
schemas = randoms.map(schema)
values = randoms.map(value)
