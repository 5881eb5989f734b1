"""Names and type hints of generated clients: a TypedDict per object schema, a Literal per enumeration. No I/O.

Data is plain, so its types are too: responses are not converted. Operations that share a schema, or have equal ones,
share a type. What a hint cannot express (patterns, bounds, conditions) is left to the operation, which validates it.

Within a hint, names of built-in types begin with a NUL mark until they are serialized: a class with a method `list` has
to write the type as `builtins.list`.
"""

import keyword
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from opwire.errors import SchemaError
from opwire.names import UniqueNames
from opwire.schema import Schema
from opwire.schema.dialect import JSONSchema, References
from opwire.typed.plain import as_dict, as_list

_NAME_PARTS = re.compile(r"[^\W_]+")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAX_NAME_CHARACTERS = 80


def snake(text: str, otherwise: str) -> str:
    """Return a name like `list_files` for a function, parameter or attribute; `otherwise` is the default."""
    return _valid("_".join(word.lower() for word in _words(text)), otherwise)


def pascal(text: str, otherwise: str) -> str:
    """Return a name like `PullRequest` for a class; `otherwise` is the default."""
    return _valid("".join(word[:1].upper() + word[1:] for word in _words(text)), otherwise)


def quoted(text: str) -> str:
    """Return a string literal in ASCII, in double quotes where the text has none."""
    plain = ascii(text)
    return plain if '"' in plain or plain[0] != "'" else f'"{plain[1:-1]}"'


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", text[:1_000])  # as Python normalizes identifiers
    return [word for part in _NAME_PARTS.findall(plain) for word in _HUMPS.split(part)]


def _valid(name: str, otherwise: str) -> str:
    # Changing the case can undo the normal form in which Python compares names: two names would collide.
    name = unicodedata.normalize("NFKC", name)[:_MAX_NAME_CHARACTERS].rstrip("_")
    if not name.isidentifier():  # empty, or with a leading digit
        name = f"{otherwise}_{name}" if f"x{name}".isidentifier() and name else otherwise
    return f"{name}_" if keyword.iskeyword(name) else name


_WORDS = re.compile(r"\w+")
_MARKED = re.compile(r"\0(\w+)")
_SCALAR_HINTS = {"string": "\0str", "integer": "\0int", "number": "\0float", "boolean": "\0bool", "null": "None"}
_BUILTIN_NAMES = frozenset({"bool", "bytes", "dict", "float", "int", "list", "str"})
_DEFINITION_KEYWORDS = frozenset({"$defs", "components", "definitions"})
_MAX_DEPTH = 60
_MAX_LITERALS = 200
_MAX_LITERAL_INTEGER = 10**1_000  # Python raises for integers of more than 4,300 digits
_MAX_COMPOSED_SCHEMAS = 500
_MAX_COMPARED_REFERENCES = 1_000  # schemas with more are not compared by content
_encoder = msgspec.json.Encoder(order="deterministic")

ANY = "Any"
OBJECT = "\0dict[\0str, Any]"
BYTES = "\0bytes"
FLOAT = "\0float"


def written(hint: str, shadowed: Iterable[str] = ()) -> str:
    """Serialize a hint for a scope in which these names of built-in types are shadowed."""
    hidden = frozenset(shadowed)
    return _MARKED.sub(
        lambda marked_name: f"builtins.{marked_name[1]}" if marked_name[1] in hidden else marked_name[1], hint
    )


def shadowing(names: Iterable[str]) -> frozenset[str]:
    """Return the names that shadow a built-in type."""
    return _BUILTIN_NAMES.intersection(names)


def shadowed_in(hint: str) -> frozenset[str]:
    """Return the built-in types in a hint."""
    return frozenset(_MARKED.findall(hint))


def union(hints: Iterable[str]) -> str:
    """Return the union of hints: each one once, None last; `Any` absorbs the others."""
    parts = [part for hint in dict.fromkeys(hints) for part in ([hint] if "[" in hint else hint.split(" | "))]
    distinct = dict.fromkeys(parts)
    if ANY in distinct or not distinct:
        return ANY
    last = ["None"] if distinct.pop("None", "") is None else []
    return " | ".join([*distinct, *last])


