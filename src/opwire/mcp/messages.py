"""JSON-RPC messages of MCP: decode, repair, bound and encode them. No I/O.

Params and results stay plain dicts: a gateway passes on what it does not know. Only the frame of a message is typed, so
that one pass of msgspec both parses and checks it (3 µs for a call).

The size in bytes bounds the cost of a message only if it has few objects and lists: 16 MB of `[],` took 15 s and 1.2 GB
to parse. So these are counted before anything is decoded (`check_density`).
"""

import json
from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from opwire.errors import CallError, ErrorCode
from opwire.runtime.text import get_logger
from opwire.typed.plain import (
    LARGE_JSON,
    MAX_DEPTH,
    as_dict,
    check_density,
    collection_paused,
    has_duplicate_keys,
    parse_float,
    read_json,
    without_lone_surrogates,
)

logger = get_logger("opwire.mcp")


class RPCCode:
    """The codes of JSON-RPC errors."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    CONNECTION_CLOSED = -32000
    REQUEST_TIMEOUT = -32001
    RESOURCE_NOT_FOUND = -32002  # in the handshake era; later revisions have invalid params instead
    HEADER_MISMATCH = -32020
    MISSING_CAPABILITY = -32021
    UNSUPPORTED_PROTOCOL_VERSION = -32022
    REQUEST_CANCELLED = -32800


HTTP_STATUS = {
    RPCCode.METHOD_NOT_FOUND: 404,
    RPCCode.PARSE_ERROR: 400,
    RPCCode.INVALID_REQUEST: 400,
    RPCCode.INVALID_PARAMS: 400,
    RPCCode.HEADER_MISMATCH: 400,
    RPCCode.MISSING_CAPABILITY: 400,
    RPCCode.UNSUPPORTED_PROTOCOL_VERSION: 400,
}
"""The status of responses with these errors in the stateless era; others have 200."""

MAX_ID = 200
"""Characters of a request id: longer ones are not the client's, and every log line would repeat them."""

MAX_BATCH = 100
"""Messages of one batch."""

MAX_REPAIRED_BYTES = 4 * 1024 * 1024
"""The size of a message that is repaired: numbers that JSON lacks take ten times as long to decode."""

SMALL = 16 * 1024
"""Bytes of a `SmallResponse`."""

RequestId = int | str


class RPCError(Exception):
    """A JSON-RPC error: received in a response, or raised by a handler to be sent as one.

    `request_id` is that of the `Context` of the call which the error answers.
    """

    request_id: str | None = None

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @classmethod
    def internal(cls) -> "RPCError":
        """Return the error for an unexpected exception, which is in the log."""
        return cls(RPCCode.INTERNAL_ERROR, "Internal server error")

    def __str__(self) -> str:
        return self.message


class ErrorObject(Struct, frozen=True, omit_defaults=True):
    """The error of a response. Data that is null and missing data are the same."""

    code: int
    message: str
    data: Any = None

    @classmethod
    def of(cls, error: RPCError) -> "ErrorObject":
        """Return the error that was raised, as it is sent."""
        return cls(error.code, error.message, error.data)

    def exception(self) -> RPCError:
        """Return the error that was received, to be raised."""
        return RPCError(self.code, self.message, self.data)


class RPCRequest(Struct, frozen=True, omit_defaults=True, tag_field="jsonrpc", tag="2.0"):
    """A request: its peer has to respond."""

    id: RequestId
    method: str
    params: dict[str, Any] | None = None


class RPCNotification(Struct, frozen=True, omit_defaults=True, tag_field="jsonrpc", tag="2.0"):
    """A message without a response."""

    method: str
    params: dict[str, Any] | None = None


