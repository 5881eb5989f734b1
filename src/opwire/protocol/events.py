"""Events of the call protocol and of sessions, and their JSON encoding. No I/O.

Events are flat JSON objects, dispatched on `type`. A call:

    caller                                        server
      call.requested {requestId, operationId, input, …}  ->
                      <- call.responded {requestId, output, seq?}   the response, or one item of a subscription
                      <- call.completed {requestId}                 the end of a subscription
                      <- call.error {requestId, code, message, …}   the call failed
                      <- call.progress {requestId, progress, …}     optional, if the request has `progress: true`
                      <- call.question {requestId, id, kind, …}     if the request has `questions: true`
      call.answer {requestId, id, answer | error}        ->         the answer to a question
      call.credit {requestId, n, total?, received?}      ->         n more items may follow, `total` since the start
      call.aborted {requestId, reason?}                 <->         caller: stop; server: the call was stopped

Every call ends with exactly one event; `is_final` is the rule.

A session over a connection (WebSocket):

    client                                               server
      session.hello {version, maxMessage, token?}     ->
                     <- session.welcome {version, peer, maxMessage, heartbeatMs}
      session.announce {id, operations, partial?}     ->        <- session.done {id, refused?}
                     <- session.pending {ids}                   these requests are still being decided
      session.withdraw {id, operations}               ->        <- session.done {id}
      session.who {id}                                ->        <- session.here {id, peers}
                     <- session.refused {id?, code, message}    instead of welcome (then without id) or done
                     <- session.left {peer, reason}             a peer behind the server is gone
      session.goaway {reason}                        <->        send no new requests here

A session over a broker, which does not report that a peer is gone: calls are held by leases. Each request gets a token
that only its caller and its server know, so a message with the token comes from the peer that received the request.

    caller                                               server
                     <- session.serving {tokens}                at every heartbeat: these calls are in flight
      session.waiting {gone}                          ->        all are still wanted, except these
      session.left {tokens}                          <->        this end is gone, and with it these calls
      session.who {id}                                ->        (broadcast)
                     <- session.here {id, peers}

No kind of event is derived from another: where every message passes, `type(event) is CallAborted` replaces
`isinstance`, which takes 0.1 µs if it is false.

Incoming messages are untrusted: an invalid one raises `CallError(PROTOCOL_ERROR)`, and one with too many objects and
lists PAYLOAD_TOO_LARGE, with the request id in its details if it can be parsed, so that the peer's call can be failed.
Outgoing messages are checked as well: one above a limit fails only its own call.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, TypeVar, Union

import msgspec
from msgspec import Meta, Struct, field

from opwire.errors import CallError, ConversionError, ErrorCode, NotPlainError
from opwire.model.context import Progress
from opwire.model.envelope import (
    RESPONSE_ENVELOPE_SCHEMA,
    ResponseEnvelope,
    WireEnvelope,
    arrived_envelope,
    warn_of_nulls,
    wire_form,
)
from opwire.model.identity import Identity
from opwire.model.trace import Trace, trace_of
from opwire.runtime.deadlines import MAX_SECONDS, bounded_seconds
from opwire.runtime.text import one_line
from opwire.typed import json_schema_of
from opwire.typed.plain import (
    LARGE_JSON,
    MAX_DEPTH,
    check_density,
    collection_paused,
    json_form,
    outline,
    parse_float,
    read_json,
    read_outline,
    survey,
    to_plain,
    write_json,
)

T = TypeVar("T")

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Milliseconds = int | float  # keeps the integers that JavaScript writes

_MAX_MS = 2**53  # some 285,000 years, and JavaScript's largest safe integer
_MAX_CODE_CHARACTERS = 100
_MAX_CLOCK_SKEW_SECONDS = 5.0  # two machines may differ by so much before calls between them suffer
_MAX_TRANSIT_SECONDS = 60.0  # no transport keeps a request for longer: a greater difference is a wrong clock


def _bounded(milliseconds: Milliseconds) -> Milliseconds:
    """Clamp a peer's milliseconds to the range in which arithmetic on times cannot overflow."""
    return milliseconds if -_MAX_MS < milliseconds < _MAX_MS else _MAX_MS if milliseconds > 0 else -_MAX_MS


class CallMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type"):
    """Base of the events of a call."""

    request_id: str


class CallRequested(CallMessage, frozen=True, kw_only=True, tag="call.requested"):
    """Call an operation.

    `deadline` is in epoch milliseconds; `timeout_ms`, the time left when the request was sent, takes precedence.
    `credential` proves the identity on transports that do not authenticate callers. Requests with the same `sticky_key`
    go to the same server while the set of servers is unchanged, if the transport supports it. `version` is that of the
    operation, if it has to be a certain one. `traceparent` and
    `tracestate` follow W3C Trace Context. `progress` asks for `call.progress` events, `questions` accepts
    `call.question` events. `resume_from` is the cursor of the last item that the caller of a subscription has.
    """

    operation_id: str
    input: Any = field(default_factory=lambda: None)  # a factory, since a plain default is omitted: peers expect it
    parent_request_id: str | None = None
    identity: Identity | None = None
    deadline: Milliseconds | None = None
    timeout_ms: Milliseconds | None = None
    credits: Natural | None = None
    credential: str | None = None
    sticky_key: str | None = None
    version: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    progress: bool | None = None
    questions: bool | None = None
    resume_from: str | None = None

    @property
    def trace(self) -> Trace:
        """The trace context of the call; empty if it is missing or invalid."""
        if self.traceparent is None:
            return {}
        return trace_of({"traceparent": self.traceparent, "tracestate": self.tracestate})

    def seconds_left(self, default: float | None, loop_lag: float = 0.0) -> float | None:
        """Return the seconds until the deadline; zero or less if it has passed.

        `timeout_ms` counts from when the request was sent, and clocks differ between machines, so the transit time is
        estimated. Up to `loop_lag` seconds, during which the receiver's event loop was blocked, count as the clocks
        say; beyond that only the part that exceeds the tolerated clock skew.
        """
        if self.timeout_ms is None:
            return default if self.deadline is None else _bounded(self.deadline) / 1000 - time.time()
        remaining = (self.timeout_ms if -_MAX_MS < self.timeout_ms < _MAX_MS else _bounded(self.timeout_ms)) / 1000
        if self.deadline is None:
            return remaining - loop_lag
        late = (
            time.time()
            - (self.deadline if -_MAX_MS < self.deadline < _MAX_MS else _bounded(self.deadline)) / 1000
            + remaining
        )
        if (
            late <= 0 or late >= _MAX_TRANSIT_SECONDS or (loop_lag == 0 and late <= _MAX_CLOCK_SKEW_SECONDS)
        ):  # nearly always
            return remaining
        return remaining - max(min(late, loop_lag), late - _MAX_CLOCK_SKEW_SECONDS)


class CallResponded(CallMessage, frozen=True, kw_only=True, tag="call.responded"):
    """The response of a call, or item number `seq` (from 1) of a subscription.

    `resumed` is set on the first item of a subscription that goes on behind `resume_from`. A peer that does not know
    that field ignores it, and starts over.
    """

    output: ResponseEnvelope[Any]
    seq: Positive | None = None
    resumed: bool | None = None


class CallCompleted(CallMessage, frozen=True, kw_only=True, tag="call.completed"):
    """End a subscription; `seq` is the number of its last item, so that a lost item is detected."""

    seq: Natural | None = None


