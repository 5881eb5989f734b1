"""`cast`: what TypeBox 0.34's `Value.Cast` makes of a value, from plain JSON Schema.

The kinds of TypeBox 0.34 that hold other values: objects, records, tuples and arrays.

The rules at the top of `cast_kinds` hold here too.

JSON Schema lowered to TypeBox's kinds.

What TypeBox writes is recognised as it is meant, in its own spelling or in that of 2020-12. The rest of JSON Schema
becomes the nearest kind: `oneOf` a union, keywords beside `allOf`, `anyOf`, `oneOf` or `$ref` an intersection, what
has no kind at all (`if`, `dependentRequired`, …) a condition that is checked and never repaired.
"""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from opwire.errors import CastError, SchemaError
from opwire.schema.cast_kinds import (
    MISSING,
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
    code_units,
    fingerprint,
    is_container,
    is_number,
    matches,
    member,
    own_names,
)
from opwire.schema.cost import Effort
from opwire.schema.dialect import JSONSchema, References


class Object(Kind):
    """`additional` is the kind of undeclared properties: False for none of them, True for any."""

    def __init__(self, properties: dict[str, Kind], required: Iterable[str], size: Bounds) -> None:
        self.properties = properties
        self.required = frozenset(required) & properties.keys()
        self.size = size
        self.additional: Kind | bool = True
        self.patterns: list[tuple[str, Kind]] = []  # never in TypeBox, where patterns make a Record

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, dict):
            return False
        fields = cast("dict[str, Any]", value)
        run.look(len(fields))
        if not self.size.admit(len(fields)):
            return False
        for key, kind in self.properties.items():
            item = fields.get(key, MISSING)
            if key in self.required:
                if not kind.check(item, run) or (key not in fields and _must_be_present(kind)):
                    return False
            elif item is not MISSING and not kind.check(item, run):
                return False
        return self._extras_fit(fields, run)

    def _extras_fit(self, fields: dict[str, Any], run: Run) -> bool:
        if not self.patterns:
            if self.additional is True:
                return True
            # TypeBox counts the keys where that seems to be enough; a required key may be absent even so.
            if self.additional is False and len(self.required) == len(self.properties) == len(fields):
                return True
        for name, item in fields.items():
            if name in self.properties:
                continue
            kind = self._extra(name)
            if kind is False or (isinstance(kind, Kind) and not kind.check(item, run)):
                return False
        return True

    def _extra(self, name: str) -> Kind | bool:
        for pattern, kind in self.patterns:
            if matches(pattern, None, name):
                return kind
        return self.additional

    def make(self, run: Run) -> Any:
        return {key: kind.create(run) for key, kind in self.properties.items() if key in self.required}

    def repair(self, value: Any, run: Run) -> Any:
        if not is_container(value):
            return self.create(run)
        result: dict[str, Any] = {}
        for key, kind in self.properties.items():
            item = member(value, key)
            if item is not MISSING or key in self.required:
                result[key] = kind.cast(item, run)
        if self.patterns or isinstance(self.additional, Kind):
            for name in own_names(value):
                kind = True if name in self.properties else self._extra(name)
                if isinstance(kind, Kind):
                    result[name] = kind.cast(member(value, name), run)
        return result

    def score(self, value: Any, run: Run) -> int:
        if not is_container(value):
            return super().score(value, run)
        total = 0
        for key, kind in self.properties.items():
            item = member(value, key)
            fits = kind.check(item, run)
            total += 100 * (fits and isinstance(kind, Literal)) + 10 * fits + (item is not MISSING)
        return total

    def key_patterns(self) -> list[str]:
        return list(self.properties)


def _must_be_present(kind: Kind) -> bool:
    return kind.is_unknown or kind.extends_undefined()


class Record(Kind):
    def __init__(self, pattern: str, values: Kind, size: Bounds) -> None:
        self.pattern = pattern
        self.values = values
        self.size = size
        self.additional: Kind | bool = True

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, dict):
            return False
        fields = cast("dict[str, Any]", value)
        run.look(len(fields))
        if not self.size.admit(len(fields)):
            return False
        for name, item in fields.items():
            kind = self.values if matches(self.pattern, None, name) else self.additional
            if kind is False or (isinstance(kind, Kind) and not kind.check(item, run)):
                return False
        return True

    def make(self, run: Run) -> Any:
        return {}

    def repair(self, value: Any, run: Run) -> Any:
        if not isinstance(value, dict):
            return self.create(run)
        # Every key, whether it matches or not.
        return {name: self.values.cast(item, run) for name, item in cast("dict[str, Any]", value).items()}

    def key_patterns(self) -> list[str]:
        closed = self.pattern.startswith("^") and self.pattern.endswith("$")
        return [self.pattern[1:-1] if closed else self.pattern]


