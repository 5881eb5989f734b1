"""The events of the call protocol: flat JSON objects, told apart by `type`. No I/O.

    caller                                        server
      call.requested {requestId, operationId, input, …}  ->
                      <- call.responded {requestId, output, seq?}   the answer, or one item of a subscription
                      <- call.completed {requestId}                 the end of a subscription
                      <- call.error {requestId, code, message, …}   the call failed
      call.credit {requestId, n, total?, received?}      ->         n more items may come, `total` since the start
      call.aborted {requestId, reason?}                 <->         caller: stop; server: it was stopped

Every call ends with exactly one of: the `call.responded` of a query or mutation, `call.completed`, `call.error`,
`call.aborted`.

Events as bytes and back. No I/O.

What arrives may be anything: whatever is not a readable event is a `CallError(PROTOCOL_ERROR)`, with the request id
in its details where one can be made out, so that the peer can be told. What is sent is checked here too: a message
above the limit fails its own call, and no other.

The events of a session: what two ends of a transport tell each other beside the calls themselves. No I/O.

Over a connection (WebSocket):

    client                                               server
      session.hello {version, maxMessage, token?}     ->
                     <- session.welcome {version, peer, maxMessage, heartbeatMs}
      session.announce {id, operations, partial?}     ->        <- session.done {id, refused?}
                     <- session.pending {ids}                   these questions are still being decided
      session.withdraw {id, operations}               ->        <- session.done {id}
      session.who {id}                                ->        <- session.here {id, peers}
                     <- session.refused {id?, code, message}    instead of welcome (then without id) or done
                     <- session.left {peer, reason}             a peer behind the server is gone
      session.goaway {reason}                        <->        send no new requests here

Over a broker, where nobody sees that a peer is gone, calls are held by leases. A token is made for each request and
known to its caller and its server alone: whoever shows it is who the request went to.

    caller                                               server
                     <- session.serving {tokens}                at every beat: these calls are in hand
      session.waiting {gone}                          ->        all are still wanted, except these
      session.left {tokens}                          <->        this end is gone, and with it these calls
      session.who {id}                                ->        (to all)
                     <- session.here {id, peers}
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from opwire.deadlines import MAX_SECONDS, bounded_seconds
from opwire.envelope import (
    RESPONSE_ENVELOPE_SCHEMA,
    ResponseEnvelope,
    WireEnvelope,
    arrived_envelope,
    warn_of_nulls,
    wire_form,
)
from opwire.errors import CallError, ConversionError, ErrorCode, NotPlainError
from opwire.operation import Identity, Trace, trace_of
from opwire.typed import json_schema_of
from opwire.typed.plain import MAX_DEPTH, json_form, read_json, survey, to_plain, write_json

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Milliseconds = int | float  # what JavaScript writes without a fraction stays so

_FAR = 2**53  # milliseconds: some 285,000 years, and JavaScript's largest safe integer
_MAX_SKEW = 5.0  # seconds by which the clocks of two machines may differ before calls between them suffer
_MAX_DELAY = 60.0  # seconds: no transport keeps a request for longer, so a greater difference is a wrong clock


def _bounded(milliseconds: Milliseconds) -> Milliseconds:
    """Return a peer's number of milliseconds, within what arithmetic on times can take."""
    return milliseconds if -_FAR < milliseconds < _FAR else _FAR if milliseconds > 0 else -_FAR


def _null() -> None:
    """Stands for an input that is absent. As a factory it is no default that is left out: peers expect the field."""


class CallRequested(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", tag="call.requested"
):
    """Call an operation. `deadline` is in epoch milliseconds; `timeout_ms`, the time that is left, is preferred.

    `credential` proves the identity where nobody but the caller can state it. Requests with the same `sticky_key` go to
    the same server, as long as the servers are the same and the transport can do that. `traceparent` and `tracestate`
    are those of W3C's Trace Context.
    """

    request_id: str
    operation_id: str
    input: Any = field(default_factory=_null)
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: Milliseconds | None = None
    timeout_ms: Milliseconds | None = None
    credits: Natural | None = None
    credential: str | None = None
    sticky_key: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def trace(self) -> Trace:
        """The trace that the call is part of; empty if it is part of none, or of one that cannot be read."""
        if self.traceparent is None:
            return {}
        return trace_of({"traceparent": self.traceparent, "tracestate": self.tracestate})

    def seconds_left(self, default: float | None, held_up: float = 0.0) -> float | None:
        """Return how long the call may still take; zero or less: its deadline has passed.

        `timeout_ms` counts from when the request was sent, and clocks differ between machines, so the time that it
        spent on its way is estimated. Up to `held_up` seconds, during which the receiver read nothing, are believed as
        the clocks say; beyond that only what no tolerated skew explains.
        """
        if self.timeout_ms is None:
            return default if self.deadline is None else _bounded(self.deadline) / 1000 - time.time()
        left = _bounded(self.timeout_ms) / 1000
        if self.deadline is None:
            return left - held_up
        late = time.time() - _bounded(self.deadline) / 1000 + left
        if late <= 0 or late >= _MAX_DELAY or (held_up == 0 and late <= _MAX_SKEW):  # nearly always
            return left
        return left - max(min(late, held_up), late - _MAX_SKEW)