class CallFailed(CallMessage, frozen=True, kw_only=True, tag="call.error"):
    """Fail a call. `code` is a string, because a newer peer may use codes that are unknown here.

    `not_started`: no handler has run, so that the caller can retry at another server without running anything twice.
    """

    code: str
    message: str
    details: Any = None
    retryable: bool | None = None
    retry_after_ms: Milliseconds | None = None
    not_started: bool | None = None

    @classmethod
    def of(cls, request_id: str, error: CallError) -> "CallFailed":
        """Return the event that reports an error to a peer. Details that cannot be encoded as JSON are omitted."""
        try:
            details = to_plain(error.details)
        except NotPlainError:
            details = None
        after = None if error.retry_after is None else error.retry_after * 1000
        return cls(
            request_id=request_id,
            code=error.foreign_code or error.code.value,
            message=error.message,
            details=details,
            retryable=error.retryable,
            retry_after_ms=after,
        )

    def error(self) -> CallError:
        """Return the error to raise at the caller."""
        is_known_code, after = self.code in ErrorCode.__members__, self.retry_after_ms
        return CallError(
            ErrorCode(self.code) if is_known_code else ErrorCode.EXECUTION_ERROR,
            self.message,
            self.details,
            retryable=self.retryable,
            retry_after=None if after is None else bounded_seconds(after, MAX_SECONDS * 1000) / 1000,
            foreign_code=None if is_known_code else self.code[:_MAX_CODE_CHARACTERS],
        )


class CallAborted(CallMessage, frozen=True, kw_only=True, tag="call.aborted"):
    """From the caller: stop the call. From the server: the call was stopped."""

    reason: str | None = None


class CallCredit(CallMessage, frozen=True, kw_only=True, tag="call.credit"):
    """Grant the producer of a subscription `n` more items.

    `total` is the sum of all grants, including the initial credits; a producer that supports it ignores `n`. `received`
    is the number of the last item that arrived. `n` 0 repeats the grant of a consumer that is waiting.
    """

    n: Natural
    total: Natural | None = None
    received: Natural | None = None


class CallProgress(CallMessage, frozen=True, kw_only=True, tag="call.progress"):
    """The progress of a call, for a caller that asked for it. It may be dropped, and never ends or extends a call."""

    progress: int | float
    total: int | float | None = None
    message: str | None = None

    @classmethod
    def of(cls, request_id: str, progress: Progress) -> "CallProgress | None":
        """Return the event of a report, bounded, or None if it is invalid."""
        valid = progress.bounded()
        if valid is None:
            return None
        return cls(request_id=request_id, progress=valid.progress, total=valid.total, message=valid.message)


class CallQuestion(CallMessage, frozen=True, kw_only=True, tag="call.question"):
    """Ask a caller that accepts questions. `id` numbers the questions of a call from 1.

    `kind`, `params` and the answer have the shape of MCP; see `Question`.
    """

    id: Positive
    kind: str
    params: dict[str, Any] = {}
    key: str | None = None


class CallAnswer(CallMessage, frozen=True, kw_only=True, tag="call.answer"):
    """Answer a question, or say by `error` why it is not answered."""

    id: Positive
    answer: dict[str, Any] | None = None
    error: str | None = None


CallEvent = (
    CallRequested
    | CallResponded
    | CallCompleted
    | CallFailed
    | CallAborted
    | CallCredit
    | CallProgress
    | CallQuestion
    | CallAnswer
)

BULK = (CallRequested, CallResponded, CallProgress, CallQuestion)
"""Events that are rejected when a queue is full. Room is reserved for the others, which end or steer a call."""

_FINAL_EVENTS = frozenset({CallCompleted, CallFailed, CallAborted})


def is_final(event: CallEvent, *, streams: bool = False) -> bool:
    """Return whether an event ends its call. `streams`: that is a subscription, and its items may lack a `seq`."""
    return event.seq is None and not streams if type(event) is CallResponded else type(event) in _FINAL_EVENTS


_STRING = {"type": "string"}
_NUMBER = {"type": "number"}
_BOOLEAN = {"type": "boolean"}
_NATURAL = {"type": "integer", "minimum": 0}
_POSITIVE = {"type": "integer", "minimum": 1}