class Tuple(Kind):
    """`rest` and bounds other than the number of items are never in TypeBox; they count for the check alone."""

    def __init__(self, items: Sequence[Kind], rest: Kind, size: Bounds) -> None:
        self.items = items
        self.rest = rest
        self.size = size

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, list):
            return False
        given = cast("list[Any]", value)
        run.look(len(given))
        if not self.size.admit(len(given)):
            return False
        for index, item in enumerate(given):
            kind = self.items[index] if index < len(self.items) else self.rest
            if not kind.check(item, run):
                return False
        return True

    def make(self, run: Run) -> Any:
        return [item.create(run) for item in self.items]

    def repair(self, value: Any, run: Run) -> Any:
        if not isinstance(value, list):
            return self.create(run)
        given = cast("list[Any]", value)
        missing: list[Any] = [MISSING] * (len(self.items) - len(given))
        return [kind.cast(item, run) for kind, item in zip(self.items, [*given, *missing], strict=False)]

    def key_patterns(self) -> list[str]:
        return [str(index) for index in range(len(self.items))]


class Array(Kind):
    def __init__(self, items: Kind, size: Bounds) -> None:
        self.items = items
        self.size = size
        self.unique = False
        self.contains: Kind | None = None
        self.matching = Bounds()  # of `contains`; even a lower bound of 0 asks for one

    def check(self, value: Any, run: Run) -> bool:
        if not isinstance(value, list):
            return False
        given = cast("list[Any]", value)
        run.look(len(given))
        if not self.size.admit(len(given)):
            return False
        for item in given:
            if not self.items.check(item, run):
                return False
        if self.unique and len(set(map(fingerprint, given))) < len(given):
            return False
        if self.contains is None:  # then a bound of its own, `minContains`, can never be met
            return self.matching.low is None and self.matching.high is None
        found = sum(self.contains.check(item, run) for item in given)
        return found > 0 and self.matching.admit(found)

    def make(self, run: Run) -> Any:
        if self.unique or self.contains is not None:
            raise CastError("an array with `uniqueItems` or `contains` needs a default")
        return [self.items.create(run) for _ in range(int(self.size.low or 0))]

    def repair(self, value: Any, run: Run) -> Any:
        created = cast("list[Any]", value) if isinstance(value, list) else self.create(run)
        sized = self._fit_size(created, run)
        result = [self.items.cast(item, run) for item in sized]
        if not self.unique:
            return result
        distinct = _without_repeats(result)
        if not self.check(distinct, run):
            raise CastError("the items of an array with `uniqueItems` cannot be made unique")
        return distinct

    def _fit_size(self, created: Any, run: Run) -> list[Any]:
        low, high = self.size.low, self.size.high
        # A default may be anything. JavaScript spreads a string, but only where there is something to pad.
        if isinstance(created, str) and low is not None and len(code_units(created)) < low:
            lacking = int(low) - len(code_units(created))
        elif isinstance(created, list):
            lacking = max(0, int(low or 0) - len(cast("list[Any]", created)))
        else:
            raise CastError("the default of an array is no array")
        run.spend(lacking)
        padded: list[Any] = [*created, *[None] * lacking]
        return padded if high is None else padded[: max(0, int(high))]

    def key_patterns(self) -> list[str]:
        return ["[number]"]


def _without_repeats(items: list[Any]) -> list[Any]:
    """`[...new Set(items)]`: objects and arrays are equal to themselves alone."""
    seen: set[Any] = set()
    kept: list[Any] = []
    for item in items:
        key = id(item) if is_container(item) else (isinstance(item, bool), item)
        if is_container(item) or key not in seen:
            seen.add(key)
            kept.append(item)
    return kept


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


class Caster:
    """Casts values to one schema the way TypeBox 0.34's `Value.Cast` does.

    Caster({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}).cast({"n": "1", "x": 2})
    # {'n': 0}
    """

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._kind: Kind | None = None

    def cast(self, value: Any) -> Any:
        """The value itself where it passes the check, else one that shares with it what could be kept.

        Raises:
            CastError: where TypeBox throws too, or the schema or the value is nested too deeply.
        """
        run = Run(Effort(value).left)
        try:
            if self._kind is None:
                self._kind = Lowering(self._root).kind(self._root)
            result = self._kind.cast(value, run)
            return _without_missing(result) if run.absent else result
        except SchemaError as error:
            raise CastError(str(error)) from None
        except RecursionError:
            raise CastError("the value or its schema is nested too deeply") from None


def _without_missing(value: Any) -> Any:
    """The result as JSON has it: `undefined` is no key in an object and null in an array."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        kept = {key: _without_missing(item) for key, item in fields.items() if item is not MISSING}
        changed = len(kept) < len(fields) or any(kept[key] is not fields[key] for key in kept)
        return kept if changed else fields
    if isinstance(value, list):
        items = cast("list[Any]", value)
        cleaned = [_without_missing(item) for item in items]
        return cleaned if any(a is not b for a, b in zip(cleaned, items, strict=True)) else items
    return None if value is MISSING else value
