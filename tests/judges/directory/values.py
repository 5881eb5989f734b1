"""Values for the schemas of a document, chosen by chance: what a caller could send.

`plain` restricts text to letters and digits, for places in which a delimiter cannot be told from a value.
"""

import json
import math
import random
import re
import string
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

from tests.judges.directory.reading import Document, Unreadable

_TEXT = "aZ9 -_.~!*'();:@&=+$,/?#[]%\"<>{}|^é漢"
_PLAIN = string.ascii_letters + string.digits
_FORMATS = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:30:00Z",
    "email": "rex@example.com",
    "ipv4": "192.0.2.1",
    "time": "12:30:00Z",
    "uri": "https://example.com/a?b=c",
    "url": "https://example.com/a",
    "uuid": "5a3f1c52-7d0e-4f2b-9c7b-1f0a2c9c4b11",
    "byte": "aGVsbG8=",
}
_TYPICAL = ("a1", "A1", "1", "a", "2024-02-29T12:30:00Z", "2024-02-29", "rex@example.com", "+4915112345678")
_DEPTH, _WIDE = 9, 4  # of containers; from the second on, what is optional is left out


class NoValue(Exception):
    """No value was found for a schema."""


class Values:
    """Makes values."""

    def __init__(self, document: Document, rng: random.Random) -> None:
        self._document = document
        self._random = rng

    def make(self, schema: Any, *, plain: bool = False, depth: int = 0) -> Any:
        """Return a value that the schema describes.

        Raises:
            NoValue: none was found.
        """
        node = self._flat(schema, depth)
        if "const" in node:
            return node["const"]
        if isinstance(node.get("enum"), list):
            return self._listed(node)
        if depth > _DEPTH:
            raise NoValue("it is too deep")
        kind = self._kind(node)
        if kind == "object":
            return self._object(node, plain, depth)
        if kind == "array":
            return self._array(node, plain, depth)
        if kind == "null":
            raise NoValue("nothing but null")
        scalars = {"integer": self._integer, "number": self._number, "boolean": lambda _: self._random.random() < 0.5}
        return scalars[kind](node) if kind in scalars else self._text(node, plain)

    def properties(self, schema: Any) -> dict[str, Any]:
        """Return the properties that a schema declares for one of its variants."""
        return self._flat(schema, 0).get("properties", {})

    def kind(self, schema: Any) -> str:
        """Return the type of a schema's values."""
        node = self._flat(schema, 0)
        return "string" if isinstance(node.get("enum"), list) and "type" not in node else self._kind(node)

    def _kind(self, node: dict[str, Any]) -> str:
        kinds = node.get("type")
        if isinstance(kinds, list):
            kinds = next((each for each in kinds if each != "null"), "null")
        if isinstance(kinds, str):
            return kinds.lower()
        if "properties" in node or isinstance(node.get("additionalProperties"), dict):
            return "object"
        return "array" if "items" in node else "string"

    def _flat(self, schema: Any, depth: int) -> dict[str, Any]:
        """Merge a schema with the target of its reference, its `allOf`, and one of its variants."""
        try:
            node = self._document.resolve(schema)
        except Unreadable as error:
            raise NoValue(str(error)) from None
        if not isinstance(node, dict):
            return {}
        parts = list(node.get("allOf") or [])
        tag: dict[str, Any] = {}
        for union in ("oneOf", "anyOf"):
            branches = [each for each in node.get(union) or [] if self._is_useful(each)]
            if branches:
                chosen = self._random.choice(branches)
                parts.append(chosen)
                tag |= self._tag(node, chosen)
        if depth > 40:
            raise NoValue("it is too deep")
        merged = {key: each for key, each in node.items() if key not in ("allOf", "oneOf", "anyOf")}
        merged["properties"] = dict(node.get("properties") or {})
        merged["required"] = list(node["required"]) if isinstance(node.get("required"), list) else []
        for part in (self._flat(each, depth + 10) for each in parts):
            for name, each in part.get("properties", {}).items():
                merged["properties"].setdefault(name, each)
            merged["required"] += part.get("required", [])
            merged |= {key: each for key, each in part.items() if key not in ("properties", "required")}
        merged["properties"] |= tag
        return {key: each for key, each in merged.items() if each or key not in ("properties", "required")}

    def _is_useful(self, branch: Any) -> bool:
        try:
            node = self._document.resolve(branch)
        except Unreadable:
            return False
        return isinstance(node, dict) and node.get("type") != "null"

    def _tag(self, node: dict[str, Any], chosen: Any) -> dict[str, Any]:
        discriminator = node.get("discriminator")
        if not isinstance(discriminator, dict) or "propertyName" not in discriminator:
            return {}
        ref = str(chosen.get("$ref", ""))
        if not ref:
            return {}
        own = ref.rpartition("/")[2]
        mapping = discriminator.get("mapping") or {}
        tags = [tag for tag, target in mapping.items() if str(target).rpartition("/")[2] == own]
        return {discriminator["propertyName"]: {"const": tags[0] if tags else own}}

    def _listed(self, node: dict[str, Any]) -> Any:
        values = [each for each in node["enum"] if each is not None]
        if not values:
            raise NoValue("nothing but null")
        value = self._random.choice(values)
        if node.get("type") == "array" and not isinstance(value, list):
            return [value]
        # YAML reads `1.0` as a number.
        return json.dumps(value) if node.get("type") == "string" and not isinstance(value, str) else value

    def _object(self, node: dict[str, Any], plain: bool, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        required = node.get("required", [])
        for name, each in node.get("properties", {}).items():
            is_required = name in required
            if self._is_read_only(each) or not (is_required or (depth < _WIDE and self._random.random() < 0.6)):
                continue
            try:
                made[name] = self.make(each, plain=plain, depth=depth + 1)
            except NoValue:
                if is_required:
                    raise
        for name in required:
            if name not in made and name not in node.get("properties", {}):
                made[name] = "required"
        extras = node.get("additionalProperties")
        if isinstance(extras, dict) and extras and not made and depth < _WIDE:
            made["key"] = self.make(extras, plain=plain, depth=depth + 1)
        most = _bound(node, "maxProperties", len(made))
        optional = [name for name in made if name not in required]
        for name in optional[: max(0, len(made) - most)]:
            del made[name]
        if len(made) < _bound(node, "minProperties", 0):
            raise NoValue("too few properties")
        return made

    def _is_read_only(self, schema: Any) -> bool:
        try:
            return any(
                isinstance(each, dict) and each.get("readOnly") is True
                for each in (schema, self._document.resolve(schema))
            )
        except Unreadable:
            return False

    def _array(self, node: dict[str, Any], plain: bool, depth: int) -> list[Any]:
        fewest, most = _bound(node, "minItems", 0), _bound(node, "maxItems", 3)
        count = max(fewest, min(most, 1 if depth >= _WIDE and fewest <= 1 else self._random.randint(1, 3)))
        if count > 50:
            raise NoValue("it is too long")
        items: list[Any] = []
        for _ in range(count * 4):
            if len(items) == count:
                break
            each = self.make(node.get("items", {}), plain=plain, depth=depth + 1)
            if each not in items or not node.get("uniqueItems"):
                items.append(each)
        return items

    def _integer(self, node: dict[str, Any]) -> int:
        least, most = _limits(node)
        if least is None and most is None and node.get("format") == "int64" and self._random.random() < 0.2:
            return 9_007_199_254_740_993  # a float has fewer digits
        low = math.ceil(least if least is not None else min(0, most - 1 if most is not None else 0))
        high = math.floor(most) if most is not None else low + 1000
        if low > high:
            raise NoValue("no integer is between the limits")
        step = node.get("multipleOf")
        if isinstance(step, int | float) and step >= 1:
            low = math.ceil(low / step)
            return int(low * step) if low * step <= high else _fail()
        return self._random.randint(low, min(high, low + 1000))

    def _number(self, node: dict[str, Any]) -> float:
        least, most = _limits(node)
        if isinstance(node.get("multipleOf"), int | float):
            return self._integer({**node, "multipleOf": max(1, math.ceil(node["multipleOf"]))})
        low = least if least is not None else (most - 1 if most is not None else 0.25)
        high = most if most is not None else low + 1
        return (low + high) / 2 if low <= high else _fail()

    def _text(self, node: dict[str, Any], plain: bool) -> str:
        shortest, longest = _bound(node, "minLength", 0), _bound(node, "maxLength", 30)
        if shortest > 10_000:
            raise NoValue("it is too long")
        if isinstance(pattern := node.get("pattern"), str):
            longest = _bound(node, "maxLength", 10_000)
            made = (_matching(pattern, self._random, shortest, extra) for extra in (2, 0, 2, 0))
            for each in (node.get("example"), node.get("default"), *made, *_TYPICAL):
                if isinstance(each, str) and shortest <= len(each) <= longest and _is_usable(pattern, each):
                    return each
            raise NoValue(f"no text was found for its pattern {pattern[:60]}")
        known = _FORMATS.get(str(node.get("format")))
        if known and shortest <= len(known) <= max(longest, 40 if "maxLength" not in node else longest):
            return known
        alphabet = _PLAIN if plain else _TEXT
        length = max(shortest, min(longest, self._random.randint(1, 12)))
        text = "".join(self._random.choice(alphabet) for _ in range(max(length, 1)))
        return self._random.choice(_PLAIN) + text[1:-1] + self._random.choice(_PLAIN) if len(text) > 1 else "x"


def _fail() -> Any:
    raise NoValue("no number is between the limits")


def _bound(node: dict[str, Any], keyword: str, default: int) -> int:
    value = node.get(keyword)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _limits(node: dict[str, Any]) -> tuple[float | None, float | None]:
    least, most = node.get("minimum"), node.get("maximum")
    least = least if isinstance(least, int | float) else None
    most = most if isinstance(most, int | float) else None
    under, over = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if under is True and least is not None:
        least += 1
    elif isinstance(under, int | float) and not isinstance(under, bool):
        least = under + 1
    if over is True and most is not None:
        most -= 1
    elif isinstance(over, int | float) and not isinstance(over, bool):
        most = over - 1
    return least, most


def _is_usable(pattern: str, text: str) -> bool:
    try:
        return text.isprintable() and bool(text) and re.search(pattern, text) is not None
    except re.error:
        return False


def _matching(pattern: str, rng: random.Random, shortest: int, extra: int) -> str | None:
    """Return a text that should match a simple pattern, or None; repetitions go `extra` beyond their minimum."""
    try:
        parsed = _parser.parse(pattern)
        return "".join(_piece(op, argument, rng, shortest if len(parsed) <= 3 else 0, extra) for op, argument in parsed)
    except (re.error, ValueError, OverflowError, RecursionError):
        return None


def _piece(op: Any, argument: Any, rng: random.Random, shortest: int, extra: int) -> str:
    """Return a text for one item of a parsed pattern; `shortest` if a repetition is all there is."""

    def of(parsed: Any) -> str:
        return "".join(_piece(each, below, rng, 0, extra) for each, below in parsed)

    match str(op):
        case "LITERAL":
            return chr(argument)
        case "IN":
            return _member(argument, rng)
        case "ANY" | "NOT_LITERAL":
            return "a"
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            low, high, inner = argument
            count = max(rng.randint(low, min(high, low + extra)), min(shortest, high))
            return "".join(of(inner) for _ in range(min(count, 500)))
        case "SUBPATTERN":
            return of(argument[-1])
        case "BRANCH":
            return of(rng.choice(argument[1]))
        case "AT":
            return ""
        case _:
            raise ValueError(str(op))


def _member(members: list[Any], rng: random.Random) -> str:
    if str(members[0][0]) == "NEGATE":
        return "a"
    op, argument = rng.choice(members)
    match str(op):
        case "LITERAL":
            return chr(argument)
        case "RANGE":
            return chr(rng.randint(argument[0], min(argument[1], argument[0] + 25)))
        case _:
            return {"CATEGORY_DIGIT": "7", "CATEGORY_SPACE": " "}.get(str(argument), "a")
