"""What a schema says before any value is seen: what always applies, which types it takes, what it names.

Everything here is read from the schema alone and remembered by node, so that walking a value stays cheap.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from opwire.errors import SchemaError
from opwire.schema.refs import JSONSchema, References

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
