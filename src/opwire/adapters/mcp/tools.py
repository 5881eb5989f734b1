"""Tools as operations.

From what an MCP server answered to the envelope that the caller gets. No I/O.

The data is the structured content if there is any, else the payload of a ToolEnvelope, else JSON that stands in the
text of a tool with an output schema, else the content blocks. Whatever a server sends as content, nothing of it is
lost: what is no content block becomes a text block holding its JSON, and a warning says so.

Subscriptions of another opwire, which it serves as tools: their items arrive while the call runs.

Items come as progress, each with its number, and all of them again in the result. So one that is lost on the way or
finds no room here costs only time: it, and those after it, are taken from the result.

The schemas that a tool declares, as schemas that can be used. What cannot be used is UNKNOWN, with a warning.
"""

import asyncio
import logging
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Struct

from opwire.adapters.mcp.report import MAX_NAME, MAX_RETRY_AFTER, Findings, is_usable, list_of, object_of, text_of
from opwire.adapters.mcp.session import Session
from opwire.envelope import MCPContentBlock, ResponseEnvelope, content_blocks, mcp_envelope
from opwire.errors import CallError, ConversionError, ErrorCode, RegistrationError, SchemaError, ToolEnvelopeError
from opwire.operation import Context, Handler, NormalizeMode, Operation, OperationSpec, OperationType, split_id
from opwire.origin import ERROR_META, ITEM_META, ORIGIN_META, Origin, ResultOrigin, read_origin, read_result_origin
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.schema.dialect import map_subschemas
from opwire.tool_envelope import TOOL_ENVELOPE_PREFIX, block_texts, parse
from opwire.typed.plain import read_json

logger = logging.getLogger("opwire.mcp")

_PROTOCOL_FIELDS = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_ENVELOPE_MARK = TOOL_ENVELOPE_PREFIX.partition("1")[0]  # of every version
MAX_BLOCKS = 10_000
"""Content blocks of one result: a list of bare numbers would become a dict for every two bytes."""

_json = msgspec.json.Decoder()
_NOTHING = object()


def result_envelope(result: Mapping[str, Any], label: str, *, declared: bool) -> ResponseEnvelope[Any]:
    """The envelope of what `tools/call` gave. `declared`: the tool has an output schema. `label` is for warnings.

    Raises:
        CallError: PROTOCOL_ERROR, if a content block has no JSON form.
    """
    blocks = _blocks(result, label)
    is_error = _is_error(result, label)
    meta = _meta(result, label)
    structured = result.get("structuredContent", UNSET)
    if structured is not UNSET:
        data = as_it_was(structured, read_result_origin(meta), label)
    else:
        data = _from_text(blocks, label, parse_json=declared and not is_error)
    return mcp_envelope(data, is_error=is_error, content=blocks, structured_content=structured, _meta=meta)


def structured_envelope(result: Mapping[str, Any], content: list[MCPContentBlock], label: str) -> ResponseEnvelope[Any]:
    """The envelope of a result that is structured itself: it is the data, its `_meta` apart."""
    data = {key: value for key, value in result.items() if key not in ("_meta", "resultType")}
    meta = _meta(result, label)
    return mcp_envelope(data, is_error=False, content=content, structured_content=data, _meta=meta)


def blocks_envelope(result: Mapping[str, Any], content: list[MCPContentBlock], label: str) -> ResponseEnvelope[Any]:
    """The envelope of a result that is its content blocks."""
    return mcp_envelope(content, is_error=False, content=content, _meta=_meta(result, label))


def decoded(data: Any, encoding: Any, label: str) -> Any:
    """The bytes that the data stands for, where its origin says so; else the data as it is."""
    if encoding != "base64":
        return data
    try:
        return b64decode(data, validate=True)
    except (TypeError, ValueError):
        logger.warning("%s: the result says that its data is base64, which it is not; it is kept as it is", label)
        return data


