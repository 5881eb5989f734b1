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
"""

import time
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from opwire.deadlines import MAX_SECONDS, bounded_seconds
from opwire.envelope import RESPONSE_ENVELOPE_SCHEMA, ResponseEnvelope
from opwire.errors import CallError, ErrorCode, NotPlainError
from opwire.operation import Identity, Trace, trace_of
from opwire.typed import json_schema_of
from opwire.typed.plain import to_plain

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