class CallResponded(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", tag="call.responded"
):
    """The answer of a call, or item number `seq` (from 1) of a subscription."""

    request_id: str
    output: ResponseEnvelope[Any]
    seq: Positive | None = None


class CallCompleted(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", tag="call.completed"
):
    """A subscription has no more items; `seq` is the number of the last one, so that a lost one is noticed."""

    request_id: str
    seq: Natural | None = None


class CallFailed(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", tag="call.error"
):
    """The call failed. `code` is a string, because a newer peer may know codes that we do not.

    `not_started`: no handler has seen the request, so that another server can be asked without running anything twice.
    """

    request_id: str
    code: str
    message: str
    details: Any = None
    retryable: bool | None = None
    retry_after_ms: Milliseconds | None = None
    not_started: bool | None = None

    @classmethod
    def of(cls, request_id: str, error: CallError) -> "CallFailed":
        """The event that tells a peer of an error. Details that have no JSON form are left out."""
        try:
            details = to_plain(error.details)
        except NotPlainError:
            details = None
        after = None if error.retry_after is None else error.retry_after * 1000
        return cls(
            request_id=request_id,
            code=error.code.value,
            message=error.message,
            details=details,
            retryable=error.retryable,
            retry_after_ms=after,
        )

    def error(self) -> CallError:
        """The error that the caller raises."""
        known, after = self.code in ErrorCode.__members__, self.retry_after_ms
        return CallError(
            ErrorCode(self.code) if known else ErrorCode.EXECUTION_ERROR,
            self.message if known else f"{self.code}: {self.message}",
            self.details,
            retryable=self.retryable,
            retry_after=None if after is None else bounded_seconds(after, MAX_SECONDS * 1000) / 1000,
        )


class CallAborted(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", tag="call.aborted"
):
    """From the caller: stop. From the server: it was stopped."""

    request_id: str
    reason: str | None = None


class CallCredit(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type", tag="call.credit"
):
    """The consumer of a subscription takes `n` more items.

    `total` is the sum of all grants, the first one included; a producer that knows it ignores `n`. `received` is the
    number of the last item that arrived. With `n` 0 it is a repetition, by a consumer that waits.
    """

    request_id: str
    n: Natural
    total: Natural | None = None
    received: Natural | None = None


CallEvent = CallRequested | CallResponded | CallCompleted | CallFailed | CallAborted | CallCredit


def _schema(type: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"const": type}, "requestId": {"type": "string"}, **required, **(optional or {})},
        "required": ["type", "requestId", *required],
    }


_STRING = {"type": "string"}
_NUMBER = {"type": "number"}
_BOOLEAN = {"type": "boolean"}
_NATURAL = {"type": "integer", "minimum": 0}

CALL_EVENT_SCHEMAS: dict[str, dict[str, Any]] = {
    "call.requested": _schema(
        "call.requested",
        {"operationId": _STRING},
        {
            "input": {"description": "Any JSON value; absent means null"},
            "parentRequestId": _STRING,
            "identity": json_schema_of(Identity),
            "deadline": {**_NUMBER, "description": "Unix epoch milliseconds"},
            "timeoutMs": {**_NUMBER, "description": "What is left of the deadline; preferred to it"},
            "credits": _NATURAL,
            "credential": _STRING,
            "stickyKey": _STRING,
            "traceparent": {**_STRING, "description": "W3C Trace Context"},
            "tracestate": {**_STRING, "description": "W3C Trace Context"},
        },
    ),
    "call.responded": _schema(
        "call.responded", {"output": RESPONSE_ENVELOPE_SCHEMA}, {"seq": {"type": "integer", "minimum": 1}}
    ),
    "call.completed": _schema("call.completed", {}, {"seq": _NATURAL}),
    "call.error": _schema(
        "call.error",
        {"code": _STRING, "message": _STRING},
        {"details": {}, "retryable": _BOOLEAN, "retryAfterMs": _NUMBER, "notStarted": _BOOLEAN},
    ),
    "call.aborted": _schema("call.aborted", {}, {"reason": _STRING}),
    "call.credit": _schema("call.credit", {"n": _NATURAL}, {"total": _NATURAL, "received": _NATURAL}),
}
CALL_EVENT_SCHEMA: dict[str, Any] = {"oneOf": list(CALL_EVENT_SCHEMAS.values())}


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


VERSION = 1
"""The version of the session protocol. A peer with another one is refused."""

_SHOWN = 200  # characters of the reason why an operation is refused
_NAMED = 5  # operations that an error names

_MARK = b'{"type":"session.'  # how every session event begins that is written here


class SessionMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type"):
    """What the events of a session have in common."""


class Hello(SessionMessage, frozen=True, tag="session.hello"):
    """The first event of a connection: who speaks, and what it can take. `token` says what it is allowed to do."""

    version: Natural
    max_message: Positive = MAX_MESSAGE
    token: str | None = None


