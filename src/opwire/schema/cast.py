"""`cast`: convert a value as TypeBox 0.34's `Value.Cast` does, from plain JSON Schema.

A schema is lowered to TypeBox's kinds. What TypeBox writes is recognised, in its own spelling or in that of 2020-12.
The rest of JSON Schema becomes the nearest kind: `oneOf` a union, keywords beside `allOf`, `anyOf`, `oneOf` or `$ref`
an intersection. Keywords without a kind (`if`, `dependentRequired`, …) become conditions that are checked and never
repaired.
"""

from collections.abc import Iterator
from typing import Any, cast

from opwire.errors import CastError, SchemaError
from opwire.schema import cast_kinds as kinds
from opwire.schema.cast_javascript import MISSING, is_number
from opwire.schema.cast_kinds import Condition, Kind, Run
from opwire.schema.dialect import JSONSchema, References
from opwire.schema.effort import Effort
from opwire.typed.plain import as_dict, as_list

_OBJECT_KEYWORDS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "minProperties", "maxProperties"}
)
_ARRAY_KEYWORDS = frozenset(
    {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"}
)
_STRING_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
_NUMBER_KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})


class Caster:
    """Casts values to one schema the way TypeBox 0.34's `Value.Cast` does.

    Caster({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}).cast({"n": "1", "x": 2})
    # {'n': 0}
    """

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._kind: Kind | None = None

    def cast(self, value: Any) -> Any:
        """Return the value itself if it passes the check, else one that shares with it what could be kept.

        Raises:
            CastError: TypeBox throws too, or the schema or the value is nested too deeply.
        """
        run = Run(Effort(value).remaining)
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
    """Return the result as JSON has it: `undefined` is left out of an object and null in an array."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        fields_present = {key: _without_missing(item) for key, item in fields.items() if item is not MISSING}
        changed = len(fields_present) < len(fields) or any(
            fields_present[key] is not fields[key] for key in fields_present
        )
        return fields_present if changed else fields
    if isinstance(value, list):
        items = cast("list[Any]", value)
        cleaned = [_without_missing(item) for item in items]
        return cleaned if any(a is not b for a, b in zip(cleaned, items, strict=True)) else items
    return None if value is MISSING else value


def _names(value: Any) -> frozenset[str]:
    return frozenset(name for name in as_list(value) if isinstance(name, str))


class Lowering:
    """Lowers JSON Schema to kinds. Keywords with a value of an invalid type are ignored, like unknown ones."""

    def __init__(self, root: JSONSchema) -> None:
        self._references = References(root)
        self._targets: dict[str, Kind] = {}

    def kind(self, schema: Any) -> Kind:
        if isinstance(schema, bool):
            return kinds.Unknown() if schema else kinds.Never()
        if not isinstance(schema, dict):
            raise CastError("a part of the schema is neither an object nor a boolean")
        keywords = cast("dict[str, Any]", schema)
        parts = self._parts(keywords)
        conditions = list(self._conditions(keywords))
        if "not" in keywords:
            negated = keywords["not"]
            negation = kinds.Never() if negated is True or negated == {} else kinds.Not(self.kind(negated))
            if parts:
                conditions.append(negation.check)
            else:
                parts = [negation]
        if len(parts) > 1:  # TypeBox's own constructors never wrap a single part
            kind = kinds.Intersect(parts, self._rest(keywords, "unevaluatedProperties"))
        else:
            kind = parts[0] if parts else kinds.Unknown()
        if conditions:
            kind = kinds.Guarded(kind, conditions)
        if keywords.get("nullable") is True:
            kind = kinds.Union([kind, kinds.Null()])
        if "default" in keywords:
            kind.set_default(keywords["default"])
        return kind

    def _parts(self, schema: dict[str, Any]) -> list[Kind]:
        """Return the kinds that a value must satisfy at once."""
        parts = self._own(schema)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(ref := schema.get(keyword), str):
                parts.append(self._reference(ref))
        parts.extend(map(self.kind, as_list(schema.get("allOf"))))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                parts.append(kinds.Union([self.kind(variant) for variant in schema[keyword]]))
        return parts

    def _reference(self, ref: str) -> Kind:
        def follow() -> Kind:
            if ref not in self._targets:
                self._targets[ref] = self.kind(self._references.resolve(ref))
            return self._targets[ref]

        return kinds.Ref(follow, is_pointer=ref.startswith("#"))

    def _own(self, schema: dict[str, Any]) -> list[Kind]:
        """Return the kind, if any, that the schema names without its combinators."""
        if "const" in schema:
            return [kinds.Literal(schema["const"])]
        types = schema.get("type")
        if isinstance(schema.get("enum"), list):
            choices: list[Kind] = [kinds.Literal(value) for value in schema["enum"]]
        elif isinstance(types, list):
            choices = [self._typed(name, schema) for name in cast("list[Any]", types)]
        else:
            if types is None and not schema.keys().isdisjoint(_OBJECT_KEYWORDS):
                types = "object"
            elif types is None and not schema.keys().isdisjoint(_ARRAY_KEYWORDS):
                types = "array"
            # TypeBox writes `type: object` beside its `allOf`, even where the parts are not objects.
            empty = types == "object" and "allOf" in schema and schema.keys().isdisjoint(_OBJECT_KEYWORDS)
            return [] if types is None or empty else [self._typed(types, schema)]
        return choices if len(choices) == 1 else [kinds.Union(choices)]

    def _typed(self, name: Any, schema: dict[str, Any]) -> Kind:
        match name:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return kinds.String(schema)
            case "number" | "integer":
                return kinds.Number(schema, integer=name == "integer")
            case "boolean":
                return kinds.Boolean()
            case "null":
                return kinds.Null()
            case _:
                return kinds.Unknown()

    def _rest(self, schema: dict[str, Any], keyword: str) -> Kind | bool:
        """Return the kind of properties that nothing else names: by default True, which allows any."""
        rest_schema = schema.get(keyword)
        return self.kind(rest_schema) if isinstance(rest_schema, dict) else rest_schema is not False

    def _object(self, schema: dict[str, Any]) -> Kind:
        size = kinds.Bounds(schema, "minProperties", "maxProperties")
        additional = self._rest(schema, "additionalProperties")
        patterns = [
            (name, self.kind(subschema)) for name, subschema in as_dict(schema.get("patternProperties")).items()
        ]
        if "properties" not in schema and (patterns or isinstance(additional, Kind)):
            pattern, values = patterns[0] if patterns else ("^(.*)$", cast("Kind", additional))
            kind = kinds.Record(pattern, values, size)
        else:
            properties = {name: self.kind(subschema) for name, subschema in as_dict(schema.get("properties")).items()}
            kind = kinds.Object(properties, _names(schema.get("required")), size)
            kind.patterns = patterns
        kind.additional = additional
        return kind

    def _array(self, schema: dict[str, Any]) -> Kind:
        size = kinds.Bounds(schema, "minItems", "maxItems")
        prefix, rest_schema = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(rest_schema, list):
            prefix, rest_schema = cast("list[Any]", rest_schema), schema.get("additionalItems", True)
        if "items" not in schema and size.low == size.high == 0:  # an empty tuple, as TypeBox writes it
            rest_schema = False
        if isinstance(prefix, list) or rest_schema is False:
            rest_schema = schema.get("unevaluatedItems", True) if "items" not in schema else rest_schema
            return kinds.Tuple([self.kind(subschema) for subschema in as_list(prefix)], self.kind(rest_schema), size)
        return kinds.Array(
            schema, self.kind(rest_schema), self.kind(schema["contains"]) if "contains" in schema else None
        )

    def _conditions(self, schema: dict[str, Any]) -> Iterator[Condition]:
        """Yield what is checked and never repaired."""
        undeclared = _names(schema.get("required")) - as_dict(schema.get("properties")).keys()
        if undeclared:
            yield lambda value, run: not isinstance(value, dict) or undeclared <= cast("dict[str, Any]", value).keys()
        if "if" in schema:
            test, then, otherwise = (self.kind(schema.get(word, True)) for word in ("if", "then", "else"))
            yield lambda value, run: (then if test.check(value, run) else otherwise).check(value, run)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, dependency in as_dict(schema.get(keyword)).items():
                yield self._dependency(name, dependency)
        if "propertyNames" in schema:
            names = self.kind(schema["propertyNames"])
            yield lambda value, run: all(names.check(name, run) for name in as_dict(value))
        if "type" not in schema and not schema.keys().isdisjoint(_STRING_KEYWORDS):
            string = kinds.String(schema)
            yield lambda value, run: not isinstance(value, str) or string.check(value, run)
        if "type" not in schema and not schema.keys().isdisjoint(_NUMBER_KEYWORDS):
            number = kinds.Number(schema)
            yield lambda value, run: not is_number(value) or number.check(value, run)

    def _dependency(self, name: str, needed: Any) -> Condition:
        kind = None if isinstance(needed, list) else self.kind(needed)
        names = _names(needed)

        def holds(value: Any, run: Run) -> bool:
            if not isinstance(value, dict) or name not in value:
                return True
            return names <= cast("dict[str, Any]", value).keys() if kind is None else kind.check(value, run)

        return holds
