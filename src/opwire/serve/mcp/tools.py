"""Operations as MCP tools: their names, their schemas, and the catalogue that lists and finds them. No I/O.

A tool name is an encoded operation id. Clients accept names of 1 to 64 letters, digits, "_" and "-":

    math.add                  math_add
    my_shop.get_item          my__shop_get_item
    github.repos/list         github_repos-2f-list

The dot between namespace and name is the first "_" that is not doubled; other characters are encoded as their code
point between hyphens. A name depends on its id alone. A name that would be too long is truncated and ends with a digest
of the id: it can be resolved only by comparing it with all operations.

The schemas of a tool are in 2020-12, and objects where the protocol requires objects. Other types are wrapped in an
object, as `input` or `result`, together with their definitions: references to "#/$defs/…" stay unchanged, references to
the whole schema are rewritten.
"""

import logging
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from opwire.dispatch import Dispatcher
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import Identity, OperationSpec, OperationType, may_access
from opwire.origin import ORIGIN_META, Origin
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.schema.dialect import lower, map_subschemas
from opwire.typed.plain import MAX_DEPTH, as_dict, read_json, survey, write_json

logger = logging.getLogger("opwire.serve")

T = TypeVar("T")
ToolDefinition = dict[str, Any]

MAX_NAME = 64

_CODE = re.compile(r"-([0-9a-f]+)-")
_CODE_AHEAD = re.compile(r"[0-9a-f]+-")
_PARTS = re.compile(r"((?:[^_]|__)+)_(.+)", re.DOTALL)
_TRUNCATED = "_-0-"  # the code of NUL, which no id contains: no other id is encoded like this, wherever it is cut
_DIGITS = 16
_HEAD = 12
_DEFINITIONS = ("$defs", "definitions")
_UNCHANGED = tuple(f"#/{key}/" for key in _DEFINITIONS)
_CURSOR = "after:"
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ToolDefinition)


# --- names ------------------------------------------------------------------------------------------------------------