class Welcome(SessionMessage, frozen=True, tag="session.welcome"):
    """The answer: `peer` is the name that others know this end by, `heartbeat_ms` how often it has to be heard of."""

    version: Natural
    peer: str
    max_message: Positive
    heartbeat_ms: Positive


class Announce(SessionMessage, frozen=True, tag="session.announce"):
    """This end serves these operations, too: at least one.

    All of them or none, unless it is `partial`: `session.done` then names those that were refused.
    """

    id: Natural
    operations: list[str]
    partial: bool = False


class Withdraw(SessionMessage, frozen=True, tag="session.withdraw"):
    """This end serves these operations no longer."""

    id: Natural
    operations: list[str]


class RefusedOperation(Struct, frozen=True):
    """An operation that is not taken, and why."""

    operation: str
    code: str
    message: str

    @classmethod
    def of(cls, operation_id: str, error: CallError) -> "RefusedOperation":
        """Return the refusal of an operation; its message is shortened."""
        return cls(operation_id, error.code.value, error.message[:_SHOWN])


class Done(SessionMessage, frozen=True, tag="session.done"):
    """What was asked for with this id has happened, except for what was refused of a partial announcement."""

    id: Natural
    refused: list[RefusedOperation] = []


class Pending(SessionMessage, frozen=True, tag="session.pending"):
    """The questions with these ids are still being decided; sent about once a second until they are."""

    ids: list[Natural]


class Refused(SessionMessage, frozen=True, tag="session.refused"):
    """What was asked for with this id will not happen; 0 is the hello."""

    code: str
    message: str
    id: Natural = 0

    def error(self) -> CallError:
        """Return the error to raise where it was asked for."""
        return CallError(_code(self.code), self.message)


def refusal_error(refused: Sequence[RefusedOperation]) -> CallError:
    """Return the error that says which operations were refused, and why the first of them was."""
    names = ", ".join(each.operation for each in refused[:_NAMED])
    more = len(refused) - _NAMED
    named = f"{names} and {more:,} more" if more > 0 else names
    details = {"operations": [each.operation for each in refused]}
    return CallError(_code(refused[0].code), f"refused: {named} ({refused[0].message})", details)


def _code(code: str) -> ErrorCode:
    return ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.UNAVAILABLE


class Who(SessionMessage, frozen=True, tag="session.who"):
    """Who serves anything?"""

    id: Natural


class Here(SessionMessage, frozen=True, tag="session.here"):
    """These do."""

    id: Natural
    peers: list[str]


class GoAway(SessionMessage, frozen=True, tag="session.goaway"):
    """Send no new requests here: this end is about to leave."""

    reason: str = ""


class Left(SessionMessage, frozen=True, tag="session.left"):
    """A peer is gone: over a connection the one that is named, over a broker whoever shares these calls with us."""

    peer: str | None = None
    tokens: list[str] = []
    reason: str = "the peer left"


class Serving(SessionMessage, frozen=True, tag="session.serving"):
    """The sender has these calls in hand."""

    tokens: list[str]


class Waiting(SessionMessage, frozen=True, tag="session.waiting"):
    """The sender is still there, and waits for what the receiver has in hand, except these."""

    gone: list[str] = []


SessionEvent = (
    Hello | Welcome | Announce | Withdraw | Done | Pending | Refused | Who | Here | GoAway | Left | Serving | Waiting
)

_session_encoder = msgspec.json.Encoder()
_session_decoder = msgspec.json.Decoder(SessionEvent)

SESSION_EVENT_SCHEMAS: dict[str, dict[str, Any]] = {
    str(kind.__struct_config__.tag): json_schema_of(kind)
    for kind in (Hello, Welcome, Announce, Withdraw, Done, Pending, Refused, Who, Here, GoAway, Left, Serving, Waiting)
}
SESSION_EVENT_SCHEMA: dict[str, Any] = {
    "oneOf": [{key: part for key, part in each.items() if key != "$defs"} for each in SESSION_EVENT_SCHEMAS.values()],
    "$defs": {name: part for each in SESSION_EVENT_SCHEMAS.values() for name, part in each.get("$defs", {}).items()},
}


def encode_session(event: SessionEvent) -> bytes:
    """The event as JSON."""
    return _session_encoder.encode(event)


def decode_message(message: bytes, *, limit: int = MAX_MESSAGE) -> CallEvent | SessionEvent:
    """The event that a message holds: of a call, or of the session.

    Raises:
        CallError: PROTOCOL_ERROR, if it holds none, or is too large or too deeply nested.
    """
    if message.startswith(_MARK):
        return _decode_session(message, limit)
    try:
        return decode_event(message, limit=limit)
    except CallError as error:
        # Another peer may write its fields in another order. What names a request is about a call.
        if error.details is not None or b'"session.' not in message:
            raise
        return _decode_session(message, limit)


def _decode_session(message: bytes, limit: int) -> SessionEvent:
    if len(message) > limit:
        size = f"a message of {len(message):,} bytes is above the limit of {limit:,}"
        raise CallError(ErrorCode.PROTOCOL_ERROR, size)
    try:
        return _session_decoder.decode(message)
    except (ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"not an event: {error}") from error
