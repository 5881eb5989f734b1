"""`convert`: plain data to checked values of a type. `json_schema_of`: a type to one JSON Schema document.

Both use the nodes of `from_hint`. msgspec converts the subtrees that it handles with the same results; classes and
aliases become `$defs`.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, cast, get_args

import msgspec

from opwire.errors import ConversionError
from opwire.typed.fields import ordered_key
from opwire.typed.from_hint import from_hint
from opwire.typed.nodes import Misfit, Node, ScalarNode, SchemaDict, reachable
from opwire.typed.pydantic_types import PydanticNode

_MAX_CACHED_TYPES = 1_000  # a program has fewer types than that, unless it creates them at run time
_CONVERTERS: dict[Hashable, Callable[[Any], Any]] = {}
_REF_PREFIX = "#/$defs/"
_ANNOTATION_KEYWORDS = ("title", "description", "examples", "default")


def convert(data: Any, hint: Any) -> Any:
    """Return plain JSON data as a value of this type, checked: `convert({"x": 1}, Point)`.

    Raises:
        ConversionError: the data is invalid; the message has the path and the reason, not the data.
        HintError: data cannot be converted to this type.
    """
    return converter(hint)(data)


def converter(hint: Any) -> Callable[[Any], Any]:
    """Return `convert` prepared for a hint; cached for equal hints."""
    try:
        key = ordered_key(hint)
    except TypeError:
        return _prepare(hint)
    prepared = _CONVERTERS.get(key)
    if prepared is None:
        prepared = _prepare(hint)
        if len(_CONVERTERS) >= _MAX_CACHED_TYPES:
            _CONVERTERS.clear()
        _CONVERTERS[key] = prepared
    return prepared


def identity_kinds(hint: Any) -> frozenset[type] | None:
    """Return the Python types that need no conversion once valid against the schema of the hint; None if all do.

    `int | None` returns int and NoneType: 5 and None are not converted, while 5.0 would become 5.
    """
    return from_hint(hint).identity or None


def _prepare(hint: Any) -> Callable[[Any], Any]:
    root = from_hint(hint)
    # Let msgspec convert the largest subtrees that it handles with the same results.
    seen_node_ids: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen_node_ids or isinstance(node, ScalarNode):
            continue
        seen_node_ids.add(id(node))
        fast = _by_msgspec(node) if all(part.native for part in reachable(node, native=True)) else None
        if fast is None:
            stack.extend(node.parts())
        else:
            node.run = fast
    run = root.run

    def converted(data: Any) -> Any:
        try:
            return run(data)
        except Misfit as misfit:
            raise ConversionError(f"{misfit.path}: {misfit.reason}") from misfit.__cause__
        except RecursionError:
            raise ConversionError("$: the value is nested too deeply") from None

    return converted


def _by_msgspec(node: Node) -> Callable[[Any], Any] | None:
    # msgspec parses most hints again on each call, but those of a Struct's fields once: so the hint is put in one.
    box = msgspec.defstruct("Box", [("value", node.hint)], array_like=True)
    try:
        msgspec.json.Decoder(box)
    except Exception:  # a local name, or a type that it does not support: converted by the node
        return None
    convert_fast, slow = cast("Any", msgspec.convert), node.convert

    def run(value: Any) -> Any:
        try:
            return convert_fast((value,), box).value
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError):
            return slow(value)

    return run


def json_schema_of(hint: Any, *, where: str = "") -> SchemaDict:
    """Return the JSON Schema (2020-12) of a type hint, `$defs` included.

    The schema of a class is at the root, not behind a `$ref`: MCP and OpenAPI require its type there.

    Raises:
        HintError: the hint cannot be expressed; the message names `where` and says what to do.
    """
    root = from_hint(hint, where)
    definitions = Definitions(root)
    schema = definitions.of(root)
    checked_names = {""}
    # Inline a reference, unless a keyword beside it could get lost among those of its target.
    while schema.keys() <= {"$ref", *_ANNOTATION_KEYWORDS} and schema.get("$ref", "") not in checked_names:
        ref = schema.pop("$ref")
        checked_names.add(ref)
        schema = definitions.bodies[ref.removeprefix(_REF_PREFIX)] | schema
    used_definitions = _used(schema, definitions.bodies)
    return {**schema, **({"$defs": used_definitions} if used_definitions else {})}


class Definitions:
    """The `$defs` of one document. Names are those of the classes, with the module where two classes share one."""

    def __init__(self, root: Node) -> None:
        self.bodies: dict[str, SchemaDict] = {}
        self._meanings: dict[str, Any] = {}  # what a name stands for: a node, or definitions made by pydantic
        self._names: dict[int, str] = {}
        owned_nodes = [node for node in reachable(root) if node.owner is not None]
        named_nodes = [node for node in owned_nodes if not isinstance(node, PydanticNode)]
        name_counts = Counter(_sanitised(node.name) for node in named_nodes)
        for node in named_nodes:
            name = _sanitised(node.name)
            if name_counts[name] > 1:
                owner = node.owner
                args = node.name.removeprefix(owner.__name__) if get_args(node.hint) else ""
                qualified = getattr(owner, "__qualname__", owner.__name__)
                name = _sanitised(f"{owner.__module__}.{qualified}{args}")
            self._names[id(node)] = self._claim(name, node)

    def of(self, node: Node) -> SchemaDict:
        """Return the schema of a node, for use inside another: a reference if the node has a name."""
        if isinstance(node, PydanticNode):
            # Move the definitions of the document that pydantic made in here, each under a free name.
            document = node.schema(self)
            inner = cast("dict[str, SchemaDict]", document.pop("$defs", {}))
            if node.owner is not None and set(document) != {"$ref"}:
                model_name = _sanitised(node.name)
                document, inner = {"$ref": _REF_PREFIX + model_name}, {**inner, model_name: document}
            renamed = {name: self._claim(name, {name: body} | _used(body, inner)) for name, body in inner.items()}
            for name, body in inner.items():
                self.bodies[renamed[name]] = _with_refs(body, renamed)
            return _with_refs(document, renamed)
        name = self._names.get(id(node))
        if name is None:
            return node.schema(self)
        if name not in self.bodies:
            body = self.bodies[name] = {}  # reserved, before the body refers to it
            body |= node.schema(self)
        return {"$ref": _REF_PREFIX + name}

    def _claim(self, name: str, meaning: Any) -> str:
        """Return the name itself, or with a number if it stands for something else already."""
        candidate, number = name, 1
        while self._meanings.get(candidate, meaning) != meaning:
            number += 1
            candidate = f"{name}_{number}"
        self._meanings[candidate] = meaning
        return candidate


def _sanitised(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name.replace("<locals>.", ""))


def _used(schema: SchemaDict, bodies: dict[str, SchemaDict]) -> dict[str, SchemaDict]:
    """Return the definitions that a schema refers to, directly or not, in the order in which they were made."""
    names: set[str] = set()
    stack: list[Any] = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            items = cast("SchemaDict", part)
            stack.extend(items.values())
            name = str(items.get("$ref", "")).removeprefix(_REF_PREFIX)
            if name in bodies and name not in names:
                names.add(name)
                stack.append(bodies[name])
        elif isinstance(part, list):
            stack.extend(cast("list[Any]", part))
    return {name: body for name, body in bodies.items() if name in names}


def _with_refs(schema: Any, renamed: dict[str, str]) -> Any:
    """Return a copy in which references, and the mappings of discriminators, follow the new names."""
    if isinstance(schema, dict):
        return {key: _with_refs(part, renamed) for key, part in cast("SchemaDict", schema).items()}
    if isinstance(schema, list):
        return [_with_refs(part, renamed) for part in cast("list[Any]", schema)]
    if isinstance(schema, str) and schema.startswith(_REF_PREFIX):
        name = schema.removeprefix(_REF_PREFIX)
        return _REF_PREFIX + renamed.get(name, name)
    return schema
