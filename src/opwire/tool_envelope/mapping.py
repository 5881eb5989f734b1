"""ToolEnvelope V1 and the rest of opwire: errors as error payloads, results as envelopes, both ways.

Rule: a payload or a result that becomes an error or an envelope comes back as it was: what has no field there is kept
whole. The other way the format is narrower: an error's details become text, and `retry_after` has no place in it.
"""

import json
from asyncio import CancelledError
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from opwire.content import MCPContentBlock, content_blocks
from opwire.envelope import LocalResponseMeta, MCPResponseMeta, ResponseEnvelope, mcp_envelope
from opwire.errors import ERROR_TABLE, CallError, ErrorCode
from opwire.tool_envelope.block import (
    block_texts,
    encode_blocks,
    first_envelope,
    iso_timestamp,
    text_for_people,
    to_json,
)
from opwire.tool_envelope.payloads import McpErrorPayload

# The table read backwards. Several codes share a category: the first of them, the general one, stands for it.
_CODE_OF_CATEGORY = {row.category: code for code, row in reversed(list(ERROR_TABLE.items()))}

_SUGGESTIONS = {
    "validation": "Fix the input and retry.",
    "timeout": "Retry with a shorter request or increase the timeout.",
}


# --- errors -----------------------------------------------------------------------------------------------------------


def error_payload(error: CallError) -> McpErrorPayload:
    """The error as a payload; details that are not text become JSON text.

    Raises:
        NotPlainError: the details have no JSON form.
    """
    kept = _kept_payload(error)
    if kept is not None:
        return kept
    details = error.details
    if details is not None and not isinstance(details, str):
        details = to_json(details).decode()
    return McpErrorPayload(
        category=ERROR_TABLE[error.code].category,
        code=error.code.value,
        message=error.message,
        details=details,
        recoverable=error.retryable,
    )


def call_error(payload: McpErrorPayload) -> CallError:
    """The payload as an error. A code that is not one of opwire's is chosen by category.

    Where the error has no field for something (the foreign code, a suggestion), its details are the payload whole.
    """
    code = _error_code(payload)
    error = CallError(code, payload.message, payload.details, retryable=payload.recoverable)
    if error_payload(error) == payload:
        return error
    return CallError(code, payload.message, msgspec.to_builtins(payload), retryable=payload.recoverable)


def classify(thrown: object, *, code: str | None = None) -> McpErrorPayload:
    """The payload for whatever a tool of one's own threw: its category, and whether a retry makes sense.

    The message is the exception's own, the traceback is left out. opwire's surfaces show only `CallError`s this way.
    """
    if isinstance(thrown, CallError):
        payload = error_payload(thrown)
        return payload if code is None else msgspec.structs.replace(payload, code=code)
    category, message = _category_and_message(thrown)
    return McpErrorPayload(
        category=category,
        code=code or _CODE_OF_CATEGORY[category].value,
        message=message,
        recoverable=category in _SUGGESTIONS,
        suggested_action=_SUGGESTIONS.get(category),
    )


def _error_code(payload: McpErrorPayload) -> ErrorCode:
    try:
        return ErrorCode(payload.code)
    except ValueError:
        return _CODE_OF_CATEGORY.get(payload.category, ErrorCode.EXECUTION_ERROR)


def _kept_payload(error: CallError) -> McpErrorPayload | None:
    """The payload that `call_error` kept in the details, if it is still the one of this error."""
    try:
        kept = msgspec.convert(error.details, McpErrorPayload)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter where a key holds a lone surrogate
        return None
    # A `CallError` without a message has the table's, so an empty one agrees with any.
    same = kept.message in ("", error.message) and kept.recoverable == error.retryable
    return kept if same and _error_code(kept) == error.code else None


def _category_and_message(thrown: object) -> tuple[str, str]:
    if any(cls.__name__ == "ValidationError" for cls in type(thrown).__mro__):
        # By name, because pydantic, msgspec, jsonschema-rs and others each have their own.
        return "validation", f"Validation error: {thrown}"
    if isinstance(thrown, TimeoutError | CancelledError):
        return "timeout", str(thrown)
    if isinstance(thrown, BaseException):
        return "execution", str(thrown)
    return "internal", json.dumps(thrown) if isinstance(thrown, bool | int | float | None) else str(thrown)


# --- results ----------------------------------------------------------------------------------------------------------


def to_mcp_envelope(
    content: Iterable[Mapping[str, Any]],
    *,
    is_error: bool = False,
    structured_content: Any | UnsetType = UNSET,
    _meta: Mapping[str, Any] | UnsetType = UNSET,
) -> ResponseEnvelope[Any]:
    """The envelope of an MCP result: its data is the structured content, else the payload, else the content blocks.

    Raises:
        ConversionError: a content block is not an object.
    """
    blocks = content_blocks(content)
    found = first_envelope(block_texts(blocks)) if structured_content is UNSET else None
    data = structured_content if structured_content is not UNSET else found.payload if found else blocks
    return mcp_envelope(data, is_error=is_error, content=blocks, structured_content=structured_content, _meta=_meta)


def to_blocks(
    envelope: ResponseEnvelope[Any], *, tool: str, markdown: str | None = None, ts: str | None = None
) -> list[MCPContentBlock]:
    """The envelope as two blocks; the blocks of an MCP result that already hold the data pass through unchanged.

    Without `markdown`, the text of an MCP result or the data itself is shown. Without `ts`, a local result's own
    time is written.

    Raises:
        NotPlainError: the data has no JSON form.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta) and markdown is None:
        texts = block_texts(meta.content)
        found = first_envelope(texts)
        if found and to_json(found.payload) == to_json(envelope.data):
            return meta.content
        markdown = text_for_people(texts) or None
    if isinstance(meta, LocalResponseMeta) and ts is None:
        with suppress(ValueError, OverflowError, OSError):  # a peer's timestamp need not be a date
            ts = iso_timestamp(datetime.fromtimestamp(meta.timestamp / 1000, UTC))
    shown = _shown(envelope.data) if markdown is None else markdown
    return [*encode_blocks(shown, envelope.data, tool=tool, ts=ts)]


def _shown(data: Any) -> str:
    return data if isinstance(data, str) else f"```json\n{to_json(data).decode()}\n```"
