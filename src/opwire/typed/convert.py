"""Plain data to values of a type, checked.

Nodes to one JSON Schema document: who lives in `$defs`, and under which name.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, cast, get_args

import msgspec

from opwire.errors import ConversionError
from opwire.typed.fields import ordered_key
from opwire.typed.from_hint import walk
from opwire.typed.nodes import Leaf, Misfit, Node, Schema, reachable
from opwire.typed.pydantic_types import Pydantic

_MOST_PREPARED = 1_000  # a program has fewer types than that, unless it makes them as it goes
_PREPARED: dict[Hashable, Callable[[Any], Any]] = {}


def convert(data: Any, hint: Any) -> Any:
    """Plain JSON data as a value of this type, checked: `convert({"x": 1}, Point)`.

    Raises:
        ConversionError: it does not fit; the message has the path and the reason, not the data.
        HintError: the hint is not a type that data can be converted to.
    """
    return converter(hint)(data)


def converter(hint: Any) -> Callable[[Any], Any]:
    """`convert` prepared for a hint; for equal hints the same."""
    try:
        key = ordered_key(hint)
    except TypeError:
        return _prepare(hint)
    prepared = _PREPARED.get(key)
    if prepared is None:
        prepared = _prepare(hint)
        if len(_PREPARED) >= _MOST_PREPARED:
            _PREPARED.clear()
        _PREPARED[key] = prepared
    return prepared


def identity_kinds(hint: Any) -> frozenset[type] | None:
    """The Python types whose values, valid against the schema of the hint, need no conversion; None if all do.

    `int | None` gives int and NoneType: 5 and None stay what they are, while 5.0 would become 5.
    """
    return walk(hint).identity or None


def _prepare(hint: Any) -> Callable[[Any], Any]:
    root = walk(hint)
    _accelerate(root)
    run = root.run

    def converted(data: Any) -> Any:
        try:
            return run(data)
        except Misfit as misfit:
            raise ConversionError(f"{misfit.path}: {misfit.reason}") from misfit.__cause__
        except RecursionError:
            raise ConversionError("$: the value is nested too deeply") from None

    return converted


def _accelerate(root: Node) -> None:
    """Let msgspec stand in for the largest subtrees that it handles as we do; what is inside them stays as it is."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Leaf):
            continue
        seen.add(id(node))
        fast = _by_msgspec(node) if all(each.native for each in reachable(node, native=True)) else None
        if fast is None:
            stack.extend(node.parts())
        else:
            node.run = fast


def _by_msgspec(node: Node) -> Callable[[Any], Any] | None:
    # msgspec parses most hints again on each call, but those of a Struct's fields once: so the hint is put in one.
    box = msgspec.defstruct("Box", [("value", node.hint)], array_like=True)
    try:
        msgspec.json.Decoder(box)
    except Exception:  # whatever it cannot read, be it a local name or a kind of type, is ours to convert
        return None
    read, slow = cast("Any", msgspec.convert), node.convert

    def run(value: Any) -> Any:
        try:
            return read((value,), box).value
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError):
            return slow(value)

    return run


_PREFIX = "#/$defs/"


def json_schema_of(hint: Any, *, where: str = "") -> Schema:
    """The JSON Schema (2020-12) of a type hint, `$defs` included.

    The schema of a class stands at the root, not behind a `$ref`: MCP and OpenAPI want to see its type there.

    Raises:
        HintError: the hint cannot be expressed; the message names `where` and says what to do.
    """
    root = walk(hint, where)
    definitions = Definitions(root)
    schema = definitions.of(root)
    seen: set[str] = set()
    while _is_inlinable(schema) and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        body = definitions.bodies[schema.pop("$ref").removeprefix(_PREFIX)]
        schema = body | schema
    used = _used(schema, definitions.bodies)
    return {**schema, **({"$defs": used} if used else {})}


def _is_inlinable(schema: Schema) -> bool:
    """Whether it is a reference, and nothing beside it could be lost among what it refers to."""
    return "$ref" in schema and schema.keys() <= {"$ref", "title", "description", "examples", "default"}


