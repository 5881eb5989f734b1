"""ToolEnvelope V1: `encode_blocks` writes a tool's result, `parse_or_text` reads one, the rest maps to opwire.

ToolEnvelope V1: the result of a tool as two text blocks, one for people, one for programs.

    block 0    markdown
    block 1    __ENVELOPE_V1__:<base64 of {"payload": ..., "meta": {"tool": ..., "ts": ..., "version": 1}}>

Rules: no I/O; the clock is read only where `ts` is not given. What is written is what the format's public
implementation writes. What is read may be sloppy base64, but must be UTF-8, one JSON object and version 1.
A payload is plain data and keeps every field and digit; the types in `payloads` are views of it.

The payloads that ToolEnvelope V1 documents, as types, and an error's text for people.

These are views: fields that are not known here are passed over, and kinds, classes and categories are plain strings,
so that a newer producer can still be read. On the wire the names are camelCase; an optional field that is None is
left out.

ToolEnvelope V1 and the rest of opwire: errors as error payloads, results as envelopes, both ways.

Rule: a payload or a result that becomes an error or an envelope comes back as it was: what has no field there is kept
whole. The other way the format is narrower: an error's details become text, and `retry_after` has no place in it.
"""

import json
import logging
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

from opwire.envelope import (
    LocalResponseMeta,
    MCPContentBlock,
    MCPResponseMeta,
    ResponseEnvelope,
    TextBlock,
    content_blocks,
    mcp_envelope,
)
from opwire.errors import ERROR_TABLE, CallError, ConversionError, ErrorCode, NotPlainError, ToolEnvelopeError
from opwire.typed.plain import replace_surrogates, to_plain

T = TypeVar("T")

TOOL_ENVELOPE_VERSION = 1
TOOL_ENVELOPE_PREFIX = f"__ENVELOPE_V{TOOL_ENVELOPE_VERSION}__:"

_logger = logging.getLogger(__name__)
_ANY_PREFIX = re.compile(r"__ENVELOPE_V([0-9]+)__:")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/_-]+")
_URL_SAFE = str.maketrans("-_", "+/")


class ToolEnvelopeMeta(Struct, frozen=True):
    """Who made the envelope, and when (ISO 8601). `extra` keeps the fields that this version does not know."""

    tool: str = ""
    ts: str = ""
    version: int = TOOL_ENVELOPE_VERSION
    deprecations: list[Any] = []
    extra: dict[str, Any] = {}


class ToolEnvelope(Struct, frozen=True):
    """What the machine-readable block holds. A payload of UNSET is left out, as TypeScript leaves out undefined."""

    payload: Any
    meta: ToolEnvelopeMeta

    def encode(self) -> str:
        """The text of the block.

        Raises:
            NotPlainError: the payload has no JSON form.
        """
        meta: dict[str, Any] = {"tool": self.meta.tool, "ts": self.meta.ts, "version": self.meta.version}
        if self.meta.deprecations:
            meta["deprecations"] = self.meta.deprecations
        members = {} if self.payload is UNSET else {"payload": self.payload}
        document = to_json({**members, "meta": meta | self.meta.extra})
        return TOOL_ENVELOPE_PREFIX + b2a_base64(document, newline=False).decode("ascii")


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(payload: Any, *, tool: str, ts: str | None = None, deprecations: Iterable[Any] = ()) -> str:
    """The text of an envelope block; `ts` is now unless given.

    Raises:
        NotPlainError: the payload has no JSON form.
    """
    ts = iso_timestamp(datetime.now(UTC)) if ts is None else ts
    return ToolEnvelope(payload, ToolEnvelopeMeta(tool, ts, deprecations=list(deprecations))).encode()


def encode_blocks(
    markdown: str, payload: Any, *, tool: str, ts: str | None = None, deprecations: Iterable[Any] = ()
) -> list[TextBlock]:
    """The two blocks of a result.

    encode_blocks("## Sum\\n3", {"sum": 3}, tool="add")

    Raises:
        NotPlainError: the payload has no JSON form.
    """
    envelope = encode(payload, tool=tool, ts=ts, deprecations=deprecations)
    return [{"type": "text", "text": markdown}, {"type": "text", "text": envelope}]


def to_json(value: Any) -> bytes:
    """Compact JSON; the standard library's, because msgspec neither writes nor reads lone surrogates.

    Raises:
        NotPlainError: the value has no JSON form.
    """
    try:
        try:
            text = _dump(value, allow_nan=False)
        except ValueError:  # a NaN or an infinity; anything else that is wrong is wrong again
            finite = json.loads(_dump(value, allow_nan=True), parse_constant=_null)
            text = _dump(finite, allow_nan=False)
            _logger.warning("a ToolEnvelope payload holds NaN or an infinity; null is written in its place")
    except (TypeError, ValueError, RecursionError) as error:
        raise NotPlainError(f"a ToolEnvelope cannot hold this: {error}") from error
    # Only a lone surrogate cannot be UTF-8, and Python's escape for one is also JSON's.
    return text.encode("utf-8", "backslashreplace")


def _dump(value: Any, *, allow_nan: bool) -> str:
    separators = (",", ":")
    return json.dumps(value, ensure_ascii=False, allow_nan=allow_nan, separators=separators, default=to_plain)


def _null(_constant: str) -> None:
    return None


