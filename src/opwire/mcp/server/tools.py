"""Operations as MCP tools: definitions, the catalogue that lists and finds them, results of `tools/call`. No I/O.

A result is structured content and a readable form of the same. Before revision 2026-07-28 structured content has to be
an object: other types are then the property `result` of one, and `_meta` says so. Results of MCP servers
pass unchanged.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.agents.tools import (
    LONGEST_MAX_NAME,
    MAX_NAME,
    SHORTEST_MAX_NAME,
    SHOWN_PROBLEMS,
    EncodedData,
    ToolNames,
    ToolSchema,
    data_block,
    encode_data,
    error_text,
    input_schema,
    is_binary,
    items_schema,
    output_schema,
)
from opwire.errors import ERROR_TABLE, CallError, ErrorCode, SchemaError, UsageError, check_not_below_zero
from opwire.mcp.messages import RPCError
from opwire.mcp.revisions import ArgumentHeader, argument_headers
from opwire.model.envelope import HTTPResponseMeta, MCPResponseMeta, ResponseEnvelope
from opwire.model.identity import Identity
from opwire.model.operation import OperationSpec, OperationType
from opwire.model.origin import (
    ERROR_META,
    FIELDS_META,
    ORIGIN_META,
    RESULT_META,
    Origin,
    ResultOrigin,
    read_result_origin,
)
from opwire.model.tool_envelope import encode_blocks, error_blocks, error_payload, to_blocks
from opwire.names import similar_names
from opwire.registry.dispatch import Dispatcher
from opwire.runtime.text import get_logger
from opwire.schema import UNKNOWN
from opwire.typed.plain import MAX_DEPTH, as_dict, read_json, replace_surrogates, survey, write_json

logger = get_logger("opwire.mcp.server")

T = TypeVar("T")
ToolDefinition = dict[str, Any]

MAX_PAGE = 512 * 1024
"""Bytes of the tools on one page of a list, by default. A longer tool has a page of its own."""

MAX_OUTPUT_SCHEMA = 4 * 1024
"""Bytes of an output schema that is listed, by default."""

_CURSOR = "after:"
_RESULT_FIELDS = frozenset({"content", "structuredContent", "isError", "resultType"})  # set here alone
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ToolDefinition)


# --- tools ------------------------------------------------------------------------------------------------------------


class Tool(Struct, frozen=True, kw_only=True):
    """One operation as a tool.

    `shape` is its definition for revision 2026-07-28, which allows any output; `older` is for the others, which allow
    only objects. `wraps_output` applies to these: the output is then the property `result` of an object. `fitting` are
    the types of values that always match the output schema. `size` is the length of the longer definition in bytes.
    `headers` are arguments that clients repeat in HTTP headers.
    """

    spec: OperationSpec
    name: str
    shape: ToolDefinition
    older: ToolDefinition
    wraps_input: bool
    wraps_output: bool
    size: int
    fitting: frozenset[type] = frozenset()
    headers: tuple[ArgumentHeader, ...] = ()

    @classmethod
    def of(cls, spec: OperationSpec, name: str, *, max_output_schema: int = MAX_OUTPUT_SCHEMA) -> "Tool | None":
        """Return the tool of an operation; None if it cannot be shown.

        Invalid schemas are omitted, and output schemas with more than `max_output_schema` bytes.
        """
        schema = spec.output_schema
        takes = _or_default(
            spec, "its input schema", lambda: input_schema(spec.input_schema), ToolSchema({"type": "object"})
        )
        if spec.type is OperationType.SUBSCRIPTION:
            gives = older = _or_default(
                spec, "the schema of its items", lambda: items_schema(schema), items_schema(UNKNOWN)
            )
        elif is_binary(schema):  # a client that prefers structured content would show base64 instead of the image
            gives = older = None
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
            is_plain = gives is not None and not survey(gives.schema).deep
            if gives is not None and is_plain and len(write_json(_encoder, gives.schema)) > max_output_schema:
                gives = older = None
            shape, size = _definition(spec, name, takes, gives)
            older_shape, older_size = _definition(spec, name, takes, older) if wraps_output else (shape, size)
            headers: tuple[ArgumentHeader, ...] = ()
            with suppress(ValueError):  # clients leave out the tool, and send no headers
                headers = tuple(argument_headers(takes.schema))
            return cls(
                spec=spec,
                name=name,
                shape=shape,
                older=older_shape,
                wraps_input=takes.wraps,
                wraps_output=wraps_output,
                size=max(size, older_size),
                fitting=schema.fitting_kinds() if is_scalar else frozenset(),
                headers=headers,
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


def _definition(
    spec: OperationSpec, name: str, takes: ToolSchema, gives: ToolSchema | None
) -> tuple[ToolDefinition, int]:
    """Return the definition for `tools/list`, and its length in bytes.

    Raises:
        TypeError, ValueError, RecursionError: it cannot be encoded as JSON.
    """
    binary = gives is None and is_binary(spec.output_schema)
    wraps_output = gives is not None and gives.wraps
    origin = Origin.of(spec, wraps_input=takes.wraps, wraps_output=wraps_output, binary_output=binary, in_mcp=True)
    meta = {**spec.mcp.meta, ORIGIN_META: msgspec.to_builtins(origin)}
    definition: ToolDefinition = {"name": name, "inputSchema": takes.schema, "_meta": meta}
    if spec.title:
        definition["title"] = spec.title
    if spec.description:
        definition["description"] = spec.description
    if gives is not None:
        definition["outputSchema"] = gives.schema
    if annotations := spec.mcp.annotations.to_mcp():
        definition["annotations"] = annotations
    if spec.mcp.icons:
        definition["icons"] = list(spec.mcp.icons)
    if survey(definition).deep:
        raise ValueError(f"its schemas are nested deeper than {MAX_DEPTH}")
    encoded = write_json(_encoder, definition)
    return read_json(_decoder, encoded), len(encoded)  # a copy in which everything is JSON


class ToolCatalogue:
    """The tools of a surface, created lazily and cached until their operation is replaced."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        max_name: int = MAX_NAME,
        names: Mapping[str, str] | None = None,
        *,
        max_output_schema: int = MAX_OUTPUT_SCHEMA,
        all_tools: bool = False,
    ) -> None:
        check_not_below_zero(max_output_schema=max_output_schema)
        if not SHORTEST_MAX_NAME <= max_name <= LONGEST_MAX_NAME:
            raise UsageError(f"max_name is {max_name}; it is between {SHORTEST_MAX_NAME} and {LONGEST_MAX_NAME}")
        self.max_name = max_name
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._all_tools = all_tools  # resources and prompts are tools as well
        self._max_output_schema = max_output_schema
        self._tools: dict[str, tuple[OperationSpec, Tool | None]] = {}  # by id
        self._names = ToolNames(max_name=max_name, chosen_names=names)
        self._found: dict[str, Tool] = {}  # by name, since the last change of the registry
        self._found_at = -1
        self._named_at = -1  # the number of changes of the registry when every served operation got its name
        self._public: OperationSpec | None = None  # any public operation

    def find(self, name: str) -> Tool | None:
        """Return the tool of this name, regardless of the caller, or None."""
        changes = self._registry.changes
        if self._found_at != changes:
            self._found, self._found_at = {}, changes
        tool = self._found.get(name)
        if tool is None:
            id = self._names.operation_id(name)
            if id is None:
                self._name_all()
                id = self._names.operation_id(name)
            spec = None if id is None else self._registry.get_spec(id)
            if spec is None or not self._dispatcher.is_served(spec) or not self.is_tool(spec):
                return None
            tool = self._tool(spec)
            if tool is not None:
                self._found[name] = tool
        return tool

    def similar(self, name: str, identity: Identity | None) -> list[str]:
        """Return up to three names similar to an unknown one, of tools that a caller may call."""

        def is_visible(tool_name: str) -> bool:
            spec = self._registry.get_spec(self._names.operation_id(tool_name) or "")
            return spec is not None and self._dispatcher.is_visible(spec, identity)

        return similar_names(name, self._names.taken, visible=is_visible)

    def tool_of(self, spec: OperationSpec) -> Tool | None:
        """Return the tool of an operation, regardless of the caller, or None."""
        self._name_all()
        return self._tool(spec) if spec.id in self._names else None

    def is_tool(self, spec: OperationSpec) -> bool:
        """Return whether an operation is a tool of this surface."""
        return self._all_tools or spec.mcp.role == "tool"

    def page(self, identity: Identity | None, cursor: str | None, max_bytes: int) -> tuple[list[Tool], str | None]:
        """Return tools that a caller may call, ordered by name, and the cursor of the next page.

        A page has at least one tool, and as many as fit into `max_bytes`.

        Raises:
            CallError: VALIDATION_ERROR, if the cursor is invalid.
        """
        if cursor is not None and not cursor.startswith(_CURSOR):
            raise CallError(ErrorCode.VALIDATION_ERROR, "invalid cursor: it is not from this server")
        after = "" if cursor is None else cursor.removeprefix(_CURSOR)
        self._name_all()
        # By name, and not by position: operations may be added and removed between two pages.
        visible = self._dispatcher.visible(identity)
        listed = {self._names[spec.id]: spec for spec in visible if spec.id in self._names}
        page: list[Tool] = []
        remaining_bytes = max_bytes
        for name in sorted(name for name in listed if name > after):
            tool = self._tool(listed[name])
            if tool is None:
                continue
            if page and tool.size > remaining_bytes:
                return page, f"{_CURSOR}{page[-1].name}"
            page.append(tool)
            remaining_bytes -= tool.size
        return page, None

    def has_public(self) -> bool:
        """Return whether anonymous callers can call anything; checked for each of their requests."""
        public_spec = self._public
        if public_spec is None or self._registry.get_spec(public_spec.id) is not public_spec:
            public = (spec for spec in self._registry.list() if spec.access is not None and spec.access.public)
            public_spec = self._public = next(filter(self._dispatcher.is_served, public), None)
        return public_spec is not None

    def _name_all(self) -> None:
        """Name every served operation, if the registry has changed."""
        if self._named_at != self._registry.changes:
            ids = {spec.id for spec in self._dispatcher.served() if self.is_tool(spec)}
            self._names.keep(ids)
            self._names.add(ids)
            self._tools = {id: tool for id, tool in self._tools.items() if id in ids}
            self._named_at = self._registry.changes

    def _tool(self, spec: OperationSpec) -> Tool | None:
        cached = self._tools.get(spec.id)
        if cached is None or cached[0] is not spec:
            tool = Tool.of(spec, self._names[spec.id], max_output_schema=self._max_output_schema)
            cached = self._tools[spec.id] = (spec, tool)
        return cached[1]


