"""Operations as tools: how they are listed, and which one a name means.

Operation ids as tool names, and back. Clients take names of 1 to 64 letters, digits, "_" and "-". Pure.

    math.add                  math_add
    my_shop.get_item          my__shop_get_item
    github.repos/list         github_repos-2f-list

The dot between namespace and name is the first "_" that is not one of two; what else is not allowed is written as its
code point between hyphens. A name depends on its id alone. One that would be too long is cut, and ends with a digest
of the id: such a name says which operation it is only to a reader who knows them all.

The schemas of an operation as those of a tool: in 2020-12, and an object wherever the protocol asks for one. Pure.

What is no object is put into one, under `input` or `result`, together with its definitions: references to "#/$defs/…"
stay as they are, a reference to the whole schema follows it to its new place.
"""

import logging
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct

from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import Identity, OperationSpec, OperationType, may_access
from opwire.origin import ORIGIN_META, Origin
from opwire.registry import OperationRegistry
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.schema.dialect import lower, map_subschemas
from opwire.typed.plain import MAX_DEPTH, read_json, survey, write_json

MAX_NAME = 64

_CODE = re.compile(r"-([0-9a-f]+)-")
_CODE_AHEAD = re.compile(r"[0-9a-f]+-")
_PARTS = re.compile(r"((?:[^_]|__)+)_(.+)", re.DOTALL)
_CUT = "_-0-"  # the code of NUL, which no id holds: no other id is ever written like this, wherever the cut is
_DIGITS = 16
_HEAD = 12


