"""ToolEnvelope V1: encode and parse the result of a tool as two text blocks, one for people, one for programs.

    block 0    markdown
    block 1    __ENVELOPE_V1__:<base64 of {"payload": ..., "meta": {"tool": ..., "ts": ..., "version": 1}}>

Rules: no I/O; `ts` defaults to the current time. The encoder returns the same bytes as the format's public
implementation. The parser tolerates invalid base64 characters, but requires UTF-8, one JSON object and version 1. A
payload is plain data and keeps every field and digit.

The typed payloads are views: unknown fields are ignored, and kinds, classes and categories are plain strings, so that
payloads of newer producers can be parsed. Encoded names are camelCase; optional fields that are None are omitted.

A payload or a result that is converted to a `CallError` or an envelope can be converted back without loss. The other
direction is lossy: an error's details become text, and `retry_after` is dropped.
"""

import json
import re
from asyncio import CancelledError
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.errors import ERROR_TABLE, CallError, ConversionError, ErrorCode, NotPlainError, ToolEnvelopeError
from opwire.model.envelope import (
    LocalResponseMeta,
    MCPContentBlock,
    MCPResponseMeta,
    ResponseEnvelope,
    TextBlock,
    content_blocks,
    mcp_envelope,
)
from opwire.runtime.text import get_logger
from opwire.typed.plain import check_density, replace_surrogates, to_plain

T = TypeVar("T")

TOOL_ENVELOPE_VERSION = 1
TOOL_ENVELOPE_PREFIX = f"__ENVELOPE_V{TOOL_ENVELOPE_VERSION}__:"

_logger = get_logger("opwire.model")
_ANY_PREFIX = re.compile(r"__ENVELOPE_V([0-9]+)__:")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/_-]+")
_MAX_BYTES = 4 * 1024 * 1024
_URL_SAFE = str.maketrans("-_", "+/")


class ToolEnvelopeMeta(Struct, frozen=True):
    """The tool and the time (ISO 8601) of an envelope. `extra` keeps unknown fields."""

    tool: str = ""
    ts: str = ""
    version: int = TOOL_ENVELOPE_VERSION
    deprecations: list[Any] = []
    extra: dict[str, Any] = {}


class ToolEnvelope(Struct, frozen=True):
    """The content of the machine-readable block. A payload of UNSET is omitted, as undefined is in TypeScript."""

    payload: Any
    meta: ToolEnvelopeMeta

    def encode(self) -> str:
        """Return the text of the block.

        Raises:
            NotPlainError: the payload cannot be encoded as JSON.
        """
        meta: dict[str, Any] = {"tool": self.meta.tool, "ts": self.meta.ts, "version": self.meta.version}
        if self.meta.deprecations:
            meta["deprecations"] = self.meta.deprecations
        members = {} if self.payload is UNSET else {"payload": self.payload}
        document = to_json({**members, "meta": meta | self.meta.extra})
        return TOOL_ENVELOPE_PREFIX + b2a_base64(document, newline=False).decode("ascii")


# --- encoding ---------------------------------------------------------------------------------------------------------


def encode(payload: Any, *, tool: str, ts: str | None = None, deprecations: Iterable[Any] = ()) -> str:
    """Return the text of an envelope block; `ts` defaults to now.

    Raises:
        NotPlainError: the payload cannot be encoded as JSON.
    """
    ts = iso_timestamp(datetime.now(UTC)) if ts is None else ts
    return ToolEnvelope(payload, ToolEnvelopeMeta(tool, ts, deprecations=list(deprecations))).encode()


def encode_blocks(
    markdown: str, payload: Any, *, tool: str, ts: str | None = None, deprecations: Iterable[Any] = ()
) -> list[TextBlock]:
    """Return the two blocks of a result.

    encode_blocks("## Sum\\n3", {"sum": 3}, tool="add")

    Raises:
        NotPlainError: the payload cannot be encoded as JSON.
    """
    envelope = encode(payload, tool=tool, ts=ts, deprecations=deprecations)
    return [{"type": "text", "text": markdown}, {"type": "text", "text": envelope}]


def to_json(value: Any) -> bytes:
    """Return compact JSON, encoded by the standard library, because msgspec rejects lone surrogates.

    Raises:
        NotPlainError: the value cannot be encoded as JSON.
    """

    def dump(value: Any, *, allow_nan: bool) -> str:
        separators = (",", ":")
        return json.dumps(value, ensure_ascii=False, allow_nan=allow_nan, separators=separators, default=to_plain)

    try:
        try:
            text = dump(value, allow_nan=False)
        except ValueError:  # NaN or an infinity; other errors are raised again
            finite = json.loads(dump(value, allow_nan=True), parse_constant=lambda _: None)
            text = dump(finite, allow_nan=False)
            _logger.warning("a ToolEnvelope payload holds NaN or an infinity; null is written in its place")
    except (TypeError, ValueError, RecursionError) as error:
        raise NotPlainError(f"a ToolEnvelope cannot hold this: {error}") from error
    # Only a lone surrogate cannot be encoded as UTF-8; Python's escape for it is valid JSON.
    return text.encode("utf-8", "backslashreplace")


