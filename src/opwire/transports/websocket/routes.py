"""The routes between the peers of one server: which peer serves what, and which call goes from where to where.

No I/O, no clock, no tasks: everything that opens or ends a route is in this file. It returns where a message goes, and
the caller sends it.
Rule 1: a call is identified by its caller and its request id. Two callers may use the same id.
Rule 2: only the peer that has the request can respond to it, and only its caller can control it.
Rule 3: a call leaves the table in the step that ends it: its last event, or the loss of either side.
Rule 4: an event without an open call goes to the peer that it names, marked as unmatched; never to one that waits for
another.
Rule 5: a peer may be another hub. It states the identities of its callers, and its requests go to peers here, never to
a third hub.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable
from hashlib import blake2b
from itertools import count, islice
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct, field

from opwire.auth.tokens import not_delegated
from opwire.errors import CallError, ErrorCode
from opwire.model.operation import is_own
from opwire.observe.logs import CANCELLED
from opwire.observe.monitor import CALLS
from opwire.protocol.discovery import OPERATIONS
from opwire.protocol.events import MAX_ID, union_of
from opwire.protocol.transport import Address
from opwire.runtime.bounded import BoundedDict, Tally
from opwire.runtime.text import one_line
from opwire.typed.plain import read_outline

SERVER: Address = "server"  # the address of the server itself, for its clients
ANONYMOUS = b"null"  # the identity of an anonymous caller

# --- events -----------------------------------------------------------------------------------------------------------


class EventHead(Struct, rename="camel", tag_field="type"):
    """The fields of an event that a relay decodes; everything else is skipped."""

    final: ClassVar[bool] = False  # ends its call
    from_server: ClassVar[bool] = True  # it may be
    from_caller: ClassVar[bool] = False
    outcome: ClassVar[str] = ""  # of a call that it ends, in logs
    request_id: Annotated[str, Meta(max_length=MAX_ID)]
    peer: str | None = None
    unmatched: bool = False
    seq: Any = None

    def ends_call(self, *, streams: bool) -> bool:
        """Return whether the event ends its call, as `is_final` does."""
        return self.final


class RequestedHead(EventHead, tag="call.requested", kw_only=True):
    """`credits` are those of a subscription; requests with the same `sticky_key` go to the same server.

    `version` is that of the operation.
    """

    operation_id: str
    parent_request_id: str | None = None
    credits: Any = None
    sticky_key: str | None = None
    version: str | None = None
    progress: Any = None
    questions: Any = None


class RespondedHead(EventHead, tag="call.responded"):
    """A response, or an item of a subscription with its number `seq`."""

    def ends_call(self, *, streams: bool) -> bool:
        """Return whether it is the only response."""
        return self.seq is None and not streams


class CompletedHead(EventHead, tag="call.completed"):
    """The end of a subscription."""

    final = True


class FailedHead(EventHead, tag="call.error"):
    """The end of a call by an error."""

    final = True
    code: str = ""

    def __post_init__(self) -> None:
        if self.code not in ErrorCode.__members__:
            self.code = ErrorCode.EXECUTION_ERROR


class AbortedHead(EventHead, tag="call.aborted"):
    """The end of a call by either side."""

    final = True
    from_caller = True
    outcome = CANCELLED


class CreditHead(EventHead, tag="call.credit"):
    """Credit for more items."""

    from_server = False
    from_caller = True


class ProgressHead(EventHead, tag="call.progress"):
    """The progress of a call."""


class QuestionHead(EventHead, tag="call.question"):
    """A question to the caller."""


class AnswerHead(EventHead, tag="call.answer"):
    """The answer to a question."""

    from_server = False
    from_caller = True


_decoder: msgspec.json.Decoder[EventHead] = msgspec.json.Decoder(union_of(EventHead.__subclasses__()))

decode_head: Callable[[bytes], EventHead] = _decoder.decode
"""Decode the head of an event in the usual form. `read_head` decides what a ValueError or RecursionError means."""


def read_head(message: bytes) -> EventHead:
    """Decode the head of an event.

    Raises:
        CallError: PROTOCOL_ERROR, if the message is not an event of a call.
    """
    try:
        return read_outline(_decoder, message)
    except ValueError as error:
        raise CallError(ErrorCode.PROTOCOL_ERROR, f"not an event of a call: {one_line(str(error))}") from error


# --- routes -----------------------------------------------------------------------------------------------------------

# The server of an operation that gets a call: the next in turn, or the one with the fewest calls in flight.
Balance = Literal["round_robin", "least_busy"]
Dropped = Literal["duplicate", "flood", "foreign", "malformed", "unknown"]

_MAX_COMPARED_SERVERS = 16  # for one call
_MAX_CACHED_VERSIONS = 4  # for each operation
_MAX_STICKY_KEYS, _MAX_STICKY_KEY_LENGTH = 10_000, 200
_server_list_states = count()
_OWN_STREAMS = frozenset({OPERATIONS, CALLS})
_HUB_CALLS_FACTOR = 10  # a hub has so many times the open calls of another peer
_MAX_DOUBTFUL_CALLS = 100  # that are ended at a time to make room
_MAX_CREDITS_AHEAD = 64  # credit events before their items


class RoutedCall(Struct, eq=False):
    """A call from one peer to another."""

    request_id: str
    caller: Address
    server: Address
    streams: bool
    identity: bytes = ANONYMOUS  # of its caller, as JSON
    progress: bool = False  # its caller asked for it
    questions: bool = False  # its caller accepts them
    delegable: bool = True  # its server may call on with that identity, if its own grant delegates
    open: bool = True
    grants: int = _MAX_CREDITS_AHEAD  # more credit events than items are a flood
    operation_id: str = ""
    began: float = 0.0  # monotonic time
    items: int = 0  # of a subscription
    request_bytes: int = 0
    response_bytes: int = 0  # while there is an observer
    parent_request_id: str | None = None
    is_ambiguous: bool = False  # without credits: an item without a number may be the response for its caller


class EventRoute(Struct, frozen=True):
    """The receiver of an event, and its call; None for an unmatched one."""

    to: Address
    call: RoutedCall | None


class _OperationServers:
    """The servers of one operation. Adding, removing and choosing one takes constant time.

    Finding those of a version, or the one of a sticky key, takes 0.2 ms for 1,000 servers, and is cached.
    """

    __slots__ = ("_among", "_indices", "_turn", "addresses", "state")

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self._indices: dict[Address, int] = {}
        self._turn = 0
        self._among: list[tuple[Container[Address], _OperationServers]] = []
        self.state = next(_server_list_states)  # another one after each change

    def _changed(self) -> None:
        self._among.clear()
        self.state = next(_server_list_states)

    def add(self, address: Address) -> None:
        self._changed()
        self._indices[address] = len(self.addresses)
        self.addresses.append(address)

    def remove(self, address: Address) -> None:
        """Remove a server by moving the last one to its index."""
        self._changed()
        index, last_address = self._indices.pop(address), self.addresses.pop()
        if last_address != address:
            self.addresses[index] = last_address
            self._indices[last_address] = index

    def next(self) -> Address:
        """Return the next server in turn."""
        self._turn += 1
        return self.addresses[self._turn % len(self.addresses)]

    def among(self, addresses: Container[Address]) -> "_OperationServers | None":
        """Return those of the servers that are among these, or None without any."""
        cached_servers = next(
            (cached_servers for cached_addresses, cached_servers in self._among if cached_addresses is addresses), None
        )
        if cached_servers is None:
            cached_servers = _OperationServers()
            cached_servers.addresses = [address for address in self.addresses if address in addresses]
            del self._among[_MAX_CACHED_VERSIONS:]
            self._among.insert(0, (addresses, cached_servers))
        return cached_servers if cached_servers.addresses else None

    def sticky(self, key: str) -> Address:
        """Return the server for a key: the same one until it leaves."""
        return max(self.addresses, key=lambda address: hash((key, address)))

    def least_busy(self, peers: "dict[Address, _PeerRoutes]") -> Address:
        """Return the server with the fewest calls in flight, of all or of an even sample."""
        self._turn += 1
        addresses, size = self.addresses, len(self.addresses)
        compared = min(size, _MAX_COMPARED_SERVERS)
        indices = ((self._turn + number * size // compared) % size for number in range(compared))
        return min((addresses[index] for index in indices), key=lambda address: peers[address].load)


class _PeerRoutes(Struct, eq=False):
    identity: bytes = ANONYMOUS
    delegates: bool = False
    hub: bool = False  # it is another hub
    load: int = 0  # calls in flight that it serves
    operations: dict[str, None] = field(default_factory=dict[str, None])
    made_calls: dict[str, RoutedCall] = field(default_factory=dict[str, RoutedCall])  # by request id
    served_calls: dict[str, tuple[RoutedCall, ...]] = field(
        default_factory=dict[str, tuple[RoutedCall, ...]]
    )  # one per caller
    doubtful: dict[str, RoutedCall] = field(default_factory=dict[str, RoutedCall])  # of those that it asked
    callers: Tally[bytes] = field(default_factory=Tally[bytes])  # of a hub: the open calls of each identity


class Routes:
    """The table of peers, operations and calls. The server is one of the peers.

    `unserved` is called for an operation without a server: it raises the reason, or lets the server itself respond.
    `identifies`: peers have identities, so delegation is checked.
    """

    def __init__(
        self, *, max_calls: int, max_operations: int, balance: Balance = "least_busy", identifies: bool = True
    ) -> None:
        self._identifies = identifies
        self._max_calls = max_calls
        self._max_operations = max_operations
        self._balance = balance
        self.unserved: Callable[[str], None] | None = None
        self._peers: dict[Address, _PeerRoutes] = {SERVER: _PeerRoutes()}
        self._serving: dict[str, _OperationServers] = {}  # by operation
        self._other_hubs: dict[str, _OperationServers] = {}  # other hubs, by operation
        self.address = ""  # of this hub, among the others
        self._sticky_servers = BoundedDict[tuple[int, str], Address](
            _MAX_STICKY_KEYS
        )  # by the state of the servers, and key
        self.split: Container[str] = ()  # operations of which several versions are served
        self.eligible: Callable[[str, str | None], Container[Address] | None] | None = None  # the servers of a version
        self.closing = False  # no new requests are accepted
        self.own = ANONYMOUS  # the identity of the server's own program, as JSON
        self._streams = set(_OWN_STREAMS)  # operations that are known to be subscriptions
        self.dropped: Counter[Dropped] = Counter()

    def __len__(self) -> int:
        """Return the number of open calls."""
        return sum(len(peer.made_calls) for peer in self._peers.values())

    @property
    def relayed(self) -> int:
        """Return the number of open calls between other peers than the server, except opwire's own operations."""
        calls = (call for peer in self._peers.values() for call in peer.made_calls.values())
        return sum(call.server != SERVER and not is_own(call.operation_id) for call in calls)

    def join(
        self, address: Address, identity: bytes = ANONYMOUS, *, delegates: bool = False, hub: bool = False
    ) -> None:
        """Add a peer. `delegates`: it may pass on the identity of a caller that it serves. `hub`: it is another hub."""
        self._peers[address] = _PeerRoutes(identity=identity, delegates=delegates, hub=hub)

    def leave(self, address: Address) -> list[RoutedCall]:
        """Remove a peer; return the calls that end with it, as caller or as server."""
        if address not in self._peers:
            return []
        self.withdraw(address, self.operations(address))
        peer = self._peers[address]
        calls = [
            *peer.made_calls.values(),
            *(call for calls_of_id in peer.served_calls.values() for call in calls_of_id),
        ]
        ended_calls = [call for call in calls if self.end(call)]
        del self._peers[address]
        return ended_calls

    def operations(self, address: Address) -> list[str]:
        """Return the operations that a peer serves."""
        return list(self._peers[address].operations)

    def check_room(self, address: Address, operation_ids: Iterable[str], waiting: int = 0) -> None:
        """Check whether a peer may announce these operations, while `waiting` others are undecided.

        Raises:
            CallError: RATE_LIMITED, if they are too many or too long.
        """
        operations = self._peers[address].operations
        new_ids = set(operation_ids).difference(operations)
        has_long_id = any(len(operation_id) > MAX_ID for operation_id in new_ids)
        if has_long_id or len(operations) + waiting + len(new_ids) > self._max_operations:
            limit = f"{self._max_operations:,} operations with ids of {MAX_ID:,} characters"
            raise CallError(ErrorCode.RATE_LIMITED, f"at most {limit} are accepted from one peer")

    def announce(self, address: Address, operation_ids: Iterable[str], streams: Iterable[str] = ()) -> None:
        """Add operations of a peer; `streams` are those that are known to be subscriptions."""
        peer = self._peers[address]
        table = self._other_hubs if peer.hub else self._serving
        for operation_id in operation_ids:
            self._streams.discard(operation_id)  # its type may be another one than before
            if operation_id not in peer.operations:
                peer.operations[operation_id] = None
                table.setdefault(operation_id, _OperationServers()).add(address)
        self._streams.update(streams, _OWN_STREAMS)

    def withdraw(self, address: Address, operation_ids: Iterable[str]) -> None:
        """Remove operations of a peer."""
        peer = self._peers[address]
        table = self._other_hubs if peer.hub else self._serving
        for operation_id in operation_ids:
            if operation_id in peer.operations:
                del peer.operations[operation_id]
                serving = table[operation_id]
                if len(serving.addresses) > 1:
                    serving.remove(address)
                    continue
                del table[operation_id]
                if operation_id not in self._serving and operation_id not in self._other_hubs:
                    self._streams.discard(operation_id)
        self._streams.update(_OWN_STREAMS)

    def idle(self, address: Address) -> bool:
        """Return whether a peer serves nothing, and has no open call."""
        peer = self._peers[address]
        return not peer.operations and not peer.made_calls and not peer.served_calls

    def servers(self) -> list[Address]:
        """Return the peers that serve operations."""
        return [address for address, peer in self._peers.items() if peer.operations]

    def choose(
        self, operation_id: str, sticky_key: str | None = None, version: str | None = None, *, here: bool = False
    ) -> Address:
        """Choose a server for an operation: one of this hub or else, unless `here`, another hub.

        Without any, the server itself explains it best. The choice for a `sticky_key` is the same until that server
        leaves, at every hub.

        Raises:
            CallError: the error of `unserved`; UNAVAILABLE, if the server does not respond.
        """
        serving = self._serving.get(operation_id)
        hubs = None if here else self._other_hubs.get(operation_id)
        if version is not None or operation_id in self.split:
            serving, hubs = self._of_version(operation_id, version, serving, hubs)
        if hubs is not None and (serving is None or sticky_key is not None):
            serving = self._among_hubs(hubs, serving, sticky_key)
        if serving is None:
            if here and not is_own(operation_id):  # it was moved or withdrawn: its caller's hub has the news by now
                raise CallError(ErrorCode.UNAVAILABLE, f"{operation_id} has no server at this hub any more")
            if self.unserved is not None:
                self.unserved(operation_id)
            elif not self._peers[SERVER].operations:
                raise CallError(ErrorCode.UNAVAILABLE, f"no server for {operation_id}")
            return SERVER
        if len(serving.addresses) == 1:
            return serving.addresses[0]
        if sticky_key is not None:
            return self._sticky_server(serving, sticky_key)
        return serving.next() if self._balance == "round_robin" else serving.least_busy(self._peers)

    def _sticky_server(self, serving: _OperationServers, key: str) -> Address:
        server = self._sticky_servers.get((serving.state, key))
        if server is None:
            server = serving.sticky(key)
            if len(key) <= _MAX_STICKY_KEY_LENGTH:
                self._sticky_servers[serving.state, key] = server
        return server

    def _of_version(
        self, operation_id: str, version: str | None, *servers: _OperationServers | None
    ) -> "list[_OperationServers | None]":
        """Return those of the servers that serve a version; for None, the one of callers that ask for none."""
        eligible = None if self.eligible is None else self.eligible(operation_id, version)
        servers_of_version = [
            candidates if candidates is None or eligible is None else candidates.among(eligible)
            for candidates in servers
        ]
        if version is not None and not any(servers_of_version):
            message = f"version {version[:80]!r} of {operation_id} is not served at the moment"
            raise CallError(ErrorCode.UNAVAILABLE, message)
        return servers_of_version

    def _among_hubs(
        self, hubs: _OperationServers, serving: _OperationServers | None, sticky_key: str | None
    ) -> _OperationServers:
        """Return the hubs to choose from; for a sticky key one of them, or the servers at this hub (`serving`)."""
        if sticky_key is None:
            return hubs

        def rank(hub: Address) -> bytes:  # unlike `hash`, the same in every process
            return blake2b(f"{sticky_key}/{hub}".encode(errors="surrogatepass"), digest_size=8).digest()

        highest_hub = max(hubs.addresses, key=rank)
        if serving is not None and rank(self.address) > rank(highest_hub):
            return serving
        hub_of_key = _OperationServers()
        hub_of_key.add(highest_hub)
        return hub_of_key

    def request(self, caller: Address, head: RequestedHead, identity: bytes = ANONYMOUS) -> RoutedCall | None:
        """Route a request; return None for a duplicate, which is ignored. `identity` is stated by a hub.

        Raises:
            CallError: UNAVAILABLE if it has no server, RATE_LIMITED if the caller has too many open calls,
                ACCESS_DENIED if it is made on behalf of another caller without permission, VALIDATION_ERROR if an
                id is too long.
        """
        peer = self._peers[caller]
        if head.request_id in peer.made_calls:
            return self._drop("duplicate")
        if self.closing:
            raise CallError(ErrorCode.UNAVAILABLE, "the hub is shutting down and accepts no new calls")
        parent = head.parent_request_id
        if len(head.operation_id) > MAX_ID or (parent is not None and len(parent) > MAX_ID):  # kept until it ends
            raise CallError(ErrorCode.VALIDATION_ERROR, f"an id of a request has more than {MAX_ID:,} characters")
        server = head.peer or self.choose(head.operation_id, head.sticky_key, head.version, here=peer.hub)
        if not peer.hub:  # otherwise that hub has decided it
            is_nested = self._identifies and parent is not None
            identity = self._delegated(peer, head) if is_nested else peer.identity
        if server not in self._peers:
            raise CallError(ErrorCode.UNAVAILABLE, f"unknown peer {server[:80]!r}: it may have left")
        if not peer.hub:
            if len(peer.made_calls) >= self._max_calls:
                raise CallError(ErrorCode.RATE_LIMITED, f"this connection has {self._max_calls:,} calls open already")
        # As many as there is room for others: one identity gets a half, and n of them leave a part in n + 1.
        elif peer.callers[identity] >= self._max_calls * _HUB_CALLS_FACTOR - len(peer.made_calls):
            raise CallError(ErrorCode.RATE_LIMITED, "this identity has too many calls open between these hubs")
        # A caller or a server may support neither credits nor item numbers: the operation's type decides.
        streams = head.credits is not None or head.operation_id in self._streams
        call = RoutedCall(
            head.request_id,
            caller,
            server,
            streams,
            identity,
            head.progress is True,
            head.questions is True,
            not peer.hub or identity != self.own,
            operation_id=head.operation_id,
            parent_request_id=parent,
            is_ambiguous=streams and head.credits is None,
        )
        self._add(call)
        return call

    def open(self, call: RoutedCall) -> RoutedCall:
        """Add a call, in place of one with its id that the caller has forgotten."""
        self.give_up(call.caller, call.request_id)
        self._add(call)
        return call

    def _add(self, call: RoutedCall) -> None:
        request_id, caller, server = call.request_id, self._peers[call.caller], self._peers[call.server]
        caller.made_calls[request_id] = call
        if caller.hub:
            caller.callers[call.identity] += 1
        server.served_calls[request_id] = (
            (*server.served_calls[request_id], call) if request_id in server.served_calls else (call,)
        )
        server.load += 1

    def give_up(self, caller: Address, request_id: str, server: Address | None = None) -> None:
        """End a call for its caller, if this server (None: any) has it."""
        call = self._peers[caller].made_calls.get(request_id)
        if call is not None and server in (None, call.server):
            self.end(call)

    def _delegated(self, peer: _PeerRoutes, head: RequestedHead) -> bytes:
        """Return the identity of the caller on behalf of which a peer makes a request.

        An ended or unknown parent must not turn it into the peer's own call: an abort by the parent's caller can
        overtake it.

        Raises:
            CallError: ACCESS_DENIED.
        """
        parents = peer.served_calls.get(head.parent_request_id or "", ())
        if len(parents) != 1:  # two callers may have chosen the same id
            raise not_delegated(head.operation_id, "parentRequestId names no request that this peer is serving")
        if not parents[0].delegable or is_own(parents[0].operation_id) or is_own(head.operation_id):
            raise not_delegated(head.operation_id, "the authority of that request cannot be passed on")
        if not peer.delegates:
            raise not_delegated(head.operation_id, "the grant of this peer does not delegate")
        return parents[0].identity

    def follow(self, sender: Address, head: EventHead) -> EventRoute | None:
        """Return the route of any other event; None if it is dropped (and counted)."""
        kind, call = type(head), self._find(sender, head)
        if kind is ProgressHead:  # neither an item nor, without its call, of use
            return self._drop("unknown") if call is None or not call.progress else EventRoute(call.caller, call)
        if (kind is QuestionHead or kind is AnswerHead) and (call is None or not call.questions):
            return self._drop("unknown")
        if call is None:
            to = head.peer or SERVER
            if to not in self._peers:
                return self._drop("unknown")
            if self.open_call(to, head.request_id) is not None:
                return self._drop("foreign")
            return EventRoute(to, None)
        if head.ends_call(streams=call.streams):
            self.end(call)
        elif not head.from_caller:
            call.grants += 1  # an item or a question, after which its caller may send another event
            if kind is RespondedHead and head.seq is None and call.is_ambiguous:
                self._peers[call.caller].doubtful[call.request_id] = call
        elif call.grants:
            call.grants -= 1
        else:
            return EventRoute(call.server, None)  # more than any caller needs
        return EventRoute(call.server if call.caller == sender else call.caller, call)

    def _find(self, sender: Address, head: EventHead) -> RoutedCall | None:
        """Return the open call of an event, if such an event may come from its sender."""
        peer = self._peers[sender]
        if head.from_caller:
            made_call = peer.made_calls.get(head.request_id)
            if made_call is not None and head.peer in (None, made_call.server):
                return made_call
        if head.from_server:
            for served_call in peer.served_calls.get(head.request_id, ()):
                if head.peer in (None, served_call.caller):  # without a peer: the first caller
                    return served_call
        return None

    def open_call(self, caller: Address, request_id: str) -> RoutedCall | None:
        """Return an open call."""
        return self._peers[caller].made_calls.get(request_id)

    def doubtful(self, caller: Address) -> list[RoutedCall]:
        """Return some of a caller's calls that may have ended, for which it has no room any more."""
        return list(islice(self._peers[caller].doubtful.values(), _MAX_DOUBTFUL_CALLS))

    def end(self, call: RoutedCall) -> bool:
        """Remove a call; return False if it has ended before."""
        if not call.open:
            return False
        call.open = False
        request_id, caller, server = call.request_id, self._peers[call.caller], self._peers[call.server]
        del caller.made_calls[request_id]
        if caller.hub:
            caller.callers.subtract(call.identity)
        if call.is_ambiguous:
            caller.doubtful.pop(request_id, None)
        server.load -= 1
        calls_of_id = server.served_calls.pop(request_id)
        if len(calls_of_id) > 1:
            server.served_calls[request_id] = tuple(other_call for other_call in calls_of_id if other_call is not call)
        return True

    def _drop(self, reason: Dropped) -> None:
        self.dropped[reason] += 1
