"""What a schema says before any value is seen: what always applies, which types it takes, what it names.

Everything here is read from the schema alone and remembered by node, so that walking a value stays cheap.

Variants of a schema, written as documents of their own that hold only what is reachable.

`plain` is a part of the schema as it is. `closed` accepts a value only if it is valid *and* `fit` would find nothing
to do in it: undeclared properties are refused, properties with a usable default are required, and an integer has to
be written as one. The rules that keep this true:

1. A closed document is never more lenient than the plain one; where exactness would cost, it is stricter, and
   `fit` then walks the value and finds nothing.
2. What only decides (`if`, `not`, `contains`, `propertyNames`, variants that may overlap) stays plain: tightening a
   condition would loosen the whole.
3. A place is closed once, by the outermost schema that applies to it. `additionalProperties` is faster than
   `unevaluatedProperties`, which is used only where several schemas meet.

The questions that `fit` asks of single parts of a schema, each compiled when it is first asked.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from functools import cached_property
from typing import Any, Final, Protocol, cast

from opwire.errors import SchemaError
from opwire.schema.cost import ComplexityError, Costs, Effort, ExhaustedError
from opwire.schema.dialect import JSONSchema, References
from opwire.schema.validator import compile_bounded, compile_validator

Node = dict[str, Any]
Tags = dict[str, frozenset[tuple[str, Any]]]

MISSING: Final = object()
_MAX_COMPARED: Final = 500  # variants that are compared with each other: 125,000 pairs take 0.3 s
UNIONS: Final = ("anyOf", "oneOf")
_ALL_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string"})
_CONDITIONAL: Final = ("if", "then", "else")
DEPENDENT: Final = ("dependentSchemas", "dependencies")


def json_type(value: Any) -> str:
    """The JSON type of plain data; whole numbers are "number" too."""
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


def named(node: Node, keyword: str) -> dict[str, Any]:
    """The value of a keyword that maps names to schemas; empty where it is absent."""
    value = node.get(keyword)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def many(node: Node, keyword: str) -> list[Any]:
    """The value of a keyword that lists schemas or names; empty where it is absent."""
    value = node.get(keyword)
    return cast("list[Any]", value) if isinstance(value, list) else []


def type_names(node: Node) -> list[str]:
    """The names under `type`, one or several; empty where there is none."""
    names = node.get("type")
    return [names] if isinstance(names, str) else many(node, "type")


def nodes(root: JSONSchema) -> Iterator[Node]:
    """Every object in the document, the root first."""
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield cast("Node", node)
            waiting.extend(cast("Node", node).values())
        elif isinstance(node, list):
            waiting.extend(cast("list[Any]", node))


class Shapes:
    """Facts about the nodes of one root schema."""

    def __init__(self, root: JSONSchema) -> None:
        self.root = root
        self._references = References(root)
        self._conjuncts: dict[int, tuple[Node, ...]] = {}
        self._opaque: set[int] = set()
        self._defaults: dict[int, dict[str, tuple[Node, Any]]] = {}
        self._types: dict[int, frozenset[str]] = {}
        self._tags: dict[int, Tags] = {}
        self._declares: dict[int, bool] = {}

    def references(self, node: Node) -> Iterator[tuple[str, JSONSchema | None]]:
        """The references of one node with their targets; None where one leads out of the document.

        Raises:
            SchemaError: a `$dynamicRef` whose target depends on the path that leads to it.
        """
        if isinstance(ref := node.get("$ref"), str):
            try:
                yield ref, self._references.resolve(ref)
            except SchemaError:
                yield ref, None
        if isinstance(ref := node.get("$dynamicRef"), str):
            yield ref, self._dynamic(ref)
        if "$recursiveRef" in node:
            yield "#", self.root

    def conjuncts(self, schema: JSONSchema) -> tuple[Node, ...]:
        """The schema, and all that always applies with it through references and `allOf`."""
        if isinstance(schema, bool):
            return ()
        if (known := self._conjuncts.get(id(schema))) is not None:
            return known
        found: dict[int, Node] = {}
        waiting: list[JSONSchema] = [schema]
        while waiting:
            node = waiting.pop()
            if isinstance(node, bool) or id(node) in found:
                continue
            found[id(node)] = node
            waiting.extend(reversed(many(node, "allOf")))
            for _, target in self.references(node):
                if target is None:
                    self._opaque.add(id(schema))
                else:
                    waiting.append(target)
        return self._conjuncts.setdefault(id(schema), tuple(found.values()))

    def is_opaque(self, schema: JSONSchema) -> bool:
        """Whether a part that always applies lies outside the document."""
        self.conjuncts(schema)
        return id(schema) in self._opaque

    def defaults(self, node: Node) -> dict[str, tuple[Node, Any]]:
        """The properties of one node that declare a default, each with its schema."""
        if (known := self._defaults.get(id(node))) is not None:
            return known
        found: dict[str, tuple[Node, Any]] = {}
        for name, schema in named(node, "properties").items():
            declared = (each["default"] for each in self.conjuncts(schema) if "default" in each)
            if (default := next(declared, MISSING)) is not MISSING:
                found[name] = (schema, default)
        return self._defaults.setdefault(id(node), found)

    def types(self, schema: JSONSchema) -> frozenset[str]:
        """The JSON types that a schema may take."""
        if isinstance(schema, bool):
            return _ALL_TYPES if schema else frozenset()
        if (known := self._types.get(id(schema))) is not None:
            return known
        admitted = _ALL_TYPES
        for node in self.conjuncts(schema):
            if "type" in node:
                admitted &= {"number" if name == "integer" else name for name in type_names(node)}
            if (values := _listed(node)) is not None:
                admitted &= {json_type(value) for value in values}
        return self._types.setdefault(id(schema), admitted)

    def tags(self, schema: JSONSchema) -> Tags:
        """The properties that a schema pins to listed scalar values, as (type, value) since 1 is not true."""
        if isinstance(schema, bool):
            return {}
        if (known := self._tags.get(id(schema))) is not None:
            return known
        found: Tags = {}
        for node in self.conjuncts(schema):
            for name, child in named(node, "properties").items():
                for values in filter(None, map(_listed, self.conjuncts(child))):
                    if not any(isinstance(value, dict | list) for value in values):
                        found.setdefault(name, frozenset((json_type(value), value) for value in values))
        return self._tags.setdefault(id(schema), found)

    def required(self, schema: JSONSchema) -> set[str]:
        """The names that are always required."""
        return {name for node in self.conjuncts(schema) for name in many(node, "required")}

    def declares(self, schema: JSONSchema) -> bool:
        """Whether any property is named, in whichever branch."""
        if isinstance(schema, bool):
            return False
        if (known := self._declares.get(id(schema))) is not None:
            return known
        seen: set[int] = set()
        waiting: list[JSONSchema] = [schema]
        answer = False
        while waiting and not answer:
            for node in self.conjuncts(waiting.pop()):
                if id(node) not in seen:
                    seen.add(id(node))
                    answer = answer or names_properties(node)
                    waiting.extend(_branches(node))
        return self._declares.setdefault(id(schema), answer)

    def are_exclusive(self, schemas: Iterable[JSONSchema]) -> bool:
        """Whether no value can match two of them, by type or by a tag that both require; False for very many."""
        given = list(schemas)
        if len(given) > _MAX_COMPARED:
            return False
        return all(self._exclude(one, other) for i, one in enumerate(given) for other in given[:i])

    def _exclude(self, one: JSONSchema, other: JSONSchema) -> bool:
        shared = self.types(one) & self.types(other)
        if not shared <= {"object"}:
            return False
        always = self.required(one) & self.required(other)
        mine, theirs = self.tags(one), self.tags(other)
        return not shared or any(mine[name].isdisjoint(theirs[name]) for name in always & mine.keys() & theirs.keys())

    def _dynamic(self, ref: str) -> JSONSchema:
        """With one anchor of that name, or one at the root, the dynamic reference is an ordinary one."""
        name = ref.removeprefix("#")
        anchored = [node for node in nodes(self.root) if node.get("$dynamicAnchor") == name]
        if len(anchored) == 1 or any(node is self.root for node in anchored):
            return anchored[0]
        if not anchored:
            return self._references.resolve(ref)
        raise SchemaError(f"the dynamic reference {ref!r} has several targets")


def names_properties(node: Node) -> bool:
    """Whether the node itself declares properties, by name or by pattern."""
    return bool(named(node, "properties") or named(node, "patternProperties"))


def _listed(node: Node) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    return many(node, "enum") if "enum" in node else None


def _branches(node: Node) -> Iterator[JSONSchema]:
    """What applies in place under a condition."""
    for keyword in UNIONS:
        yield from many(node, keyword)
    for keyword in _CONDITIONAL:
        if keyword in node:
            yield node[keyword]
    for keyword in DEPENDENT:
        yield from (each for each in named(node, keyword).values() if isinstance(each, dict | bool))


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


Check = Callable[[Any], bool]

_LOOKS = 8  # looks of a part at a name that count as one place
_PARTS = 1_000  # that the checks of one walk may be compiled from; 30 µs each, if none of them is compiled yet
_PARTS_PER_PART = 6


class PartChecks(Protocol):
    """Checks of parts of a value, with a budget or without."""

    def is_valid(self, schema: JSONSchema, value: Any) -> bool: ...
    def matches(self, pattern: str, name: str) -> bool: ...


class Checks:
    """Compiled checks of one root schema. Parts are known by identity: they live as long as the root does."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._valid: dict[int, Check] = {}
        self._conforms: dict[tuple[int, bool], Check] = {}
        self._patterns: dict[str, Check] = {}
        self._fills: dict[int, bool] = {}
        self.sizes: dict[int, int] = {}  # parts that a check was compiled from, by the identity of its schema

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        """Whether a value fits a part of the schema.

        Raises:
            SchemaError: the part cannot be compiled.
        """
        if isinstance(schema, bool):
            return schema
        check = self._valid.get(id(schema))
        if check is None:
            document = plain_document(self._shapes, schema)
            check = self._valid[id(schema)] = self._compiled(schema, document)
        return _ask(check, value)

    def conforms(self, schema: JSONSchema, value: Any, *, strip: bool) -> bool:
        """Whether a value fits and leaves `fit` nothing to do.

        Raises:
            SchemaError: the part cannot be compiled.
        """
        return _ask(self.conformity(schema, strip=strip), value)

    def conformity(self, schema: JSONSchema, *, strip: bool) -> Check:
        """The check behind `conforms`, for plain data.

        Raises:
            SchemaError: the part cannot be compiled.
        """
        key = (id(schema), strip)
        check = self._conforms.get(key)
        if check is None:
            document = closed_document(self._shapes, schema, strip=strip, fills=self.is_usable)
            check = self._conforms[key] = self._compiled(schema, document)
        return check

    @cached_property
    def parts_of_a_walk(self) -> int:
        """How many parts the checks may have that one walk over a value asks for."""
        return _PARTS + _PARTS_PER_PART * Costs(self._shapes.root).size

    def _compiled(self, schema: JSONSchema, document: JSONSchema) -> Check:
        costs = Costs(document)
        self.sizes[id(schema)] = self.sizes.get(id(schema), 0) + costs.size
        return compile_bounded(document, costs).is_valid

    def is_usable(self, schema: Node, default: Any) -> bool:
        """Whether a declared default fits its own schema."""
        answer = self._fills.get(id(schema))
        if answer is None:
            answer = self._fills[id(schema)] = self.is_valid(schema, default)
        return answer

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a property's name matches. Foreign patterns never reach Python's `re`, which they could hang."""
        check = self._patterns.get(pattern)
        if check is None:
            check = self._patterns[pattern] = compile_validator({"pattern": pattern}).is_valid
        return _ask(check, name)


class MeteredChecks:
    """Checks of parts of one value, within a budget. Every method raises `ExhaustedError` where it is used up."""

    def __init__(self, checks: Checks, effort: Effort) -> None:
        self._checks = checks
        self._effort = effort
        self._used: set[int] = set()
        self._parts = checks.parts_of_a_walk

    def is_valid(self, schema: JSONSchema, value: Any) -> bool:
        self._effort.spend_check(value)
        answer = self._checks.is_valid(schema, value)
        self._count(schema)
        return answer

    def conforms(self, schema: JSONSchema, value: Any, *, strip: bool) -> bool:
        self._effort.spend_check(value)
        answer = self._checks.conforms(schema, value, strip=strip)
        self._count(schema)
        return answer

    def is_usable(self, schema: Node, default: Any) -> bool:
        return self._checks.is_usable(schema, default)

    def matches(self, pattern: str, name: str) -> bool:
        self._effort.spend(1)
        return self._checks.matches(pattern, name)

    def count(self, looks: int) -> None:
        """Account for looks at members that are not checks."""
        self._effort.spend(looks // _LOOKS)

    def _count(self, schema: JSONSchema) -> None:
        """Account for a compiled check once, also if it was compiled for an earlier value: the outcome is the same."""
        if id(schema) not in self._used:
            self._used.add(id(schema))
            self._parts -= self._checks.sizes.get(id(schema), 0)
            if self._parts < 0:
                raise ExhaustedError


def _ask(check: Check, value: Any) -> bool:
    try:
        return check(value)
    except ComplexityError:
        raise
    except ValueError:  # a lone surrogate, or something that is not JSON at all
        return False
