"""MCP tools as operations: their schemas, their calls, and the envelopes of their results.

The data of an envelope is the structured content if there is any, else the payload of a ToolEnvelope, else JSON in the
text of a tool with an output schema, else the content blocks. Content is never lost: an invalid block becomes a text
block with its JSON, and a warning is logged.

Another opwire serves subscriptions as tools. Their items arrive as progress notifications, numbered, and again in the
result. So an item that is lost, or does not fit into the buffer, is only delayed: it and its successors are taken from
the result.
"""

import asyncio
import reprlib
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from opwire.errors import CallError, ConversionError, ErrorCode, RegistrationError, SchemaError, ToolEnvelopeError
from opwire.mcp.client.negotiation import as_text
from opwire.mcp.client.options import MCPOptions
from opwire.mcp.client.session import MCPSessions
from opwire.mcp.client.transport import MAX_RETRY_AFTER
from opwire.mcp.messages import SMALL, SmallResponse
from opwire.mcp.revisions import SCHEMA_KEYWORD, ArgumentHeader, argument_headers
from opwire.model.context import Context
from opwire.model.envelope import MCPContentBlock, MCPResponseMeta, ResponseEnvelope, content_blocks
from opwire.model.mcp_presentation import Annotations, MCPPresentation
from opwire.model.operation import Operation, OperationSpec, OperationType, PreparedRequest, ShapedResult, split_id
from opwire.model.origin import (
    ERROR_META,
    FIELDS_META,
    ITEM_META,
    ORIGIN_META,
    RESULT_META,
    Origin,
    ResultOrigin,
    read_origin,
    read_result_origin,
)
from opwire.model.tool_envelope import TOOL_ENVELOPE_PREFIX, block_texts, parse
from opwire.registry.source import Report
from opwire.runtime.text import get_logger
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.schema.dialect import map_subschemas
from opwire.typed.plain import as_dict, as_list, parse_float, read_peer_json

logger = get_logger("opwire.mcp.client")

MAX_NAME = 500
"""Characters of a tool's or prompt's name; the protocol recommends at most 128."""

MAX_SCHEMA_BYTES = 256 * 1024
"""Bytes of one schema: about 100 ms to compile, and 10 MB when compiled."""

EAGER = 4 * 1024 * 1024
"""Bytes of a server's schemas that are compiled when they are listed; the others are compiled lazily."""

MAX_BLOCKS = 10_000
"""Content blocks of one result: a list of bare numbers would become a dict for every two bytes."""

MAX_BUFFERED_ITEMS = 1000
"""Items that the consumer has not taken yet."""

MAX_BUFFERED_BYTES = 4 * 1024 * 1024
"""Bytes of these items, as JSON; the first one may be larger."""

# The paths of schemas that are not objects in tools of another opwire, because MCP requires objects.
_INPUT = ("properties", "input")
_RESULT = ("properties", "result")
_BYTES = Schema({"type": "string", "contentEncoding": "base64"})
_ITEM = ("properties", "items", "items")

_PROTOCOL_FIELDS = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_ENVELOPE_PREFIX = TOOL_ENVELOPE_PREFIX.partition("1")[0]  # of every version
_DEFINITIONS = ("$defs", "definitions")
_MAX_ERROR_MESSAGE_LENGTH = 2000
_YIELD_AFTER_ITEMS = 100  # then other tasks run
_json = msgspec.json.Decoder(float_hook=parse_float)

S = TypeVar("S", bound=Struct)


def is_usable_name(name: object) -> bool:
    """Return whether an operation can have this name."""
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()


def skip(report: Report, kind: str, namespace: str, name: object, reason: str) -> None:
    """Report a skipped tool or prompt; its name may be anything."""
    label = name if isinstance(name, str) and name.isprintable() else reprlib.repr(name)
    report.skip(kind, f"{namespace}.{label}", reason)


