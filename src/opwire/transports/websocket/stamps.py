"""What a relay reads of an event, and the fields that it writes. No I/O.

`peer` says who an event is from, in what the server sends, and who it is for, in what a client sends. Without it, it
is from or for the server itself; a request without it is for whoever serves its operation.

Payloads are not decoded on the way. The field is spliced into the bytes as the last one: `…,"peer":"c7"}`. A client's
own is cut off where it has this very form. Where it stands elsewhere it stays, and counts for nothing: of two fields
with one name, msgspec and `JSON.parse` take the last. What belongs to no open call is marked as a `stray` besides. On
a request, the caller's `identity` is written before it in the same way, and its `credential` is struck out.
"""

from functools import lru_cache
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct

from opwire.call import Address
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity
from opwire.typed.text import read_json

SERVER: Address = "server"
"""The address of the server itself, for its clients."""

MAX_ID = 1000
"""Characters of an id that a relay has to keep."""

MAX_IDENTITY = 4 * 1024
"""Bytes of an identity that a relay writes."""

MARGIN = MAX_IDENTITY + 256
"""Bytes that a message may gain by its stamp."""

NOBODY = b"null"
"""An identity that is none."""

_FIELD = b',"peer":"'
_STRAY = b',"stray":true'


class Head(Struct, rename="camel", tag_field="type"):
    """What matters of an event to those who pass it on; everything else is skipped."""

    answers: ClassVar[bool] = True  # whether it may come from the one who serves the call
    steers: ClassVar[bool] = False  # whether it may come from its caller
    request_id: Annotated[str, Meta(max_length=MAX_ID)]
    peer: str | None = None
    stray: bool = False

    def ends(self, *, streams: bool) -> bool:
        """Whether the call is over with this event; `streams`: it is one for a subscription."""
        return True


class Requested(Head, tag="call.requested", kw_only=True):
    """`credits` are there if a subscription is wanted, `sticky_key` if it is to go where others with that key went."""

    operation_id: str
    parent_request_id: str | None = None
    credits: Any = None
    sticky_key: str | None = None


class Responded(Head, tag="call.responded"):
    """`seq` is there if it is an item of a subscription."""

    seq: Any = None

    def ends(self, *, streams: bool) -> bool:
        """Whether it is the answer, and not an item."""
        return self.seq is None and not streams


class Completed(Head, tag="call.completed"):
    """The end of a subscription."""


class Failed(Head, tag="call.error"):
    """The end of a call."""


class Aborted(Head, tag="call.aborted"):
    """The end of a call, from either side."""

    steers: ClassVar[bool] = True


class Credit(Head, tag="call.credit"):
    """More items may come."""

    answers: ClassVar[bool] = False
    steers: ClassVar[bool] = True

    def ends(self, *, streams: bool) -> bool:
        """On the contrary."""
        return False


_decoder = msgspec.json.Decoder(Requested | Responded | Completed | Failed | Aborted | Credit)


def read_head(message: bytes) -> Head:
    """What a relay has to know of an event.

    Raises:
        CallError: PROTOCOL_ERROR, if it is no event of a call.
    """
    try:
        return read_json(_decoder, message)
    except (ValueError, RecursionError) as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"not an event of a call: {error}") from error


@lru_cache(maxsize=4096)
def stamp(peer: Address, *, stray: bool = False) -> bytes:
    """The end of a message that comes from, or is for, a peer."""
    return (_STRAY if stray else b"") + b',"peer":' + msgspec.json.encode(peer) + b"}"


def identity_json(identity: Identity | None) -> bytes:
    """An identity as it is written on requests."""
    return msgspec.json.encode(identity)


@lru_cache(maxsize=4096)
def request_stamp(peer: Address, identity: bytes) -> bytes:
    """The end of a request that comes from a peer."""
    return b',"identity":' + identity + b',"credential":null' + stamp(peer)


def stamped(message: bytes, end: bytes) -> bytes:
    """A message with this stamp, and without the one that it had."""
    message = message.rstrip() if message[-1:] != b"}" else message
    return message[: _own_stamp(message)] + end


def origin(message: bytes) -> tuple[Address, bool]:
    """Who a message from the server is from, and whether it is a stray.

    Raises:
        CallError: PROTOCOL_ERROR, if it cannot be read.
    """
    begin = _own_stamp(message)
    if begin != len(message) - 1:
        return message[begin + len(_FIELD) : -2].decode(), message.endswith(_STRAY, 0, begin)
    if b'"peer"' not in message:
        return SERVER, False
    head = read_head(message)
    return head.peer or SERVER, head.stray


def _own_stamp(message: bytes) -> int:
    """Where the stamp of a message begins, or else its last bracket.

    The bytes looked for cannot be part of a string, where quotes are escaped: they are a field, and since the message
    ends right after its value, a field of the message itself.
    """
    if message.endswith(b'"}'):
        begin = message.rfind(b'"', 0, -2) + 1 - len(_FIELD)
        if begin >= 0 and message.startswith(_FIELD, begin) and b"\\" not in message[begin:]:
            return begin
    return len(message) - 1
