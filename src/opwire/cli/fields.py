"""What a JSON Schema says of a place in the input: which types it takes, which fields it has. No I/O.

This is for typing, asking and explaining. Whether a value is valid is decided by the schema itself, when it is called.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

from opwire.errors import SchemaError
from opwire.schema import JSONSchema
from opwire.schema.refs import References

_MAX_NODES = 200  # of one place: a union of more is not read to its end
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Field:
    """A place in a schema. Its `nodes` are the schemas that apply there, or may: through references and unions."""

    def __init__(self, schema: Any, references: References | None = None) -> None:
        self._references = References(schema) if references is None else references
        found = list(self._collect(schema, set(), certain=True))
        self.nodes = [node for node, _ in found]
        self._certain = [node for node, certain in found if certain]

    def _collect(self, schema: Any, seen: set[int], *, certain: bool) -> Iterator[tuple[dict[str, Any], bool]]:
        if not isinstance(schema, dict) or id(cast("Any", schema)) in seen or len(seen) >= _MAX_NODES:
            return
        node = cast("dict[str, Any]", schema)
        seen.add(id(node))
        yield node, certain
        if isinstance(node.get("$ref"), str):
            yield from self._collect(self._resolved(node["$ref"]), seen, certain=certain)
        for keyword in ("allOf", "anyOf", "oneOf"):
            for each in _list(node.get(keyword)):
                yield from self._collect(each, seen, certain=certain and keyword == "allOf")

    def _resolved(self, ref: str) -> JSONSchema:
        try:
            return self._references.resolve(ref)
        except SchemaError:
            return True

    def first(self, keyword: str) -> Any:
        """The value of a keyword where it is found first, or None."""
        return next((node[keyword] for node in self.nodes if keyword in node), None)

    @cached_property
    def choices(self) -> list[Any]:
        """The values of `enum` and `const`, if there are any."""
        found: list[Any] = []
        for node in self.nodes:
            found += _list(node.get("enum"))
            found += [node["const"]] if "const" in node else []
        return found

    @cached_property
    def kinds(self) -> list[str]:
        """The types that are taken here, in the order of the schema; none: nothing is known."""
        found: dict[str, None] = {}
        for node in self.nodes:
            given = node.get("type")
            found.update(dict.fromkeys(_texts([given] if isinstance(given, str) else given)))
            if "properties" in node:
                found["object"] = None
            if "items" in node:
                found["array"] = None
        return list(found or dict.fromkeys(_KINDS[type(each)] for each in self.choices if type(each) in _KINDS))

    @cached_property
    def required(self) -> list[str]:
        """The fields without which nothing is valid here."""
        return list(dict.fromkeys(name for node in self._certain for name in _texts(node.get("required"))))

    @cached_property
    def fields(self) -> dict[str, "Field"]:
        """The declared fields, by name."""
        found: dict[str, Field] = {}
        for node in self.nodes:
            declared = node.get("properties")
            if isinstance(declared, dict):
                for name, schema in cast("dict[str, Any]", declared).items():
                    found.setdefault(name, Field(schema, self._references))
        return found

    def field(self, name: str) -> "Field":
        """The field of a name; what is said of every other one where it is not declared."""
        return self.fields.get(name) or Field(self.first("additionalProperties"), self._references)

    @cached_property
    def items(self) -> "Field":
        """An item of a list."""
        return Field(self.first("items"), self._references)


def _list(value: Any) -> list[Any]:
    """A list as it is, and anything else as none: foreign schemas hold much that is no schema."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]
