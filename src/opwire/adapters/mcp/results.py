"""From what an MCP server answered to the envelope that the caller gets. No I/O.

The data is the structured content if there is any, else the payload of a ToolEnvelope, else JSON that stands in the
text of a tool with an output schema, else the content blocks. Whatever a server sends as content, nothing of it is
lost: what is no content block becomes a text block holding its JSON, and a warning says so.
"""

import logging
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from opwire.content import MCPContentBlock, content_blocks
from opwire.envelope import ResponseEnvelope, mcp_envelope
from opwire.errors import CallError, ConversionError, ErrorCode, ToolEnvelopeError
from opwire.origin import ResultOrigin, read_result_origin
from opwire.tool_envelope import TOOL_ENVELOPE_PREFIX, parse
from opwire.tool_envelope.block import block_texts
from opwire.typed.text import read_json

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