def read_blocks(entries: list[Any], label: str) -> list[MCPContentBlock]:
    """Return the content blocks; an entry that is not an object becomes a text block.

    Raises:
        CallError: PROTOCOL_ERROR, if one has no JSON form; PAYLOAD_TOO_LARGE, if there are more than `MAX_BLOCKS`.
    """
    if len(entries) > MAX_BLOCKS:
        found = f"{label}: the result has {len(entries):,} content blocks, and the limit is {MAX_BLOCKS:,}"
        raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, found)
    if not all(isinstance(each, Mapping) for each in entries):
        logger.warning("%s: content blocks are objects; those that are not are kept as text", label)
    try:
        return content_blocks(map(_block, entries))
    except (ConversionError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"{label}: a content block cannot be read: {error}") from error


# --- the parts of a result --------------------------------------------------------------------------------------------


def _blocks(result: Mapping[str, Any], label: str) -> list[MCPContentBlock]:
    content = result.get("content")
    if isinstance(content, list):
        return read_blocks(cast("list[Any]", content), label)
    if content is not None:
        logger.warning("%s: the content of a result is a list, this one is read as its only entry", label)
        return read_blocks([content], label)
    strange = {key: value for key, value in result.items() if key not in _PROTOCOL_FIELDS}
    if strange and "structuredContent" not in result:
        logger.warning("%s: the result has no content; what it has is kept as text", label)
        return read_blocks([strange], label)
    return []


def _block(entry: Any) -> Mapping[str, Any]:
    if isinstance(entry, Mapping):
        return cast("Mapping[str, Any]", entry)
    return {"type": "text", "text": entry if isinstance(entry, str) else msgspec.json.encode(entry).decode()}


def _is_error(result: Mapping[str, Any], label: str) -> bool:
    given = result.get("isError")
    if not isinstance(given, bool | None):
        logger.warning("%s: isError is true or false, not %s", label, type(given).__name__)
    return bool(given)


def _meta(result: Mapping[str, Any], label: str) -> Any:
    given = result.get("_meta")
    if given is None or isinstance(given, Mapping):
        return UNSET if given is None else cast("Mapping[str, Any]", given)
    logger.warning("%s: _meta is an object, not %s; it is left out", label, type(given).__name__)
    return UNSET


# --- the data ---------------------------------------------------------------------------------------------------------


def as_it_was(structured: Any, origin: ResultOrigin | None, label: str) -> Any:
    """The structured content as the registry that was served had it."""
    if origin is None:
        return structured
    data = structured
    if origin.wrapped and isinstance(structured, Mapping) and "result" in structured:
        data = cast("Mapping[str, Any]", structured)["result"]
    return decoded(data, origin.encoding, label)


def _from_text(blocks: list[MCPContentBlock], label: str, *, parse_json: bool) -> Any:
    texts = block_texts(blocks)
    payload = _tool_envelope_payload(texts, label)
    if payload is _NOTHING and parse_json and len(texts) == 1:
        payload = _json_value(texts[0])
    return blocks if payload is _NOTHING else payload


def _tool_envelope_payload(texts: list[str], label: str) -> Any:
    """The payload of the first ToolEnvelope that can be read; one that cannot is warned of."""
    for text in texts:
        if not text.startswith(_ENVELOPE_MARK):
            continue
        try:
            return parse(text).payload
        except ToolEnvelopeError as error:
            logger.warning("%s: a block that looks like a ToolEnvelope is kept as text: %s", label, error)
    return _NOTHING


def _json_value(text: str) -> Any:
    try:
        return read_json(_json, text)
    except (ValueError, RecursionError):
        return _NOTHING


T = TypeVar("T", bound=Struct)


MAX_WAITING = 1000
"""Items that the consumer has not taken yet."""

MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Bytes of these items, as JSON; the first one may be larger."""

_MAX_MESSAGE = 2000
_TURN = 100  # items of a result after which others get a turn


class _Item(Struct):
    n: int
    data: Any = None
    encoding: str | None = None


class _Failure(Struct, rename="camel"):
    code: ErrorCode
    message: str = ""
    details: Any = None
    retryable: bool | None = None
    retry_after: Annotated[float, Meta(ge=0)] | None = None


async def stream_items(
    session: Session, params: dict[str, Any], context: Context, label: str
) -> AsyncGenerator[ResponseEnvelope[Any]]:
    """Call the tool, and yield each item as it comes.

    Raises:
        CallError: as `Session.request`; what the subscription itself failed of; PROTOCOL_ERROR if the result has no
            items.
    """
    waiting = _Waiting()

    def arrive(progress: Mapping[str, Any]) -> None:
        item = _carried(progress.get("_meta"), ITEM_META, _Item)
        if item is not None:
            waiting.put(item)

    request = asyncio.create_task(
        session.request(
            "tools/call", params, deadline=context.deadline, on_progress_params=arrive, metadata=context.metadata
        )
    )
    request.add_done_callback(lambda _: waiting.end())
    given = 0
    try:
        while (item := await waiting.get()) is not None:
            if item.n == given:
                given += 1
                yield _envelope(item.data, item.encoding, label)
        result = await request
        for n, envelope in enumerate(_items_from(given, result, label), 1):
            yield envelope
            if n % _TURN == 0:
                await asyncio.sleep(0)
        _check_end(result, label)
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


class _Waiting:
    """The items that came as progress: what does not fit is taken from the result."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[tuple[_Item, int] | None] = asyncio.Queue()
        self._bytes = 0

    def put(self, item: _Item) -> None:
        if self._items.qsize() >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
            return
        try:
            size = len(msgspec.json.encode(item.data))
        except (TypeError, ValueError, RecursionError):
            return
        if not self._bytes or self._bytes + size <= MAX_WAITING_BYTES:
            self._bytes += size
            self._items.put_nowait((item, size))

    def end(self) -> None:
        self._items.put_nowait(None)

    async def get(self) -> _Item | None:
        found = await self._items.get()
        if found is None:
            return None
        self._bytes -= found[1]
        return found[0]


def _items_from(given: int, result: Mapping[str, Any], label: str) -> Iterator[ResponseEnvelope[Any]]:
    """Yield the items of a result behind those that were given already."""
    origin = read_result_origin(result.get("_meta"))
    collected = object_of(as_it_was(result.get("structuredContent"), origin, label))
    items = collected.get("items")
    if not isinstance(items, list) and not result.get("isError"):
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"{label}: the result of a subscription has no list of items")
    encodings = object_of(object_of(origin and origin.meta).get("encodings"))
    for n, data in enumerate(list_of(items)[given:], given):
        yield _envelope(data, encodings.get(str(n)), label)


def _envelope(data: Any, encoding: str | None, label: str) -> ResponseEnvelope[Any]:
    return mcp_envelope(decoded(data, encoding, label), is_error=False, content=(), structured_content=data)


def _check_end(result: Mapping[str, Any], label: str) -> None:
    """Say how the subscription ended. An error is raised, as where it ran: a stream has no envelope for it."""
    if result.get("isError"):
        text = next(iter(block_texts(list_of(result.get("content")))), "")[:_MAX_MESSAGE]
        said = _carried(result.get("_meta"), ERROR_META, _Failure) or _Failure(ErrorCode.EXECUTION_ERROR)
        message = said.message[:_MAX_MESSAGE] or text.removeprefix(f"{said.code.value}: ")
        wait = None if said.retry_after is None else min(said.retry_after, MAX_RETRY_AFTER)
        raise CallError(said.code, message, said.details, retryable=said.retryable, retry_after=wait)
    if object_of(result.get("structuredContent")).get("complete") is False:
        logger.warning("%s: the server ended the subscription at a limit of its own", label)


