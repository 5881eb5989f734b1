"""`ModelTools`: the operations of a registry as tools of a model, independent of its provider.

Names, definitions and results are made here once; `opwire.agents.providers` brings them into the form of a provider,
and `opwire.agents.frameworks` into that of an agent framework.
"""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, cast

import msgspec
from msgspec import Struct

from opwire.agents.tools import ToolNames, ToolSchema, collect_items, data_block, encode_data, error_text, input_schema
from opwire.errors import (
    CallError,
    ErrorCode,
    SchemaError,
    check_above_zero,
    check_counts,
    check_instance,
    check_keywords,
)
from opwire.model.context import Context
from opwire.model.envelope import MCPContentBlock, MCPResponseMeta, ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec, OperationType
from opwire.names import similar_names, suggestion
from opwire.registry import OperationRegistry
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.text import get_logger

logger = get_logger("opwire.agents")

MAX_NAME = 64
"""Longest tool name: what OpenAI and Anthropic accept."""

MAX_TEXT = 50_000
"""Characters of the texts of a result that a model reads, by default."""

_MAX_SUGGESTED_TOOLS = 10

MAX_MEDIA = 5 * 1024 * 1024
"""Longest image or sound, in characters of its base64."""


class ModelToolOptions(TypedDict, total=False):
    """The options of all kinds of tools: see `ModelTools`."""

    identity: Identity | None
    timeout: float | None
    max_chars: int
    max_items: int
    max_seconds: float


class ModelTool(Struct, frozen=True):
    """One operation as a tool. `wraps_input`: the input is not an object, and is the argument `input`."""

    spec: OperationSpec
    name: str
    description: str
    schema: dict[str, Any]
    wraps_input: bool


class Media(Struct, frozen=True):
    """An image or sound: its media type, and its bytes as base64."""

    media_type: str
    data: str

    def __str__(self) -> str:
        return f"[{self.media_type}, {len(self.data) * 3 // 4 - self.data[-2:].count('='):,} bytes]"


class ToolOutcome(Struct, frozen=True):
    """What a model gets of a call: truncated texts, images and sound. `code` is the error code of a failed call."""

    parts: Sequence[str | Media]
    is_error: bool = False
    code: ErrorCode | None = None

    @property
    def text(self) -> str:
        """The texts, with a description of each image or sound in its place."""
        return "\n".join(map(str, self.parts))