class Types:
    """The types of one generated module, in the order of their first use."""

    def __init__(self, names: UniqueNames) -> None:
        self._names = names
        self._known: dict[int, str] = {}  # hints, by identity of the schema
        self._alike: dict[tuple[str, int], str] = {}  # and by content
        self._objects: dict[tuple[str, tuple[tuple[str, str], ...]], str] = {}
        self._kept: list[Any] = []  # keeps schemas alive while their id() is a key
        self.digests: dict[int, int] = {}
        self.declared: dict[int, tuple[dict[str, JSONSchema], set[str]] | None] = {}  # properties, by identity
        self.definitions: dict[str, str] = {}
        self.hints: list[str] = []  # all hints in the definitions

    def reader(self, schema: Schema) -> "TypeReader":
        """Return a reader for one schema of an operation; an invalid schema allows any value."""
        try:
            json = schema.lowered
        except SchemaError:
            json = True
        self._kept.append(json)
        return TypeReader(self, json)

    def known(self, schema: dict[str, Any], wish: str, digest: int) -> str | None:
        """Return the cached hint of a schema, or None."""
        hint = self._known.get(id(schema)) or self._alike.get((wish, digest))
        if hint is not None:
            self._known[id(schema)] = hint
        return hint

    def define(self, name: str, hints: Iterable[str], text: str) -> None:
        """Add a definition."""
        self.hints += hints
        self.definitions[name] = text

    def define_object(self, name: str, wish: str, fields: dict[str, str]) -> str:
        """Define a TypedDict; return its name, or that of an equal one. Descriptions are ignored."""
        body = tuple(fields.items())
        other = self._objects.setdefault((wish, body), name)
        if other != name and not any(name in _WORDS.findall(hint) for hint in fields.values()):
            self._names.give_back(name)
            return other
        # A class, or a call if a key is not a valid attribute name: `__x` is mangled in a class body, and `list` would
        # shadow a type in a hint.
        names = (key.isidentifier() and key.isascii() and not keyword.iskeyword(key) for key in fields)
        if all(names) and all(key[0].islower() and key not in _BUILTIN_NAMES for key in fields):
            lines = "".join(f"    {key}: {written(hint)}\n" for key, hint in fields.items())
            source = f"class {name}(TypedDict):\n{lines}"
        else:
            lines = "".join(f"        {quoted(key)}: {quoted(written(hint))},\n" for key, hint in fields.items())
            source = f"{name} = TypedDict(\n    {quoted(name)},\n    {{\n{lines}    }},\n)\n"
        self.define(name, [*fields.values(), "TypedDict"], source)
        return name

    def begin(self, schema: dict[str, Any], wish: str, digest: int) -> str:
        """Reserve a name for a schema, so that recursive references resolve to it."""
        name = self._names.take(wish)
        self.settle(schema, wish, digest, name)
        return name

    def keep(self, schema: Any) -> None:
        """Keep a schema alive while its id() is a key."""
        self._kept.append(schema)

    def settle(self, schema: dict[str, Any], wish: str, digest: int, hint: str) -> None:
        """Cache the hint of a schema."""
        self.keep(schema)
        self._known[id(schema)] = self._alike[wish, digest] = hint


