"""JSON Schema lowered to TypeBox's kinds.

What TypeBox writes is recognised as it is meant, in its own spelling or in that of 2020-12. The rest of JSON Schema
becomes the nearest kind: `oneOf` a union, keywords beside `allOf`, `anyOf`, `oneOf` or `$ref` an intersection, what
has no kind at all (`if`, `dependentRequired`, …) a condition that is checked and never repaired.
"""

from collections.abc import Iterable
from typing import Any, cast

from opwire.errors import CastError
from opwire.schema.cast_check import is_number
from opwire.schema.cast_kinds import (
    Boolean,
    Bounds,
    Condition,
    Guarded,
    Intersect,
    Kind,
    Literal,
    Never,
    Not,
    Null,
    Number,
    Ref,
    Run,
    String,
    Union,
    Unknown,
)
from opwire.schema.cast_shapes import Array, Object, Record, Tuple
from opwire.schema.refs import JSONSchema, References

_OBJECT_KEYWORDS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "minProperties", "maxProperties"}
)
_ARRAY_KEYWORDS = frozenset(
    {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"}
)
_STRING_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
_NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Lowering:
    """JSON Schema to kinds. Keywords with a value of a wrong type are ignored, as unknown ones are."""

    def __init__(self, root: JSONSchema) -> None:
        self._references = References(root)
        self._targets: dict[str, Kind] = {}

    def kind(self, schema: Any) -> Kind:
        if isinstance(schema, bool):
            return Unknown() if schema else Never()
        if not isinstance(schema, dict):
            raise CastError("a part of the schema is neither an object nor a boolean")
        keywords = cast("dict[str, Any]", schema)
        kind, conditions = self._lower(keywords)
        if conditions:
            kind = Guarded(kind, conditions)
        if keywords.get("nullable") is True:
            kind = Union([kind, Null()])
        if "default" in keywords:
            kind.set_default(keywords["default"])
        return kind

    def _lower(self, schema: dict[str, Any]) -> tuple[Kind, list[Condition]]:
        parts = self._parts(schema)
        conditions = list(self._conditions(schema))
        if "not" in schema:
            negation = self._negation(schema["not"])
            if not parts:
                return negation, conditions
            conditions.append(negation.check)
        if not parts:
            return Unknown(), conditions
        if len(parts) == 1:  # TypeBox's own constructors never wrap a single part
            return parts[0], conditions
        return Intersect(parts, self._rest(schema, "unevaluatedProperties")), conditions

    def _negation(self, schema: Any) -> Kind:
        return Never() if schema is True or schema == {} else Not(self.kind(schema))

    def _parts(self, schema: dict[str, Any]) -> list[Kind]:
        """What a value must satisfy at once."""
        parts = list(self._own(schema))
        parts.extend(self._reference(schema[word]) for word in _REFERENCES if isinstance(schema.get(word), str))
        parts.extend(map(self.kind, _list(schema, "allOf") or ()))
        for keyword in ("anyOf", "oneOf"):
            variants = _list(schema, keyword)
            if variants is not None:
                parts.append(Union([self.kind(variant) for variant in variants]))
        return parts

    def _reference(self, ref: str) -> Kind:
        def follow() -> Kind:
            if ref not in self._targets:
                self._targets[ref] = self.kind(self._references.resolve(ref))
            return self._targets[ref]

        return Ref(follow, is_pointer=ref.startswith("#"))

    def _own(self, schema: dict[str, Any]) -> Iterable[Kind]:
        """The kind, if any, that the schema names without its combinators."""
        if "const" in schema:
            return [Literal(schema["const"])]
        enum = _list(schema, "enum")
        if enum is not None:
            literals = [Literal(value) for value in enum]
            return [literals[0] if len(literals) == 1 else Union(literals)]
        types = schema.get("type")
        if isinstance(types, list):
            kinds = [self._typed(name, schema) for name in cast("list[Any]", types)]
            return [kinds[0] if len(kinds) == 1 else Union(kinds)]
        if types is None:
            types = _implied_type(schema)
        # TypeBox writes `type: object` beside its `allOf`, even where the parts are no objects.
        empty = types == "object" and "allOf" in schema and schema.keys().isdisjoint(_OBJECT_KEYWORDS)
        return [] if types is None or empty else [self._typed(types, schema)]

    def _typed(self, name: Any, schema: dict[str, Any]) -> Kind:
        match name:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return _string(schema)
            case "number" | "integer":
                return _number_kind(schema, integer=name == "integer")
            case "boolean":
                return Boolean()
            case "null":
                return Null()
            case _:
                return Unknown()

    def _rest(self, schema: dict[str, Any], keyword: str) -> Kind | bool:
        """What a keyword says of properties that nothing else names: True where it says nothing."""
        rest = schema.get(keyword)
        return self.kind(rest) if isinstance(rest, dict) else rest is not False

    def _object(self, schema: dict[str, Any]) -> Kind:
        size = _bounds(schema, "minProperties", "maxProperties")
        additional = self._rest(schema, "additionalProperties")
        patterns = [(pattern, self.kind(each)) for pattern, each in _dict(schema, "patternProperties").items()]
        if "properties" not in schema and (patterns or isinstance(additional, Kind)):
            pattern, values = patterns[0] if patterns else ("^(.*)$", cast("Kind", additional))
            record = Record(pattern, values, size)
            record.additional = additional
            return record
        properties = {name: self.kind(each) for name, each in _dict(schema, "properties").items()}
        kind = Object(properties, _strings(schema.get("required")), size)
        kind.additional = additional
        kind.patterns = patterns
        return kind

    def _array(self, schema: dict[str, Any]) -> Kind:
        size = _bounds(schema, "minItems", "maxItems")
        prefix, rest = _list(schema, "prefixItems"), schema.get("items", True)
        if isinstance(rest, list):
            prefix, rest = _list(schema, "items"), schema.get("additionalItems", True)
        if "items" not in schema and size.low == size.high == 0:  # an empty tuple, as TypeBox writes it
            rest = False
        if prefix is not None or rest is False:
            rest = schema.get("unevaluatedItems", True) if "items" not in schema else rest
            return Tuple([self.kind(each) for each in prefix or ()], self.kind(rest), size)
        kind = Array(self.kind(rest), size)
        kind.unique = schema.get("uniqueItems") is True
        kind.matching = _bounds(schema, "minContains", "maxContains")
        if "contains" in schema:
            kind.contains = self.kind(schema["contains"])
        return kind

    def _conditions(self, schema: dict[str, Any]) -> Iterable[Condition]:
        """What is checked and never repaired."""
        undeclared = frozenset(_strings(schema.get("required"))) - _dict(schema, "properties").keys()
        if undeclared:
            yield lambda value, run: not isinstance(value, dict) or undeclared <= cast("dict[str, Any]", value).keys()
        if "if" in schema:
            yield self._conditional(schema)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needed in _dict(schema, keyword).items():
                yield self._dependency(name, needed)
        if "propertyNames" in schema:
            yield self._names(schema["propertyNames"])
        if "type" not in schema and not schema.keys().isdisjoint(_STRING_KEYWORDS):
            string = _string(schema)
            yield lambda value, run: not isinstance(value, str) or string.check(value, run)
        if "type" not in schema and not schema.keys().isdisjoint(_NUMBER_KEYWORDS):
            number = _number_kind(schema, integer=False)
            yield lambda value, run: not is_number(value) or number.check(value, run)

    def _conditional(self, schema: dict[str, Any]) -> Condition:
        test, then, otherwise = (self.kind(schema.get(word, True)) for word in ("if", "then", "else"))

        def holds(value: Any, run: Run) -> bool:
            return (then if test.check(value, run) else otherwise).check(value, run)

        return holds

    def _dependency(self, name: str, needed: Any) -> Condition:
        kind = None if isinstance(needed, list) else self.kind(needed)
        names = frozenset(_strings(needed))

        def holds(value: Any, run: Run) -> bool:
            if not isinstance(value, dict) or name not in value:
                return True
            return names <= cast("dict[str, Any]", value).keys() if kind is None else kind.check(value, run)

        return holds

    def _names(self, schema: Any) -> Condition:
        kind = self.kind(schema)

        def holds(value: Any, run: Run) -> bool:
            return not isinstance(value, dict) or all(kind.check(name, run) for name in cast("dict[str, Any]", value))

        return holds


def _implied_type(schema: dict[str, Any]) -> str | None:
    if not schema.keys().isdisjoint(_OBJECT_KEYWORDS):
        return "object"
    return None if schema.keys().isdisjoint(_ARRAY_KEYWORDS) else "array"


def _string(schema: dict[str, Any]) -> Kind:
    return String(_bounds(schema, "minLength", "maxLength"), _text(schema, "pattern"), _text(schema, "format"))


def _number_kind(schema: dict[str, Any], *, integer: bool) -> Kind:
    kind = Number(integer=integer)
    kind.minimum, kind.maximum = _number(schema, "minimum"), _number(schema, "maximum")
    kind.exclusive_minimum = _number(schema, "exclusiveMinimum")
    kind.exclusive_maximum = _number(schema, "exclusiveMaximum")
    if schema.get("exclusiveMinimum") is True:  # draft-04 and OpenAPI 3.0: a flag on the bound
        kind.exclusive_minimum = kind.minimum
    if schema.get("exclusiveMaximum") is True:
        kind.exclusive_maximum = kind.maximum
    kind.multiple_of = _number(schema, "multipleOf")
    return kind


def _bounds(schema: dict[str, Any], low: str, high: str) -> Bounds:
    return Bounds(_number(schema, low), _number(schema, high))


def _number(schema: dict[str, Any], keyword: str) -> float | None:
    value = schema.get(keyword)
    return value if is_number(value) else None


def _text(schema: dict[str, Any], keyword: str) -> str | None:
    value = schema.get(keyword)
    return value if isinstance(value, str) else None


def _list(schema: dict[str, Any], keyword: str) -> list[Any] | None:
    value = schema.get(keyword)
    return cast("list[Any]", value) if isinstance(value, list) else None


def _dict(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    return [name for name in cast("list[Any]", value) if isinstance(name, str)] if isinstance(value, list) else []