def tool_name(operation_id: str) -> str:
    """The name of an operation's tool."""
    namespace, _, name = operation_id.partition(".")
    head = _written(namespace).replace("_", "__")
    # A leading "_" of the name would make two of the one that stands for the dot.
    tail = f"-5f-{_written(name[1:])}" if name.startswith("_") else _written(name)
    if len(head) + len(tail) < MAX_NAME:
        return f"{head}_{tail}"
    digest = sha256(operation_id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    room = MAX_NAME - len(_CUT) - _DIGITS
    head = head[: max(_HEAD, room - 1 - len(tail))]  # the name says more than the namespace
    return f"{f'{head}_{tail}'[:room]}{_CUT}{digest}"


def is_cut(name: str) -> bool:
    """Whether a name is one that had to be cut."""
    return len(name) == MAX_NAME and name[:-_DIGITS].endswith(_CUT)


def operation_id(name: str) -> str | None:
    """The id that a tool name stands for; None if it is cut, or no name of ours."""
    parts = _PARTS.fullmatch(name) if len(name) <= MAX_NAME else None
    if parts is None:
        return None
    try:
        id = f"{_read(parts[1].replace('__', '_'))}.{_read(parts[2])}"
        return id if "\0" not in id and tool_name(id) == name else None
    except (ValueError, OverflowError):  # the code of no character
        return None


def _written(text: str) -> str:
    written = ""
    for letter in reversed(text):
        is_plain = letter == "_" or (letter.isascii() and letter.isalnum())
        if is_plain or (letter == "-" and not _CODE_AHEAD.match(written)):
            written = letter + written
        else:
            written = f"-{ord(letter):x}-{written}"
    return written


def _read(written: str) -> str:
    return _CODE.sub(lambda code: chr(int(code[1], 16)), written)


_DEFINITIONS = ("$defs", "definitions")
_STAY = tuple(f"#/{key}/" for key in _DEFINITIONS)


class Form(Struct, frozen=True):
    """A schema as a tool shows it. `wraps`: the value is a property of the object that it asks for."""

    schema: dict[str, Any]
    wraps: bool = False


def input_form(schema: Schema) -> Form:
    """The form of an input. Any input at all is one property that may be left out.

    Raises:
        SchemaError: no client could read the schema.
    """
    plain = lower(schema.json, schema.dialect)
    if _is_object(plain):
        return Form(_readable(plain))
    return Form(_wrapped(plain, "input", required=not schema.is_unknown), wraps=True)


def output_form(schema: Schema, *, objects_only: bool) -> Form | None:
    """The form of an output, None if nothing is known of it. Revisions before 2026-07-28 take only objects.

    Raises:
        SchemaError: as `input_form`.
    """
    if schema.is_unknown:
        return None
    plain = lower(schema.json, schema.dialect)
    if _is_object(plain):
        return Form(_readable(plain))
    return Form(_wrapped(plain, "result"), wraps=True) if objects_only else Form(_as_dict(plain))


def items_form(schema: Schema) -> Form:
    """The form of what is collected of a subscription.

    Raises:
        SchemaError: as `input_form`.
    """
    definitions, item = _lifted(lower(schema.json, schema.dialect), "#/properties/items/items")
    properties = {"items": {"type": "array", "items": item}, "complete": {"type": "boolean"}}
    return Form({"type": "object", "properties": properties, "required": ["items", "complete"], **definitions})


def _is_object(schema: JSONSchema) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "object"


def _readable(schema: JSONSchema) -> dict[str, Any]:
    """The schema, if the parts that clients read themselves are what they await: one that is not fails a whole list."""
    readable = _as_dict(schema)
    properties, required = readable.get("properties", {}), readable.get("required", [])
    if not isinstance(properties, dict) or not _all(cast("dict[str, Any]", properties).values(), dict | bool):
        raise SchemaError("its properties are not an object of schemas")
    if not isinstance(required, list) or not _all(cast("list[Any]", required), str):
        raise SchemaError("required is not a list of names")
    if not isinstance(readable.get("$schema", ""), str):
        raise SchemaError("$schema is not an address")
    return readable


def _all(values: Any, kind: Any) -> bool:
    return all(isinstance(each, kind) for each in values)


def _as_dict(schema: JSONSchema) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def _wrapped(schema: JSONSchema, name: str, *, required: bool = True) -> dict[str, Any]:
    definitions, inner = _lifted(schema, f"#/properties/{name}")
    wrapper = {"type": "object", "properties": {name: inner}, **definitions}
    return {**wrapper, "required": [name]} if required else wrapper


def _lifted(schema: JSONSchema, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The definitions of a schema, and the schema without them as it reads at its new place."""
    inner = _as_dict(schema)
    if "$id" in inner:  # a document of its own wherever it stands: its references lead into itself
        return {}, inner
    try:
        moved = _moved(inner, place)
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    moved.pop("$schema", None)  # allowed only at the root, and 2020-12 is what is meant without it
    return {key: moved.pop(key) for key in _DEFINITIONS if key in moved}, moved


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    def change(inner: JSONSchema) -> JSONSchema:
        return _moved(inner, place) if isinstance(inner, dict) and "$id" not in inner else inner

    copy = map_subschemas(schema, change)
    ref = copy.get("$ref")
    if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) and not ref.startswith(_STAY):
        copy["$ref"] = place + ref[1:]
    return copy


logger = logging.getLogger("opwire.serve")

Shape = dict[str, Any]

_CURSOR = "after:"
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Shape)


class Tool(Struct, frozen=True, kw_only=True):
    """One operation as the clients see it.

    `shape` is for revision 2026-07-28, which takes any output; `older` for the others, to which only objects can be
    returned. `wraps_output` is said of these: the output is then the property `result` of an object.
    """

    spec: OperationSpec
    name: str
    shape: Shape
    older: Shape
    wraps_input: bool
    wraps_output: bool


class Catalogue:
    """The tools of a registry. Each is made when it is first asked for, and again when its operation was replaced."""

    def __init__(self, registry: OperationRegistry, serves: Callable[[OperationSpec], bool] | None = None) -> None:
        self._registry = registry
        self._serves = serves
        self._tools: dict[str, tuple[OperationSpec, Tool | None]] = {}
        self._names: dict[str, str] = {}  # by id; kept, because to write or to read one takes 10 µs
        self._ids: dict[str, str] = {}  # by name

    def find(self, name: str) -> Tool | None:
        """The tool of this name, whoever may call it."""
        id = self._ids.get(name) or operation_id(name) or self._id_of_cut(name)
        spec = None if id is None else self._registry.get_spec(id)
        return self._tool(spec) if spec is not None and self._is_served(spec) else None

    def page(self, identity: Identity | None, cursor: str | None, size: int) -> tuple[list[Tool], str | None]:
        """So many of the tools that somebody may call, in the order of their names, and the cursor of the next page.

        Raises:
            CallError: VALIDATION_ERROR, if the cursor is none of ours.
        """
        if cursor is not None and not cursor.startswith(_CURSOR):
            raise CallError(ErrorCode.VALIDATION_ERROR, "the cursor is not one that this server gave")
        after = "" if cursor is None else cursor.removeprefix(_CURSOR)
        # By name, and not by position: operations may come and go between two pages.
        listed = {self._name(spec): spec for spec in self._served() if may_access(spec, identity)}
        left = sorted(name for name in listed if name > after)
        page = [tool for name in left[:size] if (tool := self._tool(listed[name])) is not None]
        return page, f"{_CURSOR}{left[size - 1]}" if len(left) > size else None

    def has_public(self) -> bool:
        """Whether anything can be called without an identity. Asked for every request that has none."""
        return any(
            spec.access is not None and spec.access.public and self._is_served(spec) for spec in self._registry.list()
        )

    def _served(self) -> list[OperationSpec]:
        specs = [spec for spec in self._registry.list() if self._is_served(spec)]
        if len(self._names) > 2 * len(specs):  # most of what is kept is of operations that are gone
            for kept in (self._tools, self._names, self._ids):
                kept.clear()
        return specs

    def _is_served(self, spec: OperationSpec) -> bool:
        return self._registry.get_handler(spec.id) is not None and (self._serves is None or self._serves(spec))

    def _tool(self, spec: OperationSpec) -> Tool | None:
        """The tool of an operation; None if it cannot be shown."""
        made = self._tools.get(spec.id)
        if made is None or made[0] is not spec:
            made = self._tools[spec.id] = (spec, _made(spec, self._name(spec)))
        return made[1]

    def _name(self, spec: OperationSpec) -> str:
        name = self._names.get(spec.id)
        if name is None:
            name = self._names[spec.id] = tool_name(spec.id)
            self._ids[name] = spec.id
        return name

    def _id_of_cut(self, name: str) -> str | None:
        """The id whose name had to be cut, which is known only by comparing."""
        if not is_cut(name):
            return None
        return next((spec.id for spec in self._served() if self._name(spec) == name), None)


def _made(spec: OperationSpec, name: str) -> Tool | None:
    takes = _input(spec)
    gives, gives_older = _outputs(spec)
    wraps_output = gives_older is not None and gives_older.wraps
    try:
        shape = _shape(spec, name, takes, gives)
        older = _shape(spec, name, takes, gives_older) if wraps_output else shape
        return Tool(spec=spec, name=name, shape=shape, older=older, wraps_input=takes.wraps, wraps_output=wraps_output)
    except (TypeError, ValueError, RecursionError) as error:
        logger.warning("%s is not shown as a tool: %s", spec.id, error)
        return None


def _input(spec: OperationSpec) -> Form:
    try:
        return input_form(spec.input_schema)
    except SchemaError as error:
        logger.warning("%s is shown without its input schema: %s", spec.id, error)
        return Form({"type": "object"})


def _outputs(spec: OperationSpec) -> tuple[Form | None, Form | None]:
    """The forms of the output: for revision 2026-07-28, and for the older ones."""
    if spec.type is OperationType.SUBSCRIPTION:
        form = _items(spec)
        return form, form
    try:
        schema = spec.output_schema
        return output_form(schema, objects_only=False), output_form(schema, objects_only=True)
    except SchemaError as error:
        logger.warning("%s is shown without its output schema: %s", spec.id, error)
        return None, None


def _items(spec: OperationSpec) -> Form:
    try:
        return items_form(spec.output_schema)
    except SchemaError as error:
        logger.warning("%s is shown without the schema of its items: %s", spec.id, error)
        return items_form(UNKNOWN)


def _shape(spec: OperationSpec, name: str, takes: Form, gives: Form | None) -> Shape:
    """What `tools/list` shows.

    Raises:
        TypeError, ValueError, RecursionError: it has no JSON form.
    """
    origin = Origin.of(spec, wraps_input=takes.wraps, wraps_output=gives is not None and gives.wraps)
    shape: Shape = {"name": name, "inputSchema": takes.schema, "_meta": {ORIGIN_META: origin.to_json()}}
    if spec.title:
        shape["title"] = spec.title
    if spec.description:
        shape["description"] = spec.description
    if gives is not None:
        shape["outputSchema"] = gives.schema
    if spec.type is OperationType.QUERY:
        shape["annotations"] = {"readOnlyHint": True}
    if survey(shape).deep:
        raise ValueError(f"its schemas are nested deeper than {MAX_DEPTH}")
    return read_json(_decoder, write_json(_encoder, shape))  # a copy, in which nothing is left that is not JSON
