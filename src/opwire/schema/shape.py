"""Facts about a schema that do not depend on a value.

`Shapes` reads what always applies, which types are allowed and which properties are named; the results are cached per
node, so that walking a value stays cheap. `plain_document` and `closed_document` write a part of the schema as a
document of its own that holds only what is reachable, for `Checks` to compile.

A closed document accepts a value only if it is valid *and* `fit` would leave it unchanged: undeclared properties are
rejected, properties with a usable default are required, and an integer has to be written as one. Rules:

1. A closed document is never more lenient than the plain one; where exactness would cost, it is stricter, and `fit`
   then walks the value and finds nothing to do.
2. What only decides (`if`, `not`, `contains`, `propertyNames`, variants that may overlap) stays plain: tightening a
   condition would loosen the whole.
3. A location is closed once, by the outermost schema that applies to it. `additionalProperties` is faster than
   `unevaluatedProperties`, which is used only where several schemas meet.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from functools import wraps
from itertools import chain
from typing import Any, Final, TypeVar, cast

from opwire.errors import SchemaError
from opwire.schema.cost import FREE_UNITS, SchemaCosts
from opwire.schema.dialect import JSONSchema, References, lazy_property, objects_in
from opwire.typed.plain import as_dict, as_list

Node = dict[str, Any]
Tags = dict[str, frozenset[tuple[str, Any]]]
S = TypeVar("S")
T = TypeVar("T")

UNIONS: Final = ("anyOf", "oneOf")
DEPENDENT: Final = ("dependentSchemas", "dependencies")
_MISSING: Final = object()
_REFERENCE: Final = frozenset({"$ref", "title", "description", "default", "examples", "deprecated"})
_MAX_COMPARED_VARIANTS: Final = 200  # 20,000 pairs take 30 ms
_ALL_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string"})


def json_type(value: Any) -> str:
    """Return the JSON type of plain data; whole numbers are "number" too."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case dict():
            return "object"
        case list() | tuple():
            return "array"
        case str():
            return "string"
        case _:
            return "number"


def type_names(node: Node) -> list[str]:
    """Return the names under `type`, one or several; an empty list where it is missing."""
    names = node.get("type")
    return [names] if isinstance(names, str) else as_list(names)


def names_properties(node: Node) -> bool:
    """Return whether the node itself declares properties, by name or by pattern."""
    return bool(as_dict(node.get("properties")) or as_dict(node.get("patternProperties")))


def allows_extras(node: Node) -> bool:
    """Return whether the node itself allows undeclared properties."""
    return any(keyword in node and node[keyword] is not False for keyword in _EXTRAS)


def patterns_in(root: JSONSchema) -> Iterator[str]:
    """Yield every pattern of the document."""
    return (pattern for node in objects_in(root, data=True) if isinstance(pattern := node.get("pattern"), str))


def _listed(node: Node) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    return as_list(node["enum"]) if "enum" in node else None


def _cached(method: Callable[["Shapes", S], T]) -> Callable[["Shapes", S], T]:
    """Cache the result of a method by the identity of a schema, which the root keeps alive."""
    name = method.__name__

    @wraps(method)
    def lookup(self: "Shapes", schema: S) -> T:
        cache = self.caches[name]
        key = id(schema)
        if key not in cache:
            cache[key] = method(self, schema)
        return cache[key]

    return lookup


