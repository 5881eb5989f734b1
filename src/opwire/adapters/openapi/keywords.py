"""Keywords of a schema that say nothing usable: real documents hold `required: true` and `type: any`.

One such keyword would make the whole schema unusable. It is left out instead, and the rest still counts.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from opwire.adapters.openapi.shapes import text
from opwire.errors import SchemaError
from opwire.schema import Schema

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# What only describes a schema for other tools, or is said in another way once references are rewritten.
_NOT_KEPT = frozenset(
    "$anchor $comment $defs $dynamicAnchor $id $recursiveAnchor $schema $vocabulary components definitions "
    "externalDocs id xml".split()
)


def usable_keywords(schema: dict[str, Any], warn: Callable[[str], None]) -> dict[str, Any]:
    """A copy of a schema with the keywords that can be used. Schemas inside it are not looked at."""
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _NOT_KEPT or (keyword.startswith("x-") and keyword != "x-nullable"):
            continue
        if keyword == "example":
            kept.setdefault("examples", [value])
        elif (is_usable := _CHECKS.get(keyword)) is None or is_usable(value):
            tidy = _TIDY.get(keyword)
            kept[keyword] = value if tidy is None else tidy(value)
        elif not _says_nothing(keyword, value):
            warn(f"`{keyword}: {str(value)[:40]}` cannot be used")
    if kept.get("type") == "string" and "enum" in kept:  # YAML takes `1.0` for a number, and `true` for a boolean
        kept["enum"] = [each if each is None else text(each) or each for each in kept["enum"]]
    if kept.get("type") == "null":  # which needs not be allowed twice
        kept.pop("nullable", None)
        kept.pop("x-nullable", None)
    return kept


def _says_nothing(keyword: str, value: Any) -> bool:
    """An empty line of YAML, a file of Swagger 2.0, or examples as parameters have them: nobody needs to know."""
    return (
        value is None or (keyword == "type" and value == "file") or (keyword == "examples" and isinstance(value, dict))
    )


def lower_bounds(schema: dict[str, Any]) -> None:
    """Exclusive bounds that are still booleans in documents of 3.1 and later."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(flag := schema.get(exclusive), bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _types(given: Any) -> str | list[str] | None:
    if given is None:  # `type: null` in YAML
        return "null"
    if isinstance(given, str):
        lower = given.lower()
        return lower if lower in _TYPES else None
    if not isinstance(given, list):
        return None
    names = ["null" if each is None else each for each in cast("list[Any]", given)]
    usable = list(dict.fromkeys(each for each in names if isinstance(each, str) and each in _TYPES))
    return usable if usable and len(usable) == len(set(map(str, names))) else None


def _is_type(value: Any) -> bool:
    return _types(value) is not None


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_schemas(value: Any) -> bool:
    return _is_filled_list(value) and all(map(_is_schema, value))


def _is_items(value: Any) -> bool:
    return _is_schema(value) or _are_schemas(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, cast("list[Any]", value)))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | float)  # of 3.0, the exclusive ones are booleans


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and bool(cast("list[Any]", value))


def _is_pattern(value: Any) -> bool:
    return isinstance(value, str) and is_pattern(value)


def _are_patterns(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_pattern, cast("dict[str, Any]", value)))


@lru_cache(maxsize=4096)
def is_pattern(text: str) -> bool:
    """Whether the engine that checks values can read a pattern."""
    try:
        Schema({"pattern": text}).compile()
    except SchemaError:
        return False
    return True


def _without_doubles(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _named_schemas(schemas: dict[str, Any]) -> dict[str, Any]:
    """What is no schema takes anything."""
    return {name: each if _is_schema(each) else True for name, each in schemas.items()}


_TIDY: dict[str, Callable[[Any], Any]] = {
    "required": _without_doubles,
    "type": _types,
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _named_schemas),
}

_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys("additionalItems additionalProperties contains contentSchema else if not".split(), _is_schema),
    **dict.fromkeys("propertyNames then unevaluatedItems unevaluatedProperties".split(), _is_schema),
    **dict.fromkeys("allOf anyOf oneOf prefixItems".split(), _are_schemas),
    **dict.fromkeys("properties dependencies dependentRequired dependentSchemas".split(), _is_mapping),
    **dict.fromkeys("title description format contentEncoding contentMediaType $ref $dynamicRef".split(), _is_text),
    **dict.fromkeys("minimum maximum".split(), _is_number),
    **dict.fromkeys("exclusiveMinimum exclusiveMaximum".split(), _is_bound),
    **dict.fromkeys("minLength maxLength minItems maxItems minProperties maxProperties".split(), _is_count),
    **dict.fromkeys("minContains maxContains".split(), _is_count),
    **dict.fromkeys("nullable x-nullable deprecated readOnly writeOnly uniqueItems".split(), _is_flag),
    "enum": _is_filled_list,
    "examples": _is_list,
    "items": _is_items,
    "multipleOf": _is_positive,
    "pattern": _is_pattern,
    "patternProperties": _are_patterns,
    "required": _are_texts,
    "type": _is_type,
}