def iso_timestamp(moment: datetime) -> str:
    """Return a UTC time in JavaScript's format: with milliseconds and Z."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- parsing ----------------------------------------------------------------------------------------------------------


def parse(text: str) -> ToolEnvelope:
    """Parse the text of an envelope block. A missing payload is None, a missing meta is empty.

    Raises:
        ToolEnvelopeError: not an envelope block, an unknown version, invalid content, or more than 4 MiB; the message
            says which.
    """
    prefix = _ANY_PREFIX.match(text)
    if prefix is None:
        raise ToolEnvelopeError("not an envelope block: the text does not begin with __ENVELOPE_V1__:")
    _check_version(prefix[1].lstrip("0") or "0")
    # As Node decodes base64: both alphabets, optional padding, other characters ignored, "=" ends it.
    digits = _NOT_BASE64.sub("", text[prefix.end() :].partition("=")[0]).translate(_URL_SAFE)
    if len(digits) % 4 == 1:
        digits = digits[:-1]  # six bits are not a byte
    try:
        content = a2b_base64(digits + "=" * (-len(digits) % 4))
        if len(content) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES:,} bytes")
        check_density(content)
        members = json.loads(content.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ToolEnvelopeError(f"the envelope block is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise ToolEnvelopeError(f"the envelope block does not hold readable JSON: {error}") from None
    if not isinstance(members, dict):
        raise ToolEnvelopeError("an envelope block holds a JSON object, this one does not")
    members = cast("dict[str, Any]", members)
    meta: Any = members.get("meta")
    if not isinstance(meta, dict | None):
        raise ToolEnvelopeError("the envelope's meta is not an object")
    extra: dict[str, Any] = {} if meta is None else {**cast("dict[str, Any]", meta)}
    meta_fields = ("tool", "ts", "version", "deprecations")
    fields: dict[str, Any] = {name: extra.pop(name) for name in meta_fields if name in extra}
    fields["extra"] = extra
    try:
        # Not strict, so that 1.0 and "1" are version 1.
        envelope_meta = msgspec.convert(fields, ToolEnvelopeMeta, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ToolEnvelopeError(f"the envelope's meta is not readable: {error}") from error
    if envelope_meta.version > TOOL_ENVELOPE_VERSION:
        _check_version(str(envelope_meta.version))
    return ToolEnvelope(members.get("payload"), envelope_meta)


def parse_or_text(blocks: Iterable[Any]) -> ToolEnvelope | str:
    """Return the first valid envelope among a result's content blocks, or the text for people. Never raises.

    The text is that of all blocks other than envelope blocks; of all text blocks if there are no others.
    """
    texts = block_texts(blocks)
    return first_envelope(texts) or text_for_people(texts)


def payload_as(envelope: ToolEnvelope, payload_type: type[T]) -> T:
    """Convert the payload to one of the typed payloads, or any other type that msgspec supports.

    Raises:
        ConversionError: the payload is invalid for the type; the message names the field.
    """
    try:
        try:
            return msgspec.convert(envelope.payload, payload_type)
        except UnicodeEncodeError:  # msgspec cannot look up a key with a lone surrogate
            return msgspec.convert(replace_surrogates(envelope.payload), payload_type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConversionError(f"the payload is no {payload_type.__name__}: {error}") from error


def _check_version(version: str) -> None:
    if version != str(TOOL_ENVELOPE_VERSION):
        # Bounded, because the number comes from the peer.
        raise ToolEnvelopeError(f"unsupported envelope version {version[:20]}: only version 1 can be read")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def block_texts(blocks: Iterable[Any]) -> list[str]:
    """Return the texts of the text blocks; other blocks are ignored."""
    mappings = (cast("Mapping[str, Any]", block) for block in blocks if isinstance(block, Mapping))
    texts = (block.get("text") for block in mappings if block.get("type") == "text")
    return [text for text in texts if isinstance(text, str)]


def first_envelope(texts: Iterable[str]) -> ToolEnvelope | None:
    """Return the first text that can be parsed as an envelope."""
    for text in texts:
        try:
            return parse(text)
        except ToolEnvelopeError:
            continue
    return None


def text_for_people(texts: list[str]) -> str:
    """Return the texts of all blocks other than envelope blocks; all texts if there are no others."""
    return "\n\n".join([text for text in texts if not _ANY_PREFIX.match(text)] or texts)


_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "validation": "❌ Validation error",
        "execution": "\N{WARNING SIGN}\N{VARIATION SELECTOR-16}  Execution error",
        "timeout": "\N{STOPWATCH}  Timeout",
        "model": "🤖 Model error",
        "network": "🌐 Network error",
        "authorization": "🔒 Authorization error",
        "rate_limit": "🚦 Rate limit exceeded",
        "not_found": "🔍 Not found",
        "internal": "💥 Internal error",
    }
)
MCP_ERROR_CATEGORIES: tuple[str, ...] = tuple(_LABELS)


class McpErrorPayload(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The error of a tool. `category` is one of `MCP_ERROR_CATEGORIES`, or one of a newer producer."""

    category: str
    code: str
    message: str
    details: str | None = None
    recoverable: bool
    suggested_action: str | None = None
    next_tool: str | None = None