class ModelTools:
    """The operations of a registry, or of a view of it, as tools.

    The model calls on behalf of `identity`, and sees and calls only what that identity may. By default it is trusted
    with every operation, as the program itself is. `timeout` bounds a call in seconds, by default 60. Texts of a result
    are truncated after `max_chars` characters (50,000). Of a subscription at most `max_items` (100) are collected in at
    most `max_seconds` (30).

    Raises:
        UsageError: an option is invalid.
    """

    def __init__(self, registry: OperationRegistry, **options: Unpack[ModelToolOptions]) -> None:
        check_keywords(self, options, ModelToolOptions)
        self._registry = registry
        self._dispatcher = Dispatcher(registry)
        self._identity = options.get("identity")
        self._timeout = options.get("timeout", 60.0)
        self._max_chars = options.get("max_chars", MAX_TEXT)
        self._max_items = options.get("max_items", 100)
        self._max_seconds = options.get("max_seconds", 30.0)
        check_above_zero(timeout=self._timeout, max_seconds=self._max_seconds)
        check_counts(max_chars=self._max_chars, max_items=self._max_items)
        check_instance(Identity, identity=self._identity)
        self._names = ToolNames(max_name=MAX_NAME)
        self._tools: dict[str, ModelTool] = {}  # by name
        self._read_at = -1  # changes of the registry

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._registry!r}>"

    @property
    def tools(self) -> list[ModelTool]:
        """The tools, in the order of registration; current after changes of the registry."""
        self._refresh()
        return list(self._tools.values())

    async def run(self, name: str, arguments: Any, context: Context | None = None) -> ToolOutcome:
        """Call a tool by its name. A failure is an outcome too: the model reads what was wrong and what to do."""
        operation_id = ""
        try:
            self._refresh()
            tool = self._tools.get(name)
            if tool is None:
                others = f"the tools are {', '.join(self._tools)}" if len(self._tools) <= _MAX_SUGGESTED_TOOLS else ""
                hint = suggestion(similar_names(name, self._tools), others)
                raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"there is no tool {name[:100]!r}{hint}")
            operation_id = tool.spec.id
            if not isinstance(arguments, dict):
                problem = f"the arguments are an object, not {type(arguments).__name__}"
                raise CallError(ErrorCode.VALIDATION_ERROR, f"{name}: {problem}")
            tool_input = self._input(tool, cast("dict[str, Any]", arguments))
            context = (context or Context(identity=self._identity)).within(self._timeout)
            if tool.spec.type is OperationType.SUBSCRIPTION:
                return await self._collect(tool.spec, tool_input, context)
            return self._outcome(await self._dispatcher.execute(tool.spec, tool_input, context), tool.spec.id)
        except CallError as error:
            return ToolOutcome([self._truncated(error_text(error, operation_id, name))], is_error=True, code=error.code)

    def _input(self, tool: ModelTool, arguments: dict[str, Any]) -> Any:
        """Return the input of the operation for the arguments of a model."""
        return arguments.get("input") if tool.wraps_input else arguments

    def _refresh(self) -> None:
        if self._read_at == self._registry.changes:
            return
        self._read_at = self._registry.changes
        served = self._dispatcher.served() if self._identity is None else self._dispatcher.visible(self._identity)
        self._names.keep(spec.id for spec in served)
        self._names.add(spec.id for spec in served)
        tools_by_id = {tool.spec.id: tool for tool in self._tools.values()}
        self._tools = {}
        for spec in served:
            tool, name = tools_by_id.get(spec.id), self._names[spec.id]
            if tool is None or tool.spec is not spec or tool.name != name:
                try:
                    schema = input_schema(spec.input_schema)
                    msgspec.json.encode(schema.schema)
                except (SchemaError, TypeError, ValueError, RecursionError) as error:
                    logger.warning("%s is given to models without its input schema: %s", spec.id, error)
                    schema = ToolSchema({"type": "object"})
                description = "\n\n".join(filter(None, (spec.title, spec.description)))
                tool = ModelTool(spec, name, description, schema.schema, schema.wraps)
            self._tools[name] = tool

    async def _collect(self, spec: OperationSpec, input: Any, context: Context) -> ToolOutcome:
        stream = self._dispatcher.subscribe(spec, input, context)
        items, is_complete = await collect_items(stream, self._max_items, self._max_seconds)
        encoded = encode_data({"items": items, "complete": is_complete}, spec.id)
        return ToolOutcome([self._truncated(encoded.json.decode())])

    def _outcome(self, envelope: ResponseEnvelope[Any], label: str) -> ToolOutcome:
        meta = envelope.meta
        if isinstance(meta, MCPResponseMeta) and meta.content:
            blocks: Sequence[MCPContentBlock] = meta.content
        else:
            content_type = getattr(meta, "content_type", None)
            blocks = [data_block(envelope.data, encode_data(envelope.data, label).json, label, content_type)]
        parts: list[str | Media] = []
        remaining_chars = self._max_chars
        for part in map(_part, blocks):
            if isinstance(part, Media) and len(part.data) <= MAX_MEDIA:
                parts.append(part)
                continue
            if remaining_chars <= 0:
                parts.append("… (more content is not shown)")
                break
            parts.append(self._truncated(str(part), remaining_chars))
            remaining_chars -= len(str(part))
        return ToolOutcome(parts, isinstance(meta, MCPResponseMeta) and meta.is_error)

    def _truncated(self, text: str, limit: int | None = None) -> str:
        limit = self._max_chars if limit is None else limit
        return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters: ask for less)"


def _part(block: MCPContentBlock) -> str | Media:
    match cast("Any", block):
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            return Media(media_type, data)
        case {"type": "resource", "resource": {"uri": uri}} | {"type": "resource_link", "uri": uri}:
            return f"[resource {uri}]"
        case other:
            return f"[{other.get('type', 'unknown')} block]"
