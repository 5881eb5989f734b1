"""The events of a session: what two ends of a transport tell each other beside the calls themselves. No I/O.

Over a connection (WebSocket):

    client                                               server
      session.hello {version, maxMessage, token?}     ->
                     <- session.welcome {version, peer, maxMessage, heartbeatMs}
      session.announce {id, operations}               ->        <- session.done {id}
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

from typing import Any

import msgspec
from msgspec import Struct

from opwire.call.events import CallEvent, Natural, Positive
from opwire.call.wire import MAX_MESSAGE, decode_event
from opwire.errors import CallError, ErrorCode
from opwire.typed import json_schema_of

VERSION = 1
"""The version of the session protocol. A peer with another one is refused."""

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
    """This end serves these operations, too."""

    id: Natural
    operations: list[str]


class Withdraw(Session, frozen=True, tag="session.withdraw"):
    """This end serves these operations no longer."""

    id: Natural
    operations: list[str]


class Done(Session, frozen=True, tag="session.done"):
    """What was asked for with this id has happened."""

    id: Natural


class Refused(Session, frozen=True, tag="session.refused"):
    """What was asked for with this id will not happen; 0 is the hello."""

    code: str
    message: str
    id: Natural = 0

    def error(self) -> CallError:
        """The error that whoever asked raises."""
        known = self.code in ErrorCode.__members__
        return CallError(ErrorCode(self.code) if known else ErrorCode.UNAVAILABLE, self.message)


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


SessionEvent = Hello | Welcome | Announce | Withdraw | Done | Refused | Who | Here | GoAway | Left | Serving | Waiting

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SessionEvent)

SESSION_EVENT_SCHEMAS: dict[str, dict[str, Any]] = {
    str(kind.__struct_config__.tag): json_schema_of(kind)
    for kind in (Hello, Welcome, Announce, Withdraw, Done, Refused, Who, Here, GoAway, Left, Serving, Waiting)
}
SESSION_EVENT_SCHEMA: dict[str, Any] = {"oneOf": list(SESSION_EVENT_SCHEMAS.values())}


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