def _carried(meta: Any, key: str, kind: type[T]) -> T | None:
    """What a `_meta` carries under a key; None if there is nothing that can be read."""
    try:
        return msgspec.convert(object_of(meta)[key], kind)
    except (KeyError, msgspec.ValidationError):
        return None


Path = tuple[str, ...]

MAX_SCHEMA = 256 * 1024
"""Bytes of one schema: about 100 ms to compile, and 10 MB when compiled."""

EAGER = 4 * 1024 * 1024
"""Bytes of a server's schemas that are compiled when they are listed; the others are compiled at their first use."""

_DEFINITIONS = ("$defs", "definitions")


def input_schema(declared: Any, tool: str, findings: Findings, path: Path = ()) -> Schema:
    """The schema of a tool's input, which stands at a path of what is declared."""
    kind = object_of(declared).get("type", "object")
    if kind != "object":  # it would refuse whatever can be sent
        findings.warn(tool, f"its inputSchema is not used: it is of type {kind!r}, and arguments are an object")
        return UNKNOWN
    return _usable(declared, tool, "inputSchema", findings, path)


def output_schema(declared: Any, tool: str, findings: Findings, path: Path = ()) -> Schema:
    """The schema of a tool's output, which stands at a path of what is declared, if anything is."""
    return UNKNOWN if declared is None else _usable(declared, tool, "outputSchema", findings, path)


def _usable(declared: Any, tool: str, field: str, findings: Findings, path: Path) -> Schema:
    try:
        size = len(msgspec.json.encode(declared))
        if size > MAX_SCHEMA:
            findings.warn(tool, f"its {field} is not used: it has {size:,} bytes, and the limit is {MAX_SCHEMA:,}")
            return UNKNOWN
        schema = Schema(_at(declared, path) if path else declared)
        findings.schema_bytes += size
        if findings.schema_bytes <= EAGER:
            schema.compile()
    except (SchemaError, TypeError, ValueError, RecursionError) as error:
        findings.warn(tool, f"its {field} is not used: {error}")
        return UNKNOWN
    return UNKNOWN if schema.is_unknown else schema


def _at(declared: Any, path: Path) -> Any:
    """The schema at a path, with the definitions of the whole; None if there is nothing.

    Another opwire put it there because MCP asks for objects. A reference to all of it is one to "#" again.
    """
    inner: Any = declared
    for step in path:
        inner = object_of(inner).get(step)
    if not isinstance(inner, Mapping) or "$id" in inner:  # with an $id it is a document of its own
        return cast("Any", inner)
    kept = {key: declared[key] for key in _DEFINITIONS if key in declared}
    return _moved({**object_of(inner), **kept}, "#/" + "/".join(path))


