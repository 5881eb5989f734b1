"""Where a `$ref` of a JSON Schema points. Looks only inside the document: nothing is ever fetched."""

from collections.abc import Iterable, Iterator
from typing import Any, cast
from urllib.parse import quote, unquote

from opwire.errors import SchemaError

JSONSchema = dict[str, Any] | bool

_DATA = frozenset({"const", "default", "enum", "example", "examples"})  # what looks like a schema in there is none
_NAMED = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties", "schemas"}
)  # keys in there are names, and may be spelled like a keyword
_URI_CHARACTERS = ":/?#@!$&'()*+,;=%~"


def quoted_refs(schema: Any) -> Any:
    """A copy in which references are what RFC 3986 allows: many documents write "#/definitions/Page«User»" as it is."""
    if isinstance(schema, dict):
        items = cast("dict[str, Any]", schema).items()
        return {
            key: quote(value, _URI_CHARACTERS) if key == "$ref" and isinstance(value, str) else quoted_refs(value)
            for key, value in items
        }
    return [quoted_refs(each) for each in cast("list[Any]", schema)] if isinstance(schema, list) else schema


def escaped(step: str | int) -> str:
    """One step of a JSON Pointer."""
    return str(step).replace("~", "~0").replace("/", "~1")


class References:
    """Resolves the references of one root schema: pointers, `$anchor`, and `$id` (also TypeBox's bare names)."""

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._names: dict[str, JSONSchema] | None = None  # made when the first reference is not a pointer

    def resolve(self, ref: str) -> JSONSchema:
        """The schema that `ref` names.

        Raises:
            SchemaError: it points at nothing inside this document.
        """
        base, _, fragment = ref.partition("#")
        start = self._root if not base else self._by_name(base)
        if start is not None and not fragment:
            return start
        if start is not None and fragment.startswith("/"):
            return _follow(start, fragment, ref)
        anchored = self._by_name(f"#{fragment}")
        if anchored is None:
            raise SchemaError(f"the reference {ref!r} points at nothing in this schema")
        return anchored

    def _by_name(self, name: str) -> JSONSchema | None:
        if self._names is None:
            self._names = dict(_named(self._root))
        return self._names.get(name)


def _follow(schema: JSONSchema, pointer: str, ref: str) -> JSONSchema:
    """Walk a JSON Pointer."""
    node: Any = schema
    for token in unquote(pointer).split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        try:
            node = node[int(key) if isinstance(node, list) else key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise SchemaError(f"the reference {ref!r} points at nothing: there is no {key!r}") from None
    if not isinstance(node, dict | bool):
        raise SchemaError(f"the reference {ref!r} points at something that is not a schema")
    return cast("JSONSchema", node)


def _named(root: JSONSchema) -> Iterator[tuple[str, JSONSchema]]:
    """Every `$id`, and every `$anchor` as `#name`, with its schema."""
    stack: list[Any] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            schema = cast("dict[str, Any]", node)
            for keyword, prefix in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                name = schema.get(keyword)
                if isinstance(name, str):
                    yield prefix + name, schema
            for keyword, value in schema.items():
                stack.extend(_inside(keyword, value))
        elif isinstance(node, list):
            stack.extend(cast("list[Any]", node))


def _inside(keyword: str, value: Any) -> Iterable[Any]:
    """Where schemas may stand in the value of a keyword."""
    if keyword in _DATA:
        return ()
    return cast("dict[str, Any]", value).values() if keyword in _NAMED and isinstance(value, dict) else (value,)


def may_recurse(root: JSONSchema) -> bool:
    """Whether the schema may follow a value to any depth: a reference leads back to itself, or who knows where."""
    references = References(root)
    finished: set[str] = set()

    def leads_back(schema: JSONSchema, path: tuple[str, ...]) -> bool:
        for ref in _references_in(schema):
            if ref in path or (ref not in finished and leads_back(references.resolve(ref), (*path, ref))):
                return True
            finished.add(ref)
        return False

    try:
        return leads_back(root, ("", "#"))
    except (SchemaError, RecursionError):
        return True


def _references_in(schema: JSONSchema) -> Iterator[str]:
    """Every `$ref` that applies inside a schema; a dynamic one as "", since where it leads depends on the way there."""
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            for keyword, value in cast("dict[str, Any]", node).items():
                if keyword in ("$dynamicRef", "$recursiveRef"):
                    yield ""
                elif keyword == "$ref" and isinstance(value, str):
                    yield value
                elif keyword not in ("$defs", "definitions", "components"):
                    stack.extend(_inside(keyword, value))
        elif isinstance(node, list):
            stack.extend(cast("list[Any]", node))
