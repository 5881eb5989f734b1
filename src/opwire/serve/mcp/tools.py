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

Results of `tools/call`: encode the envelope of a call, or its error. No I/O.

A result is structured content and a readable form of the same. Before revision 2026-07-28 structured content has to be
an object: other types are then the property `result` of one, and `_meta` says so. Results of MCP servers
pass unchanged.

Data becomes a content block: text and JSON as text, images as images, other bytes as a resource.
"""

import logging
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.dispatch import Dispatcher
from opwire.envelope import HTTPResponseMeta, MCPContentBlock, MCPResponseMeta, ResponseEnvelope
from opwire.errors import CallError, ErrorCode, SchemaError
from opwire.operation import Identity, OperationSpec, OperationType, may_access
from opwire.origin import ERROR_META, ORIGIN_META, RESULT_META, Origin, ResultOrigin, read_result_origin
from opwire.schema import UNKNOWN, JSONSchema, Schema
from opwire.schema.dialect import map_subschemas
from opwire.tool_envelope import encode_blocks, error_blocks, error_payload, to_blocks
from opwire.typed.plain import MAX_DEPTH, as_dict, find_nonfinite, read_json, replace_surrogates, survey, write_json

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
    plain = schema.lowered
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
    plain = schema.lowered
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
    definitions, item = _lifted(schema.lowered, "#/properties/items/items")
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
        specs = self._dispatcher.served()
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


Result = dict[str, Any]

MAX_DETAILS = 16 * 1024
"""Longest `details` of an error as JSON, in bytes; longer ones are omitted."""

_SHOWN_PROBLEMS = 20
_PRIVATE_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"})
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_json_decoder = msgspec.json.Decoder()


class ResultFormat(Struct, frozen=True):
    """How results are encoded: for a client that accepts only objects, and as ToolEnvelope V1 or not."""

    objects_only: bool
    tool_envelopes: bool = False


class EncodedData(Struct, frozen=True):
    """Data with a JSON form, and its JSON. `encoding`: it was bytes."""

    data: Any
    json: bytes
    encoding: Literal["base64"] | None = None


def encode_data(data: Any, label: str) -> EncodedData:
    """Encode data: NaN and infinities as null, lone surrogates replaced, bytes as base64.

    Raises:
        CallError: EXECUTION_ERROR, if it is nested too deeply.
    """
    if isinstance(data, bytes):
        text = b64encode(data).decode("ascii")
        return EncodedData(text, _encoder.encode(text), "base64")
    if survey(data).deep:  # the SDK fails only when it writes, and takes the whole connection down
        raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the data is nested deeper than {MAX_DEPTH}")
    try:
        encoded = _encoder.encode(data)
    except UnicodeEncodeError:
        data = replace_surrogates(data)
        encoded = _encoder.encode(data)
    if b"null" in encoded and find_nonfinite(data):
        logger.warning("%s: the data contains NaN or an infinity, which is sent as null", label)
        data = _json_decoder.decode(encoded)
    return EncodedData(data, encoded)


def data_block(data: Any, json: bytes, operation_id: str, content_type: str | None = None) -> MCPContentBlock:
    """Return the content block of data and its JSON. `content_type` is that of bytes, if known."""
    if not isinstance(data, bytes):
        return {"type": "text", "text": data if isinstance(data, str) else json.decode()}
    mime = (content_type or "").partition(";")[0].strip().lower()
    if not mime:
        is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
        known = (mime for magic, mime in _IMAGES if data.startswith(magic))
        mime = "image/webp" if is_webp else next(known, "application/octet-stream")
    encoded = b64encode(data).decode("ascii")
    if mime.startswith("image/"):
        return {"type": "image", "data": encoded, "mimeType": mime}
    if mime.startswith("audio/"):
        return {"type": "audio", "data": encoded, "mimeType": mime}
    namespace, _, name = operation_id.partition(".")
    uri = f"opwire://{quote(namespace, safe='')}/{quote(name, safe='')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": encoded}}


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
        shown = {name: value for name, value in meta.headers.items() if name not in _PRIVATE_HEADERS}
        http_meta = msgspec.to_builtins(msgspec.structs.replace(meta, headers=shown, set_cookie=None))
    if format.tool_envelopes:
        content = [*to_blocks(ResponseEnvelope(encoded.data, meta), tool=tool.name)]
    else:
        content = [data_block(envelope.data, encoded.json, tool.spec.id, content_type)]
    result = _result(content, encoded, tool, format, http_meta=http_meta)
    if "outputSchema" not in tool.older or type(encoded.data) in tool.fitting:
        return result
    # Clients reject structured content that does not match the schema, and a result without it unless it is an error.
    # So such a result is content only, marked as an error.
    problems = tool.spec.output_schema.problems(encoded.data, limit=_SHOWN_PROBLEMS)
    if not problems:
        return result
    lines = ["The call was made, but its result does not match the tool's output schema:"]
    lines += [f"- {path or 'the result'}: {message}" for path, message in problems]
    del result["structuredContent"]
    return {**result, "content": [*content, _text("\n".join(lines))], "isError": True}


def collected_result(
    items: list[EncodedData], tool: Tool, format: ResultFormat, *, complete: bool, error: CallError | None = None
) -> Result:
    """Return the result of a subscription: its items until its end, a limit, or an error."""
    collected = {"items": [item.data for item in items], "complete": complete}
    encodings = {str(number): item.encoding for number, item in enumerate(items) if item.encoding is not None}
    meta = {RESULT_META: ResultOrigin(meta={"encodings": encodings}).to_json()} if encodings else {}
    if error is not None:
        failed = error_result(error, tool, format)
        return {**failed, "structuredContent": collected, "_meta": {**meta, **failed["_meta"]}}
    text = _encoder.encode(collected).decode()
    content = encode_blocks(text, collected, tool=tool.name) if format.tool_envelopes else [_text(text)]
    result: Result = {"content": content, "structuredContent": collected}
    return {**result, "_meta": meta} if meta else result


def _forwarded(envelope: ResponseEnvelope[Any], meta: MCPResponseMeta, tool: Tool, format: ResultFormat) -> Result:
    """Return the result of another MCP server: its blocks, structured content and `_meta` unchanged."""
    given = meta._meta  # pyright: ignore[reportPrivateUsage] - the protocol's name for it
    extensions = {} if isinstance(given, UnsetType) else dict(given)
    content = to_blocks(envelope, tool=tool.name) if format.tool_envelopes and not meta.is_error else meta.content
    content, extensions = encode_data([content, extensions], tool.spec.id).data
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
    return {**result, "isError": True} if meta.is_error else result


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
        meta[RESULT_META] = ResultOrigin(wrapped=wraps, encoding=encoded.encoding, meta=http_meta).to_json()
    if meta:
        result["_meta"] = meta
    return result


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


# --- errors -----------------------------------------------------------------------------------------------------------


def error_result(error: CallError, tool: Tool, format: ResultFormat) -> Result:
    """Return the result of a call that failed: advice for the model, and the error itself in `_meta`."""
    message = replace_surrogates(error.message)
    fields: dict[str, Any] = {"code": error.code.value, "message": message, "retryable": error.retryable}
    if error.retry_after is not None:
        fields["retryAfter"] = error.retry_after
    details = None
    if error.details is not None:
        try:
            encoded = encode_data(error.details, "the details of an error")
            details = encoded.data if len(encoded.json) <= MAX_DETAILS else None
        except (CallError, TypeError, ValueError, RecursionError):  # not JSON: omitted
            pass
    if details is not None:
        fields["details"] = details
    if format.tool_envelopes:
        shown = CallError(error.code, error.message, details, retryable=error.retryable)
        content = [*error_blocks(error_payload(shown), tool=tool.name)]
    else:
        content = [_text(replace_surrogates(_advice(error)))]
    return {"content": content, "isError": True, "_meta": {ERROR_META: fields}}


def _advice(error: CallError) -> str:
    lines = [str(error)]
    problems: list[tuple[str, str]] = []
    match error.details:
        case {"problems": [*given]} if error.code is ErrorCode.VALIDATION_ERROR:
            for each in given:
                match each:
                    case {"path": path, "message": message} if str(message) not in error.message:  # not shown above
                        problems.append((str(path), str(message)))
                    case _:
                        pass
        case _:
            pass
    lines += [f"- {path or 'the input'}: {message}" for path, message in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        lines.append(f"- and {len(problems) - _SHOWN_PROBLEMS} more")
    if error.code is ErrorCode.VALIDATION_ERROR:
        lines.append("Correct the arguments and call the tool again.")
    elif error.retry_after is not None:
        lines.append(f"Call the tool again in {error.retry_after:g} seconds.")
    elif error.retryable:
        lines.append("The same call may succeed later.")
    return "\n".join(lines)
