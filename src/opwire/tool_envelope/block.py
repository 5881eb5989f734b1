"""ToolEnvelope V1: the result of a tool as two text blocks, one for people, one for programs.

    block 0    markdown
    block 1    __ENVELOPE_V1__:<base64 of {"payload": ..., "meta": {"tool": ..., "ts": ..., "version": 1}}>

Rules: no I/O; the clock is read only where `ts` is not given. What is written is what the format's public
implementation writes. What is read may be sloppy base64, but must be UTF-8, one JSON object and version 1.
A payload is plain data and keeps every field and digit; the types in `payloads` are views of it.
"""

import json
import logging
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct

from opwire.content import TextBlock
from opwire.errors import ConversionError, NotPlainError, ToolEnvelopeError
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
