"""The events of a session: what two ends of a transport tell each other beside the calls themselves. No I/O.

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

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from opwire.call.events import CallEvent, Natural, Positive
from opwire.call.wire import MAX_MESSAGE, decode_event
from opwire.errors import CallError, ErrorCode
from opwire.typed import json_schema_of

VERSION = 1
"""The version of the session protocol. A peer with another one is refused."""

_SHOWN = 200  # characters of the reason why an operation is refused
_NAMED = 5  # operations that an error names

_MARK = b'{"type":"session.'  # how every session event begins that is written here


class Session(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="type"):
    """What the events of a session have in common."""


class Hello(Session, frozen=True, tag="session.hello"):
    """The first event of a connection: who speaks, and what it can take. `token` says what it is allowed to do."""

    version: Natural
    max_message: Positive = MAX_MESSAGE
    token: str | None = None


class Welcome(Session, frozen=True, tag="session.welcome"):
    """The answer: `peer` is the name that others know this end by, `heartbeat_ms` how often it has to be heard of."""

    version: Natural
    peer: str
    max_message: Positive
    heartbeat_ms: Positive


class Announce(Session, frozen=True, tag="session.announce"):
    """This end serves these operations, too: at least one.

    All of them or none, unless it is `partial`: `session.done` then names those that were refused.
    """

    id: Natural
    operations: list[str]
    partial: bool = False


class Withdraw(Session, frozen=True, tag="session.withdraw"):
    """This end serves these operations no longer."""

    id: Natural
    operations: list[str]


class Refusal(Struct, frozen=True):
    """An operation that is not taken, and why."""

    operation: str
    code: str
    message: str

    @classmethod
    def of(cls, operation_id: str, error: CallError) -> "Refusal":
        """Return the refusal of an operation; its message is shortened."""
        return cls(operation_id, error.code.value, error.message[:_SHOWN])


class Done(Session, frozen=True, tag="session.done"):
    """What was asked for with this id has happened, except for what was refused of a partial announcement."""

    id: Natural
    refused: list[Refusal] = []


class Pending(Session, frozen=True, tag="session.pending"):
    """The questions with these ids are still being decided; sent about once a second until they are."""

    ids: list[Natural]


class Refused(Session, frozen=True, tag="session.refused"):
    """What was asked for with this id will not happen; 0 is the hello."""

    code: str
    message: str
    id: Natural = 0

    def error(self) -> CallError:
        """Return the error to raise where it was asked for."""
        return CallError(_code(self.code), self.message)


def refusal_error(refused: Sequence[Refusal]) -> CallError:
    """Return the error that says which operations were refused, and why the first of them was."""
    names = ", ".join(each.operation for each in refused[:_NAMED])
    more = len(refused) - _NAMED
    named = f"{names} and {more:,} more" if more > 0 else names
    details = {"operations": [each.operation for each in refused]}
    return CallError(_code(refused[0].code), f"refused: {named} ({refused[0].message})", details)


def _code(code: str) -> ErrorCode:
    return ErrorCode(code) if code in ErrorCode.__members__ else ErrorCode.UNAVAILABLE


class Who(Session, frozen=True, tag="session.who"):
    """Who serves anything?"""

    id: Natural


class Here(Session, frozen=True, tag="session.here"):
    """These do."""

    id: Natural
    peers: list[str]


class GoAway(Session, frozen=True, tag="session.goaway"):
    """Send no new requests here: this end is about to leave."""

    reason: str = ""


class Left(Session, frozen=True, tag="session.left"):
    """A peer is gone: over a connection the one that is named, over a broker whoever shares these calls with us."""

    peer: str | None = None
    tokens: list[str] = []
    reason: str = "the peer left"


class Serving(Session, frozen=True, tag="session.serving"):
    """The sender has these calls in hand."""

    tokens: list[str]


class Waiting(Session, frozen=True, tag="session.waiting"):
    """The sender is still there, and waits for what the receiver has in hand, except these."""

    gone: list[str] = []


SessionEvent = (
    Hello | Welcome | Announce | Withdraw | Done | Pending | Refused | Who | Here | GoAway | Left | Serving | Waiting
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SessionEvent)

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
    return _encoder.encode(event)


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
        return _decoder.decode(message)
    except (ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"not an event: {error}") from error
