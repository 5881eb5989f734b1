"""Who serves what, and which call goes from whom to whom, among the peers of one server.

No I/O, no clock, no tasks: everything that opens or ends a route is in this file; it says where a message goes, and its
user sends it.
Rule 1: a call is known by its caller and its request id. The ids of two callers may be equal.
Rule 2: only the peer that has the request can answer it, and only its caller can steer it.
Rule 3: a call leaves the table in the step that ends it: its last event, or the loss of either side.
Rule 4: what belongs to no open call goes to the peer that it names, as a stray; never to one that waits for another.

What a relay reads of an event, and the fields that it writes. No I/O.

`peer` says who an event is from, in what the server sends, and who it is for, in what a client sends. Without it, it
is from or for the server itself; a request without it is for whoever serves its operation.

Payloads are not decoded on the way. The field is spliced into the bytes as the last one: `…,"peer":"c7"}`. A client's
own is cut off where it has this very form. Where it stands elsewhere it stays, and counts for nothing: of two fields
with one name, msgspec and `JSON.parse` take the last. What belongs to no open call is marked as a `stray` besides. On
a request, the caller's `identity` is written before it in the same way, and its `credential` is struck out.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from opwire.auth.tokens import is_own, not_delegated
from opwire.call import Address
from opwire.call.discovery import OPERATIONS
from opwire.errors import CallError, ErrorCode
from opwire.operation import Identity
from opwire.typed.plain import read_json

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


Balance = Literal["round_robin", "least_busy"]
"""Which server of an operation gets a call: the next in turn, or the one with the fewest calls in hand."""

_COMPARED = 16  # servers whose loads are compared for a call
_GRANTS = 64  # events that grant credits which a caller may send in advance of items

Dropped = Literal["duplicate", "flood", "foreign", "malformed", "unknown"]


class Call(Struct, eq=False):
    """A call from one peer to another."""

    request_id: str
    caller: Address
    server: Address
    streams: bool
    identity: bytes = NOBODY  # of its caller, as JSON
    delegable: bool = True  # its server may call on with that identity, if its own grant delegates
    open: bool = True
    grants: int = _GRANTS  # more of them than items is a flood


class Way(NamedTuple):
    """Where a message goes, and the call that it belongs to; None: it is a stray.

    `identity` is whom a request is made for, as JSON.
    """

    to: Address
    call: Call | None
    identity: bytes = NOBODY


class _Servers:
    """The servers of one operation. To add, to remove and to pick one costs the same, however many there are."""

    __slots__ = ("_places", "_turn", "addresses")

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self._places: dict[Address, int] = {}
        self._turn = 0

    def add(self, address: Address) -> None:
        """Add a server."""
        self._places[address] = len(self.addresses)
        self.addresses.append(address)

    def remove(self, address: Address) -> None:
        """Remove a server; the last one takes its place."""
        place, last = self._places.pop(address), self.addresses.pop()
        if last != address:
            self.addresses[place] = last
            self._places[last] = place

    def next(self) -> Address:
        """Return the server whose turn it is."""
        self._turn += 1
        return self.addresses[self._turn % len(self.addresses)]

    def sticky(self, key: str) -> Address:
        """Return the server for a key: the same one until it leaves."""
        return max(self.addresses, key=lambda address: hash((key, address)))

    def idlest(self, peers: "dict[Address, _Peer]") -> Address:
        """Return the server with the fewest calls in hand, of all or of some that are spread over all."""
        self._turn += 1
        addresses, size = self.addresses, len(self.addresses)
        compared = min(size, _COMPARED)
        places = ((self._turn + number * size // compared) % size for number in range(compared))
        return min((addresses[place] for place in places), key=lambda address: peers[address].load)


class _Peer(Struct, eq=False):
    identity: bytes = NOBODY
    delegates: bool = False
    load: int = 0  # calls that it has in hand
    operations: dict[str, None] = field(default_factory=dict[str, None])
    asked: dict[str, Call] = field(default_factory=dict[str, Call])  # by request id
    held: dict[str, list[Call]] = field(default_factory=dict[str, list[Call]])  # by request id: one for each caller


class Routes:
    """The table. The server is one of its peers.

    `unserved` is called for an operation without a server: it raises why, or lets the server itself answer.
    `identifies`: peers have identities, so that it matters on whose behalf they call.
    """

    def __init__(
        self,
        *,
        max_calls: int,
        max_operations: int,
        balance: Balance = "least_busy",
        unserved: Callable[[str], None] | None = None,
        identifies: bool = True,
    ) -> None:
        self._identifies = identifies
        self._max_calls = max_calls
        self._max_operations = max_operations
        self._balance = balance
        self._unserved = unserved
        self._peers: dict[Address, _Peer] = {SERVER: _Peer()}
        self._serving: dict[str, _Servers] = {}  # by operation
        self._streams = {OPERATIONS}  # operations that are known to be subscriptions
        self.dropped: Counter[Dropped] = Counter()

    def __len__(self) -> int:
        """How many calls are open."""
        return sum(len(peer.asked) for peer in self._peers.values())

    # --- peers --------------------------------------------------------------------------------------------------------

    def join(self, address: Address, identity: bytes = NOBODY, *, delegates: bool = False) -> None:
        """Add a peer. `delegates`: it may pass on the identity of a caller whose call it serves."""
        self._peers[address] = _Peer(identity=identity, delegates=delegates)

    def leave(self, address: Address) -> list[Call]:
        """A peer is gone. The calls that end with it, those that it made and those that it served."""
        if address not in self._peers:
            return []
        self.withdraw(address, self.operations(address))
        peer = self._peers[address]
        calls = [*peer.asked.values(), *(call for held in peer.held.values() for call in held)]
        ended = [call for call in calls if self.end(call)]
        del self._peers[address]
        return ended

    def operations(self, address: Address) -> list[str]:
        """What a peer serves."""
        return list(self._peers[address].operations)

    def check_room(self, address: Address, operation_ids: Iterable[str], waiting: int = 0) -> None:
        """Whether a peer may announce these operations, while so many others wait for a decision.

        Raises:
            CallError: RATE_LIMITED, if they are too many or too long.
        """
        operations = self._peers[address].operations
        new = set(operation_ids).difference(operations)
        if len(operations) + waiting + len(new) > self._max_operations or any(len(each) > MAX_ID for each in new):
            most = f"{self._max_operations:,} operations with ids of {MAX_ID:,} characters"
            raise CallError(ErrorCode.RATE_LIMITED, f"at most {most} are taken from one peer")

    def announce(self, address: Address, operation_ids: Iterable[str], streams: Iterable[str] = ()) -> None:
        """A peer serves these operations, too; `streams` are those of them that are known to be subscriptions."""
        operations = self._peers[address].operations
        for operation_id in operation_ids:
            if operation_id not in operations:
                operations[operation_id] = None
                self._serving.setdefault(operation_id, _Servers()).add(address)
        self._streams.update(streams)

    def withdraw(self, address: Address, operation_ids: Iterable[str]) -> None:
        """A peer serves these operations no longer."""
        operations = self._peers[address].operations
        for operation_id in operation_ids:
            if operation_id in operations:
                del operations[operation_id]
                serving = self._serving[operation_id]
                serving.remove(address)
                if not serving.addresses:
                    del self._serving[operation_id]
                    self._streams -= {operation_id} - {OPERATIONS}

    def idle(self, address: Address) -> bool:
        """Whether a peer serves nothing, and has no call open."""
        peer = self._peers[address]
        return not peer.operations and not peer.asked and not peer.held

    def servers(self) -> list[Address]:
        """Who serves anything."""
        return [address for address, peer in self._peers.items() if peer.operations]

    # --- calls --------------------------------------------------------------------------------------------------------

    def turn(self, operation_id: str, sticky_key: str | None = None) -> Address:
        """Who is to serve an operation. If nobody does, the server knows best how to say so.

        With the same `sticky_key` it is always the same one's turn, until that one leaves.

        Raises:
            CallError: what `unserved` raises; UNAVAILABLE, if the server does not answer.
        """
        serving = self._serving.get(operation_id)
        if serving is None:
            if self._unserved is not None:
                self._unserved(operation_id)
            elif not self._peers[SERVER].operations:
                raise CallError(ErrorCode.UNAVAILABLE, f"nobody serves {operation_id}")
            return SERVER
        if len(serving.addresses) == 1:
            return serving.addresses[0]
        if sticky_key is not None:
            return serving.sticky(sticky_key)
        return serving.next() if self._balance == "round_robin" else serving.idlest(self._peers)

    def request(self, caller: Address, head: Requested) -> Way | None:
        """Where a request goes. None: it has come before, and is being answered.

        Raises:
            CallError: UNAVAILABLE if nobody serves it, RATE_LIMITED if the caller has too many calls open,
                ACCESS_DENIED if it is made on behalf of another caller and may not be.
        """
        peer = self._peers[caller]
        if head.request_id in peer.asked:
            return self._drop("duplicate")
        server = head.peer or self.turn(head.operation_id, head.sticky_key)
        is_nested = self._identifies and head.parent_request_id is not None
        identity = self._delegated(peer, head) if is_nested else peer.identity
        if server not in self._peers:
            raise CallError(ErrorCode.UNAVAILABLE, f"there is no peer {server[:80]!r}: it may have left")
        if len(peer.asked) >= self._max_calls:
            raise CallError(ErrorCode.RATE_LIMITED, f"this connection has {self._max_calls:,} calls open already")
        # A caller or a server may know neither credits nor numbers of items: the operation's type decides.
        streams = head.credits is not None or head.operation_id in self._streams
        delegable = not is_own(head.operation_id)
        call = self.open(Call(head.request_id, caller, server, streams, identity, delegable))
        return Way(server, call, identity)

    def open(self, call: Call) -> Call:
        """A call begins, in the place of one that its caller has forgotten."""
        self.give_up(call.caller, call.request_id)
        server = self._peers[call.server]
        self._peers[call.caller].asked[call.request_id] = call
        server.held.setdefault(call.request_id, []).append(call)
        server.load += 1
        return call

    def give_up(self, caller: Address, request_id: str, server: Address | None = None) -> None:
        """A caller waits no longer for a call, if it is one that this server (None: any) has."""
        call = self._peers[caller].asked.get(request_id)
        if call is not None and server in (None, call.server):
            self.end(call)

    def _delegated(self, peer: _Peer, head: Requested) -> bytes:
        """Return the identity of the caller on whose behalf a peer makes a request.

        A parent that has ended or never was must not make it the peer's own call: an abort by the parent's caller can
        overtake it.

        Raises:
            CallError: ACCESS_DENIED.
        """
        held = peer.held.get(head.parent_request_id or "", ())
        if len(held) != 1:  # two callers may have chosen the same id
            raise not_delegated(head.operation_id, "parentRequestId names no request that this peer is serving")
        if not held[0].delegable or is_own(head.operation_id):
            raise not_delegated(head.operation_id, "the authority of that request cannot be passed on")
        if not peer.delegates:
            raise not_delegated(head.operation_id, "the grant of this peer does not delegate")
        return held[0].identity

    def follow(self, sender: Address, head: Head) -> Way | None:
        """Where any other event goes. None: nowhere (it is then counted)."""
        call = self._call(sender, head)
        if call is None:
            return self._stray(head)
        if head.ends(streams=call.streams):
            self.end(call)
        elif not head.steers:
            call.grants += 1  # an item, after which its caller may grant another one
        elif call.grants:
            call.grants -= 1
        else:
            return Way(call.server, None)  # no caller needs so many
        return Way(call.server if call.caller == sender else call.caller, call)

    def waits_for(self, caller: Address, request_id: str) -> Address | None:
        """Whose answer a peer waits for; None: nobody's."""
        call = self._peers[caller].asked.get(request_id)
        return None if call is None else call.server

    def end(self, call: Call) -> bool:
        """End a call. False if it has ended before."""
        if not call.open:
            return False
        call.open = False
        del self._peers[call.caller].asked[call.request_id]
        server = self._peers[call.server]
        server.load -= 1
        held = server.held
        held[call.request_id].remove(call)
        if not held[call.request_id]:
            del held[call.request_id]
        return True

    def _call(self, sender: Address, head: Head) -> Call | None:
        """The open call that an event is about, if its sender has the part in it that such an event comes from."""
        peer = self._peers[sender]
        if head.steers:
            asked = peer.asked.get(head.request_id)
            if asked is not None and head.peer in (None, asked.server):
                return asked
        if head.answers:
            for held in peer.held.get(head.request_id, ()):
                if head.peer in (None, held.caller):  # whoever names no peer answers the one who asked first
                    return held
        return None

    def _stray(self, head: Head) -> Way | None:
        to = head.peer or SERVER
        if to not in self._peers:
            return self._drop("unknown")
        if self.waits_for(to, head.request_id) is not None:
            return self._drop("foreign")
        return Way(to, None)

    def _drop(self, why: Dropped) -> None:
        self.dropped[why] += 1