class RPCResponse(Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """The result of a request."""

    id: RequestId
    result: dict[str, Any]


class SmallResponse(RPCResponse, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """A decoded response of at most `SMALL` bytes, with too few brackets to be nested deeper than `MAX_DEPTH`.

    So its result needs no survey, and no thread of its own to be validated.
    """


class RPCFailure(Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """The error of a request; without an id if the request could not be parsed."""

    id: RequestId | None
    error: ErrorObject

    @classmethod
    def of(cls, id: RequestId | None, error: RPCError) -> "RPCFailure":
        """Return the response to a request that failed."""
        return cls(id, ErrorObject.of(error))


class InvalidReply(Struct, frozen=True):
    """A response that cannot be used, but names its request, which fails with this code and reason."""

    id: RequestId
    code: ErrorCode
    reason: str


RPCMessage = RPCRequest | RPCNotification | RPCResponse | RPCFailure
ReceivedMessage = RPCMessage | InvalidReply


class InvalidMessageError(ValueError):
    """Not a JSON-RPC message. `id` is that of the request or response, if there is one.

    `excess` is what a message has too many of: "more than 65,536 objects and lists".
    """

    def __init__(
        self,
        problem: str = "not a JSON-RPC message, or nested too deeply",
        *,
        is_json: bool,
        id: RequestId | None = None,
        is_reply: bool = False,
        excess: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.is_json = is_json
        self.id = id
        self.is_reply = is_reply
        self.excess = excess


class _Frame(Struct, omit_defaults=True):
    jsonrpc: Literal["2.0"]
    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: dict[str, Any] | None = None
    result: dict[str, Any] | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class _Head(Struct):
    """The id and method of a message, decoded without the rest of it."""

    id: int | str | None = None
    method: str | None = None


_frame_decoder = msgspec.json.Decoder(_Frame, float_hook=parse_float)
_head_decoder = msgspec.json.Decoder(_Head)
_any_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=parse_float)

encode_message: Callable[[RPCMessage], bytes] = msgspec.json.Encoder().encode
"""Encode a message as one line, without its end. NaN and infinities become null.

Raises:
    TypeError, ValueError, RecursionError: it has no JSON form.
"""


def encode_reply(reply: RPCMessage) -> bytes:
    """Encode a response; one that has no JSON form becomes an error."""
    try:
        return encode_message(reply)
    except (TypeError, ValueError, RecursionError):
        logger.exception("a response of the MCP server has no JSON form")
        return encode_message(RPCFailure.of(cast("RPCResponse", reply).id, RPCError.internal()))


def decode_message(raw: bytes, *, is_checked: bool = False) -> RPCMessage:
    """Decode a message; repair a byte order mark, invalid UTF-8, lone surrogates and ids that became floats.

    A response may have numbers that JSON lacks (NaN). A request may not, and its keys are unique: a proxy that inspects
    it, and this side, could read different values. `is_checked`: the reader has checked its density already.

    Raises:
        InvalidMessageError: it is not a message, or takes long to decode (see `check_density`).
    """
    if len(raw) <= LARGE_JSON:
        return _decode_message(raw)
    try:
        if not is_checked:
            check_density(raw)
    except ValueError as error:
        id = _head_of(raw).id
        raise InvalidMessageError(is_json=True, id=id if _is_usable_id(id) else None, excess=str(error)) from None
    with collection_paused():
        return _decode_message(raw)


def _decode_message(raw: bytes) -> RPCMessage:
    try:
        frame = _frame_decoder.decode(raw)
        message = _message_of(frame, raw)
    except InvalidMessageError:
        raise
    except (ValueError, RecursionError):
        return _repaired(raw)
    if message is None:
        raise _invalid(msgspec.to_builtins(frame))
    return message


def _message_of(frame: _Frame, raw: bytes) -> RPCMessage | None:
    id, method, result, error = frame.id, frame.method, frame.result, frame.error
    if not _is_usable_id(id):
        return None
    if method is not UNSET:
        # The frame lacks unknown fields.
        if has_duplicate_keys(raw, frame) and has_duplicate_keys(raw, read_json(_any_decoder, raw)):
            raise InvalidMessageError("a message with duplicate keys", is_json=True, id=id or None)
        if id is UNSET:
            return RPCNotification(method, frame.params)
        return None if id is None else RPCRequest(id, method, frame.params)
    if result is not UNSET:
        if error is not UNSET or id is UNSET or id is None:
            return None
        is_small = len(raw) <= SMALL and raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH
        return SmallResponse(id, result) if is_small else RPCResponse(id, result)
    return None if error is UNSET else RPCFailure(None if id is UNSET else id, error)


def _is_usable_id(id: object) -> bool:
    """Return whether an id is missing or a plausible one, not a number of thousands of digits."""
    if isinstance(id, int):
        return -(2**63) < id < 2**63
    return not isinstance(id, str) or len(id) <= MAX_ID


def _repaired(raw: bytes) -> RPCMessage:
    try:
        if len(raw) > MAX_REPAIRED_BYTES:
            raise ValueError(f"more than {MAX_REPAIRED_BYTES:,} bytes that are not valid JSON")
        raw = raw.decode("utf-8-sig", errors="replace").encode()
        decoded = _decode_any(raw)
    except (ValueError, RecursionError):
        raise InvalidMessageError(is_json=False) from None
    if not isinstance(decoded, dict):
        raise InvalidMessageError(is_json=True)
    fields = cast("dict[str, Any]", decoded)
    id = fields.get("id")
    if isinstance(id, float) and id.is_integer():  # some languages only have floats
        fields["id"] = int(id)
    if isinstance(fields.get("error"), dict):  # with a valid code and message: a model reads the text
        error = cast("dict[str, Any]", fields["error"])
        code, message = error.get("code"), error.get("message")
        is_code = isinstance(code, int | float) and not isinstance(code, bool) and abs(code) < 2**31
        text = message if isinstance(message, str) else "" if message is None else json.dumps(message)
        error_text = f"{text} (code {str(code)[:50]})".strip() if not is_code and code is not None else text
        number = int(cast("float", code)) if is_code else RPCCode.INTERNAL_ERROR
        fields["error"] = {**error, "code": number, "message": error_text}
    try:
        message = _message_of(msgspec.convert(fields, _Frame), raw)
    except msgspec.ValidationError:
        message = None
    if message is None:
        raise _invalid(fields)
    return message


def _decode_any(raw: bytes) -> Any:
    """Decode JSON; not a request, it may have numbers that JSON lacks. Raises ValueError, RecursionError."""
    try:
        return read_json(_any_decoder, raw)
    except ValueError:
        message = json.loads(without_lone_surrogates(raw))
    if "method" in as_dict(message):
        raise ValueError("a request with numbers that JSON lacks")
    return message


def _invalid(fields: dict[str, Any]) -> InvalidMessageError:
    id = fields.get("id")
    usable = type(id) in (int, str) and _is_usable_id(id)
    is_reply = "method" not in fields and not fields.keys().isdisjoint(("jsonrpc", "result", "error"))
    return InvalidMessageError(is_json=True, id=id if usable else None, is_reply=is_reply)


# --- limits -----------------------------------------------------------------------------------------------------------

# The first messages of a batch: of an array with more members, msgspec only skips the others.
_BatchStart = msgspec.defstruct(
    "_BatchStart",
    [(f"message_{number}", msgspec.Raw, msgspec.Raw()) for number in range(MAX_BATCH + 1)],
    array_like=True,
)
_batch_decoder = msgspec.json.Decoder(_BatchStart)


def split_batch(raw: bytes) -> list[bytes]:
    """Return the messages of a batch, which revision 2025-03-26 has; anything else is one message.

    A batch of batches, or of more than `MAX_BATCH` messages, is one invalid message.
    """
    if raw.lstrip()[:1] != b"[":
        return [raw]
    try:
        parts = msgspec.structs.astuple(_batch_decoder.decode(raw))
    except (ValueError, RecursionError):
        return [raw]
    messages = [bytes(part).lstrip() for part in parts if bytes(part)]
    valid = 0 < len(messages) <= MAX_BATCH and not any(message.startswith(b"[") for message in messages)
    return messages if valid else [raw]


def read_messages(raw: bytes) -> list[ReceivedMessage]:
    """Decode a message of a server, or a batch; see `read_message`.

    Raises:
        CallError: PROTOCOL_ERROR, an invalid response to an unknown request.
    """
    messages = map(read_message, split_batch(raw))
    return [message for message in messages if message is not None]


def read_message(raw: bytes) -> ReceivedMessage | None:
    """Decode a message of a server; return None if this is not a message.

    An invalid response becomes an error for its caller: ignored, the caller would wait forever.

    Raises:
        CallError: PROTOCOL_ERROR, an invalid response to an unknown request.
    """
    if b"{" not in raw:  # 5 MB of short lines took longer than 40 s
        return None
    try:
        return decode_message(raw)
    except InvalidMessageError as error:
        if error.excess is not None:
            return _large_message(raw, error.excess)
        if not error.is_json and b'"jsonrpc"' in raw[:200]:
            problem = "a message that is not JSON, or nested too deeply, was received"
            raise CallError(ErrorCode.PROTOCOL_ERROR, problem) from error
        if error.id is None or not error.is_reply:
            return None
        reason = "what is not a JSON-RPC response of MCP, or is nested too deeply"
        return InvalidReply(error.id, ErrorCode.PROTOCOL_ERROR, reason)


def _head_of(raw: bytes) -> _Head:
    try:
        return _head_decoder.decode(raw)
    except (ValueError, RecursionError):
        return _Head()


def _large_message(raw: bytes, excess: str) -> ReceivedMessage | None:
    """Return what replaces a message that is not decoded: a failed response, or a request that will be rejected."""
    head = _head_of(raw)
    if head.id is None and head.method is None:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"a message of {excess} was received")
    if head.id is None:
        logger.warning("a notification of %s is ignored", excess)
        return None
    if not _is_usable_id(head.id):
        return None
    if head.method is None:
        return InvalidReply(head.id, ErrorCode.PAYLOAD_TOO_LARGE, excess)
    return RPCRequest(head.id, f"{head.method[:100]} with {excess}")
