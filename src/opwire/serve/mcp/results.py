"""From the envelope of a call, or its error, to what `tools/call` answers. No I/O.

Each result is structured content, and a readable form of the same. Only an object can be structured content before
revision 2026-07-28: anything else is then the property `result` of one, and `_meta` says so. What an MCP server
answered is passed on as it came.

Data as a content block: text and JSON to read, images to look at, other bytes as a resource. Pure.
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

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def data_block(data: Any, json: bytes, operation_id: str, content_type: str | None = None) -> MCPContentBlock:
    """The block that shows the data, of which the JSON is at hand. The content type is that of bytes, if known."""
    if isinstance(data, bytes):
        return _bytes_block(data, operation_id, content_type)
    return {"type": "text", "text": data if isinstance(data, str) else json.decode()}


def _bytes_block(data: bytes, operation_id: str, content_type: str | None) -> MCPContentBlock:
    mime = (content_type or "").partition(";")[0].strip().lower() or _image_type(data) or "application/octet-stream"
    encoded = b64encode(data).decode("ascii")
    if mime.startswith("image/"):
        return {"type": "image", "data": encoded, "mimeType": mime}
    if mime.startswith("audio/"):
        return {"type": "audio", "data": encoded, "mimeType": mime}
    namespace, _, name = operation_id.partition(".")
    uri = f"opwire://{quote(namespace, safe='')}/{quote(name, safe='')}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": encoded}}


def _image_type(data: bytes) -> str | None:
    """What the first bytes say."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _IMAGES if data.startswith(magic)), None)


logger = logging.getLogger("opwire.serve")


MAX_DETAILS = 16 * 1024
"""Bytes of an error's details in JSON: what is longer is left out."""

Result = dict[str, Any]

_SHOWN_PROBLEMS = 20
_PRIVATE_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"})
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class Answering(Struct, frozen=True):
    """How results are written: for a client that takes only objects, and as ToolEnvelope V1 or not."""

    objects_only: bool
    tool_envelopes: bool = False


class Sendable(Struct, frozen=True):
    """Data in the form that JSON has for it, and as JSON. `encoding`: it was bytes."""

    data: Any
    json: bytes
    encoding: Literal["base64"] | None = None


def sendable(data: Any, label: str) -> Sendable:
    """The data as it can be sent: NaN and infinities as null, lone surrogates replaced, bytes as base64.

    Raises:
        CallError: EXECUTION_ERROR, if it is nested too deeply.
    """
    if isinstance(data, bytes):
        text = b64encode(data).decode("ascii")
        return Sendable(text, _encoder.encode(text), "base64")
    if survey(data).deep:  # the SDK refuses it only when it writes, and takes the whole connection down
        raise CallError(ErrorCode.EXECUTION_ERROR, f"{label}: the data is nested deeper than {MAX_DEPTH}")
    try:
        encoded = _encoder.encode(data)
    except UnicodeEncodeError:
        data = replace_surrogates(data)
        encoded = _encoder.encode(data)
    if b"null" in encoded and find_nonfinite(data):
        logger.warning("%s: the data holds NaN or an infinity, which is sent as null", label)
        data = _decoder.decode(encoded)
    return Sendable(data, encoded)