Result = dict[str, Any]

MAX_DETAILS = 16 * 1024
"""Longest `details` of an error as JSON, in bytes; longer ones are omitted."""

_PRIVATE_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"})


class ResultFormat(Struct, frozen=True):
    """How results are encoded: for a client that accepts only objects, and as ToolEnvelope V1 or not."""

    objects_only: bool
    tool_envelopes: bool = False


# --- results ----------------------------------------------------------------------------------------------------------


def result_of(envelope: ResponseEnvelope[Any], tool: Tool, format: ResultFormat) -> Result:
    """Return the result of a call that succeeded.

    Raises:
        CallError: EXECUTION_ERROR, if the data cannot be encoded.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta):
        return _forwarded(envelope, meta, tool, format)
    encoded = encode_data(envelope.data, tool.spec.id)
    content_type = http_meta = None
    if isinstance(meta, HTTPResponseMeta):  # without headers that grant access
        content_type = meta.content_type
        public_headers = {name: value for name, value in meta.headers.items() if name not in _PRIVATE_HEADERS}
        http_meta = msgspec.to_builtins(msgspec.structs.replace(meta, headers=public_headers, set_cookie=None))
    if format.tool_envelopes:
        content = [*to_blocks(ResponseEnvelope(encoded.data, meta), tool=tool.name)]
    else:
        content = [data_block(envelope.data, encoded.json, tool.spec.id, content_type)]
    result = _result(content, encoded, tool, format, http_meta=http_meta)
    is_declared = "outputSchema" in tool.older
    if isinstance(envelope.data, bytes) and not is_declared and content[0]["type"] in ("image", "audio"):
        del result["structuredContent"]  # clients that prefer it would not see the picture
    if not is_declared or type(encoded.data) in tool.fitting:
        return result
    # Clients reject structured content that does not match the schema, and a result without it unless it is an error.
    # So such a result is content only, marked as an error.
    try:
        problems = tool.spec.output_schema.problems(encoded.data, limit=SHOWN_PROBLEMS, is_plain=True)
    except SchemaError as error:  # of a foreign source: clients cannot check the result either
        logger.warning("%s: the output schema is ignored, because it is invalid: %s", tool.spec.id, error)
        return result
    if not problems:
        return result
    lines = ["The call was made, but its result does not match the tool's output schema:"]
    lines += [f"- {path or 'the result'}: {message}" for path, message in problems]
    del result["structuredContent"]
    return {**result, "content": [*content, {"type": "text", "text": "\n".join(lines)}], "isError": True}


def collected_result(
    items: list[EncodedData], tool: Tool, format: ResultFormat, *, complete: bool, error: CallError | None = None
) -> Result:
    """Return the result of a subscription: its items until its end, a limit, or an error."""
    collected = {"items": [item.data for item in items], "complete": complete}
    encodings = {str(number): item.encoding for number, item in enumerate(items) if item.encoding is not None}
    meta = {RESULT_META: msgspec.to_builtins(ResultOrigin(meta={"encodings": encodings}))} if encodings else {}
    if error is not None:
        failed = error_result(error, tool, format)
        return {**failed, "structuredContent": collected, "_meta": {**meta, **failed["_meta"]}}
    text = _encoder.encode(collected).decode()
    content = (
        encode_blocks(text, collected, tool=tool.name) if format.tool_envelopes else [{"type": "text", "text": text}]
    )
    result: Result = {"content": content, "structuredContent": collected}
    return {**result, "_meta": meta} if meta else result


def _forwarded(envelope: ResponseEnvelope[Any], meta: MCPResponseMeta, tool: Tool, format: ResultFormat) -> Result:
    """Return the result of another MCP server: its blocks, structured content and `_meta` unchanged."""
    fields = forwarded_fields(meta)
    extensions = fields.pop("_meta", {})
    content = to_blocks(envelope, tool=tool.name) if format.tool_envelopes and not meta.is_error else meta.content
    content, extensions, fields = encode_data([content, extensions, fields], tool.spec.id).data
    if not content and envelope.data not in (None, [], {}):  # a model reads the content
        encoded = encode_data(envelope.data, tool.spec.id)
        content = [data_block(envelope.data, encoded.json, tool.spec.id)]
    origin = read_result_origin(extensions)
    structured = meta.structured_content
    is_missing = structured is UNSET and "outputSchema" in tool.older and not meta.is_error
    if origin is not None or (is_missing and envelope.data != meta.content):
        structured = envelope.data  # another opwire has wrapped it, or it is missing although the tool declares it
    if structured is not UNSET:
        extensions.pop(RESULT_META, None)
        encoded, http_meta = encode_data(structured, tool.spec.id), None if origin is None else origin.meta
        result = _result(content, encoded, tool, format, http_meta=http_meta, extensions=extensions)
    else:
        result = {"content": content, "_meta": extensions} if extensions else {"content": content}
    return {**fields, **result, "isError": True} if meta.is_error else {**fields, **result}


def forwarded_fields(meta: MCPResponseMeta) -> Result:
    """Return the fields of another server's result beside its content: `_meta`, and those that are not known.

    `resultType` is not among them: a result would become a question to the client that no handler has asked.
    """
    sent_meta = meta._meta  # pyright: ignore[reportPrivateUsage] - the protocol's name for it
    extensions = {} if isinstance(sent_meta, UnsetType) else dict(sent_meta)
    fields = {
        key: field_value
        for key, field_value in as_dict(extensions.pop(FIELDS_META, {})).items()
        if key not in _RESULT_FIELDS
    }
    return {**fields, **({"_meta": extensions} if extensions else {})}


def _result(
    content: list[Any],
    encoded: EncodedData,
    tool: Tool,
    format: ResultFormat,
    *,
    http_meta: dict[str, Any] | None = None,
    extensions: dict[str, Any] | None = None,
) -> Result:
    data: Any = encoded.data
    wraps = format.objects_only and (tool.wraps_output or type(data) is not dict)
    result: Result = {"content": content, "structuredContent": {"result": data} if wraps else data}
    meta = dict(extensions or {})
    if wraps or encoded.encoding is not None or http_meta is not None:
        origin = ResultOrigin(wrapped=wraps, encoding=encoded.encoding, meta=http_meta)
        meta[RESULT_META] = msgspec.to_builtins(origin)
    if meta:
        result["_meta"] = meta
    return result


# --- errors -----------------------------------------------------------------------------------------------------------


def error_result(error: CallError, tool: Tool, format: ResultFormat) -> Result:
    """Return the result of a call that failed: advice for the model, and the error itself in `_meta`."""
    message = replace_surrogates(error.message)
    fields: dict[str, Any] = {"code": error.code.value, "message": message, "retryable": error.retryable}
    if error.foreign_code is not None:
        fields["foreignCode"] = error.foreign_code
    if error.retry_after is not None:
        fields["retryAfter"] = error.retry_after
    details = _json_details(error, MAX_DETAILS)
    if details is not None:
        fields["details"] = details
    if format.tool_envelopes:
        shown_error = CallError(error.code, error.message, details, retryable=error.retryable)
        content = [*error_blocks(error_payload(shown_error), tool=tool.name)]
    else:
        content = [{"type": "text", "text": error_text(error, tool.spec.id, tool.name)}]
    return {"content": content, "isError": True, "_meta": {ERROR_META: fields}}


def rpc_error(error: CallError) -> RPCError:
    """Return an error of a call as a JSON-RPC error."""
    return RPCError(ERROR_TABLE[error.code].json_rpc_code, error.message, _json_details(error))


def _json_details(error: CallError, longest: float = inf) -> Any:
    """Return the details of an error; None if they are not JSON, or have more bytes."""
    if error.details is None:
        return None
    try:
        encoded = encode_data(error.details, "the details of an error")
    except (CallError, TypeError, ValueError, RecursionError):
        return None
    return encoded.data if len(encoded.json) <= longest else None