class Shapes:
    """Facts about the nodes of one root schema."""

    def __init__(self, root: JSONSchema) -> None:
        self.root = root
        self.caches: defaultdict[str, dict[int, Any]] = defaultdict(dict)
        self._references = References(root)
        self.metered: SchemaCosts | None = None  # the costs of a schema that needs a meter, which holds them anyway

    @lazy_property
    def has_defaults(self) -> bool:
        """Whether a default may be filled; true also for data that only looks like one."""
        return any("default" in node for node in objects_in(self.root, data=True))

    def costs(self) -> SchemaCosts:
        """Return the costs of the root; raises `SchemaError` where they are too high."""
        return self.metered or SchemaCosts(self.root)

    def references(self, node: Node) -> Iterator[tuple[str, JSONSchema | None]]:
        """Yield the references of one node with their targets; None where one leads out of the document.

        Raises:
            SchemaError: the target of a `$dynamicRef` depends on the path that leads to it.
        """
        if isinstance(ref := node.get("$ref"), str):
            try:
                yield ref, self._references.resolve(ref)
            except SchemaError:
                yield ref, None
        if isinstance(ref := node.get("$dynamicRef"), str):
            # With one anchor of that name, or one at the root, the dynamic reference is an ordinary one.
            name = ref.removeprefix("#")
            anchored = [
                candidate for candidate in objects_in(self.root, data=True) if candidate.get("$dynamicAnchor") == name
            ]
            if len(anchored) > 1 and not any(anchor is self.root for anchor in anchored):
                raise SchemaError(f"the dynamic reference {ref!r} has several targets")
            yield ref, anchored[0] if anchored else self._references.resolve(ref)
        if "$recursiveRef" in node:
            yield "#", self.root

    @_cached
    def conjuncts(self, schema: JSONSchema) -> tuple[Node, ...]:
        """Return the schema, and everything that always applies with it through references and `allOf`."""
        conjuncts: dict[int, Node] = {}
        waiting: list[JSONSchema] = [schema]
        while waiting:
            node = waiting.pop()
            if isinstance(node, bool) or id(node) in conjuncts:
                continue
            conjuncts[id(node)] = node
            waiting.extend(reversed(as_list(node.get("allOf"))))
            waiting.extend(target for _, target in self.references(node) if target is not None)
        return tuple(conjuncts.values())

    @_cached
    def resolved(self, schema: JSONSchema) -> JSONSchema:
        """Return what a mere reference leads to, or the schema itself: a target needs to be compiled only once."""
        seen: set[int] = set()
        while isinstance(schema, dict) and "$ref" in schema and _REFERENCE.issuperset(schema):
            if id(schema) in seen:
                break
            seen.add(id(schema))
            ((_, target),) = self.references(schema)
            if target is None:
                break
            schema = target
        return schema

    @_cached
    def is_opaque(self, schema: JSONSchema) -> bool:
        """Return whether a part that always applies lies outside the document."""
        return any(target is None for node in self.conjuncts(schema) for _, target in self.references(node))

    @_cached
    def defaults(self, node: Node) -> dict[str, tuple[Node, Any]]:
        """Return the properties of one node that declare a default, each with its schema."""
        defaults: dict[str, tuple[Node, Any]] = {}
        for name, schema in as_dict(node.get("properties")).items():
            declared = (conjunct["default"] for conjunct in self.conjuncts(schema) if "default" in conjunct)
            if (default := next(declared, _MISSING)) is not _MISSING:
                defaults[name] = (schema, default)
        return defaults

    @_cached
    def types(self, schema: JSONSchema) -> frozenset[str]:
        """Return the JSON types that a schema allows."""
        allowed = _ALL_TYPES if schema is not False else frozenset[str]()
        for node in self.conjuncts(schema):
            if "type" in node:
                allowed &= {"number" if name == "integer" else name for name in type_names(node)}
            if (values := _listed(node)) is not None:
                allowed &= {json_type(value) for value in values}
        return allowed

    @_cached
    def tags(self, schema: JSONSchema) -> Tags:
        """Return the properties that a schema pins to listed scalar values, as (type, value) since 1 is not true."""
        tags: Tags = {}
        for node in self.conjuncts(schema):
            for name, child in as_dict(node.get("properties")).items():
                for values in filter(None, map(_listed, self.conjuncts(child))):
                    if not any(isinstance(value, dict | list) for value in values):
                        tags.setdefault(name, frozenset((json_type(value), value) for value in values))
        return tags

    def required(self, schema: JSONSchema) -> set[str]:
        """Return the names that are always required."""
        return {name for node in self.conjuncts(schema) for name in as_list(node.get("required"))}

    @_cached
    def declares(self, schema: JSONSchema) -> bool:
        """Return whether any property is named, in any branch."""
        seen: set[int] = set()
        waiting: list[JSONSchema] = [schema]
        while waiting:
            for node in self.conjuncts(waiting.pop()):
                if id(node) in seen:
                    continue
                if names_properties(node):
                    return True
                seen.add(id(node))
                waiting.extend(branch for keyword in UNIONS for branch in as_list(node.get(keyword)))
                waiting.extend(node[keyword] for keyword in ("if", "then", "else") if keyword in node)
                dependent: list[Any] = [
                    subschema for keyword in DEPENDENT for subschema in as_dict(node.get(keyword)).values()
                ]
                waiting.extend(subschema for subschema in dependent if not isinstance(subschema, list))
        return False

    def are_exclusive(self, schemas: Iterable[JSONSchema]) -> bool:
        """Return whether no value can match two of them, by type or by a tag that both require.

        One tag that tells all of them apart is found among any number; of very many others the answer is False.
        """
        variants = list(schemas)
        counts = Counter(chain.from_iterable(map(self.types, variants)))
        if any(count > 1 for name, count in counts.items() if name != "object"):
            return False
        objects = [variant for variant in variants if "object" in self.types(variant)]
        tags = [
            {name: self.tags(variant)[name] for name in self.required(variant) & self.tags(variant).keys()}
            for variant in objects
        ]
        common = set[str]().union(*tags[:1]).intersection(*tags)
        for name in common:
            if len(frozenset[Any]().union(*(variant_tags[name] for variant_tags in tags))) == sum(
                len(variant_tags[name]) for variant_tags in tags
            ):
                return True

        def exclude(one: Tags, other: Tags) -> bool:
            return any(one[name].isdisjoint(other[name]) for name in one.keys() & other.keys())

        return len(tags) <= _MAX_COMPARED_VARIANTS and all(
            exclude(tags_of_one, tags_of_other) for i, tags_of_one in enumerate(tags) for tags_of_other in tags[:i]
        )