def tool_name(operation_id: str) -> str:
    """Return the tool name of an operation."""
    namespace, _, name = operation_id.partition(".")
    head = _encode(namespace).replace("_", "__")
    # A leading "_" of the name would double the one that stands for the dot.
    tail = f"-5f-{_encode(name[1:])}" if name.startswith("_") else _encode(name)
    if len(head) + len(tail) < MAX_NAME:
        return f"{head}_{tail}"
    digest = sha256(operation_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    room = MAX_NAME - len(_TRUNCATED) - _DIGITS
    head = head[: max(_HEAD, room - 1 - len(tail))]  # the name says more than the namespace
    return f"{f'{head}_{tail}'[:room]}{_TRUNCATED}{digest}"


def is_truncated(name: str) -> bool:
    """Return whether a tool name is a truncated one."""
    return len(name) == MAX_NAME and name[:-_DIGITS].endswith(_TRUNCATED)


def operation_id(name: str) -> str | None:
    """Decode a tool name; return None if it is truncated or invalid."""
    parts = _PARTS.fullmatch(name) if len(name) <= MAX_NAME else None
    if parts is None:
        return None
    try:
        namespace, rest = (
            _CODE.sub(lambda code: chr(int(code[1], 16)), part) for part in (parts[1].replace("__", "_"), parts[2])
        )
    except (ValueError, OverflowError):  # not a code point
        return None
    id = f"{namespace}.{rest}"
    return id if "\0" not in id and tool_name(id) == name else None


def _encode(text: str) -> str:
    encoded = ""
    for letter in reversed(text):
        is_plain = letter == "_" or (letter.isascii() and letter.isalnum())
        if is_plain or (letter == "-" and not _CODE_AHEAD.match(encoded)):
            encoded = letter + encoded
        else:
            encoded = f"-{ord(letter):x}-{encoded}"
    return encoded


# --- schemas ----------------------------------------------------------------------------------------------------------


class ToolSchema(Struct, frozen=True):
    """A schema of a tool. `wraps`: the value is a property of the object that it describes."""

    schema: dict[str, Any]
    wraps: bool = False


def input_schema(schema: Schema) -> ToolSchema:
    """Return the schema of an input. An unknown input is one optional property.

    Raises:
        SchemaError: clients cannot parse the schema.
    """
    plain = lower(schema.json, schema.dialect)
    if as_dict(plain).get("type") == "object":
        return ToolSchema(_checked(plain))
    definitions, inner = _lifted(plain, "#/properties/input")
    wrapper: dict[str, Any] = {"type": "object", "properties": {"input": inner}, **definitions}
    if not schema.is_unknown:
        wrapper["required"] = ["input"]
    return ToolSchema(wrapper, wraps=True)


def output_schema(schema: Schema, *, objects_only: bool) -> ToolSchema | None:
    """Return the schema of an output, None if it is unknown. Revisions before 2026-07-28 accept only objects.

    Raises:
        SchemaError: see `input_schema`.
    """
    if schema.is_unknown:
        return None
    plain = lower(schema.json, schema.dialect)
    if as_dict(plain).get("type") == "object":
        return ToolSchema(_checked(plain))
    if not objects_only:
        return ToolSchema(_as_object(plain))
    definitions, inner = _lifted(plain, "#/properties/result")
    wrapper = {"type": "object", "properties": {"result": inner}, **definitions, "required": ["result"]}
    return ToolSchema(wrapper, wraps=True)


def items_schema(schema: Schema) -> ToolSchema:
    """Return the schema of the collected items of a subscription.

    Raises:
        SchemaError: see `input_schema`.
    """
    definitions, item = _lifted(lower(schema.json, schema.dialect), "#/properties/items/items")
    properties = {"items": {"type": "array", "items": item}, "complete": {"type": "boolean"}}
    return ToolSchema({"type": "object", "properties": properties, "required": ["items", "complete"], **definitions})


def _checked(schema: JSONSchema) -> dict[str, Any]:
    """Check the parts that clients parse themselves: an invalid one would make them reject the whole list."""
    checked = _as_object(schema)
    properties: Any = checked.get("properties", {})
    required: Any = checked.get("required", [])
    if not isinstance(properties, dict) or not all(
        isinstance(each, dict | bool) for each in as_dict(properties).values()
    ):
        raise SchemaError("its properties are not an object of schemas")
    if not isinstance(required, list) or not all(isinstance(each, str) for each in cast("list[Any]", required)):
        raise SchemaError("required is not a list of names")
    if not isinstance(checked.get("$schema", ""), str):
        raise SchemaError("$schema is not an address")
    return checked


def _as_object(schema: JSONSchema) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def _lifted(schema: JSONSchema, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the definitions of a schema, and the schema without them, rewritten for its new place."""
    inner = _as_object(schema)
    if "$id" in inner:  # a document of its own: its references are relative to itself
        return {}, inner

    def move(each: JSONSchema) -> JSONSchema:
        if not isinstance(each, dict) or "$id" in each:
            return each
        copy = map_subschemas(each, move)
        ref = copy.get("$ref")
        if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) and not ref.startswith(_UNCHANGED):
            copy["$ref"] = place + ref[1:]
        return copy

    try:
        moved = as_dict(move(inner))
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    moved.pop("$schema", None)  # allowed at the root only; 2020-12 is the default
    return {key: moved.pop(key) for key in _DEFINITIONS if key in moved}, moved


# --- tools ------------------------------------------------------------------------------------------------------------


class Tool(Struct, frozen=True, kw_only=True):
    """One operation as a tool.

    `shape` is its definition for revision 2026-07-28, which allows any output; `older` is for the others, which allow
    only objects. `wraps_output` applies to these: the output is then the property `result` of an object. `fitting` are
    the types of values that always match the output schema.
    """

    spec: OperationSpec
    name: str
    shape: ToolDefinition
    older: ToolDefinition
    wraps_input: bool
    wraps_output: bool
    fitting: frozenset[type] = frozenset()

    @classmethod
    def of(cls, spec: OperationSpec, name: str) -> "Tool | None":
        """Return the tool of an operation; None if it cannot be shown. Invalid schemas are omitted."""
        schema = spec.output_schema
        takes = _or_default(
            spec, "its input schema", lambda: input_schema(spec.input_schema), ToolSchema({"type": "object"})
        )
        if spec.type is OperationType.SUBSCRIPTION:
            gives = older = _or_default(
                spec, "the schema of its items", lambda: items_schema(schema), items_schema(UNKNOWN)
            )
        else:
            gives, older = _or_default(
                spec,
                "its output schema",
                lambda: (output_schema(schema, objects_only=False), output_schema(schema, objects_only=True)),
                (None, None),
            )
        is_scalar = gives is not None and isinstance(gives.schema.get("type"), str)
        wraps_output = older is not None and older.wraps
        try:
            shape = _definition(spec, name, takes, gives)
            return cls(
                spec=spec,
                name=name,
                shape=shape,
                older=_definition(spec, name, takes, older) if wraps_output else shape,
                wraps_input=takes.wraps,
                wraps_output=wraps_output,
                fitting=schema.fitting_kinds() if is_scalar else frozenset(),
            )
        except (TypeError, ValueError, RecursionError) as error:
            logger.warning("%s is not shown as a tool: %s", spec.id, error)
            return None


def _or_default(spec: OperationSpec, part: str, build: Callable[[], T], default: T) -> T:
    try:
        return build()
    except SchemaError as error:
        logger.warning("%s is shown without %s: %s", spec.id, part, error)
        return default


def _definition(spec: OperationSpec, name: str, takes: ToolSchema, gives: ToolSchema | None) -> ToolDefinition:
    """Return the definition for `tools/list`.

    Raises:
        TypeError, ValueError, RecursionError: it cannot be encoded as JSON.
    """
    origin = Origin.of(spec, wraps_input=takes.wraps, wraps_output=gives is not None and gives.wraps)
    definition: ToolDefinition = {"name": name, "inputSchema": takes.schema, "_meta": {ORIGIN_META: origin.to_json()}}
    if spec.title:
        definition["title"] = spec.title
    if spec.description:
        definition["description"] = spec.description
    if gives is not None:
        definition["outputSchema"] = gives.schema
    if spec.type is OperationType.QUERY:
        definition["annotations"] = {"readOnlyHint": True}
    if survey(definition).deep:
        raise ValueError(f"its schemas are nested deeper than {MAX_DEPTH}")
    return read_json(_decoder, write_json(_encoder, definition))  # a copy in which everything is JSON


class ToolCatalogue:
    """The tools of a surface, created lazily and cached until their operation is replaced."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._tools: dict[str, tuple[OperationSpec, Tool | None]] = {}  # by id
        self._names: dict[str, str] = {}  # by id; cached, because encoding or decoding one takes 10 µs
        self._ids: dict[str, str] = {}  # by name
        self._public: OperationSpec | None = None  # any public operation

    def find(self, name: str) -> Tool | None:
        """Return the tool of this name, regardless of the caller, or None."""
        id = self._ids.get(name) or operation_id(name)
        if id is None and is_truncated(name):
            id = next((spec.id for spec in self._served() if self._name(spec) == name), None)
        spec = None if id is None else self._registry.get_spec(id)
        if spec is None:
            return None
        cached = self._tools.get(spec.id)
        if cached is not None and cached[0] is spec:
            return cached[1]
        return self._tool(spec) if self._dispatcher.is_served(spec) else None

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """Return the input schema of a tool; the SDK validates `Mcp-Param` headers with it."""
        tool = self.find(name)
        return None if tool is None else tool.shape["inputSchema"]

    def page(self, identity: Identity | None, cursor: str | None, size: int) -> tuple[list[Tool], str | None]:
        """Return up to `size` tools that a caller may call, ordered by name, and the cursor of the next page.

        Raises:
            CallError: VALIDATION_ERROR, if the cursor is invalid.
        """
        if cursor is not None and not cursor.startswith(_CURSOR):
            raise CallError(ErrorCode.VALIDATION_ERROR, "invalid cursor: it is not from this server")
        after = "" if cursor is None else cursor.removeprefix(_CURSOR)
        # By name, and not by position: operations may be added and removed between two pages.
        listed = {self._name(spec): spec for spec in self._served() if may_access(spec, identity)}
        left = sorted(name for name in listed if name > after)
        page = [tool for name in left[:size] if (tool := self._tool(listed[name])) is not None]
        return page, f"{_CURSOR}{left[size - 1]}" if len(left) > size else None

    def has_public(self) -> bool:
        """Return whether anonymous callers can call anything; checked for each of their requests."""
        found = self._public
        if found is None or self._registry.get_spec(found.id) is not found:
            public = (spec for spec in self._registry.list() if spec.access is not None and spec.access.public)
            found = self._public = next(filter(self._dispatcher.is_served, public), None)
        return found is not None

    def _served(self) -> list[OperationSpec]:
        specs = [spec for spec in self._registry.list() if self._dispatcher.is_served(spec)]
        if len(self._names) > 2 * len(specs):  # most of the cache belongs to removed operations
            for cache in (self._tools, self._names, self._ids):
                cache.clear()
        return specs

    def _tool(self, spec: OperationSpec) -> Tool | None:
        cached = self._tools.get(spec.id)
        if cached is None or cached[0] is not spec:
            cached = self._tools[spec.id] = (spec, Tool.of(spec, self._name(spec)))
        return cached[1]

    def _name(self, spec: OperationSpec) -> str:
        name = self._names.get(spec.id)
        if name is None:
            name = self._names[spec.id] = tool_name(spec.id)
            self._ids[name] = spec.id
        return name