class TypeReader:
    """Converts one schema, with its references, to hints."""

    def __init__(self, types: Types, root: JSONSchema) -> None:
        self.root = root
        self._types = types
        self.resolved = References(root).follow

    def hint(self, schema: JSONSchema, wish: str, depth: int = _MAX_DEPTH) -> str:
        """Return the hint of a schema; `wish` is the preferred name of a type for it."""
        if not isinstance(schema, dict) or not depth:
            return ANY
        if isinstance(schema.get("$ref"), str):
            return self._referred(schema["$ref"], wish, depth)
        if "const" in schema or isinstance(schema.get("enum"), list):
            return _literal([schema["const"]] if "const" in schema else schema["enum"])
        properties = self.properties(schema)
        if properties is not None:
            return self._object(schema, properties, wish, depth)
        for several in ("anyOf", "oneOf"):
            if isinstance(schema.get(several), list):
                branches = cast("list[JSONSchema]", schema[several])
                return union(
                    self.hint(branch, wish if len(branches) == 1 else f"{wish}{number}", depth - 1)
                    for number, branch in enumerate(branches, 1)
                )
        if isinstance(schema.get("allOf"), list):
            hints = [self.hint(part, wish, depth - 1) for part in cast("list[JSONSchema]", schema["allOf"])]
            return next((hint for hint in hints if hint != ANY), ANY)
        return self._by_type(schema, wish, depth)

    def properties(self, schema: JSONSchema) -> tuple[dict[str, JSONSchema], set[str]] | None:
        """Return the properties of an object schema and the required names, or None if it declares none.

        Properties of `allOf` are its own. Those of `anyOf` and `oneOf` are optional, if it has others.
        """
        if not isinstance(schema, dict):
            return None
        if id(schema) in self._types.declared:  # cached: thousands of references may lead to one large union
            return self._types.declared[id(schema)]
        self._types.keep(schema)
        properties: dict[str, JSONSchema] = {}
        required: set[str] = set()
        for part in self._parts(schema, ("allOf",)):
            properties.update(as_dict(part.get("properties")))
            required.update(map(str, as_list(part.get("required"))))
        required.intersection_update(properties)
        for part in self._parts(schema, ("allOf", "anyOf", "oneOf")) if properties else ():
            for key, property_schema in as_dict(part.get("properties")).items():
                properties.setdefault(key, property_schema)
        declared = self._types.declared[id(schema)] = (properties, required) if properties else None
        return declared

    def _parts(self, schema: JSONSchema, keywords: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Yield the schema and its parts under these keywords, each one once: nested unions would multiply."""
        waiting, seen = [(schema, 8)], set[int]()
        while waiting and len(seen) < _MAX_COMPOSED_SCHEMAS:
            subschema, depth = waiting.pop()
            part = self.resolved(subschema)
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            if depth > 1:
                below = [branch for keyword in keywords for branch in as_list(part.get(keyword))]
                waiting.extend((branch, depth - 1) for branch in reversed(below))

    def _referred(self, ref: str, wish: str, depth: int) -> str:
        target = self.resolved({"$ref": ref})
        if not isinstance(target, dict):
            return ANY
        wish = pascal(ref.rpartition("/")[2], wish) if "/" in ref else wish
        if self.properties(target) is not None:
            return self.hint(target, wish, depth - 1)
        digest = self._digest(target)
        if (known_type := self._types.known(target, wish, digest)) is not None:
            return known_type
        name = self._types.begin(target, wish, digest)
        hint = self.hint(target, wish, depth - 1)
        if hint in _SCALAR_HINTS.values() or hint in (ANY, OBJECT):  # too short for an alias
            self._types.settle(target, wish, digest, hint)
            return hint
        self._types.define(name, [hint, "TypeAlias"], f"{name}: TypeAlias = {quoted(written(hint))}\n")
        return name

    def _object(
        self, schema: dict[str, Any], properties: tuple[dict[str, JSONSchema], set[str]], wish: str, depth: int
    ) -> str:
        title = schema.get("title")
        wish = pascal(title, wish) if isinstance(title, str) and len(title) <= 60 else wish
        digest = self._digest(schema)
        known_type = self._types.known(schema, wish, digest)
        if known_type is None:
            known_type = self._types.begin(schema, wish, digest)
            declared, required = properties
            hints = {
                key: self.hint(property_schema, f"{wish}{pascal(key, 'Field')}", depth - 1)
                for key, property_schema in declared.items()
            }
            fields = {key: hint if key in required else f"NotRequired[{hint}]" for key, hint in hints.items()}
            known_type = self._types.define_object(known_type, wish, fields)
            self._types.settle(schema, wish, digest, known_type)
        null = isinstance(schema.get("type"), list) and "null" in schema["type"]
        return f"{known_type} | None" if null else known_type

    def _by_type(self, schema: dict[str, Any], wish: str, depth: int) -> str:
        is_map = isinstance(schema.get("additionalProperties"), dict)
        kind = schema.get("type") or ("array" if "items" in schema else "object" if is_map else None)
        if isinstance(kind, list):
            kinds = dict.fromkeys(map(str, cast("list[str]", kind)))
            return union(self._by_type({**schema, "type": kind}, wish, depth) for kind in kinds)
        if kind == "array":
            first: list[JSONSchema] = schema.get("prefixItems") or []
            further_items: list[JSONSchema] = [schema.get("items", True)] if schema.get("items") is not False else []
            items = union(self.hint(item_schema, f"{wish}Item", depth - 1) for item_schema in (*first, *further_items))
            return f"\0list[{items}]"
        if kind == "object":
            values = self.hint(schema["additionalProperties"], wish, depth - 1) if is_map else ANY
            return f"\0dict[\0str, {values}]"
        return _SCALAR_HINTS.get(str(kind), ANY)

    def _digest(self, schema: dict[str, Any]) -> int:
        """Return a hash of a schema with everything that it references."""
        known_digest = self._types.digests.get(id(schema))
        if known_digest is None:
            reached: dict[str, JSONSchema] = {}
            waiting: list[Any] = [schema]
            while waiting and len(reached) <= _MAX_COMPARED_REFERENCES:
                for ref in _references(waiting.pop()):
                    if ref not in reached:
                        reached[ref] = self.resolved({"$ref": ref})
                        waiting.append(reached[ref])
            try:
                own_keywords = {key: value for key, value in schema.items() if key not in _DEFINITION_KEYWORDS}
                known_digest = (
                    hash(_encoder.encode([own_keywords, reached]))
                    if len(reached) <= _MAX_COMPARED_REFERENCES
                    else id(schema)
                )
            except (TypeError, ValueError, RecursionError):
                known_digest = id(schema)
            self._types.digests[id(schema)] = known_digest
        return known_digest


def _references(node: Any) -> Iterator[str]:
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            if isinstance(fields.get("$ref"), str):
                yield fields["$ref"]
            waiting.extend(value for key, value in fields.items() if key not in _DEFINITION_KEYWORDS)
        elif isinstance(part, list):
            waiting.extend(cast("list[Any]", part))


def _literal(values: list[Any]) -> str:
    """Return a Literal of the values, or the union of their types if a Literal cannot hold them."""
    if len(values) <= _MAX_LITERALS and all(
        value is None or isinstance(value, str) or (isinstance(value, int) and abs(value) < _MAX_LITERAL_INTEGER)
        for value in values
    ):
        listed = ", ".join(
            dict.fromkeys(
                quoted(value) if isinstance(value, str) else str(value) for value in values if value is not None
            )
        )
        return union([*([f"Literal[{listed}]"] if listed else []), *(["None"] if None in values else [])])
    kinds = {"str": "\0str", "bool": "\0bool", "int": "\0int", "float": "\0float", "NoneType": "None"}
    return union(kinds.get(type(value).__name__, ANY) for value in values)