class _Variant(Enum):
    PLAIN = auto()
    INNER = auto()  # closed below, but the location itself is closed by a schema around it
    CLOSED = auto()


class _Role(Enum):
    CONDITION = auto()  # only decides: stays plain
    BRANCH = auto()  # applies to the same location
    CHILD = auto()  # applies to members


# fmt: off
_ASSERTIONS: Final = (
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "format", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
    "maxProperties", "minProperties", "required", "dependentRequired",
)
_NAMED: Final = (*DEPENDENT, "properties", "patternProperties")
_ROLES: Final = {
    **dict.fromkeys(("not", "contains", "propertyNames", "if"), _Role.CONDITION),
    **dict.fromkeys(("then", "else", *DEPENDENT), _Role.BRANCH),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems", "properties",
                     "patternProperties", "prefixItems"), _Role.CHILD),
}
# fmt: on
_IN_PLACE: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "if", *UNIONS, *DEPENDENT})
_EXTRAS: Final = ("additionalProperties", "unevaluatedProperties")

# Since draft-06 the number 5.0 is an integer. Draft-04 tells them apart, at no more than the cost of a reference.
_INTEGER_ID: Final = "urn:opwire:integer"
_INTEGER: Final = {"$schema": "http://json-schema.org/draft-04/schema#", "id": _INTEGER_ID, "type": "integer"}


def plain_document(shapes: Shapes, schema: JSONSchema) -> tuple[JSONSchema, int]:
    """Return a part of the root schema with everything that it refers to, and how many parts these are.

    Raises:
        SchemaError: its references cannot be resolved from here.
    """
    writer = _DocumentWriter(shapes, strip=False, fills=lambda _schema, _default: False)
    return writer.document(schema, _Variant.PLAIN), writer.written