def result_of(envelope: ResponseEnvelope[Any], tool: Tool, answering: Answering) -> Result:
    """The result of a call that was answered.

    Raises:
        CallError: EXECUTION_ERROR, if the data cannot be sent.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta):
        return _passed_on(envelope, meta, tool, answering)
    sent = sendable(envelope.data, tool.spec.id)
    if answering.tool_envelopes:
        content = [*to_blocks(ResponseEnvelope(sent.data, meta), tool=tool.name)]
    else:
        content_type = meta.content_type if isinstance(meta, HTTPResponseMeta) else None
        content = [data_block(envelope.data, sent.json, tool.spec.id, content_type)]
    result = _result(content, sent, tool, answering, http_meta=_http_meta(meta))
    return _unpromised(result, sent, tool) if "outputSchema" in tool.older else result


def collected_result(
    items: list[Sendable], tool: Tool, answering: Answering, *, complete: bool, error: CallError | None = None
) -> Result:
    """The result of a subscription: what came of it until its end, a limit, or an error."""
    collected = {"items": [item.data for item in items], "complete": complete}
    encodings = {str(number): item.encoding for number, item in enumerate(items) if item.encoding is not None}
    meta = {RESULT_META: ResultOrigin(meta={"encodings": encodings}).to_json()} if encodings else {}
    if error is not None:
        failed = error_result(error, tool, answering)
        return {**failed, "structuredContent": collected, "_meta": {**meta, **failed["_meta"]}}
    text = _encoder.encode(collected).decode()
    content = encode_blocks(text, collected, tool=tool.name) if answering.tool_envelopes else [_text(text)]
    result: Result = {"content": content, "structuredContent": collected}
    return {**result, "_meta": meta} if meta else result


def error_result(error: CallError, tool: Tool, answering: Answering) -> Result:
    """The result of a call that failed: what a model needs to do better, and the error itself in `_meta`."""
    message = replace_surrogates(error.message)
    said: dict[str, Any] = {"code": error.code.value, "message": message, "retryable": error.retryable}
    if error.retry_after is not None:
        said["retryAfter"] = error.retry_after
    details = _details(error.details)
    if details is not None:
        said["details"] = details
    if answering.tool_envelopes:
        shown = CallError(error.code, error.message, details, retryable=error.retryable)
        content = [*error_blocks(error_payload(shown), tool=tool.name)]
    else:
        content = [_text(replace_surrogates(_advice(error)))]
    return {"content": content, "isError": True, "_meta": {ERROR_META: said}}


# --- results ----------------------------------------------------------------------------------------------------------


def _passed_on(envelope: ResponseEnvelope[Any], meta: MCPResponseMeta, tool: Tool, answering: Answering) -> Result:
    """What another MCP server answered: its blocks, structured content and `_meta` as they are."""
    extensions = _extensions(meta)
    content = to_blocks(envelope, tool=tool.name) if answering.tool_envelopes and not meta.is_error else meta.content
    content, extensions = sendable([content, extensions], tool.spec.id).data
    origin = read_result_origin(extensions)
    structured = _structured(envelope, meta, tool, origin)
    if structured is not UNSET:
        extensions.pop(RESULT_META, None)
        sent, said = sendable(structured, tool.spec.id), None if origin is None else origin.meta
        result = _result(content, sent, tool, answering, http_meta=said, extensions=extensions)
    else:
        result = {"content": content, "_meta": extensions} if extensions else {"content": content}
    return {**result, "isError": True} if meta.is_error else result


def _extensions(meta: MCPResponseMeta) -> dict[str, Any]:
    given = meta._meta  # pyright: ignore[reportPrivateUsage] - the protocol's name for it
    return {} if isinstance(given, UnsetType) else dict(given)


def _structured(envelope: ResponseEnvelope[Any], meta: MCPResponseMeta, tool: Tool, origin: ResultOrigin | None) -> Any:
    """The structured content; UNSET if there is none.

    Where another opwire wrapped its data, or none came although the tool promises it, the data itself is what counts.
    """
    if origin is not None:
        return envelope.data
    is_missing = meta.structured_content is UNSET and "outputSchema" in tool.older and not meta.is_error
    return envelope.data if is_missing and envelope.data != meta.content else meta.structured_content


def _result(
    content: list[Any],
    sent: Sendable,
    tool: Tool,
    answering: Answering,
    *,
    http_meta: dict[str, Any] | None = None,
    extensions: dict[str, Any] | None = None,
) -> Result:
    data: Any = sent.data
    wraps = answering.objects_only and (tool.wraps_output or type(data) is not dict)
    origin = ResultOrigin(wrapped=wraps, encoding=sent.encoding, meta=http_meta)
    said = {} if origin == ResultOrigin() else {RESULT_META: origin.to_json()}
    result: Result = {"content": content, "structuredContent": {"result": data} if wraps else data}
    return {**result, "_meta": {**(extensions or {}), **said}} if extensions or said else result


def _unpromised(result: Result, sent: Sendable, tool: Tool) -> Result:
    """The result as it is, if it keeps what the tool's schema promises; else as content alone, marked as an error.

    Clients throw a result away whose structured content does not match, and take one without it only as an error.
    """
    problems = tool.spec.output_schema.problems(sent.data, limit=_SHOWN_PROBLEMS)
    if not problems:
        return result
    lines = ["The call was made. Its result, as it came, does not match the tool's output schema:"]
    lines += [f"- {path or 'the result'}: {message}" for path, message in problems]
    kept = {key: value for key, value in result.items() if key != "structuredContent"}
    return {**kept, "content": [*result["content"], _text("\n".join(lines))], "isError": True}


def _http_meta(meta: Any) -> dict[str, Any] | None:
    """Status and headers of an HTTP answer, but nothing that lets somebody in."""
    if not isinstance(meta, HTTPResponseMeta):
        return None
    shown = {name: value for name, value in meta.headers.items() if name not in _PRIVATE_HEADERS}
    return msgspec.to_builtins(msgspec.structs.replace(meta, headers=shown, set_cookie=None))


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


# --- errors -----------------------------------------------------------------------------------------------------------


def _advice(error: CallError) -> str:
    lines = [str(error)]
    problems = [each for each in _problems(error) if each[1] not in error.message]  # which holds the first of them
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


def _problems(error: CallError) -> list[tuple[str, str]]:
    match error.details:
        case {"problems": [*problems]} if error.code is ErrorCode.VALIDATION_ERROR:
            return [(str(each["path"]), str(each["message"])) for each in problems if _is_problem(each)]
        case _:
            return []


def _is_problem(value: Any) -> bool:
    return isinstance(value, dict) and "path" in value and "message" in value


def _details(details: Any) -> Any:
    """The details as they can be sent; None if they cannot, or are too long to be of use."""
    if details is None:
        return None
    try:
        sent = sendable(details, "the details of an error")
    except (CallError, TypeError, ValueError, RecursionError):
        return None
    return sent.data if len(sent.json) <= MAX_DETAILS else None