def iso_timestamp(moment: datetime) -> str:
    """A UTC time as JavaScript writes it: with milliseconds and Z."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- reading ----------------------------------------------------------------------------------------------------------


def parse(text: str) -> ToolEnvelope:
    """The envelope that a block's text holds. A missing payload is None, a missing meta is empty.

    Raises:
        ToolEnvelopeError: the text is no envelope block, of another version, or not readable; the message says which.
    """
    prefix = _ANY_PREFIX.match(text)
    if prefix is None:
        raise ToolEnvelopeError("not an envelope block: the text does not begin with __ENVELOPE_V1__:")
    _check_version(prefix[1].lstrip("0") or "0")
    members = _from_json(_from_base64(text[prefix.end() :]))
    if not isinstance(members, dict):
        raise ToolEnvelopeError("an envelope block holds a JSON object, this one does not")
    members = cast("dict[str, Any]", members)
    return ToolEnvelope(members.get("payload"), _read_meta(members.get("meta")))


def parse_or_text(blocks: Iterable[Any]) -> ToolEnvelope | str:
    """The first readable envelope among a result's content blocks, else the text for people. Never raises.

    The text is that of the blocks that are no envelope blocks; of all text blocks where nothing else is there.
    """
    texts = block_texts(blocks)
    return first_envelope(texts) or text_for_people(texts)


def payload_as(envelope: ToolEnvelope, payload_type: type[T]) -> T:
    """The payload as one of the typed payloads, or any other type that msgspec can make.

    Raises:
        ConversionError: the payload does not fit; the message names the field.
    """
    try:
        try:
            return msgspec.convert(envelope.payload, payload_type)
        except UnicodeEncodeError:  # msgspec cannot look up a key that holds a lone surrogate
            return msgspec.convert(replace_surrogates(envelope.payload), payload_type)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConversionError(f"the payload is no {payload_type.__name__}: {error}") from error


def _check_version(version: str) -> None:
    if version != str(TOOL_ENVELOPE_VERSION):
        # The number is capped, because it comes from the peer.
        raise ToolEnvelopeError(f"unsupported envelope version {version[:20]}: only version 1 can be read")


def _from_base64(encoded: str) -> bytes:
    """What Node's decoder gives: both alphabets, padding or none, other characters skipped, "=" ends it."""
    digits = _NOT_BASE64.sub("", encoded.partition("=")[0]).translate(_URL_SAFE)
    if len(digits) % 4 == 1:
        digits = digits[:-1]  # six bits make no byte
    return a2b_base64(digits + "=" * (-len(digits) % 4))


def _from_json(document: bytes) -> Any:
    try:
        return json.loads(document.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ToolEnvelopeError(f"the envelope block is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise ToolEnvelopeError(f"the envelope block does not hold readable JSON: {error}") from None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _read_meta(meta: Any) -> ToolEnvelopeMeta:
    if not isinstance(meta, dict | None):
        raise ToolEnvelopeError("the envelope's meta is not an object")
    extra: dict[str, Any] = {} if meta is None else {**cast("dict[str, Any]", meta)}
    known = ("tool", "ts", "version", "deprecations")
    fields: dict[str, Any] = {name: extra.pop(name) for name in known if name in extra}
    fields["extra"] = extra
    try:
        # Not strict, so that 1.0 and "1" are the version 1.
        read = msgspec.convert(fields, ToolEnvelopeMeta, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ToolEnvelopeError(f"the envelope's meta is not readable: {error}") from error
    if read.version > TOOL_ENVELOPE_VERSION:
        _check_version(str(read.version))
    return read


def block_texts(blocks: Iterable[Any]) -> list[str]:
    """The texts of the text blocks; whatever else is among the blocks is passed over."""
    mappings = (cast("Mapping[str, Any]", block) for block in blocks if isinstance(block, Mapping))
    texts = (block.get("text") for block in mappings if block.get("type") == "text")
    return [text for text in texts if isinstance(text, str)]


def first_envelope(texts: Iterable[str]) -> ToolEnvelope | None:
    """The first of the texts that can be read as an envelope."""
    for text in texts:
        try:
            return parse(text)
        except ToolEnvelopeError:
            continue
    return None


def text_for_people(texts: list[str]) -> str:
    """The texts that are no envelope blocks, or all of them where nothing else is there."""
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
    """Why a tool failed. `category` is one of `MCP_ERROR_CATEGORIES`, or one that a newer producer knows."""

    category: str
    code: str
    message: str
    details: str | None = None
    recoverable: bool
    suggested_action: str | None = None
    next_tool: str | None = None


class Model(Struct, frozen=True):
    """The model that a workflow ran on."""

    id: str
    label: str


class Step(Struct, frozen=True):
    """One step of a workflow."""

    kind: str
    label: str
    summary: str


class Recommendation(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An advice; `model_class` is free, cheap, strong or reviewer."""

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
    """Something that a workflow made. Which fields are set depends on `kind`."""

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
    """What a workflow did and advises. The three lists are always written; one that is missing reads as empty."""

    display_name: str
    instruction_id: str
    model: Model
    steps: list[Step] = []
    recommendations: list[Recommendation] = []
    artifacts: list[Artifact] = []


def error_text(payload: McpErrorPayload) -> str:
    """The error for people: a line with category, code and message, then a line for each thing that is known."""
    lines = [f"{_label(payload.category)} [{payload.code}]: {payload.message}"]
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
    """The two blocks of a failed result, to be sent with `isError: true`."""
    return encode_blocks(error_text(payload), payload, tool=tool, ts=ts)


def _label(category: str) -> str:
    return _LABELS.get(category) or f"❌ {category.replace('_', ' ').capitalize() or 'Error'}"


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