def icons_of(definition: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the usable icons of a tool or prompt."""
    return [icon for icon in map(as_dict, as_list(definition.get("icons"))) if isinstance(icon.get("src"), str)]


def meta_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` of a tool or prompt, without what opwire itself has put there."""
    return {key: value for key, value in as_dict(definition.get("_meta")).items() if key != ORIGIN_META}


def declared_headers(tool: Mapping[str, Any]) -> list[ArgumentHeader]:
    """Return the arguments of a tool that are sent as headers too. Most schemas are searched as text only.

    Raises:
        ValueError: the schema declares an invalid one, or is too large to be searched: 8 MB took 0.3 s.
    """
    schema: Any = tool.get("inputSchema")
    text = msgspec.json.encode(schema)
    if SCHEMA_KEYWORD.encode() not in text:
        return []
    if len(text) > MAX_SCHEMA_BYTES:
        raise ValueError(f"its inputSchema with {SCHEMA_KEYWORD} exceeds the limit of {MAX_SCHEMA_BYTES:,} bytes")
    return argument_headers(schema)


class ToolReader:
    """Convert the tools of one server to operations; report skipped tools and unused schemas."""

    def __init__(self, sessions: MCPSessions, options: MCPOptions, namespace: str, report: Report) -> None:
        self._sessions = sessions
        self._options = options
        self._namespace = namespace
        self._report = report
        self.schema_bytes = 0
        """The size of the schemas that were accepted."""

    def read(self, tool: Mapping[str, Any]) -> Operation | None:
        """Return the operation of a tool; None, and an entry in the report, if it is invalid."""
        name: Any = tool.get("name")
        if not is_usable_name(name):
            skip(self._report, "tool", self._namespace, name, f"a name is printable text of 1 to {MAX_NAME} characters")
            return None
        declared = read_origin(tool.get("_meta"), ORIGIN_META)
        # The wrapping is trusted in any case: it only affects how the rest is parsed.
        wraps_input = declared is not None and declared.wraps_input
        wraps_output = declared is not None and declared.wraps_output
        origin = declared if self._options.trust_annotations else None
        read_only = self._options.trust_annotations and as_dict(tool.get("annotations")).get("readOnlyHint") is True
        type = OperationType.QUERY if read_only else OperationType.MUTATION
        if origin is not None:
            type = origin.type
        output_path = _ITEM if type is OperationType.SUBSCRIPTION else _RESULT if wraps_output else ()
        try:
            mcp = MCPPresentation(
                annotations=Annotations.from_mcp(as_dict(tool.get("annotations"))),
                icons=icons_of(tool),
                meta=meta_of(tool),
            )
            if origin is not None:
                mcp = replace(mcp, role=origin.role, uri=origin.uri, mime_type=origin.mime_type)
            spec = OperationSpec(
                type=type,
                title=as_text(tool.get("title")) or as_text(as_dict(tool.get("annotations")).get("title")),
                description=as_text(tool.get("description")),
                input_schema=self.schema(tool, "inputSchema", _INPUT if wraps_input else ()),
                output_schema=_BYTES
                if origin is not None and origin.binary_output
                else self.schema(tool, "outputSchema", output_path),
                normalize=self._options.normalize,
                strip=self._options.strip,
                lenient_input=not self._options.strict_input and origin is None,
                mcp=mcp,
                **self._origin_fields(name, origin),
            )
        except RegistrationError as error:  # raised for fields of an invalid origin
            skip(self._report, "tool", self._namespace, name, str(error))
            return None
        return _operation(self._sessions, name, spec, wraps_input=wraps_input)

    def _origin_fields(self, name: str, origin: Origin | None) -> dict[str, Any]:
        """Return the fields that a trusted opwire defines; `tool_timeout` overrides its timeout, except of streams."""
        timeout = self._options.tool_timeout
        if origin is None:
            return {"namespace": self._namespace, "name": name, "timeout": timeout}
        namespace, own_name = (self._namespace, name) if self._options.namespace else split_id(origin.id)
        keeps_timeout = timeout is None or origin.type is OperationType.SUBSCRIPTION
        return {
            "namespace": namespace,
            "name": own_name,
            "version": origin.version,
            "tags": origin.tags,
            "examples": origin.examples,
            "timeout": origin.timeout if keeps_timeout else timeout,
            "idle_timeout": origin.idle_timeout,
        }

    def schema(self, tool: Mapping[str, Any], field: str, path: tuple[str, ...] = ()) -> Schema:
        """Return the schema of a tool, which is at a path of the declared one; UNKNOWN, and a warning, if invalid."""
        declared: Any = tool.get(field)
        if declared is None and field == "outputSchema":
            return UNKNOWN
        try:
            kind = as_dict(declared).get("type", "object")
            if field == "inputSchema" and kind != "object":  # it would reject every input
                raise SchemaError(f"its type is {kind!r}, and arguments are an object")
            size = len(msgspec.json.encode(declared))
            if size > MAX_SCHEMA_BYTES:
                raise SchemaError(f"it has {size:,} bytes, and the limit is {MAX_SCHEMA_BYTES:,}")
            schema = Schema(cast("Any", _extract(declared, path) if path else declared))
            self.schema_bytes += size
            if self.schema_bytes <= EAGER:
                schema.compile()
        except (SchemaError, TypeError, ValueError, RecursionError) as error:
            self._report.warn(f"{self._namespace}.{as_text(tool.get('name'))[:100]}: its {field} is not used: {error}")
            return UNKNOWN
        return UNKNOWN if schema.is_unknown else schema


def _extract(declared: Any, path: tuple[str, ...]) -> Any:
    """Return the schema at a path, with the definitions of the whole; None if it is missing.

    Another opwire wrapped it, because MCP requires objects. A reference to all of it becomes one to "#" again.
    """
    inner: Any = declared
    for step in path:
        inner = as_dict(inner).get(step)
    if not isinstance(inner, dict) or "$id" in inner:  # with an $id it is a document of its own
        return cast("Any", inner)
    prefix = "#/" + "/".join(path)

    def moved(schema: JSONSchema) -> JSONSchema:
        if not isinstance(schema, dict) or "$id" in schema:
            return schema
        copy = map_subschemas(schema, moved)
        ref = copy.get("$ref")
        if isinstance(ref, str) and (ref == prefix or ref.startswith(f"{prefix}/")):
            copy["$ref"] = f"#{ref.removeprefix(prefix)}"
        return copy

    definitions = {key: declared[key] for key in _DEFINITIONS if key in declared}
    return moved({**cast("dict[str, Any]", inner), **definitions})


# --- calls ------------------------------------------------------------------------------------------------------------


def _operation(sessions: MCPSessions, tool: str, spec: OperationSpec, *, wraps_input: bool) -> Operation:
    declared = not spec.output_schema.is_unknown

    def params(input: Any) -> dict[str, Any]:
        arguments = {"input": input} if wraps_input else {} if input is None else input
        if not isinstance(arguments, dict):
            problem = f"a tool takes an object, not {type(input).__name__}"
            details = {"problems": [{"path": "", "message": problem}]}
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{spec.id}: {problem}", details)
        return {"name": tool, "arguments": cast("dict[str, Any]", arguments)}

    async def call(input: Any, context: Context) -> ShapedResult:
        request_params, session = params(input), await sessions.of(context)
        response = await session.call("tools/call", request_params, context)
        envelope = result_envelope(response.result, spec.id, declared=declared)
        data, meta = envelope.data, cast("MCPResponseMeta", envelope.meta)
        is_content = data is meta.content
        # Data that a text contains may be nested deeper than the message, and bytes are not JSON.
        is_decoded = is_content or (meta.structured_content is not UNSET and type(data) is not bytes)
        schema = UNKNOWN if is_content or meta.is_error else spec.output_schema  # of results that it does not describe
        is_small = isinstance(response, SmallResponse)
        return ShapedResult(envelope, schema, is_decoded and is_small, SMALL if is_small else None)

    def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        return stream_items(sessions, params(input), context, spec.id)

    async def preview(input: Any, context: Context, _: bool) -> PreparedRequest:
        request_params, session = params(input), await sessions.of(context)
        return await session.preview("tools/call", request_params, context, reports=streams)

    streams = spec.type is OperationType.SUBSCRIPTION
    return Operation(spec, stream if streams else call, preview=preview)


# --- results ----------------------------------------------------------------------------------------------------------


def result_envelope(result: Mapping[str, Any], label: str, *, declared: bool) -> ResponseEnvelope[Any]:
    """Return the envelope of a `tools/call` result. `declared`: the tool has an output schema. `label` is for logs.

    Raises:
        CallError: PROTOCOL_ERROR, if a content block has no JSON form.
    """
    content, structured, error_flag = (
        result.get("content"),
        result.get("structuredContent", UNSET),
        result.get("isError"),
    )
    unknown: dict[str, Any] | None = None
    if not result.keys() <= _PROTOCOL_FIELDS:
        unknown = _without(result, _PROTOCOL_FIELDS)
    if not isinstance(content, list):
        if content is None and structured is UNSET:
            content, unknown = unknown, None
        if content is not None:
            logger.warning("%s: the content of a result is not a list; it is kept as one entry", label)
        content = [] if content is None else [content]
    meta = _result_meta(result, label, unknown)
    blocks = read_blocks(cast("list[Any]", content), label)
    is_error = bool(error_flag)
    if error_flag is not None and not isinstance(error_flag, bool):
        logger.warning("%s: isError is not a boolean, but %s", label, type(error_flag).__name__)
    if structured is None and blocks and (is_error or not declared) and block_texts(blocks) != ["null"]:
        structured = UNSET  # some servers write null for fields that they do not use
    origin = None if meta is UNSET or RESULT_META not in meta else read_result_origin(meta)
    if structured is not UNSET:
        data = structured if origin is None else unwrapped(structured, origin, label)
    elif origin is not None and len(blocks) == 1 and "data" in blocks[0]:  # an image or sound of another opwire
        data = decode_bytes(blocks[0]["data"], origin.encoding, label)
    else:
        data = _data_in_text(blocks, label, parse_json=declared and not is_error)
    if declared and data is blocks and not is_error:
        logger.warning("%s: the result lacks the structured content that the tool declares; its blocks are kept", label)
    return ResponseEnvelope(data, MCPResponseMeta(is_error, blocks, structured, meta))


def structured_envelope(
    result: Mapping[str, Any], label: str, content: Iterable[MCPContentBlock] = ()
) -> ResponseEnvelope[Any]:
    """Return the envelope of a result that is structured itself: without `_meta`, it is the data."""
    data = _without(result, ("_meta", "resultType"))
    return ResponseEnvelope(data, MCPResponseMeta(False, list(content), data, _result_meta(result, label)))


def blocks_envelope(result: Mapping[str, Any], label: str, content: list[MCPContentBlock]) -> ResponseEnvelope[Any]:
    """Return the envelope of a result that consists of content blocks."""
    unknown = _without(result, ("contents", "_meta", "resultType"))
    return ResponseEnvelope(content, MCPResponseMeta(False, content, UNSET, _result_meta(result, label, unknown)))


def _without(result: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return a copy without some fields: 5 ms for 250,000, where to compare each takes 60."""
    other_fields = dict(result)
    for field in fields:
        other_fields.pop(field, None)
    return other_fields


def read_blocks(entries: list[Any], label: str) -> list[MCPContentBlock]:
    """Return the content blocks; an entry that is not an object becomes a text block.

    Raises:
        CallError: PROTOCOL_ERROR, if one has no JSON form; PAYLOAD_TOO_LARGE, if there are more than `MAX_BLOCKS`.
    """
    if len(entries) > MAX_BLOCKS:
        message = f"{label}: the result has {len(entries):,} content blocks, and the limit is {MAX_BLOCKS:,}"
        raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, message)
    try:
        if not {dict}.issuperset(map(type, entries)):
            logger.warning("%s: content blocks that are not objects are kept as text", label)
            for index, entry in enumerate(entries := list(entries)):
                if not isinstance(entry, dict):
                    text = entry if isinstance(entry, str) else msgspec.json.encode(entry).decode()
                    entries[index] = {"type": "text", "text": text}
        return content_blocks(entries)
    except (ConversionError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"{label}: a content block is invalid: {error}") from error


def _result_meta(
    result: Mapping[str, Any], label: str, unknown: dict[str, Any] | None = None
) -> dict[str, Any] | UnsetType:
    """Return the `_meta` of a result, and in it the fields that are unknown."""
    meta = result.get("_meta")
    if meta is not None and not isinstance(meta, dict):
        logger.warning("%s: _meta is not an object, but %s; it is ignored", label, type(meta).__name__)
        meta = None
    if unknown:
        return {**(meta or {}), FIELDS_META: unknown}
    if meta and FIELDS_META in meta:  # only opwire itself puts it there
        return _without(cast("dict[str, Any]", meta), (FIELDS_META,))
    return UNSET if meta is None else cast("dict[str, Any]", meta)


def unwrapped(structured: Any, origin: ResultOrigin | None, label: str) -> Any:
    """Return the structured content as the served registry returned it."""
    if origin is None:
        return structured
    wrapped = origin.wrapped and isinstance(structured, dict) and "result" in structured
    return decode_bytes(structured["result"] if wrapped else structured, origin.encoding, label)


def decode_bytes(data: Any, encoding: Any, label: str) -> Any:
    """Decode data that is marked as base64; return other data unchanged."""
    if encoding != "base64":
        return data
    try:
        return b64decode(data, validate=True)
    except (TypeError, ValueError):
        logger.warning("%s: the result declares base64, but its data is invalid; it is not decoded", label)
        return data


def _data_in_text(blocks: list[MCPContentBlock], label: str, *, parse_json: bool) -> Any:
    """Return the payload of the first valid ToolEnvelope, or the JSON of the only text, or the blocks."""
    texts, invalid = block_texts(blocks), None
    for text in texts:
        if text.startswith(_ENVELOPE_PREFIX):
            try:
                return parse(text).payload
            except ToolEnvelopeError as error:
                invalid = invalid or error
    if invalid is not None:  # the first of thousands
        logger.warning("%s: an invalid ToolEnvelope is kept as text: %s", label, invalid)
    if parse_json and len(texts) == 1:
        with suppress(ValueError, RecursionError):
            return read_peer_json(_json, texts[0])
    return blocks


# --- subscriptions of another opwire ----------------------------------------------------------------------------------


class StreamItem(Struct):
    """An item in a progress notification."""

    n: int
    data: Any = None
    encoding: str | None = None


class _StreamError(Struct, rename="camel"):
    code: ErrorCode
    message: str = ""
    details: Any = None
    retryable: bool | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None


class ItemBuffer:
    """The items that arrived as progress. One that does not fit is dropped, and taken from the result."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[tuple[StreamItem, int] | None] = asyncio.Queue()
        self._bytes = 0

    def put(self, item: StreamItem) -> None:
        """Add an item, if it fits."""
        if self._items.qsize() >= MAX_BUFFERED_ITEMS or self._bytes >= MAX_BUFFERED_BYTES:
            return
        try:
            size = len(msgspec.json.encode(item.data))
        except (TypeError, ValueError, RecursionError):
            return
        if not self._bytes or self._bytes + size <= MAX_BUFFERED_BYTES:
            self._bytes += size
            self._items.put_nowait((item, size))

    def end(self) -> None:
        """Add the end of the stream."""
        self._items.put_nowait(None)

    async def get(self) -> StreamItem | None:
        """Return the next item, or None at the end."""
        buffered_item = await self._items.get()
        if buffered_item is None:
            return None
        self._bytes -= buffered_item[1]
        return buffered_item[0]


async def stream_items(
    sessions: MCPSessions, params: dict[str, Any], context: Context, label: str
) -> AsyncGenerator[ResponseEnvelope[Any]]:
    """Call the tool, and yield each item as it arrives.

    Raises:
        CallError: as `MCPSession.call`; the error of the subscription; PROTOCOL_ERROR if the result has no items.
    """
    buffer = ItemBuffer()

    def arrive(progress: Mapping[str, Any]) -> None:
        item = _convert_meta(progress.get("_meta"), ITEM_META, StreamItem)
        if item is not None:
            buffer.put(item)

    session = await sessions.of(context)
    request = asyncio.create_task(session.call("tools/call", params, context, arrive))
    request.add_done_callback(lambda _: buffer.end())
    count = 0
    try:
        while (item := await buffer.get()) is not None:
            if item.n == count:
                count += 1
                yield _item_envelope(item.data, item.encoding, label)
        result = (await request).result
        for number, envelope in enumerate(_remaining_items(count, result, label), 1):
            yield envelope
            if number % _YIELD_AFTER_ITEMS == 0:
                await asyncio.sleep(0)
        if result.get("isError"):  # raised, as where it ran: a stream has no envelope for it
            text = next(iter(block_texts(as_list(result.get("content")))), "")[:_MAX_ERROR_MESSAGE_LENGTH]
            unknown = _StreamError(ErrorCode.EXECUTION_ERROR)
            error = _convert_meta(result.get("_meta"), ERROR_META, _StreamError) or unknown
            message = error.message[:_MAX_ERROR_MESSAGE_LENGTH] or text.removeprefix(f"{error.code.value}: ")
            retry_after = None if error.retry_after is None else min(error.retry_after, MAX_RETRY_AFTER)
            raise CallError(error.code, message, error.details, retryable=error.retryable, retry_after=retry_after)
        if as_dict(result.get("structuredContent")).get("complete") is False:
            logger.warning("%s: the server ended the subscription at a limit of its own", label)
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


def _remaining_items(count: int, result: Mapping[str, Any], label: str) -> Iterator[ResponseEnvelope[Any]]:
    """Yield the items of a result after the first `count`."""
    origin = read_result_origin(result.get("_meta"))
    items = as_dict(unwrapped(result.get("structuredContent"), origin, label)).get("items")
    if not isinstance(items, list) and not result.get("isError"):
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"{label}: the result of a subscription has no list of items")
    encodings = as_dict(as_dict(origin and origin.meta).get("encodings"))
    for number, data in enumerate(as_list(items)[count:], count):
        yield _item_envelope(data, encodings.get(str(number)), label)


def _item_envelope(data: Any, encoding: str | None, label: str) -> ResponseEnvelope[Any]:
    return ResponseEnvelope(decode_bytes(data, encoding, label), MCPResponseMeta(False, [], data))


def _convert_meta(meta: Any, key: str, kind: type[S]) -> S | None:
    """Return the value under a key of `_meta`; None if it is missing or invalid."""
    try:
        return msgspec.convert(as_dict(meta)[key], kind)
    except (KeyError, msgspec.ValidationError):
        return None
