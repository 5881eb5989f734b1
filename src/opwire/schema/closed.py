"""Variants of a schema, written as documents of their own that hold only what is reachable.

`plain` is a part of the schema as it is. `closed` accepts a value only if it is valid *and* `fit` would find nothing
to do in it: undeclared properties are refused, properties with a usable default are required, and an integer has to
be written as one. The rules that keep this true:

1. A closed document is never more lenient than the plain one; where exactness would cost, it is stricter, and
   `fit` then walks the value and finds nothing.
2. What only decides (`if`, `not`, `contains`, `propertyNames`, variants that may overlap) stays plain: tightening a
   condition would loosen the whole.
3. A place is closed once, by the outermost schema that applies to it. `additionalProperties` is faster than
   `unevaluatedProperties`, which is used only where several schemas meet.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from opwire.errors import SchemaError
from opwire.schema.refs import JSONSchema
from opwire.schema.shape import DEPENDENT, UNIONS, Node, Shapes, many, named, nodes, type_names

# fmt: off
_ASSERTIONS: Final = (
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "format", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
    "maxProperties", "minProperties", "required", "dependentRequired",
)
# fmt: on
_CONDITIONS: Final = ("not", "contains", "propertyNames", "if")
_BRANCHES: Final = ("then", "else")
_CHILDREN: Final = ("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems")
_NAMED_CHILDREN: Final = ("properties", "patternProperties")
_IN_PLACE: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "if", *UNIONS, *DEPENDENT})
_EXTRAS: Final = ("additionalProperties", "unevaluatedProperties")

# Since draft-06 the number 5.0 is an integer. Draft-04 tells them apart, and costs nothing more than a reference.
_INTEGER_ID: Final = "urn:opwire:integer"
_INTEGER: Final = {"$schema": "http://json-schema.org/draft-04/schema#", "id": _INTEGER_ID, "type": "integer"}


class _Variant(Enum):
    PLAIN = auto()
    INNER = auto()  # closed below, but the place itself is closed by a schema around it
    CLOSED = auto()


def plain_document(shapes: Shapes, schema: JSONSchema) -> JSONSchema:
    """A part of the root schema with what it refers to.

    Raises:
        SchemaError: its references cannot be followed from here.
    """
    return _Writer(shapes, strip=False, fills=lambda _schema, _default: False).document(schema, _Variant.PLAIN)


def closed_document(
    shapes: Shapes, schema: JSONSchema, *, strip: bool, fills: Callable[[Node, Any], bool]
) -> JSONSchema:
    """A part of the root schema, tightened to what `fit` leaves alone. `fills` says which defaults are usable.

    Raises:
        SchemaError: its references cannot be followed from here.
    """
    return _Writer(shapes, strip=strip, fills=fills).document(schema, _Variant.CLOSED)


def allows_extras(node: Node) -> bool:
    """Whether the node itself says that undeclared properties are welcome."""
    return any(keyword in node and node[keyword] is not False for keyword in _EXTRAS)


class _Writer:
    def __init__(self, shapes: Shapes, *, strip: bool, fills: Callable[[Node, Any], bool]) -> None:
        self._shapes = shapes
        self._strip = strip
        self._fills = fills
        self._defs: dict[str, Any] = {}
        self._names: dict[tuple[int, _Variant], str] = {}
        self._waiting: list[tuple[str, Node, _Variant]] = []

    def document(self, schema: JSONSchema, variant: _Variant) -> JSONSchema:
        out = self._write(schema, variant)
        while self._waiting:  # references are followed here, not on the stack: they may go round
            name, node, wanted = self._waiting.pop()
            self._defs[name] = self._write(node, wanted)
        return out if isinstance(out, bool) else {**out, "$defs": self._defs}

    def _write(self, schema: JSONSchema, variant: _Variant) -> JSONSchema:
        if isinstance(schema, bool):
            return schema
        if schema is not self._shapes.root and _has_own_base(schema):
            raise SchemaError(f"the part {schema['$id']!r} has references relative to itself")
        tight = variant is not _Variant.PLAIN
        hands_on = variant is _Variant.CLOSED and self._hands_on(schema)
        in_place = _Variant.CLOSED if hands_on else _Variant.INNER if tight else _Variant.PLAIN
        out: Node = {keyword: schema[keyword] for keyword in _ASSERTIONS if keyword in schema}
        out["allOf"] = [self._write(each, in_place) for each in many(schema, "allOf")]
        self._write_references(schema, in_place, out)
        self._write_branches(schema, in_place, out)
        self._write_children(schema, _Variant.CLOSED if tight else _Variant.PLAIN, out)
        if tight:
            self._tighten(schema, out)
        if variant is _Variant.CLOSED and self._strip and not hands_on:
            self._close(schema, out)
        if not out["allOf"]:
            del out["allOf"]
        return out

    def _hands_on(self, schema: Node) -> bool:
        """Whether the one schema inside it, or each variant of its one union, can close the place instead."""
        inside = _IN_PLACE & schema.keys()
        if len(inside) != 1 or any(keyword in schema for keyword in (*_EXTRAS, *_NAMED_CHILDREN)):
            return False
        keyword = next(iter(inside))
        if keyword == "allOf":
            return len(many(schema, keyword)) == 1
        return keyword == "$ref" or keyword in UNIONS

    def _write_references(self, schema: Node, variant: _Variant, out: Node) -> None:
        for ref, target in self._shapes.references(schema):
            if target is None:
                out["$ref"] = ref  # the meta-schemas are known to every validator; anything else fails to compile
            elif isinstance(target, bool):
                out["allOf"].append(target)
            elif "$ref" in out:
                out["allOf"].append({"$ref": self._name(target, variant)})
            else:
                out["$ref"] = self._name(target, variant)

    def _name(self, node: Node, variant: _Variant) -> str:
        key = (id(node), variant)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._waiting.append((self._names[key], node, variant))
        return f"#/$defs/{self._names[key]}"

    def _write_branches(self, schema: Node, variant: _Variant, out: Node) -> None:
        for keyword in UNIONS:
            if keyword in schema:
                self._write_union(schema, keyword, variant, out)
        for keyword in _CONDITIONS:
            if keyword in schema:
                out[keyword] = self._write(schema[keyword], _Variant.PLAIN)
        for keyword in _BRANCHES:
            if keyword in schema:
                out[keyword] = self._write(schema[keyword], variant)
        for keyword in DEPENDENT:
            if keyword in schema:
                out[keyword] = {
                    name: each if isinstance(each, list) else self._write(each, variant)
                    for name, each in named(schema, keyword).items()
                }

    def _write_union(self, schema: Node, keyword: str, variant: _Variant, out: Node) -> None:
        branches: list[JSONSchema] = many(schema, keyword)
        out[keyword] = [self._write(each, variant) for each in branches]
        if variant is _Variant.PLAIN or self._shapes.are_exclusive(branches):
            return
        if out[keyword] == [self._write(each, _Variant.PLAIN) for each in branches]:
            return
        # The usual case first: a value that matches one variant and is content with it.
        plain = [self._shared(each, _Variant.PLAIN) for each in branches]
        content: list[JSONSchema] = [
            {"allOf": [self._shared(each, variant)], "not": {"anyOf": plain[:index] + plain[index + 1 :]}}
            for index, each in enumerate(branches)
        ]
        if keyword == "anyOf":
            content.append(self._several(schema, plain, variant))
        del out[keyword]
        out["allOf"].append({"anyOf": content})

    def _several(self, schema: Node, plain: list[JSONSchema], variant: _Variant) -> JSONSchema:
        """Several variants match at once: each of them has to be content, but only together they close the place."""
        inner = [self._shared(each, _Variant.INNER) for each in many(schema, "anyOf")]
        each_content = [{"if": one, "then": other} for one, other in zip(plain, inner, strict=True)]
        out: Node = {"anyOf": plain, "allOf": each_content}
        if variant is _Variant.CLOSED and self._strip:
            self._close(schema, out)
        return out

    def _shared(self, schema: JSONSchema, variant: _Variant) -> JSONSchema:
        """What stands in several places is referred to: written out, overlapping unions in each other would explode."""
        return schema if isinstance(schema, bool) else {"$ref": self._name(schema, variant)}

    def _write_children(self, schema: Node, variant: _Variant, out: Node) -> None:
        for keyword in _CHILDREN:
            if keyword in schema:
                out[keyword] = self._write(schema[keyword], variant)
        for keyword in _NAMED_CHILDREN:
            if keyword in schema:
                out[keyword] = {name: self._write(each, variant) for name, each in named(schema, keyword).items()}
        if "prefixItems" in schema:
            out["prefixItems"] = [self._write(each, variant) for each in many(schema, "prefixItems")]

    def _tighten(self, schema: Node, out: Node) -> None:
        """Require what would be filled, and integers that are written as such."""
        filled = [
            name for name, (child, default) in self._shapes.defaults(schema).items() if self._fills(child, default)
        ]
        if filled:
            out["required"] = sorted({*many(schema, "required"), *filled})
        types = type_names(schema)
        if "integer" in types and "number" not in types:
            self._defs["integer"] = _INTEGER
            others = [name for name in types if name != "integer"]
            out["allOf"].append(
                {"anyOf": [{"type": others}, {"$ref": _INTEGER_ID}]} if others else {"$ref": _INTEGER_ID}
            )
            if not others and "$ref" not in out:
                out["$ref"] = out["allOf"].pop()["$ref"]
                del out["type"]

    def _close(self, schema: Node, out: Node) -> None:
        together = self._shapes.conjuncts(schema)
        if any(map(allows_extras, together)) or self._shapes.is_opaque(schema) or not self._shapes.declares(schema):
            return
        if not any(keyword in schema for keyword in _EXTRAS):
            # A required property stays even where nobody declares it.
            undeclared = self._shapes.required(schema) - named(schema, "properties").keys()
            out["properties"] = {**dict.fromkeys(sorted(undeclared), True), **out.get("properties", {})}
        keyword = "unevaluatedProperties" if _IN_PLACE & schema.keys() else "additionalProperties"
        out[keyword] = False


def _has_own_base(node: Node) -> bool:
    """Whether it is a resource of its own, by `$id`, with references that start from it."""
    if not isinstance(node.get("$id"), str):
        return False
    return any(str(each.get("$ref", "")).startswith("#") for each in nodes(node))