class Definitions:
    """The `$defs` of one document. Names are the classes' own, longer ones where two classes share one."""

    def __init__(self, root: Node) -> None:
        self.bodies: dict[str, Schema] = {}
        named = [each for each in reachable(root) if each.owner is not None]
        self._names = _names(each for each in named if not isinstance(each, Pydantic))
        self._reserved = set(self._names.values())
        self._adopted: dict[str, dict[str, Schema]] = {}

    def of(self, node: Node) -> Schema:
        """The schema of a node, for use inside another: a reference if the node has a name."""
        if isinstance(node, Pydantic):
            return self._adopt(node)
        name = self._names.get(id(node))
        if name is None:
            return node.schema(self)
        if name not in self.bodies:
            body = self.bodies[name] = {}  # taken, before the body refers to it
            body |= node.schema(self)
        return {"$ref": _PREFIX + name}

    def _adopt(self, node: Pydantic) -> Schema:
        """A document that pydantic made: its definitions are moved in here, each under a name that is free."""
        document = node.schema(self)
        inner = cast("dict[str, Schema]", document.pop("$defs", {}))
        if node.owner is not None and set(document) != {"$ref"}:
            name = _sanitised(node.name)
            document, inner = {"$ref": _PREFIX + name}, {**inner, name: document}
        renamed = {name: self._claim(name, {name: body} | _used(body, inner)) for name, body in inner.items()}
        for name, body in inner.items():
            self.bodies[renamed[name]] = _with_refs(body, renamed)
        return _with_refs(document, renamed)

    def _claim(self, name: str, meaning: dict[str, Schema]) -> str:
        """The name itself, or with a number if it stands for something else already."""
        candidate, number = name, 1
        while candidate in self._reserved and self._adopted.get(candidate) != meaning:
            number += 1
            candidate = f"{name}_{number}"
        self._reserved.add(candidate)
        self._adopted[candidate] = meaning
        return candidate


def _names(nodes: Iterable[Node]) -> dict[int, str]:
    """A name for each node: short if no other wants the same, else with the module, at last with a number."""
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[_sanitised(node.name)].append(node)
    names: dict[int, str] = {}
    for short, group in groups.items():
        for node in group:
            wanted = short if len(group) == 1 else _long_name(node)
            taken, candidate, number = set(names.values()), wanted, 1
            while candidate in taken:
                number += 1
                candidate = f"{wanted}_{number}"
            names[id(node)] = candidate
    return names


def _long_name(node: Node) -> str:
    owner = node.owner
    args = node.name.removeprefix(owner.__name__) if get_args(node.hint) else ""
    return _sanitised(f"{owner.__module__}.{getattr(owner, '__qualname__', owner.__name__)}{args}")


def _sanitised(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("<locals>.", ""))


def _used(schema: Schema, bodies: dict[str, Schema]) -> dict[str, Schema]:
    """The definitions that a schema refers to, directly or not, in the order in which they were made."""
    names: set[str] = set()
    stack = [schema]
    while stack:
        for name in _refs_in(stack.pop()):
            if name not in names and name in bodies:
                names.add(name)
                stack.append(bodies[name])
    return {name: body for name, body in bodies.items() if name in names}


def _refs_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        items = cast("Schema", schema)
        if isinstance(ref := items.get("$ref"), str):
            yield ref.removeprefix(_PREFIX)
        for each in items.values():
            yield from _refs_in(each)
    elif isinstance(schema, list):
        for each in cast("list[Any]", schema):
            yield from _refs_in(each)


def _with_refs(schema: Any, renamed: dict[str, str]) -> Any:
    """A copy whose references, and the mappings of discriminators, follow the new names."""
    if isinstance(schema, dict):
        return {key: _with_refs(each, renamed) for key, each in cast("Schema", schema).items()}
    if isinstance(schema, list):
        return [_with_refs(each, renamed) for each in cast("list[Any]", schema)]
    if isinstance(schema, str) and schema.startswith(_PREFIX):
        name = schema.removeprefix(_PREFIX)
        return _PREFIX + renamed.get(name, name)
    return schema