_CALL_FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # those that are required, and the optional ones
    "call.requested": (
        {"operationId": _STRING},
        {
            "input": {"description": "Any JSON value; null by default"},
            "parentRequestId": _STRING,
            "identity": json_schema_of(Identity),
            "deadline": {**_NUMBER, "description": "Unix epoch milliseconds"},
            "timeoutMs": {
                **_NUMBER,
                "description": "Time left when the request was sent; takes precedence over deadline",
            },
            "credits": _NATURAL,
            "credential": _STRING,
            "stickyKey": _STRING,
            "version": {**_STRING, "description": "Of the operation; any by default"},
            "traceparent": {**_STRING, "description": "W3C Trace Context"},
            "tracestate": {**_STRING, "description": "W3C Trace Context"},
            "progress": {**_BOOLEAN, "description": "Whether to send call.progress; false by default"},
            "questions": {**_BOOLEAN, "description": "Whether call.question may be sent; false by default"},
            "resumeFrom": {**_STRING, "description": "The cursor of the last item that the caller has"},
        },
    ),
    "call.responded": ({"output": RESPONSE_ENVELOPE_SCHEMA}, {"seq": _POSITIVE, "resumed": _BOOLEAN}),
    "call.completed": ({}, {"seq": _NATURAL}),
    "call.error": (
        {"code": _STRING, "message": _STRING},
        {"details": {}, "retryable": _BOOLEAN, "retryAfterMs": _NUMBER, "notStarted": _BOOLEAN},
    ),
    "call.aborted": ({}, {"reason": _STRING}),
    "call.credit": ({"n": _NATURAL}, {"total": _NATURAL, "received": _NATURAL}),
    "call.progress": ({"progress": _NUMBER}, {"total": _NUMBER, "message": _STRING}),
    "call.question": (
        {"id": _POSITIVE, "kind": {"enum": ["elicit", "sample", "roots"]}},
        {"params": {"type": "object", "description": "As in the request of MCP"}, "key": _STRING},
    ),
    "call.answer": (
        {"id": _POSITIVE},
        {"answer": {"type": "object", "description": "As in the result of MCP"}, "error": _STRING},
    ),
}
CALL_EVENT_SCHEMAS: dict[str, dict[str, Any]] = {
    type: {
        "type": "object",
        "properties": {"type": {"const": type}, "requestId": _STRING, **required, **optional},
        "required": ["type", "requestId", *required],
    }
    for type, (required, optional) in _CALL_FIELDS.items()
}
CALL_EVENT_SCHEMA: dict[str, Any] = {"oneOf": list(CALL_EVENT_SCHEMAS.values())}


MAX_MESSAGE = 1024 * 1024 - 16 * 1024
"""Default limit of an encoded message in bytes: NATS' default of 1 MiB, minus room for a broker's own headers."""


MAX_ID = 1000
"""Characters of the id of a request or an operation that a peer has to remember."""


def union_of(kinds: Iterable[type[Struct]]) -> Any:
    """Return the union of these classes, for a decoder."""
    return Union[tuple(kinds)]  # noqa: UP007 - of a number that is not known here


class _WireResponded(Struct, kw_only=True, rename="camel", tag_field="type", tag="call.responded"):
    """`call.responded` of a peer that omits `data`, or with another form of a field: its envelope is not converted."""

    request_id: str
    output: WireEnvelope
    seq: Positive | None = None
    resumed: bool | None = None


class _Id(Struct, rename="camel"):
    request_id: str


_encoder = msgspec.json.Encoder(enc_hook=json_form)
_decoder = msgspec.json.Decoder(CallEvent, float_hook=parse_float)
_lenient_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    union_of(_WireResponded if kind is CallResponded else kind for kind in CallMessage.__subclasses__()),
    float_hook=parse_float,
)
_id_decoder = msgspec.json.Decoder(_Id)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INTEGER_FIELDS = frozenset({"version", "maxMessage", "heartbeatMs", "id", "credits", "seq", "n", "total", "received"})


def _read(decoder: msgspec.json.Decoder[T], message: bytes | str) -> T:
    """Decode an event. Null counts as absent, and 5.0 as 5; both are rare, so that only they are decoded twice.

    Raises:
        ValueError, RecursionError: it is invalid.
    """
    try:
        return read_json(decoder, message)
    except msgspec.ValidationError as error:
        fields = read_json(_fields_decoder, message)
        form = {name: raw for name, raw in fields.items() if bytes(raw) != b"null"}
        for name in _INTEGER_FIELDS & form.keys():
            count = msgspec.json.decode(form[name])
            if isinstance(count, float) and count.is_integer() and abs(count) < _MAX_MS:
                form[name] = msgspec.Raw(b"%d" % count)
        if form == fields:
            raise error from None
        return read_json(decoder, msgspec.json.encode(form))


