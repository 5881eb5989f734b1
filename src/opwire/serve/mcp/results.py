"""Results of `tools/call`: encode the envelope of a call, or its error. No I/O.

A result is structured content and a readable form of the same. Before revision 2026-07-28 structured content has to be
an object: other types are then the property `result` of one, and `_meta` says so. Results of MCP servers
pass unchanged.

Data becomes a content block: text and JSON as text, images as images, other bytes as a resource.
"""

import logging
from base64 import b64encode
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.envelope import HTTPResponseMeta, MCPContentBlock, MCPResponseMeta, ResponseEnvelope
from opwire.errors import CallError, ErrorCode
from opwire.origin import ERROR_META, RESULT_META, ResultOrigin, read_result_origin
from opwire.serve.mcp.tools import Tool
from opwire.tool_envelope import encode_blocks, error_blocks, error_payload, to_blocks
from opwire.typed.plain import MAX_DEPTH, find_nonfinite, replace_surrogates, survey

logger = logging.getLogger("opwire.serve")

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
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


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
        data = _decoder.decode(encoded)
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
