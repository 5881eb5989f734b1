"""Events as bytes and back. No I/O.

What arrives may be anything: whatever is not a readable event is a `CallError(PROTOCOL_ERROR)`, with the request id
in its details where one can be made out, so that the peer can be told. What is sent is checked here too: a message
above the limit fails its own call, and no other.
"""

from typing import Any

import msgspec
from msgspec import Struct

from opwire.call.events import (
    CallAborted,
    CallCompleted,
    CallCredit,
    CallEvent,
    CallFailed,
    CallRequested,
    CallResponded,
    Positive,
)
from opwire.envelope import WireEnvelope, arrived_envelope, warn_of_nulls, wire_form
from opwire.errors import CallError, ConversionError, ErrorCode
from opwire.typed.plain import MAX_DEPTH, json_form, survey
from opwire.typed.text import read_json, write_json

MAX_MESSAGE = 1024 * 1024 - 16 * 1024
"""Bytes: what fits into NATS' default of 1 MiB with room for a broker's own headers."""


class _WireResponded(Struct, kw_only=True, rename="camel", tag_field="type", tag="call.responded"):
    """`call.responded` as it arrives: its envelope is not ready yet."""

    request_id: str
    output: WireEnvelope
    seq: Positive | None = None


class _Id(Struct, rename="camel"):
    request_id: str


_encoder = msgspec.json.Encoder(enc_hook=json_form)
_decoder = msgspec.json.Decoder(CallRequested | _WireResponded | CallCompleted | CallFailed | CallAborted | CallCredit)
_id_decoder = msgspec.json.Decoder(_Id)


def encode_event(event: CallEvent, *, limit: int = MAX_MESSAGE) -> bytes:
    """The event as JSON.

    Raises:
        CallError: PAYLOAD_TOO_LARGE above the limit, VALIDATION_ERROR if something in it has no JSON form.
    """
    if isinstance(event, CallResponded) and (output := wire_form(event.output)) is not event.output:
        event = msgspec.structs.replace(event, output=output)
    try:
        message = write_json(_encoder, event)
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the message has no JSON form: {error}") from error
    if len(message) > limit:
        size = f"the message has {len(message):,} bytes, and the limit is {limit:,}"
        raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size, {"bytes": len(message), "limit": limit})
    if b"null" in message:
        warn_of_nulls(message, *_payloads(event))
    return message


def decode_event(message: bytes | str, *, limit: int = MAX_MESSAGE) -> CallEvent:
    """The event that a message holds.

    Raises:
        CallError: PROTOCOL_ERROR, if it holds none, or is too large or too deeply nested.
    """
    length = len(message) if isinstance(message, bytes) else len(message.encode("utf-8", "surrogatepass"))
    if length > limit:
        size = f"a message of {length:,} bytes is above the limit of {limit:,}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, size)
    try:
        event = read_json(_decoder, message)
        if isinstance(event, _WireResponded):
            output = arrived_envelope(event.output)
            event = CallResponded(request_id=event.request_id, output=output, seq=event.seq)
    except (ValueError, RecursionError, ConversionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"not an event: {error}", _request_id(message)) from error
    if _may_be_deep(message) and any(survey(payload).deep for payload in _payloads(event)):
        reason = f"the message is nested deeper than {MAX_DEPTH}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, reason, {"requestId": event.request_id})
    return event


def _request_id(message: bytes | str) -> dict[str, Any] | None:
    try:
        return {"requestId": read_json(_id_decoder, message).request_id}
    except (ValueError, RecursionError):
        return None


def _may_be_deep(message: bytes | str) -> bool:
    """Nesting needs brackets, in pairs: counting them is 20 times faster than looking at the values."""
    if len(message) <= 2 * MAX_DEPTH:
        return False
    if isinstance(message, str):
        message = message.encode("utf-8", "surrogatepass")
    return message.count(b"[") + message.count(b"{") > MAX_DEPTH


def _payloads(event: CallEvent) -> tuple[Any, ...]:
    """The parts of an event that hold whatever the peer likes."""
    match event:
        case CallRequested():
            return (event.input,)
        case CallResponded():
            return event.output.data, *msgspec.structs.astuple(event.output.meta)
        case CallFailed():
            return (event.details,)
        case _:
            return ()
