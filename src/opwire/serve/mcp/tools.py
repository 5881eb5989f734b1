"""Operations as tools: how they are listed, and which one a name means."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from opwire.access import may_access
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import Identity, OperationSpec, OperationType
from opwire.origin import ORIGIN_META, Origin
from opwire.registry import OperationRegistry
from opwire.schema import UNKNOWN
from opwire.serve.mcp.names import is_cut, operation_id, tool_name
from opwire.serve.mcp.schemas import Form, input_form, items_form, output_form
from opwire.typed.plain import MAX_DEPTH, survey
from opwire.typed.text import read_json, write_json

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