def closed_document(
    shapes: Shapes, schema: JSONSchema, *, strip: bool, fills: Callable[[Node, Any], bool]
) -> JSONSchema:
    """Return a part of the root schema, tightened to what `fit` leaves alone; `fills` tells which defaults are usable.

    Raises:
        SchemaError: its references cannot be resolved from here.
    """
    # Without stripping nothing is closed: one variant is enough, instead of two alike.
    variant = _Variant.CLOSED if strip else _Variant.INNER
    return _DocumentWriter(shapes, strip=strip, fills=fills).document(schema, variant)


class _DocumentWriter:
    written: int = 0  # parts

    def __init__(self, shapes: Shapes, *, strip: bool, fills: Callable[[Node, Any], bool]) -> None:
        self._shapes = shapes
        self._strip = strip
        self._fills = fills
        self._defs: dict[str, Any] = {}
        self._names: dict[tuple[int, _Variant], str] = {}
        self._waiting: list[tuple[str, Node, _Variant]] = []

    def document(self, schema: JSONSchema, variant: _Variant) -> JSONSchema:
        out = self._write(schema, variant)
        while self._waiting:  # references are followed here, not on the stack: they may be cyclic
            name, node, node_variant = self._waiting.pop()
            self._defs[name] = self._write(node, node_variant)
        return out if isinstance(out, bool) else {**out, "$defs": self._defs}

    def _write(self, schema: JSONSchema, variant: _Variant) -> JSONSchema:
        if isinstance(schema, bool):
            return schema
        self.written += 1
        is_resource = schema is not self._shapes.root and isinstance(schema.get("$id"), str)
        if is_resource and any(str(inner.get("$ref", "")).startswith("#") for inner in objects_in(schema, data=True)):
            raise SchemaError(f"the part {schema['$id']!r} has references relative to itself")
        tight = variant is not _Variant.PLAIN
        delegates = variant is _Variant.CLOSED and self._delegates(schema)
        in_place = _Variant.CLOSED if delegates else _Variant.INNER if tight else _Variant.PLAIN
        out: Node = {keyword: schema[keyword] for keyword in _ASSERTIONS if keyword in schema}
        out["allOf"] = [self._write(subschema, in_place) for subschema in as_list(schema.get("allOf"))]
        for ref, target in self._shapes.references(schema):
            # The meta-schemas are known to every validator; anything else outside the document fails to compile.
            shared = {"$ref": ref} if target is None else self._shared(target, in_place)
            if isinstance(shared, bool) or ("$ref" in out and target is not None):
                out["allOf"].append(shared)
            else:
                out |= shared
        self._write_subschemas(schema, in_place, tight, out)
        if tight:
            self._tighten(schema, out)
        if variant is _Variant.CLOSED and self._strip and not delegates:
            self._close(schema, out)
        if not out["allOf"]:
            del out["allOf"]
        return out

    def _delegates(self, schema: Node) -> bool:
        """Return whether the one schema inside, or each variant of the one union, can close the location instead."""
        applicators = _IN_PLACE & schema.keys()
        if len(applicators) != 1 or any(keyword in schema for keyword in (*_EXTRAS, "properties", "patternProperties")):
            return False
        keyword = next(iter(applicators))
        return keyword in ("$ref", *UNIONS) or (keyword == "allOf" and len(as_list(schema[keyword])) == 1)

    def _shared(self, schema: JSONSchema, variant: _Variant) -> JSONSchema:
        """Return a reference to a definition; written out, overlapping unions in each other would explode."""
        if isinstance(schema, bool):
            return schema
        key = (id(schema), variant)
        if key not in self._names:
            self._names[key] = str(len(self._names))
            self._waiting.append((self._names[key], schema, variant))
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _write_subschemas(self, schema: Node, in_place: _Variant, tight: bool, out: Node) -> None:
        for keyword in UNIONS:
            if keyword in schema:
                self._write_union(schema, keyword, in_place, out)
        children = _Variant.PLAIN if not tight else _Variant.CLOSED if self._strip else _Variant.INNER
        variants = {_Role.CONDITION: _Variant.PLAIN, _Role.BRANCH: in_place, _Role.CHILD: children}
        for keyword, role in _ROLES.items():
            if keyword not in schema:
                continue
            value, variant = schema[keyword], variants[role]
            if keyword in _NAMED:
                out[keyword] = {
                    name: subschema if isinstance(subschema, list) else self._write(subschema, variant)
                    for name, subschema in as_dict(value).items()
                }
            elif keyword == "prefixItems":
                out[keyword] = [self._write(subschema, variant) for subschema in as_list(value)]
            else:
                out[keyword] = self._write(value, variant)

    def _write_union(self, schema: Node, keyword: str, variant: _Variant, out: Node) -> None:
        branches: list[JSONSchema] = as_list(schema[keyword])
        out[keyword] = [self._write(branch, variant) for branch in branches]
        if variant is _Variant.PLAIN:
            return
        if self._shapes.are_exclusive(branches):
            return
        if out[keyword] == [self._write(branch, _Variant.PLAIN) for branch in branches]:
            return
        # A value that matches one variant, with nothing to do for that one. Written as "this one and no other" for each
        # variant, a thousand of them would have a million references.
        plain = [self._shared(branch, _Variant.PLAIN) for branch in branches]
        one: Node = {"oneOf": plain, "anyOf": [self._shared(branch, variant) for branch in branches]}
        unchanged: list[JSONSchema] = [one]
        if keyword == "anyOf":  # if several match, each must leave the value unchanged, but only together they close it
            inner = [self._shared(branch, _Variant.INNER) for branch in branches]
            each_unchanged = [
                {"if": plain_branch, "then": inner_branch}
                for plain_branch, inner_branch in zip(plain, inner, strict=True)
            ]
            several: Node = {"anyOf": plain, "allOf": each_unchanged}
            if variant is _Variant.CLOSED and self._strip:
                self._close(schema, several)
            unchanged.append(several)
        del out[keyword]
        out["allOf"].append({"anyOf": unchanged} if len(unchanged) > 1 else one)

    def _tighten(self, schema: Node, out: Node) -> None:
        """Require properties that would be filled, and integers that are written as such."""
        defaults = self._shapes.defaults(schema)
        filled = [name for name, (child, default) in defaults.items() if self._fills(child, default)]
        if filled:
            out["required"] = sorted({*as_list(schema.get("required")), *filled})
        types = type_names(schema)
        if "integer" in types and "number" not in types:
            self._defs["integer"] = _INTEGER
            others = [name for name in types if name != "integer"]
            if others:
                out["allOf"].append({"anyOf": [{"type": others}, {"$ref": _INTEGER_ID}]})
            elif "$ref" in out:
                out["allOf"].append({"$ref": _INTEGER_ID})
            else:
                out["$ref"] = _INTEGER_ID
                del out["type"]

    def _close(self, schema: Node, out: Node) -> None:
        together = self._shapes.conjuncts(schema)
        if any(map(allows_extras, together)) or self._shapes.is_opaque(schema) or not self._shapes.declares(schema):
            return
        if not any(keyword in schema for keyword in _EXTRAS):
            # A required property is kept even if it is not declared.
            undeclared = self._shapes.required(schema) - as_dict(schema.get("properties")).keys()
            out["properties"] = {**dict.fromkeys(sorted(undeclared), True), **out.get("properties", {})}
        if _IN_PLACE.isdisjoint(schema):
            out["additionalProperties"] = False
            return
        metered = self._shapes.metered
        part = None if metered is None else metered.part(schema)
        if part is not None and part.descendant_cost > FREE_UNITS:
            # The compiler rejects it too, after the work of ten such documents.
            raise SchemaError("its definitions multiply, which cannot be bounded beside `unevaluated…`")
        out["unevaluatedProperties"] = False


def is_without_whole_floats(value: Any) -> bool:
    """Return whether plain data has no float that is a whole number, such as 5.0."""
    unvisited = [value]
    while unvisited:
        member = unvisited.pop()
        if type(member) is dict:
            unvisited.extend(cast("dict[str, Any]", member).values())
        elif type(member) is list:
            unvisited.extend(cast("list[Any]", member))
        elif isinstance(member, float) and member.is_integer():
            return False
    return True