def _moved(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """A copy in which references into a place are references into the root."""

    def change(inner: JSONSchema) -> JSONSchema:
        return _moved(inner, place) if isinstance(inner, dict) and "$id" not in inner else inner

    copy = map_subschemas(schema, change)
    ref = copy.get("$ref")
    if isinstance(ref, str) and (ref == place or ref.startswith(f"{place}/")):
        copy["$ref"] = f"#{ref.removeprefix(place)}"
    return copy


# Where another opwire puts what is no object, because MCP asks for objects.
_INPUT = ("properties", "input")
_RESULT = ("properties", "result")
_ITEM = ("properties", "items", "items")


class Reading(Struct, frozen=True, kw_only=True):
    """How the operations of a server are made.

    `own_ids`: tools that come from another opwire, and are trusted, keep the ids that they have there.
    """

    namespace: str
    own_ids: bool = False
    trust_annotations: bool = False
    timeout: float | None = None
    normalize: NormalizeMode | None = None
    strip: bool | None = None


def read_tool(tool: Mapping[str, Any], session: Session, reading: Reading, findings: Findings) -> Operation | None:
    """The operation that a tool is; None, and a finding, if it cannot be one."""
    name = tool.get("name")
    if not is_usable(name):
        findings.skip(name, f"a name is printable text of 1 to {MAX_NAME} characters")
        return None
    try:
        return _read(tool, cast("str", name), session, reading, findings)
    except RegistrationError as error:  # of what another opwire says of its operation
        findings.skip(name, str(error))
        return None


def _read(tool: Mapping[str, Any], name: str, session: Session, reading: Reading, findings: Findings) -> Operation:
    said = read_origin(tool.get("_meta"), ORIGIN_META)
    origin = said if reading.trust_annotations else None
    # Whether something is wrapped is believed of anybody: it only says how to read the rest.
    wraps_input, wraps_output = (False, False) if said is None else (said.wraps_input, said.wraps_output)
    type = _type(tool, origin, reading)
    output_path = _ITEM if type is OperationType.SUBSCRIPTION else _RESULT if wraps_output else ()
    namespace, own_name = split_id(origin.id) if origin and reading.own_ids else (reading.namespace, name)
    spec = OperationSpec(
        namespace=namespace,
        name=own_name,
        type=type,
        title=text_of(tool.get("title")) or text_of(object_of(tool.get("annotations")).get("title")),
        description=text_of(tool.get("description")),
        input_schema=input_schema(tool.get("inputSchema"), name, findings, _INPUT if wraps_input else ()),
        output_schema=output_schema(tool.get("outputSchema"), name, findings, output_path),
        normalize=reading.normalize,
        strip=reading.strip,
        **_said(origin, reading.timeout),
    )
    make = _stream_handler if type is OperationType.SUBSCRIPTION else _call_handler
    return Operation(spec, make(session, name, spec, wraps_input=wraps_input))


def _type(tool: Mapping[str, Any], origin: Origin | None, reading: Reading) -> OperationType:
    if origin is not None:
        return origin.type
    reads = reading.trust_annotations and object_of(tool.get("annotations")).get("readOnlyHint") is True
    return OperationType.QUERY if reads else OperationType.MUTATION


def _said(origin: Origin | None, timeout: float | None) -> dict[str, Any]:
    """What only another opwire says of an operation. A timeout that the user gave is stronger, and is for calls."""
    if origin is None:
        return {"timeout": timeout}
    given = None if origin.type is OperationType.SUBSCRIPTION else timeout
    return {
        "version": origin.version,
        "tags": origin.tags,
        "examples": origin.examples,
        "timeout": origin.timeout if given is None else given,
        "idle_timeout": origin.idle_timeout,
    }


# --- calling ----------------------------------------------------------------------------------------------------------


def _call_handler(session: Session, tool: str, spec: OperationSpec, *, wraps_input: bool) -> Handler:
    declared = not spec.output_schema.is_unknown

    async def call(input: Any, context: Context) -> ResponseEnvelope[Any]:
        params = _params(tool, spec.id, input, wraps_input=wraps_input)
        result = await session.request(
            "tools/call",
            params,
            deadline=context.deadline,
            on_progress=context.on_progress,
            metadata=context.metadata,
        )
        return result_envelope(result, spec.id, declared=declared)

    return call


def _stream_handler(session: Session, tool: str, spec: OperationSpec, *, wraps_input: bool) -> Handler:
    def stream(input: Any, context: Context) -> AsyncGenerator[ResponseEnvelope[Any]]:
        return stream_items(session, _params(tool, spec.id, input, wraps_input=wraps_input), context, spec.id)

    return stream


def _params(tool: str, label: str, input: Any, *, wraps_input: bool) -> dict[str, Any]:
    arguments = {"input": input} if wraps_input else {} if input is None else input
    if not isinstance(arguments, dict):
        problem = f"a tool takes an object, not {type(input).__name__}"
        details = {"problems": [{"path": "", "message": problem}]}
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{label}: {problem}", details)
    return {"name": tool, "arguments": cast("dict[str, Any]", arguments)}
