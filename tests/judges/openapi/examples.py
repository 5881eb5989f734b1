"""Input for an operation, made from its schema: always the same, and checked against the schema.

An example is `full`, with every property as far as recursion allows; `simple`, which is the same without arrays of
objects; or the `least`, with nothing but what is required.
"""

import re
from typing import Any, Literal

from opwire.schema import Schema
from opwire.schema.dialect import References

Extent = Literal["full", "simple", "least"]

_DEPTH = 12  # of objects and arrays
_WIDE = 6  # from this depth on, what is optional is left out: APIs refer to themselves
_TEXTS = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:30:00Z",
    "email": "rex@example.com",
    "ipv4": "192.0.2.1",
    "time": "12:30:00Z",
    "uri": "https://example.com/a",
    "url": "https://example.com/a",
    "uuid": "5a3f1c52-7d0e-4f2b-9c7b-1f0a2c9c4b11",
}
_MATCHING = ("a1", "AAAA", "1.0.0", "refs/heads/a", "ssh-rsa AAAA", "pkg:a", "0" * 40, f"sha256:{'0' * 64}")


class NoExample(Exception):
    """No value that fits was found."""


def example(schema: Schema, extent: Extent) -> Any:
    """A value that fits the schema.

    Raises:
        NoExample: none was found.
    """
    json: Any = schema.json
    value = _Maker(References(json), extent).make(json, 0)
    if not schema.is_valid(value):
        raise NoExample(f"{value!r} does not fit: {schema.problems(value)}")
    return value


class _Maker:
    def __init__(self, references: References, extent: Extent) -> None:
        self._references = references
        self._extent = extent

    def make(self, schema: Any, depth: int) -> Any:
        schema = self._flat(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        if depth > _DEPTH:
            raise NoExample("it is too deep")
        for union in ("oneOf", "anyOf"):
            if union in schema:
                return self._one_of(schema, union, depth)
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        kind = kinds if isinstance(kinds, str) else next(each for each in kinds if each != "null")
        return getattr(self, f"_{kind}")(schema, depth)

    def _flat(self, schema: Any) -> dict[str, Any]:
        """The schema with its references and `allOf` put together."""
        if not isinstance(schema, dict):
            return {}
        merged = {keyword: each for keyword, each in schema.items() if keyword not in ("$ref", "allOf")}
        others = [self._references.resolve(schema["$ref"])] if "$ref" in schema else []
        for other in map(self._flat, [*others, *schema.get("allOf", ())]):
            for keyword, each in other.items():
                if keyword == "properties":
                    merged[keyword] = {**each, **merged.get(keyword, {})}
                elif keyword == "required":
                    merged[keyword] = [*merged.get(keyword, ()), *each]
                else:
                    merged.setdefault(keyword, each)
        return merged

    def _one_of(self, schema: dict[str, Any], union: str, depth: int) -> Any:
        beside = {keyword: each for keyword, each in schema.items() if keyword != union}
        for branch in schema[union]:
            try:
                return self.make({**beside, "allOf": [branch, *beside.get("allOf", ())]}, depth)
            except NoExample:
                continue
        raise NoExample(f"no branch of {union} has one")

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        required, extras = schema.get("required", ()), schema.get("additionalProperties")
        properties = {**dict.fromkeys(required, extras), **schema.get("properties", {})}
        made: dict[str, Any] = {}
        for name, each in properties.items():
            if name in required or self._wants(each, depth):
                try:
                    made[name] = self.make(each, depth + 1)
                except NoExample:
                    if name in required:
                        raise
        if isinstance(extras, dict) and not made and self._extent != "least":
            made["key"] = self.make(extras, depth + 1)
        return made

    def _wants(self, schema: Any, depth: int) -> bool:
        """Whether an optional property is given."""
        if self._extent == "least" or depth >= _WIDE:
            return False
        return self._extent == "full" or self._flat(self._flat(schema).get("items")).get("type") != "object"

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        count = max(schema.get("minItems", 0), 0 if self._extent == "least" else 1)
        first = self.make(schema.get("items", {}), depth + 1) if count else None
        return [first] * count

    def _string(self, schema: dict[str, Any], depth: int) -> str:
        if schema.get("contentEncoding") == "base64":
            return "AAH+/w=="
        given = _TEXTS.get(schema.get("format", ""), "text & more/é")
        given = next((each for each in schema.get("examples", ()) if isinstance(each, str)), given)
        if "pattern" in schema:
            given = next((each for each in (given, *_MATCHING) if re.search(schema["pattern"], each)), given)
        return given.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]

    def _integer(self, schema: dict[str, Any], depth: int) -> int:
        return int(self._number(schema, depth))

    def _number(self, schema: dict[str, Any], depth: int) -> float:
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        most = schema.get("maximum", schema.get("exclusiveMaximum", least + 8) - 1)
        step = schema.get("multipleOf", 1)
        return min(max(least, 7), most) // step * step

    def _boolean(self, schema: dict[str, Any], depth: int) -> bool:
        return True

    def _null(self, schema: dict[str, Any], depth: int) -> None:
        return None