def encode_event(event: CallEvent, *, limit: int = MAX_MESSAGE) -> bytes:
    """Encode an event as JSON.

    Raises:
        CallError: PAYLOAD_TOO_LARGE above the limit of bytes, or of what takes long to decode (`check_density`);
            VALIDATION_ERROR if a value cannot be encoded.
    """
    if type(event) is CallResponded and isinstance(event.output.data, bytes):
        event = msgspec.structs.replace(event, output=wire_form(event.output))
    try:
        try:
            message = _encoder.encode(event)
        except UnicodeEncodeError:  # tried first without `write_json`: 0.1 µs
            message = write_json(_encoder, event)
    except RecursionError:
        # The receiver rejects what is nested deeper than 200 and can be encoded: here, the check would take as long as
        # the encoder.
        deep = f"the message cannot be encoded as JSON: it is nested much deeper than {MAX_DEPTH}, or refers to itself"
        raise CallError(ErrorCode.VALIDATION_ERROR, deep) from None
    except (TypeError, ValueError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the message cannot be encoded as JSON: {error}") from error
    if len(message) > limit:
        size = f"the message has {len(message):,} bytes, and the limit is {limit:,}"
        raise CallError(ErrorCode.PAYLOAD_TOO_LARGE, size, {"bytes": len(message), "limit": limit})
    if len(message) > LARGE_JSON:
        try:
            check_density(message)
        except ValueError as error:
            raise _too_dense(error) from None
    if message.rfind(b"null") >= 0:  # in 0.1 µs, and 0.25 ms of a megabyte: `in` takes twice that
        warn_of_nulls(message, *_payloads(event))
    return message


def decode_event(message: bytes | str, *, limit: int = MAX_MESSAGE) -> CallEvent:
    """Decode an event of a call.

    Raises:
        CallError: PROTOCOL_ERROR if the message is invalid, too large or too deeply nested; PAYLOAD_TOO_LARGE if it
            takes long to decode (`check_density`).
    """
    data = message if isinstance(message, bytes) else message.encode("utf-8", "surrogatepass")
    if len(data) > limit:
        raise _too_large(data, limit)
    is_large = len(data) > LARGE_JSON
    if is_large:
        _check_density(data)
    try:
        with collection_paused() if is_large else nullcontext():
            try:
                event = _decoder.decode(message)
            except ValueError:  # tried first without `_read`: 0.2 µs
                event = _read(_lenient_decoder, message)
        if type(event) is CallResponded:
            output = arrived_envelope(event.output)
            event = event if output is event.output else msgspec.structs.replace(event, output=output)
        elif type(event) is _WireResponded:
            output = arrived_envelope(event.output)
            event = CallResponded(request_id=event.request_id, output=output, seq=event.seq, resumed=event.resumed)
    except RecursionError:
        raise too_deep(_call_of(outline(data))) from None
    except (ValueError, ConversionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"invalid event: {one_line(str(error))}", _call_of(data)) from error
    # Nesting needs pairs of brackets: counting them is 20 times faster than walking the values.
    may_be_deep = len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH
    if may_be_deep and any(survey(payload).deep for payload in _payloads(event)):
        raise too_deep({"requestId": event.request_id})
    return event


def too_deep(details: dict[str, Any] | None = None) -> CallError:
    """Return the error of a message that is nested too deeply."""
    wrong = f"the message is nested deeper than {MAX_DEPTH}: flatten the value, or send it as text"
    return CallError(ErrorCode.PROTOCOL_ERROR, wrong, details)


def _call_of(message: bytes) -> dict[str, Any] | None:
    """Return the id of the call that a message is about, as details of an error; None if it cannot be decoded."""
    try:
        return {"requestId": read_outline(_id_decoder, message).request_id}
    except ValueError:
        return None


def _check_density(message: bytes) -> None:
    try:
        check_density(message)
    except ValueError as error:
        raise _too_dense(error, _call_of(message)) from None


def _too_dense(error: ValueError, details: dict[str, Any] | None = None) -> CallError:
    wrong = f"the message has {error}, too many for its size: send the value in parts, or as text"
    return CallError(ErrorCode.PAYLOAD_TOO_LARGE, wrong, details)


def _too_large(message: bytes, limit: int) -> CallError:
    size = f"a message of {len(message):,} bytes is above the limit of {limit:,}"
    return CallError(ErrorCode.PROTOCOL_ERROR, size, _call_of(outline(message)))


def _payloads(event: CallEvent) -> tuple[Any, ...]:
    """Return the parts of an event that hold arbitrary JSON."""
    match event:
        case CallRequested():
            return (event.input,)
        case CallResponded():
            return event.output.data, *msgspec.structs.astuple(event.output.meta)
        case CallFailed():
            return (event.details,)
        case CallQuestion():
            return (event.params,)
        case CallAnswer():
            return (event.answer,)
        case _:
            return ()


VERSION = 1
"""Version of the session protocol. Peers with another version are rejected."""

_MAX_BATCH_IDS = 500
_MAX_BATCH_CHARACTERS = 200_000  # leaves room for a digest of each operation
_MAX_REASON_CHARACTERS = 200
_MAX_LISTED_OPERATIONS = 5

_SESSION_PREFIX = b'{"type":"session.'  # prefix of every session event that `encode_session` returns


class SessionMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type"):
    """Base of the events of a session."""


class Hello(SessionMessage, frozen=True, tag="session.hello"):
    """Open a connection: protocol version and message limit of the client, and its optional credential, `token`."""

    version: Natural
    max_message: Positive = MAX_MESSAGE
    token: str | None = None


class Welcome(SessionMessage, frozen=True, tag="session.welcome"):
    """Accept a connection. `peer` is the address of the client, `heartbeat_ms` the interval at which it has to send."""

    version: Natural
    peer: str
    max_message: Positive
    heartbeat_ms: Positive


class Announce(SessionMessage, frozen=True, tag="session.announce"):
    """Serve further operations, at least one.

    All or nothing by default; with `partial`, `session.done` lists the rejected ones. `descriptions` has those of
    some or all of the operations; the others are requested from the peer.
    """

    id: Natural
    operations: list[str]
    partial: bool = False
    descriptions: list[Any] = []


class WireAnnounce(Announce, frozen=True, tag="session.announce"):
    """`session.announce` as decoded: its descriptions are not, so that waiting ones take no more than their bytes."""

    descriptions: list[msgspec.Raw] = []

    @property
    def carried(self) -> int:
        """The number of bytes of the descriptions."""
        return sum(memoryview(description).nbytes for description in self.descriptions)


class Withdraw(SessionMessage, frozen=True, tag="session.withdraw"):
    """Stop serving operations."""

    id: Natural
    operations: list[str]


class RefusedOperation(Struct, frozen=True):
    """An operation that the server rejected, and why."""

    operation: str
    code: str
    message: str

    @classmethod
    def of(cls, operation_id: str, error: CallError) -> "RefusedOperation":
        """Return the rejection of an operation; its message is truncated."""
        return cls(operation_id, error.code.value, error.message[:_MAX_REASON_CHARACTERS])


class Done(SessionMessage, frozen=True, tag="session.done"):
    """Confirm the request with this id, except for the rejected operations of a partial announcement."""

    id: Natural
    refused: list[RefusedOperation] = []


class Pending(SessionMessage, frozen=True, tag="session.pending"):
    """Report that the requests with these ids are still being decided; sent about once a second until they are."""

    ids: list[Natural]


class Refused(SessionMessage, frozen=True, tag="session.refused"):
    """Reject the request with this id; 0 is the hello."""

    code: str
    message: str
    id: Natural = 0

    def error(self) -> CallError:
        """Return the error to raise at the sender of the request."""
        return CallError(_code(self.code), self.message)


def refusal_error(refused: Sequence[RefusedOperation]) -> CallError:
    """Return the error that lists the rejected operations, with the reason for the first of them."""
    names = ", ".join(operation.operation for operation in refused[:_MAX_LISTED_OPERATIONS])
    more = len(refused) - _MAX_LISTED_OPERATIONS
    operations_text = f"{names} and {more:,} more" if more > 0 else names
    details = {"operations": [operation.operation for operation in refused]}
    return CallError(_code(refused[0].code), f"refused: {operations_text} ({refused[0].message})", details)


def _code(code: str) -> ErrorCode:
    return ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.UNAVAILABLE


class Who(SessionMessage, frozen=True, tag="session.who"):
    """Ask for the addresses of all servers."""

    id: Natural


class Here(SessionMessage, frozen=True, tag="session.here"):
    """Return the addresses of servers, in reply to `session.who`."""

    id: Natural
    peers: list[str]


class GoAway(SessionMessage, frozen=True, tag="session.goaway"):
    """Ask for no new requests: this end is about to close."""

    reason: str = ""


class Left(SessionMessage, frozen=True, tag="session.left"):
    """Report that a peer is gone: over a connection `peer`, over a broker the one that shares these tokens."""

    peer: str | None = None
    tokens: list[str] = []
    reason: str = "the peer left"


class Serving(SessionMessage, frozen=True, tag="session.serving"):
    """Report the calls that the sender has in flight."""

    tokens: list[str]


class Waiting(SessionMessage, frozen=True, tag="session.waiting"):
    """Report that the sender is alive and waits for all its calls, except these."""

    gone: list[str] = []


SessionEvent = (
    Hello | Welcome | Announce | Withdraw | Done | Pending | Refused | Who | Here | GoAway | Left | Serving | Waiting
)

_session_encoder = msgspec.json.Encoder()
_SESSION_EVENTS = SessionMessage.__subclasses__()
_session_decoder: msgspec.json.Decoder[SessionEvent] = msgspec.json.Decoder(
    union_of(WireAnnounce if kind is Announce else kind for kind in _SESSION_EVENTS),
    float_hook=parse_float,
)

SESSION_EVENT_SCHEMAS: dict[str, dict[str, Any]] = {
    str(kind.__struct_config__.tag): json_schema_of(kind) for kind in _SESSION_EVENTS
}
SESSION_EVENT_SCHEMA: dict[str, Any] = {
    "oneOf": [
        {key: part for key, part in schema.items() if key != "$defs"} for schema in SESSION_EVENT_SCHEMAS.values()
    ],
    "$defs": {
        name: part for schema in SESSION_EVENT_SCHEMAS.values() for name, part in schema.get("$defs", {}).items()
    },
}


def id_batches(operation_ids: Iterable[str]) -> Iterator[list[str]]:
    """Split the ids of operations into batches that fit into one message each."""
    batch, size = list[str](), 0
    for operation_id in operation_ids:
        if batch and (len(batch) == _MAX_BATCH_IDS or size + len(operation_id) > _MAX_BATCH_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(operation_id)
        size += len(operation_id)
    if batch:
        yield batch


def encode_session(event: SessionEvent) -> bytes:
    """Encode an event of a session as JSON."""
    return _session_encoder.encode(event)


def decode_message(message: bytes, *, limit: int = MAX_MESSAGE) -> CallEvent | SessionEvent:
    """Decode an event of a call or of a session.

    Raises:
        CallError: as `decode_event`.
    """
    if message.startswith(_SESSION_PREFIX):
        return _decode_session(message, limit)
    try:
        return decode_event(message, limit=limit)
    except CallError as error:
        # Other peers may encode fields in another order. A message with a request id is about a call.
        if error.details is not None or b'"session.' not in message:
            raise
        return _decode_session(message, limit)


def _decode_session(message: bytes, limit: int) -> SessionEvent:
    if len(message) > limit:
        raise _too_large(message, limit)
    _check_density(message)
    try:
        return _read(_session_decoder, message)
    except (ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"invalid event: {one_line(str(error))}") from error