class Model(Struct, frozen=True):
    """The model of a workflow."""

    id: str
    label: str


class Step(Struct, frozen=True):
    """One step of a workflow."""

    kind: str
    label: str
    summary: str


class Recommendation(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A recommendation; `model_class` is free, cheap, strong or reviewer."""

    title: str
    detail: str
    model_class: str
    grounding_scope: str | None = None
    evidence_anchors: list[str] | None = None
    source_refs: list[str] | None = None
    problem: str | None = None
    suggested_action: str | None = None


class MatrixRow(Struct, frozen=True):
    """One row of a comparison matrix."""

    label: str
    values: list[Any]


class ToolChainStep(Struct, frozen=True, omit_defaults=True):
    """One call of a tool chain."""

    tool: str
    description: str | None = None


class Artifact(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The output of a workflow. `kind` decides which fields are set."""

    kind: str
    title: str
    description: str | None = None
    input: Any | UnsetType = UNSET  # worked-example
    expected_output: Any | UnsetType = UNSET  # worked-example
    template: str | None = None  # output-template
    fields: list[str] | None = None  # output-template
    criteria: list[str] | None = None  # eval-criteria
    headers: list[str] | None = None  # comparison-matrix
    rows: list[MatrixRow] | None = None  # comparison-matrix
    steps: list[ToolChainStep] | None = None  # tool-chain


class WorkflowEnvelopePayload(Struct, frozen=True, kw_only=True, rename="camel"):
    """Steps, recommendations and artifacts of a workflow. The lists are always encoded; a missing one is empty."""

    display_name: str
    instruction_id: str
    model: Model
    steps: list[Step] = []
    recommendations: list[Recommendation] = []
    artifacts: list[Artifact] = []


def error_text(payload: McpErrorPayload) -> str:
    """Return an error as text: a line with category, code and message, then a line per optional field."""
    label = _LABELS.get(payload.category) or f"❌ {payload.category.replace('_', ' ').capitalize() or 'Error'}"
    lines = [f"{label} [{payload.code}]: {payload.message}"]
    if payload.details:
        lines.append(f"Details: {payload.details}")
    if payload.suggested_action:
        lines.append(f"Suggestion: {payload.suggested_action}")
    if payload.next_tool:
        lines.append(f"Next: call `{payload.next_tool}` to proceed.")
    if payload.recoverable:
        lines.append("(This error may be recoverable — retry is safe.)")
    return "\n".join(lines)


def error_blocks(payload: McpErrorPayload, *, tool: str = "mcp", ts: str | None = None) -> list[TextBlock]:
    """Return the two blocks of a failed result, for a response with `isError: true`."""
    return encode_blocks(error_text(payload), payload, tool=tool, ts=ts)


# The inverse of the table. Several codes share a category; the first, the most general one, is the default.
_CODE_OF_CATEGORY = {row.category: code for code, row in reversed(list(ERROR_TABLE.items()))}

_SUGGESTIONS = {
    "validation": "Fix the input and retry.",
    "timeout": "Retry with a shorter request or increase the timeout.",
}


# --- errors -----------------------------------------------------------------------------------------------------------


def error_payload(error: CallError) -> McpErrorPayload:
    """Return an error as a payload; details other than text are encoded as JSON.

    Raises:
        NotPlainError: the details cannot be encoded as JSON.
    """
    # The payload that `call_error` stored in the details is kept, if it still matches the error.
    try:
        stored_payload = msgspec.convert(error.details, McpErrorPayload)
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter if a key contains a lone surrogate
        stored_payload = None
    if stored_payload is not None:
        code = _error_code(stored_payload)
        # A `CallError` without a message has the default one, so an empty message matches any.
        same = stored_payload.message in ("", error.message) and code == error.code
        if same and (stored_payload.recoverable == error.retryable or code is ErrorCode.VALIDATION_ERROR):
            return stored_payload
    details = error.details
    fixable = error.code is ErrorCode.VALIDATION_ERROR  # as in the specification's example: with another input
    if details is not None and not isinstance(details, str):
        details = to_json(details).decode()
    return McpErrorPayload(
        category=ERROR_TABLE[error.code].category,
        code=error.foreign_code or error.code.value,
        message=error.message,
        details=details,
        recoverable=error.retryable or fixable,
        suggested_action=_SUGGESTIONS["validation"] if fixable else None,
    )


def call_error(payload: McpErrorPayload) -> CallError:
    """Return a payload as an error. An unknown code becomes the `foreign_code` of the default of its category.

    If a field would be lost, such as a suggestion, the details contain the whole payload.
    """
    code = _error_code(payload)
    # A validation error is recoverable with another input; a retry of the same one fails again.
    retryable = None if code is ErrorCode.VALIDATION_ERROR else payload.recoverable
    foreign = None if payload.code == code.value else payload.code
    error = CallError(code, payload.message, payload.details, retryable=retryable, foreign_code=foreign)
    if error_payload(error) != payload:
        error.details = msgspec.to_builtins(payload)
    return error


def classify(thrown: object, *, code: str | None = None) -> McpErrorPayload:
    """Return the payload for an exception of a local tool: its category, and whether a retry makes sense.

    The message is that of the exception, without a traceback. opwire's surfaces expose only `CallError`s.
    """
    if isinstance(thrown, CallError):
        payload = error_payload(thrown)
        return payload if code is None else msgspec.structs.replace(payload, code=code)
    category, message = "internal", str(thrown)
    if any(cls.__name__ == "ValidationError" for cls in type(thrown).__mro__):
        # By class name, because pydantic, msgspec, jsonschema-rs and others each define one.
        category, message = "validation", f"Validation error: {thrown}"
    elif isinstance(thrown, TimeoutError | CancelledError):
        category = "timeout"
    elif isinstance(thrown, BaseException):
        category = "execution"
    elif isinstance(thrown, bool | int | float | None):
        message = json.dumps(thrown)
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


# --- results ----------------------------------------------------------------------------------------------------------


def to_mcp_envelope(
    content: Iterable[Mapping[str, Any]],
    *,
    is_error: bool = False,
    structured_content: Any | UnsetType = UNSET,
    _meta: Mapping[str, Any] | UnsetType = UNSET,
) -> ResponseEnvelope[Any]:
    """Return the envelope of an MCP result: its data is the structured content, the payload, or the content blocks.

    Raises:
        ConversionError: a content block is not an object.
    """
    blocks = content_blocks(content)
    tool_envelope = first_envelope(block_texts(blocks)) if structured_content is UNSET else None
    data = structured_content if structured_content is not UNSET else tool_envelope.payload if tool_envelope else blocks
    return mcp_envelope(data, is_error=is_error, content=blocks, structured_content=structured_content, _meta=_meta)


def to_blocks(
    envelope: ResponseEnvelope[Any], *, tool: str, markdown: str | None = None, ts: str | None = None
) -> list[MCPContentBlock]:
    """Return an envelope as two blocks; blocks of an MCP result that already contain the data are returned unchanged.

    `markdown` defaults to the text of an MCP result or to the data, `ts` to the timestamp of a local result.

    Raises:
        NotPlainError: the data cannot be encoded as JSON.
    """
    meta = envelope.meta
    if isinstance(meta, MCPResponseMeta) and markdown is None:
        texts = block_texts(meta.content)
        tool_envelope = first_envelope(texts)
        if tool_envelope and to_json(tool_envelope.payload) == to_json(envelope.data):
            return meta.content
        markdown = text_for_people(texts) or None
    if isinstance(meta, LocalResponseMeta) and ts is None:
        with suppress(ValueError, OverflowError, OSError):  # the timestamp of a peer may be out of range
            ts = iso_timestamp(datetime.fromtimestamp(meta.timestamp / 1000, UTC))
    data = envelope.data
    if markdown is None:
        markdown = data if isinstance(data, str) else f"```json\n{to_json(data).decode()}\n```"
    return [*encode_blocks(markdown, data, tool=tool, ts=ts)]


__all__ = [
    "MCP_ERROR_CATEGORIES",
    "TOOL_ENVELOPE_PREFIX",
    "TOOL_ENVELOPE_VERSION",
    "Artifact",
    "MatrixRow",
    "McpErrorPayload",
    "Model",
    "Recommendation",
    "Step",
    "ToolChainStep",
    "ToolEnvelope",
    "ToolEnvelopeMeta",
    "WorkflowEnvelopePayload",
    "call_error",
    "classify",
    "encode",
    "encode_blocks",
    "error_blocks",
    "error_payload",
    "error_text",
    "parse",
    "parse_or_text",
    "payload_as",
    "to_blocks",
    "to_mcp_envelope",
]
